"""What an alarm rule is, and what it sees.

A rule is a pure function of the channels: it says what it finds at this step, or nothing. Memory,
hysteresis and onset live in the channels (`changes.py`); events are made in `alarms.py`. The rules
themselves stand in `reasoning.py`, `signal.py` and `task.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from echoscope.store.records import AlarmSeverity
from echoscope.text.amounts import number, percent

from ...catalogue import metric
from ...config import RuleName
from ...metric_entry import POINTS, SHARE
from ..courses.changes import DRASTIC, HALF, SURE_SIGMAS, Channel
from ..courses.channels import REWARD_AS_SUCCESS

FIXED = ("success_probe", "success_eval")
SUCCESS = (*FIXED, "success_train", "reward")
"""Measures of success, the most trustworthy first: fixed tasks before whichever were drawn."""
DRAWN_STREAK = 5
AT_BEST = 0.9
"""Share of its peak from which success counts as being at its best."""
SOLVED_RATE = 0.95
"""Success rate from which a task counts as solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule's evidence is there, at this step."""

    severity: AlarmSeverity
    main: Channel
    """The channel that carries it."""
    agreeing: tuple[Channel, ...] = ()
    words: str
    """What happened, without its beginning "NAME: "."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The channels at one step, and what rules ask of them."""

    step: int
    first_step: int
    warmup_steps: int
    channels: Mapping[str, Channel]
    open_rules: Collection[str] = ()
    """Rules whose alarms are open before this step."""

    def __getitem__(self, name: str) -> Channel:
        return self.channels[name]

    def raised(self, *names: str) -> list[Channel]:
        return [self.channels[name] for name in names if self.channels[name].is_raised]

    def leaning(self, *names: str) -> list[Channel]:
        """Raised, or at least half way there."""
        found = (self.channels[name] for name in names)
        return [c for c in found if (c.is_raised and c.stands_out) or c.leans]

    def jumped(self, *names: str) -> list[Channel]:
        """Twice as far as it takes with the last observation alone, whatever the level says."""
        found = (self.channels[name] for name in names)
        return [c for c in found if c.last_step == self.step and c.jump >= DRASTIC]

    @property
    def is_warm(self) -> bool:
        """Past the warm-up. A loss of success on fixed tasks needs none."""
        past = self.step - self.first_step >= self.warmup_steps
        return past or bool(self.raised(*FIXED))

    def is_warm_for(self, channels: Iterable[Channel]) -> bool:
        """Past the warm-up, or what happens is twice as much as it takes: no batch does that."""
        drastic = any(channel.is_raised and channel.strength >= DRASTIC for channel in channels)
        return self.is_warm or drastic

    @property
    def success(self) -> Channel | None:
        """The best measure of success that there is; None without any.

        Of two measures on fixed tasks that say how many, the one that has played more of them.
        """
        fixed = self._fixed
        if len(fixed) > 1 and all(math.isfinite(channel.num_trials) for channel in fixed):
            return max(fixed, key=lambda channel: channel.num_trials / channel.gap)
        found = (self.channels[name] for name in SUCCESS)
        return next((channel for channel in found if channel.count and channel.was_ready), None)

    @property
    def _fixed(self) -> list[Channel]:
        found = (self.channels[name] for name in FIXED)
        return [channel for channel in found if channel.count and channel.was_ready]

    @property
    def has_success_rate(self) -> bool:
        """Any was measured, or a reward that is read as one."""
        measured = any(self[name].count for name in (*FIXED, "success_train"))
        return measured or self["reward"].key == REWARD_AS_SUCCESS

    @property
    def is_success_lost(self) -> bool:
        """Success stays below half of its peak, on whichever fixed tasks."""
        success = self.success
        measures = self._fixed or ([] if success is None else [success])
        return any(channel.is_raised and channel.share_moved >= HALF for channel in measures)

    @property
    def is_success_declining(self) -> bool:
        """Half way to being lost, and not by chance.

        On fixed tasks twice in a row, or once while success in training says the same. On tasks
        drawn anew each step only once it is lost: most of what moves there is which were drawn.
        """
        fixed, success = self._fixed, self.success
        if not fixed:
            return success is not None and success.is_raised
        agrees = self["success_train"].half_streak >= DRAWN_STREAK
        least = 1 if agrees else 2
        return any(channel.is_raised or channel.half_streak >= least for channel in fixed)

    def declining_success(self) -> list[Channel]:
        """Measures of success at least half way to being lost.

        On tasks drawn anew each step that takes several observations in a row: most of what moves
        there is which tasks were drawn. A reward that is read as success counts where it fell to
        next to nothing.
        """
        train = self["success_train"]
        is_low = train.is_raised or train.half_streak >= DRAWN_STREAK
        moved = [train] if is_low and train.stands_out else []
        found = [*self.leaning(*FIXED), *moved]
        return found or self.success_at_nothing(SURE_SIGMAS)

    def success_at_nothing(self, sigmas: float) -> list[Channel]:
        """Success in training that fell to next to nothing, where no fixed tasks are measured.

        Args:
            sigmas: Standard errors that the fall takes.
        """
        success = self.success
        if success is None or success.spec.name in FIXED:
            return []
        is_rate = success.spec.name != "reward" or success.key == REWARD_AS_SUCCESS
        return [success] if is_rate and success.sigmas_to_nothing >= sigmas else []

    @property
    def is_success_falling(self) -> bool:
        success = self.success
        measures = self._fixed or ([] if success is None else [success])
        return any(channel.is_raised or channel.leans for channel in measures)

    @property
    def is_success_at_best(self) -> bool:
        success = self.success
        if success is None or not math.isfinite(success.high) or success.high <= 0:
            return False
        return success.level >= AT_BEST * success.high

    def is_success_flat(self, num_steps: int) -> bool:
        """No new peak for so many steps."""
        success = self.success
        return (
            success is not None
            and success.high_step is not None
            and self.step - success.high_step >= num_steps
        )


Judge = Callable[[View], Finding | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: what it needs, how it judges, and what one can do about what it finds."""

    name: RuleName
    judge: Judge = field(repr=False)
    needs: tuple[str, ...]
    """Channels of which one must be there; without any the rule is blind."""
    confirms: tuple[str, ...] = ()
    """Channels of which one must be there for the rule to become critical; empty if it cannot."""
    confirms_alone: tuple[str, ...] = ()
    """Channels of which one is enough for the rule to become critical, with no other beside it."""
    is_moot: Callable[[Collection[str]], bool] | None = field(default=None, repr=False)
    """Do a run's metric keys say that what the rule watches for does not exist there?"""
    title: str
    meaning: str = ""
    """What it means, in a sentence that a newcomer understands."""
    causes: tuple[str, ...] = ()
    """Likely causes, the likeliest first."""
    advice: str
    refuted_by: str


def first(channels: Iterable[Channel]) -> Channel:
    """The channel that departed first; ties go to the stronger."""
    found = list(channels)
    return min(found, key=lambda c: (_or_inf(c.onset_step), -c.strength))


def _or_inf(step: int | None) -> float:
    return math.inf if step is None else float(step)


def onset_of(channels: Iterable[Channel]) -> float:
    """When the first of them departed; infinite if none did."""
    return min((_or_inf(channel.onset_step) for channel in channels), default=math.inf)


def describe(channel: Channel) -> str:
    """`valid actions: 95 % (step 40) -> 31 % (step 55)`."""
    spec, label = channel.spec, _label(channel)
    now = amount(channel.shown_level if math.isfinite(channel.level) else channel.value, spec.unit)
    if spec.against == "zero":
        return f"{label}: {now}"
    if spec.against == "recent":
        return f"{label} jumped to {amount(channel.value, spec.unit)}"
    before = amount(channel.baseline, spec.unit)
    if channel.key == REWARD_AS_SUCCESS and channel.at_nothing is not None:
        num_rows, mean = channel.at_nothing
        now = f"{amount(mean, spec.unit)} over the last {num_rows} rows"
        return f"{spec.label}: {before} (step {channel.high_step}) -> {now}"
    if before == now:
        return f"{label}: {now}"
    best = channel.high_step if spec.direction == "fall" else channel.low_step
    where = "at the start" if spec.against == "start" else f"step {best}"
    return f"{label}: {before} ({where}) -> {now} (step {channel.last_step})"


def _label(channel: Channel) -> str:
    """Of the metric that was measured, which may be another than the channel's first choice."""
    return metric(channel.key).in_sentence if channel.key else channel.spec.label


def describe_jump(channel: Channel) -> str:
    """`valid actions: 95 % (step 40) -> 31 % at once (step 41)`."""
    best = channel.high_step if channel.spec.direction == "fall" else channel.low_step
    before, now = (amount(value, channel.spec.unit) for value in (channel.baseline, channel.value))
    label = _label(channel)
    return f"{label}: {before} (step {best}) -> {now} at once (step {channel.last_step})"


def amount(value: float, unit: str = "") -> str:
    """A number as people say it.

    >>> amount(0.859, SHARE), amount(0.0078, SHARE), amount(0.34, POINTS), amount(0.108, "nats")
    ('86 %', '0.8 %', '34 points', '0.11 nats')
    """
    if not math.isfinite(value):
        return "not finite"
    if unit == SHARE:
        return percent(value)
    if unit == POINTS:
        return f"{100 * value:.0f} points"
    if unit.startswith("nats"):
        return f"{float(f'{value:.2g}'):g} nats"
    return number(value)


def sentence(channels: Sequence[Channel]) -> str:
    """What several channels did, each once."""
    return "; ".join(dict.fromkeys(describe(channel) for channel in channels))
