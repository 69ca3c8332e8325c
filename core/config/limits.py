"""Bounds and kinds of values that several settings share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from echoscope.store.records import MAX_STEP

MIN_TEMPERATURE = 0.01
"""Logits divided by less leave the range of float32."""
MAX_LR = 10.0
MAX_TOKENS = 1_000_000_000
MAX_COUNT = 1_000_000
MAX_ROWS = 99_999
"""Trajectories of a step and split: their ids have five digits."""


def _greedy_or_warm(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise PydanticCustomError(
            "temperature", "must be 0 for greedy, or at least {least}", {"least": MIN_TEMPERATURE}
        )
    return temperature


Steps = Annotated[int, Field(ge=0, le=MAX_STEP)]
Rows = Annotated[int, Field(ge=1, le=MAX_ROWS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Share = Annotated[float, Field(ge=0, le=1)]
Coefficient = Annotated[float, Field(ge=0, le=1e3)]
LearningRate = Annotated[float, Field(gt=0, le=MAX_LR)]
PluginName = Annotated[
    str,
    Field(min_length=1, max_length=200, description="`module:function`, or an entry point."),
]
Decay = Annotated[float, Field(ge=0, lt=1, strict=True)]
GreedyTemperature = Annotated[float, AfterValidator(_greedy_or_warm)]
