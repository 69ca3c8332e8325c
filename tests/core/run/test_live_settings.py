"""Which live settings held at which step: what the trainer had is what everybody is told.

The trainer's own boundary and journal, without a model: a step "trains" by noting its settings.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from echoscope.core.config.loading import live_schema, live_values, load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.checkpoint import Progress
from echoscope.core.run.control import Control
from echoscope.core.run.keeping import Checkpoints
from echoscope.core.run.observers import SilentEvents
from echoscope.core.run.step import StepLog
from echoscope.core.run.train import Trainer
from echoscope.diagnostics.judge.lineage import alarm_settings
from echoscope.diagnostics.tools.whatif import own_settings
from echoscope.store.log.packing import pack
from echoscope.store.reader import open_run
from echoscope.store.records import StepMetrics
from echoscope.store.steer.commands import Mailbox, new_command, post
from echoscope.store.steer.settings import applied, live_settings, replayed
from echoscope.store.writer import RunWriter

UNUSED = cast(Any, None)
THRESHOLDS = "diagnostics.alarms.thresholds"
ACTIONS = "diagnostics.alarms.actions"
EVENTS = [*["train"] * 6, *["set"] * 3, *["save"] * 2, *["kill"] * 2, "branch"]
SETTINGS: list[dict[str, Any]] = [
    {"optim.lr": 0.5},
    {"optim.lr": 0.25, "selection.value": 0.5},
    {"selection.strategy": "top_p"},
    {THRESHOLDS: {"spread": 7.0}},
    {THRESHOLDS: {"spread": 3.0, "echo": 2.0}},
    {THRESHOLDS: {}},
    {ACTIONS: {"LOW_SUCCESS": "pause"}},
    {ACTIONS: {}},
]


class History:
    """A run that is steered, killed, resumed and branched; what each visible step trained with."""

    def __init__(self, path: Path, config: RunConfig, start: int = 0) -> None:
        self.path, self.first, self.start = path, config, start
        self.held: dict[int, Mapping[str, Any]] = {}
        self.checkpoints: dict[int, RunConfig] = {}
        self.trainer: Trainer | None = None

    @property
    def step(self) -> int:
        assert self.trainer is not None
        return self.trainer.step

    def begin(self) -> None:
        writer = RunWriter.create(
            self.path,
            run_id=self.path.name,
            config=self.first.model_dump(mode="json"),
            live_knobs=live_schema(self.first),
            is_packing=False,
        )
        self._build(writer, self.first, self.start, Control(Mailbox(self.path), self.path.name))

    def kill(self) -> None:
        assert self.trainer is not None
        self.trainer.log.writer.close(status="interrupted")
        self.trainer = None

    def resume(self, step: int) -> None:
        """As `core.runs.resume` does from the checkpoint of a step, or from the beginning."""
        replay = replayed(applied(open_run(self.path).commands()), after=step)
        has_step = open_run(self.path).info().last_step >= 0
        writer = RunWriter.resume(self.path, from_step=step if has_step else -1, is_packing=False)
        mailbox = Mailbox(self.path, seen_ids=writer.seen_command_ids)
        control = Control(mailbox, self.path.name, replay)
        self._build(writer, self.checkpoints.get(step, self.first), step, control)
        self.checkpoints = {number: c for number, c in self.checkpoints.items() if number <= step}
        self.held = {number: values for number, values in self.held.items() if number <= step}

    def branch(self, path: Path, step: int) -> History:
        made = History(path, self.checkpoints[step], start=step)
        made.begin()
        return made

    def set(self, settings: Mapping[str, Any], issued_at: float = 0.0) -> None:
        command = new_command(self.path.name, "set", settings=settings, ttl_s=None)
        post(self.path, replace(command, issued_at=issued_at))

    def train(self) -> None:
        assert self.trainer is not None
        trainer = self.trainer
        trainer._boundary()
        trainer.progress = Progress(step=trainer.step + 1)
        self.held[trainer.step] = live_values(trainer.config)
        trainer.log.writer.commit_step(metrics=[self._metrics(trainer.step)])

    def save(self) -> None:
        assert self.trainer is not None
        self.checkpoints[self.step] = self.trainer.config

    def check(self) -> None:
        """Everybody is told what the trainer had, at every visible step."""
        assert self.trainer is not None
        self.trainer.log.writer.flush()
        run = open_run(self.path)
        live, alarms, selection = live_settings(run), alarm_settings(run), own_settings(run)
        for step, values in self.held.items():
            assert live.at(step) == values, step
            assert alarms.at(step).thresholds == values[THRESHOLDS], step
            assert alarms.at(step).actions == values[ACTIONS], step
            assert selection(step)["value"] == values["selection.value"], step
            assert selection(step)["strategy"] == values["selection.strategy"], step

    def _build(self, writer: RunWriter, config: RunConfig, step: int, control: Control) -> None:
        checkpoints = Checkpoints(writer, pytest.fail)
        self.trainer = Trainer(
            config=config,
            model=UNUSED,
            sources=UNUSED,
            control=control,
            events=SilentEvents(),
            checkpoints=checkpoints,
            log=StepLog(
                writer=writer,
                observers=(),
                events=SilentEvents(),
                mirror=UNUSED,
                guard=UNUSED,
                checkpoints=checkpoints,
                clock=UNUSED,
            ),
            clock=UNUSED,
            progress=Progress(step=step),
        )

    def _metrics(self, step: int) -> StepMetrics:
        return StepMetrics(
            run_id=self.path.name,
            step=step,
            phase="train",
            policy_version=step,
            wall_time=0.0,
            values={"policy/entropy": 1.0},
        )


@pytest.fixture
def config() -> RunConfig:
    return load_config(
        overrides=[
            "envs.train=[{env: bandit}]",
            f"{ACTIONS}={{TEMPLATE_COLLAPSE: stop}}",
            f"{THRESHOLDS}={{format: 0.4}}",
        ]
    )


def test_a_threshold_of_a_killed_attempt_is_not_what_held(
    tmp_path: Path, config: RunConfig
) -> None:
    """Attempt 1 sets 7 at step 5; the run resumes after step 4; attempt 2 sets 3 at step 5."""
    run = History(tmp_path / "run", config)
    run.begin()
    for _ in range(4):
        run.train()
    run.save()
    run.train()
    run.set({THRESHOLDS: {"spread": 7.0}})  # at step 6
    run.train()
    run.kill()
    run.resume(4)
    run.set({THRESHOLDS: {"spread": 3.0}})  # at step 5: the 7 of step 6 does not come back
    for _ in range(3):
        run.train()
    run.check()
    limits = alarm_settings(open_run(run.path))
    assert [limits.at(step).thresholds.get("spread") for step in (4, 5, 6, 7)] == [None, 3, 3, 3]
    run.kill()


def test_a_resumed_run_repeats_commands_in_the_order_of_the_journal(
    tmp_path: Path, config: RunConfig
) -> None:
    """The second command comes from a machine whose clock is a day behind."""
    run = History(tmp_path / "run", config)
    run.begin()
    for rate, issued_at in ((0.5, 90_000.0), (0.25, 3_600.0)):
        run.set({"optim.lr": rate}, issued_at=issued_at)
        assert run.trainer is not None
        run.trainer._boundary()  # both are answered before step 1
    for _ in range(2):
        run.train()
    assert run.held[2]["optim.lr"] == 0.25
    run.kill()
    run.resume(0)
    for _ in range(2):
        run.train()
    assert run.held[2]["optim.lr"] == 0.25
    run.check()
    run.kill()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_random_histories_are_told_as_they_were(
    seed: int, tmp_path: Path, config: RunConfig
) -> None:
    """Sets, checkpoints, kills, resumes, packs and branches in any order."""
    rng = random.Random(seed)
    runs = [History(tmp_path / "run0", config)]
    run = runs[0]
    run.begin()
    for _ in range(80):
        match rng.choice(EVENTS):
            case "train":
                run.train()
            case "set":
                run.set(rng.choice(SETTINGS), issued_at=rng.uniform(0, 2e9))  # clocks jump
            case "save" if run.step:
                run.save()
            case "kill":
                run.kill()
                if rng.random() < 0.3:
                    pack(run.path, grace_s=0)
                run.resume(rng.choice([run.start, *run.checkpoints]))
            case "branch" if run.checkpoints and len(runs) < 3:
                run.check()
                run.kill()
                run = run.branch(tmp_path / f"run{len(runs)}", rng.choice([*run.checkpoints]))
                runs.append(run)
    run.check()
    run.kill()
    shutil.rmtree(tmp_path)
