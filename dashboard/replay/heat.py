"""Per-token numbers of a response, and how strongly each colours its token.

A heat is a number per sampled token with a meaning, a unit and a neutral value. A colour means the
same number in every trajectory of every run: orange above the neutral value, blue below. Only
advantages, whose unit depends on the estimator, are scaled to what is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import FloatArray, FloatArray64, Trajectory, TrajectoryOutcome, Turn

Read = Callable[[Turn, TrajectoryOutcome | None], FloatArray64 | None]

LEVELS = 5
"""Steps of colour on each side of the neutral value."""
_TYPICAL_SHARE = 0.98
"""A fitted scale ends at this quantile of the distances; the rest has the strongest colour."""
LEAST_REACH = 0.01
"""A fitted scale reaches at least this far: rounding errors shall not look like findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """What a number per token says."""

    key: str
    """In the URL."""
    label: str
    unit: str = ""
    meaning: str
    neutral: float = 0.0
    """Has no colour."""
    reach: float | None
    """The distance from `neutral` that has the strongest colour; None to fit it to what is shown.

    A tenth of it and less has no colour.
    """
    read: Read


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatScale:
    """Neutral value and the distance from it that has the strongest colour."""

    neutral: float
    reach: float
    has_below: bool
    has_above: bool

    def levels(self, values: FloatArray64) -> NDArray[np.int8]:
        """Per token, -LEVELS (far below) to LEVELS (far above), 0 neutral; NaN counts as 0."""
        distance = np.nan_to_num(values - self.neutral, nan=0.0, posinf=1e300, neginf=-1e300)
        steps = np.ceil(np.abs(distance) / self.reach * LEVELS - 0.5)
        levels: NDArray[np.int8] = (np.clip(steps, 0, LEVELS) * np.sign(distance)).astype(np.int8)
        return levels

    def ticks(self) -> list[tuple[int, float]]:
        """(level, value in its middle), from the lowest to the highest, for a legend."""
        low = -LEVELS if self.has_below else 0
        high = LEVELS if self.has_above else 0
        return [(n, self.neutral + n * self.reach / LEVELS) for n in range(low, high + 1)]


def _numbers(turn: Turn, array: FloatArray | None) -> FloatArray64 | None:
    """As float64, None unless there is one number for each sampled token."""
    if array is None or turn.response_tokens is None or len(array) != len(turn.response_tokens):
        return None
    return np.asarray(array, dtype=np.float64)


def _of_turn(name: str) -> Read:
    return lambda turn, _: _numbers(turn, getattr(turn, name))


def _of_outcome(name: str) -> Read:
    def read(turn: Turn, outcome: TrajectoryOutcome | None) -> FloatArray64 | None:
        arrays: tuple[FloatArray, ...] = getattr(outcome, name, None) or ()
        return _numbers(turn, arrays[turn.index]) if turn.index < len(arrays) else None

    return read


_LOGPROBS, _TRAINER, _REFERENCE = (
    _of_turn("logprobs"),
    _of_outcome("trainer_logprobs"),
    _of_outcome("ref_logprobs"),
)


def _ratio(turn: Turn, outcome: TrajectoryOutcome | None) -> FloatArray64 | None:
    """exp(log-prob of the trainer - log-prob at sampling)."""
    trainer, behaviour = _TRAINER(turn, outcome), _LOGPROBS(turn, outcome)
    if trainer is None or behaviour is None:
        return None
    return np.exp(np.clip(trainer - behaviour, -50.0, 50.0))


def _reference_gap(turn: Turn, outcome: TrajectoryOutcome | None) -> FloatArray64 | None:
    reference, policy = _REFERENCE(turn, outcome), _TRAINER(turn, outcome)
    policy = _LOGPROBS(turn, outcome) if policy is None else policy
    return None if reference is None or policy is None else policy - reference


_ALL = (
    Heat(
        key="logprob",
        label="Log-prob",
        unit="nats",
        meaning="log-probability of each sampled token; strong colour = unlikely",
        reach=5.0,
        read=_LOGPROBS,
    ),
    Heat(
        key="entropy",
        label="Entropy",
        unit="nats",
        meaning="entropy of the distribution that each token was drawn from; strong = open choice",
        reach=2.0,
        read=_of_turn("entropies"),
    ),
    Heat(
        key="advantage",
        label="Advantage",
        meaning="what the update multiplied each token's gradient with; orange = reinforced",
        reach=None,
        read=_of_outcome("advantages"),
    ),
    Heat(
        key="ratio",
        label="Importance ratio",
        meaning="trainer's probability over the sampler's, before the update; 1 = they agree",
        neutral=1.0,
        reach=0.2,
        read=_ratio,
    ),
    Heat(
        key="reference",
        label="Reference gap",
        unit="nats",
        meaning="log-prob under the policy minus log-prob under the reference; orange = learned",
        reach=2.0,
        read=_reference_gap,
    ),
    Heat(
        key="information",
        label="Token information",
        unit="nats",
        meaning="how much more likely the own prompt makes each token than the other prompts do: "
        "the words that carry the prompt",
        reach=1.0,
        read=_of_outcome("information"),
    ),
)
HEATS: Mapping[str, Heat] = {heat.key: heat for heat in _ALL}


def available(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> list[str]:
    """Keys of the heats that at least one turn has numbers for."""
    return [
        key
        for key, heat in HEATS.items()
        if any(heat.read(turn, outcome) is not None for turn in trajectory.turns)
    ]


def trajectory_scale(
    heat: Heat, trajectory: Trajectory, outcome: TrajectoryOutcome | None
) -> HeatScale:
    """One scale for all turns."""
    return scale_of(heat, [heat.read(turn, outcome) for turn in trajectory.turns])


def scale_of(heat: Heat, values: Sequence[FloatArray64 | None]) -> HeatScale:
    """The scale of a heat. The values only say which sides of it a legend needs.

    A heat without a fixed reach gets that of the values, and at least LEAST_REACH.
    """
    present = [array[np.isfinite(array)] for array in values if array is not None]
    distance = np.concatenate(present) - heat.neutral if present else np.empty(0)
    reach = heat.reach
    if reach is None:
        sizes = np.abs(distance)
        sizes = sizes[sizes > 1e-12]
        typical = float(np.quantile(sizes, _TYPICAL_SHARE)) if sizes.size else 0.0
        reach = _round_up(max(typical, LEAST_REACH))
    return HeatScale(
        neutral=heat.neutral,
        reach=reach,
        has_below=bool((distance < 0).any()),
        has_above=bool((distance > 0).any()) or not (distance < 0).any(),
    )


def _round_up(value: float) -> float:
    """To 1, 1.5, 2, 3, 4, 5, 6, 8 or 10 times a power of ten: numbers for a legend."""
    power = 10.0 ** math.floor(math.log10(value))
    steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    return power * next((step for step in steps if step * power >= value * (1 - 1e-9)), 10.0)
