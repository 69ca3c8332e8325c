"""Is what the policy writes well formed: tags, effects, truncation, lengths?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from echoscope.store.records import FinishReason, Trajectory, Turn


def form_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Shares of turns, and quantiles of the length of a response in characters. NaN without turns.

    A reasoning is closed if the response goes on after it: its closing tag was written.
    """
    turns = [turn for episode in episodes for turn in episode.turns]

    def share(holds: Callable[[Turn], bool]) -> float:
        return sum(map(holds, turns)) / len(turns) if turns else float("nan")

    lengths = [float(len(turn.response)) for turn in turns] or [np.nan]
    p10, p50, p90 = np.quantile(lengths, [0.1, 0.5, 0.9]).tolist()
    return {
        "valid_frac": share(lambda turn: turn.is_valid),
        "effective_frac": share(lambda turn: turn.is_effective),
        "truncated_frac": share(lambda turn: turn.finish_reason is FinishReason.LENGTH),
        "closed_reasoning_frac": share(is_reasoning_closed),
        "empty_reasoning_frac": share(lambda turn: not turn.reasoning.strip()),
        "num_chars_p10": p10,
        "num_chars_p50": p50,
        "num_chars_p90": p90,
    }


def is_reasoning_closed(turn: Turn) -> bool:
    return turn.reasoning_chars is not None and turn.reasoning_chars[1] < len(turn.response)
