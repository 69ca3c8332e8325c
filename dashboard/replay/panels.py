"""What the replay shows about one trajectory: a turn, its siblings, the same prompt elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from echoscope.store.records import Trajectory, TrajectoryOutcome, Turn

from ..data import queries
from ..live import keyboard
from ..page import url_state
from ..page.url_state import choose, flag, go, number
from ..words import NONE, plain
from . import html as replay_html
from . import tokens
from .export import trajectory_json
from .heat import HEATS, Heat, Scale, available, trajectory_scale
from .list import kept_word, success_word

PLAIN = "none"
TEXT_PART = 20_000
"""Characters of a response that are shown at once."""
OTHER_TEXT, OTHER_TOKENS = 4_000, 500
"""Characters and tokens of a response that stands beside the chosen one."""
MAX_TURNS = 40
"""Of a conversation at once, around the chosen turn."""
CARDS = 4
"""Siblings in one row."""
_MAX_PROMPT = 20_000
_MAX_COPY = 200_000


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
    board = replay_html.turn_boards(trajectory, trajectory.turns[turn])
    talk, side = st.columns([5, 2], gap="medium")
    with talk, st.container(gap="small"):
        start = _chosen_part(trajectory.turns[turn])
        first = max(0, min(turn - MAX_TURNS // 2, trajectory.num_turns - MAX_TURNS))
        shown = trajectory.turns[first : first + MAX_TURNS]
        scale = _scale(trajectory, outcome)
        parts = [f'<div class="es-note">{first} earlier turns</div>'] if first else []
        for each in shown:
            is_now = each.index == turn
            reply = _reply(run_id, each, outcome, scale, matched, start if is_now else None)
            hits = matched(each.observation)
            parts.append(replay_html.turn_html(each, reply, hits, is_now=is_now))
        later = trajectory.num_turns - first - len(shown)
        parts += [f'<div class="es-note">{later} later turns</div>'] if later else []
        if trajectory.final_observation and not later:
            parts.append(
                '<div class="es-turn es-asked">'
                + replay_html.heading("Observation after the last turn")
                + replay_html.text_box(trajectory.final_observation)
                + "</div>"
            )
        st.html(f'<div class="es-talk">{"".join(parts)}</div>')
        keyboard.bring_into_sight(f"{trajectory.id} {turn} {start}")
    with side:
        if board:
            st.html(board)
        st.html(
            replay_html.heading(f"Turn {turn}") + replay_html.turn_facts(trajectory.turns[turn])
        )
        film = replay_html.film_html(trajectory, turn)
        if film:
            st.html(film)


def heat_choice(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> None:
    """The choice of what colours the tokens, which the address keeps."""
    recorded = available(trajectory, outcome)
    choose(
        "heat",
        "Colour the tokens by",
        [PLAIN, *HEATS],
        default=PLAIN,
        words=lambda name: _heat_label(name, name in recorded),
        hides_label=True,
    )


def _heat() -> Heat | None:
    return HEATS.get(url_state.text_param("heat"))


def _scale(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> Scale | None:
    """Colours of the chosen heat, with their legend; None where tokens have no colour."""
    heat = _heat()
    if heat is None:
        return None
    scale = trajectory_scale(heat, [(trajectory, outcome)])
    if all(heat.read(turn, outcome) is None for turn in trajectory.turns):
        st.caption(f"{heat.label} was not recorded for this trajectory.")
        return None
    st.html(tokens.legend_html(heat, scale))
    return scale


def _chosen_part(turn: Turn) -> int:
    """Where the shown part of the chosen turn begins: a character, or a token with a heat."""
    heat = _heat()
    values = None if heat is None else turn.response_tokens
    if values is None:
        return _part_start(len(turn.response), TEXT_PART, "characters")
    return _part_start(len(values), tokens.MAX_TOKENS, "tokens")


def _reply(
    run_id: str,
    turn: Turn,
    outcome: TrajectoryOutcome | None,
    scale: Scale | None,
    matched: Matched,
    start: int | None,
) -> str:
    """A response with its regions, or its tokens with the chosen heat.

    Args:
        start: Where the shown part of the chosen turn begins; None for any other turn, whose
            beginning is shown.
    """
    heat = _heat()
    values = None if heat is None or scale is None else heat.read(turn, outcome)
    if heat is None or scale is None or values is None:
        size = TEXT_PART if start is not None else OTHER_TEXT
        return tokens.text_html(turn, start or 0, size, matched(turn.response))
    assert turn.response_tokens is not None  # or there would be no values
    begin, size = start or 0, tokens.MAX_TOKENS if start is not None else OTHER_TOKENS
    end = tokens.window_end(len(values), begin, size)
    pieces = queries.token_pieces(run_id, turn.response_tokens[begin:end].tolist())
    coloured = tokens.heat_html(turn, heat, values, scale, pieces=pieces, start=begin, size=size)
    if pieces is not None:
        return coloured
    note = "This run has no tokenizer.json: one cell per token, and the text below."
    return f'{coloured}<div class="es-note">{note}</div>{tokens.text_html(turn, 0, TEXT_PART)}'


def as_sent(run_id: str, turn: Turn) -> None:
    """The prompt of a turn as the policy saw it, and the response to copy, if asked for."""
    if url_state.text_param("prompt") == "1" and turn.prompt_tokens is not None:
        _prompt(run_id, turn)
    if url_state.text_param("copy") == "1":
        st.code(turn.response[:_MAX_COPY], language=None, wrap_lines=True)


def details(trajectory: Trajectory, outcome: TrajectoryOutcome | None, turn: Turn | None) -> None:
    """Seeds, ids and everything else about a trajectory, and switches for what stands below it."""
    st.html(replay_html.trajectory_facts(trajectory, outcome))
    if turn is not None and turn.prompt_tokens is not None:
        flag("prompt", "Show the prompt as the policy saw it")
    if turn is not None:
        flag("copy", "Show the response as plain text to copy")
    st.download_button(
        "Download as JSON",
        lambda: trajectory_json(trajectory, outcome),
        file_name=f"{trajectory.id}.json",
        mime="application/json",
        on_click="ignore",
    )


def _heat_label(name: str, is_recorded: bool) -> str:
    if name == PLAIN:
        return "No token colours"
    return HEATS[name].label if is_recorded else f"{HEATS[name].label} (not recorded)"


def _part_start(size: int, part: int, noun: str) -> int:
    """Where the shown part of a long response begins; draws the pages if there are several."""
    pages = -(-size // part)
    if pages <= 1:
        return 0
    page = number("part", f"Part of {size:,} {noun}", default=1, least=1, most=pages)
    st.caption(f"{part:,} {noun} at a time: part {page} of {pages}.")
    return (page - 1) * part


def _prompt(run_id: str, turn: Turn) -> None:
    assert turn.prompt_tokens is not None
    shown = turn.prompt_tokens[-_MAX_PROMPT:]
    pieces = queries.token_pieces(run_id, shown.tolist())
    if pieces is None:
        st.caption("This run has no tokenizer.json, so its prompt cannot be shown as text.")
        return
    cut = len(turn.prompt_tokens) - len(shown)
    words = f"Prompt, {len(turn.prompt_tokens):,} tokens" + (
        f", the last {len(shown):,}" * bool(cut)
    )
    st.html(replay_html.heading(words) + replay_html.text_box("".join(pieces)))


def siblings_panel(run_id: str, trajectory: Trajectory, turn: int) -> None:
    """The group side by side: samples of one task by one policy."""
    rows = queries.listing(run_id, trajectory.step)
    group = rows[
        (rows["split"] == trajectory.split.value) & (rows["group_index"] == trajectory.group_index)
    ].sort_values("sibling_index")
    nouns = "trajectory" if len(group) == 1 else "siblings"
    st.caption(
        f"Group {trajectory.group_index}: {len(group)} {nouns}, "
        f"{_return_words(group['episode_return'].dropna())}. At turn {turn}:"
    )
    pages = max(-(-len(group) // (2 * CARDS)), 1)
    page = 1
    if pages > 1:
        page = number("page", "Page of siblings", default=1, least=1, most=pages)
    shown = group.iloc[(page - 1) * 2 * CARDS : page * 2 * CARDS]
    _cards(run_id, shown, turn, current=trajectory.id)


def _return_words(returns: pd.Series[float]) -> str:
    if not len(returns):
        return "no return is known"
    spread = f", standard deviation {returns.std(ddof=1):.3g}" if len(returns) > 1 else ""
    return f"return {returns.mean():.3g}{' on average' * bool(spread)}{spread}"


def _cards(run_id: str, rows: pd.DataFrame, turn: int, *, current: str) -> None:
    records = rows.to_dict("records")
    for at in range(0, len(records), CARDS):
        columns = st.columns(CARDS)
        for column, row in zip(columns, records[at : at + CARDS], strict=False):
            _card(column, run_id, {str(k): v for k, v in row.items()}, turn, current)


def _card(
    place: st.delta_generator.DeltaGenerator,
    run_id: str,
    row: dict[str, object],
    turn: int,
    current: str,
) -> None:
    found = str(row["id"])
    with place.container(border=True):
        is_current = found == current
        st.button(
            f"{found} (shown)" if is_current else found,
            key=f"card_{found}",
            on_click=go,
            kwargs={"trajectory": found, "step": row["step"], "panel": None, "part": None},
            type="primary" if is_current else "secondary",
            disabled=is_current,
            width="stretch",
        )
        st.html(replay_html.sibling_card(queries.trajectory(run_id, found), row, turn))


_SAME_PROMPT = """
SELECT step, split, count(*) AS trajectories, avg(episode_return) AS mean_return,
       avg(is_success::INT) AS success, min(id) AS first
FROM trajectories WHERE prompt_key = $1 GROUP BY step, split ORDER BY step, split
"""


def prompt_panel(run_id: str, trajectory: Trajectory, turn: int) -> None:
    """The same first prompt at other steps, and one of them beside this trajectory."""
    found = queries.table(run_id, _SAME_PROMPT, (trajectory.prompt_key,))
    if len(found) < 2:
        st.caption(
            "This prompt was sampled at this step only. Prompts that come back are those of the "
            "evaluation and of the probe set (splits eval and probe)."
        )
        return
    st.dataframe(
        found.drop(columns="first").rename(columns={"mean_return": "mean return"}),
        hide_index=True,
        height=min(36 * len(found) + 40, 260),
        placeholder=NONE,
        column_config={"success": st.column_config.NumberColumn(format="percent")},
        alt="Steps at which this prompt was sampled",
    )
    steps = sorted({int(step) for step in found["step"]} - {trajectory.step})
    if not steps:
        return
    last = max(trajectory.step, steps[-1])
    asked = number("against", "Compare with step", default=steps[0], least=0, most=last)
    against = min(steps, key=lambda step: (abs(step - asked), step))
    if against != asked:
        st.caption(f"Step {asked} did not sample this prompt; the nearest that did is {against}.")
    rows = queries.listing(run_id, against)
    same = rows[rows["prompt_key"] == trajectory.prompt_key].copy()
    # The same sibling as far as there is one.
    same["_far"] = (same["sibling_index"] - trajectory.sibling_index).abs()
    own = queries.listing(run_id, trajectory.step)
    pair = pd.concat([same.sort_values(["_far", "id"]).head(1), own[own["id"] == trajectory.id]])
    for column, row in zip(st.columns(2), pair.to_dict("records"), strict=True):
        record = {str(k): v for k, v in row.items()}
        with column:
            words = f"step {row['step']}: {success_word(row['is_success'])}, "
            st.caption(plain(words + kept_word(row["kept"], row["split"])))
            _card(column, run_id, record, turn, trajectory.id)
