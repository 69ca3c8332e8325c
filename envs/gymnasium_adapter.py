"""Any Gymnasium world with discrete or text actions as a text world."""

from __future__ import annotations

import enum
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from PIL import Image

from echoscope.text.pictures import card_frame, encode_picture

from .base import (
    EnvParamsError,
    EnvSpec,
    EnvUnavailableError,
    Observation,
    StepResult,
    hash_task,
    normalise,
    shorten,
)
from .params import require
from .worlds.grid.minigrid_words import words_of
from .worlds.task_env import TaskEnv

_ANSI = re.compile(r"\x1b\[([0-9;]*)m(.*?)\x1b\[0m", re.DOTALL)
_TOY_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "Blackjack": ("stick", "hit"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FromGymnasiumConfig:
    """Which Gymnasium world, and how it talks.

    `env`: a Gymnasium id, or `module:id` for a world that this module registers. `params`: passed
    to its constructor; `render_mode: rgb_array` gives every observation the world's own picture.
    `action_names`: one word per discrete action (the toy-text worlds and those with an enumeration
    `actions`, such as MiniGrid's, have theirs; others are numbered).
    `success_reward`: an action's reward from which on the task counts as solved; without it
    success is unknown. `rules`: the instructions; null for a sentence about the actions alone.
    """

    env: str = "CliffWalking-v1"
    params: Mapping[str, Any] = field(default_factory=dict)
    action_names: tuple[str, ...] | None = None
    success_reward: float | None = None
    rules: str | None = None

    def __post_init__(self) -> None:
        names = [normalise(name) for name in self.action_names or ()]
        require(
            all(names) and len(set(names)) == len(names),
            f"action_names is {self.action_names}, but must be different words",
        )


class FromGymnasium(TaskEnv[FromGymnasiumConfig]):
    """A Gymnasium world as a text world.

    Description:
        Wraps any Gymnasium world with a discrete or text action space. Made for the toy-text
        worlds: CliffWalking, FrozenLake, Taxi, Blackjack.
    Observation:
        The world's text rendering, where it has one; colours become brackets: (blue), {magenta},
        [any other], such as Taxi's (passenger), {destination} and [taxi]. MiniGrid's view is told
        in words. Otherwise the observation's value.
    Actions:
        The words in `action_names`, or any string for a text action space.
    Rewards:
        The wrapped world's.
    Episode end:
        The wrapped world's; its own step limit is left off, since limits are layers here.
    Success:
        An action was rewarded with at least `success_reward`; unknown without that setting.
    Seeds:
        `seed` resets the world, then `noise_seed` replaces its generator.
    Requires:
        Whatever the wrapped world requires.
    Example:
        >>> cliff = FromGymnasium(FromGymnasiumConfig(env="CliffWalking-v1"))
        >>> first = cliff.reset(seed=0, noise_seed=0)
        >>> cliff.step("up").reward
        -1.0
    """

    spec = EnvSpec(
        id="gymnasium",
        config_type=FromGymnasiumConfig,
        max_turns=20,
        max_actions_per_turn=4,
        description="Any Gymnasium world with discrete or text actions, such as toy-text.",
    )
    is_over = True

    def __init__(self, config: FromGymnasiumConfig | None = None) -> None:
        super().__init__(config)
        self._world = _make_world(self._config)
        self._names = _action_names(self._config, self._world)
        self._has_succeeded = False
        self._state = Observation(text="")
        self._task_key = ""

    def begin(self, seed: int, noise_seed: int) -> None:
        value, _ = self._world.reset(seed=seed)
        self._world.unwrapped.np_random = np.random.Generator(np.random.PCG64(noise_seed))
        self.is_over = self._has_succeeded = False
        first = self._shown(value)
        whole = first.text
        if words_of(value) is not None and hasattr(self._world.unwrapped, "hash"):
            whole = str(self._world.unwrapped.hash(64))  # of MiniGrid only a part is seen
        self._task_key = hash_task(self.spec.id, self._config.env, whole)

    def step(self, action: str) -> StepResult:
        number = self._number(action)
        if number is None or self.is_over:
            return self.refused(action)
        before = self._state
        value, reward, terminated, truncated, _ = self._world.step(number)
        self.is_over = bool(terminated or truncated)
        limit = self._config.success_reward
        self._has_succeeded = self._has_succeeded or (limit is not None and reward >= limit)
        return self.result(float(reward), self._shown(value), is_effective=self._state != before)

    def instructions(self) -> str:
        rules = self._config.rules or f"You act in the world {self._config.env}."
        if not self._names:
            return f"{rules} Action: any text."
        return f"{rules} Actions: {', '.join(self._names)}."

    def legal_actions(self) -> tuple[str, ...]:
        return self._names

    def task_key(self) -> str:
        """The wrapped world and its first state, or observation: its parameters play no part."""
        return self._task_key

    @property
    def reports_success(self) -> bool:
        return self._config.success_reward is not None

    @property
    def is_solved(self) -> bool | None:
        return self._has_succeeded if self.reports_success else None

    def close(self) -> None:
        self._world.close()

    def _number(self, action: str) -> Any:
        """What the wrapped world takes for an action; None if nothing."""
        if not self._names:
            return action if self._world.action_space.contains(action) else None
        names = [normalise(name) for name in self._names]
        return names.index(normalise(action)) if normalise(action) in names else None

    def observe(self) -> Observation:
        return self._state

    def _shown(self, value: Any) -> Observation:
        if self._world.render_mode == "ansi":
            text = _ANSI.sub(_bracket, str(self._world.render())).strip("\n")
        else:
            text = words_of(value) or f"Observation: {_plain(value)}"
        frame = card_frame(self._config.env, text.splitlines())
        self._state = Observation(text=text, frame=frame, image=self._picture())
        return self._state

    def _picture(self) -> bytes | None:
        """The world's own drawing, where it was asked for."""
        if self._world.render_mode != "rgb_array":
            return None
        pixels = np.asarray(self._world.render(), dtype=np.uint8)
        return encode_picture(Image.fromarray(pixels))


def _make_world(config: FromGymnasiumConfig) -> gymnasium.Env[Any, Any]:
    module, colon, name = config.env.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
        params = dict(config.params)
        if "ansi" in _render_modes(spec):
            params.setdefault("render_mode", "ansi")
        # -1: without Gymnasium's own step limit.
        return gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **params)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvUnavailableError(f"{config.env}: {error}") from None
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise EnvParamsError(f"gymnasium: {shorten(str(error), 300)}") from None


def _render_modes(spec: Any) -> list[str]:
    point = spec.entry_point
    creator = point if callable(point) else gymnasium.envs.registration.load_env_creator(point)
    return list(creator.metadata.get("render_modes", []))


def _action_names(config: FromGymnasiumConfig, world: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    space = world.action_space
    if isinstance(space, gymnasium.spaces.Text):
        return ()
    if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
        raise EnvParamsError(
            f"gymnasium: {config.env} has the action space {space}, but only Discrete and Text "
            "can be spoken"
        )
    number = int(space.n)
    usual = _TOY_ACTIONS.get(config.env.rsplit("-v", 1)[0]) or _enumerated(world.unwrapped, number)
    names = config.action_names or usual or tuple(str(i) for i in range(number))
    if len(names) != number:
        raise EnvParamsError(
            f"gymnasium: action_names has {len(names)} words, but {config.env} has {number} actions"
        )
    return tuple(names)


def _enumerated(world: Any, number: int) -> tuple[str, ...]:
    """The names of a world's enumeration `actions`, where it names all of them."""
    actions = world.actions if hasattr(world, "actions") else None
    if not (isinstance(actions, type) and issubclass(actions, enum.IntEnum)):
        return ()
    by_number = {int(action): action.name for action in actions}
    return tuple(by_number[i] for i in range(number)) if len(by_number) == number else ()


def _bracket(match: re.Match[str]) -> str:
    """A coloured piece of a rendering in brackets that tell the colour."""
    pairs = {"34": ("(", ")"), "35": ("{", "}")}
    left, right = pairs.get(match.group(1).split(";")[0], ("[", "]"))
    return f"{left}{match.group(2)}{right}"


def _plain(value: Any) -> str:
    """An observation on one line, without NumPy's type names."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_plain(item)}" for key, item in value.items())
    if isinstance(value, tuple):
        return "(" + ", ".join(_plain(item) for item in value) + ")"
    if isinstance(value, np.generic | np.ndarray):
        return str(value.tolist())
    return " ".join(str(value).split())
