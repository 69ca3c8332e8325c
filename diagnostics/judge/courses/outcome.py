"""What a run achieves: success on fixed tasks and in training, and returns, as courses of claims.

An `Outcome` follows one of them. It answers what is so beyond chance: the present level, what was
held, whether it is lost, since when, and whether it comes back. A return has no zero point and no
unit of its own, so its loss is measured in its own noise and in what the run had gained.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from ..claims import Change, Level
from .channels import OutcomeSpec
from .course import Source
from .series import Series, Stretch
from .swings import is_swing, rows_of_like_dips
from .turns import HELD_Z, SHOWN_Z, Dates, Turns, between_rows, change_points, dated_with

LOST_SHARE = 0.5
"""Of what was held: with less left, beyond chance and for good, it is lost."""
CHOSEN_Z = 2.6
"""Standard errors of the end of an interval to which an extreme was flattered by its choice."""
BOUND_Z = 3.2
"""... of an upper end that is looked at in every row."""
LARGE_SHARE = 0.375
"""A fall by so much of what was held is being lost."""
SHOWN_PART, FEW_ROWS = 0.6, 5
"""Part of what a turn took that the present level must still show, of a turn from so few rows."""
STILL_LARGE = 0.75
"""Part of such a fall that must be left of it: the first rows after a turn may be its lowest."""
GOING_SHARE, GOING_SIGMAS = 0.2, 2.5
"""A fall by so much is being lost as well, while it goes on: while the later half of its rows is
lower than the rows before by so many standard errors."""
MANY_ROWS = 6
"""In the earlier half of a fall: from so many on, the first of them are not compared."""
RESTLESS_SIGMAS = 2.6
"""Standard errors between the halves of a present level from which it still falls, or rises: looked
at in every row."""
NEAR_BEST = 0.9
"""Share of the best from which success counts as being at its best."""
LEAN_SIGMAS = 3.0
"""Standard errors below the best at which something is below it, looked at once."""
SAG_SIGMAS, DECLINE_SIGMAS, AGREE_SIGMAS = 1.3, 2.0, 2.3
"""... at which a fall half way to a large one is noticed, may be what other signs speak of, and
agrees with them."""
LARGE_SIGMAS, GONE_SIGMAS = 3.0, 4.0
"""Of one row's noise: falls of a return that had gained something, to be large, to be lost."""
UNGAINED_SIGMAS = 6.0
"""... of a return that had gained nothing."""
LEAST_LOST_ROWS = 5
LEAST_LOST_EVALUATIONS = 2
"""Rows in a row that are so low before something is lost: a dip is shorter."""
LEAST_HELD = 0.02
"""A success rate below this was never held."""
OTHER_TASKS = 1.5
"""Factor in the number of tasks from which an evaluation is another one."""
ROWS_BEFORE = 240

Chosen = Literal["", "height", "depth"]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One outcome of a run, up to its last row."""

    spec: OutcomeSpec
    source: Source = field(default_factory=Source)
    trials: dict[str, float] = field(default_factory=dict)
    is_reconstructed: bool = False
    large_share: float = LARGE_SHARE
    """Share of what was held whose loss is a large fall."""
    restarted: list[int] = field(default_factory=list)
    """Steps at which other tasks came: what was before is another quantity."""
    sets: dict[str, Outcome] = field(default_factory=dict)
    """Each set of tasks by its metric, where several are averaged."""
    num_sagging: int = 0
    """Rows in a row that are half way to a large fall."""
    low_since: int | None = None
    """Row since which so little is left that it may be lost."""
    was_large: bool = False
    was_lost: bool = False
    was_back: bool = False
    """What held once since the last turn: only another turn ends it, so that states do not flap."""
    series: Series = field(init=False)
    turns: Turns = field(init=False)
    _now: tuple[int, Stretch] | None = field(default=None, init=False)
    _dated: tuple[int, int] | None = field(default=None, init=False)
    """Turns and rows with which `_dates` was made."""
    _dates: Dates | None = field(default=None, init=False)
    """When the last turn may have begun."""
    _levels_before: list[Stretch] = field(default_factory=list, init=False)
    """The level before each turn."""

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.series = Series(self.spec.kind, is_fixed=self.spec.is_fixed)
        is_known = self.spec.is_fixed and self.spec.kind == "rate"
        self.turns = Turns(self.series, least_rows=1 if is_known else 2)
        self.low_since = self._now = self._dated = self._dates = None
        self._levels_before = []
        self.num_sagging = 0
        self.was_large = self.was_lost = self.was_back = False

    def restart(self) -> None:
        """Forget everything: it is another quantity from now on."""
        self.source, self.trials, self.sets = Source(), {}, {}
        self._begin()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Take in a row of the log."""
        keys = self.spec.keys
        measured = self.source.measured(values, keys)
        if not measured:
            return
        trials = {key: n for key in measured if (n := self._trials_of(key, values)) > 0}
        is_other = self.source.is_other(measured, keys) or any(
            key in self.trials and max(n / self.trials[key], self.trials[key] / n) >= OTHER_TASKS
            for key, n in trials.items()
            if self.spec.is_fixed
        )
        if is_other and len(self.series):
            self.restarted.append(step)
            self.trials = {} if self.source.is_better(measured, keys) else dict(self.trials)
            self.source = self.source.begin(measured, keys)
            self._begin()
        self.trials |= trials
        value = self.source.take(measured, keys)
        self._update_sets(step, values, measured)
        self.is_reconstructed = values.get("reward/is_reconstructed", 0.0) > 0
        groups = values.get(self.spec.groups, math.nan) if self.spec.groups else math.nan
        self._add(step, value, self.num_trials, groups)

    def _update_sets(
        self, step: int, values: Mapping[str, float], measured: Collection[str]
    ) -> None:
        tagged = self.tagged
        for key in measured if len(tagged) > 1 else ():
            if key in tagged:
                of_set = self.sets.setdefault(key, Outcome(spec=replace(self.spec, keys=(key,))))
                of_set.turns.num_series = len(tagged)
                of_set.update(step, values)

    def _add(self, step: int, value: float, trials: float, groups: float) -> None:
        num_rows = len(self.series)
        self.series.append(step, value, trials, groups)
        if len(self.series) == num_rows:
            return
        num_turns = len(self.turns.pivots)
        self.turns.update()
        self._date()
        self._now = None
        if len(self.turns.pivots) > num_turns:
            self.was_large = self.was_lost = self.was_back = False
        self.num_sagging = self.num_sagging + 1 if self.is_sagging else 0
        if not (self.turns.mode == "down" and self.is_nearly_lost):
            self.low_since = None
        elif self.low_since is None:
            self.low_since = len(self.series) - 1
        self.was_large |= self._is_large_now
        least = LEAST_LOST_EVALUATIONS if self.spec.is_fixed else LEAST_LOST_ROWS
        self.was_lost |= self.num_low_rows >= least
        self.was_back |= self.bottom is not None and not self._is_below_best_now

    def _trials_of(self, key: str, values: Mapping[str, float]) -> float:
        name = self.spec.trials
        if not name:
            return math.nan
        return values.get(name if "/" in name else f"{key.rpartition('/')[0]}/{name}", math.nan)

    @property
    def num_trials(self) -> float:
        """Outcomes behind one row; NaN where unknown. A mean over all tags adds none."""
        tagged = self.tagged
        if not tagged or not set(tagged) <= self.trials.keys():
            return math.nan
        return len(tagged) ** 2 / sum(1 / self.trials[name] for name in tagged)

    @property
    def tagged(self) -> list[str]:
        """The metrics of the sets of tasks that are averaged; one where there is one set."""
        members = self.source.members
        return [name for name in members if "/all/" not in name] or list(members)

    # -- what rules and sentences ask --------------------------------------------------------------

    @property
    def key(self) -> str:
        """The metric that is followed; the pattern where it is a mean over tags."""
        return self.source.key

    @property
    def count(self) -> int:
        return len(self.series)

    @property
    def last_step(self) -> int | None:
        return self.series.steps[-1] if self.series.steps else None

    @property
    def value(self) -> float:
        return self.series.values[-1] if self.series.values else math.nan

    @property
    def peak(self) -> float:
        """Highest single row."""
        return max(self.series.values, default=-math.inf)

    @property
    def is_rate(self) -> bool:
        return self.spec.kind == "rate"

    @property
    def least_rows(self) -> int:
        """Rows from which something can be said at all."""
        return 1 if self.spec.is_fixed and self.is_rate else 6

    @property
    def was_ready(self) -> bool:
        return self.count >= self.least_rows

    @property
    def now(self) -> Stretch:
        """The present level."""
        if self._now is None or self._now[0] != self.count:
            self._now = (self.count, self.turns.now())
        return self._now[1]

    @property
    def best(self) -> Stretch:
        assert self.turns.best is not None
        return self.turns.best

    @property
    def level(self) -> float:
        return self.now.mean if self.count else math.nan

    shown_level = level

    @property
    def high(self) -> float:
        """The best that was held."""
        return self.best.mean if self.count else math.nan

    baseline = high

    @property
    def high_step(self) -> int | None:
        """Last step of what was held at best."""
        return self.series.steps[self.best.stop - 1] if self.count else None

    @property
    def window(self) -> int:
        return self.now.size if self.count else 1

    @property
    def threshold(self) -> float:
        """The level at which a fall is large."""
        if not self.count:
            return math.nan
        base = 0.0 if self.is_rate else min(self.base, self.high)
        return self.high - self.large_share * (self.high - base)

    @property
    def base(self) -> float:
        """Of a return: the level that its gain started from."""
        return min([*(stretch.mean for stretch in self.floors), self.high])

    @property
    def floors(self) -> list[Stretch]:
        """The low points that it rose from to the best that was held."""
        rises = (stretch for mode, stretch in self.turns.pivots if mode == "up")
        return [stretch for stretch in rises if stretch.start <= self.best.start]

    @property
    def sigmas_below_best(self) -> float:
        """Standard errors from the best down to what follows it, at most."""
        if not self.count or self.best.stop >= self.count:
            return 0.0
        return self.turns.sigmas_below_best(self.turns.least_rows)

    @property
    def has_fallen(self) -> bool:
        """Below what it held, beyond chance, and no way back yet."""
        return self.turns.mode == "down"

    @property
    def has_risen(self) -> bool:
        """It rose once, beyond chance."""
        return any(mode == "up" for mode, _ in self.turns.pivots)

    @property
    def is_large_fall(self) -> bool:
        """It fell by three eighths of what was held: of a return, of what had been gained."""
        if not self.has_fallen or not self.was_large or self.is_swinging:
            return False
        return self._is_down_by(STILL_LARGE * self.large_share, self.since_turn.mean)

    @property
    def goes_on(self) -> bool:
        """A fall of some size that still goes on, beyond chance."""
        if not self.has_fallen or not self._is_down_by(GOING_SHARE, self.since_turn.mean):
            return False
        if self.is_swinging:
            return False
        first = self.turns.pivots[-1][1].stop
        half = (self.count - first) // 2
        if half < (1 if self.spec.is_fixed else 2):
            return False
        # Of many rows not the very first: a fall that came to an end has those above the rest, too.
        early = self.series.stretch(first + (half // 2) * (half >= MANY_ROWS), first + half)
        late = self.series.stretch(self.count - half, self.count)
        return self.series.sigmas(early, late) <= -GOING_SIGMAS

    @property
    def still_falls(self) -> bool:
        """A fall that goes on, and has not come to rest: its present level falls within itself."""
        if not self.goes_on:
            return False
        level = self.since_turn
        if level.size < 2:
            # One row below all before is the fall itself, unless the row before was on its way.
            pivot, before = self.turns.pivots[-1][1], level.start - 1
            on_the_way = self.series.stretch(before, level.start)
            return before >= pivot.stop and (
                self.series.sigmas(pivot, on_the_way) <= -RESTLESS_SIGMAS
            )
        later = self.series.stretch(level.start + level.size // 2, level.stop)
        has_some = not self.is_rate or later.mean >= LEAST_HELD
        return has_some and self._drift <= -RESTLESS_SIGMAS

    @property
    def still_rises(self) -> bool:
        """After a fall it rises, and its present level does so within itself."""
        return (
            self.bottom is not None and self.since_turn.size > 1 and self._drift >= RESTLESS_SIGMAS
        )

    @property
    def _drift(self) -> float:
        """Standard errors from the first half of the last rows up to their later half.

        Of those that are one level but for a drift, since the last turn.
        """
        drifting = self.turns.now(may_drift=True)
        start = max(drifting.start, self.turns.pivots[-1][1].stop)
        middle = start + (drifting.stop - start) // 2
        early = self.series.stretch(start, middle)
        return self.series.sigmas(early, self.series.stretch(middle, drifting.stop))

    @property
    def _is_large_now(self) -> bool:
        if not self.has_fallen or (self.is_rate and self.high < LEAST_HELD):
            return False
        # A fall that goes on is further down than the mean of its rows.
        present = min(self.level, self._upper) if self.is_rate else self.level
        return self._is_down_by(self.large_share, present)

    def _is_down_by(self, share: float, present: float) -> bool:
        """Is a level lower than what was held by a share of it: of a return, of what it gained?

        What a return gained is told from its noise, so neither its zero nor its unit matters.
        """
        fall = self.high - present
        if self.is_rate:
            return fall >= share * self.high
        gain, sigma = self.high - self.base, self.series.sigma
        if gain >= LARGE_SIGMAS * sigma:
            return fall >= max(share * gain, LARGE_SIGMAS * sigma)
        return fall >= UNGAINED_SIGMAS * sigma

    @property
    def _upper(self) -> float:
        """The lowest upper end of a stretch up to now, since the last turn."""
        first = self.turns.pivots[-1][1].stop if self.turns.pivots else 0
        stretches = self.series.ending(self.count, first)
        return min(self.series.bounds(stretch, BOUND_Z)[1] for stretch in stretches)

    @property
    def is_nearly_lost(self) -> bool:
        """Less than half of what was held is left, beyond chance: for how long is not asked."""
        if not self._is_large_now:
            return False
        upper = self.series.bounds(self.now)[1]
        if self.is_rate:
            return upper < LOST_SHARE * self.series.bounds(self.best, HELD_Z)[0]
        gain, sigma = self.high - self.base, self.series.sigma
        if gain >= LARGE_SIGMAS * sigma:
            is_gone = self.high - self.level >= GONE_SIGMAS * sigma
            return is_gone and upper < self.base + LOST_SHARE * gain
        return True

    @property
    def num_low_rows(self) -> int:
        return 0 if self.low_since is None else self.count - self.low_since

    @property
    def is_lost(self) -> bool:
        """It fell below half of what was held, stayed there, and has not turned."""
        return self.has_fallen and self.was_lost and not self.is_swinging

    @property
    def is_swinging(self) -> bool:
        """It came back from falls as deep as the present one, which is not much longer yet."""
        if not self.has_fallen:
            return False
        rows_now = self.count - self.turns.pivots[-1][1].stop
        return is_swing(self.rows_of_like_dips, rows_now)

    @property
    def rows_of_like_dips(self) -> list[int]:
        """How many rows each earlier fall took that was as deep, and from which it came back."""
        return rows_of_like_dips(self.turns.pivots, self.before().mean, self.since_turn.mean)

    @property
    def is_confirmed(self) -> bool:
        """The fall shows in more than one row."""
        return self.has_fallen and self.count - self.turns.pivots[-1][1].stop >= 2

    @property
    def bottom(self) -> Stretch | None:
        """The low point that it rises from, after a fall; None without one."""
        pivots = self.turns.pivots
        if self.turns.mode != "up" or len(pivots) < 2:
            return None
        return pivots[-1][1]

    @property
    def is_below_best(self) -> bool:
        """Below what was held, beyond chance, and not back since the last turn."""
        return not self.was_back and self._is_below_best_now

    @property
    def _is_below_best_now(self) -> bool:
        is_beyond_chance = self.sigmas_below_best >= LEAN_SIGMAS
        return is_beyond_chance and self._is_down_by(1 - NEAR_BEST, self.level)

    @property
    def is_sagging(self) -> bool:
        """Half way to a large fall, by more than most chances: no claim, but it may agree."""
        if not self.count or self.best.stop >= self.count or self.bottom is not None:
            return False
        if self._sigmas_now < SAG_SIGMAS:
            return False
        # On tasks drawn anew each step, most of what one row shows is which were drawn.
        present = self.value if self.spec.is_fixed else self.level
        return self.has_fallen or self._is_down_by(self.large_share / 2, present)

    @property
    def may_be_down(self) -> bool:
        """Lower than its best by more than most chances, by how much ever."""
        return self.count > 0 and self._sigmas_now >= SAG_SIGMAS and self.bottom is None

    @property
    def before_now(self) -> Stretch | None:
        """The level before the present one, where no turn lies between; None where there is none.

        Rows before the present level differ from it, which need not be beyond chance yet for one
        who looks at every step.
        """
        now = self.now
        first = self.turns.pivots[-1][1].stop if self.turns.pivots else 0
        return self.turns.level_until(now.start, first) if now.start > first else None

    @property
    def sigmas_sagging(self) -> float:
        """Standard errors from its best down to now where it sags; else 0."""
        return self._sigmas_now if self.is_sagging else 0.0

    @property
    def sigmas_sagging_beyond_looks(self) -> float:
        """The same, less what the choice of the best among so many rows does to it by chance."""
        squared = self.sigmas_sagging**2 - 2 * math.log(max(self.count, 1))
        return math.sqrt(max(squared, 0.0))

    def is_sagging_for(self, num_rows: int) -> bool:
        least = DECLINE_SIGMAS if self.spec.is_fixed else LEAN_SIGMAS
        return self.num_sagging >= num_rows and self._sigmas_now >= least

    @property
    def _sigmas_now(self) -> float:
        return self.turns.sigmas_below_best(1)

    @property
    def is_recovering(self) -> bool:
        """After a large fall it rises beyond chance, and is not back."""
        bottom = self.bottom
        if bottom is None or not self.is_rate:
            return False
        was_large = self.high - bottom.mean >= LARGE_SHARE * self.high
        return was_large and self.is_below_best

    @property
    def is_at_best(self) -> bool:
        """Not below its best, beyond chance, or by less than a tenth."""
        if not self.count or not self.high > (0 if self.is_rate else -math.inf):
            return False
        if self.is_down:
            return False
        if self.is_rate and self.level >= NEAR_BEST * self.high:
            return True
        return self.sigmas_below_best < LEAN_SIGMAS

    @property
    def gap(self) -> float:
        """Steps from one measurement to the next, as a rule; infinite of one alone."""
        steps = self.series.steps[-10:]
        gaps = sorted(b - a for a, b in itertools.pairwise(steps))
        return gaps[len(gaps) // 2] if gaps else math.inf

    def is_flat(self, num_steps: int) -> bool:
        """No change beyond chance for so many steps."""
        return self.count > 0 and self.series.steps[-1] - self.flat_since >= num_steps

    @property
    def flat_since(self) -> int:
        """First step of the present level, however long it is: none from before the last turn."""
        turned = self.turns.pivots[-1][1].stop if self.turns.pivots else 0
        return self.series.steps[max(self.turns.now(self.count).start, turned)]

    # -- as the channels answer --------------------------------------------------------------------

    @property
    def is_raised(self) -> bool:
        return self.is_large_fall or self.goes_on

    @property
    def leans(self) -> bool:
        """Fallen, or half way there; where nobody knows the trials, for several rows."""
        if self.has_fallen:
            return True
        least = 1 if self.spec.is_fixed else 3
        return self.num_sagging >= least and self._sigmas_now >= AGREE_SIGMAS

    stands_out = leans
    jump: ClassVar[float] = 0.0
    """No single row of an outcome counts by itself."""

    @property
    def strength(self) -> float:
        """1 where a fall is large; one half where it is beyond chance."""
        return 1.0 if self.is_large_fall else 0.5 if self.has_fallen else 0.0

    def _date(self) -> None:
        """When the last turn may have begun, from the rows until now.

        Dated as soon as the rows are there, not when somebody asks: the noise is estimated anew
        with every row, and what is said must not depend on when it was asked for.
        """
        if not self.turns.pivots:
            return
        pivot, turned = self.turns.pivots[-1][1], self.series.row_of(self.turns.turned[-1]) + 1
        start = max(pivot.start, turned - ROWS_BEFORE)
        stop = dated_with(turned, self.count)
        if self._dated != (dated := (len(self.turns.pivots), stop)):
            rows = change_points(self.series, start, stop)
            self._dated, self._dates = dated, between_rows(self.series, start, rows)
            self._levels_before[len(self.turns.pivots) - 1 :] = [self._level_before(self._dates[0])]

    def _level_before(self, step: int) -> Stretch:
        """The level that the last turn began from, which was over before a step at the earliest.

        The extreme that shows a turn was chosen for its height, which flatters it. The level is
        chosen for its length: to where the turn begins, and back by as many rows as the extreme
        has, so that it does not reach far into what led there. Where it would be shorter, nothing
        better is known.
        """
        (_, pivot), stop = self.turns.pivots[-1], self.series.row_of(step)
        turned = self.turns.pivots[-2][1].stop if len(self.turns.pivots) > 1 else 0
        first = max(turned, pivot.start - pivot.size)
        if stop <= pivot.start:
            return pivot
        level = self.turns.level_until(stop, first)
        return level if level.size >= pivot.size else pivot

    def before(self, turn: int = -1) -> Stretch:
        """The level before a turn; its extreme, where the level no longer shows the turn."""
        mode, pivot = self.turns.pivots[turn]
        level, after = self._levels_before[turn], self.since_turn
        if turn != -1:
            after = self.turns.pivots[turn + 1][1]
        sign = -1 if mode == "down" else 1
        return level if sign * self.series.sigmas(level, after) >= SHOWN_Z else pivot

    @property
    def onset_interval(self) -> tuple[int, int] | None:
        """First and last step at which the last turn may have begun."""
        return None if self._dates is None else (self._dates[0], self._dates[2])

    @property
    def onset_step(self) -> int | None:
        """The likeliest step at which the present fall began."""
        dates = self._dates if self.has_fallen else None
        return None if dates is None else dates[1]

    @property
    def last_quiet_step(self) -> int | None:
        """The row before the earliest at which the present fall may have begun."""
        interval = self.onset_interval if self.has_fallen else None
        if interval is None:
            return None
        row = self.series.row_of(interval[0]) - 1
        return self.series.steps[row] if row >= 0 else None

    # -- claims ------------------------------------------------------------------------------------

    def level_of(self, stretch: Stretch) -> Level:
        """A stretch as a claim: of fixed tasks, about tasks like them."""
        low, high = self.series.interval(stretch)
        steps = self.series.steps
        trials = math.fsum(self.series.trials[stretch.start : stretch.stop])
        return Level(
            metric=self.key,
            value=stretch.mean,
            low=low,
            high=high,
            steps=(steps[stretch.start], steps[stretch.stop - 1]),
            num_points=stretch.size,
            trials=trials if trials > 0 else 0.0,
            is_reconstructed=self.is_reconstructed,
        )

    def change(self, before: Stretch, after: Stretch, *, is_dated: bool = False) -> Change:
        """From one stretch to another: of fixed tasks, on these, whose difficulty cancels.

        An extreme is flattered by having been chosen among many: the interval of the difference is
        wider on that side. Those of the levels are of what was measured.
        """
        difference = after.mean - before.mean
        low, high = self.series.bounds(before)
        chosen_for = self._chosen_for(before)
        if chosen_for == "height":
            low = self.series.bounds(before, CHOSEN_Z)[0]
        elif chosen_for == "depth":
            high = self.series.bounds(before, CHOSEN_Z)[1]
        low_after, high_after = self.series.bounds(after)
        return Change(
            before=self.level_of(before),
            after=self.level_of(after),
            low=difference - math.hypot(after.mean - low_after, high - before.mean),
            high=difference + math.hypot(high_after - after.mean, before.mean - low),
            began=self.onset_interval if is_dated else None,
            still_falls=is_dated and self.still_falls,
        )

    @property
    def last_change(self) -> Change:
        """The last turn: from the level before it to the present one."""
        return self.change(self.before(), self.since_turn, is_dated=True)

    def _chosen_for(self, stretch: Stretch) -> Chosen:
        if stretch == self.turns.best:
            return "height"
        modes = [mode for mode, pivot in self.turns.pivots if pivot == stretch]
        return "" if not modes else "height" if modes[0] == "down" else "depth"

    def between(self, first: int, last: int) -> Stretch | None:
        """The rows of the steps `first` to `last`; None if there are none."""
        start, stop = self.series.row_of(first), self.series.row_of(last + 1)
        return self.series.stretch(start, stop) if stop > start else None

    @property
    def since_turn(self) -> Stretch:
        """The present level, without rows from before the last turn."""
        now = self.now
        if not self.turns.pivots:
            return now
        first = self.turns.pivots[-1][1].stop
        return now if now.start >= first else self.series.stretch(first, now.stop)

    @property
    def shows_turn(self) -> bool:
        """Is the present level still on the side that the last turn went to?"""
        if not self.turns.pivots:
            return False
        sign = -1 if self.has_fallen else 1
        pivot = self.turns.pivots[-1][1]
        is_short = pivot.size < FEW_ROWS and not self.spec.is_fixed
        least = max(SHOWN_Z, SHOWN_PART * self.turns.turn_z) if is_short else SHOWN_Z
        return sign * self.series.sigmas(pivot, self.since_turn) >= least

    @property
    def is_down(self) -> bool:
        """It fell, and its present level still shows it."""
        return self.has_fallen and self.shows_turn
