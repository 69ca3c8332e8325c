"""Which prompts and reasonings are compared: pairs (X, Z) drawn from a step's trajectories.

X is the exact prompt of a turn. Z is what was sampled after it, from its first token up to and with
the closing tag of the reasoning, so that p(z|x) is a distribution over complete reasonings.

| family | X | what it asks |
| --- | --- | --- |
| `first_turn` | first prompts | does the reasoning depend on the task? |
| `all_turns` | prompts of any turn, own history included | ... on the conversation so far? |
| `state` | system prompt and present observation only | ... on what is seen now? (a lower bound) |

A draw has one turn per episode, so no prompt contains the reasoning that is scored under it. The
turn is drawn before looking at the episode, so that short episodes are not preferred. Equal prompts
are one prompt, and every prompt gets the same number of reasonings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import FinishReason, FloatArray, IntArray, Span, Trajectory, Turn
from echoscope.text.replies import THINK_CLOSE

from ...config import InformationConfig

Decode = Callable[[IntArray], str]
"""Token ids to text, control tokens included."""

_TAGS = re.compile(r"</?think>|</?answer>|<\|im_(?:start|end)\|>")

StatePrompt = Callable[[Trajectory, int], IntArray | None]
"""The prompt that shows turn k's observation without history; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledReasoning:
    """Z of one turn: the response's tokens `[0, len(tokens))`."""

    tokens: IntArray
    logprobs: FloatArray | None
    """As recorded, if they were."""
    inner: Span
    """The tokens between the tags; empty without a closing tag, or without words between them."""
    is_truncated: bool
    """Cut off inside the reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """Distinct prompts, and the same number of reasonings sampled under each.

    Legend: **N** prompts, **M** reasonings in all.
    """

    family: str
    prompts: tuple[IntArray, ...] = ()
    reasonings: tuple[IntArray, ...] = ()
    column_M: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cluster_N: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Prompts of the same task share a number."""
    env_N: tuple[str, ...] = ()
    turn_M: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    truncated_M: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    inner_M2: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    """Half-open: the tokens between the tags, empty without a closing tag or without words."""
    logprobs: tuple[FloatArray | None, ...] = ()
    """Recorded when the reasonings were sampled; empty where they belong to other prompts."""
    source_M: tuple[tuple[str, int], ...] = ()
    caveats: tuple[str, ...] = ()
    problem: str = ""
    """Why I(X;Z) cannot be had from these pairs; empty if it can."""

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)

    @property
    def num_reasonings(self) -> int:
        return len(self.reasonings)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    prompt: IntArray
    reasoning: SampledReasoning
    trajectory: Trajectory
    turn: int


def sampled_reasoning(turn: Turn, decode: Decode) -> SampledReasoning | None:
    """Z of a turn, None where there are no tokens or no reasoning.

    With a closing tag, Z ends with the token that completes it. Without one Z is the whole
    response: with its stop token if the policy ended there, else flagged as truncated.
    """
    if turn.response_tokens is None or turn.reasoning_span is None or turn.reasoning_chars is None:
        return None
    tokens = turn.response_tokens
    if _is_closed(turn):
        end = size = turn.reasoning_span[1]
        while size < len(tokens) and THINK_CLOSE not in decode(tokens[end:size]):
            size += 1
        is_cut = False
    else:
        size = len(tokens)
        is_cut = turn.finish_reason is not FinishReason.STOP
    if size == 0:
        return None
    return SampledReasoning(
        tokens=tokens[:size],
        logprobs=None if turn.logprobs is None else turn.logprobs[:size],
        inner=inner_span(turn) or (0, 0),
        is_truncated=is_cut,
    )


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
    pairs = []
    for trajectory in trajectories:
        pair = _pair(trajectory, 0, decode)
        if pair is not None:
            pairs.append(pair)
    return _stratified(
        "first_turn", pairs, len(trajectories), config.prompts, config.reasonings, rng
    )


def draw_all_turns(
    trajectories: Sequence[Trajectory],
    config: InformationConfig,
    rng: np.random.Generator,
    *,
    decode: Decode,
) -> Draw:
    """One pair per episode at a turn drawn beforehand: at most `config.turn_prompts` prompts."""
    picked = _drawn_turns(trajectories, rng)
    found = [_pair(trajectory, turn, decode) for trajectory, turn in picked]
    pairs = [pair for pair in found if pair is not None]
    return _stratified(
        "all_turns", pairs, len(picked), config.turn_prompts, config.turn_reasonings, rng
    )


def draw_state(
    trajectories: Sequence[Trajectory],
    config: InformationConfig,
    rng: np.random.Generator,
    *,
    decode: Decode,
    state_prompt: StatePrompt,
) -> Draw:
    """As `draw_all_turns`, with prompts that show the present observation without history.

    Those prompts did not sample the reasonings: what comes out is a lower bound on the dependence
    and a cross-entropy in place of H(Z|X), and the draw says so.
    """
    picked = _drawn_turns(trajectories, rng)
    pairs = []
    for trajectory, turn in picked:
        prompt = state_prompt(trajectory, turn)
        pair = None if prompt is None else _pair(trajectory, turn, decode, prompt)
        if pair is not None:
            pairs.append(pair)
    draw = _stratified(
        "state", pairs, len(picked), config.turn_prompts, config.turn_reasonings, rng
    )
    if all(pair.turn == 0 for pair in pairs):
        return draw
    caveat = (
        "scored under the present observation alone, which did not sample the reasonings: a lower "
        "bound on the dependence and a cross-entropy"
    )
    return replace(draw, logprobs=(), caveats=(*draw.caveats, caveat))


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


def _pair(
    trajectory: Trajectory, turn: int, decode: Decode, prompt: IntArray | None = None
) -> _Pair | None:
    if turn >= trajectory.num_turns:
        return None
    record = trajectory.turns[turn]
    reasoning = sampled_reasoning(record, decode)
    context = record.prompt_tokens if prompt is None else prompt
    if reasoning is None or context is None or len(context) == 0:
        return None
    return _Pair(prompt=context, reasoning=reasoning, trajectory=trajectory, turn=turn)


def _stratified(
    family: str,
    pairs: Sequence[_Pair],
    num_turns: int,
    num_prompts: int,
    num_reasonings: int,
    rng: np.random.Generator,
) -> Draw:
    """Choose prompts among those with enough reasonings, then reasonings under each.

    With too few prompts that have enough, every prompt gets fewer reasonings before prompts are
    left out: the ceiling ln N should not move.
    """
    by_prompt: dict[bytes, list[_Pair]] = {}
    for pair in pairs:
        by_prompt.setdefault(np.asarray(pair.prompt, np.int32).tobytes(), []).append(pair)
    if not by_prompt:
        return Draw(family=family, problem=_no_pairs(num_turns))
    strata = list(by_prompt.values())
    sizes = np.array([len(stratum) for stratum in strata])
    wanted = min(num_prompts, len(strata))
    per_prompt = int(min(num_reasonings, np.sort(sizes)[::-1][wanted - 1]))
    eligible = np.flatnonzero(sizes >= per_prompt)
    chosen = np.sort(rng.choice(eligible, size=wanted, replace=False))
    columns: list[list[_Pair]] = []
    for place in chosen:
        picks = np.sort(rng.choice(sizes[place], size=per_prompt, replace=False))
        columns.append([strata[place][pick] for pick in picks])
    drawn = [pair for column in columns for pair in column]
    tasks: dict[str, int] = {}
    return Draw(
        family=family,
        prompts=tuple(column[0].prompt for column in columns),
        reasonings=tuple(pair.reasoning.tokens for pair in drawn),
        column_M=np.repeat(np.arange(wanted), per_prompt),
        cluster_N=np.array(
            [tasks.setdefault(c[0].trajectory.prompt_key, len(tasks)) for c in columns]
        ),
        env_N=tuple(column[0].trajectory.tag for column in columns),
        turn_M=np.array([pair.turn for pair in drawn]),
        truncated_M=np.array([pair.reasoning.is_truncated for pair in drawn]),
        inner_M2=np.array([pair.reasoning.inner for pair in drawn]),
        logprobs=tuple(pair.reasoning.logprobs for pair in drawn),
        source_M=tuple((pair.trajectory.id, pair.turn) for pair in drawn),
        caveats=_caveats(drawn, len(pairs), num_turns),
        problem=_one_prompt(len(pairs)) if wanted < 2 else "",
    )


def _caveats(drawn: Sequence[_Pair], num_pairs: int, num_turns: int) -> tuple[str, ...]:
    out = []
    if num_pairs < num_turns:
        out.append(f"{num_turns - num_pairs} of {num_turns} turns have no reasoning to score")
    num_truncated = sum(pair.reasoning.is_truncated for pair in drawn)
    if num_truncated:
        out.append(
            f"{num_truncated} of {len(drawn)} reasonings were cut off and are scored as prefixes"
        )
    return tuple(out)


def _no_pairs(num_turns: int) -> str:
    if num_turns == 0:
        return "there are no turns to draw from"
    return (
        f"none of {num_turns} turns has token ids and a reasoning: I(X;Z) needs sampled tokens "
        "(imported text has none; the text measures work on it)"
    )


def _one_prompt(num_pairs: int) -> str:
    if num_pairs == 1:
        return "there is one reasoning under one prompt: I(X;Z) needs two distinct prompts"
    return f"all {num_pairs} reasonings have the same prompt: I(X;Z) needs two distinct prompts"
