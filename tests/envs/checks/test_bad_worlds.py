"""D11: whatever a world returns, raises or exits with ends its own episode, and nothing else."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from echoscope.envs import registry
from echoscope.envs.base import (
    EnvParamsError,
    EnvSpec,
    EnvUnavailableError,
    Observation,
    StepResult,
    TextEnv,
)
from echoscope.envs.turns.runner import TurnRunner
from echoscope.envs.turns.turn import TurnSettings

SURROGATE = "\ud800"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoConfig:
    pass


GOOD: dict[str, Any] = {
    "observation": Observation(text="on"),
    "reward": 1.0,
    "terminated": False,
    "success": False,
    "is_valid": True,
    "is_effective": True,
    "info": {},
}


class Scripted(TextEnv):
    """Behaves, but for the methods that a test gives it."""

    spec = EnvSpec(
        id="scripted",
        config_type=NoConfig,
        max_turns=3,
        max_actions_per_turn=1,
        description="As the test says.",
    )

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return Observation(text="start")

    def step(self, action: str) -> StepResult:
        return StepResult(**GOOD)

    def instructions(self) -> str:
        return "Act."


def world(**methods: Callable[..., Any]) -> TextEnv:
    """A `Scripted` world whose named methods are those given."""
    return type("Broken", (Scripted,), methods)(NoConfig())


SETTINGS = TurnSettings(max_turns=3, max_actions_per_turn=1)


def result(**fields: Any) -> StepResult:
    return StepResult(**(GOOD | fields))


WRONG_RESULTS: dict[str, Any] = {
    "no result": None,
    "a tuple": ("on", 1.0, False),
    "no observation": result(observation=None),
    "text for an observation": result(observation="on"),
    "no text": result(observation=Observation(text=None)),  # type: ignore[arg-type]
    "bytes": result(observation=Observation(text=b"on")),  # type: ignore[arg-type]
    "a lone surrogate": result(observation=Observation(text=SURROGATE)),
    "a surrogate in the frame": result(observation=Observation(text="on", frame=SURROGATE)),
    "a frame that is no text": result(observation=Observation(text="on", frame={})),  # type: ignore[arg-type]
    "no reward": result(reward=None),
    "text for a reward": result(reward="1"),
    "a complex reward": result(reward=1j),
    "an infinite reward": result(reward=float("inf")),
    "a reward that is no number": result(reward=float("nan")),
    "a reward beyond all floats": result(reward=10**400),
    "an array of rewards": result(reward=np.ones(2)),
    "text for terminated": result(terminated="no"),
    "an undecided terminated": result(terminated=None),
    "text for success": result(success="yes"),
    "an undecided is_valid": result(is_valid=None),
    "a number for is_effective": result(is_effective=2),
    "no info": result(info=None),
    "a list for info": result(info=[("a", 1.0)]),
    "text in info": result(info={"kind": "ice"}),
    "nothing in info": result(info={"kind": None}),
    "a number as a key of info": result(info={3: 1.0}),
    "a surrogate as a key of info": result(info={SURROGATE: 1.0}),
}


@pytest.mark.parametrize("wrong", WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_wrong_result_is_an_env_error(wrong: object) -> None:
    stack = TurnRunner(lambda: world(step=lambda self, action: wrong), SETTINGS)
    assert stack.reset(0, 0).observation == Observation(text="start")
    turn = stack.step_turn(["go"], is_well_formed=True)
    assert (turn.stop_reason, turn.success, turn.reward) == ("env_error", None, 0.0)
    assert turn.error
    turn.observation.text.encode("utf-8")
    assert turn.observation.text == f"Environment error: {turn.error}"


def test_numbers_and_booleans_of_numpy_are_right() -> None:
    stepped = result(
        reward=np.float32(0.5), terminated=np.bool_(True), success=np.bool_(True), info={"n": 3}
    )
    stack = TurnRunner(lambda: world(step=lambda self, action: stepped), SETTINGS)
    stack.reset(0, 0)
    turn = stack.step_turn(["go"], is_well_formed=True)
    assert (turn.reward, turn.terminated, turn.success) == (0.5, True, True)
    assert dict(turn.info) == {"n": 3.0}


def leave(*_: object) -> None:
    sys.exit(0)


def fail(*_: object) -> None:
    raise KeyError(SURROGATE)


BAD_STARTS: dict[str, dict[str, Callable[..., Any]]] = {
    "sys.exit": {"reset": leave},
    "an error whose text cannot be stored": {"reset": fail},
    "no observation": {"reset": lambda *_: None},
    "a lone surrogate": {"reset": lambda *_: Observation(text=SURROGATE)},
    "instructions fail": {"instructions": fail},
    "instructions exit": {"instructions": leave},
    "instructions are no text": {"instructions": lambda self: None},
    "instructions have a lone surrogate": {"instructions": lambda self: SURROGATE},
    "a key that is none": {"task_key": lambda self: "the task"},
    "a key that fails": {"task_key": fail},
}


@pytest.mark.parametrize("methods", BAD_STARTS.values(), ids=BAD_STARTS)
def test_a_wrong_start_is_an_env_error(methods: dict[str, Callable[..., Any]]) -> None:
    stack = TurnRunner(lambda: world(**methods), SETTINGS)
    opening = stack.reset(0, 0)
    first = opening.observation
    assert first.text.startswith("Environment error: ")
    first.text.encode("utf-8")
    assert opening.task_key is None
    assert stack.step_turn(["go"], is_well_formed=True).stop_reason == "env_error"


METHODS_OF_A_STEP = ("step", "legal_actions", "invalid_notice")


@pytest.mark.parametrize("method", METHODS_OF_A_STEP)
@pytest.mark.parametrize("how", [leave, fail])
def test_an_exit_or_error_in_a_step_is_an_env_error(method: str, how: Callable[..., None]) -> None:
    stack = TurnRunner(lambda: world(**{method: how}), SETTINGS)
    stack.reset(0, 0)
    turn = stack.step_turn([] if method == "invalid_notice" else ["go"], is_well_formed=False)
    assert turn.stop_reason == "env_error"
    # The next episode begins in a fresh world.
    assert stack.reset(1, 0).observation == Observation(text="start")


@pytest.mark.parametrize("how", [leave, fail])
def test_a_world_that_cannot_be_built_is_an_error_of_one_line(
    how: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = type("Broken", (Scripted,), {"__init__": how})
    monkeypatch.setattr(registry, "env_class", lambda env_id: broken)
    with pytest.raises(EnvUnavailableError, match="cannot build"):
        registry.make("broken:Broken")


def test_a_module_that_exits_is_an_error_of_one_line(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_world.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvUnavailableError, match="cannot import 'leaving_world': SystemExit: 0"):
        registry.make("leaving_world:World")


@pytest.mark.parametrize("number", [0, -1, 2.5, "many", True])
def test_a_wrong_number_of_tasks_is_refused(number: object) -> None:
    stack = TurnRunner(lambda: world(num_tasks=property(lambda self: number)), SETTINGS)
    with pytest.raises(EnvParamsError, match="num_tasks is"):
        _ = stack.num_tasks


@pytest.mark.parametrize("how", [leave, fail])
def test_a_close_that_fails_is_a_warning(how: Callable[..., None]) -> None:
    stack = TurnRunner(lambda: world(close=how), SETTINGS)
    with pytest.warns(RuntimeWarning, match=r"scripted: close\(\) raised"):
        stack.close()
