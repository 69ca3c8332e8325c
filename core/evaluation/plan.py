"""What is played: worlds, tasks and siblings as a configuration, and how far a budget reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoscope.envs.reserving import EVALUATION_SEED
from echoscope.envs.settings import EnvGroup
from echoscope.store.models import SHIPPED
from echoscope.store.records import MAX_INDEX
from echoscope.store.status import EVALUATION

from ..config.loading import ConfigError, load_config, override, recipe_names, validate
from ..config.settings import RunConfig
from .suites import worlds_of
from .who import Who, run_settings

TAG = "evaluation"
_PLAYING = (
    *("name", "seed", "threads", "model", "engine", "collection", "context", "sampling"),
    *("envs", "reward", "eval"),
)
"""The settings that say how episodes are played; the others are of a training."""
_NO_GROUPS = {"kind": "reinforce_pp"}
"""The estimator that asks for nothing: a task may have one attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Where an evaluation ends early; None for no limit. What is in play is played to its end."""

    episodes: int | None = None
    tokens: int | None = None
    """Sampled by the player; with a provider, those that it bills for."""
    cost: float | None = None
    """In US dollars, as the provider's prices say."""

    @property
    def is_limited(self) -> bool:
        return any(limit is not None for limit in (self.episodes, self.tokens, self.cost))


def settings_for(
    who: Who,
    *,
    envs: Sequence[str] = (),
    suite: str | None = None,
    recipe: str | None = None,
    file: Path | None = None,
    words: Sequence[str] = (),
    tasks: int,
    siblings: int,
    seed: int = EVALUATION_SEED,
    temperature: float | None = None,
) -> RunConfig:
    """The settings of an evaluation: its tasks are those of `envs.eval`.

    A run's checkpoint plays under the settings of its run. A shipped policy plays a world as the
    recipe of that name shows it. Any other model gets the world's own defaults with its rules in
    the prompt. A recipe or file that is named says all of this itself.

    Args:
        envs: worlds; those of the settings if none.
        suite: plays each world as this suite changes it, too.
        tasks: of each world.
        seed: fixes the tasks.

    Raises:
        ConfigError: no world is named, or a setting is wrong.
    """
    config = _base(who, envs, recipe, file)
    worlds = [*(config.envs.eval or config.envs.train)]
    if envs:
        worlds = [world for name in envs for world in _worlds(config, name)]
    if suite is not None:
        worlds = worlds_of(suite, worlds)
    values = config.model_dump()
    if who.run is None and not who.is_provider:
        values["model"]["path"] = who.typed
    if who.is_provider:  # it is asked for many replies at a time, and nobody has its tokens
        values["collection"]["mode"] = "async"
        values["reward"]["shaping"] = []
    values["seed"] = seed
    if temperature is not None:
        values["eval"]["temperature"] = temperature
    values["envs"] = {"group_size": siblings, "eval_group_size": siblings}
    values["eval"]["pass_at_k"] = []
    values = {key: values[key] for key in _PLAYING} | {"advantage": _NO_GROUPS}
    _check_size(worlds, tasks, siblings)
    config = validate(_with_worlds(values, worlds, tasks))
    if words:
        config = override(config, words)
        _check_size(config.envs.eval, tasks, siblings)
        config = validate(_with_worlds(config.model_dump(), config.envs.eval, tasks))
    return config


def _with_worlds(values: dict[str, Any], worlds: Sequence[EnvGroup], tasks: int) -> dict[str, Any]:
    entries = [world.model_copy(update={"groups": tasks}).model_dump() for world in worlds]
    return values | {"envs": values["envs"] | {"train": entries, "eval": entries}}


def _check_size(worlds: Sequence[EnvGroup], tasks: int, siblings: int) -> None:
    """Raises ConfigError for more episodes than places, or worlds that cannot be told apart."""
    num_episodes = tasks * siblings * len(worlds)
    if num_episodes > MAX_INDEX:
        raise ConfigError(
            f"{len(worlds)} worlds x {tasks} tasks x {siblings} siblings are {num_episodes} "
            f"episodes, but an evaluation holds at most {MAX_INDEX}: lower --tasks or --siblings"
        )
    names = [world.name for world in worlds]
    if len({*names}) < len(names):
        raise ConfigError(f"two worlds have the same name, {', '.join(names)}: give them a `tag`")


def _base(who: Who, envs: Sequence[str], recipe: str | None, file: Path | None) -> RunConfig:
    if recipe is not None or file is not None:
        return load_config(recipe, file=file)
    if who.run is not None:
        return run_settings(who)
    if not envs:
        raise ConfigError("name a world with --env, or --recipe or --config FILE.yaml")
    if who.typed in SHIPPED and envs[0] in recipe_names():
        return load_config(envs[0])
    return load_config(overrides=[f"envs.train=[{{env: {envs[0]!r}}}]"])


def _worlds(config: RunConfig, name: str) -> list[EnvGroup]:
    """The worlds of the settings that have this name, or the plain one of this id."""
    of_settings = [*config.envs.eval, *config.envs.train]
    named = [world for world in of_settings if name in (world.name, world.env)]
    return named[:1] or [EnvGroup(env=name)]


def described(who: Who, config: RunConfig, budget: Budget) -> dict[str, Any]:
    """What the evaluation's run says of itself."""
    return {
        EVALUATION: {
            "who": who.typed,
            "name": who.name,
            "run": None if who.run is None else str(who.run.resolve()),
            "checkpoint": who.step,
            "is_provider": who.is_provider,
            "price": who.price,
            "tasks": config.envs.eval[0].groups,
            "siblings": config.envs.eval_group_size,
            "temperature": config.eval.temperature,
            "max_episodes": budget.episodes,
            "max_tokens": budget.tokens,
            "max_cost": budget.cost,
        },
        "settings": config.model_dump(mode="json"),
    }


def recalled(config: Mapping[str, Any], run_id: str) -> tuple[Who, RunConfig, Budget]:
    """Who played, what, and under which budget, as an evaluation's run says of itself.

    Raises:
        ConfigError: the run is no evaluation.
    """
    entry = config.get(EVALUATION)
    if not isinstance(entry, Mapping):
        raise ConfigError(
            f"{run_id} is no evaluation; `echoscope train --resume` goes on with a training"
        )
    try:
        run, price = entry["run"], entry["price"]
        who = Who(
            typed=str(entry["who"]),
            run=None if run is None else Path(run),
            step=entry["checkpoint"],
            is_provider=bool(entry["is_provider"]),
            price=None if price is None else (float(price[0]), float(price[1])),
        )
        limits = (entry["max_episodes"], entry["max_tokens"], entry["max_cost"])
        settings = config["settings"]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{run_id} does not say who played, and how ({type(error).__name__}: {error}); "
            "evaluate anew"
        ) from None
    episodes, tokens, cost = limits
    return who, validate(settings), Budget(episodes=episodes, tokens=tokens, cost=cost)


def part_of(groups: Sequence[EnvGroup], first: int, count: int) -> list[EnvGroup]:
    """The worlds of the groups `first` to `first + count` of all, in their order.

    >>> lake, bandit = EnvGroup(env="lake", groups=3), EnvGroup(env="bandit", groups=4)
    >>> [(group.env, group.groups) for group in part_of([lake, bandit], 2, 3)]
    [('lake', 1), ('bandit', 2)]
    """
    out = []
    start = 0
    for group in groups:
        here = min(start + group.groups, first + count) - max(start, first)
        if here > 0:
            out.append(group.model_copy(update={"groups": here}))
        start += group.groups
    return out
