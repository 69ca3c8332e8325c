"""What the replay shows about one trajectory: a turn, its siblings, the same prompt elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from echoscope.store.records import Trajectory, TrajectoryOutcome, Turn

from ..data import queries
from ..page.url_state import choose, flag, go, number
from ..words import NONE, plain
from . import html as replay_html
from . import tokens
from .heat import HEATS, available, trajectory_scale
from .list import kept_word, success_word

PLAIN = "none"
TEXT_PART = 20_000
"""Characters of a response that are shown at once."""
CARDS = 4
"""Siblings in one row."""
_MAX_PROMPT = 20_000
_MAX_COPY = 200_000


Matched = Callable[[str], list[str]]
"""Text -> the pieces of it that the search which led here matched."""


def turn_panel(
    run_id: str,
    trajectory: Trajectory,
    outcome: TrajectoryOutcome | None,
    turn: Turn,
    matched: Matched,
) -> None:
    """One turn: boards, what was observed, what was said, what happened."""
    left, right = st.columns([1, 1])
    boards = replay_html.turn_boards(trajectory, turn)
    with left:
        if boards:
            st.html(boards)
        st.html(
            replay_html.heading(f"Observation of turn {turn.index}")
            + replay_html.text_box(turn.observation, matched(turn.observation))
        )
        if turn.index == trajectory.num_turns - 1 and trajectory.final_observation:
            st.html(
                replay_html.heading("What it would have seen next")
                + replay_html.text_box(trajectory.final_observation)
            )
    with right:
        st.html(replay_html.turn_facts(turn))
        response(run_id, trajectory, outcome, turn, matched)
        if turn.prompt_tokens is not None and flag(
            "prompt", "Show the prompt as the policy saw it"
        ):
            _prompt(run_id, turn)
        if flag("copy", "Show plain text to copy"):
            st.code(turn.response[:_MAX_COPY], language=None, wrap_lines=True)


def response(
    run_id: str,
    trajectory: Trajectory,
    outcome: TrajectoryOutcome | None,
    turn: Turn,
    matched: Matched,
) -> None:
    """The response with its regions, or its tokens with the chosen heat, part by part."""
    found = available(trajectory, outcome)
    key = choose(
        "heat",
        "Colour the tokens by",
        [PLAIN, *HEATS],
        default=PLAIN,
        words=lambda name: _heat_label(name, name in found),
    )
    heat = HEATS.get(key)
    values = None if heat is None else heat.read(turn, outcome)
    if heat is None or values is None:
        if heat is not None:
            st.caption(f"{heat.label} was not recorded for this turn.")
        start = _part_start(len(turn.response), TEXT_PART, "characters")
        st.html(tokens.text_html(turn, start, TEXT_PART, matched(turn.response)))
        return
    assert turn.response_tokens is not None  # or there would be no values
    start = _part_start(len(values), tokens.MAX_TOKENS, "tokens")
    end = tokens.window_end(len(values), start)
    pieces = queries.token_pieces(run_id, turn.response_tokens[start:end].tolist())
    scale = trajectory_scale(heat, [(trajectory, outcome)])
    st.html(
        tokens.legend_html(heat, scale)
        + tokens.heat_html(turn, heat, values, scale, pieces=pieces, start=start)
    )
    if pieces is None:
        st.caption("The run has no tokenizer.json at hand: one cell per token, and the text below.")
        st.html(tokens.text_html(turn, 0, TEXT_PART))


def _heat_label(name: str, is_recorded: bool) -> str:
    if name == PLAIN:
        return "nothing: show reasoning and answer"
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
        st.caption("The run has no tokenizer.json at hand, so its prompt cannot be spelled.")
        return
    cut = len(turn.prompt_tokens) - len(shown)
    words = f"Prompt, {len(turn.prompt_tokens):,} tokens" + (
        f", the last {len(shown):,}" * bool(cut)
    )
    st.html(replay_html.heading(words) + replay_html.text_box("".join(pieces)))


def siblings_panel(run_id: str, trajectory: Trajectory, turn: int) -> None:
    """The group side by side: same task, same policy, different luck."""
    rows = queries.listing(run_id, trajectory.step)
    group = rows[
        (rows["split"] == trajectory.split.value) & (rows["group_index"] == trajectory.group_index)
    ].sort_values("sibling_index")
    returns = group["episode_return"]
    st.caption(
        f"Group {trajectory.group_index}: {len(group)} siblings, return {returns.mean():.3g} "
        f"on average, standard deviation {returns.std(ddof=0):.3g}. At turn {turn}:"
    )
    pages = max(-(-len(group) // (2 * CARDS)), 1)
    page = 1
    if pages > 1:
        page = number("page", "Page of siblings", default=1, least=1, most=pages)
    shown = group.iloc[(page - 1) * 2 * CARDS : page * 2 * CARDS]
    _cards(run_id, shown, turn, current=trajectory.id)


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


def facts_of(
    trajectory: Trajectory, outcome: TrajectoryOutcome | None, title: str | None = None
) -> None:
    """The head of a trajectory: its id and everything in one or two lines."""
    st.subheader(plain(title or trajectory.id, 60), anchor=False)
    st.html(replay_html.trajectory_facts(trajectory, outcome))
