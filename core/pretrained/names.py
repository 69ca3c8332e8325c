"""Short names of models on this disk: shipped with the package, or fetched into the cache.

Light: imports no torch. The cache is `$ECHOSCOPE_CACHE`, else `~/.cache/echoscope`
(`$XDG_CACHE_HOME/echoscope` where that is set). A fetched model is a folder `models/NAME` in it.
"""

from __future__ import annotations

from pathlib import Path

from echoscope.store.models import SHIPPED, cache_folder, shipped_folder

FETCHABLE = {"smollm2": "SmolLM2-135M-Instruct by Hugging Face, from 4-bit weights (Q4_1)"}
"""Names that `echoscope models get` fetches, and one line on each."""


def models_folder() -> Path:
    """Where fetched models lie; it need not exist."""
    return cache_folder() / "models"


def named_models() -> dict[str, Path]:
    """The folder of every name that `model.path` takes, shipped ones first."""
    fetched = {name: models_folder() / name for name in FETCHABLE}
    return {name: shipped_folder(name) for name in SHIPPED} | {
        name: folder for name, folder in fetched.items() if (folder / "config.json").is_file()
    }
