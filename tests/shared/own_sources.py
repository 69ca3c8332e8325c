"""The files of the package, each parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(sorted(init.parent.name for init in ROOT.glob("*/__init__.py")))
FOLDERS = tuple(
    sorted(
        path
        for package in PACKAGES
        for path in [ROOT / package, *(ROOT / package).rglob("*")]
        if path.is_dir() and any(path.glob("*.py"))
    )
)
MODULES = tuple(sorted(path for folder in FOLDERS for path in folder.glob("*.py")))


def name(path: Path) -> str:
    """As people write it: `core/run/train.py`."""
    return str(path.relative_to(ROOT))


def dotted(path: Path) -> str:
    """As Python writes it: `echoscope.core.run.train`."""
    parts = ["echoscope", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts).removesuffix(".__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> list[tuple[int, str, str | None]]:
    """(line, absolute module, name) of all that a file imports; `import x` has no name."""
    package = dotted(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    taken: list[tuple[int, str, str | None]] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            taken += [(node.lineno, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            taken += [(node.lineno, module, alias.name) for alias in node.names]
    return taken
