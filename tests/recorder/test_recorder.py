"""Another trainer's loop: what it records is kept, judged and told; what it is told, it does."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

import echoscope
from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.recorder import recorder as recorder_module
from echoscope.recorder.recorder import Recorder, numbers_of
from echoscope.store.errors import StoreError, StoreWriteError
from echoscope.store.log.verify import verify
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import CommandOutcome, Split
from echoscope.store.steer.commands import new_command, post
from echoscope.store.steer.settings import live_settings
from echoscope.store.writer import RunWriter

LR = {"lr": {"type": "number", "exclusiveMinimum": 0, "value": 1e-5}}


REPLY = "<think>so</think><answer>left</answer>"


def messages(task: int, reply: str = REPLY) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "You play."},
        {"role": "user", "content": f"task {task}"},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "hit"},
        {"role": "assistant", "content": "done"},
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "foreign"


@pytest.fixture
def recorded(path: Path) -> RunReader:
    with echoscope.Recorder(path, config={"algo": "mine"}, total_steps=2) as recorder:
        for step in (1, 2):
            for task in (0, 1):
                for sibling in (0, 1, 2):
                    recorder.episode(
                        messages(task),
                        reward=float(sibling == task),
                        group=task,
                        success=sibling == task,
                        env="mine",
                        judge="strict",
                    )
            recorder.step(step, {"actor/entropy": 0.5 / step, "loss": 0.1})
    return open_run(path)


def test_a_run_is_whole(recorded: RunReader, path: Path) -> None:
    info = recorded.info()
    assert (info.status, info.last_step, info.config["algo"]) == ("finished", 2, "mine")
    assert verify(path).problems == ()


def test_turns_groups_and_rewards_are_where_they_belong(recorded: RunReader) -> None:
    rows = recorded.trajectories_of_step(1)
    assert [(t.group_index, t.sibling_index) for t in rows] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    first = rows[0]
    assert first.split is Split.IMPORT
    assert [turn.response for turn in first.turns] == [
        "<think>so</think><answer>left</answer>",
        "done",
    ]
    assert [turn.reward for turn in first.turns] == [0.0, 1.0]
    assert [turn.observation for turn in first.turns] == ["task 0", "hit"]
    assert first.is_success is True
    assert '"judge": "strict"' in str(first.extra)


def test_numbers_have_their_own_names_and_ours(recorded: RunReader) -> None:
    rows = recorded.sql("SELECT key, value FROM metrics WHERE step = 2").to_pylist()
    values = {row["key"]: row["value"] for row in rows}
    assert values["actor/entropy"] == values["policy/entropy"] == 0.25
    assert values["loss"] == 0.1
    assert values["reward/return_mean"] == values["rollout/success_rate"] == pytest.approx(1 / 3)
    first = recorded.sql("SELECT key, value FROM metrics WHERE step = 1").to_pylist()
    assert {row["key"]: row["value"] for row in first}["text/sibling_distance"] == 0


def test_numbers_of_any_kind() -> None:
    import torch

    values = numbers_of(
        {
            "a": 1,
            "b": np.float32(2),
            "c": torch.tensor(3.0),
            "d": torch.ones(2),
            "e": "x",
            "f": None,
        }
    )
    assert values == {"a": 1.0, "b": 2.0, "c": 3.0}


# -- steering ------------------------------------------------------------------------------------


@pytest.fixture
def live(path: Path) -> Iterator[tuple[Recorder, list[Any]]]:
    settings: list[Any] = []
    recorder = Recorder(path, live=LR, on_set=settings.append, on_message=settings.append)
    yield recorder, settings
    recorder.close()


def send(path: Path, action: str, **more: Any) -> str:
    command = new_command(path.name, action, issued_by="anna", **more)
    post(path, command)
    return command.command_id


def answer(path: Path, command_id: str) -> tuple[CommandOutcome, str]:
    state = next(s for s in open_run(path).commands() if s.command.command_id == command_id)
    assert state.ack is not None
    return state.ack.outcome, state.ack.detail


def test_a_stop_is_obeyed_at_a_step_boundary(live: Any, path: Path) -> None:
    recorder, _ = live
    recorder.step(1)
    command = send(path, "stop")
    assert not recorder.should_stop
    wait_until(lambda: bool(recorder._steps.commands))
    recorder.step(2)
    assert recorder.should_stop
    recorder.close()
    assert open_run(path).info().status == "stopped"
    assert answer(path, command)[0] is CommandOutcome.APPLIED


def test_a_setting_is_checked_and_handed_over(live: Any, path: Path) -> None:
    recorder, settings = live
    good, bad = send(path, "set", settings={"lr": 1e-6}), send(path, "set", settings={"lr": -1.0})
    wait_until(lambda: len(recorder._steps.commands) == 2)
    recorder.step(1)
    assert settings[0] == {"lr": 1e-6}
    recorder.close()
    assert answer(path, good) == (CommandOutcome.APPLIED, "lr 1e-05 -> 1e-06")
    outcome, detail = answer(path, bad)
    assert outcome is CommandOutcome.REJECTED
    assert detail.startswith("lr is -1.0, but")


def test_what_a_trainer_cannot_do_is_refused_in_words(live: Any, path: Path) -> None:
    recorder, _ = live
    ids = [send(path, "checkpoint"), send(path, "evaluate")]
    wait_until(lambda: len(recorder._steps.commands) == 2)
    recorder.step(1)
    recorder.close()
    assert [answer(path, command_id) for command_id in ids] == [
        (CommandOutcome.REJECTED, "this trainer writes no checkpoint on demand"),
        (CommandOutcome.REJECTED, "this trainer evaluates by a schedule of its own"),
    ]


def test_a_pause_holds_the_loop_until_it_is_resumed(live: Any, path: Path) -> None:
    recorder, _ = live
    send(path, "pause")
    wait_until(lambda: bool(recorder._steps.commands))
    loop = threading.Thread(target=recorder.step, args=(1,))
    loop.start()
    wait_until(lambda: any(s.ack for s in open_run(path).commands()))
    assert loop.is_alive()
    send(path, "resume")
    loop.join(20)
    assert not loop.is_alive()


def test_a_hook_that_fails_is_an_answer(path: Path) -> None:
    def fail() -> None:
        raise OSError("no room")

    with Recorder(path, on_checkpoint=fail) as recorder:
        command = send(path, "checkpoint")
        wait_until(lambda: bool(recorder._steps.commands))
        recorder.step(1)
    outcome, detail = answer(path, command)
    assert outcome is CommandOutcome.REJECTED
    assert detail == "the trainer failed to obey: OSError: no room"


# -- alarms --------------------------------------------------------------------------------------


def test_an_alarm_stops_the_run(path: Path) -> None:
    reports: list[str] = []
    recorder = Recorder(
        path, alarms={"actions": {"ENTROPY_EXPLOSION": "stop"}}, on_message=reports.append
    )
    rows = [(step, values) for step, values in make("entropy_explosion", 0).table.rows() if step]
    for step, values in rows:
        recorder.step(step, values)
        assert recorder.flush()
        if recorder.should_stop:
            break
        time.sleep(
            0 if not any("critical" in line or "warning" in line for line in reports) else 0.6
        )
    assert recorder.should_stop
    assert step < rows[-1][0]
    recorder.close()
    assert open_run(path).info().status == "stopped"
    assert [a.rule for a in open_run(path).alarms() if a.rule == "ENTROPY_EXPLOSION"]


# -- what goes wrong -----------------------------------------------------------------------------


def test_a_full_disk_does_not_end_the_training(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    recorder = Recorder(path, on_message=reports.append)

    def full(*_: Any, **__: Any) -> None:
        raise StoreWriteError("No space left on device")

    monkeypatch.setattr(RunWriter, "commit_step", full)
    recorder.episode(messages(0))
    for step in (1, 2, 3):
        recorder.step(step, {"loss": 1.0})
    assert not recorder.flush()
    assert recorder.num_lost == 4  # three steps, and the episode of the first
    assert reports == ["recorder: StoreWriteError: No space left on device"]
    recorder.close()


@pytest.mark.parametrize(
    ("episode", "why"),
    [
        ({"messages": []}, "it has no message of the assistant"),
        ({"messages": [{"text": "x"}]}, "a message has no role"),
        ({"messages": None}, "messages is a NoneType, but must be a list of messages"),
        ({"messages": "hello"}, "messages is a str, but must be a list of messages"),
        ({"messages": messages(0), "turn_rewards": [1.0]}, "it has 2 replies, but 1 turn_rewards"),
        ({"messages": messages(0), "turn_rewards": 3}, "turn_rewards is 3, but must be a list of"),
        (
            {"messages": messages(0), "turn_rewards": [0.5, "a"]},
            "turn_rewards[1] is 'a', but must be one number",
        ),
        (
            {"messages": messages(0), "reward": 1.0, "turn_rewards": [0.5, 0.25]},
            "its reward is 1, but its turn_rewards add up to 0.75",
        ),
        ({"messages": messages(0), "reward": "good"}, "reward is 'good', but must be one number"),
        ({"messages": messages(0), "reward": [1, 2]}, "reward is [1, 2], but must be one number"),
        (
            {"messages": messages(0), "success": "yes"},
            "success is 'yes', but must be True, False or None",
        ),
        ({"messages": messages(0), "tokens": [3, 4]}, "tokens must be a list of TurnTokens"),
    ],
)
def test_an_episode_that_is_none_is_said_and_the_others_are_kept(
    episode: dict[str, Any], why: str, path: Path
) -> None:
    reports: list[str] = []
    with Recorder(path, on_message=reports.append) as recorder:
        recorder.episode(**episode)
        recorder.episode(messages(1), reward=1.0)
        recorder.step(1)
    (line,) = reports
    assert line.startswith(f"recorder: step 1: 1 episode was not written: {why}")
    assert recorder.num_lost == 1
    assert len(open_run(path).trajectories_of_step(1)) == 1


def test_what_an_argument_may_be(path: Path) -> None:
    import torch

    odd: dict[str, Any] = {"reward": torch.tensor([2.0]), "env": None, "success": np.bool_(True)}
    with Recorder(path) as recorder:
        recorder.episode(messages(0), **odd)
        recorder.episode(messages(0), reward=0.75, turn_rewards=[None, 0.5])
        recorder.episode(messages(0), reward=0.75, turn_rewards=np.array([0.25, 0.5]))
        recorder.step(np.int64(1))
    first, unknown, whole = open_run(path).trajectories_of_step(1)
    assert (first.episode_return, first.is_success, first.env_id) == (2.0, True, "")
    assert math.isnan(unknown.turns[0].reward)
    assert [turn.reward for turn in whole.turns] == [0.25, 0.5]


def test_episodes_after_the_last_step_are_counted(path: Path) -> None:
    reports: list[str] = []
    with Recorder(path, on_message=reports.append) as recorder:
        recorder.step(1)
        recorder.episode(messages(0))
    assert recorder.num_lost == 1
    assert reports == [
        "recorder: 1 episode after the last step: not written, because no step followed"
    ]


def test_episodes_that_no_step_ends_are_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_STEP_EPISODES", 3)
    reports: list[str] = []
    with Recorder(path, on_message=reports.append) as recorder:
        for _ in range(5):
            recorder.episode(messages(0))
        recorder.step(1)
        recorder.episode(messages(0))
        recorder.step(2)
    assert recorder.num_lost == 2
    assert reports == [
        "recorder: 3 episodes without a call of step: further episodes are dropped until step is "
        "called"
    ]
    assert [len(open_run(path).trajectories_of_step(step)) for step in (1, 2)] == [3, 1]


def test_a_writing_thread_that_is_held_up_holds_up_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message of the thread waits, as a disk that hangs would."""
    monkeypatch.setattr(recorder_module, "MAX_WAITING", 4)
    goes_on, reports = threading.Event(), []

    def wait(text: str) -> None:
        reports.append(text)
        if "step 1" in text:
            goes_on.wait(20)

    recorder = Recorder(path, on_message=wait)
    recorder.episode([])
    recorder.step(1)
    wait_until(lambda: bool(reports))
    for step in (2, 3):
        for _ in range(4):
            recorder.episode(messages(0))
        recorder.step(step, {"loss": 1.0})
    assert recorder.problem == "the disk is too slow: 4 calls wait; episodes are dropped"
    goes_on.set()
    recorder.close()
    assert recorder.num_lost == 1 + 4  # the empty one of step 1, and those of step 3
    run = open_run(path)
    assert [len(run.trajectories_of_step(step)) for step in (1, 2, 3)] == [0, 4, 0]
    rows = run.sql("SELECT step FROM metrics WHERE key = 'loss' ORDER BY step").to_pylist()
    assert [row["step"] for row in rows] == [2, 3]


def test_steps_count_up(path: Path) -> None:
    with Recorder(path) as recorder:
        recorder.step(3)
        with pytest.raises(ValueError, match="step is 3, but must come after step 3"):
            recorder.step(3)


def test_an_exception_of_the_loop_is_a_failed_run(path: Path) -> None:
    def loop() -> None:
        with Recorder(path) as recorder:
            recorder.step(1)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        loop()
    assert open_run(path).info().status == "failed"


def test_a_trainer_that_goes_back_to_a_checkpoint_replaces_its_steps(path: Path) -> None:
    for first, value in ((1, 1.0), (3, 2.0)):
        with Recorder(path) as recorder:
            for step in range(first, first + 4):
                recorder.step(step, {"loss": value})
    rows = (
        open_run(path)
        .sql("SELECT step, value FROM metrics WHERE key = 'loss' ORDER BY step")
        .to_pylist()
    )
    assert [(row["step"], row["value"]) for row in rows] == [
        (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0), (6, 2.0),
    ]  # fmt: skip


def test_a_folder_that_holds_something_else_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(StoreError):
        Recorder(path)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"imported": {"trainer": "verl"}}, "was imported from verl; record into another folder"),
        ({"steps": 3}, "holds a run that Echoscope trained itself; record into another folder"),
    ],
)
def test_a_run_that_no_recorder_wrote_is_refused(
    config: dict[str, Any], why: str, path: Path
) -> None:
    RunWriter.create(path, run_id=path.name, name="other", config=config).close(status="finished")
    with pytest.raises(StoreError, match=why):
        Recorder(path)


def test_what_is_replaced_is_said_once(path: Path) -> None:
    with Recorder(path) as recorder:
        for step in (1, 2, 3):
            recorder.step(step, {"loss": 1.0})
    reports: list[str] = []
    with Recorder(path, on_message=reports.append) as recorder:
        recorder.step(2)
        recorder.step(3)
    assert reports == [f"{path} holds a run of 3 steps; steps from 2 on are replaced"]


def test_two_processes_in_one_folder_the_second_records_nothing(path: Path) -> None:
    reports: list[str] = []
    with Recorder(path) as recorder:
        recorder.step(1, {"loss": 1.0})
        assert recorder.flush()
        two = Recorder(path, on_message=reports.append)
        two.step(2, {"loss": 2.0})
        assert not two.flush()
        recorder.step(2, {"loss": 1.0})
    two.step(3, {"loss": 2.0})
    two.close()
    assert (two.num_lost, len(reports)) == (2, 1)
    assert "RunBusyError" in two.problem
    rows = open_run(path).sql("SELECT value FROM metrics WHERE key = 'loss'").to_pylist()
    assert [row["value"] for row in rows] == [1.0, 1.0]


def test_a_closed_recorder_takes_nothing(path: Path) -> None:
    recorder = Recorder(path)
    recorder.close()
    with pytest.raises(ValueError, match="the recorder is closed"):
        recorder.episode(messages(0))
    with pytest.raises(ValueError, match="the recorder is closed"):
        recorder.step(1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"alarms": {"actoins": {"LOW_SUCCESS": "stop"}}},
            "unknown key 'alarms.actoins'; did you mean 'actions'?",
        ),
        (
            {"alarms": {"actions": {"LOW_SUCESS": "stop"}}},
            "unknown key 'alarms.actions.LOW_SUCESS'; did you mean 'LOW_SUCCESS'?",
        ),
        (
            {"notify": {"targets": ["slack:https://secret"]}},
            "a target of notify is an address, but must be desktop, command:COMMAND, or slack:, "
            "discord:, teams:, webhook: or apprise: with the NAME of an environment variable that "
            "holds the address, such as slack:SLACK_HOOK; run: export SLACK_HOOK=ADDRESS",
        ),
        (
            {"notify": {"targets": ["slack:ECHOSCOPE_NOT_SET"]}},
            "the target slack takes its address from the environment variable ECHOSCOPE_NOT_SET, "
            "which is not set; run: export ECHOSCOPE_NOT_SET=ADDRESS",
        ),
        ({"notify": {"targets": "desktop"}}, "notify.targets is a str, but must be a list"),
        (
            {"notify": {"dashboard_url": "gpu:8501"}},
            "notify.dashboard_url is 'gpu:8501', but must be an address such as "
            "http://gpu-box:8501",
        ),
        ({"alarms": "stop"}, "alarms is 'stop', but must be a mapping"),
        ({"sinks": {"wndb": {}}}, "unknown key 'sinks.wndb'; did you mean 'wandb'?"),
        (
            {"scoring": {"budget_frac": 0.1}},
            "scoring= needs policy=, the model that is measured; without a policy leave scoring= "
            "out",
        ),
        ({"config": 3}, "config is 3, but must be a dict such as vars(args)"),
        ({"total_steps": 0}, "total_steps is 0, but must be a whole number above 0, or None"),
        ({"live": LR}, "live= needs on_set=, or nothing can be set from outside"),
        ({"on_set": print}, "on_set= needs live=, or nothing can be set from outside"),
        (
            {"live": {"lr": {"type": "number", "exclusiveMinimum": 0, "value": 0}}},
            "live['lr'] does not allow its own value: lr is 0, but must be more than 0",
        ),
        (
            {"live": {"lr": {"type": "numbr", "value": 0}}},
            "live['lr'] has the type 'numbr', but must have one of null, boolean, string, integer, "
            "number, array, object",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    settings: dict[str, Any], sentence: str, path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Recorder(path, **settings)
    assert not path.exists()


@pytest.mark.parametrize("step", ["1", 1.5, -1, None])
def test_a_step_is_a_number_that_counts(step: Any, path: Path) -> None:
    with Recorder(path) as recorder:
        with pytest.raises(
            ValueError, match=r"^step is .*, but must be a whole number, 0 or more$"
        ):
            recorder.step(step)
        with pytest.raises(ValueError, match=r"^metrics is \[3\], but must be a dict of numbers$"):
            recorder.step(1, [3])  # type: ignore[arg-type]
        recorder.step(1)


def test_a_configuration_of_any_objects_is_shown(path: Path) -> None:
    with Recorder(path, config={"out": Path("a/b"), "seeds": (1, 2), "betas": np.ones(2)}):
        pass
    config = open_run(path).info().config
    assert (config["out"], config["seeds"], config["betas"]) == ("a/b", [1, 2], [1.0, 1.0])


def test_a_reward_that_nobody_knows_stays_unknown(path: Path) -> None:
    with Recorder(path) as recorder:
        recorder.episode(messages(0))
        recorder.step(1)
    (trajectory,) = open_run(path).trajectories_of_step(1)
    assert math.isnan(trajectory.episode_return)


def test_advice_names_the_settings_of_the_trainer(path: Path) -> None:
    """`context.max_response_tokens` is ours; TRL's user does not have it."""
    rows = [{"completions/clipped_ratio": 1.0 if step > 20 else 0.0} for step in range(60)]
    with Recorder(path, config={"trainer": "TRL"}, on_message=lambda text: None) as recorder:
        for step, values in enumerate(rows, start=1):
            recorder.step(step, values)
    run = open_run(path)
    (advice,) = {a.advice for a in run.alarms() if a.rule == "LENGTH_SATURATION"}
    verdict = diagnose(path)
    assert "(`max_completion_length`)" in verdict.actions[0].text
    assert "context." not in verdict.text
    assert advice


def test_what_an_earlier_attempt_was_told_to_set_does_not_hold_in_the_next(path: Path) -> None:
    with Recorder(path, live=LR, on_set=lambda _: None) as recorder:
        recorder.step(1)
        send(path, "set", settings={"lr": 2e-5})
        wait_until(lambda: len(recorder._steps.commands) > 0)
        recorder.step(2)
        recorder.step(3)
    with Recorder(path, live=LR, on_set=lambda _: None) as recorder:
        recorder.step(4)
    held = live_settings(open_run(path))
    assert [held.at(step)["lr"] for step in (2, 3, 4)] == [1e-5, 2e-5, 1e-5]
