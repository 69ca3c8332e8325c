"""Runs in groups: by all settings that differ but the seed, with names that tell them apart."""

from __future__ import annotations

import doctest

from echoscope.dashboard.data.comparing import groups
from echoscope.dashboard.data.comparing.groups import (
    EACH_RUN,
    differing,
    equal_settings,
    grouped,
    setting_table,
    settings_of,
)


def sweep(*lrs: float, seeds: int = 2) -> dict[str, dict[str, object]]:
    return {
        f"lr{lr:g}-s{seed}": {
            "name": f"lr{lr:g}-s{seed}",
            "seed": seed,
            "steps": 10,
            "optim": {"lr": lr},
            "sinks": {"group": f"{seed}"},
        }
        for lr in lrs
        for seed in range(seeds)
    }


def settings(configs: dict[str, dict[str, object]]) -> dict[str, groups.Settings]:
    return {run: settings_of(config) for run, config in configs.items()}


def test_runs_that_differ_in_their_seed_and_their_name_alone_are_one_group() -> None:
    of = settings(sweep(1e-5, 1e-6))
    assert differing(of) == ["optim.lr"]
    run_groups = grouped(list(of), of, differing(of))
    assert [(group.name, group.runs) for group in run_groups] == [
        ("lr 1e-06", ("lr1e-06-s0", "lr1e-06-s1")),
        ("lr 1e-05", ("lr1e-05-s0", "lr1e-05-s1")),
    ]


def test_each_run_stands_for_itself_under_its_name() -> None:
    of = settings(sweep(1e-5))
    assert differing(of) == []
    run_groups = grouped(list(of), of, [EACH_RUN])
    assert [group.name for group in run_groups] == ["lr1e-05-s0", "lr1e-05-s1"]


def test_a_name_has_as_few_settings_as_tell_all_groups_apart() -> None:
    of = {
        "a": {"lr": "1", "warmup": "5", "kl": "0"},
        "b": {"lr": "2", "warmup": "9", "kl": "0"},
        "c": {"lr": "2", "warmup": "9", "kl": "1"},
        "d": {"lr": "2", "warmup": "9", "kl": "1"},
    }
    names = [group.name for group in grouped(list(of), of, ["lr", "warmup", "kl"])]
    assert names == ["lr 1, kl 0", "lr 2, kl 0", "lr 2, kl 1"]


def test_settings_that_differ_are_listed_and_those_that_are_equal_are_apart() -> None:
    of = {
        "a": {"lr": "1e-05", "kl": "0", "steps": "9"},
        "b": {"lr": "1e-05", "kl": "0.1", "steps": "9"},
        "c": {"lr": "0.001", "steps": "9"},
    }
    table = setting_table(grouped(list(of), of, ["lr"]), of, differing(of))
    assert table.to_dict("records") == [
        {"setting": "kl", "lr 1e-05": "0 or 0.1", "lr 0.001": "not set"},
        {"setting": "lr", "lr 1e-05": "1e-05", "lr 0.001": "0.001"},
    ]
    assert equal_settings(of).to_dict("records") == [{"setting": "steps", "value": "9"}]


def test_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(groups)
    assert results.attempted > 0
    assert results.failed == 0
