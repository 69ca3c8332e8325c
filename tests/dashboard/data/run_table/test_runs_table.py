"""The table of all runs: names of columns, filter, order, groups, and what a wrong filter says."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import until
from made_run import CONFIG, make_run

from echoscope.dashboard.data import queries
from echoscope.dashboard.data.run_table.condition import is_condition
from echoscope.dashboard.data.run_table.facts import Facts
from echoscope.dashboard.data.run_table.groups import common_words, estimate_words, grouped, ordered
from echoscope.dashboard.data.run_table.table import RootRuns, RunsTable
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.web.settings import DashboardSettings, configure

SUCCESS, ENTROPY = "rollout/success_rate", "policy/entropy"
RATES = {"low": 1e-6, "high": 1e-4}


def make(root: Path, name: str, rate: object, seed: int, success: float, **more: object) -> None:
    """A run of three steps; its success is twice what it is at last, then nothing, then that."""
    config = {**CONFIG, "optim": {"lr": rate}, "seed": seed, **more}
    course = (min(1.0, 2 * success), 0.0, success)

    def values(step: int) -> dict[str, float]:
        return {SUCCESS: course[step], ENTROPY: 1.0 - 0.1 * step, "eval/lake/success_rate": success}

    make_run(root / name, 3, config=config, values=values)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RunsTable:
    """Two rates, two seeds each."""
    root = tmp_path_factory.mktemp("runs")
    for kind, rate in RATES.items():
        for seed in range(2):
            make(root, f"{kind}-{seed}", rate, seed, 0.1 * seed + (0.5 if rate > 1e-5 else 0.2))
    return table_of(root)


def table_of(root: Path) -> RunsTable:
    configure(DashboardSettings(root=root))
    facts, rows = Facts(), queries.runs()
    assert facts.wait(rows, 60.0) == 0
    return RootRuns(facts=facts).table(rows)


def test_of_a_run_that_was_never_read_only_the_folder_is_known(tmp_path: Path) -> None:
    make(tmp_path, "one", 1e-4, 0, 0.5)
    configure(DashboardSettings(root=tmp_path))
    queries.forget()
    facts, rows = Facts(), queries.runs(most=0)
    assert facts.want(rows) == 1  # and has it read
    table = RootRuns().table(rows)
    assert table.values("run") == ["one"]
    assert table.values("history") == [[]]
    for name in ("status", "env", "algo", "step", "duration_h", "tags", "success"):
        assert table.values(name) == [None]
    assert table.filtered("status = 'crashed' or step >= 0") == []
    until(lambda: queries.runs(most=0)[0].is_read, "row of the run")


def names(table: RunsTable, text: str) -> set[str]:
    return {table.rows[n].run_id for n in table.filtered(text)}


LOW, HIGH = {"low-0", "low-1"}, {"high-0", "high-1"}


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("", LOW | HIGH),
        ("lr > 1e-5", HIGH),
        ("optim.lr <= 0.000001 and seed = 1", {"low-1"}),
        ("eval_success < 50%", LOW),
        ("eval/lake/success_rate between 0.25 and 0.55", {"low-1", "high-0"}),
        ('"rollout/success_rate" > .55', {"high-1"}),
        ("max(success) >= 100 % or min(policy/entropy) > 1", HIGH),
        ("best(rollout/success_rate) < 0.5", {"low-0"}),
        ("recent(entropy) = 0.9", LOW | HIGH),
        ("lr > 1e-5 and env = 'frozen_lake'", HIGH),
        ("not (lr > 1e-5) and run like '%-0'", {"low-0"}),
        ("run in ('low-0', 'high-1')", {"low-0", "high-1"}),
        ("env = 'frozen_lake' and status = 'finished' and verdict is null", LOW | HIGH),
        ("note is not null", set()),
        ("run = 'it''s'", set()),
        ("low", LOW),
        ("^high-1$", {"high-1"}),
        ("frozen", LOW | HIGH),
        ("nothing like it", set()),
    ],
)
def test_a_filter_holds_over_all_runs(table: RunsTable, text: str, hits: set[str]) -> None:
    assert names(table, text) == hits


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lrr > 1", "there is no column 'lrr'; did you mean optim.lr?"),
        ("algo = ppo", "there is no column 'ppo'; a text stands in single quotes: 'ppo'"),
        ("best(entropie) > 1", "there is no metric 'entropie'; did you mean policy/entropy?"),
        ("best(seed) > 1", "there is no metric 'seed'"),
        ("success_rate > 1", "'success_rate' may be any of these: eval/lake/success_rate, rollout"),
        ("status > 3", "status holds texts"),
        ("lr > ", "'lr >' is no condition: it breaks off"),
        ("lr > 1; drop table shown_runs", "there is no column 'drop'"),
        ("lr > 1), (1 = 1", "more than one"),
        ("read_csv('/etc/passwd') = 1", "read_csv() is not allowed in a filter"),
        ("lr = (select 1)", "there is no column 'select'"),
        ("run = repeat('x', 1000000000)", "repeat() is not allowed"),
        ("lr in (getenv('HOME'))", "getenv() is not allowed"),
        ("lr = [1]", "list_value() is not allowed"),
        ("(", "is not a regular expression"),
        ("lr = 1" + " " * 600, "the filter has"),
    ],
)
def test_a_wrong_filter_is_one_sentence(table: RunsTable, text: str, sentence: str) -> None:
    with pytest.raises(Problem) as caught:
        table.filtered(text if len(text) < 500 else text + "x")
    assert sentence in caught.value.text
    assert "\n" not in caught.value.text


def test_a_run_may_be_called_like_a_condition(tmp_path: Path) -> None:
    make(tmp_path, "rate=1e-5", 1e-5, 0, 0.5)
    assert names(table_of(tmp_path), "rate=1e-5") == {"rate=1e-5"}


def test_what_compares_nothing_is_no_condition() -> None:
    assert [is_condition(text) for text in ("a", "a|b", "'a = b'", "a is null", "a>b")] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_the_order_is_over_all_runs_and_what_is_missing_is_last(tmp_path: Path) -> None:
    for name, rate in (("a", 2.0), ("b", "1e-3"), ("c", None), ("d", 10)):
        make(tmp_path, name, rate, 0, 0.5)
    table = table_of(tmp_path)

    def order(by: str) -> str:
        return "".join(table.rows[n].run_id for n in table.sorted(table.filtered(""), by))

    assert (order("lr"), order("-lr"), order("-run")) == ("badc", "dabc", "dcba")
    with pytest.raises(Problem, match="there is no column 'nope'"):
        order("nope")


def test_a_group_is_all_of_its_runs_with_mean_and_interval(table: RunsTable) -> None:
    groups = ordered(table, grouped(table, table.filtered(""), ["lr"]), "-eval_success")
    assert [(group.name, len(group.rows)) for group in groups] == [
        ("lr 0.0001", 2),
        ("lr 1e-06", 2),
    ]
    column, values = table.column("eval_success"), table.values("eval_success")
    assert estimate_words(column, [values[n] for n in groups[0].rows]).startswith("55 % (")


def test_groups_are_named_by_what_differs(table: RunsTable) -> None:
    by_all = grouped(table, table.filtered(""), ["env", "lr"])
    assert {group.name for group in by_all} == {"lr 1e-06", "lr 0.0001"}
    (only,) = grouped(table, table.filtered("lr > 1e-5"), ["env", "lr"])
    assert only.name == "frozen_lake, lr 0.0001"
    assert table.catalogue.differing == ("optim.lr",)


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ([0.0, 0.0, 0.1], "3.33 % (0 to 43)"),
        ([1.0, 0.99, 0.8], "93 % (39 to 100)"),
        ([0.0] * 5, "0 %, all 5"),
        ([0.5], "50 %"),
        ([0.4, 0.6, None], "50 % (3 to 97), 2 of 3 runs"),
        ([], ""),
    ],
)
def test_an_interval_of_a_share_stays_a_share(
    table: RunsTable, shares: list[float | None], sentence: str
) -> None:
    assert estimate_words(table.column("success"), shares) == sentence


def test_what_runs_of_a_group_say(table: RunsTable) -> None:
    column = table.column("status")
    assert common_words(column, ["finished"] * 2) == "finished"
    assert common_words(column, ["failed", "finished", "finished"]) == "2 finished, 1 failed"
    assert common_words(column, ["a", "b", "c", "d"]) == "4 values"
    assert common_words(column, ["a", "a", "b", "c", "", "e"]) == "2 a, 1 b and 3 others"
    verdicts = ["healthy"] * 100 + ["collapsing"] * 17 + ["collapsed"] * 2 + ["recovering"]
    assert common_words(column, verdicts) == "100 healthy, 17 collapsing and 3 others"  # runs
    assert common_words(table.column("verdict"), ["healthy", None]) == "1 healthy, 1 not judged yet"
