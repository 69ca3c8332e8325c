"""A Gymnasium world as a text world."""

from __future__ import annotations

import enum
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.text.pictures import open_picture

MISSING = registry.unavailable()


def test_a_gymnasium_world_as_text() -> None:
    env = registry.make("gymnasium", env="CliffWalking-v1", success_reward=0.0)
    lines = env.reset(0, 0).text.splitlines()
    assert lines[3] == "x  C  C  C  C  C  C  C  C  C  C  T"
    up = env.step("UP")
    assert (up.reward, up.is_valid, up.is_effective, up.success) == (-1.0, True, True, False)
    assert up.observation.text.splitlines()[2].startswith("x")
    bad = env.step("jump")
    assert bad.observation.text == f'Invalid action "jump".\n{up.observation.text}'
    assert env.instructions().endswith("Actions: up, right, down, left.")
    env.close()


def test_colours_become_brackets() -> None:
    text = registry.make("gymnasium", env="FrozenLake-v1").reset(0, 0).text
    assert text.splitlines()[0] == "[S]FFF"


def test_transitions_follow_the_noise_seed() -> None:
    env = registry.make("gymnasium", env="FrozenLake-v1")
    ends = set()
    for noise_seed in range(20):
        env.reset(0, noise_seed)
        ends.add(env.step("right").observation.text)
    assert len(ends) == 3  # right, or a slip up (the edge) or down


def test_a_world_without_text_rendering_shows_its_value() -> None:
    env = registry.make("gymnasium", env="Blackjack-v1", action_names=["hold", "draw"])
    assert env.reset(0, 0).text.startswith("Observation: (")
    assert env.legal_actions() == ("hold", "draw")
    assert env.step("hold").terminated
    assert env.step("hold").is_valid is False
    assert not env.reports_success


class Parrot(gymnasium.Env[str, str]):
    """Says what it hears."""

    observation_space = action_space = gymnasium.spaces.Text(20)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Hello", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action, 1.0, False, False, {}


def test_a_text_action_space_passes_any_text() -> None:
    gymnasium.register("Parrot-v0", Parrot)
    env = registry.make("gymnasium", env="Parrot-v0", rules="Talk.")
    env.reset(0, 0)
    assert env.legal_actions() == ()
    assert env.instructions() == "Talk. Action: any text."
    assert env.step("polly").observation.text == "Observation: polly"
    assert not env.step("x" * 21).is_valid


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"env": "FrozenLak-v1"}, EnvParamsError, "Did you mean"),
        ({"env": "FrozenLake-v1", "params": {"sise": 4}}, EnvParamsError, "unexpected keyword"),
        ({"env": "Taxi-v4", "action_names": ["a"]}, EnvParamsError, "has 6 actions"),
        ({"action_names": ["a", "A ", "b", "c"]}, EnvParamsError, "different words"),
        ({"env": "Pendulum-v1"}, EnvParamsError, "only Discrete and Text can be spoken"),
        ({"env": "Ant-v5"}, (EnvUnavailableError, EnvParamsError), "."),
    ],
)
def test_bad_worlds_are_refused(params: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        registry.make("gymnasium", **params)


class Turn(enum.IntEnum):
    left = 0
    right = 1


class Facing(gymnasium.Env[dict[str, Any], int]):
    """A world in MiniGrid's manner: an observation of parts, named actions, pixels."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict({
        "image": gymnasium.spaces.Box(0, 9, (2, 2), np.uint8),
        "mission": gymnasium.spaces.Text(40),
    })  # fmt: skip
    actions = Turn

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._side = 0

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        return self._seen(), {}

    def step(self, action: int) -> Any:
        self._side = int(action)
        return self._seen(), 0.0, False, False, {}

    def render(self) -> Any:
        return np.full((4, 6, 3), 100 * self._side, np.uint8)

    def _seen(self) -> dict[str, Any]:
        image = np.full((2, 2), self._side, np.uint8)
        return {"image": image, "mission": "face the\nright"}


gymnasium.register("FacingRight-v0", Facing)


def test_a_world_of_another_module_with_parts_and_named_actions() -> None:
    env = registry.make("gymnasium", env=f"{__name__}:FacingRight-v0")
    assert env.legal_actions() == ("left", "right")
    first = env.reset(0, 0)
    assert first.text == "Observation: image: [[0, 0], [0, 0]]; mission: face the right"
    assert env.step("right").observation.text.startswith("Observation: image: [[1, 1], [1, 1]]")
    assert first.image is None


def test_a_world_that_draws_itself_gives_its_picture() -> None:
    env = registry.make("gymnasium", env="FacingRight-v0", params={"render_mode": "rgb_array"})
    env.reset(0, 0)
    picture = open_picture(env.step("right").observation.image or b"")
    assert (np.asarray(picture) == np.full((4, 6, 3), 100)).all()


@pytest.mark.parametrize("name", ["no_such_module:X-v0", ":X-v0", "os:X-v0", "a b:X-v0"])
def test_a_module_without_the_world_is_one_sentence(name: str) -> None:
    with pytest.raises(EnvParamsError) as caught:
        registry.make("gymnasium", env=name)
    assert "\n" not in str(caught.value)


def test_numbered_actions_where_none_are_known() -> None:
    env = registry.make("gymnasium", env="CartPole-v1")
    assert env.legal_actions() == ("0", "1")
    assert env.reset(0, 0).text.startswith("Observation: [")
