"""Short trajectories made of texts, for the tests of the diagnostics."""

from __future__ import annotations

from collections.abc import Sequence

from trajectories import make_trajectory

from echoscope.store.records import FinishReason, Trajectory, Turn, prompt_key


def text_turn(
    reasoning: str | None,
    *,
    index: int = 0,
    observation: str = "",
    action: str | None = "up",
    is_closed: bool = True,
    **fields,
) -> Turn:
    """A turn whose response is `REASONING</think><answer>ACTION</answer>`; None has no tags."""
    response, chars = "", None
    if reasoning is not None:
        response, chars = reasoning, (0, len(reasoning))
        if is_closed:
            response += f"</think><answer>{action or ''}</answer>"
    return Turn(
        index=index,
        observation=observation,
        response=response,
        reasoning_chars=chars,
        actions=() if action is None else (action,),
        is_valid=action is not None,
        finish_reason=FinishReason.STOP if is_closed else FinishReason.LENGTH,
        **fields,
    )


def episode(prompt: str, turns: Sequence[Turn], *, index: int = 0, step: int = 1) -> Trajectory:
    return make_trajectory(
        *turns, step=step, index=index, tag="test", prompt_key=prompt_key(prompt)
    )


def one_turn_each(groups: Sequence[Sequence[str]]) -> list[Trajectory]:
    """`groups[p]` holds the reasonings under prompt p; the observation is `prompt p`."""
    texts = [(p, text) for p, group in enumerate(groups) for text in group]
    return [
        episode(f"prompt {p}", [text_turn(text, observation=f"prompt {p}")], index=index)
        for index, (p, text) in enumerate(texts)
    ]
