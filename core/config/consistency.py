"""Settings of different sections that do not go together: each pair is refused in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .settings import RunConfig


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
