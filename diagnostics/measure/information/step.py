"""The information measured at one step of a run: draws, scores and estimates in one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import DiagnosticRecord, FloatArray, Trajectory

from ...config import InformationConfig
from .actions import ActionInformation, estimate_actions, first_actions
from .cross_scores import CrossScores, Scorer, ScoringError, score_draw
from .estimate import Breakdown, InformationEstimate, estimate
from .pairs import Decode, Draw, StatePrompt, draw_all_turns, draw_first_turn, draw_state
from .ragen import as_ragen_first_turn, ragen_metrics, thinking_rates
from .ragen import draw_first_turn as draw_ragen_first_turn
from .ragen import draw_trajectory as draw_ragen_trajectory

Generator = np.random.Generator
SEED = 20_260
"""Of the draws and permutations of a step."""
LEVEL = 0.95
"""Of the intervals."""
PERMUTATIONS = 1000
"""For the p-value of the retrieval accuracy."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepInformation:
    """What one step's trajectories tell about the dependence on their prompts."""

    estimates: Mapping[str, InformationEstimate]
    """By family."""
    actions: ActionInformation
    ragen: Mapping[str, float]
    """RAGEN's own keys."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why families, or the actions, have no value, in words."""
        found = [f"{name}: {one.problem}" for name, one in self.estimates.items() if one.problem]
        return (*found, *([f"actions: {self.actions.problem}"] if self.actions.problem else []))

    def metrics(self) -> dict[str, float]:
        """`info/...`, and RAGEN's keys."""
        out = dict(self.ragen)
        for one in self.estimates.values():
            out |= one.metrics()
        return out | self.actions.metrics()

    def record(self, step: int) -> DiagnosticRecord:
        """What is stored beside the metrics: kind `information`.

        Per family the arrays `<family>_curve_k` and `<family>_curve`, and `<family>_per_prompt`
        (N, 3): information, entropy, number of reasonings, and `<family>_posterior` (N, N): row own
        prompt, column where its reasonings point. JSON: `families`, each with `problem`, `caveats`,
        `prompts` (trajectory id and turn of one reasoning of each prompt), `per_turn` and `per_env`
        (the three by key); `actions_problem`.
        """
        arrays: dict[str, NDArray[Any]] = {}
        families: dict[str, Any] = {}
        for name, one in self.estimates.items():
            arrays[f"{name}_curve_k"] = one.curve_k
            arrays[f"{name}_curve"] = one.curve
            arrays[f"{name}_per_prompt"] = np.array([_row(p) for p in one.per_prompt]).reshape(
                -1, 3
            )
            arrays[f"{name}_posterior"] = one.posterior_NN
            families[name] = {
                "problem": one.problem,
                "caveats": list(one.caveats),
                "prompts": _prompts(one),
                "per_turn": {str(turn): _row(part) for turn, part in one.per_turn.items()},
                "per_env": {env: _row(part) for env, part in one.per_env.items()},
            }
        payload = {"families": families, "actions_problem": self.actions.problem}
        return DiagnosticRecord(
            step=step, kind="information", arrays=arrays, payload=json.dumps(payload)
        )

    def token_information(self, trajectory: Trajectory) -> tuple[FloatArray, ...] | None:
        """Nats per sampled token, one array per turn; NaN where a token was not scored.

        None if no turn of the trajectory was. The first family that scored a turn counts.
        """
        known: dict[int, FloatArray] = {}
        for one in self.estimates.values():
            if not (one.source_M and one.token_information):
                continue
            for (source, index), tokens in zip(one.source_M, one.token_information, strict=True):
                if source == trajectory.id:
                    known.setdefault(index, tokens.astype(np.float32))
        if not known:
            return None
        out = []
        for turn in trajectory.turns:
            size = 0 if turn.response_tokens is None else len(turn.response_tokens)
            row = np.full(size, np.nan, dtype=np.float32)
            if turn.index in known:
                row[: len(known[turn.index])] = known[turn.index]
            out.append(row)
        return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InformationPlan:
    """Which reasonings are scored under which prompts at a step."""

    families: Mapping[str, Draw]
    ragen: Mapping[str, Draw]
    """RAGEN's samples that are scored by themselves, by name."""

    @property
    def num_tokens(self) -> int:
        """Tokens that scoring it sends through a model, at most: equal beginnings count again."""
        return sum(_num_tokens(draw) for draw in (*self.families.values(), *self.ragen.values()))


def plan_information(
    trajectories: Sequence[Trajectory],
    config: InformationConfig,
    *,
    step: int,
    decode: Decode,
    state_prompt: StatePrompt | None = None,
) -> InformationPlan:
    """Draw the pairs of every configured family; they depend on the step only.

    Args:
        decode: token ids to text, control tokens included.
        state_prompt: for the `state` family.
    """
    rng = np.random.default_rng([SEED, step])
    draws: dict[str, Callable[[Generator], Draw]] = {
        "first_turn": lambda r: draw_first_turn(trajectories, config, r, decode=decode),
        "all_turns": lambda r: draw_all_turns(trajectories, config, r, decode=decode),
        "state": lambda r: _draw_state(trajectories, config, r, decode, state_prompt),
    }
    families: dict[str, Draw] = {family: draws[family](rng) for family in config.families}
    ragen: dict[str, Draw] = {}
    for sample in config.ragen_samples:
        if sample == "trajectory":
            ragen[sample] = draw_ragen_trajectory(trajectories, rng)
        elif "first_turn" not in families:  # else its scores are those of the family
            ragen[sample] = draw_ragen_first_turn(trajectories, rng)
    return InformationPlan(families=families, ragen=ragen)


def measure_information(
    scorer: Scorer,
    trajectories: Sequence[Trajectory],
    plan: InformationPlan,
    config: InformationConfig,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    previous: Mapping[str, float] | None = None,
) -> StepInformation:
    """Score and estimate what is planned, and I(X;A).

    A family that cannot be scored is not available and says why; nothing is raised for what the
    trajectories hold.

    Args:
        scorer: at the weights and the temperature that sampled.
        top_k: of the sampling, 0 if not cut; as are `top_p` and `min_p`.
        previous: RAGEN's keys of the measurement before, for its moving averages.
    """

    def score(draw: Draw) -> CrossScores:
        try:
            return score_draw(scorer, draw, top_k=top_k, top_p=top_p, min_p=min_p)
        except ScoringError as error:
            return CrossScores.missing(str(error), family=draw.family)

    scores = {family: score(draw) for family, draw in plan.families.items()}
    ragen = thinking_rates(trajectories) if config.ragen_samples else {}
    for sample in config.ragen_samples:
        own = plan.ragen.get(sample)
        found = as_ragen_first_turn(scores["first_turn"]) if own is None else score(own)
        ragen |= ragen_metrics(found, previous)
    actions, prompts = first_actions(trajectories)
    return StepInformation(
        estimates={
            family: estimate(one, level=LEVEL, num_permutations=PERMUTATIONS, seed=SEED)
            for family, one in scores.items()
        },
        actions=estimate_actions(
            actions,
            prompts,
            level=LEVEL,
            num_permutations=PERMUTATIONS,
            seed=SEED,
        ),
        ragen=ragen,
    )


def _num_tokens(draw: Draw) -> int:
    """As `cross_score` forwards them: each prompt, and after it every distinct reasoning."""
    reasonings = {reasoning.tobytes(): len(reasoning) for reasoning in draw.reasonings}
    prompts = {prompt.tobytes(): len(prompt) for prompt in draw.prompts}
    return sum(prompts.values()) + len(prompts) * sum(reasonings.values())


def _draw_state(
    trajectories: Sequence[Trajectory],
    config: InformationConfig,
    rng: Generator,
    decode: Decode,
    state_prompt: StatePrompt | None,
) -> Draw:
    if state_prompt is None:
        return Draw(
            family="state",
            problem="prompts that show the present observation alone were not supplied",
        )
    return draw_state(trajectories, config, rng, decode=decode, state_prompt=state_prompt)


def _prompts(one: InformationEstimate) -> list[list[str | int]]:
    """Trajectory id and turn of the first reasoning of each prompt; empty if they are not known."""
    if not one.source_M:
        return []
    firsts = np.unique(one.column_M, return_index=True)[1]
    return [list(one.source_M[m]) for m in firsts.tolist()]


def _row(part: Breakdown) -> list[float]:
    return [part.mutual_information, part.conditional_entropy, float(part.num_reasonings)]
