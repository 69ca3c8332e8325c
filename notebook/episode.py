"""One episode as a notebook shows it: the dialogue with rewards, boards and tool calls."""

from __future__ import annotations

from collections.abc import Iterator
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
    """One episode, with what the update learned of it. Iterating gives its turns.

    A cell that ends with it shows the dialogue. `trajectory` is the whole record, tokens included.
    """

    trajectory: Trajectory
    outcome: TrajectoryOutcome | None
    """None where no update has used it."""

    @property
    def id(self) -> str:
        return self.trajectory.id

    @property
    def step(self) -> int:
        return self.trajectory.step

    @property
    def is_success(self) -> bool | None:
        """None where success is not defined."""
        return self.trajectory.is_success

    @property
    def episode_return(self) -> float:
        """Environment rewards, penalties and shaping; NaN where an import does not say."""
        return self.trajectory.episode_return

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.trajectory.turns

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.trajectory.turns)

    def __len__(self) -> int:
        return self.trajectory.num_turns

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
        episode = self.trajectory
        more = episode.num_turns - MAX_TURNS
        return html.framed(
            f'<div class="es-nb-title">{escape(episode.id)}</div>',
            replay_html.trajectory_facts(episode, self.outcome),
            replay_html.film_html(episode, -1),
            '<div class="es-talk">',
            *(
                replay_html.turn_html(turn, tokens.text_html(turn), (), is_now=False)
                for turn in episode.turns[:MAX_TURNS]
            ),
            f'<div class="es-note">{more} more turns: see .turns</div>' if more > 0 else "",
            "</div>",
            self._ending(),
            style=html.STYLE + html.REPLAY_STYLE,
        )

    def _ending(self) -> str:
        text = self.trajectory.final_observation
        if not text:
            return ""
        return (
            f"<details><summary>After the last turn</summary>{replay_html.text_box(text)}</details>"
        )


def _short(text: str) -> str:
    start, left_out = cut(" ".join(text.split()), _TEXT_CHARS)
    return f"{start} ..." if left_out else start
