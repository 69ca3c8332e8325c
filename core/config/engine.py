"""Settings of the engine that samples replies. Defaults live here and in `settings.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from echoscope.diagnostics.config import FrozenModel


class _EngineConfig(FrozenModel):
    """What every engine is told."""

    max_batch_rows: int = Field(256, ge=1, le=1_000_000, description="Rows decoded at once.")


class HfEngineConfig(_EngineConfig):
    """The built-in sampling loop over the trained weights themselves."""

    kind: Literal["hf"] = "hf"
    reuse_cache: bool = Field(True, description="Keep key/value caches across turns.")


EngineConfig = HfEngineConfig
"""One of the kinds; a second one makes this a union with the discriminator `kind`."""
