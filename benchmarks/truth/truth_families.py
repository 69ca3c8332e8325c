"""The families of the truth table: kinds of simulated runs, of each of which all is known.

Levels, lengths, onsets, episodes and noise are drawn anew for each seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from truth_runs import (
    RETURN,
    SUCCESS,
    Draft,
    TruthRun,
    course,
    saturating,
    table_of,
)

from echoscope.diagnostics.read.names import Decision
from echoscope.diagnostics.read.table import MetricTable, TableBuilder
from echoscope.store.records import FloatArray64

Family = Callable[[np.random.Generator], TruthRun]

FAMILIES: dict[str, Family] = {}
"""By name, in the order of the table."""

UNKNOWN, FINE = "insufficient evidence", ("healthy", "converged")
AT_EASE = (UNKNOWN, "not learning", *FINE)
"""What a run without trouble may pass: at first it may have learned nothing."""
LOOK = (*FINE, "watch")
LOST = (*AT_EASE, "watch", "collapsing", "collapsed")
DIPPED = (*LOST, "recovering", *FINE)


def made_run(family: str, seed: int) -> TruthRun:
    """The run of a family with this seed, always the same.

    Raises:
        KeyError: there is no such family.
    """
    return FAMILIES[family](np.random.default_rng([seed, zlib.crc32(family.encode())]))


def _family(make: Family) -> Family:
    FAMILIES[make.__name__.removeprefix("_").replace("_", " ")] = make
    return make


def _draft(rng: np.random.Generator, low: int, high: int) -> Draft:
    return Draft(rng=rng, num_rows=int(rng.integers(low, high + 1)))


def _episodes(rng: np.random.Generator) -> int:
    return int(rng.choice([64, 128, 256, 512]))


# -- nothing happens ---------------------------------------------------------------------------


def _flat(rng: np.random.Generator, episodes: int, siblings: int, says: bool = True) -> TruthRun:
    draft = _draft(rng, 30, 150)
    level = course(draft.num_rows, rng.uniform(0.2, 0.8))
    draft.training(level, episodes=episodes, siblings=siblings, says_episodes=says)
    draft.others()
    return draft.run(ends=FINE, path=AT_EASE)


FAMILIES["flat 8 episodes"] = lambda rng: _flat(rng, 8, 4)
FAMILIES["flat 64 episodes"] = lambda rng: _flat(rng, 64, 8)
FAMILIES["flat 512 episodes"] = lambda rng: _flat(rng, 512, 8)
FAMILIES["flat unknown episodes"] = lambda rng: _flat(
    rng, int(rng.choice([16, 64, 250])), int(rng.choice([1, 2])), says=False
)


@_family
def _flat_for_long(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 300, 300)
    draft.training(course(draft.num_rows, rng.uniform(0.2, 0.8)), episodes=_episodes(rng))
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _over_dispersed(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 40, 150)
    level = course(draft.num_rows, rng.uniform(0.2, 0.8))
    draft.training(level, episodes=128, siblings=32, correlation=0.5)
    draft.others()
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _growing_noise(rng: np.random.Generator) -> TruthRun:
    """Fewer episodes from row to row, and a return whose noise grows fivefold."""
    draft = _draft(rng, 60, 150)
    episodes_T = np.linspace(512, 16, draft.num_rows).astype(np.int64) // 8 * 8
    draft.training(course(draft.num_rows, rng.uniform(0.3, 0.7)), episodes=episodes_T)
    noise = rng.uniform(0.02, 0.2)
    level = course(draft.num_rows, rng.uniform(-2, 2))
    draft.amount(RETURN, level, np.linspace(noise, 5 * noise, draft.num_rows))
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _not_learning(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 60, 150)
    draft.training(course(draft.num_rows, rng.choice([0.0, 0.001])), episodes=_episodes(rng))
    draft.others()
    return draft.run(ends=("not learning",), path=(UNKNOWN, "not learning"))


@_family
def _no_outcome(rng: np.random.Generator) -> TruthRun:
    """Entropy, length and gradient norm, and neither success nor return."""
    draft = _draft(rng, 30, 100)
    draft.amount("policy/entropy", course(draft.num_rows, 0.6), 0.03)
    draft.amount("rollout/response_length_mean", course(draft.num_rows, 300.0), 12.0)
    draft.amount("optim/grad_norm", course(draft.num_rows, 1.0), 0.1)
    return draft.run(ends=(UNKNOWN,), path=(UNKNOWN,))


@_family
def _three_rows(rng: np.random.Generator) -> TruthRun:
    draft = Draft(rng=rng, num_rows=3)
    draft.training(course(3, rng.uniform(0.2, 0.8)))
    return draft.run(ends=(UNKNOWN,), path=(UNKNOWN,))


# -- rises ---------------------------------------------------------------------------------------


@_family
def _slow_rise(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 70, 160)
    start = rng.uniform(0.05, 0.3)
    top = start + rng.uniform(0.3, 0.6)
    draft.training(course(draft.num_rows, start, (1, top, draft.num_rows)), episodes=_episodes(rng))
    draft.others()
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _fast_rise(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 50, 150)
    start, top = rng.uniform(0.02, 0.2), rng.uniform(0.5, 0.9)
    draft.training(saturating(draft.num_rows, start, top, rng.uniform(5, 20)), with_spread=True)
    draft.returns(gain=rng.uniform(0.5, 10), base=rng.uniform(-5, 5), noise=0.05)
    draft.others()
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _rise_in_ten_rows(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 30, 100)
    rise = course(draft.num_rows, rng.uniform(0.01, 0.1), (1, rng.uniform(0.7, 0.95), 9))
    draft.training(rise, episodes=_episodes(rng))
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _plateau(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 80, 150)
    rise = course(draft.num_rows, rng.uniform(0.1, 0.3), (5, rng.uniform(0.6, 0.9), 30))
    draft.training(rise, episodes=_episodes(rng))
    draft.evaluation(rise, every=10, num_tasks=200)
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _solved(rng: np.random.Generator) -> TruthRun:
    """Success to one: no spread is left within groups, and nothing is wrong."""
    draft = _draft(rng, 60, 150)
    rise = course(draft.num_rows, rng.uniform(0.1, 0.4), (5, 0.995, 30))
    draft.training(rise, episodes=128, with_spread=True)
    return draft.run(ends=LOOK, path=(*AT_EASE, "watch"))


# -- falls ---------------------------------------------------------------------------------------


def _fall(
    rng: np.random.Generator,
    held: float,
    left: float,
    between: int,
    *,
    episodes: int | None = None,
    after: int = 25,
    with_evaluation: bool = False,
) -> TruthRun:
    """What was held is lost within `between` rows, and at least `after` rows show it."""
    draft = _draft(rng, 50 + between + after, 90 + between + after)
    onset = int(rng.integers(25, draft.num_rows - between - after))
    start = rng.uniform(0.3, 1) * held
    fall = course(draft.num_rows, start, (3, held, 15), (onset, left, between))
    num = episodes or _episodes(rng)
    draft.training(fall, episodes=num, siblings=min(8, max(num // 2, 1)))
    if with_evaluation:
        draft.evaluation(fall, every=5)
    draft.others()
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


def _lost_at_once(rng: np.random.Generator, held: float) -> TruthRun:
    return _fall(rng, held, rng.choice([0.0, 0.07 * held]), int(rng.integers(0, 4)))


def _lost_within(rng: np.random.Generator, between: int) -> TruthRun:
    return _fall(rng, rng.uniform(0.4, 0.8), 0.03, between, with_evaluation=between == 5)


for _held in (0.3, 0.5, 0.7, 0.9):
    FAMILIES[f"lost from {_held:.0%}"] = partial(_lost_at_once, held=_held)
for _rows in (5, 15, 40):
    FAMILIES[f"lost within {_rows} rows"] = partial(_lost_within, between=_rows)
FAMILIES["lost, 8 episodes"] = lambda rng: _fall(
    rng, rng.uniform(0.6, 0.9), 0.0, 0, episodes=8, after=40
)


@_family
def _slow_fall(rng: np.random.Generator) -> TruthRun:
    """A third to a half of what was held is lost, to the last row."""
    draft = _draft(rng, 100, 200)
    held, onset = rng.uniform(0.5, 0.8), int(rng.integers(20, 50))
    rest = draft.num_rows - onset
    fall = course(draft.num_rows, held, (onset, held * rng.uniform(0.55, 0.67), rest))
    draft.training(fall, episodes=_episodes(rng))
    return draft.run(
        ends=("collapsing", "watch"), path=LOST[:-1], healthy_until=onset, awaited="watch"
    )


@_family
def _fall_by_a_quarter(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 90, 150)
    held, onset = rng.uniform(0.5, 0.8), int(rng.integers(25, 60))
    fall = course(draft.num_rows, held, (onset, 0.75 * held, int(rng.integers(0, 10))))
    draft.training(fall, episodes=int(rng.choice([256, 512])))
    draft.others()
    return draft.run(
        ends=("watch",), path=(*LOST[:-1], "watch"), healthy_until=onset, awaited="watch"
    )


@_family
def _dip(rng: np.random.Generator) -> TruthRun:
    """Down to less than half, and back."""
    draft = _draft(rng, 100, 160)
    held, onset = rng.uniform(0.6, 0.85), int(rng.integers(25, 45))
    low, length = held * rng.uniform(0.2, 0.45), int(rng.integers(8, 16))
    legs = (onset, low, 2), (onset + length, held, int(rng.integers(5, 16)))
    dip = course(draft.num_rows, held, *legs)
    draft.training(dip, episodes=_episodes(rng))
    if rng.random() < 0.5:
        draft.evaluation(dip, every=2)
    return draft.run(ends=("recovering", *FINE), path=DIPPED, healthy_until=onset)


@_family
def _dip_half_way_back(rng: np.random.Generator) -> TruthRun:
    """Down to a third, and up to three quarters of what was held, rising to the last row."""
    draft = _draft(rng, 70, 110)
    held, onset = rng.uniform(0.6, 0.85), int(rng.integers(20, 30))
    rest = draft.num_rows - onset - 12
    legs = (onset, 0.33 * held, 2), (onset + 12, 0.75 * held, rest)
    draft.training(course(draft.num_rows, held, *legs), episodes=int(rng.choice([128, 256])))
    return draft.run(ends=("recovering",), path=(*LOST, "recovering"), healthy_until=onset)


@_family
def _two_dips(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 135, 170)
    held = rng.uniform(0.6, 0.85)
    first, second = int(rng.integers(25, 40)), int(rng.integers(85, 105))
    legs = [
        leg
        for onset in (first, second)
        for leg in ((onset, held * rng.uniform(0.2, 0.4), 1), (onset + 12, held, 8))
    ]
    draft.training(course(draft.num_rows, held, *legs), episodes=_episodes(rng))
    return draft.run(ends=("recovering", *FINE), path=DIPPED + DIPPED[3:], healthy_until=first)


# -- evaluations ---------------------------------------------------------------------------------


def _evaluated_fall(rng: np.random.Generator, every: int, num_tasks: int) -> TruthRun:
    """Only the fixed tasks are measured."""
    draft = _draft(rng, 19 * every, 24 * every)
    held, onset = rng.uniform(0.4, 0.8), int(rng.integers(8 * every, 12 * every))
    fall = course(draft.num_rows, 0.5 * held, (1, held, 4 * every), (onset, 0.03, 2 * every))
    draft.evaluation(fall, every=every, num_tasks=num_tasks)
    draft.others()
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


@_family
def _evaluation_every_5_rows(rng: np.random.Generator) -> TruthRun:
    return _evaluated_fall(rng, 5, int(rng.choice([64, 128, 500])))


@_family
def _evaluation_every_10_rows(rng: np.random.Generator) -> TruthRun:
    return _evaluated_fall(rng, 10, int(rng.choice([64, 128, 500])))


@_family
def _evaluation_every_20_steps(rng: np.random.Generator) -> TruthRun:
    """The file has a row for each evaluation only; half of the runs lose what they held."""
    draft = _draft(rng, 18, 30)
    draft.stride = 20
    held, onset = rng.uniform(0.5, 0.8), int(rng.integers(9, 13))
    is_lost = bool(rng.random() < 0.5)
    legs = [(1, held, 4), (onset, 0.04, 1)][: 1 + is_lost]
    moves = course(draft.num_rows, rng.uniform(0.1, 0.3), *legs)
    draft.evaluation(moves, every=1, num_tasks=int(rng.choice([64, 128, 500])))
    if not is_lost:
        return draft.run(ends=FINE, path=AT_EASE)
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


@_family
def _few_tasks(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 60, 120)
    level = course(draft.num_rows, rng.uniform(0.3, 0.7))
    draft.evaluation(level, every=4, num_tasks=12)
    draft.training(level)
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _evaluation_set_changes(rng: np.random.Generator) -> TruthRun:
    """From one row on other tasks are played, in half of the runs much harder ones."""
    draft = _draft(rng, 80, 140)
    change = int(rng.integers(30, 60))
    other = rng.choice([0.2, 0.8])
    draft.training(course(draft.num_rows, 0.6), episodes=128)
    tasks_T = np.where(np.arange(draft.num_rows) < change, 100, 240)
    draft.evaluation(course(draft.num_rows, 0.55, (change, other, 0)), every=4, num_tasks=tasks_T)
    return draft.run(ends=LOOK, path=(*AT_EASE, "watch"))


@_family
def _train_up_evaluation_down(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 100, 140)
    onset = int(rng.integers(25, 45))
    draft.training(course(draft.num_rows, 0.3, (onset, rng.uniform(0.75, 0.95), 40)))
    held = rng.uniform(0.4, 0.7)
    fall = course(draft.num_rows, held, (onset, 0.15 * held, 30))
    draft.evaluation(fall, every=5, num_tasks=200)
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


@_family
def _harder_tasks(rng: np.random.Generator) -> TruthRun:
    """Training moves to harder tasks; on the fixed ones the policy goes on to improve."""
    draft = _draft(rng, 80, 140)
    change, held = int(rng.integers(30, 50)), rng.uniform(0.5, 0.8)
    draft.training(course(draft.num_rows, held, (change, 0.6 * held, 0)), episodes=128)
    draft.evaluation(course(draft.num_rows, 0.4, (1, 0.7, draft.num_rows)), every=5, num_tasks=200)
    return draft.run(ends=LOOK, path=(*AT_EASE, "watch"))


# -- returns -------------------------------------------------------------------------------------


@_family
def _return_rises(rng: np.random.Generator) -> TruthRun:
    """A return on any scale and nothing else; its twin has another zero point and unit."""
    draft = _draft(rng, 50, 150)
    size = 10 ** rng.uniform(-2, 3)
    noise = size * rng.uniform(0.05, 0.2)
    rise = saturating(draft.num_rows, 0.0, 1.0, rng.uniform(8, 40)) * size
    draft.amount(RETURN, rise + rng.uniform(-3, 3) * size, noise)
    return draft.run(ends=FINE, path=AT_EASE, twin=_moved(rng))


def _moved(rng: np.random.Generator) -> tuple[float, float]:
    return float(10 ** rng.uniform(-1, 1)), float(rng.uniform(-100, 100))


@_family
def _return_flat(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 50, 150)
    level = course(draft.num_rows, rng.choice([-100.0, -0.5, 0.0, 2.0, 400.0]))
    draft.amount(RETURN, level, 10 ** rng.uniform(-2, 1))
    # A return alone that stays where it is may be all there is to reach, or nothing.
    ends = (*FINE, UNKNOWN, "not learning")
    return draft.run(ends=ends, path=(UNKNOWN, *ends), twin=_moved(rng))


@_family
def _return_lost(rng: np.random.Generator) -> TruthRun:
    """Nine tenths or more of what was gained is lost, far beyond the noise."""
    draft = _draft(rng, 100, 160)
    onset, size = int(rng.integers(40, 65)), 10 ** rng.uniform(-2, 3)
    legs = (3, 1.0, 20), (onset, rng.uniform(-0.3, 0.1), int(rng.integers(0, 10)))
    moves = course(draft.num_rows, 0.0, *legs) * size + rng.uniform(-3, 3) * size
    draft.amount(RETURN, moves, size * rng.uniform(0.04, 0.15))
    return draft.run(
        ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical", twin=_moved(rng)
    )


@_family
def _return_and_success_lost(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 100, 140)
    onset, held = int(rng.integers(40, 65)), rng.uniform(0.5, 0.9)
    draft.training(course(draft.num_rows, 0.2, (3, held, 20), (onset, 0.02, 4)), episodes=128)
    draft.returns(gain=rng.uniform(0.5, 5), base=rng.uniform(-5, 5), noise=0.05)
    return draft.run(
        ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical", twin=_moved(rng)
    )


@_family
def _penalty_mid_run(rng: np.random.Generator) -> TruthRun:
    """From one row on a penalty lowers the return; success stays or rises."""
    draft = _draft(rng, 80, 140)
    onset, gain = int(rng.integers(30, 60)), rng.uniform(1, 4)
    start = rng.uniform(0.3, 0.6)
    top = start + rng.choice([0.0, 0.3])
    draft.training(course(draft.num_rows, start, (5, top, draft.num_rows)), episodes=128)
    drop = course(draft.num_rows, 0.0, (onset, -gain * rng.uniform(0.5, 1), 0))
    draft.returns(gain=gain, base=0.0, noise=0.05 * gain, plus=drop)
    return draft.run(ends=LOOK, path=(*AT_EASE, "watch"))


@_family
def _return_down_success_up(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 80, 140)
    onset = int(rng.integers(15, 35))
    draft.training(course(draft.num_rows, 0.4, (onset, 0.87, 35)), episodes=128)
    draft.amount(RETURN, course(draft.num_rows, 0.5, (onset, 0.03, 35)), 0.03)
    draft.evaluation(course(draft.num_rows, 0.4, (onset, 0.87, 35)), every=5)
    return draft.run(ends=LOOK, path=(*AT_EASE, "watch"))


@_family
def _hack(rng: np.random.Generator) -> TruthRun:
    """A term that pays for something else takes over: the return rises, success is lost."""
    draft = _draft(rng, 90, 140)
    onset, held, between = (
        int(rng.integers(30, 55)),
        rng.uniform(0.5, 0.85),
        int(rng.integers(4, 20)),
    )
    draft.training(course(draft.num_rows, held, (onset, 0.02, between)), episodes=128)
    term = course(draft.num_rows, 0.2, (onset, rng.uniform(2, 4), between))
    draft.amount("reward/term/length", term, 0.05)
    draft.returns(gain=1.0, base=0.0, noise=0.02, plus=term)
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


@_family
def _hack_at_its_beginning(rng: np.random.Generator) -> TruthRun:
    """The return rises, and success has lost a fifth of what it was."""
    draft = _draft(rng, 90, 140)
    onset, held = int(rng.integers(30, 55)), rng.uniform(0.5, 0.85)
    rest = draft.num_rows - onset
    draft.training(course(draft.num_rows, held, (onset, 0.75 * held, rest)), episodes=512)
    term = course(draft.num_rows, 0.2, (onset, 2.0, rest))
    draft.amount("reward/term/length", term, 0.05)
    draft.returns(gain=1.0, base=0.0, noise=0.02, plus=term)
    return draft.run(
        ends=("watch", "collapsing"), path=LOST[:-1], healthy_until=onset, awaited="watch"
    )


# -- text, format, entropy -----------------------------------------------------------------------


@_family
def _template_success_held(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 80, 130)
    onset = int(rng.integers(30, 50))
    draft.texts(course(draft.num_rows, rng.uniform(0.6, 0.95), (onset, 0.0, 8)), is_alike=True)
    draft.training(course(draft.num_rows, rng.uniform(0.3, 0.7)), episodes=64)
    return draft.run(ends=("watch",), path=(*AT_EASE, "watch"), awaited="watch", awaited_from=onset)


@_family
def _template_success_lost(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 90, 140)
    onset, held = int(rng.integers(30, 45)), rng.uniform(0.3, 0.7)
    alike = bool(rng.random() < 0.5)
    depends = course(draft.num_rows, rng.uniform(0.6, 0.95), (onset, 0.0, 8))
    draft.texts(depends, is_alike=alike)
    fall = course(draft.num_rows, held, (onset + 5, 0.15 * held, 15))
    draft.training(fall, episodes=64)
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


@_family
def _independent_from_the_start(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 25, 80)
    draft.texts(course(draft.num_rows, 0.0), is_alike=bool(rng.random() < 0.5))
    draft.training(course(draft.num_rows, rng.uniform(0.2, 0.5)), episodes=64)
    return draft.run(
        ends=("watch",), path=(UNKNOWN, *FINE, "watch"), awaited="watch", awaited_from=0
    )


@_family
def _depends_throughout(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 40, 120)
    draft.texts(course(draft.num_rows, rng.uniform(0.3, 0.9)))
    draft.training(course(draft.num_rows, rng.uniform(0.3, 0.7)), episodes=64)
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _length_blow_up(rng: np.random.Generator) -> TruthRun:
    """Replies outgrow their budget: they are cut, and earn nothing."""
    draft = _draft(rng, 90, 140)
    onset, held, length = int(rng.integers(30, 55)), rng.uniform(0.4, 0.8), rng.uniform(80, 600)
    rows = draft.num_rows
    draft.amount(
        "rollout/response_length_mean",
        course(rows, length, (onset, 3.5 * length, 15)),
        0.04 * length,
    )
    draft.share("rollout/length_limited_frac", course(rows, 0.02, (onset + 4, 0.95, 12)), 128)
    draft.training(course(rows, held, (onset + 4, 0.03, 12)), episodes=128)
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


@_family
def _length_grows(rng: np.random.Generator) -> TruthRun:
    """Replies grow to three times their length, and stay right."""
    draft = _draft(rng, 90, 140)
    length = rng.uniform(80, 600)
    moves = course(draft.num_rows, length, (20, 3 * length, 50))
    draft.amount("rollout/response_length_mean", moves, 0.04 * length)
    draft.training(course(draft.num_rows, 0.3, (5, rng.uniform(0.5, 0.8), 50)), episodes=128)
    return draft.run(ends=LOOK, path=(*AT_EASE, "watch"))


@_family
def _entropy_up(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 90, 140)
    onset, held = int(rng.integers(30, 50)), rng.uniform(0.4, 0.8)
    entropy = rng.uniform(0.2, 1.0)
    moves = course(draft.num_rows, entropy, (onset, entropy + 4, 20))
    draft.amount("policy/entropy", moves, 0.05 * entropy)
    draft.training(course(draft.num_rows, held, (onset + 6, 0.04, 15)), episodes=128)
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


@_family
def _entropy_down(rng: np.random.Generator) -> TruthRun:
    """Entropy falls as it does where a policy learns."""
    draft = _draft(rng, 90, 140)
    entropy = rng.uniform(0.4, 1.5)
    moves = saturating(draft.num_rows, entropy, 0.3 * entropy, 40)
    draft.amount("policy/entropy", moves, 0.03 * entropy)
    rise = saturating(draft.num_rows, 0.2, rng.uniform(0.5, 0.8), 30)
    draft.training(rise, episodes=128, with_spread=True)
    return draft.run(ends=FINE, path=AT_EASE)


# -- odd files -----------------------------------------------------------------------------------


@_family
def _not_a_number(rng: np.random.Generator) -> TruthRun:
    """A third of the rows has no success, and one update was not finite."""
    draft = _draft(rng, 60, 120)
    draft.training(course(draft.num_rows, rng.uniform(0.3, 0.7)), episodes=128)
    draft.columns[SUCCESS][rng.random(draft.num_rows) < 0.33] = np.nan
    bad = course(draft.num_rows, 0.0)
    draft.add("optim/non_finite", bad.values.copy(), bad)
    draft.columns["optim/non_finite"][int(rng.integers(20, 50))] = 1.0
    return draft.run(ends=LOOK, path=(*AT_EASE, "watch", *FINE))


@_family
def _one_spike(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 60, 120)
    draft.training(course(draft.num_rows, rng.uniform(0.3, 0.7)), episodes=128)
    draft.amount(RETURN, course(draft.num_rows, rng.uniform(-1, 1)), 0.1)
    draft.amount("optim/grad_norm", course(draft.num_rows, 1.0), 0.1)
    row = int(rng.integers(20, draft.num_rows - 10))
    draft.columns[str(rng.choice([RETURN, "optim/grad_norm"]))][row] = 10 ** rng.uniform(3, 9)
    return draft.run(ends=LOOK, path=(*AT_EASE, "watch", *FINE))


@_family
def _restart_with_overlap(rng: np.random.Generator) -> TruthRun:
    """The run was resumed some rows back: the rows between stand in the file twice."""
    draft = _draft(rng, 60, 120)
    draft.training(saturating(draft.num_rows, 0.2, rng.uniform(0.5, 0.8), 20), episodes=128)
    end = int(rng.integers(30, 50))
    builder = TableBuilder()
    for step in range(end):
        before = float(rng.binomial(128, draft.truth[SUCCESS][step]) / 128)
        builder.add_row(step, {SUCCESS: before, "rollout/num_episodes": 128.0})
    rows = list(table_of(draft.steps, draft.columns).rows())
    for step, values in rows[end - int(rng.integers(3, 12)) :]:
        builder.add_row(step, values)
    return draft.run(ends=FINE, path=AT_EASE, table=builder.build())


def _as_written(draft: Draft, names: dict[str, tuple[str, float]]) -> MetricTable:
    """The table as the reading layer takes it from columns with these names and factors.

    Raises:
        KeyError: it took one of them for something else.
    """
    columns: dict[str, FloatArray64] = {
        name: draft.columns[key] * factor for key, (name, factor) in names.items()
    }
    decision = Decision(columns, {})
    named, _ = decision.meaning.apply(columns)
    for key in names:
        named[key]  # a table without it would say nothing of its truth
    return replace(table_of(draft.steps, named), notes=tuple(decision.notes))


@_family
def _percent(rng: np.random.Generator) -> TruthRun:
    draft = _draft(rng, 80, 140)
    onset, held = int(rng.integers(30, 50)), rng.uniform(0.5, 0.8)
    fall = course(draft.num_rows, held, (onset, 0.03, 5))
    draft.training(fall, episodes=100, siblings=1, says_episodes=False)
    name = str(rng.choice(["Avg Success (%)", "winrate", "Train Accuracy [%]"]))
    table = _as_written(draft, {SUCCESS: (name, 100.0)})
    return draft.run(
        ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical", table=table
    )


@_family
def _foreign_names(rng: np.random.Generator) -> TruthRun:
    """verl's columns: validation every five steps, the trainer's reward beside it."""
    draft = _draft(rng, 80, 140)
    onset, held, key = int(rng.integers(35, 55)), rng.uniform(0.4, 0.8), "eval/gsm8k/success_rate"
    rows = draft.num_rows
    draft.evaluation(course(rows, held, (onset, 0.03, 10)), every=5, num_tasks=200, key=key)
    draft.amount(RETURN, course(rows, 0.8, (onset, -1.0, 10)), 0.08)
    draft.amount("policy/entropy", course(rows, 0.7), 0.02)
    draft.amount("rollout/response_length_mean", course(rows, 300.0), 10.0)
    table = _as_written(
        draft,
        {
            key: ("val-core/gsm8k/acc/mean@1", 1.0),
            RETURN: ("critic/rewards/mean", 1.0),
            "policy/entropy": ("actor/entropy", 1.0),
            "rollout/response_length_mean": ("response_length/mean", 1.0),
        },
    )
    return draft.run(
        ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical", table=table
    )


@_family
def _lost_without_counts(rng: np.random.Generator) -> TruthRun:
    """verl's columns, which say nowhere how many tasks there are; nearly nothing is left."""
    draft = _draft(rng, 90, 140)
    onset, key = int(rng.integers(45, 65)), "eval/gsm8k/success_rate"
    held, left = rng.uniform(0.4, 0.8), float(rng.choice([0.0, 0.0, 0.01, 0.02]))
    fall = course(draft.num_rows, held, (onset, left, int(rng.choice([1, 3, 10]))))
    draft.evaluation(fall, every=int(rng.choice([5, 10])), num_tasks=500, key=key)
    draft.amount(RETURN, fall, 0.03)
    names = {key: ("val-core/gsm8k/acc/mean@1", 1.0), RETURN: ("critic/score/mean", 1.0)}
    return draft.run(
        ends=("collapsed",),
        path=LOST,
        healthy_until=onset,
        awaited="critical",
        table=_as_written(draft, names),
    )


@_family
def _accuracy_lost_in_few_rows(rng: np.random.Generator) -> TruthRun:
    """A row at every twentieth step, and nobody says over how many episodes."""
    draft = _draft(rng, 24, 40)
    onset = int(rng.integers(10, 14))
    fall = course(draft.num_rows, rng.uniform(0.4, 0.8), (onset, float(rng.choice([0, 0.02])), 0))
    draft.training(fall, episodes=64, siblings=8, says_episodes=False)
    draft.others()
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")


@_family
def _one_episode_a_row(rng: np.random.Generator) -> TruthRun:
    """Every row is 0 or 1."""
    draft = _draft(rng, 130, 200)
    says = bool(rng.random() < 0.5)
    rise = course(draft.num_rows, 0.2, (10, rng.uniform(0.6, 0.9), 100))
    draft.training(rise, episodes=1, siblings=1, says_episodes=says)
    return draft.run(ends=FINE, path=AT_EASE)


@_family
def _sparse_columns(rng: np.random.Generator) -> TruthRun:
    """Success stands in every third row, and in no order; other columns fill the rest."""
    draft = _draft(rng, 120, 200)
    onset = int(rng.integers(50, 80))
    fall = course(draft.num_rows, rng.uniform(0.5, 0.8), (onset, 0.02, 6))
    draft.training(fall, episodes=128)
    is_empty_T = rng.random(draft.num_rows) > 0.35
    for key in list(draft.columns):
        draft.columns[key][is_empty_T] = np.nan
    draft.amount("policy/entropy", course(draft.num_rows, 0.5), 0.02)
    return draft.run(ends=("collapsed",), path=LOST, healthy_until=onset, awaited="critical")
