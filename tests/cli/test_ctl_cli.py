"""Steering a live run from another process: every command is answered, with its step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded import metric
from trainer_process import PATIENCE_S, TrainerProcess, echoscope
from waiting import wait_until

from echoscope.core.config.loading import live_schema
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.checkpoint import list_checkpoints, read_state
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

Type = Callable[..., Any]


class Live:
    """A run that trains in another process, and `ctl` on it."""

    def __init__(
        self,
        path: Path,
        config: Path,
        type_command: Type,
        *arguments: str,
        ready: str = "step    1/",
    ) -> None:
        self.path, self._type = path, type_command
        self.trainer = TrainerProcess(
            path.with_suffix(".log"),
            echoscope,
            *("train", "--headless", "-o", str(path), "--config", str(config)),
            *(
                "steps=100000",
                "eval.every=0",
                "eval.before=false",
                "checkpoint.every=0",
                *arguments,
            ),
        )
        self.trainer.wait_for(ready)

    def ctl(self, *arguments: object) -> dict[str, Any]:
        """The answer as JSON, with the exit code."""
        answer = self._type("ctl", self.path, *arguments, "--json")
        assert answer.out, answer.err
        return json.loads(answer.out) | {"code": answer.code}


@pytest.fixture
def live(tmp_path: Path, config_file: Path, type_command: Type) -> Iterator[Callable[..., Live]]:
    started: list[Live] = []

    def start(*arguments: str, **options: str) -> Live:
        path = tmp_path / f"run{len(started)}"
        started.append(Live(path, config_file, type_command, *arguments, **options))
        return started[-1]

    yield start
    for run in started:
        run.trainer.kill()


def test_a_live_run_obeys_at_the_next_step(live: Callable[..., Live]) -> None:
    run = live()

    done = run.ctl("set", "optim.lr=0.5", "selection.strategy=top_k_abs", "selection.value=1")
    assert (done["code"], done["outcome"], done["changed"]) == (0, "applied", True)
    assert done["detail"].startswith("optim.lr 0.001 -> 0.5, selection.strategy none -> top_k_abs")
    changed_at = done["step"]

    again = run.ctl("set", "optim.lr=0.5")
    assert (again["code"], again["outcome"], again["changed"]) == (0, "applied", False)

    refused = run.ctl("set", "optim.lrr=1", "optim.lr=0.25")
    assert (refused["code"], refused["outcome"], refused["changed"]) == (2, "not_sent", False)
    assert refused["detail"] == (
        "'optim.lrr' is not a setting that can change during the run; did you mean 'optim.lr'?"
    )

    paused = run.ctl("pause", "--reason", "look at it")
    assert (paused["code"], paused["detail"], paused["changed"]) == (0, "paused", True)
    assert run.ctl("pause")["changed"] is False
    assert run.ctl("evaluate")["step"] == paused["step"]

    saved = run.ctl("checkpoint")
    assert (saved["code"], saved["step"]) == (0, paused["step"])  # a paused run stands still
    (checkpoint,) = wait_until(lambda: list_checkpoints(run.path), PATIENCE_S)
    assert read_state(checkpoint).step == paused["step"] - 1
    assert read_state(checkpoint).config.optim.lr == 0.5

    where = run.ctl("status")
    assert (where["status"], where["step"]) == ("paused", paused["step"] - 1)
    assert where["num_commands_waiting"] == 0

    resumed = run.ctl("resume")
    assert (resumed["code"], resumed["step"], resumed["changed"]) == (0, paused["step"], True)
    assert run.ctl("resume")["changed"] is False

    stopped = run.ctl("stop")
    assert (stopped["code"], stopped["outcome"]) == (0, "applied")
    assert run.trainer.join() == 0

    info = open_run(run.path).info()
    assert (info.status, info.last_step) == ("stopped", stopped["step"] - 1)
    assert read_state(list_checkpoints(run.path)[-1]).step == info.last_step
    lrs = metric(run.path, "optim/lr")
    assert {lrs[step] for step in range(1, changed_at)} <= {0.001}
    assert {lrs[step] for step in range(changed_at, info.last_step + 1)} == {0.5}
    kept = metric(run.path, "selection/num_groups_kept")
    assert kept[changed_at] == 1
    evaluated = metric(run.path, "eval/frozen_lake/success_rate", phase="eval")
    assert list(evaluated) == [paused["step"]]
    states = open_run(run.path).commands()
    assert all(state.ack is not None for state in states)
    assert [s.command.reason for s in states if s.command.reason] == ["look at it"]
    assert verify(run.path).problems == ()


def test_stop_now_drops_the_step_in_progress(live: Callable[..., Live]) -> None:
    """Episodes of two hundred turns: the first step is still going when the command comes."""
    run = live("envs.train.0.max_turns=200", "context.max_prompt_tokens=2000", ready="run ")
    answer = run.ctl("stop", "--now")
    assert (answer["code"], answer["outcome"]) == (0, "applied")
    assert (answer["step"], answer["detail"]) == (1, "stopping at once")
    assert run.trainer.join() == 0
    info = open_run(run.path).info()
    assert (info.status, info.last_step) == ("stopped", -1)
    assert list_checkpoints(run.path) == []
    assert verify(run.path).problems == ()


@pytest.mark.long
def test_commands_in_a_process_of_their_own(live: Callable[..., Live]) -> None:
    run = live()

    def ctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "echoscope", "ctl", str(run.path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    refused = ctl("set", "seed=3")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(
        "set not sent: 'seed' is not a setting that can change during the run; known: "
    )
    done = ctl("stop")
    assert done.returncode == 0
    assert done.stdout.startswith("stop: applied after step ")
    assert run.trainer.join() == 0


def test_without_waiting_the_command_is_only_sent(live: Callable[..., Live]) -> None:
    run = live()
    answer = run.ctl("stop", "--wait", "0")
    assert (answer["code"], answer["outcome"], answer["changed"]) == (0, "sent", False)
    assert run.trainer.join() == 0
    (state,) = open_run(run.path).commands()
    assert state.command.command_id == answer["command_id"]
    assert state.ack is not None


def test_an_expired_command_is_answered_and_does_nothing(live: Callable[..., Live]) -> None:
    run = live()
    command = new_command(open_run(run.path).run_id, "stop", ttl_s=-1)
    post(run.path, command)

    def answer() -> Any:
        states = open_run(run.path).commands()
        return states and states[0].ack

    ack = wait_until(answer, PATIENCE_S)
    assert ack.outcome.value == "expired"
    assert run.trainer.is_alive
    assert run.ctl("stop")["outcome"] == "applied"
    assert run.trainer.join() == 0


# -- runs that do not train ----------------------------------------------------------------------


@pytest.fixture
def ended(tmp_path: Path, make_config: Callable[..., RunConfig]) -> Path:
    config = make_config()
    writer = RunWriter.create(
        tmp_path / "ended",
        run_id="ended",
        config=config.model_dump(mode="json"),
        live_knobs=live_schema(config),
    )
    writer.close(status="finished")
    return tmp_path / "ended"


@pytest.mark.parametrize(
    "arguments",
    [("pause",), ("resume",), ("stop",), ("checkpoint",), ("evaluate",), ("set", "steps=9")],
)
def test_a_finished_run_cannot_be_steered(
    ended: Path, type_command: Type, arguments: tuple[str, ...]
) -> None:
    answer = type_command("ctl", ended, *arguments)
    assert answer.code == 1
    branch = f". To change settings, branch: echoscope ctl {ended} branch steps=9"
    advice = branch if arguments[0] == "set" else ""
    assert answer.err == f"{arguments[0]} not sent: the run is finished{advice}\n"
    assert list((ended / "commands").iterdir()) == []


def test_a_run_that_did_not_finish_is_resumed_with_new_settings(
    tmp_path: Path, make_config: Callable[..., RunConfig], type_command: Type
) -> None:
    config = make_config().model_dump(mode="json")
    RunWriter.create(tmp_path / "r", run_id="r", config=config).close(status="stopped")
    answer = type_command("ctl", tmp_path / "r", "set", "optim.lr=1e-4")
    command = f"echoscope train --resume {tmp_path / 'r'} optim.lr=0.0001"
    assert (
        answer.err == f"set not sent: the run is stopped. To go on with these settings: {command}\n"
    )


def test_a_hint_can_be_typed_as_it_stands(ended: Path, type_command: Type) -> None:
    for name in ("branch", "set", "pause"):
        answer = type_command("ctl", ended, name, "--bogus")
        assert answer.code == 2
        assert f" ctl {ended} {name} -h' for help." in answer.err
        assert f" ctl {ended} {name} " in type_command("ctl", ended, name, "-h").out
    spaced = ended.with_name("two words")
    assert f" ctl '{spaced}' set -h' for" in type_command("ctl", spaced, "set", "--bogus").err


def test_nobody_answers_for_a_trainer_that_hangs(ended: Path, type_command: Type) -> None:
    with RunWriter.resume(ended, from_step=-1):
        answer = type_command("ctl", ended, "pause", "--wait", "0.2", "--json")
    assert answer.code == 4
    assert json.loads(answer.out)["outcome"] == "sent"


def test_ctl_warns_of_a_setting_without_effect_and_sends_it(
    ended: Path, type_command: Type
) -> None:
    arguments = ("ctl", ended, "set", "selection.value=0.5", "--wait", "0")
    with RunWriter.resume(ended, from_step=-1):
        text, answer = type_command(*arguments), type_command(*arguments, "--json")
    assert text.code == 0
    assert text.err.startswith("warning: selection.value=0.5 has no effect: selection.strategy is")
    (warning,) = json.loads(answer.out)["warnings"]
    assert text.err == f"warning: {warning}\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["selection.valu=0.5"],
            "'selection.valu' is not a setting that can change during the run",
        ),
        (["selection.valu=0.5"], "did you mean 'selection.value'?"),
        (["selection.value=banana"], "selection.value is 'banana', but must be a number"),
        (["optim.lr=-1"], "optim.lr is -1, but must be"),
        (["seed=3"], "'seed' is not a setting that can change during the run"),
        (["optim.lr=0.5", "seed=3"], "'seed' is not a setting that can change during the run"),
        (["optim.lr=1e999"], "optim.lr is inf, but must be finite"),
        (["optim.lr=.nan"], "optim.lr is nan, but must be finite"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--wait", "0"]])
def test_what_cannot_be_right_is_refused_before_it_is_sent(
    ended: Path, type_command: Type, arguments: list[str], why: str, flags: list[str]
) -> None:
    with RunWriter.resume(ended, from_step=-1):
        answer = type_command("ctl", ended, "set", *arguments, *flags)
    assert (answer.code, answer.out) == (2, "")
    assert why in answer.err
    assert list((ended / "commands").iterdir()) == []


def test_a_number_that_is_none_is_no_advice_either(ended: Path, type_command: Type) -> None:
    answer = type_command("ctl", ended, "set", "optim.lr=1e999")
    assert answer.code == 2
    assert "optim.lr is inf, but must be finite" in answer.err
    assert "branch" not in answer.err


def test_status_in_words_counts_changed_steps(ended: Path, type_command: Type) -> None:
    assert type_command("ctl", ended, "status").out == "ended: finished, step -1 of 4\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "optim.lr"), "'optim.lr' is not KEY=VALUE; write for example optim.lr=1e-4"),
        (("set", "optim.lr=["), "the value in 'optim.lr=[' is not valid YAML; quote it"),
    ],
)
def test_bad_words_are_one_line(
    ended: Path, type_command: Type, arguments: tuple[str, ...], message: str
) -> None:
    answer = type_command("ctl", ended, *arguments)
    assert (answer.code, answer.out, answer.err) == (1, "", f"error: {message}\n")


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path, type_command: Type) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        answer = type_command("ctl", path, "status")
        assert answer.code == 1
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1


def test_usage_mistakes_have_exit_code_two(ended: Path, type_command: Type) -> None:
    assert type_command("ctl", ended, "explode").code == 2
    assert type_command("ctl", ended, "set").code == 2
