"""A run that treats itself: it ends, keeps what it observed, and goes on as a new run.

Killed at any instant of that, it ends as if nothing had happened.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alarm_events import alarm_event
from guarded import INSTANTS, collapsing, guarded
from listening import Listener
from mailboxes import webhook
from recorded import assert_same_recording, recorded
from trainer_process import TrainerProcess

from echoscope.core.config.beside_training import GivenTreatment
from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run import build, checkpoint, guard
from echoscope.core.run.branching import go_on, plan_branch, start_branch
from echoscope.core.run.checkpoint import CheckpointError
from echoscope.core.run.guard import Guard, may_come_back, next_proposal, share_left
from echoscope.core.run.keeping import Checkpoints
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.judge.advice.fate import fate_of
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.proposals import Proposal, Proposals
from echoscope.store.checkpoints import checkpoint_path, checkpoint_step
from echoscope.store.log.verify import verify
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import (
    CommandAction,
    CommandOutcome,
    StepMetrics,
)
from echoscope.store.steer.commands import new_command, post
from echoscope.store.steer.rewinds import (
    asked_rewind,
    checkpoints_before,
    last_of_line,
    rewind_of,
    rewind_settings,
)

MakeConfig = Callable[..., RunConfig]
SUCCESS = "eval/all/success_rate"
DIP = alarm_event(
    "a",
    45,
    "critical",
    rule="LOW_SUCCESS",
    onset_step=25,
    metric=SUCCESS,
    value=0.5,
    baseline=0.8,
    threshold=0.6,
    window=5,
    message="",
)


def trained(config: RunConfig, path: Path, events: SilentEvents | None = None) -> tuple[Path, str]:
    events = events or SilentEvents()
    return go_on(path, events, start(config, path, events))


@pytest.fixture(scope="module")
def treated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that collapsed at step 3 and was treated; its successor lies beside it."""
    path, listener = tmp_path_factory.mktemp("guarded") / "run", Listener()
    assert trained(collapsing("guard=auto"), path, listener) == (
        path.with_name("run-2"),
        "finished",
    )
    assert any(
        text.startswith("guard: non-finite numbers (after step 3)") for text in listener.messages
    )
    return path


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a guard, told to end where that one ended."""
    path = tmp_path_factory.mktemp("collapsed") / "run"
    assert (
        start(
            collapsing("steps=4", "checkpoint.every=1", "checkpoint.keep=9"), path, SilentEvents()
        )
        == "finished"
    )
    return path


def test_the_run_ends_with_all_that_it_observed(treated: Path) -> None:
    run = open_run(treated)
    info, (state,) = run.info(), run.commands()
    assert (info.status, info.last_step, info.attempt) == ("stopped", 3, 1)
    assert (state.command.action, state.command.issued_by) == (CommandAction.REWIND, "guard")
    assert state.command.settings == rewind_settings(0, {"advantage.kind": "grpo"})
    assert "treatment 1 of at most 3" in state.command.reason
    assert state.ack is not None
    assert state.ack.outcome is CommandOutcome.APPLIED
    assert run.status().words(0).startswith("rewound by guard: non-finite numbers (after step 3)")
    assert verify(treated).problems == ()
    fate = fate_of(run)
    assert fate is not None
    assert fate.words.startswith("guard rewound the run after step 3")
    assert fate.words.endswith(" It goes on as `run-2`.")
    assert fate.command == f"echoscope diagnose {treated.with_name('run-2')}"


def test_the_new_run_is_the_branch_that_a_person_would_have_started(
    treated: Path, tmp_path: Path
) -> None:
    """Bit for bit; and it says where it comes from, why, and what was tried."""
    plan = plan_branch(treated, checkpoint=0, overrides=["advantage.kind=grpo"])
    start_branch(plan, tmp_path / "by-hand", SilentEvents())
    after = treated.with_name("run-2")
    assert_same_recording(after, tmp_path / "by-hand")
    origin = open_run(after).info().config["branched_from"]
    (state,) = open_run(treated).commands()
    assert (origin["run_id"], origin["step"], origin["issued_by"]) == ("run", 0, "guard")
    assert (origin["reason"], origin["command_id"]) == (
        state.command.reason,
        state.command.command_id,
    )
    assert origin["treatments"] == [
        {
            "checkpoint": 0,
            "settings": {"advantage.kind": "grpo"},
            "before": {"advantage.kind": "rloo"},
        }
    ]
    assert last_of_line(treated) == after


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("instant", INSTANTS)
def test_a_kill_at_any_instant_of_it_changes_nothing(
    treated: Path, tmp_path: Path, instant: str
) -> None:
    path = tmp_path / "run"
    first = TrainerProcess(tmp_path / "first.log", guarded, path, instant)
    assert first.join() == -9, first.text
    second = TrainerProcess(tmp_path / "second.log", guarded, path, "")
    assert second.join() == 0, second.text
    assert_same_recording(path, treated)
    assert sorted(run.name for run in tmp_path.glob("run*")) == ["run", "run-2"]
    assert recorded(path.with_name("run-2")) == recorded(treated.with_name("run-2"))
    for run in (path, path.with_name("run-2")):
        assert verify(run).problems == ()
    assert [open_run(run).info().status for run in (path, path.with_name("run-2"))] == [
        "stopped",
        "finished",
    ]


@pytest.mark.long
def test_somebody_may_take_the_untreated_run_back(treated: Path, tmp_path: Path) -> None:
    """Resumed from a checkpoint of its own, it is no longer the one that was rewound."""
    path = tmp_path / "run"
    shutil.copytree(treated, path)
    process = TrainerProcess(tmp_path / "log", untreated, path)
    assert process.join() == 0, process.text
    run = open_run(path)
    assert (run.info().status, run.info().last_step) == ("finished", 4)
    assert rewind_of(run) is None


def untreated(path: Path) -> None:
    from trainer_process import echoscope

    arguments = ("guard.mode=off", "steps=4", "--headless")
    echoscope("train", "--resume", str(path), "--checkpoint", "3", *arguments)


GRPO = rewind_settings(0, {"advantage.kind": "grpo"})
OTHER = rewind_settings(0, {"optim.lr": 1e-5})
REWIND, STOP, RESUME = CommandAction.REWIND, CommandAction.STOP, CommandAction.RESUME
Answer = tuple[str, CommandAction, dict[str, Any]]
"""Who answers the guard's question, and what."""


class Answers(Listener):
    """People who answer the guard's question once the run is paused."""

    def __init__(self, path: Path, *answers: Answer) -> None:
        super().__init__()
        self.path, self.answers = path, answers
        self.asked: dict[str, Any] | None = None

    def phase(self, step: int, name: str) -> None:
        super().phase(step, name)
        if name.startswith("paused"):
            self.asked = asked_rewind(open_run(self.path))
            for author, action, settings in self.answers:
                post(self.path, new_command("run", action, settings=settings, issued_by=author))


@pytest.mark.long
def test_ask_waits_for_a_person_who_agrees(treated: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    person = Answers(path, ("ada", REWIND, GRPO))
    assert trained(collapsing("guard=ask"), path, person) == (tmp_path / "run-2", "finished")
    assert person.asked == GRPO
    assert any(
        "rewind` treats it, `" in text and text.endswith("stop` ends it")
        for text in person.messages
    )
    assert asked_rewind(open_run(path)) is None
    assert recorded(tmp_path / "run-2") == recorded(treated.with_name("run-2"))
    pause, rewind = open_run(path).commands()
    assert (pause.command.action, pause.command.issued_by) == (
        CommandAction.PAUSE,
        "alarm NON_FINITE",
    )
    assert "from checkpoint 0 with advantage.kind=grpo" in pause.command.reason
    assert rewind.command.issued_by == "ada"


@pytest.mark.long
def test_ask_asks_once_and_a_person_may_decline(tmp_path: Path) -> None:
    path = tmp_path / "run"
    person = Answers(path, ("ada", RESUME, {}))
    assert trained(collapsing("guard=ask", "steps=4"), path, person) == (path, "finished")
    actions = [state.command.action for state in open_run(path).commands()]
    assert actions == [CommandAction.PAUSE, CommandAction.RESUME]


@pytest.mark.long
def test_of_two_people_who_agree_the_first_is_obeyed_and_the_second_told(
    treated: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    people = Answers(path, ("ada", REWIND, GRPO), ("bob", REWIND, OTHER))
    assert trained(collapsing("guard=ask"), path, people) == (tmp_path / "run-2", "finished")
    assert recorded(tmp_path / "run-2") == recorded(treated.with_name("run-2"))
    assert answers(path) == {
        "ada": (CommandOutcome.APPLIED, "goes on as a new run"),
        "bob": (CommandOutcome.REJECTED, "the run goes on as a new run: send it to that one"),
    }


@pytest.mark.long
def test_whoever_stops_a_run_ends_it_whatever_somebody_else_agrees_to(tmp_path: Path) -> None:
    path = tmp_path / "run"
    people = Answers(path, ("ada", REWIND, GRPO), ("bob", STOP, {}))
    assert trained(collapsing("guard=ask"), path, people) == (path, "stopped")
    assert answers(path) == {
        "ada": (CommandOutcome.REJECTED, "the run is being stopped"),
        "bob": (CommandOutcome.APPLIED, "stopping with a checkpoint"),
    }
    assert [run.name for run in tmp_path.glob("run*")] == ["run"]


def answers(path: Path) -> dict[str, tuple[CommandOutcome, str]]:
    """What each person was told."""
    return {
        state.command.issued_by: (state.ack.outcome, state.ack.detail)
        for state in open_run(path).commands()
        if state.ack is not None and state.command.action is not CommandAction.PAUSE
    }


@pytest.mark.long
def test_a_kill_before_two_people_were_answered_obeys_the_first(
    collapsed: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(collapsed, path)
    (step, *_) = [checkpoint.step for checkpoint in open_run(path).checkpoints()]
    for author, rate in (("ada", 1e-4), ("bob", 1e-5)):
        order = rewind_settings(step, {"optim.lr": rate})
        post(path, new_command("run", REWIND, settings=order, issued_by=author))
    after, _ = go_on(path, SilentEvents(), "crashed")
    assert open_run(after).info().config["optim"]["lr"] == 1e-4
    assert [outcome for outcome, _ in answers(path).values()] == [
        CommandOutcome.APPLIED,
        CommandOutcome.REJECTED,
    ]


class Types(Listener):
    """A person who types `ctl RUN rewind`, and nothing else, once the run is paused."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def phase(self, step: int, name: str) -> None:
        if name.startswith("paused"):
            program = "from echoscope.cli import main; main()"
            arguments = ("ctl", str(self.path), "rewind", "--wait", "0")
            subprocess.run([sys.executable, "-c", program, *arguments], check=True)


@pytest.mark.long
def test_a_typed_rewind_without_words_does_what_the_guard_asks(
    treated: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    assert trained(collapsing("guard=ask"), path, Types(path))[1] == "finished"
    assert recorded(tmp_path / "run-2") == recorded(treated.with_name("run-2"))


@pytest.mark.long
@pytest.mark.parametrize(("mode", "answer"), [("auto", None), ("ask", ("ada", RESUME, {}))])
def test_each_act_of_the_guard_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, answer: Answer | None
) -> None:
    path = tmp_path / "run"
    events = Answers(path, *([] if answer is None else [answer]))
    with webhook() as box:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        overrides = ("diagnostics.notify.targets=[webhook:ECHOSCOPE_TEST_HOOK]", f"guard={mode}")
        trained(collapsing(*overrides), path, events)
    (act,) = [body for body in box.bodies if body["occasion"] == "guard"]
    assert (
        "non-finite numbers (after step 3): treatment 1 of at most 3, from checkpoint 0"
        in act["text"]
    )
    assert [text for text in events.messages if text.startswith("guard: ")] == [act["text"]]


@pytest.mark.long
def test_a_full_disk_ends_the_rewind_and_the_next_try_carries_it_out(
    treated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(checkpoint.os, "link", refuse)
        full.setattr(checkpoint.shutil, "copy2", refuse)
        with pytest.raises(CheckpointError, match=r"cannot take over .*No space left on device"):
            trained(collapsing("guard=auto"), path)
    assert verify(path).problems == ()
    order = rewind_of(open_run(path))
    assert order is not None
    assert order.command.issued_by == "guard"
    assert go_on(path, SilentEvents(), "stopped") == (tmp_path / "run-2", "finished")
    assert recorded(tmp_path / "run-2") == recorded(treated.with_name("run-2"))
    assert sorted(run.name for run in tmp_path.glob("run*")) == ["run", "run-2"]


@pytest.mark.long
def test_a_run_is_treated_although_its_last_step_finds_no_room(
    treated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That checkpoint is for whoever wants the untreated run back."""
    path, events, save = tmp_path / "run", Listener(), Checkpoints.save

    def full(self: Checkpoints, *args: Any, **more: Any) -> Any:
        if "stop" in (*args, *more.values()):
            raise CheckpointError("cannot write the checkpoint of step 3 (No space left on device)")
        return save(self, *args, **more)

    monkeypatch.setattr(Checkpoints, "save", full)
    assert trained(collapsing("guard=auto"), path, events) == (tmp_path / "run-2", "finished")
    assert any(text.startswith("the last step has no checkpoint") for text in events.messages)
    assert recorded(tmp_path / "run-2") == recorded(treated.with_name("run-2"))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", ["frozen_lake", "bandit", "sokoban", "countdown"])
def test_a_healthy_run_is_not_touched(recipe: str, tmp_path: Path) -> None:
    from echoscope.core.config.loading import load_config

    overrides = ("steps=8", "envs.train.0.groups=2", "envs.group_size=4", "eval.every=4")
    overrides += ("envs.eval.0.groups=8", "diagnostics.gradient.every=0", "probe.every=0")
    # What a busy machine measures less often would differ.
    overrides += ("diagnostics.budget_frac=1",)
    for name in ("off", "auto"):
        config = load_config(recipe, overrides=(*overrides, f"guard={name}"))
        assert trained(config, tmp_path / name)[1] == "finished"
    assert_same_recording(tmp_path / "auto", tmp_path / "off")
    assert open_run(tmp_path / "auto").commands() == []


def proposing(monkeypatch: pytest.MonkeyPatch, *treatments: Proposal, why: str = "") -> None:
    answer = Proposals(state=RunState.COLLAPSED, kinds=("X",), treatments=treatments, why_none=why)
    monkeypatch.setattr(guard, "proposals_of", lambda run, **options: answer)


def lower(rate: float, checkpoint: int = 2) -> Proposal:
    return Proposal(settings={"optim.lr": rate}, checkpoint=checkpoint, why="")


def given(new: float, old: float, checkpoint: int = 2) -> GivenTreatment:
    return GivenTreatment(
        checkpoint=checkpoint, settings={"optim.lr": new}, before={"optim.lr": old}
    )


class ChangesTheRate(Listener):
    """Sets the learning rate to 9 after step 1, as a person would."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def metrics(self, metrics: StepMetrics) -> None:
        super().metrics(metrics)
        if metrics.step == 1 and metrics.phase == "train":
            post(self.path, new_command("run", CommandAction.SET, settings={"optim.lr": 9.0}))


class TestTheNextTreatment:
    """Never one that was tried, never back to what was treated, never from a damaged checkpoint."""

    def of(self, path: Path, tried: Sequence[GivenTreatment] = ()) -> tuple[Proposal | None, str]:
        return next_proposal(path, tried)

    def test_the_same_treatment_is_not_given_twice(
        self, collapsed: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proposing(monkeypatch, lower(1e-4), lower(1e-5))
        proposal, _ = self.of(collapsed, [given(1e-4, 1e-3)])
        assert proposal is not None
        assert proposal.settings == {"optim.lr": 1e-5}

    def test_a_guard_that_acts_alone_is_proposed_no_other_task(
        self, collapsed: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        allowed: list[bool] = []

        def answer(run: RunReader, *, may_change_task: bool) -> Proposals:
            allowed.append(may_change_task)
            return Proposals(state=RunState.COLLAPSED, kinds=("X",), treatments=(), why_none="no")

        monkeypatch.setattr(guard, "proposals_of", answer)
        for mode in ("auto", "ask"):
            watching = Guard(run_path=collapsed, run_id="run", say=lambda text: None)
            watching.commands(["alarm"], collapsing(f"guard={mode}"))
        assert allowed == [False, True]

    def test_nothing_leads_back_to_what_was_treated(
        self, collapsed: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proposing(monkeypatch, lower(1e-3))
        proposal, why = self.of(collapsed, [given(1e-4, 1e-3)])
        assert proposal is None
        assert why == "every treatment that is known for it was given and did not help."

    def test_a_further_treatment_is_added_to_the_one_that_did_not_help(
        self, collapsed: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To take that back would bring back what it took away."""
        proposing(monkeypatch, Proposal(settings={"loss.entropy_coef": 0.5}, checkpoint=2, why=""))
        proposal, _ = self.of(collapsed, [given(1e-4, 1e-3)])
        assert proposal is not None
        assert proposal.settings == {"loss.entropy_coef": 0.5}

    def test_to_go_back_before_a_live_change_undoes_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The checkpoint has the old value already; the run has not. Unchanged, it has both."""
        path = tmp_path / "run"
        config = collapsing("steps=3", "checkpoint.every=1", "checkpoint.keep=9")
        start(config, path, ChangesTheRate(path))
        undone, same = lower(config.optim.lr, 1), lower(9.0, 2)
        proposing(monkeypatch, same, undone)
        proposal, _ = self.of(path)
        assert proposal == undone

    def test_a_damaged_checkpoint_is_passed_over(
        self, collapsed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "run"
        shutil.copytree(collapsed, path)
        steps = [checkpoint.step for checkpoint in open_run(path).checkpoints()]
        proposing(monkeypatch, lower(1e-5, steps[-1]))
        (checkpoint_path(path, steps[-1]) / "optimizer.safetensors").write_bytes(b"")
        proposal, _ = self.of(path)
        assert proposal is not None
        assert proposal.checkpoint == steps[-2]
        for step in steps[:-1]:
            (checkpoint_path(path, step) / "optimizer.safetensors").write_bytes(b"")
        proposal, why = self.of(path)
        assert proposal is None
        assert why == f"checkpoint {steps[-1]} is gone or damaged, and no older one is whole."

    def test_what_collapses_again_from_where_it_began_begins_earlier_with_all_that_was_given(
        self, collapsed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The change may be older than the first checkpoint of the treated run."""
        parent, path = tmp_path / "run", tmp_path / "run-2"
        shutil.copytree(collapsed, parent)
        treatment = GivenTreatment(
            checkpoint=2,
            settings={"reward.shaping": [], "reward.shaping.0.name": None}
            | {"loss.entropy_coef": 0.5},
            before={"loss.entropy_coef": 0.0},
        )
        overrides = ["loss.entropy_coef=0.5", "steps=3"]
        branch = plan_branch(parent, checkpoint=2, overrides=overrides, command_id="first")
        start_branch(branch, path, SilentEvents())
        proposing(monkeypatch, lower(1e-5))
        proposal, _ = self.of(path, [treatment])
        assert proposal is not None
        assert proposal.checkpoint == 1
        assert proposal.settings == {
            "loss.entropy_coef": 0.5,
            "reward.shaping": [],
            "optim.lr": 1e-5,
        }
        assert proposal.why.startswith("What began at checkpoint 2 collapsed again")
        (checkpoint_path(parent, 1) / "optimizer.safetensors").write_bytes(b"")
        proposal, _ = self.of(path, [treatment])
        assert proposal is not None
        assert proposal.checkpoint == 0

    def test_a_rewind_to_before_the_run_is_carried_out_from_the_run_that_it_goes_on_from(
        self, collapsed: Path, tmp_path: Path
    ) -> None:
        """Only where a rewind made it: the settings of a person's branch are not lost."""
        shutil.copytree(collapsed, tmp_path / "run")
        path, overrides = tmp_path / "run-2", ["steps=3"]
        for command_id, steps in (("", []), ("first", [0, 1])):
            branch = plan_branch(
                tmp_path / "run", checkpoint=2, overrides=overrides, command_id=command_id
            )
            start_branch(branch, path, SilentEvents())
            assert [checkpoint_step(folder) for folder in checkpoints_before(path)] == steps
            if not steps:
                with pytest.raises(ConfigError, match="run-2 has no checkpoint of step 1"):
                    plan_branch(path, checkpoint=1)
                shutil.rmtree(path)
        settings = rewind_settings(1, {"optim.lr": 1e-5, "steps": 3})
        order = new_command(open_run(path).run_id, CommandAction.REWIND, settings=settings)
        post(path, order)
        assert go_on(path, SilentEvents(), "finished") == (tmp_path / "run-3", "finished")
        info = open_run(tmp_path / "run-3").info()
        assert (info.parent_run_id, info.config["branched_from"]["step"]) == ("run", 1)
        assert [t["checkpoint"] for t in info.config["branched_from"]["treatments"]] == [2, 1]
        assert last_of_line(path) == tmp_path / "run-3"

    def test_a_run_that_collapses_in_its_first_steps_goes_back_to_its_start(
        self, collapsed: Path
    ) -> None:
        proposal, _ = self.of(collapsed)
        assert proposal is not None
        assert proposal.checkpoint == 0


def test_it_says_once_that_it_waits(collapsed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "may_come_back", lambda *_: True)
    messages: list[str] = []
    watch, config = guard.Guard(run_path=collapsed, run_id="run", say=messages.append), collapsing()
    for _ in range(2):
        assert watch.commands(["non_finite-00000001"], config) == []
    assert messages == [
        "guard: non-finite numbers (after step 4): no treatment yet, since healthy runs often "
        "recover."
    ]


def test_a_run_that_succeeds_goes_on_where_nothing_is_known(
    collapsed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false alarm at 90 % of the best success ended a healthy run."""
    proposing(monkeypatch)
    messages: list[str] = []
    config, critical = collapsing("guard=auto"), ["non_finite-00000001"]
    for success, is_ended in (({0: 1.0, 4: 0.9}, False), ({0: 1.0, 4: 0.7}, True)):
        monkeypatch.setattr(guard, "evaluation_success", lambda _, rates=success: rates)
        watch = guard.Guard(run_path=collapsed, run_id="run", say=messages.append)
        assert bool(watch.commands(critical, config)) is is_ended
    assert messages[0].endswith("The run goes on: success is 90 % of its best.")


def test_a_guard_that_cannot_treat_ends_the_run_and_says_how_to_go_on(
    collapsed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, lower(1e-5))
    messages: list[str] = []
    watch = guard.Guard(run_path=collapsed, run_id="run", say=messages.append)
    origin = plan_branch(collapsed, checkpoint=2, command_id="x").config.branched_from
    assert origin is not None
    tried = [given(1e-4 / n, 1e-3, 0) for n in (1, 2)]
    origin = origin.model_copy(update={"treatments": tried, "step": 0})
    config = collapsing("guard.mode=auto", "guard.max=2")
    config = config.model_copy(update={"branched_from": origin})
    assert watch.commands(["non_finite-00000001"], config) == []  # the treatment settles
    monkeypatch.setattr(guard, "SETTLING_STEPS", 2)
    (command,) = watch.commands(["non_finite-00000001"], config)
    assert (command.action, command.issued_by) == (CommandAction.STOP, "alarm NON_FINITE")
    assert command.reason.endswith("2 treatments were given, which is guard.max.")
    assert messages[0].endswith("guard.mode=off` goes on without a guard.")
    assert watch.commands(["non_finite-00000001"], config) == []


@pytest.mark.parametrize(
    ("rule", "metric", "after", "later", "waits"),
    [
        ("LOW_SUCCESS", SUCCESS, 9, [0.4], True),
        ("LOW_SUCCESS", SUCCESS, 10, [], False),
        ("LOW_SUCCESS", SUCCESS, 10, [0.4, 0.5], False),
        ("LOW_SUCCESS", SUCCESS, 10, [0.4, 0.6], True),
        ("LOW_SUCCESS", SUCCESS, 15, [0.4, 0.6, 0.6], False),
        ("LOW_SUCCESS", SUCCESS, 15, [0.4, 0.7, 0.65], True),
        ("LOW_SUCCESS", "rollout/success_rate", 10, [0.4, 0.6], True),
        ("TRAIN_EVAL_DIVERGENCE", SUCCESS, 9, [], True),
        ("FORMAT_COLLAPSE", "eval/all/action_valid_frac", 9, [0.4], True),
        ("FORMAT_COLLAPSE", "eval/all/action_valid_frac", 9, [0.3], False),
        ("FORMAT_COLLAPSE", "eval/all/action_valid_frac", 10, [0.4, 0.5], False),
        ("FORMAT_COLLAPSE", "eval/all/action_valid_frac", 15, [0.4, 0.7, 0.65], True),
        ("FORMAT_COLLAPSE", "rollout/action_valid_frac", 0, [], True),
        ("FORMAT_COLLAPSE", "rollout/action_valid_frac", 5, [0.3], False),
        ("NON_FINITE", "loss/total", 0, [], False),
    ],
)
def test_what_may_end_by_itself_has_ten_steps_and_more_while_success_comes_back(
    rule: str, metric: str, after: int, later: list[float], waits: bool
) -> None:
    """Success was 50 % at the alarm, after step 45; its best was 80 %."""
    alarm = replace(DIP, rule=rule, metric=metric)
    success = {40: 0.8, 45: 0.5} | {50 + 5 * i: rate for i, rate in enumerate(later)}
    assert may_come_back(alarm, 45 + after, success) is waits


@pytest.mark.parametrize("success", [{}, {0: 0.2, 40: 0.9}], ids=["none", "before the alarm"])
def test_without_an_evaluation_since_the_alarm_nothing_shows_that_success_comes_back(
    success: dict[int, float],
) -> None:
    alarm = replace(DIP, metric="rollout/success_rate")
    assert may_come_back(alarm, 54, success)
    assert not may_come_back(alarm, 55, success)
    assert share_left(success, 45) == 0


def test_a_guard_is_refused_where_the_process_ends_with_the_run(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"guard\.mode is ask, .* trainer\.launcher=ray ends it"):
        make_config("guard=ask", "trainer.launcher=ray")
    monkeypatch.setattr(build, "launched_size", lambda: 2)
    builder = build.Builder(make_config("guard=auto"), tmp_path / "run", SilentEvents())
    with pytest.raises(ConfigError, match=r"torchrun ends it with the run: set guard\.mode=off"):
        builder.check()


def test_a_guard_needs_alarms(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"guard\.mode is auto, which acts on alarms"):
        make_config("guard=auto", "diagnostics.enabled=false")
