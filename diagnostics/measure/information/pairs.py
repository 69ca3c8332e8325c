"""Which prompts and reasonings are compared: pairs (X, Z) drawn from a step's trajectories.

X is the exact prompt of a turn. Z is what was sampled after it, from its first token up to and with
the closing tag of the reasoning, so that p(z|x) is a distribution over complete reasonings.

| family | X | what it asks |
| --- | --- | --- |
| `first_turn` | first prompts | does the reasoning depend on the task? |
| `all_turns` | prompts of any turn, own history included | ... on the conversation so far? |

A draw has one turn per episode, so no prompt contains the reasoning that is scored under it. The
turn is drawn before looking at the episode, so that short episodes are not preferred. Equal prompts
are one prompt, and every prompt gets the same number of reasonings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import FloatArray, IntArray, Span, Trajectory, Turn
from echoscope.text.replies import THINK_CLOSE

from ...config import InformationConfig

FAMILIES = ("first_turn", "all_turns")
TURN_PROMPTS = 16
"""Distinct prompts of the family of all turns, at most, with one reasoning each."""

Decode = Callable[[IntArray], str]
"""Token ids to text, control tokens included."""

_TAGS = re.compile(r"</?think>|</?answer>|<\|im_(?:start|end)\|>")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """Distinct prompts, and the same number of reasonings sampled under each.

    Legend: **N** prompts, **M** reasonings in all.
    """

    family: str
    prompts: tuple[IntArray, ...] = ()
    reasonings: tuple[IntArray, ...] = ()
    column_M: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    inner_M2: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    """Half-open: the tokens between the tags, empty without a closing tag or without words."""
    logprobs: tuple[FloatArray | None, ...] = ()
    source_M: tuple[tuple[str, int], ...] = ()
    problem: str = ""
    """Why I(X;Z) cannot be had from these pairs; empty if it can."""

    @property
    def num_reasonings(self) -> int:
        return len(self.reasonings)


class _Pair(NamedTuple):
    prompt: IntArray
    reasoning: IntArray
    trajectory: Trajectory
    turn: int


def sampled_reasoning(turn: Turn, decode: Decode) -> IntArray | None:
    """The tokens of Z of a turn, None where there are no tokens or no reasoning.

    With a closing tag, Z ends with the token that completes it. Without one Z is the whole
    response: complete with its stop token if the policy ended there, else a prefix.
    """
    if turn.response_tokens is None or turn.reasoning_span is None or turn.reasoning_chars is None:
        return None
    tokens = turn.response_tokens
    size = len(tokens)
    if _is_closed(turn):
        end = size = turn.reasoning_span[1]
        while size < len(tokens) and THINK_CLOSE not in decode(tokens[end:size]):
            size += 1
    return tokens[:size] if size else None


def inner_span(turn: Turn) -> Span | None:
    """The response's tokens between the tags, if both tags stand and there are words between.

    What RAGEN scores: it drops tags inside the reasoning, and turns of which nothing is left.
    """
    if turn.reasoning_span is None or turn.prompt_tokens is None or not _is_closed(turn):
        return None
    return turn.reasoning_span if _TAGS.sub("", turn.reasoning).strip() else None


def _is_closed(turn: Turn) -> bool:
    return turn.reasoning_chars is not None and turn.response.startswith(
        THINK_CLOSE, turn.reasoning_chars[1]
    )


def draw_first_turn(
    trajectories: Sequence[Trajectory],
    config: InformationConfig,
    rng: np.random.Generator,
    *,
    decode: Decode,
) -> Draw:
    """Pairs of the first turns: at most `config.prompts` prompts x `config.reasonings`."""
    picked = [(trajectory, 0) for trajectory in trajectories]
    return _stratified("first_turn", picked, config.prompts, config.reasonings, rng, decode)


def draw_all_turns(
    trajectories: Sequence[Trajectory],
    rng: np.random.Generator,
    *,
    decode: Decode,
    num_prompts: int = TURN_PROMPTS,
) -> Draw:
    """One pair per episode at a turn drawn beforehand: at most `num_prompts` prompts."""
    picked = _drawn_turns(trajectories, rng)
    return _stratified("all_turns", picked, num_prompts, 1, rng, decode)


def _drawn_turns(
    trajectories: Sequence[Trajectory], rng: np.random.Generator
) -> list[tuple[Trajectory, int]]:
    """One turn index per episode, drawn without looking at it; shorter episodes drop out.

    Drawing among the turns an episode has would prefer the turns of short episodes, and whether an
    episode ends with a turn depends on that turn's reasoning. Each index is drawn equally often.
    """
    longest = max((trajectory.num_turns for trajectory in trajectories), default=0)
    if longest == 0:
        return []
    indices = np.arange(len(trajectories)) % longest
    rng.shuffle(indices)
    return [
        (trajectory, int(turn))
        for trajectory, turn in zip(trajectories, indices, strict=True)
        if turn < trajectory.num_turns
    ]


def _stratified(
    family: str,
    picked: Sequence[tuple[Trajectory, int]],
    num_prompts: int,
    num_reasonings: int,
    rng: np.random.Generator,
    decode: Decode,
) -> Draw:
    """Choose prompts among those with enough reasonings, then reasonings under each.

    With too few prompts that have enough, every prompt gets fewer reasonings before prompts are
    left out: the ceiling ln N should not move.
    """
    by_prompt: dict[bytes, list[_Pair]] = {}
    for trajectory, turn in picked:
        if turn >= trajectory.num_turns:
            continue
        record = trajectory.turns[turn]
        reasoning, prompt = sampled_reasoning(record, decode), record.prompt_tokens
        if reasoning is not None and prompt is not None and len(prompt):
            pair = _Pair(prompt, reasoning, trajectory, turn)
            by_prompt.setdefault(np.asarray(prompt, np.int32).tobytes(), []).append(pair)
    if not by_prompt:
        problem = "there are no turns to draw from"
        if picked:
            problem = (
                f"none of {len(picked)} turns has token ids and a reasoning: I(X;Z) needs sampled "
                "tokens (imported text has none; the text measures work on it)"
            )
        return Draw(family=family, problem=problem)
    strata = list(by_prompt.values())
    sizes = np.array([len(stratum) for stratum in strata])
    size = min(num_prompts, len(strata))
    per_prompt = int(min(num_reasonings, np.sort(sizes)[::-1][size - 1]))
    eligible = np.flatnonzero(sizes >= per_prompt)
    drawn: list[_Pair] = []
    for stratum in np.sort(rng.choice(eligible, size=size, replace=False)):
        picks = np.sort(rng.choice(sizes[stratum], size=per_prompt, replace=False))
        drawn += [strata[stratum][pick] for pick in picks]
    turns = [pair.trajectory.turns[pair.turn] for pair in drawn]
    num_pairs = int(sizes.sum())
    alone = (
        "there is one reasoning under one prompt"
        if num_pairs == 1
        else f"all {num_pairs} reasonings have the same prompt"
    )
    return Draw(
        family=family,
        prompts=tuple(pair.prompt for pair in drawn[::per_prompt]),
        reasonings=tuple(pair.reasoning for pair in drawn),
        column_M=np.repeat(np.arange(size), per_prompt),
        inner_M2=np.array([inner_span(turn) or (0, 0) for turn in turns]),
        logprobs=tuple(
            None if turn.logprobs is None else turn.logprobs[: len(pair.reasoning)]
            for turn, pair in zip(turns, drawn, strict=True)
        ),
        source_M=tuple((pair.trajectory.id, pair.turn) for pair in drawn),
        problem="" if size > 1 else f"{alone}: I(X;Z) needs two distinct prompts",
    )
