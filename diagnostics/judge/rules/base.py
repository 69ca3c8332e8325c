"""What an alarm rule is, and what it sees.

A rule is a pure function of the channels: it says what it finds at this step, or nothing. Memory,
hysteresis and onset live in the channels (`changes.py`); events are made in `alarms.py`. The rules
themselves stand in `reasoning.py`, `signal.py` and `task.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from echoscope.store.records import AlarmSeverity
from echoscope.text.amounts import listed, number, percent, rounded, step_words

from ...catalogue import metric
from ...metric_entry import POINTS, SHARE
from ..claims import Level
from ..courses.changes import DRASTIC, Channel
from ..courses.outcome import Outcome
from ..courses.sets import moves_of_sets, of_sets, set_words
from .alarm_texts import RULE_TEXTS, RuleName, RuleText

FIXED = ("success_probe", "success_eval")
RATES = (*FIXED, "success_train")
SUCCESS = (*RATES, "eval_reward", "reward")
"""Measures of success, the most trustworthy first: fixed tasks before whichever were drawn."""
MOST_SETS = 3
"""Sets of evaluation tasks that are named beside their mean."""
OVERDUE = 3
"""Usual gaps without an evaluation after which it is over."""
SOLVED_RATE = 0.95
"""Success rate from which a task counts as solved."""
MOSTLY_SOLVED = 0.7
"""Success rate from which groups without spread are mostly those that solve their task."""
HALF_SOLVED = 0.5
"""Success rate that is something to hold, even if it was there from the start."""

Sign = Channel | Outcome
"""What a rule may rest on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule's evidence is there, at this step."""

    severity: AlarmSeverity
    main: Sign
    """What carries it."""
    agreeing: tuple[Sign, ...] = ()
    words: str
    """What happened, without its beginning "NAME: "."""
    title: str = ""
    meaning: str = ""
    """What it is called and what it means, where that is not what the rule says of itself."""


def finding(
    main: Sign,
    *agreeing: Sign,
    words: str = "",
    is_critical: bool = False,
    is_note: bool = False,
    title: str = "",
    meaning: str = "",
) -> Finding:
    """A critical alarm, a warning or a note; without other words, what its signs did."""
    severity = AlarmSeverity.CRITICAL if is_critical else AlarmSeverity.WARNING
    return Finding(
        severity=AlarmSeverity.INFO if is_note else severity,
        main=main,
        agreeing=agreeing,
        words=words or sentence([main, *agreeing]),
        title=title,
        meaning=meaning,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The channels at one step, and what rules ask of them."""

    step: int
    first_step: int
    warmup_steps: int
    channels: Mapping[str, Channel]
    outcomes: Mapping[str, Outcome]
    terms: Mapping[str, Outcome] = field(default_factory=dict)
    """Terms of the reward, by the name of the metric."""
    open_rules: Collection[str] = ()
    """Rules whose alarms are open before this step."""

    def __getitem__(self, name: str) -> Sign:
        return self.outcomes[name] if name in self.outcomes else self.channels[name]

    def of(self, name: str, key: str) -> Sign:
        """A sign; of an outcome over several sets of tasks the set whose metric this is."""
        sign = self[name]
        return sign.sets.get(key, sign) if isinstance(sign, Outcome) else sign

    def raised(self, *names: str) -> list[Sign]:
        return [sign for sign in map(self.__getitem__, names) if sign.is_raised]

    def leaning(self, *names: str) -> list[Sign]:
        """Raised, or at least half way there."""
        signs = map(self.__getitem__, names)
        return [sign for sign in signs if (sign.is_raised and sign.stands_out) or sign.leans]

    def jumped(self, *names: str) -> list[Sign]:
        """Twice as far as it takes with the last observation alone, whatever the level says."""
        signs = map(self.__getitem__, names)
        return [sign for sign in signs if sign.last_step == self.step and sign.jump >= DRASTIC]

    @property
    def is_warm(self) -> bool:
        """Past the warm-up. A loss of success on fixed tasks needs none."""
        past = self.step - self.first_step >= self.warmup_steps
        return past or any(self.outcomes[name].is_large_fall for name in FIXED)

    def is_warm_for(self, signs: Iterable[Sign]) -> bool:
        """Past the warm-up, or what happens is twice as much as it takes: no batch does that."""
        drastic = any(sign.is_raised and sign.strength >= DRASTIC for sign in signs)
        return self.is_warm or drastic

    @property
    def success(self) -> Outcome | None:
        """The best measure of success that there is; None without any.

        Of two measures on fixed tasks, the one that has played more of them.
        """
        fixed = self._fixed
        if len(fixed) > 1:
            return max(fixed, key=lambda outcome: _or_zero(outcome.num_trials) * outcome.count)
        measured = (self.outcomes[name] for name in SUCCESS)
        return next((outcome for outcome in measured if outcome.was_ready and outcome.count), None)

    @property
    def _fixed(self) -> list[Outcome]:
        measured = (self.outcomes[name] for name in FIXED)
        return [outcome for outcome in measured if outcome.count and outcome.was_ready]

    @property
    def training(self) -> Outcome:
        """What shows a fall in training: its success, or its return where no success is logged."""
        train, reward = self.outcomes["success_train"], self.outcomes["reward"]
        return train if train.count or reward.is_reconstructed else reward

    @property
    def has_success_rate(self) -> bool:
        return any(self.outcomes[name].count for name in RATES)

    @property
    def deciding(self) -> list[Outcome]:
        """The outcomes that decide whether the run is lost.

        Fixed tasks where there are any: what moves in training is also which tasks were drawn.
        Training decides beside them where no fixed task is played any more, and where it was lost
        after they were played last. A return decides only where training logs no success rate:
        nobody knows what it is worth.
        """
        fixed, train = self._fixed, self.outcomes["success_train"]
        if fixed:
            is_over = all(
                self.step - (outcome.last_step or 0) > OVERDUE * outcome.gap
                if outcome.count > 1
                else self.training.is_large_fall
                for outcome in fixed
            )
            is_unseen = self.training.is_lost and not self.is_seen_by(fixed, self.training)
            return [*fixed, self.training] if is_over or is_unseen else fixed
        if train.count:
            return [train]
        returns = [self.outcomes[name] for name in ("eval_reward", "reward")]
        return [outcome for outcome in returns if outcome.count and outcome.was_ready]

    @staticmethod
    def is_seen_by(fixed: Iterable[Outcome], fall: Outcome) -> bool:
        """Was any of the fixed tasks played after a fall in training had begun?"""
        began = fall.onset_interval
        return began is None or any((outcome.last_step or 0) >= began[1] for outcome in fixed)

    @property
    def is_success_lost(self) -> bool:
        """What was held is lost, and stays lost."""
        return any(outcome.is_lost for outcome in self.deciding)

    @property
    def is_recovering(self) -> bool:
        """After a large fall the deciding outcome rises beyond chance, and none falls."""
        deciding = self.deciding
        return any(outcome.is_recovering for outcome in deciding) and not any(
            outcome.has_fallen for outcome in deciding
        )

    @property
    def is_success_declining(self) -> bool:
        """A deciding outcome fell, or is half way there: twice, or once while training agrees."""
        agrees = self.training.leans
        least = 1 if agrees else 2
        return any(o.is_down or o.is_sagging_for(least) for o in self.deciding)

    def declining_success(self) -> list[Sign]:
        """Success rates below their best, beyond chance."""
        rates = [self.outcomes[name] for name in RATES]
        return [rate for rate in rates if rate.leans and rate.bottom is None]

    @property
    def is_success_falling(self) -> bool:
        return any(outcome.leans for outcome in self.deciding)

    @property
    def is_success_at_best(self) -> bool:
        success = self.success
        return success is not None and success.is_at_best

    @property
    def is_success_reached(self) -> bool:
        """Success holds its best, and that was gained in this run or is half of the tasks.

        Only such a success explains that variety or reward spread goes. A rate that is low from
        the start is "at its best", too, and explains nothing. A return has no known highest value.
        """
        success = self.success
        if success is None or not success.is_at_best:
            return False
        return success.has_risen or not success.is_rate or success.level >= HALF_SOLVED

    def is_success_flat(self, num_steps: int) -> bool:
        """No change beyond chance for so many steps."""
        success = self.success
        return success is not None and success.is_flat(num_steps)


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


Judge = Callable[[View], Finding | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(RuleText):
    """A rule: its words, what it needs, and how it judges."""

    name: RuleName
    judge: Judge = field(repr=False)
    needs: tuple[str, ...]
    """Channels of which one must be there; without any the rule is blind."""
    confirms: tuple[str, ...] = ()
    """Channels of which one must be there for the rule to become critical; empty if it cannot."""
    clears_at_once: bool = False
    """What it rests on turns only beyond chance: a row without a finding is the end of it."""
    is_moot: Callable[[Collection[str]], bool] | None = field(default=None, repr=False)
    """Do a run's metric keys say that what the rule watches for does not exist there?"""


def rule(name: RuleName, judge: Judge, needs: tuple[str, ...], **rest: Any) -> Rule:
    """A rule with its words from `rules.toml`."""
    return Rule(name=name, judge=judge, needs=needs, **rest, **asdict(RULE_TEXTS[name]))


def when_raised(name: str, then: str = "", *, if_so: Callable[[View], bool] | None = None) -> Judge:
    """A warning while one channel is raised, and what else must be so.

    Args:
        then: how its sentence ends.
    """

    return partial(_while_raised, name, then, if_so)


def _while_raised(
    name: str, then: str, if_so: Callable[[View], bool] | None, view: View
) -> Finding | None:
    sign = view[name]
    if not sign.is_raised or (if_so is not None and not if_so(view)):
        return None
    return finding(sign, words=describe(sign) + then)


def first(signs: Iterable[Sign]) -> Sign:
    """What departed first; ties go to the stronger."""
    return min(signs, key=lambda sign: (_or_inf(sign.onset_step), -sign.strength))


def _or_inf(step: int | None) -> float:
    return math.inf if step is None else float(step)


def onset_of(signs: Iterable[Sign]) -> float:
    """When the first of them departed; infinite if none did."""
    return min((_or_inf(sign.onset_step) for sign in signs), default=math.inf)


def describe(sign: Sign) -> str:
    """`valid actions: 95 % (highest, step 40) -> 31 % (step 55)`."""
    if isinstance(sign, Outcome):
        return describe_outcome(sign)
    spec, label = sign.spec, channel_label(sign)
    now = amount(sign.shown_level if math.isfinite(sign.level) else sign.value, spec.unit)
    over = f", {averaged(sign)}" if averaged(sign) else ""
    if spec.against == "recent":
        return f"{label} jumped to {amount(sign.value, spec.unit)}"
    before = amount(sign.baseline, spec.unit)
    if spec.against == "zero" or before == now:
        return f"{label}: {now} (step {sign.last_step}{over})"
    if spec.against == "start":
        return f"{label}: {before} (at the start) -> {now} (step {sign.last_step}{over})"
    side, best = _extreme(sign)
    each = f", each the {averaged(sign)}" if over else ""
    return f"{label}: {before} ({side}, step {best}) -> {now} (step {sign.last_step}){each}"


def averaged(course: Channel) -> str:
    """What each number of a course is made of: `median of 2 rows`; empty for values of one step."""
    if course.window == 1 or course.spec.against == "recent":
        return ""
    return f"{'median' if course.is_median else 'mean'} of {course.window} rows"


def describe_outcome(outcome: Outcome) -> str:
    """`evaluation success: 70 % (67 to 73 %, steps 20 to 40) -> 2 % (0 to 4 %, steps 45 to 60)`.

    >>> from echoscope.diagnostics.judge.courses.channels import OUTCOMES
    >>> outcome = Outcome(spec=OUTCOMES[2])
    >>> for step in range(40):
    ...     outcome.update(step, {"rollout/success_rate": 0.75 if step < 30 else 0.0,
    ...                           "rollout/num_episodes": 64})
    >>> describe_outcome(outcome).partition(" -> ")[2]
    '0 % (0 to 0.6 %, steps 30 to 39, 640 episodes)'
    """
    label = metric(outcome.key).in_sentence + of_sets(outcome)
    now = outcome.level_of(outcome.since_turn)
    if not outcome.shows_turn:
        return f"{label}: {level_words(now)}"
    before = outcome.level_of(outcome.before())
    rest = ", and still falls" if outcome.still_falls else ""
    moves = [set_words(move) for move in moves_of_sets(outcome)]
    rest += f" ({listed(moves, MOST_SETS)})" if moves and outcome.has_fallen else ""
    return f"{label}: {level_words(before, with_trials=False)} -> {level_words(now)}{rest}"


def level_words(level: Level, *, with_trials: bool = True) -> str:
    """A level with its interval, its steps, and what it rests on.

    >>> level_words(Level(metric="rollout/success_rate", value=0.5, low=0.46, high=0.54,
    ...                   steps=(81, 120), num_points=40, trials=2560))
    '50 % (46 to 54 %, steps 81 to 120, 2,560 episodes)'
    """
    low, high = level_amount(level, level.low), level_amount(level, level.high)
    range_text = "" if low == high else f"{low.removesuffix(' %')} to {high}, "
    rests_on = f", {trials_words(level)}" if with_trials and level.trials > 0 else ""
    return f"{level_amount(level)} ({range_text}{step_words(level.steps)}{rests_on})"


def level_amount(level: Level, value: float | None = None) -> str:
    """The value of a level, or an end of its interval, as precise as it is known.

    A return of a hundred and a third must not read like one of a hundred.

    >>> level_amount(Level(metric="reward/return_mean", value=100.3, low=100.28, high=100.32,
    ...                    steps=(0, 9), num_points=10))
    '100.300'
    """
    value = level.value if value is None else value
    text = amount(value, metric(level.metric).unit)
    error = (level.high - level.low) / 4
    try:
        # A metric without noise has an interval of rounding errors.
        is_known = error > 1e-6 * abs(value)
        is_rounded_away = is_known and error < abs(float(text.replace(",", "")) - value)
    except ValueError:  # with a unit
        return text
    return f"{value:,.{max(0, math.ceil(-math.log10(error)))}f}" if is_rounded_away else text


def trials_words(level: Level) -> str:
    """What a level rests on. Evaluations play the same tasks each time, which do not add up.

    >>> trials_words(Level(metric="eval/a/success_rate", value=0.5, low=0.4, high=0.6,
    ...                     steps=(5, 60), num_points=12, trials=1536))
    '12 evaluations of the same 128 tasks'
    """
    if level.metric.startswith("rollout/"):
        return f"{level.trials:,.0f} episodes"
    tasks = f"{level.trials / level.num_points:,.0f} tasks"
    many = f"{level.num_points:,} evaluations of the same {tasks}"
    return tasks if level.num_points == 1 else many


def channel_label(channel: Channel) -> str:
    """Of the metric that was measured, which may be another than the channel's first choice."""
    return metric(channel.key).in_sentence if channel.key else channel.spec.label


def describe_jump(sign: Sign) -> str:
    """`valid actions: 95 % (highest median of 5 rows, step 41) -> 31 % at once (step 41)`."""
    if isinstance(sign, Outcome):
        return describe_outcome(sign)
    side, best = _extreme(sign)
    of_rows = f" {averaged(sign)}" if averaged(sign) else ""
    before, now = (amount(value, sign.spec.unit) for value in (sign.baseline, sign.value))
    return (
        f"{channel_label(sign)}: {before} ({side}{of_rows}, step {best}) -> {now} at once "
        f"(step {sign.last_step})"
    )


def _extreme(channel: Channel) -> tuple[str, int | None]:
    """Which extreme of a channel its baseline is, and its step."""
    if channel.spec.direction == "fall":
        return "highest", channel.high_step
    return "lowest", channel.low_step


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
        return f"{rounded(100 * value)} points"
    if unit.startswith("nats"):
        return f"{float(f'{value:.2g}'):g} nats"
    return number(value)


def sentence(signs: Sequence[Sign]) -> str:
    """What several signs did, each once."""
    return "; ".join(dict.fromkeys(describe(sign) for sign in signs))
