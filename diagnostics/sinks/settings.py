"""Settings of the sinks: which other tools a run is copied to while it trains."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..config import MAX_STEPS, FrozenModel

SinkName = Literal["wandb", "tensorboard", "trackio"]
SINK_NAMES: tuple[SinkName, ...] = ("wandb", "tensorboard", "trackio")

_PACKAGES: dict[SinkName, tuple[str, str]] = {
    "wandb": ("wandb", "wandb>=0.31"),
    "tensorboard": ("tensorboardX", "tensorboardX>=2.6"),
    "trackio": ("trackio", "trackio>=0.36"),
}
"""Sink to the distribution that it writes with, and what to install."""

Label = Annotated[str, Field(min_length=1, max_length=64)]
Folder = Annotated[str, Field(max_length=1000)]
ProjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120)]


class SinkError(ValueError):
    """A sink cannot be used as it is configured. One sentence, with the way out."""


class WandbSink(FrozenModel):
    """Weights & Biases."""

    mode: Literal["disabled", "offline", "online"] = Field(
        "disabled",
        description="disabled: nothing is copied. offline: a folder that `wandb sync` uploads "
        "later. online: to the server of WANDB_BASE_URL, with the key of `wandb login` or "
        "WANDB_API_KEY.",
    )
    project: ProjectName = "echoscope"
    entity: str = Field("", max_length=120, description="Team or user; empty: your default one.")
    name: str = Field("", max_length=120, description="Name of the run there; empty: its id here.")
    group: str = Field("", max_length=120, description="Runs of one group stand together.")
    tags: tuple[Label, ...] = Field((), max_length=50, strict=False)
    folder: Folder = Field(
        "", description="Where `wandb/` is written; empty: `sinks/` in the run's folder."
    )


class TensorboardSink(FrozenModel):
    """TensorBoard's event files."""

    enabled: bool = False
    folder: Folder = Field(
        "",
        description="A log folder that several runs share; each gets a folder of its own there. "
        "Empty: `sinks/tensorboard` in the run's folder.",
    )


class TrackioSink(FrozenModel):
    """trackio's local database."""

    enabled: bool = False
    project: ProjectName = "echoscope"
    name: str = Field("", max_length=120, description="Name of the run there; empty: its id here.")
    folder: Folder = Field(
        "", description="Where trackio keeps its databases (TRACKIO_DIR); empty: its own folder."
    )


class SinksConfig(FrozenModel):
    """To which other tools a run is copied while it trains, and how much of it.

    Who names `tensorboard` or `trackio` without `enabled` means yes. W&B may upload what the policy
    writes, so its `mode` must be said.
    """

    wandb: WandbSink = Field(default_factory=WandbSink)
    tensorboard: TensorboardSink = Field(default_factory=TensorboardSink)
    trackio: TrackioSink = Field(default_factory=TrackioSink)
    ragen_names: bool = Field(
        True, description="Write what RAGEN logs too under RAGEN's names as well."
    )
    episodes: int = Field(
        16, ge=0, le=1000, description="Episodes in the table of a step, with text; 0: none."
    )
    episodes_every: int = Field(
        10, ge=1, le=MAX_STEPS, description="Steps between two tables of episodes."
    )
    max_chars: int = Field(
        2000, ge=50, le=100_000, description="Characters of one message in that table."
    )
    timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Longest wait for a sink before it is given up."
    )
    finish_s: float = Field(
        60.0, gt=0, le=3600, description="How long the end of a run waits for its sinks."
    )

    @model_validator(mode="before")
    @classmethod
    def _named_is_on(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        wandb = values.get("wandb")
        if isinstance(wandb, Mapping) and "mode" not in wandb:
            raise ValueError(
                "sinks.wandb has no mode, so nothing would be copied: set sinks.wandb.mode to "
                "offline (a folder that `wandb sync` uploads) or online"
            )
        named = (n for n in ("tensorboard", "trackio") if isinstance(values.get(n), Mapping))
        return {**values, **{name: {"enabled": True, **values[name]} for name in named}}

    def active(self) -> tuple[SinkName, ...]:
        """The sinks that are on."""
        is_on: dict[SinkName, bool] = {
            "wandb": self.wandb.mode != "disabled",
            "tensorboard": self.tensorboard.enabled,
            "trackio": self.trackio.enabled,
        }
        return tuple(name for name in SINK_NAMES if is_on[name])


def require_packages(config: SinksConfig) -> None:
    """Raises SinkError where a sink is on whose package is not installed."""
    for name in config.active():
        distribution, requirement = _PACKAGES[name]
        try:
            # Not whether it can be found: `wandb/` of earlier runs looks like a package, too.
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            raise SinkError(
                f"the sink {name} needs the package {distribution}: run pip install "
                f"'{requirement}', or leave the sink out ({off_switch(name)} in a run file)"
            ) from None


def off_switch(name: SinkName) -> str:
    """The setting that turns a sink off."""
    return "sinks.wandb.mode=disabled" if name == "wandb" else f"sinks.{name}.enabled=false"
