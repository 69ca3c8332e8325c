"""Settings of what happens beside training: evaluation, probe, checkpoints, observers.

Defaults live here and in `settings.py`, nowhere else.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from echoscope.diagnostics.config import FrozenModel, Live

from .limits import GreedyTemperature, PluginName, Rows, Steps

MAX_MINUTES = 1_000_000.0


class EvalConfig(FrozenModel):
    every: Live[Steps] = Field(
        10,
        description="Steps between evaluations; the last step is evaluated, too. 0 for none.",
    )
    before: bool = Field(True, description="Evaluate before the first step.")
    temperature: GreedyTemperature = Field(1.0, ge=0, le=10, description="0 for greedy.")
    pass_at_k: list[Rows] = Field(
        default_factory=list,
        max_length=20,
        description="The k of pass@k, the chance that one of k samples solves a task; each at most "
        "envs.eval_group_size. Empty: only pass@G.",
    )


class ProbeConfig(FrozenModel):
    """A few fixed tasks, played with fixed random numbers: success that no draw of prompts moves.

    Alarms on success look at it first. The same policy plays it the same way each time.
    """

    every: Live[Steps] = Field(10, description="Steps between probes; 0 for none.")
    tasks: Rows = Field(32, description="Tasks, spread evenly over envs.train.")


class CurriculumConfig(FrozenModel):
    """Which environments of `envs.train` get how many of the step's groups."""

    by: Live[Literal["none", "success"]] = Field(
        "none",
        description="none: as many as configured. success: most where about half of the episodes "
        "succeed, fewer where nearly all or nearly none do.",
    )


class CheckpointConfig(FrozenModel):
    every: Live[Steps] = Field(
        20,
        description="Steps between checkpoints, the first before step 1; 0: only one, at the end.",
    )
    minutes: Live[float] = Field(
        10.0,
        ge=0,
        le=MAX_MINUTES,
        description="Also write a checkpoint after the step at which so many minutes were trained "
        "since the last one; 0: by steps alone.",
    )
    keep: int = Field(
        3,
        ge=1,
        le=10_000,
        description="How many of the newest checkpoints are kept. Those before an open alarm, the "
        "best one and requested ones are kept, too.",
    )
    best: bool = Field(
        True,
        description="Also write a checkpoint after an evaluation whose success is at least "
        "5 points above that of every checkpoint.",
    )


class ObserverEntry(FrozenModel):
    """An observer of your own: a class that sees every step before its update."""

    function: PluginName
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the class."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value


class GuardConfig(FrozenModel):
    """What a run does about its own collapse; `guard=auto` is short for `guard.mode=auto`."""

    mode: Live[Literal["off", "ask", "auto"]] = Field(
        "off",
        description="At a critical alarm: off does nothing. ask pauses the run and proposes a "
        "checkpoint and a treatment. auto rewinds the run to that checkpoint, treats it, and goes "
        "on.",
    )
    max: Live[int] = Field(
        3,
        ge=1,
        le=100,
        description="Treatments that a run and those that it goes on as may get by the guard.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_mode(cls, value: Any) -> Any:
        return {"mode": value} if isinstance(value, str) else value


class GivenTreatment(FrozenModel):
    """Settings that a rewind changed."""

    checkpoint: Steps = Field(description="Step of the checkpoint.")
    settings: dict[str, Any] = Field(description="The new values, by dotted key.")
    before: dict[str, Any] = Field(description="The values that they replaced.")

    @property
    def as_typed(self) -> dict[str, Any]:
        """The settings as a person types them: without the entries of what is gone.

        >>> gone = {"reward.shaping.0.weight": None, "reward.shaping": []}
        >>> GivenTreatment(checkpoint=0, settings=gone, before={}).as_typed
        {'reward.shaping': []}
        """
        whole = tuple(f"{key}." for key, value in self.settings.items() if value is not None)
        return {
            key: value
            for key, value in self.settings.items()
            if value is not None or not key.startswith(whole)
        }


class BranchedFrom(FrozenModel):
    """Where a run took over: written by `ctl RUN branch` and by a rewind, by nobody else."""

    run_id: str
    step: Steps = Field(description="The step of the checkpoint that it started from.")
    reason: str = Field("", max_length=2_000)
    issued_by: str = Field("", max_length=100, description="Who asked for it.")
    command_id: str = Field(
        "", max_length=200, description="The `rewind` of the parent that this run carries out."
    )
    treatments: list[GivenTreatment] = Field(
        default_factory=list,
        max_length=1_000,
        description="What rewinds have tried in this run and its ancestors, the last one here.",
    )


class RecipeOrigin(FrozenModel):
    """The recipe that a run extends, and where they differ: what a verdict names as a difference.

    Written when a configuration is loaded. Of a recipe that differs from the run in nothing that
    trains it, the recipe that it extends itself is named.
    """

    name: str
    values: dict[str, Any] = Field(
        default_factory=dict,
        description="The recipe's value of every setting that the run has otherwise, by dotted "
        "key.",
    )
