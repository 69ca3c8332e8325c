"""Replay: find a trajectory and see it turn by turn."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from echoscope.dashboard.data import queries
from echoscope.dashboard.live import pulses
from echoscope.dashboard.live.refreshing import guarded, problem
from echoscope.dashboard.page import ui, url_state
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.page.url_state import go, number
from echoscope.dashboard.replay import html as replay_html
from echoscope.dashboard.replay import news, panels, tokens
from echoscope.dashboard.replay.controls import (
    asked_of_page,
    choose_list,
    follow_trajectory,
    title,
    why_empty,
)
from echoscope.dashboard.replay.listing import Listed, hits_in, summary
from echoscope.dashboard.replay.table import pick_table
from echoscope.dashboard.words import plain
from echoscope.store.status import Origin, origin_of

# Of the list at once; the page of the list follows the trajectory that is shown. (Streamlit would
# print a docstring here: it shows what stands by itself in a script.)
ROWS = 14
# Turns up to which two buttons lead anywhere; a longer episode has a field for the number.
SHORT = 8
# On a phone the conversation stands above the list.
STYLE = """<style>
.st-key-replay_head h3 { font-size: 1rem; padding: 0; white-space: nowrap; }
.st-key-replay_bar button p { font-size: 0.85rem; }
@media (max-width: 640px) {
  .st-key-replay_parts [data-testid=stHorizontalBlock]:has(> [data-testid=stColumn]) {
    flex-direction: column-reverse; }
  .st-key-replay_parts [data-testid=stHorizontalBlock] [data-testid=stHorizontalBlock]:has(
    > [data-testid=stColumn]) { flex-direction: row; }
  [data-testid=stVerticalBlock] > :has(> .st-key-replay_bar) { order: 1; }
  .st-key-replay_controls [data-testid=stColumn] { min-width: 40%; flex: 1 1 40%; }
}
</style>"""


def draw(run_id: str) -> None:
    st.html(tokens.STYLE + replay_html.STYLE + STYLE)
    seen = pulses.pulse(run_id)  # first: whatever comes while the rest is read is news
    info = queries.info(run_id)
    if info.last_step < 0 and not len(queries.listing(run_id, 0)):
        ui.empty(
            "This run has no finished step yet, so there is nothing to replay. "
            "Trajectories appear here within seconds of being sampled."
        )
        if ui.is_following(run_id):
            news.await_news(run_id, seen)
        return
    is_foreign = origin_of(info.config) is not Origin.TRAINED
    if is_foreign and not queries.trajectory_steps(run_id):
        ui.empty("This run has metrics and no rollouts, so there is nothing to replay.")
        return
    try:
        answer = choose_list(run_id)
    except Problem as trouble:
        problem(trouble)
        return
    asked = asked_of_page(run_id)
    news.watch(run_id, answer, seen)

    is_click = False

    # What moves from one trajectory to the next, and nothing else, is drawn anew when it does.
    @st.fragment(key="replay")
    def part() -> None:
        nonlocal is_click
        follow_trajectory()
        if is_click and asked_of_page(run_id) != asked:
            st.rerun()  # it asked for another list
        is_click = True  # not while the page itself is drawn: it might never reach its end
        guarded(lambda: _list_and_trajectory(run_id, answer))

    part()


def _list_and_trajectory(run_id: str, answer: Listed) -> None:
    trajectory_id = _shown(run_id, answer.rows)
    left, right = st.container(key="replay_parts").columns([4, 9], gap="medium")
    with left:
        _list(run_id, answer, trajectory_id)
    with right:
        if trajectory_id is None:
            st.caption("Choose a trajectory.")
        else:
            _trajectory(run_id, trajectory_id, answer)


def _shown(run_id: str, rows: pd.DataFrame) -> str | None:
    """The trajectory of the URL, or the first of the list."""
    first = str(rows["id"].iloc[0]) if len(rows) else None
    asked = url_state.text_param("trajectory", most=40)
    if not asked or asked in set(rows["id"]):
        return asked or first
    try:
        queries.trajectory(run_id, asked)
    except Problem as trouble:
        instead = "the first of the list is shown" if first else "nothing is shown"
        ui.notice(f"{trouble.text}; {instead}")
        return first
    return asked


def _list(run_id: str, answer: Listed, trajectory_id: str | None) -> None:
    rows = answer.rows
    st.caption(plain(f"{title(run_id, answer)}. {summary(rows)}.", 600))
    if not len(rows):
        ui.empty(why_empty(run_id, answer.asked))
        return
    ids = [str(name) for name in rows["id"]]
    page = (ids.index(trajectory_id) if trajectory_id in ids else 0) // ROWS
    window = rows.iloc[page * ROWS : (page + 1) * ROWS]
    pick_table(window, key="replay_rows", picked=trajectory_id, on_pick=_go_to)
    pages = -(-len(ids) // ROWS)
    if pages > 1:
        key = f"replay_page_{page}"
        firsts = ids[::ROWS]
        st.pagination(
            pages,
            default=page + 1,
            key=key,
            on_change=lambda: _go_to(firsts[min(st.session_state[key], pages) - 1]),
            max_visible_pages=5,
        )


def _go_to(trajectory_id: str) -> None:
    go(trajectory=trajectory_id, turn=None, page=None)


def _first_turn(rows: pd.DataFrame, trajectory_id: str, num_turns: int) -> int:
    """The turn that a search matched, else the newest."""
    last = max(num_turns - 1, 0)
    if "turn" not in rows:
        return last
    turns = rows.loc[rows["id"] == trajectory_id, "turn"]
    return min(int(turns.iloc[0]), last) if len(turns) else last


def _trajectory(run_id: str, trajectory_id: str, answer: Listed) -> None:
    rows = answer.rows
    trajectory = queries.trajectory(run_id, trajectory_id)
    outcome = queries.outcome(run_id, trajectory_id)
    num_turns = trajectory.num_turns
    turn = first = _first_turn(rows, trajectory_id, num_turns)
    if num_turns:
        asked = url_state.int_param("turn", first, least=0, most=num_turns - 1)
        turn = first if asked is None else asked
    chosen = trajectory.turns[turn] if trajectory.turns else None
    with st.container(key="replay_head", horizontal=True, vertical_alignment="center"):
        st.subheader(plain(trajectory.id, 60), anchor=False, width="content")
        st.html(replay_html.headline(trajectory, outcome), width="content")
        with st.popover("Details", help="Seeds, ids, prompt, download"):
            panels.details(run_id, trajectory, outcome, chosen)
    with st.container(key="replay_bar", horizontal=True, gap="small", vertical_alignment="center"):
        _buttons(trajectory_id, [str(name) for name in rows["id"]], turn, first, num_turns)
        with st.container(width=170):
            panels.heat_choice(trajectory, outcome)
        panels.list_others(trajectory, answer.asked)
    if chosen is None:
        ui.empty(f"No turn was played: the episode ended by {trajectory.stop_reason.value}.")
        if trajectory.final_observation:
            st.html(replay_html.text_box(trajectory.final_observation))
    else:
        search_text = answer.asked.text
        panels.conversation(
            run_id, trajectory, outcome, turn, lambda text: hits_in(text, search_text)
        )


def _buttons(trajectory_id: str, ids: list[str], turn: int, first: int, num_turns: int) -> None:
    """Previous and next, with their keys."""
    list_index = ids.index(trajectory_id) if trajectory_id in ids else -1
    before = ids[list_index - 1] if list_index > 0 else None
    after = ids[list_index + 1] if list_index + 1 < len(ids) else None
    for label, key, target in (("Previous", "k", before), ("Next", "j", after)):
        st.button(
            label,
            key=f"replay_{key}",
            shortcut=key,
            disabled=target is None,
            on_click=_go_to,
            args=(target,),
            help="Trajectory of the list",
        )
    for label, key, target_turn in (("Previous turn", "p", turn - 1), ("Next turn", "n", turn + 1)):
        st.button(
            label,
            key=f"replay_{key}",
            shortcut=key,
            disabled=not 0 <= target_turn < num_turns,
            on_click=go,
            kwargs={"trajectory": trajectory_id, "turn": target_turn},
        )
    if num_turns > SHORT:
        with st.container(width=120):
            number(
                "turn",
                f"Turn, 0 to {num_turns - 1}",
                default=first,
                least=0,
                most=num_turns - 1,
                hides_label=True,
                now=turn,
            )


ui.run_frame("Replay", draw)
