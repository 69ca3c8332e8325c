"""Settings of the sinks: which other tools a run is copied to while it trains."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Literal

from pydantic import Field

from ..config import FrozenModel

SinkName = Literal["wandb", "tensorboard", "trackio"]
SINK_NAMES: tuple[SinkName, ...] = ("wandb", "tensorboard", "trackio")

_PACKAGES: dict[SinkName, tuple[str, str]] = {
    "wandb": ("wandb", "wandb>=0.31"),
    "tensorboard": ("tensorboardX", "tensorboardX>=2.6"),
    "trackio": ("trackio", "trackio>=0.36"),
}
"""Sink to the distribution that it writes with, and what to install."""

Label = Annotated[str, Field(min_length=1, max_length=64)]
ProjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120)]


class SinkError(ValueError):
    """A sink cannot be used as it is configured. One sentence, with the way out."""


class SinksConfig(FrozenModel):
    """To which other tools a run is copied while it trains."""

    wandb: Literal["disabled", "offline", "online"] = Field(
        "disabled",
        description="Weights & Biases. offline: a folder that `wandb sync` uploads later. online: "
        "to the server of WANDB_BASE_URL, with the key of `wandb login` or WANDB_API_KEY.",
    )
    tensorboard: bool = Field(
        False, description="TensorBoard's event files, `sinks/tensorboard` in the run's folder."
    )
    trackio: bool = Field(False, description="trackio's local database.")
    project: ProjectName = Field("echoscope", description="At W&B and trackio.")
    entity: str = Field(
        "", max_length=120, description="Team or user at W&B; empty: your default one."
    )
    group: str = Field("", max_length=120, description="At W&B, runs of a group stand together.")
    tags: tuple[Label, ...] = Field((), max_length=50, strict=False, description="At W&B.")
    episodes: int = Field(
        16, ge=0, le=1000, description="Episodes with text, at the first and every tenth step."
    )

    def active(self) -> tuple[SinkName, ...]:
        """The sinks that are on."""
        is_on = (self.wandb != "disabled", self.tensorboard, self.trackio)
        return tuple(name for name, on in zip(SINK_NAMES, is_on, strict=True) if on)


def require_packages(config: SinksConfig) -> None:
    """Raises SinkError where a sink is on whose package is not installed."""
    for name in config.active():
        distribution, requirement = _PACKAGES[name]
        try:
            # Not whether it can be imported: `wandb/` of earlier runs looks like a package, too.
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            raise SinkError(
                f"the sink {name} needs the package {distribution}: run pip install "
                f"'{requirement}', or leave the sink out"
            ) from None
