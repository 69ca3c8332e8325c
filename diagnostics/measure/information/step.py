"""The information measured at one step of a run: draws, scores and estimates in one call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import DiagnosticRecord, FloatArray, FloatArray64, Trajectory

from ...config import InformationConfig
from ..draws import SEED, generator
from .cross_scores import CrossScores, Scorer, ScoringError, score_draw
from .estimate import InformationEstimate, estimate
from .pairs import Decode, Draw, draw_all_turns, draw_first_turn
from .ragen import ragen_metrics, thinking_rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepInformation:
    """What one step's trajectories tell about the dependence on their prompts."""

    estimates: Mapping[str, InformationEstimate]
    ragen: Mapping[str, float]

    @property
    def problems(self) -> tuple[str, ...]:
        """Why families have no value, in words."""
        return tuple(
            f"{name}: {family.problem}" for name, family in self.estimates.items() if family.problem
        )

    def metrics(self) -> dict[str, float]:
        """`info/...`, and RAGEN's keys."""
        out = dict(self.ragen)
        for family in self.estimates.values():
            out |= family.metrics()
        return out

    def record(self, step: int) -> DiagnosticRecord:
        """What is stored beside the metrics: kind `information`.

        Per family the arrays `<family>_curve_k` and `<family>_curve`. JSON: `families`, each with
        `problem`.
        """
        arrays: dict[str, NDArray[Any]] = {}
        for name, family in self.estimates.items():
            arrays |= {f"{name}_curve_k": family.curve_k, f"{name}_curve": family.curve}
        families = {name: {"problem": family.problem} for name, family in self.estimates.items()}
        payload = json.dumps({"families": families})
        return DiagnosticRecord(step=step, kind="information", arrays=arrays, payload=payload)

    def by_token(self, trajectories: Sequence[Trajectory]) -> dict[str, tuple[FloatArray, ...]]:
        """Trajectory id to nats per sampled token, one array per turn; NaN where none was scored.

        Without trajectories of which no turn was. The first family that scored a turn counts.
        """
        scored: dict[tuple[str, int], FloatArray64] = {}
        for family in self.estimates.values():
            pairs = zip(family.scores.source_M, family.token_information, strict=False)
            scored = dict(pairs) | scored
        out: dict[str, tuple[FloatArray, ...]] = {}
        for trajectory in trajectories:
            rows = [np.full(t.num_sampled_tokens, np.nan, np.float32) for t in trajectory.turns]
            keys = [(trajectory.id, turn.index) for turn in trajectory.turns]
            for row, key in zip(rows, keys, strict=True):
                row[: len(scored.get(key, ()))] = scored.get(key, ())
            if not scored.keys().isdisjoint(keys):
                out[trajectory.id] = tuple(rows)
        return out


Plan = Mapping[str, Draw]
"""Which reasonings are scored under which prompts at a step, by family."""


def plan_information(
    trajectories: Sequence[Trajectory], config: InformationConfig, *, step: int, decode: Decode
) -> Plan:
    """Draw the pairs of every family; they depend on the step only.

    Args:
        decode: token ids to text, control tokens included.
    """
    rng = generator(step)
    draws = (
        draw_first_turn(trajectories, config, rng, decode=decode),
        draw_all_turns(trajectories, rng, decode=decode),
    )
    return {draw.family: draw for draw in draws}


def num_tokens(plan: Plan) -> int:
    """Tokens that scoring sends through a model, at most: each prompt, and after it every distinct
    reasoning."""
    total = 0
    for draw in plan.values():
        reasonings = {reasoning.tobytes(): len(reasoning) for reasoning in draw.reasonings}
        total += sum(map(len, draw.prompts)) + len(draw.prompts) * sum(reasonings.values())
    return total


def measure_information(
    scorer: Scorer,
    trajectories: Sequence[Trajectory],
    plan: Plan,
    *,
    previous: Mapping[str, float] | None = None,
) -> StepInformation:
    """Score and estimate what is planned.

    A family that cannot be scored is not available and says why; nothing is raised for what the
    trajectories hold.

    Args:
        scorer: at the weights and the temperature that sampled.
        previous: RAGEN's keys of the measurement before, for its moving averages.
    """
    scores = {}
    for family, draw in plan.items():
        try:
            scores[family] = score_draw(scorer, draw)
        except ScoringError as error:
            scores[family] = CrossScores(problem=str(error), family=family)
    return StepInformation(
        estimates={name: estimate(drawn, seed=SEED) for name, drawn in scores.items()},
        ragen=thinking_rates(trajectories) | ragen_metrics(scores["first_turn"], previous),
    )
