"""What the replay shows about one trajectory: its conversation, its details."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import streamlit as st

from echoscope.store.records import Trajectory, TrajectoryOutcome, Turn
from echoscope.text.strict_json import json_value

from ..data import queries
from ..live import talk
from ..page import url_state
from ..page.url_state import choose, flag, go
from . import html as replay_html
from . import tokens
from .heat import HEATS, Heat, Scale, available, trajectory_scale
from .listing import Asked

PLAIN = "none"
MAX_TURNS = 40
"""Of a conversation at once, around the chosen turn."""
_MAX_PROMPT = 20_000

Matched = Callable[[str], list[str]]
"""Text -> the pieces of it that the search which led here matched."""


def conversation(
    run_id: str,
    trajectory: Trajectory,
    outcome: TrajectoryOutcome | None,
    turn: int,
    matched: Matched,
) -> None:
    """All turns in one scroll that has the chosen one in sight, with the board beside it."""
    columns = st.columns([5, 2], gap="medium")
    with columns[0], st.container(gap="small"):
        first = max(0, min(turn - MAX_TURNS // 2, trajectory.num_turns - MAX_TURNS))
        turns_shown = trajectory.turns[first : first + MAX_TURNS]
        colours = _colours(trajectory, outcome)
        pieces_of = functools.partial(queries.token_pieces, run_id)
        parts = [f'<div class="es-note">{first} earlier turns</div>'] if first else []
        for each in turns_shown:
            is_now = each.index == turn
            hits = matched(each.response)
            reply = replay_html.reply_html(
                each, outcome, colours, pieces_of, hits=hits, is_short=not is_now
            )
            seen = matched(each.observation)
            parts.append(replay_html.turn_html(each, reply, seen, is_now=is_now))
        later = trajectory.num_turns - first - len(turns_shown)
        parts += (
            [f'<div class="es-note">{later} later turns</div>']
            if later
            else [replay_html.ending_html(trajectory)]
        )
        st.html(f'<div class="es-talk">{"".join(parts)}</div>')
        talk.bring_into_sight(f"{trajectory.id} {turn}")
    with columns[1]:
        chosen = trajectory.turns[turn]
        st.html(
            replay_html.turn_boards(trajectory, chosen)
            + replay_html.heading(f"Turn {turn}")
            + replay_html.turn_facts(chosen)
        )


def heat_choice(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> None:
    """The choice of what colours the tokens, which the address keeps."""
    recorded = available(trajectory, outcome)

    def label(name: str) -> str:
        if name == PLAIN:
            return "No token colours"
        return HEATS[name].label + (" (not recorded)" if name not in recorded else "")

    choose(
        "heat",
        "Colour the tokens by",
        [PLAIN, *HEATS],
        default=PLAIN,
        label_of=label,
        hides_label=True,
    )


def _colours(
    trajectory: Trajectory, outcome: TrajectoryOutcome | None
) -> tuple[Heat, Scale] | None:
    """The chosen heat with its scale, whose legend is drawn; None where tokens have no colour."""
    heat = HEATS.get(url_state.text_param("heat"))
    if heat is None:
        return None
    if heat.key not in available(trajectory, outcome):
        st.caption(f"{heat.label} was not recorded for this trajectory.")
        return None
    scale = trajectory_scale(heat, trajectory, outcome)
    st.html(tokens.legend_html(heat, scale))
    return heat, scale


def list_others(trajectory: Trajectory, asked: Asked) -> None:
    """Links that list what belongs to a trajectory, or, where a condition holds, the whole step."""
    key = trajectory.prompt_key.replace("'", "''")
    wheres = {
        "Siblings": f"step = {trajectory.step} AND group_index = {trajectory.group_index}",
        "Same prompt": f"prompt_key = '{key}'",
    }
    for label, where in ({"Whole step": None} if asked.where else wheres).items():
        st.button(
            label,
            type="tertiary",
            on_click=go,
            kwargs={"where": where, "q": None, "success": None, "kept": None},
        )


def details(
    run_id: str, trajectory: Trajectory, outcome: TrajectoryOutcome | None, turn: Turn | None
) -> None:
    """Seeds, ids and everything else about a trajectory, and the prompt of the chosen turn."""
    st.html(replay_html.trajectory_facts(trajectory, outcome))
    st.download_button(
        "Download as JSON",
        lambda: trajectory_json(trajectory, outcome),
        file_name=f"{trajectory.id}.json",
        mime="application/json",
        on_click="ignore",
    )
    is_stored = turn is not None and turn.prompt_tokens is not None
    if turn is not None and is_stored and flag("prompt", "Show the prompt as the policy saw it"):
        _prompt(run_id, turn)


def trajectory_json(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    """Everything that was recorded, under the names of `store.records`; NaN becomes null."""
    record = json_value(trajectory)
    record["id"] = trajectory.id
    record["episode_return"] = trajectory.episode_return
    record["outcome"] = None if outcome is None else json_value(outcome)
    return json.dumps(record, indent=1, allow_nan=False)


def _prompt(run_id: str, turn: Turn) -> None:
    assert turn.prompt_tokens is not None
    tail = turn.prompt_tokens[-_MAX_PROMPT:]
    pieces = queries.token_pieces(run_id, tail.tolist())
    if pieces is None:
        st.caption("This run has no tokenizer.json, so its prompt cannot be shown as text.")
        return
    title = f"Prompt, {len(turn.prompt_tokens):,} tokens"
    if len(tail) < len(turn.prompt_tokens):
        title += f", the last {len(tail):,}"
    st.html(replay_html.heading(title) + replay_html.text_box("".join(pieces)))
