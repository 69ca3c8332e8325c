"""The guard: what a run does about its own collapse. A thin policy over alarms and commands.

It orders a rewind (`store/steer/rewinds.py`) or asks for one; the loop ends the run at the next
boundary, and `core/run/branching.py` goes on from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from echoscope.diagnostics.judge.advice.differences import shown
from echoscope.diagnostics.judge.alarms import SYMPTOMS
from echoscope.diagnostics.judge.courses.outcome import LOST_SHARE
from echoscope.diagnostics.judge.proposals import Proposal, proposals_of
from echoscope.diagnostics.judge.rules.alarm_texts import RULE_TEXTS
from echoscope.diagnostics.tools.curing import HELD
from echoscope.store.checkpoints import (
    checkpoint_damage,
    checkpoint_path,
    checkpoint_step,
    evaluation_success,
    older_whole_checkpoint,
)
from echoscope.store.errors import StoreError
from echoscope.store.log.layout import shown_path
from echoscope.store.reader import open_run
from echoscope.store.records import ALARM_AUTHOR, Alarm, AlarmSeverity, Command, CommandAction
from echoscope.store.steer.commands import new_command
from echoscope.store.steer.rewinds import (
    GUARD,
    Rewind,
    asked_rewind,
    checkpoints_before,
    rewind_settings,
)
from echoscope.store.steer.settings import live_settings
from echoscope.store.steer.steering import MAX_REASON, override_words
from echoscope.text.amounts import percent
from echoscope.text.sentences import in_sentence

from ..config.beside_training import GivenTreatment
from ..config.loading import ConfigError, override
from ..config.settings import RunConfig
from ..update.learners.launched import launched_size
from .checkpoint import read_state
from .observers import StepObserver

SETTLING_STEPS = 10
"""The first steps after a rewind, in which the guard does not judge the treatment. At least as long
it waits where a change may end by itself."""
LASTING = ("NON_FINITE",)
"""Alarms of what ends the run itself within a few steps."""
DIPS = (*SYMPTOMS, "TRAIN_EVAL_DIVERGENCE")
"""Alarms that say no more than that success fell, in training or on the evaluation tasks."""


@dataclass(slots=True, kw_only=True)
class Guard:
    """Watches one run in this process."""

    run_path: Path
    run_id: str
    say: Callable[[str], None]
    """To the terminal."""
    observers: Sequence[StepObserver] = ()
    """Some reach whoever is told of alarms."""
    _answered: set[str] = field(default_factory=set)
    """Alarms that the guard has acted on or asked about."""
    _awaited: set[str] = field(default_factory=set)
    """Alarms of which it has said that it waits."""

    def commands(self, critical: Sequence[str], config: RunConfig) -> list[Command]:
        """What is done about the critical alarms that are open after a step: nothing, or one thing.

        Args:
            critical: their ids.
        """
        run = open_run(self.run_path)
        origin, step = config.branched_from, run.info().last_step
        is_settling = origin and origin.command_id and step < origin.step + SETTLING_STEPS
        news = set(critical) - self._answered
        if is_settling or not news:
            return []
        raised = [
            alarm
            for alarm in reversed(run.alarms())
            if alarm.alarm_id in news and alarm.severity is AlarmSeverity.CRITICAL
        ]
        success = evaluation_success(run)
        if raised and all(may_come_back(alarm, step, success) for alarm in raised):
            if not news <= self._awaited:
                titles = " and ".join(
                    sorted({in_sentence(RULE_TEXTS[alarm.rule].title) for alarm in raised})
                )
                self.say(
                    f"guard: {titles} (after step {step}): no treatment yet, since healthy runs "
                    "often recover."
                )
            self._awaited |= news
            return []
        self._answered |= news
        rule = next((alarm.rule for alarm in raised), "")
        title = in_sentence(RULE_TEXTS[rule].title) if rule else "a critical alarm"
        treatments = [] if origin is None else origin.treatments
        number, most = len(treatments) + 1, config.guard.max
        is_auto = config.guard.mode == "auto"
        proposal, why = None, f"{most} treatments were given, which is guard.max."
        if number <= most:
            proposal, why = next_proposal(self.run_path, treatments, may_change_task=not is_auto)
        share = share_left(success, max((alarm.step for alarm in raised), default=step))
        if proposal is None and share >= HELD:
            self.say(
                f"guard: {title} (after step {step}). {why} The run goes on: success is "
                f"{percent(share)} of its best."
            )
            return []
        if proposal is None:
            return [self._give_up(rule, f"{title}, and the guard cannot treat it: {why}", is_auto)]
        values = " ".join(f"{key}={shown(value)}" for key, value in proposal.settings.items())
        reason = (
            f"{title} (after step {step}): treatment {number} of at most {most}, from checkpoint "
            f"{proposal.checkpoint} with {values}. {proposal.why} {proposal.rate}"
        ).strip()[:MAX_REASON]
        folder = shown_path(self.run_path)
        order = rewind_settings(proposal.checkpoint, proposal.settings)
        if is_auto:
            self._announce(f"guard: {reason} The run goes on as a new run; this one is kept.")
            return [self._command(CommandAction.REWIND, reason, settings=order)]
        self._announce(
            f"guard: {reason} The run is paused. `echoscope ctl {folder} rewind` does it, "
            f"`echoscope ctl {folder} resume` goes on without."
        )
        why = f"guard asks: {reason}"[:MAX_REASON]
        return [self._command(CommandAction.PAUSE, why, rule, settings=order)]

    def _give_up(self, alarm: str, reason: str, is_auto: bool) -> Command:
        """Nobody waits for an answer of a run that treats itself: it frees the machine."""
        folder = shown_path(self.run_path)
        go_on = f"`echoscope train --resume {folder} guard.mode=off` goes on without a guard."
        if not is_auto:
            go_on = f"`echoscope ctl {folder} resume` goes on, and `stop` instead ends the run."
        self._announce(f"guard: {reason} The run {'ends' if is_auto else 'is paused'}. {go_on}")
        action = CommandAction.STOP if is_auto else CommandAction.PAUSE
        return self._command(action, reason[:MAX_REASON], alarm)

    def _announce(self, text: str) -> None:
        self.say(text)
        for observer in self.observers:
            observer.tell(text)

    def _command(
        self,
        action: CommandAction,
        reason: str,
        alarm: str = "",
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> Command:
        author = f"{ALARM_AUTHOR}{alarm}" if alarm else GUARD
        return new_command(self.run_id, action, settings=settings, issued_by=author, reason=reason)


def share_left(success: Mapping[int, float], since: int) -> float:
    """The newest success as a share of the best; 0 where none was measured since a step."""
    best, newest_step = max(success.values(), default=0.0), max(success, default=-1)
    return success[newest_step] / best if best > 0 and newest_step >= since else 0.0


def may_come_back(alarm: Alarm, step: int, success: Mapping[int, float]) -> bool:
    """Whether a change may end by itself, as it often does in healthy runs.

    Only where half of the success is left, or where success fell and nothing else shows it. It may
    for some steps, where success is back already, and for as long as each evaluation is the best
    since the alarm. That wait ends: what stays low sets new records ever more rarely, and it costs
    little: a treatment begins before the change anyway. An evaluation from before the alarm says
    nothing.

    Args:
        success: on the evaluation tasks, by step.
    """
    share = share_left(success, alarm.step)
    if alarm.rule in LASTING or (alarm.rule not in DIPS and share < LOST_SHARE):
        return False
    since = [rate for evaluated, rate in success.items() if evaluated >= alarm.step]
    is_rising = len(since) > 1 and since[-1] > max(since[:-1])
    return step < alarm.step + SETTLING_STEPS or share >= HELD or is_rising


def next_proposal(
    run_path: Path, tried: Sequence[GivenTreatment] = (), *, may_change_task: bool = False
) -> tuple[Proposal | None, str]:
    """The first treatment that was not tried, from a whole checkpoint; or why there is none.

    It is added to those before it: to take one back would bring back what it took away.

    Args:
        may_change_task: a person is asked before it is given.

    Raises:
        StoreError: the run cannot be read.
    """
    run = open_run(run_path)
    proposed = proposals_of(run, may_change_task=may_change_task)
    now = live_settings(run).now
    for proposal in proposed.treatments:
        folder = checkpoint_path(run_path, proposal.checkpoint)
        if not folder.is_dir() or checkpoint_damage(folder):
            older = older_whole_checkpoint(folder)
            if older is None:
                step = proposal.checkpoint
                return None, f"checkpoint {step} is gone or damaged, and no older one is whole."
            folder = older
        settings = proposal.settings
        if not _is_repeated(settings, tried) and not _changes_nothing(folder, settings, now):
            chosen = replace(proposal, checkpoint=checkpoint_step(folder))
            return _begun_earlier(chosen, run_path, tried), ""
    if proposed.treatments:
        return None, "every treatment that is known for it was given and did not help."
    return None, proposed.why_none


def _begun_earlier(proposal: Proposal, run_path: Path, tried: Sequence[GivenTreatment]) -> Proposal:
    """What would begin where the last treatment began begins at half of that step or before.

    What went wrong may be older than the treated run. The run before it had none of the treatments,
    so all of them are given; where it has no such checkpoint, the proposal stays as it is.
    """
    if not tried or proposal.checkpoint > tried[-1].checkpoint:
        return proposal
    last = tried[-1].checkpoint
    for folder in reversed(checkpoints_before(run_path)):
        if checkpoint_step(folder) <= last // 2 and not checkpoint_damage(folder):
            given = chain.from_iterable(treatment.as_typed.items() for treatment in tried)
            return replace(
                proposal,
                checkpoint=checkpoint_step(folder),
                settings={**dict(given), **proposal.settings},
                why=f"What began at checkpoint {last} collapsed again, so this begins earlier. "
                f"{proposal.why}",
            )
    return proposal


def _is_repeated(settings: Mapping[str, Any], tried: Iterable[GivenTreatment]) -> bool:
    """Whether settings were tried, or lead back to what was treated."""
    states = (old for treatment in tried for old in (treatment.settings, treatment.before))
    return any(settings.items() <= old.items() for old in states)


def _changes_nothing(folder: Path, settings: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the run would go on as it did from a checkpoint, or cannot have these settings.

    A checkpoint from before a live change has the old value; to go back to it undoes the change.

    Args:
        now: Live settings by dotted key, as the run has them.
    """
    try:
        before = read_state(folder).config
        is_same = override(before, override_words(settings)) == before
    except ConfigError:
        return True
    return is_same and all(now.get(key, value) == value for key, value in settings.items())


def paused_text(run_path: Path, step: int, alarm: str) -> str:
    """What a person is told when an alarm has paused the run after a step, and may do."""
    ctl = f"echoscope ctl {shown_path(run_path)}"
    asks = asked_rewind(open_run(run_path)) is not None
    return (
        f"{alarm} paused the run after step {step}, with a checkpoint; "
        f"{f'`{ctl} rewind` treats it, ' * asks}`{ctl} resume` goes on{' without' * asks}, "
        f"`{ctl} stop` ends it"
    )


def why_no_rewind(run_path: Path, command: Command) -> str:
    """Why a rewind cannot be carried out, in a sentence; empty where it can."""
    from .branching import plan_branch  # it trains runs, and a run asks here

    if launched_size():
        return "the ranks of this run end with it: use `echoscope ctl RUN branch`"
    try:
        order = Rewind.of(command)
        changes = override_words(order.settings)
        folder = plan_branch(run_path, checkpoint=order.checkpoint, overrides=changes).checkpoint
    except (ConfigError, StoreError, ValueError) as error:
        return str(error)
    damage = checkpoint_damage(folder)
    return f"the checkpoint of step {order.checkpoint} is damaged: {damage}" if damage else ""
