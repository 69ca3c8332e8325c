"""Which settings of a sweep matter, and from how many runs on that can be told."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest

from echoscope.dashboard.data.comparing import sweep
from echoscope.dashboard.data.comparing.sweep import (
    LEAST_RUNS,
    MAX_SETTINGS,
    Importance,
    importance_words,
    importances,
    why_unknown,
)

NAMES = ("lr", "kl", "clip")


def runs(count: int, share: float, random: np.random.Generator) -> tuple[dict, dict]:
    """A sweep of three settings with three values each; `lr` decides `share` of the variance."""
    settings = {f"run{n}": {name: str(random.integers(3)) for name in NAMES} for n in range(count)}
    effect = math.sqrt(share / (2 / 3))
    values = {
        run: effect * (int(of["lr"]) - 1) + math.sqrt(1 - share) * random.normal()
        for run, of in settings.items()
    }
    return settings, values


def share_named(count: int, share: float, times: int) -> tuple[float, float]:
    """How often `lr` is said to matter, and how often each of the others, which never do."""
    random = np.random.default_rng(0)
    hits = misses = 0
    for _ in range(times):
        told = importances(*runs(count, share, random), NAMES)
        sure = {of.settings[0] for of in told if of.is_sure}
        hits += "lr" in sure
        misses += len(sure - {"lr"})
    return hits / times, misses / times / (len(NAMES) - 1)


def test_the_setting_that_decides_comes_first() -> None:
    settings, values = runs(30, 0.9, np.random.default_rng(3))
    first, *others = importances(settings, values, NAMES)
    assert first.settings == ("lr",)
    assert first.is_sure
    assert first.low > max(other.high for other in others)
    assert "lr by " in importance_words([first, *others])


def test_settings_that_vary_together_are_not_told_apart() -> None:
    settings, values = runs(24, 0.9, np.random.default_rng(3))
    both = {run: {**of, "warmup": f"{of['lr']}0"} for run, of in settings.items()}
    names = [of.settings for of in importances(both, values, [*NAMES, "warmup"])]
    assert names[0] == ("lr", "warmup")


@pytest.mark.long
def test_from_so_many_runs_on_what_decides_half_of_the_spread_is_found() -> None:
    """Half as many miss it more often than not, and what does not matter is hardly ever named."""
    hits, misses = share_named(LEAST_RUNS, 0.5, 40)
    assert hits > 0.5
    assert misses <= 0.05
    hits, _ = share_named(LEAST_RUNS // 2, 0.5, 40)
    assert hits < 0.5


def test_fewer_runs_are_said_to_be_too_few() -> None:
    assert why_unknown(LEAST_RUNS, MAX_SETTINGS) == ""
    assert why_unknown(LEAST_RUNS, MAX_SETTINGS + 1).startswith(
        f"{MAX_SETTINGS + 1} settings differ"
    )
    assert why_unknown(5, 2).startswith(
        "Too few runs to tell which settings matter: 5 runs, at least"
    )


def test_nothing_is_said_of_runs_that_are_all_equal_or_have_no_value() -> None:
    settings, values = runs(20, 0.5, np.random.default_rng(0))
    assert importances(settings, dict.fromkeys(values, 1.0), NAMES) == []
    nothing = Importance(settings=("lr",), value=0.0, low=-0.1, high=0.1, is_sure=False)
    assert importance_words([nothing]).startswith("No setting tells more")


def test_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(sweep)
    assert results.attempted > 0
    assert results.failed == 0
