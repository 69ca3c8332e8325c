"""Steering at the step boundary: what each command asks of the loop, and how it is answered."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.run import control
from echoscope.core.run.control import (
    FIRST_SIGNAL,
    SECOND_SIGNAL,
    Control,
    StepInterruptedError,
    Wishes,
)
from echoscope.store.records import Command, CommandAck, CommandAction, SettingsRecord
from echoscope.store.steer.commands import Mailbox, new_command, post
from echoscope.store.steer.settings import overridden, replayed
from echoscope.store.steer.steering import NO_CHANGE
from echoscope.store.writer import RunWriter


@pytest.fixture
def config() -> RunConfig:
    return load_config(overrides=["envs.train=[{env: bandit}]", "envs.eval=[{env: bandit}]"])


class Desk:
    """A run's mailbox, the trainer's control of it, and what the control said."""

    def __init__(self, path: Path, replay: Sequence[tuple[int, Command]] = ()) -> None:
        self.path = path
        self.control = Control(Mailbox(path), "run", replay)
        self.acks: list[CommandAck] = []
        self.commands: list[Command] = []
        self.pauses: list[str] = []

    def post(self, action: str, ttl_s: float | None = 60, **settings: object) -> str:
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        command = new_command("run", action, settings=dotted, ttl_s=ttl_s)
        post(self.path, command)
        return command.command_id

    def boundary(self, step: int, config: RunConfig) -> Wishes:
        return self.control.boundary(
            step,
            config,
            on_acks=self._take_acks,
            on_pause=self.pauses.append,
        )

    def _take_acks(
        self,
        acks: Sequence[CommandAck],
        commands: Sequence[Command],
        settings: SettingsRecord | None,
    ) -> None:
        self.acks += acks
        self.commands += commands

    @property
    def answers(self) -> list[tuple[int, str, str]]:
        return [(ack.step, ack.outcome.value, ack.detail) for ack in self.acks]


@pytest.fixture
def run_path(tmp_path: Path) -> Iterator[Path]:
    with RunWriter.create(tmp_path / "run", run_id="run", config={}) as writer:
        yield writer.path


@pytest.fixture
def desk(run_path: Path) -> Desk:
    return Desk(run_path)


def test_without_commands_nothing_changes(desk: Desk, config: RunConfig) -> None:
    wishes = desk.boundary(1, config)
    assert wishes == Wishes(config=config)
    assert desk.answers == []


@pytest.mark.parametrize(
    ("action", "wish", "detail"),
    [
        ("stop", "stop", "stopping with a checkpoint"),
        ("stop_now", "stop_now", "stopping at once"),
        ("checkpoint", "checkpoint", "checkpoint"),
        ("evaluate", "evaluate", "evaluation runs with this step"),
    ],
)
def test_a_command_becomes_a_wish(
    desk: Desk, config: RunConfig, action: str, wish: str, detail: str
) -> None:
    identity = desk.post(action)
    wishes = desk.boundary(5, config)
    asked = {
        name for name in ("stop", "stop_now", "checkpoint", "evaluate") if vars_of(wishes)[name]
    }
    assert asked == {wish}
    assert desk.answers == [(5, "applied", detail)]
    assert [ack.command_id for ack in desk.acks] == [identity]
    assert [command.command_id for command in desk.commands] == [identity]


def vars_of(wishes: Wishes) -> dict[str, bool]:
    return {
        "stop": CommandAction.STOP in wishes.asked,
        "stop_now": CommandAction.STOP_NOW in wishes.asked,
        "checkpoint": CommandAction.CHECKPOINT in wishes.asked,
        "evaluate": CommandAction.EVALUATE in wishes.asked,
    }


def test_settings_apply_in_order_and_say_what_they_changed(desk: Desk, config: RunConfig) -> None:
    desk.post("set", optim__lr=0.5, steps=7)
    desk.post("set", optim__lr=0.25)
    wishes = desk.boundary(3, config)
    assert (wishes.config.optim.lr, wishes.config.steps) == (0.25, 7)
    assert desk.answers == [
        (3, "applied", "optim.lr 1e-06 -> 0.5, steps 100 -> 7"),
        (3, "applied", "optim.lr 0.5 -> 0.25"),
    ]


def test_settings_that_change_nothing_say_so(desk: Desk, config: RunConfig) -> None:
    desk.post("set", steps=100)
    assert desk.boundary(3, config).config == config
    assert desk.answers == [(3, "applied", f"{NO_CHANGE}steps is 100 already")]


def test_refused_settings_change_nothing_and_the_next_command_still_counts(
    desk: Desk, config: RunConfig
) -> None:
    desk.post("set", optim__lr=0.5, optim__lrr=1)
    desk.post("set", seed=3)
    desk.post("set", steps=7)
    wishes = desk.boundary(3, config)
    assert (wishes.config.optim.lr, wishes.config.steps) == (config.optim.lr, 7)
    details = [detail for _, _, detail in desk.answers]
    assert [outcome for _, outcome, _ in desk.answers] == ["rejected", "rejected", "applied"]
    assert details[0] == "unknown key 'optim.lrr'; did you mean 'optim.lr'?"
    assert details[1].startswith("seed cannot change while the run is going; live settings: ")


def test_an_evaluation_needs_something_to_evaluate_on(desk: Desk) -> None:
    desk.post("evaluate")
    config = load_config(overrides=["envs.train=[{env: bandit}]"])
    assert CommandAction.EVALUATE not in desk.boundary(1, config).asked
    assert desk.answers == [(1, "rejected", "the run has no environments under envs.eval")]


def test_an_expired_command_does_nothing(desk: Desk, config: RunConfig) -> None:
    desk.post("stop", ttl_s=-1)
    assert CommandAction.STOP not in desk.boundary(4, config).asked
    assert desk.answers == [(4, "expired", "it expired before the run could apply it")]


def test_a_command_that_expires_during_the_step_does_nothing(desk: Desk, config: RunConfig) -> None:
    desk.post("stop", ttl_s=0.05)
    assert not desk.control.should_abort()  # it was read, in time
    time.sleep(0.06)
    assert CommandAction.STOP not in desk.boundary(4, config).asked
    assert [(step, outcome) for step, outcome, _ in desk.answers] == [(4, "expired")]


def test_a_file_that_is_no_command_is_refused_once(desk: Desk, config: RunConfig) -> None:
    (desk.path / "commands" / "junk.json").write_text("{", encoding="utf-8")
    desk.boundary(1, config)
    desk.boundary(2, config)
    assert [(step, outcome) for step, outcome, _ in desk.answers] == [(1, "rejected")]
    assert desk.acks[0].command_id == "file:junk.json"


def test_each_command_is_applied_once(desk: Desk, config: RunConfig) -> None:
    desk.post("checkpoint")
    assert CommandAction.CHECKPOINT in desk.boundary(1, config).asked
    assert CommandAction.CHECKPOINT not in desk.boundary(2, config).asked
    assert len(desk.acks) == 1


# -- pausing -------------------------------------------------------------------------------------


def test_a_pause_holds_until_resume_and_says_who_paused(desk: Desk, config: RunConfig) -> None:
    post(desk.path, new_command("run", "pause", issued_by="ann"))

    def later() -> None:
        while not desk.acks:
            time.sleep(0.005)
        desk.post("set", steps=7)
        desk.post("evaluate")
        desk.post("resume")

    thread = threading.Thread(target=later)
    thread.start()
    wishes = desk.boundary(3, config)  # would not return without the thread
    thread.join()
    assert not desk.control.is_paused
    assert wishes.config.steps == 7
    assert CommandAction.EVALUATE in wishes.asked
    assert desk.pauses == ["ann"]
    assert [detail for _, _, detail in desk.answers] == [
        "paused",
        "steps 100 -> 7",
        "evaluation runs with this step",
        "resumed",
    ]


@pytest.mark.parametrize(
    ("action", "get"),
    [
        ("checkpoint", lambda wishes: CommandAction.CHECKPOINT in wishes.asked),
        ("stop", lambda wishes: CommandAction.STOP in wishes.asked),
        ("stop_now", lambda wishes: CommandAction.STOP_NOW in wishes.asked),
    ],
)
def test_what_a_paused_run_can_do_is_done_at_once(
    desk: Desk, config: RunConfig, action: str, get: Callable[[Wishes], bool]
) -> None:
    desk.post("pause")
    desk.post(action)
    assert get(desk.boundary(3, config))
    assert desk.control.is_paused


def test_pausing_twice_and_resuming_twice_change_nothing(desk: Desk, config: RunConfig) -> None:
    for action in ("pause", "pause", "resume", "resume"):
        desk.post(action)
    desk.boundary(3, config)
    assert [detail for _, _, detail in desk.answers] == [
        "paused",
        f"{NO_CHANGE}already paused",
        "resumed",
        f"{NO_CHANGE}was not paused",
    ]


# -- stopping at once, and from the terminal -----------------------------------------------------


def test_only_stop_now_drops_the_step_in_progress(desk: Desk) -> None:
    desk.post("stop")
    desk.post("pause")
    assert not desk.control.should_abort()
    desk.post("stop_now")
    assert desk.control.should_abort()


@pytest.mark.parametrize("action", ["stop", "stop_now"])
def test_a_stop_that_waits_is_known_before_the_boundary(desk: Desk, action: str) -> None:
    desk.post("pause")
    assert not desk.control.is_stopping()
    desk.control.request(CommandAction(action), "SIGTERM in the terminal")
    assert desk.control.is_stopping()


def test_the_first_signal_stops_the_second_stops_at_once(desk: Desk, config: RunConfig) -> None:
    messages: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with desk.control.signals(messages.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert not desk.control.should_abort()
        os.kill(os.getpid(), signal.SIGTERM)
        assert desk.control.should_abort()
    assert signal.getsignal(signal.SIGINT) is before
    wishes = desk.boundary(3, config)
    assert CommandAction.STOP in wishes.asked
    assert CommandAction.STOP_NOW in wishes.asked
    assert [command.reason for command in desk.commands] == [
        "SIGINT in the terminal",
        "second SIGTERM in the terminal",
    ]
    assert messages == [FIRST_SIGNAL, SECOND_SIGNAL]


@pytest.fixture
def usual_hangup() -> Iterator[None]:
    """SIGHUP has its usual meaning, whatever the tests were started from."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_stops_with_a_checkpoint_and_never_at_once(
    desk: Desk, config: RunConfig, usual_hangup: None
) -> None:
    """Kernel and shell both send SIGHUP, and a service manager SIGTERM before it."""
    messages: list[str] = []
    with desk.control.signals(messages.append):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not desk.control.should_abort()
    wishes = desk.boundary(3, config)
    assert wishes.asked == {CommandAction.STOP}
    assert messages == [FIRST_SIGNAL]


def test_nohup_keeps_its_word(desk: Desk) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with desk.control.signals(lambda text: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_cuts_into_a_hanging_environment(desk: Desk) -> None:
    """An environment that swallows every Exception cannot swallow this one."""
    with desk.control.signals(lambda text: None):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StepInterruptedError):
            hang(desk)
        assert desk.control.should_abort()


def hang(desk: Desk) -> None:
    with desk.control.droppable(), contextlib.suppress(Exception):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)


class ToldError(Exception):
    """The terminal was told of a signal."""


@pytest.mark.timeout(60)
def test_a_signal_that_ends_no_call_is_handled_all_the_same(desk: Desk) -> None:
    """As one that comes just before the call; here another thread takes it."""

    def tell(text: str) -> None:
        raise ToldError(text)

    def take() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with desk.control.signals(tell):
        thread = threading.Timer(0.5, take)
        thread.start()
        with pytest.raises(ToldError):
            time.sleep(3600)
        thread.join()


def test_a_signal_while_the_same_stream_is_written_is_told_all_the_same(
    desk: Desk, capfd: pytest.CaptureFixture[str]
) -> None:
    def reentrant(text: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    with desk.control.signals(reentrant):
        os.kill(os.getpid(), signal.SIGINT)
    assert capfd.readouterr().err == f"{FIRST_SIGNAL}\n"


def test_late_commands_are_refused_with_the_reason(desk: Desk) -> None:
    identity = desk.post("set", steps=7)
    desk.post("stop", ttl_s=-1)
    acks, commands = desk.control.refuse_waiting(9, "the run is finished")
    answers = {ack.command_id: (ack.step, ack.outcome.value, ack.detail) for ack in acks}
    assert answers[identity] == (9, "rejected", "the run is finished")
    assert sorted(outcome for _, outcome, _ in answers.values()) == ["expired", "rejected"]
    assert [command.command_id for command in commands] == [identity]


# -- after a crash -------------------------------------------------------------------------------


def setting(**settings: object) -> Command:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return new_command("run", CommandAction.SET, settings=dotted)


def short(replay: Sequence[tuple[int, Command]]) -> list[tuple[int, object]]:
    return [(step, dict(c.settings) if c.settings else c.action.value) for step, c in replay]


def test_settings_and_evaluations_after_the_checkpoint_come_back() -> None:
    applied = [
        (3, setting(steps=30)),
        (5, setting(steps=50)),
        (5, new_command("run", "pause")),
        (6, new_command("run", "evaluate")),
        (7, new_command("run", "stop")),
        (7, new_command("run", "checkpoint")),
    ]
    assert short(replayed(applied, after=4)) == [(5, {"steps": 50}), (6, "evaluate")]


def test_what_took_effect_at_the_checkpoint_s_own_step_is_in_it_and_is_not_replayed() -> None:
    applied = [(4, setting(steps=30)), (4, new_command("run", "evaluate")), (5, setting(steps=50))]
    assert short(replayed(applied, after=4)) == [(5, {"steps": 50})]


def test_replayed_settings_apply_at_their_step_and_are_not_answered_again(
    run_path: Path, config: RunConfig
) -> None:
    desk = Desk(run_path, replay=[(3, setting(steps=7)), (4, new_command("run", "evaluate"))])
    config = desk.boundary(2, config).config
    assert config.steps == 100
    config = desk.boundary(3, config).config
    assert config.steps == 7
    wishes = desk.boundary(4, config)
    assert CommandAction.EVALUATE in wishes.asked
    assert wishes.config.steps == 7
    assert desk.answers == []


def test_a_newer_setting_is_not_turned_back_by_an_older_one(
    run_path: Path, config: RunConfig
) -> None:
    """The first attempt set two things at step 6; the second one set one of them at step 5."""
    old = setting(steps=7, optim__lr=0.5)
    desk = Desk(run_path, replay=[(6, old)])
    desk.post("set", steps=9)
    config = desk.boundary(5, config).config
    config = desk.boundary(6, config).config
    assert (config.steps, config.optim.lr) == (9, 0.5)
    # A third attempt knows both from the journal, and does the same.
    assert short(replayed([(6, old), (5, desk.commands[0])], after=4)) == [
        (5, {"steps": 9}),
        (6, {"optim.lr": 0.5}),
    ]


def test_an_older_setting_before_the_newer_one_stays() -> None:
    replay = [(3, setting(steps=3)), (6, setting(steps=6))]
    assert short(overridden(replay, 5, setting(steps=5))) == [(3, {"steps": 3})]


def test_a_stop_now_cuts_into_a_hanging_environment(desk: Desk) -> None:
    """The command is read beside the call, because the main thread never comes back to read it."""
    desk.post("stop_now")
    with (
        desk.control.signals(lambda text: None),
        pytest.raises(StepInterruptedError),
        desk.control.droppable(),
    ):
        threading.Event().wait()


def test_a_stop_drops_a_step_whose_episodes_take_longer_than_it_waits(
    desk: Desk, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PATIENCE_S", 0.3)
    desk.post("stop")
    with (
        desk.control.signals(lambda text: None),
        pytest.raises(StepInterruptedError),
        desk.control.droppable(),
    ):
        threading.Event().wait()
    assert CommandAction.STOP_NOW in desk.boundary(1, config).asked


def test_other_commands_wait_for_the_step(desk: Desk, config: RunConfig) -> None:
    """What the watching thread read is answered at the boundary, once."""
    with desk.control.signals(lambda text: None), desk.control.droppable():
        command = desk.post("stop")
        while not desk.control._waiting:
            threading.Event().wait(0.01)
    assert CommandAction.STOP in desk.boundary(1, config).asked
    assert [ack.command_id for ack in desk.acks] == [command]
