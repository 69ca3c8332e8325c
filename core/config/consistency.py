"""Settings of different sections that do not go together: each pair is refused in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .settings import RunConfig


def check_guard(config: RunConfig) -> None:
    """A guard acts on alarms, and goes on in its own process."""
    if config.guard.mode == "off":
        return
    why = ""
    if not config.diagnostics.enabled:
        why = "acts on alarms, but diagnostics.enabled is false, so none is raised"
    elif config.trainer.launcher != "local":
        why = (
            f"goes on in the process of the run, but trainer.launcher={config.trainer.launcher} "
            "ends it with the run"
        )
    if why:
        raise ValueError(f"guard.mode is {config.guard.mode}, which {why}: set guard.mode=off")


def check_curriculum(config: RunConfig) -> None:
    """A curriculum moves groups between tags of fresh rollouts."""
    if config.curriculum.by == "none":
        return
    if config.from_run is not None:
        raise ValueError(
            f"curriculum.by is {config.curriculum.by}, but from_run has its groups already: set "
            "curriculum.by=none"
        )
    if not config.has_choice_of_tags:
        tags = [entry.name for entry in config.envs.train]
        raise ValueError(
            f"curriculum.by is {config.curriculum.by}, which chooses between the tags of "
            f"envs.train, but these are {tags}: give it two entries or more, each with a tag "
            "of its own"
        )
