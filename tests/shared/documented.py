"""Examples in docstrings: where they stand, and running them."""

from __future__ import annotations

import doctest
import importlib

from own_sources import MODULES, dotted, name


def modules_with_examples(folder: str) -> list[str]:
    """Dotted names of the modules under a folder of the package that have an example."""
    return [
        dotted(path)
        for path in MODULES
        if name(path).startswith(f"{folder}/") and ">>> " in path.read_text("utf-8")
    ]


def run_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert not result.failed
