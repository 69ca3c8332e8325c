"""One episode as a notebook shows it: the dialogue with rewards, boards and tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from echoscope.dashboard.escaping import cut, escape, visible
from echoscope.dashboard.replay import html as replay_html
from echoscope.dashboard.replay import tokens
from echoscope.store.records import Trajectory, TrajectoryOutcome, Turn

from . import html

MAX_TURNS = 40
"""Of an episode that one card shows."""
_TEXT_CHARS = 600
"""Of a turn in a terminal."""


@dataclass(frozen=True, slots=True, repr=False)
class Episode:
    """One episode, with what the update learned of it.

    A cell that ends with it shows the dialogue. `trajectory` is the whole record, tokens included.
    """

    trajectory: Trajectory
    outcome: TrajectoryOutcome | None
    """None where no update has used it."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.trajectory.turns

    def __repr__(self) -> str:
        episode = self.trajectory
        success = {None: "success not defined", True: "solved", False: "failed"}[episode.is_success]
        lines = [
            f"{episode.id}: {success}, return {episode.episode_return:.3g}, "
            f"{episode.num_turns} turns, ended by {episode.stop_reason.value}"
        ]
        for turn in episode.turns[:MAX_TURNS]:
            lines += [
                f"turn {turn.index}, reward {turn.reward:.3g}",
                f"  observed: {_short(turn.observation)}",
                f"  replied:  {_short(turn.response)}",
            ]
        if episode.num_turns > MAX_TURNS:
            lines.append(f"{episode.num_turns - MAX_TURNS} more turns")
        return visible("\n".join(lines), None)

    def _repr_html_(self) -> str:
        return html.framed(
            f'<div class="es-nb-title">{escape(self.trajectory.id)}</div>',
            replay_html.episode_html(self.trajectory, self.outcome, most_turns=MAX_TURNS),
            style=tokens.STYLE + replay_html.STYLE + html.STYLE,
        )


def _short(text: str) -> str:
    start, left_out = cut(" ".join(text.split()), _TEXT_CHARS)
    return f"{start} ..." if left_out else start
