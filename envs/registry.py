"""Environment id -> class. Ids are listed here, registered, or written as `module:Class`.

Sources, first match wins: the built-in table, `register()`, entry points of the group
`echoscope.envs` (name = id, value = `module:Class`), and the form `module:Class` itself. Naming a
class imports its module, so ids must come from the user, never from files of unknown origin.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.user_code import GROUPS, UserCodeError, entry_points, import_named

from .base import EnvError, EnvParamsError, EnvSpec, EnvUnavailableError, TextEnv, UnknownEnvError
from .params import build_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A name, the class it stands for, and parameters that differ from the class's defaults."""

    id: str
    entry_point: str
    params: Mapping[str, Any] = field(default_factory=dict)


BUILTIN: Mapping[str, str] = {
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
_registered: dict[str, Registration] = {}


def register(
    env_id: str,
    entry_point: str,
    *,
    params: Mapping[str, Any] | None = None,
    replace_existing: bool = False,
) -> None:
    """Make `env_id` stand for `entry_point` (`module:Class`) in this process.

    Built-in ids cannot be taken; an id that stands for something else needs `replace_existing`.
    """
    _check_names(env_id, entry_point)
    row = Registration(id=env_id, entry_point=entry_point, params=dict(params or {}))
    if _registered.get(env_id, row) != row and not replace_existing:
        raise EnvParamsError(
            f"{env_id!r} is registered already, as {_registered[env_id].entry_point}"
        )
    _registered[env_id] = row


def unregister(env_id: str) -> None:
    """Forget what `register` was told."""
    if _registered.pop(env_id, None) is None:
        raise UnknownEnvError(f"{env_id!r} is not registered{did_you_mean(env_id, _registered)}")


def register_file(path: str | Path) -> list[str]:
    """Register every row of a YAML file, and return the ids.

    The file is `register: [{id: ..., entry_point: "module:Class", params: {...}}, ...]`; other
    top-level keys (such as `envs`) are left to their readers, so a run file will do.
    """
    from echoscope.text.yaml_text import YamlError, read_yaml_file

    try:
        content = read_yaml_file(Path(path))
    except OSError as error:
        raise EnvParamsError(f"cannot read {path}: {error.strerror or error}") from None
    except YamlError as error:
        raise EnvParamsError(f"{path} {error}") from None
    rows = content.get("register") if isinstance(content, dict) else None
    for row in (found := registrations(rows, str(path))):
        register(row.id, row.entry_point, params=row.params)
    return [row.id for row in found]


def registrations(rows: object, where: str) -> list[Registration]:
    """The rows of a list `register`, checked; nothing is registered.

    Args:
        rows: what YAML holds under the key, whatever that is.
        where: names the file in messages.

    Raises:
        EnvParamsError: it is no list of such rows, or an id is taken.
    """
    from echoscope.text.yaml_text import short

    if not isinstance(rows, list) or not rows:
        raise EnvParamsError(f"{where} has no list 'register'")
    found: dict[str, Registration] = {}
    for row in rows:
        keys = set(row) if isinstance(row, dict) else set()
        if not {"id", "entry_point"} <= keys <= {"id", "entry_point", "params"}:
            raise EnvParamsError(
                f"{where}: a row of 'register' has the keys id, entry_point and params, "
                f"not {short(repr(row))}"
            )
        if not isinstance(row.get("params", {}), dict):
            raise EnvParamsError(
                f"{where}: params is a mapping of names to values, not {short(repr(row['params']))}"
            )
        env_id, entry_point = str(row["id"]), str(row["entry_point"])
        _check_names(env_id, entry_point)
        if env_id in found:
            raise EnvParamsError(f"{where}: the id {env_id!r} stands twice in 'register'")
        found[env_id] = Registration(
            id=env_id, entry_point=entry_point, params=dict(row.get("params", {}))
        )
    return list(found.values())


def _check_names(env_id: str, entry_point: str) -> None:
    if not env_id or ":" in env_id or env_id != env_id.strip():
        raise EnvParamsError(f"the id {env_id!r} must not be empty, contain ':' or outer blanks")
    if entry_point.count(":") != 1 or not all(entry_point.split(":")):
        raise EnvParamsError(f"the entry point {entry_point!r} must look like 'module:Class'")
    if env_id in BUILTIN:
        raise EnvParamsError(f"{env_id!r} is a built-in environment; choose another id")


def known_ids() -> tuple[str, ...]:
    """Every id with a name: built in, registered, or from an installed entry point."""
    return tuple(dict.fromkeys([*BUILTIN, *_registered, *_entry_points()]))


def resolve(env_id: str) -> Registration:
    """The registration behind an id; `UnknownEnvError` with suggestions if there is none."""
    if env_id in BUILTIN:
        return Registration(id=env_id, entry_point=BUILTIN[env_id])
    if env_id in _registered:
        return _registered[env_id]
    if env_id in _entry_points():
        return Registration(id=env_id, entry_point=_entry_points()[env_id])
    if env_id.count(":") == 1 and all(env_id.split(":")):
        return Registration(id=env_id, entry_point=env_id)
    raise UnknownEnvError(
        f"no environment {env_id!r}{did_you_mean(env_id, known_ids(), most=3)} "
        "(or write 'module:Class' for your own)"
    )


def spec(env_id: str) -> EnvSpec:
    """The spec behind an id; `UnknownEnvError` or `EnvUnavailableError` if there is none."""
    declared = env_class(env_id).spec
    return declared if declared.id == env_id else replace(declared, id=env_id)


def env_class(env_id: str) -> type[TextEnv]:
    """The class behind an id, whether it can run here or not; the errors of `spec`."""
    return _load_class(resolve(env_id).entry_point)


def list_specs() -> list[EnvSpec]:
    """The specs of all named environments that can be built; the others are in `unavailable`."""
    missing = unavailable()
    return [spec(env_id) for env_id in known_ids() if env_id not in missing]


def unavailable() -> dict[str, str]:
    """Named environments that cannot be built here, with the reason."""
    reasons: dict[str, str] = {}
    for env_id in known_ids():
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
    registration = resolve(env_id)
    world = _load_class(registration.entry_point)
    if lack := lacking(world.spec):
        raise EnvUnavailableError(f"{env_id} {lack}")
    merged = {**registration.params, **params}
    try:
        return world(build_config(env_id, world.spec.config_type, merged))
    except EnvError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvUnavailableError(
            f"cannot build {env_id!r}: {type(error).__name__}: {error}"
        ) from error


def _entry_points() -> Mapping[str, str]:
    return entry_points(GROUPS["environment"])


def _load_class(entry_point: str) -> type[TextEnv]:
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


def _is_env_class(member: Any) -> bool:
    return (
        isinstance(member, type)
        and issubclass(member, TextEnv)
        and hasattr(member, "spec")
        and isinstance(member.spec, EnvSpec)
    )
