"""Episodes whose tokens are characters, and a scorer that knows p(character | prompt)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from trajectories import make_trajectory

from echoscope.diagnostics.measure.information.cross_scores import Tally
from echoscope.store.records import FinishReason, IntArray, Trajectory, Turn


def encode(text: str) -> IntArray:
    return np.array([ord(c) for c in text], dtype=np.int32)


def decode(tokens: IntArray) -> str:
    return "".join(map(chr, tokens))


def turn(
    text: str,
    *,
    prompt: str = "p",
    index: int = 0,
    finish: FinishReason = FinishReason.STOP,
    actions: tuple[str, ...] = (),
) -> Turn:
    """The reasoning runs from the first character to the closing tag, or to the end."""
    close = text.find("</think>")
    span = (0, len(text) if close < 0 else close)
    return Turn(
        index=index,
        observation="",
        response=text,
        reasoning_chars=span,
        reasoning_span=span,
        prompt_tokens=encode(prompt),
        response_tokens=encode(text),
        finish_reason=finish,
        actions=actions,
    )


def episode(group: int, sibling: int, *turns: Turn) -> Trajectory:
    return make_trajectory(
        *turns,
        step=0,
        index=group * 100 + sibling,
        group_index=group,
        sibling_index=sibling,
        tag="lake",
        env_seed=group,
        prompt_key=f"task {group}",
    )


def batch(groups: int, siblings: int, lengths: tuple[int, ...] = (1,)) -> list[Trajectory]:
    """Episodes of cycling lengths; a later prompt spells its own history."""
    out = []
    for g in range(groups):
        for s in range(siblings):
            length = lengths[(g * siblings + s) % len(lengths)]
            turns = [
                turn(
                    f"z{g}.{s}.{k}</think>a",
                    prompt=f"g{g}" + f":{s}.{k}" * (k > 0),
                    index=k,
                    actions=(f"move {g % 3}",),
                )
                for k in range(length)
            ]
            out.append(episode(g, s, *turns))
    return out


class TableScorer:
    """p(character | prompt): 0.9 for characters that occur in the prompt, else 0.1."""

    def __init__(self) -> None:
        self.tally = Tally()

    def score(
        self, prompts: Sequence[IntArray], continuations: Sequence[Sequence[IntArray]]
    ) -> list[list[np.ndarray]]:
        return [self.rows(*pair) for pair in zip(prompts, continuations, strict=True)]

    def rows(self, prompt: IntArray, continuations: Sequence[IntArray]) -> list[np.ndarray]:
        self.tally.num_tokens += len(prompt) + sum(map(len, continuations))
        given = set(prompt.tolist())
        return [
            np.log([0.9 if token in given else 0.1 for token in z]).astype(np.float32)
            for z in continuations
        ]
