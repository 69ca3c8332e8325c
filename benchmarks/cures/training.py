"""From a piece to a record: train it, or go on where it was killed, and read the run back.

Everything lies in a folder of runs. A piece whose record is written is never trained again; its run
is deleted, but for the checkpoint of an untreated run that its arms continue from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collapse_runs import write_csv

from echoscope.core.config.beside_training import BranchedFrom
from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.branching import go_on, plan_branch, start_branch
from echoscope.core.run.checkpoint import read_state
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.bench.cures.kinds import FURTHER, Kind, Twin, setup_of, words_of
from echoscope.diagnostics.bench.cures.records import Records, TrainedPiece, follows
from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.advice.treatments import (
    ADVICE,
    GUARDS,
    UNTREATED,
    treatment,
)
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.table import table_of_run
from echoscope.store.checkpoints import (
    checkpoint_folders,
    checkpoint_path,
    checkpoint_step,
    choose_checkpoint,
    evaluation_success,
)
from echoscope.store.log.layout import Layout
from echoscope.store.query.alarms import open_alarms
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import (
    ALARM_AUTHOR,
    Alarm,
    AlarmSeverity,
    AlarmState,
    CommandAction,
    StepMetrics,
)
from echoscope.store.steer.commands import new_command, post
from echoscope.store.steer.rewinds import asked_rewind, last_of_line, rewind_of, successor_of

Subject = Kind | Twin
_CRITICAL = "critical: "


class Watcher(SilentEvents):
    """Changes what a kind changes live, and lets the run go on for so long after its first alarm.

    It agrees to whatever a guard asks for.

    It steers the run as a person would, so a resumed run does the same again.
    """

    def __init__(self, path: Path, live: Mapping[int, Mapping[str, Any]], *, alarm: int | None):
        self.path, self.live, self.alarm = path, live, alarm
        self._rings = False
        self._run_id = ""

    def message(self, text: str) -> None:
        self._rings |= text.startswith(_CRITICAL)

    def metrics(self, metrics: StepMetrics) -> None:
        self._run_id = self._run_id or metrics.run_id
        if metrics.phase != "train" or metrics.run_id != self._run_id:
            return  # a person who changes a run does not follow it into the one that it becomes
        step = metrics.step
        if step + 1 in self.live:
            self._set(metrics.run_id, self.live[step + 1])
        if self._rings and self.alarm is None:
            self.alarm = step
            self._set(metrics.run_id, {"steps": step + FURTHER})

    def phase(self, step: int, name: str) -> None:
        if not name.startswith("paused"):
            return
        path = last_of_line(self.path)
        reader = open_run(path)
        order = asked_rewind(reader)
        action = CommandAction.RESUME if order is None else CommandAction.REWIND
        post(path, new_command(reader.info().run_id, action, settings=order))

    def _set(self, run_id: str, settings: Mapping[str, Any]) -> None:
        post(self.path, new_command(run_id, CommandAction.SET, settings=settings))


def criticals(alarms: Sequence[Alarm]) -> list[int]:
    """Steps at which a critical alarm was raised."""
    return sorted(
        {
            alarm.step
            for alarm in alarms
            if alarm.state is AlarmState.RAISED and alarm.severity is AlarmSeverity.CRITICAL
        }
    )


def config_of(subject: Subject, seed: int, steps: int, *more: str) -> RunConfig:
    """The settings of an untreated run, and `more` words.

    It does not say which recipe it extends: the verdict must find out from the run what is wrong.
    """
    recipe = subject.twin.recipe if isinstance(subject, Kind) else subject.recipe
    overrides = [*words_of(subject), f"seed={seed}", f"steps={steps}", f"name={subject.name}"]
    config = load_config(recipe, overrides=[*overrides, *more])
    return config.model_copy(update={"recipe": None})


def train_untreated(subject: Subject, seed: int, runs: Path, curves: Path) -> TrainedPiece:
    """The run as it goes on: until 60 steps after its first critical alarm, or to its end."""
    path = runs / f"{subject.name}-{seed}-{setup_of(subject, UNTREATED)}"
    is_kind = isinstance(subject, Kind)
    live = subject.live if isinstance(subject, Kind) else {}
    steps = subject.steps
    status = _train(path, config_of(subject, seed, steps), live, reacts=is_kind)
    reader = open_run(path)
    piece = _read(reader, subject, seed, UNTREATED, status)
    if is_kind:
        piece = _with_alarm(piece, reader)
        kept = piece.checkpoint
    else:
        kept = subject.begins if isinstance(subject, Twin) else None
    write_csv(table_of_run(reader), curves / subject.name / f"seed{seed}.csv")
    for folder in checkpoint_folders(Layout(path).checkpoints):
        if checkpoint_step(folder) != kept:
            shutil.rmtree(folder)
    return piece


def _train(
    path: Path, config: RunConfig, live: Mapping[int, Mapping[str, Any]], *, reacts: bool
) -> str:
    """Start, or go on after a kill; returns the status of the run."""
    if not (path / "run.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        watcher = Watcher(path, live, alarm=None if reacts else 0)
        return _ended(path, start(config, path, watcher))
    reader = open_run(path)
    if reader.info().status in ("finished", "failed"):
        return reader.info().status
    folders = checkpoint_folders(Layout(path).checkpoints)
    if not folders:
        shutil.rmtree(path)
        return _train(path, config, live, reacts=reacts)
    newest = checkpoint_step(folders[-1])
    before = [step for step in criticals(reader.alarms()) if step <= newest]
    alarm = min(before, default=None) if reacts else 0
    return _ended(path, resume(path, Watcher(path, live, alarm=alarm)))


def _ended(path: Path, status: str) -> str:
    if status not in ("finished", "failed"):
        raise SystemExit(f"{path} is {status}; the same command goes on with it")
    return status


def _read(reader: RunReader, subject: Subject, seed: int, arm: str, status: str) -> TrainedPiece:
    return TrainedPiece(
        of=subject.name,
        seed=seed,
        arm=arm,
        setup=setup_of(subject, arm),
        success=evaluation_success(reader),
        criticals=tuple(criticals(reader.alarms())),
        steps=reader.info().last_step,
        seconds=round(float(reader.metrics("time/step_s")[1].sum()), 1),
        status=status,
    )


def _with_alarm(piece: TrainedPiece, reader: RunReader) -> TrainedPiece:
    """What a monitor knew at the first critical alarm, and what it suggested."""
    if not piece.criticals:
        return piece
    alarm = piece.criticals[0]
    raised = open_alarms([event for event in reader.alarms() if event.step <= alarm])
    steps = [c.step for c in reader.checkpoints() if c.step <= alarm]
    success = {step: rate for step, rate in piece.success.items() if step <= alarm}
    verdict = diagnose(reader.path, at=alarm)
    action = next(iter(verdict.actions), None)
    advised = None if action is None else action.checkpoint
    return replace(
        piece,
        alarm=alarm,
        rules=verdict.kinds,
        checkpoint=choose_checkpoint(steps, raised, success).step if advised is None else advised,
        advice={} if action is None else dict(action.settings),
    )


def train_arm(
    subject: Subject, untreated: TrainedPiece, arm: str, runs: Path, records: Records
) -> TrainedPiece | None:
    """The continuation with a treatment; None where it changes nothing about this run.

    What the verdict advised is mostly one of the treatments: then it is that record, under its own
    name.
    """
    begins = untreated.checkpoint if isinstance(subject, Kind) else subject.begins
    assert begins is not None, "an arm needs a checkpoint"
    parent = _path_of(untreated, runs)
    if not checkpoint_path(parent, begins).is_dir():
        parent = _trained_again(subject, untreated.seed, begins, parent)
    config = read_state(checkpoint_path(parent, begins)).config.model_dump(mode="json")
    present = Situation(config=config).setting
    if arm != ADVICE:
        settings = treatment(arm).settings(present)
        if treatment(arm).changes and not settings:
            return None
        return _branch(subject, untreated, arm, settings, parent, runs)
    settings = {key: value for key, value in untreated.advice.items() if present(key) != value}
    arms = subject.arms if isinstance(subject, Kind) else ()
    for name in arms:
        if name in GUARDS:
            continue
        same = records.pieces.get((subject.name, untreated.seed, name))
        if name != ADVICE and treatment(name).settings(present) == settings:
            if not is_recorded(records, subject, untreated.seed, name) or same is None:
                same = _branch(subject, untreated, name, settings, parent, runs)
                records.add(same)
            return _as_advised(same, untreated, subject)
    if not settings:  # it repeats the untreated run
        return _as_advised(replace(untreated, begins=begins), untreated, subject)
    piece = _branch(subject, untreated, ADVICE, settings, parent, runs)
    return replace(piece, advice=untreated.advice)


def _as_advised(piece: TrainedPiece, untreated: TrainedPiece, subject: Subject) -> TrainedPiece:
    """A piece that was trained under another name, as what the verdict suggested."""
    setup = setup_of(subject, ADVICE)
    return replace(piece, arm=ADVICE, setup=setup, advice=untreated.advice, seconds=0.0)


def _path_of(untreated: TrainedPiece, runs: Path) -> Path:
    return runs / f"{untreated.of}-{untreated.seed}-{untreated.setup}"


def _branch(
    subject: Subject,
    untreated: TrainedPiece,
    arm: str,
    settings: Mapping[str, Any],
    parent: Path,
    runs: Path,
) -> TrainedPiece:
    """Train a branch of the untreated run, or go on with it after a kill."""
    begins = untreated.checkpoint if isinstance(subject, Kind) else subject.begins
    assert begins is not None
    untreated_path = _path_of(untreated, runs)
    path = untreated_path.with_name(f"{untreated_path.name}-{arm}")
    status = ""
    if (path / "run.json").exists():
        info = open_run(path).info()
        if info.status in ("finished", "failed"):
            status = info.status
        elif checkpoint_folders(Layout(path).checkpoints):
            status = _ended(path, resume(path, SilentEvents()))
    if not status:
        shutil.rmtree(path, ignore_errors=True)
        overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        overrides.append(f"steps={begins + FURTHER}")
        branch = plan_branch(parent, checkpoint=begins, overrides=overrides)
        status = _ended(path, start_branch(branch, path, SilentEvents()))
    piece = _read(open_run(path), subject, untreated.seed, arm, status)
    return replace(piece, settings=settings, begins=begins)


def train_guarded(subject: Subject, seed: int, arm: str, runs: Path) -> TrainedPiece:
    """The run with a guard, and all that it goes on as, to the last step of its twin."""
    first = runs / f"{subject.name}-{seed}-{setup_of(subject, arm)}-{arm}"
    twin = subject.twin if isinstance(subject, Kind) else subject
    live = subject.live if isinstance(subject, Kind) else {}
    path = last_of_line(first) if (first / "run.json").exists() else first
    watcher = Watcher(path, live if path == first else {}, alarm=0)
    if not checkpoint_folders(Layout(path).checkpoints):
        shutil.rmtree(path, ignore_errors=True)
        config = config_of(subject, seed, twin.steps, f"guard={GUARDS[arm]}")
        go_on(path, watcher, start(config, path, watcher))
    elif rewind_of(open_run(path)) is not None:
        go_on(path, watcher, open_run(path).info().status)
    elif open_run(path).info().status not in ("finished", "failed") and not _is_given_up(
        open_run(path)
    ):
        go_on(path, watcher, resume(path, watcher))
    line = [open_run(first)]
    while (order := rewind_of(line[-1])) is not None:
        after = successor_of(line[-1], order)
        assert after is not None, f"{line[-1].path} was rewound, and nothing goes on from there"
        line.append(open_run(after))
    status = line[-1].info().status
    if not _is_given_up(line[-1]):
        _ended(line[-1].path, status)
    pieces = [_read(reader, subject, seed, arm, status) for reader in line]
    origins = [origin_of(reader) for reader in line[1:]]
    success: dict[int, float] = {}
    for piece, origin in zip(pieces, [0, *(o.step for o in origins)], strict=True):
        success = {step: rate for step, rate in success.items() if step <= origin}
        success |= piece.success
    settings = {key: value for o in origins for key, value in o.treatments[-1].settings.items()}
    return replace(
        pieces[-1],
        success=success,
        criticals=tuple(sorted({step for piece in pieces for step in piece.criticals})),
        settings=settings,
        rewinds=tuple(origin.step for origin in origins),
        seconds=round(sum(piece.seconds for piece in pieces), 1),
    )


def _is_given_up(reader: RunReader) -> bool:
    """Whether the guard ended the run, because it had nothing to give."""
    last = next(reversed(reader.commands()), None)
    is_by_alarm = last is not None and last.command.issued_by.startswith(ALARM_AUTHOR)
    return is_by_alarm and reader.info().status == "stopped"


def origin_of(reader: RunReader) -> BranchedFrom:
    """Where a run took over, and what was tried before."""
    return BranchedFrom.model_validate(reader.info().config["branched_from"])


def forget(piece: TrainedPiece, runs: Path) -> None:
    """Delete the run of an arm that is recorded, and what it went on as."""
    for path in (
        *runs.glob(f"{piece.of}-{piece.seed}-*-{piece.arm}"),
        *runs.glob(f"{piece.of}-{piece.seed}-*-{piece.arm}-[0-9]*"),
    ):
        shutil.rmtree(path)


def _trained_again(subject: Subject, seed: int, step: int, untreated: Path) -> Path:
    """The untreated run up to a checkpoint that is no longer there: bit for bit the same."""
    path = untreated.with_name(f"{untreated.name}-to-{step}")
    live = subject.live if isinstance(subject, Kind) else {}
    if not checkpoint_path(path, step).is_dir():
        shutil.rmtree(path, ignore_errors=True)
        _train(path, config_of(subject, seed, max(1, step)), live, reacts=False)
    return path


def judged_again(subject: Subject, untreated: TrainedPiece, runs: Path) -> TrainedPiece:
    """An untreated run with what the verdict of today says at its alarm.

    Raises:
        StoreError: the run is no longer there.
    """
    return _with_alarm(untreated, open_run(_path_of(untreated, runs)))


def is_recorded(records: Records, subject: Subject, seed: int, arm: str) -> bool:
    """Whether a piece was trained with the setup that it has now."""
    piece = records.pieces.get((subject.name, seed, arm))
    untreated = records.pieces.get((subject.name, seed, UNTREATED))
    is_current = piece is not None and piece.setup == setup_of(subject, arm)
    return is_current and (not isinstance(subject, Kind) or follows(piece, untreated))
