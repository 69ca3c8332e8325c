"""Environment id -> class. Ids are listed here, come with a package, or are written `module:Class`.

Sources, first match wins: the built-in table, entry points of the group `echoscope.envs` (name =
id, value = `module:Class`), `family:NAME` for libraries of many worlds, and `module:Class` itself.
Naming a class imports its module, so ids must come from the user, never from files of unknown
origin.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.user_code import GROUPS, UserCodeError, entry_points, import_named

from .base import EnvError, EnvParamsError, EnvSpec, EnvUnavailableError, TextEnv, UnknownEnvError
from .params import build_config

BUILTIN: dict[str, str] = {
    "bandit": f"{__package__}.worlds.bandit:Bandit",
    "frozen_lake": f"{__package__}.worlds.grid.frozen_lake:FrozenLake",
    "sokoban": f"{__package__}.worlds.grid.sokoban:Sokoban",
    "treasure": f"{__package__}.worlds.grid.treasure:Treasure",
    "spatial": f"{__package__}.worlds.grid.spatial:Spatial",
    "textworld": f"{__package__}.worlds.text_games.textworld:TextWorld",
    "alfworld": f"{__package__}.worlds.text_games.alfworld:AlfWorld",
    "countdown": f"{__package__}.worlds.puzzles.countdown:Countdown",
    "sudoku": f"{__package__}.worlds.puzzles.sudoku:Sudoku",
    "game_2048": f"{__package__}.worlds.puzzles.game_2048:Game2048",
    "rubiks": f"{__package__}.worlds.puzzles.rubiks:Rubiks",
    "static_qa": f"{__package__}.worlds.questions.static_qa:StaticQa",
    "metamathqa": f"{__package__}.worlds.questions.metamathqa:MetaMathQa",
    "deepcoder": f"{__package__}.worlds.code.deepcoder:DeepCoder",
    "search_qa": f"{__package__}.worlds.search.search_qa:SearchQa",
    "search_tools": f"{__package__}.worlds.search.search_tools:SearchTools",
    "price_list": f"{__package__}.worlds.tools.price_list:PriceList",
    "webshop": f"{__package__}.worlds.shop.webshop:WebShop",
    "shop_tools": f"{__package__}.worlds.shop.shop_tools:ShopTools",
    "lean": f"{__package__}.worlds.proofs.lean:Lean",
    "gymnasium": f"{__package__}.gymnasium_adapter:FromGymnasium",
    "remote": f"{__package__}.worlds.remote.remote:Remote",
}

FAMILIES: dict[str, str] = {
    "reasoning_gym": f"{__package__}.worlds.questions.reasoning_gym:ReasoningGym",
    "textarena": f"{__package__}.worlds.text_games.textarena:TextArena",
    "openenv": f"{__package__}.worlds.remote.openenv:OpenEnv",
}
"""Libraries of many worlds, whose ids are `family:NAME`. Their classes list the names."""
_REFUSED: dict[str, str] = {
    "verifiers": "verifiers 0.4 needs openai below 3 and mcp 2.0.0, which cannot be installed "
    "beside Echoscope's pinned packages: evaluate with verifiers itself, and read its results "
    "with `echoscope import`",
}
"""Libraries whose worlds cannot be played here, with the reason."""


def known_ids() -> tuple[str, ...]:
    """Every id with a name: built in, or from an installed entry point."""
    return tuple(dict.fromkeys([*BUILTIN, *entry_points(GROUPS["environment"])]))


def listed_ids() -> tuple[str, ...]:
    """`known_ids`, and one line for each family."""
    return (*known_ids(), *(f"{family}:NAME" for family in FAMILIES))


def resolve(env_id: str) -> str:
    """The `module:Class` behind an id; `UnknownEnvError` with suggestions if there is none."""
    named = {**entry_points(GROUPS["environment"]), **BUILTIN}
    if env_id in named:
        return named[env_id]
    family, _, name = env_id.partition(":")
    if family in FAMILIES:
        if name:
            return FAMILIES[family]
        raise UnknownEnvError(
            f"{family} has many worlds: write `{family}:NAME`; `echoscope envs list {family}` "
            "lists them"
        )
    if family in _REFUSED:
        raise UnknownEnvError(_REFUSED[family])
    if env_id.count(":") == 1 and all(env_id.split(":")):
        return env_id
    raise UnknownEnvError(
        f"no environment {env_id!r}{did_you_mean(env_id, known_ids(), most=3)} "
        "(or write 'module:Class' for your own)"
    )


def spec(env_id: str) -> EnvSpec:
    """The spec behind an id; `UnknownEnvError` or `EnvUnavailableError` if there is none."""
    return replace(env_class(env_id).spec, id=env_id)


def env_class(env_id: str) -> type[TextEnv]:
    """The class behind an id, whether it can run here or not; the errors of `spec`."""
    entry_point = resolve(env_id)
    module_name, _, class_name = entry_point.partition(":")
    try:
        module = import_named(module_name)
    except UserCodeError as error:
        raise EnvUnavailableError(str(error)) from error
    members = vars(module)
    if class_name not in members:
        classes = [name for name, member in members.items() if _is_env_class(member)]
        raise UnknownEnvError(
            f"module {module_name!r} has no class {class_name!r}{did_you_mean(class_name, classes)}"
        )
    world: type[TextEnv] = members[class_name]
    if not _is_env_class(world):
        raise EnvParamsError(f"{entry_point} must be a TextEnv with a class attribute 'spec'")
    return world


def is_of_family(env_id: str) -> bool:
    """Whether an id names a world of a library: `family:NAME`."""
    return env_id.partition(":")[0] in FAMILIES


def family_names(family: str) -> tuple[str, ...]:
    """The worlds of a family; `UnknownEnvError` or `EnvUnavailableError` if there are none."""
    if family not in FAMILIES:
        raise UnknownEnvError(f"no family {family!r}: there are {', '.join(FAMILIES)}")
    world: Any = env_class(f"{family}:*")
    if lack := lacking(world.spec):
        raise EnvUnavailableError(f"{family} {lack}")
    return tuple(world.names())


def unavailable() -> dict[str, str]:
    """Named environments that cannot be built here, with the reason."""
    reasons: dict[str, str] = {}
    for env_id in listed_ids():
        try:
            world = env_class(env_id)
            lack = lacking(world.spec) or world.lacks()
        except EnvError as error:
            lack = str(error)
        if lack:
            reasons[env_id] = lack
    return reasons


def lacking(needs: EnvSpec) -> str:
    """Which package is missing and how to install it; "" where none is."""
    missing = [name for name in needs.requires if not _is_installed(name)]
    if not missing:
        return ""
    # With an extra the clone is installed again: Echoscope is on no package index.
    command = (
        f"-e '.[{needs.extra}]' in the folder of Echoscope" if needs.extra else " ".join(missing)
    )
    return f"needs {' and '.join(missing)}, which is not installed: pip install {command}"


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def make(env_id: str, **params: Any) -> TextEnv:
    """Build an environment.

    Raises `UnknownEnvError`, `EnvParamsError` (unknown name, wrong type, out of range) or
    `EnvUnavailableError` (something it needs is missing).
    """
    return maker(env_id, **params)()


def maker(env_id: str, **params: Any) -> Callable[[], TextEnv]:
    """What builds an environment as often as it is called; its parameters are read once.

    Raises what `make` raises, where it can be known before a world is built.
    """
    world = env_class(env_id)
    if lack := lacking(world.spec):
        raise EnvUnavailableError(f"{env_id} {lack}")
    if is_of_family(env_id):
        if "name" in params:
            raise EnvParamsError(f"{env_id} has its name already: leave out the parameter 'name'")
        params["name"] = env_id.partition(":")[2]
    config = _built(env_id, partial(build_config, env_id, world.spec.config_type, params))
    return lambda: _built(env_id, lambda: world(copy(config)))


_T = TypeVar("_T")


def _built(env_id: str, build: Callable[[], _T]) -> _T:
    try:
        return build()
    except EnvError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvUnavailableError(
            f"cannot build {env_id!r}: {type(error).__name__}: {error}"
        ) from error


def _is_env_class(member: Any) -> bool:
    return (
        isinstance(member, type)
        and issubclass(member, TextEnv)
        and isinstance(getattr(member, "spec", None), EnvSpec)
    )
