"""The page Compare: groups over seeds, levels by SQL of our own, what is hidden or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_text import app_text
from held_run import HeldRun
from made_evaluation import make_evaluation
from made_run import CONFIG, make_run
from shown_figures import shown_figures
from streamlit.testing.v1 import AppTest

from echoscope.diagnostics.measure.outcomes import mean_estimate
from echoscope.store.query.metric_keys import ENTROPY
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAction
from echoscope.store.steer.commands import new_command, post

OpenPage = Callable[..., AppTest]
LAST = 29
"""Step of the runs of `root`."""


def make(root: Path, name: str, lr: float, seed: int, start: float) -> None:
    config = {**CONFIG, "name": name, "seed": seed, "optim": {"lr": lr}}
    make_run(
        root / name,
        LAST + 1,
        config=config,
        values=lambda step: {ENTROPY: start + 0.1 * seed - 0.01 * step},
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two learning rates, three seeds each."""
    root = tmp_path_factory.mktemp("sweep")
    for seed in range(3):
        make(root, f"low-{seed}", 1e-6, seed, 1.0)
        make(root, f"high-{seed}", 1e-5, seed, 3.0)
    return root


def runs_of(root: Path) -> str:
    return ",".join(sorted(path.name for path in root.iterdir()))


def groups(page: AppTest) -> list[dict[str, Any]]:
    assert not page.exception
    rows: list[dict[str, Any]] = page.dataframe[0].value.to_dict("records")
    return rows


def test_seeds_are_one_group_and_levels_are_what_sql_says(root: Path, open_page: OpenPage) -> None:
    page = open_page("compare", root, runs=runs_of(root), metric=ENTROPY, steps="10-29")
    low, high = groups(page)
    assert (low["group"], high["group"]) == ("lr 1e-06", "lr 1e-05")
    query = (
        f"SELECT avg(value) AS v FROM metrics WHERE key = '{ENTROPY}' AND step BETWEEN 10 AND 29"
    )
    means = [open_run(root / f"low-{n}").sql(query)["v"][0].as_py() for n in range(3)]
    expected = mean_estimate(means)
    ends = f"({expected.low:.3g} to {expected.high:.3g})"
    assert low["level"] == f"{expected.value:.3g} {ends} nats per token"
    assert low["n"] == "3 runs, 60 values"
    assert high["gap"].startswith("higher: +2 (")


def test_a_band_is_drawn_for_each_group(root: Path, open_page: OpenPage) -> None:
    page = open_page("compare", root, runs=runs_of(root), metric=ENTROPY)
    figure = next(iter(shown_figures(page).values()))
    assert figure.text.count(", band") == 2
    assert "3 of 3 runs" in figure.text
    assert not figure.layout.get("showlegend")


def test_a_hidden_group_is_not_drawn_but_still_compared(root: Path, open_page: OpenPage) -> None:
    page = open_page("compare", root, runs=runs_of(root), metric=ENTROPY, hide="low-0")
    assert [row["hide"] for row in groups(page)] == ["Show", "Hide"]
    assert [row["solo"] for row in groups(page)] == ["Solo", "All"]
    figure = next(iter(shown_figures(page).values()))
    assert "lr 1e-06" not in figure.text
    assert "1 of 2 groups are drawn." in app_text(page)


def test_runs_can_be_grouped_by_other_settings_or_not_at_all(
    root: Path, open_page: OpenPage
) -> None:
    page = open_page("compare", root, runs=runs_of(root), by="run")
    assert [row["group"] for row in groups(page)] == sorted(p.name for p in root.iterdir())


def test_any_group_is_the_baseline(root: Path, open_page: OpenPage) -> None:
    page = open_page("compare", root, runs=runs_of(root), metric=ENTROPY, baseline="high-0")
    assert groups(page)[1]["gap"] == "baseline"
    assert groups(page)[0]["gap"].startswith("lower: -2 (")


@pytest.mark.parametrize("steps", ["7-7", "3-400", "9-2", "a-b", "1-2-3", "-5"])
def test_a_window_of_one_step_or_none_is_refused_in_a_sentence(
    root: Path, open_page: OpenPage, steps: str
) -> None:
    page = open_page("compare", root, runs=runs_of(root), metric=ENTROPY, steps=steps)
    assert "in the address is no range of two steps or more" in app_text(page)
    assert page.slider(key="compare_steps").value == (10, 29)


def test_only_settings_that_differ_are_open(root: Path, open_page: OpenPage) -> None:
    page = open_page("compare", root, runs=runs_of(root))
    tables = [frame.value for frame in page.dataframe]
    differing = next(table for table in tables if "setting" in table and "value" not in table)
    assert differing.to_dict("records") == [
        {"setting": "optim.lr", "lr 1e-06": "1e-06", "lr 1e-05": "1e-05"}
    ]
    assert any("settings are equal" in box.label for box in page.expander)


def test_runs_of_one_configuration_stand_for_themselves(
    tmp_path: Path, open_page: OpenPage
) -> None:
    for seed in range(2):
        make(tmp_path, f"s{seed}", 1e-6, seed, 1.0)
    page = open_page("compare", tmp_path, runs="s0,s1")
    assert [row["group"] for row in groups(page)] == ["s0", "s1"]
    assert "same configuration" in app_text(page)


def test_what_was_changed_while_a_run_trained_is_a_setting_that_differs(
    tmp_path: Path, open_page: OpenPage
) -> None:
    """Their configurations are equal: nothing else tells the two apart."""
    for name in ("kept", "cooled"):
        run = HeldRun(tmp_path / name, config={**CONFIG, "optim": {"lr": 0.1}})
        run.advance(5)
        if name == "cooled":
            order = new_command(
                name, CommandAction.SET, settings={"optim.lr": 0.01}, issued_by="ann"
            )
            post(run.path, order)
            run.answer()
        run.advance(5)
        run.close()
    page = open_page("compare", tmp_path, runs="kept,cooled", metric=ENTROPY)
    tables = [frame.value for frame in page.dataframe if "setting" in frame.value]
    assert tables[0].to_dict("records") == [
        {"setting": "optim.lr", "kept": "0.1", "cooled": "0.1, 0.01 from step 5"}
    ]
    assert "same configuration" not in app_text(page)
    assert "Groups go by the settings at the start" in app_text(page)


def test_settings_that_always_vary_together_are_no_sweep(
    tmp_path: Path, open_page: OpenPage
) -> None:
    """Of two runs, whatever differs: no axis would tell more than another."""
    for n in range(2):
        config = {**CONFIG, "a": n, "b": n, "c": n}
        make_run(tmp_path / f"r{n}", 3, config=config, values=lambda step, n=n: {ENTROPY: 1.0 + n})
    page = open_page("compare", tmp_path, runs="r0,r1", metric=ENTROPY)
    assert "Sweep" not in [heading.value for heading in page.subheader]


def test_an_evaluation_is_refused_in_a_sentence(
    root: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    for seed in range(2):
        make(tmp_path, f"s{seed}", 1e-6, seed, 1.0)
    make_evaluation(tmp_path / "played", {"lake": ["1", "0"]})
    page = open_page("compare", tmp_path, runs="s0,s1,played")
    assert [row["group"] for row in groups(page)] == ["s0", "s1"]
    assert "played is an evaluation: nothing was trained" in app_text(page).replace("\\", "")


def test_settings_of_strangers_stay_text(tmp_path: Path, open_page: OpenPage) -> None:
    for n in range(4):
        config = {**CONFIG, "seed": n, "a": f"<img src=x{n % 2}>", "b<i>": f"%{{x}}{n // 2}"}
        make_run(tmp_path / f"r{n}", 3, config=config, values=lambda step, n=n: {ENTROPY: 1.0 + n})
    page = open_page("compare", tmp_path, runs=runs_of(tmp_path), metric=ENTROPY)
    assert len(groups(page)) == 4
    drawn = "".join(figure.text for figure in shown_figures(page).values())
    assert "&lt;img src=x0&gt;" in drawn
    assert "<img" not in drawn
    assert "<i>" not in drawn
    assert "Too few runs to tell which settings matter: 4 runs" in app_text(page)


def test_one_run_is_nothing_to_compare_and_unknown_ones_are_named(
    root: Path, open_page: OpenPage
) -> None:
    page = open_page("compare", root, runs="low-0,nope")
    assert not page.exception
    assert "Choose two runs" in app_text(page)
    assert "not shown" in app_text(page)


@pytest.mark.long
def test_more_groups_than_colours_are_compared_and_some_are_not_drawn(
    tmp_path: Path, open_page: OpenPage
) -> None:
    for n in range(10):
        make(tmp_path, f"run{n}", 1e-6 * (n + 1), 0, 1.0 + n)
    page = open_page("compare", tmp_path, runs=runs_of(tmp_path), metric=ENTROPY)
    assert len(groups(page)) == 10
    assert "8 of 10 groups are drawn." in app_text(page)
    figure = next(iter(shown_figures(page).values()))
    assert (
        len(
            set(
                re.findall(
                    r'"fillcolor":"(#......)"|"marker":{"size":4,"color":"(#......)"', figure.text
                )
            )
        )
        == 8
    )


def test_without_names_the_ticked_runs_are_compared(root: Path, open_page: OpenPage) -> None:
    page = open_page("compare", root)
    page.session_state["_runs_ticked"] = ("low-0", "low-1", "high-0")
    assert [row["n"] for row in groups(page.run())] == ["2 runs, 40 values", "1 run, 20 values"]
