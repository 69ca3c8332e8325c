"""Empty modules for what a peer's writer imports and does not use: Ray, Hydra and the like."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class _EmptyMeta(type):
    """Any name in an empty class is an empty class as well."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _class(name)


def _class(name: str) -> type:
    return _EmptyMeta(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Empty(types.ModuleType):
    """Any name in it is an empty class."""

    __path__: list[str] = []  # noqa: RUF012
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        inner = sys.modules.get(f"{self.__name__}.{name}")
        return inner if inner is not None else _class(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        parts = fullname.split(".")
        heads = {".".join(parts[: size + 1]) for size in range(len(parts))}
        if heads & self.packages:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


_FINDER = _Finder()
sys.meta_path.insert(0, _FINDER)


def stand_in(*packages: str) -> None:
    """Import these packages, and all modules in them, as empty ones from now on."""
    _FINDER.packages.update(packages)
