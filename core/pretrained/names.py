"""Short names of models on this disk: shipped, fetched into the cache, or added by the user.

Light: imports no torch. The cache is `$ECHOSCOPE_CACHE`, else `~/.cache/echoscope`
(`$XDG_CACHE_HOME/echoscope` where that is set). A fetched model is a folder `models/NAME` in it, an
added one a line of `models/added.json`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from echoscope.store.models import SHIPPED, shipped_folder, weight_shapes
from echoscope.text.cache_folder import cache_folder

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
FETCHABLE = ("smollm2",)
"""Names that `echoscope models get` fetches."""
_ADDED_FILE = "added.json"

Origin = Literal["shipped", "fetched", "added"]


class ModelNameError(ValueError):
    """A name of a model that cannot be given, or is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    name: str
    origin: Origin
    path: str
    """A folder; of an added model a folder or a hub id."""


def models_folder() -> Path:
    """Where fetched models and the list of added ones lie; it need not exist."""
    return cache_folder() / "models"


def named_models() -> dict[str, NamedModel]:
    """Every name that `model.path` takes, shipped ones first."""
    out = {
        name: NamedModel(name=name, origin="shipped", path=str(shipped_folder(name)))
        for name in SHIPPED
    }
    folder = models_folder()
    for config in sorted(folder.glob("*/config.json")):
        name = config.parent.name
        if NAME_PATTERN.fullmatch(name):
            out.setdefault(name, NamedModel(name=name, origin="fetched", path=str(config.parent)))
    for name, path in sorted(_read_added().items()):
        out.setdefault(name, NamedModel(name=name, origin="added", path=path))
    return out


def add_model(name: str, path: str) -> NamedModel:
    """Give a folder or a hub id a short name.

    Raises:
        ModelNameError: the name is no name, or taken.
        OSError: the cache cannot be written.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise ModelNameError(
            f"{name!r} is no name for a model: use lower-case letters, digits, dots, dashes and "
            "underscores, at most 64 of them"
        )
    if name in FETCHABLE:
        raise ModelNameError(
            f"{name!r} is a model that `echoscope models get {name}` fetches; choose another name "
            "with --name"
        )
    taken = named_models().get(name)
    if taken is not None and taken.path != path:
        raise ModelNameError(
            f"{name!r} is already the name of {taken.path}; choose another with --name, or run "
            f"`echoscope models rm {name}` first"
        )
    if taken is None:
        _write_added(_read_added() | {name: path})
    return named_models()[name]


def remove_model(name: str) -> NamedModel:
    """Forget an added name, or delete a fetched folder. Files of added models stay.

    Raises:
        ModelNameError: no such name, or the model comes with the package.
        OSError: the cache cannot be written.
    """
    model = named_models().get(name)
    if model is None:
        raise ModelNameError(f"no model is called {name!r}; `echoscope models list` shows all")
    if model.origin == "shipped":
        raise ModelNameError(f"{name!r} comes with Echoscope and stays")
    if model.origin == "fetched":
        shutil.rmtree(model.path)
    else:
        _write_added({other: path for other, path in _read_added().items() if other != name})
    return model


def _read_added() -> dict[str, str]:
    """Names and paths; empty where the file is absent or says something else."""
    try:
        values = json.loads((models_folder() / _ADDED_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {
        name: path
        for name, path in values.items()
        if isinstance(path, str) and NAME_PATTERN.fullmatch(name)
    }


def _write_added(added: Mapping[str, str]) -> None:
    folder = models_folder()
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{_ADDED_FILE}.{os.getpid()}"
    partial.write_text(json.dumps(dict(sorted(added.items())), indent=1), encoding="utf-8")
    partial.replace(folder / _ADDED_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One line of `echoscope models list`. Sizes are 0 where they are not known."""

    name: str
    origin: Literal["shipped", "fetched", "added", "can be fetched"]
    path: str
    description: str
    num_parameters: int = 0
    num_bytes: int = 0


def list_models() -> list[ListedModel]:
    """Every name that `model.path` takes, then those that can be fetched."""
    out = [_listed(model) for model in named_models().values()]
    present = {model.name for model in out}
    return out + [
        ListedModel(
            name=name,
            origin="can be fetched",
            path="",
            description=f"echoscope models get {name}",
        )
        for name in FETCHABLE
        if name not in present
    ]


def describe(name: str) -> dict[str, Any]:
    """What the files of a model say, for people.

    Raises:
        ModelNameError: no such name, or its folder is gone.
    """
    model = named_models().get(name)
    if model is None:
        raise ModelNameError(f"no model is called {name!r}; `echoscope models list` shows all")
    listed = _listed(model)
    out: dict[str, Any] = {"name": name, "origin": model.origin, "path": model.path}
    folder = Path(model.path)
    config = _json_of(folder / "config.json")
    if not config:
        return out | {"state": "not a folder on this disk" if not folder.is_dir() else "no config"}
    out |= {
        "type": config.get("model_type"),
        "parameters": listed.num_parameters,
        "bytes": listed.num_bytes,
        "layers": config.get("num_hidden_layers"),
        "hidden size": config.get("hidden_size"),
        "vocabulary": config.get("vocab_size"),
        "context": config.get("max_position_embeddings"),
        "dtype": config.get("dtype"),
    }
    return out | _json_of(folder / "origin.json")


def _listed(model: NamedModel) -> ListedModel:
    folder = Path(model.path)
    weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    try:
        shapes = [shape for file in weights for shape in weight_shapes(file).values()]
    except (OSError, ValueError):
        shapes = []
    description = SHIPPED.get(model.name) or _json_of(folder / "origin.json").get("description")
    files = [file for file in folder.iterdir() if file.is_file()] if folder.is_dir() else []
    return ListedModel(
        name=model.name,
        origin=model.origin,
        path=model.path,
        description=str(description or model.path),
        num_parameters=sum(math.prod(shape) for shape in shapes),
        num_bytes=sum(file.stat().st_size for file in files),
    )


def _json_of(path: Path) -> dict[str, Any]:
    """Empty where there is no such object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
