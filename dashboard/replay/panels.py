"""What the replay shows about one trajectory: its conversation, its details."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import streamlit as st

from echoscope.store.records import IntArray, Trajectory, TrajectoryOutcome, Turn
from echoscope.text.strict_json import json_value

from ..data import queries
from ..live.scripts import component
from ..page import url_state
from ..page.url_state import choose, flag, number
from . import diff, tokens
from . import html as replay_html
from .heat import HEATS, Heat, HeatScale, available, trajectory_scale
from .strip import ended

PLAIN = "none"
MAX_TURNS = 40
"""Of a conversation at once, around the chosen turn."""
BESIDE = "beside"
"""In the address: the episode that the shown one is compared with."""
OTHER_PX = 250
_SAME_PROMPT = """
SELECT id, step, is_success, stop_reason, episode_return FROM trajectories
WHERE prompt_key = $1 AND step <> $2 AND split = $3
QUALIFY row_number() OVER (PARTITION BY step ORDER BY abs(sibling_index - $4), id) = 1
ORDER BY step LIMIT 200
"""
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
    """All turns in one scroll that has the chosen one in sight, each with its board beside it."""
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
        parts.append(replay_html.turn_html(trajectory, each.index, reply, seen, is_now=is_now))
    later = trajectory.num_turns - first - len(turns_shown)
    more = f'<div class="es-note">{later} later turns</div>'
    parts.append(more if later else replay_html.ending_html(trajectory))
    st.html(f"<div {replay_html.TALK}>{''.join(parts)}</div>")


def listen(element: str, on_step: Callable[[int], None]) -> None:
    """Scroll the conversation of the page to its chosen turn, and listen to keys that Streamlit
    has not.

    Args:
        element: Names trajectory and turn.
        on_step: Called with -1 or 1 for the previous or the next step.
    """
    key = "replay_talk"

    def take() -> None:
        by = st.session_state[key].get("step")
        if by in (-1, 1):
            on_step(by)

    component("talk.js")(key=key, data=element, height=0, on_step_change=take)


def choose_other(run_id: str, trajectory: Trajectory) -> str | None:
    """Choose the episode to compare with; None where nothing else answered this prompt."""
    names = others(run_id, trajectory)
    if not names:
        return None
    with st.container(width=OTHER_PX):
        return choose(
            BESIDE,
            "Compare with",
            list(names),
            default=next(iter(names)),
            label_of=names.__getitem__,
            hides_label=True,
        )


def others(run_id: str, trajectory: Trajectory) -> dict[str, str]:
    """Id -> words of what else answered a prompt: siblings first, that which differs most first,
    then an episode of each other step.
    """
    rows = queries.listing(run_id, trajectory.step)
    split = trajectory.split.value
    siblings = rows[
        (rows["split"] == split)
        & (rows["group_index"] == trajectory.group_index)
        & (rows["id"] != trajectory.id)
    ]
    distance = (siblings["episode_return"] - trajectory.episode_return).abs().fillna(-1.0)
    order = distance.sort_values(ascending=False, kind="stable").index
    names = {
        str(row["id"]): f"sibling {row['sibling_index']}, {ended(row)}"
        for row in siblings.loc[order].to_dict("records")
    }
    params = (trajectory.prompt_key, trajectory.step, split, trajectory.sibling_index)
    if trajectory.prompt_key:
        elsewhere = queries.table(run_id, _SAME_PROMPT, params)
        for row in elsewhere.to_dict("records"):
            names[str(row["id"])] = f"step {row['step']}, {ended(row)}"
    return names


def comparison(trajectory: Trajectory, other: Trajectory, turn: int | None) -> None:
    """Two episodes in one scroll, turn by turn, with the words marked that only one of them has."""
    first = diff.first_difference(trajectory, other)
    heads = "".join(
        f'<div class="es-facts"><span class="{css}">step {each.step}, sibling '
        f"{each.sibling_index}</span>{replay_html.headline(each, None, is_short=True)}</div>"
        for css, each in (("es-left", trajectory), ("es-right", other))
    )
    if first is None:
        heads += '<div class="es-both es-note">Both episodes are the same.</div>'
    elif first:
        heads += f'<div class="es-both es-note">They are the same up to turn {first - 1}.</div>'
    now = (first or 0) if turn is None else turn
    st.html(
        f'<div class="es-pair">{heads}</div>'
        f'<div class="es-two"><div {replay_html.TALK}>'
        f"{diff.episodes_html(trajectory, other, now)}</div></div>"
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
    )


def _colours(
    trajectory: Trajectory, outcome: TrajectoryOutcome | None
) -> tuple[Heat, HeatScale] | None:
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


def details(
    run_id: str, trajectory: Trajectory, outcome: TrajectoryOutcome | None, turn: Turn | None
) -> None:
    """Seeds, ids and everything else about a trajectory and its chosen turn; how it is shown."""
    heat_choice(trajectory, outcome)
    if turn is not None and trajectory.num_turns > 1:
        last = trajectory.num_turns - 1
        number("turn", f"Turn, 0 to {last}", default=last, least=0, most=last, now=turn.index)
    st.html(replay_html.heading(trajectory.id) + replay_html.trajectory_facts(trajectory, outcome))
    if turn is not None:
        st.html(replay_html.heading(f"Turn {turn.index}") + replay_html.turn_facts(turn))
    st.download_button(
        "Download as JSON",
        lambda: trajectory_json(trajectory, outcome),
        file_name=f"{trajectory.id}.json",
        mime="application/json",
        on_click="ignore",
    )
    if turn is None or turn.prompt_tokens is None:
        return
    if flag("prompt", "Show the prompt as the policy saw it"):
        _prompt(run_id, turn.prompt_tokens)


def trajectory_json(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    """Everything that was recorded, under the names of `store.records`; NaN becomes null."""
    record = json_value(trajectory)
    record["id"] = trajectory.id
    record["episode_return"] = trajectory.episode_return
    record["outcome"] = None if outcome is None else json_value(outcome)
    return json.dumps(record, indent=1, allow_nan=False)


def _prompt(run_id: str, prompt: IntArray) -> None:
    tail = prompt[-_MAX_PROMPT:]
    pieces = queries.token_pieces(run_id, tail.tolist())
    if pieces is None:
        st.caption("This run has no tokenizer.json, so its prompt cannot be shown as text.")
        return
    title = f"Prompt, {len(prompt):,} tokens"
    if len(tail) < len(prompt):
        title += f", the last {len(tail):,}"
    st.html(replay_html.heading(title) + replay_html.text_box("".join(pieces)))
