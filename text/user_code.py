"""Code of the user's own: how a name in a configuration becomes a function or a class.

A name is `module:attribute`, or the name of an entry point of an installed package. `load` imports
what a name means, so it is called only where the person who runs the command wrote the name.
`loaded` never imports: it hands out what `load` took in before, in this process. A command that
opens a stored run only calls `loaded`, so no stored run can make it execute anything.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from .did_you_mean import did_you_mean

GROUPS: Mapping[str, str] = {
    "advantage": "echoscope.advantages",
    "loss": "echoscope.losses",
    "selection": "echoscope.selections",
    "reward": "echoscope.rewards",
    "observer": "echoscope.observers",
    "environment": "echoscope.envs",
    "weight_sync": "echoscope.weight_syncs",
    "narrator": "echoscope.narrators",
    "detector": "echoscope.detectors",
}
"""Kind of plug-in to the group of its entry points."""
_loaded: dict[tuple[str, str], Callable[..., Any]] = {}


class UserCodeError(ValueError):
    """The user's own code is missing or did something that is not allowed; one sentence."""


def search_working_folder() -> None:
    """Let `module:attribute` name a file in the folder the command runs in.

    An installed command does not search it as `python` does. It comes last, so no file there can
    take the place of an installed module.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)


@lru_cache
def entry_points(group: str) -> Mapping[str, str]:
    """Name to `module:attribute` of what installed packages offer; nothing is imported."""
    points = importlib.metadata.entry_points(group=group)
    return {point.name: point.value for point in points}


def import_named(module: str) -> ModuleType:
    """The module of that name.

    Raises:
        UserCodeError: it cannot be imported, for whatever reason.
    """
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            reason += f"; run the command in the folder of {module.rpartition('.')[2]}.py"
        raise UserCodeError(f"cannot import {module!r}: {reason}") from error


def load(kind: str, name: str) -> Callable[..., Any]:
    """Import the plug-in of a kind that `name` means, and remember it for `loaded`.

    Args:
        kind: one of `GROUPS`.
        name: `module:attribute`, or the name of an entry point of the kind's group.

    Raises:
        UserCodeError: no such name, an import that fails, or something that cannot be called.
    """
    points = entry_points(GROUPS[kind])
    module_name, colon, attribute = points.get(name, name).partition(":")
    if not (module_name and colon and attribute):
        raise UserCodeError(
            f"no {kind} plug-in {name!r} is installed{did_you_mean(name, points)}; your own is "
            "named 'module:function'"
        )
    try:
        module = import_named(module_name)
    except UserCodeError as error:
        raise UserCodeError(
            f"{kind} plug-in {name!r}: {error}; it must be importable from where the command runs"
        ) from error
    value = vars(module).get(attribute)
    if inspect.isbuiltin(value):
        raise UserCodeError(
            f"{kind} plug-in {name!r} is built into Python; name a function of your own"
        )
    if not callable(value):
        entry_names = [
            key
            for key, member in vars(module).items()
            if callable(member) and not key.startswith("__") and not _is_imported(member, module)
        ]
        raise UserCodeError(
            f"{kind} plug-in {name!r}: {module_name!r} has no function {attribute!r}"
            + did_you_mean(attribute, entry_names)
        )
    _loaded[kind, name] = value
    return value  # type: ignore[no-any-return]


def _is_imported(value: Any, module: ModuleType) -> bool:
    """Whether another module offers the same value under the value's own name."""
    home = sys.modules.get(str(getattr(value, "__module__", "")))
    name = str(getattr(value, "__name__", ""))
    return home is not None and home is not module and getattr(home, name, None) is value


def loaded(kind: str, name: str) -> Callable[..., Any]:
    """The plug-in that `load` imported in this process; nothing is imported.

    Raises:
        UserCodeError: nobody loaded it here.
    """
    if (kind, name) not in _loaded:
        raise UserCodeError(
            f"{kind} plug-in {name!r} is the run's own code, which is not executed here: only "
            "training loads what a configuration names"
        )
    return _loaded[kind, name]


def require_params(kind: str, name: str, params: Mapping[str, Any], num_inputs: int = 1) -> None:
    """Whether a loaded plug-in takes its inputs and these keyword arguments.

    Raises:
        UserCodeError: it does not.
    """
    accepted = ""
    try:
        signature = inspect.signature(loaded(kind, name))
        names = [
            parameter.name
            for parameter in list(signature.parameters.values())[num_inputs:]
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        accepted = f"its parameters are {', '.join(names)}" if names else "it takes no parameters"
        signature.bind(*[None] * num_inputs, **params)
    except (TypeError, ValueError) as error:
        raise UserCodeError(
            f"{kind} plug-in {name!r} does not take the params {dict(params)}: {error}"
            + (f"; {accepted}" if accepted else "")
        ) from None


def call(kind: str, name: str, function: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """What the user's function returns.

    Raises:
        UserCodeError: it raised something, or left the program; the sentence says where.
    """
    try:
        return function(*args, **params)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        frames = traceback.extract_tb(error.__traceback__)[1:]
        where = f" in line {frames[0].lineno} of {os.path.basename(frames[0].filename)}" * bool(
            frames
        )
        raise UserCodeError(f"{kind} plug-in {name!r} failed{where}: {reason}") from error
