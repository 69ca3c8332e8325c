"""Replay: find a trajectory and see it turn by turn."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.dashboard.data import queries
from echoscope.dashboard.escaping import escape
from echoscope.dashboard.live import pulses
from echoscope.dashboard.live.refreshing import guarded, problem
from echoscope.dashboard.page import ui, url_state
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.page.url_state import go
from echoscope.dashboard.replay import diff, news, notes, panels, strip, tokens
from echoscope.dashboard.replay import html as replay_html
from echoscope.dashboard.replay.controls import (
    LEFT_WITH_STEP,
    asked_of_page,
    choose_list,
    follow_trajectory,
    newest_step,
    title,
    why_empty,
)
from echoscope.dashboard.replay.listing import ANY, Listed, hits_in, list_cells, pick_table, summary
from echoscope.dashboard.words import plain
from echoscope.store.records import Trajectory
from echoscope.store.status import Origin, origin_of
from echoscope.store.steer.episode_notes import EpisodeKey, EpisodeNotes

# Of the list at once; the page of the list follows the trajectory that is shown. (Streamlit would
# print a docstring here: it shows what stands by itself in a script.)
ROWS, LEAST_ROWS = 18, 6
# So many cells of the strip take the room of a row of the list.
CELLS_A_ROW = 100
KEYS = (
    ("j k", "episode"),
    ("n p", "turn"),
    ("] [", "step"),
    ("d", "compare"),
    ("l", "labels"),
    ("/", "search"),
    ("?", "details"),
)
# Buttons have icons; their names are for those who cannot see them. On a phone the conversation
# stands above the list, and what is above it takes less room.
STYLE = """<style>
.st-key-replay_head h3 { font-size: 1rem; padding: 0; white-space: nowrap; }
.st-key-replay_head { gap: 0.3rem 0.5rem; }
.st-key-replay_head .es-facts { gap: 0.15rem 0.6rem; }
[class*=st-key-replay_go_] button p { position: absolute; width: 1px; height: 1px;
  overflow: hidden; clip-path: inset(50%); }
.st-key-replay_head kbd { display: none; }
.st-key-replay_head button { min-height: 2rem; padding: 0 0.5rem; }
[class*=st-key-replay_go_] button span { gap: 0; }
.st-key-replay_parts > [data-testid=stLayoutWrapper] > div { gap: 1rem 2rem; }
.es-keys b { font-family: monospace; }
@media (min-width: 641px) {
  .st-key-replay_controls { flex-wrap: nowrap; gap: 0.5rem; }
  .st-key-replay_controls button p { white-space: nowrap; }
}
@media (max-width: 640px) {
  .st-key-replay_parts [data-testid=stHorizontalBlock]:has(> [data-testid=stColumn]) {
    flex-direction: column-reverse; }
  .st-key-run_head h1 { position: absolute; clip-path: inset(50%); }
  .st-key-run_head [data-testid=stHorizontalBlock] { gap: 0.4rem; }
  .st-key-run_status { order: 1; }
  .st-key-replay_controls { gap: 0.4rem; }
  .st-key-replay_controls:has(.st-key-url_split) > :has(.st-key-replay_search) { order: 1;
    flex: 1 1 100%; }
  .st-key-replay_controls:not(:has(.st-key-url_split)) { flex-wrap: nowrap; }
  .st-key-replay_head { column-gap: 0.25rem; }
  .st-key-replay_head button { padding: 0 0.25rem; }
  [data-testid=stMainBlockContainer] { padding: 3.9rem 1rem 2rem; }
}
</style>"""


places: dict[str, DeltaGenerator] = {}


def beside(_run_id: str) -> None:
    places["controls"] = st.container()


def draw(run_id: str) -> None:
    st.html(tokens.STYLE + replay_html.STYLE + strip.STYLE + diff.STYLE + STYLE)
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
        noted = notes.of_run(run_id)
        with places["controls"]:
            answer = choose_list(run_id, noted)
    except Problem as trouble:
        problem(trouble)
        return
    asked = asked_of_page(run_id)
    news.watch(run_id, answer, seen)

    is_click = False
    overview = Overview(run_id, answer)

    # What moves from one trajectory to the next, and nothing else, is drawn anew when it does.
    @st.fragment(key="replay")
    def part() -> None:
        nonlocal is_click
        follow_trajectory()
        if is_click and asked_of_page(run_id) != asked:
            st.rerun()  # it asked for another list
        is_click = True  # not while the page itself is drawn: it might never reach its end
        guarded(lambda: _list_and_trajectory(run_id, answer, overview))

    part()


class Overview:
    """The list and the strip of a step, written once and not for every episode that is opened."""

    def __init__(self, run_id: str, answer: Listed) -> None:
        self._answer = answer
        self._noted: EpisodeNotes | None = None
        self.of_step = pd.DataFrame()
        if not answer.asked.is_search:
            rows = queries.listing(run_id, answer.asked.step)
            self.of_step = rows[rows["split"] == answer.asked.split]

    def update(self, noted: EpisodeNotes) -> None:
        """Write both again where what people noted has changed."""
        if noted is not self._noted:
            self._noted = noted
            is_search = self._answer.asked.is_search
            self.cells = list_cells(self._answer.rows, noted, is_search=is_search)
            self.groups = json.dumps(strip.groups(self.of_step, noted)) if len(self.of_step) else ""
            self.legend = strip.legend_html(self.of_step) if len(self.of_step) else ""


def _list_and_trajectory(run_id: str, answer: Listed, overview: Overview) -> None:
    noted = notes.of_run(run_id)
    overview.update(noted)
    trajectory_id = _shown(run_id, answer.rows)
    left, right = st.container(key="replay_parts").columns([4, 9], gap="medium")
    with left:
        _list(run_id, answer, overview, trajectory_id)
    with right:
        if trajectory_id is None:
            st.caption("Choose an episode.")
            panels.listen("", _next_step)
        else:
            _trajectory(run_id, trajectory_id, answer, noted)


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


def _list(run_id: str, answer: Listed, overview: Overview, trajectory_id: str | None) -> None:
    rows, asked = answer.rows, answer.asked
    num_rows = ROWS
    if overview.groups:
        num_rows = max(LEAST_ROWS, ROWS - 2 - len(overview.of_step) // CELLS_A_ROW)
        st.html(overview.legend)
        label = f"Episodes of step {asked.step} by group"
        strip.show(overview.groups, label=label, now=trajectory_id, on_pick=_go_to)
    if asked.is_search or asked.success != ANY or asked.kept != ANY:
        st.caption(plain(f"{title(run_id, answer)}. {summary(rows)}.", 600))
    if not len(rows):
        ui.empty(why_empty(run_id, asked))
        return
    ids = [str(name) for name in rows["id"]]
    page = (ids.index(trajectory_id) if trajectory_id in ids else 0) // num_rows
    window = slice(page * num_rows, (page + 1) * num_rows)
    cells = overview.cells.iloc[window].reset_index(drop=True)
    pick_table(cells, ids[window], key="replay_rows", picked=trajectory_id, on_pick=_go_to)
    pages = -(-len(ids) // num_rows)
    if pages > 1:
        key = f"replay_page_{page}_{num_rows}"
        firsts = ids[::num_rows]
        st.pagination(
            pages,
            default=page + 1,
            key=key,
            on_change=lambda: _go_to(firsts[min(st.session_state[key], pages) - 1]),
            max_visible_pages=5,
        )


# What an address says of an episode that is opened: nothing of the one before.
_FIRST_SIGHT = dict.fromkeys(("turn", "page", "beside"))


def _go_to(trajectory_id: str) -> None:
    go(trajectory=trajectory_id, **_FIRST_SIGHT)


def _first_turn(rows: pd.DataFrame, trajectory_id: str, num_turns: int) -> int:
    """The turn that a search matched, else the newest."""
    last = max(num_turns - 1, 0)
    if "turn" not in rows:
        return last
    turns = rows.loc[rows["id"] == trajectory_id, "turn"]
    return min(int(turns.iloc[0]), last) if len(turns) else last


def _trajectory(run_id: str, trajectory_id: str, answer: Listed, noted: EpisodeNotes) -> None:
    rows = answer.rows
    trajectory = queries.trajectory(run_id, trajectory_id)
    outcome = queries.outcome(run_id, trajectory_id)
    num_turns = trajectory.num_turns
    turn = first = _first_turn(rows, trajectory_id, num_turns)
    asked_turn = None
    if num_turns:
        asked_turn = url_state.int_param("turn", least=0, most=num_turns - 1)
        turn = first if asked_turn is None else asked_turn
    chosen = trajectory.turns[turn] if trajectory.turns else None
    key = _key_of(run_id, trajectory)
    is_comparing = url_state.choice_param("compare", ("0", "1"), "0") == "1"
    other = None
    with st.container(key="replay_head", horizontal=True, vertical_alignment="center"):
        name = f"Group {trajectory.group_index}, sibling {trajectory.sibling_index}"
        st.subheader(name, anchor=False, width="content")
        if is_comparing:
            other = panels.choose_other(run_id, trajectory)
        else:
            labels = noted.of(*key).labels
            st.html(replay_html.headline(trajectory, outcome, labels), width="content")
        _buttons(trajectory_id, [str(name) for name in rows["id"]], turn, num_turns)
        _compare_button(is_comparing)
        with st.popover("Labels", key="replay_notes"):
            notes.editor(run_id, key, noted)
        with st.popover("Details", key="replay_details"):
            keys = "".join(f"<span><b>{escape(k)}</b> {escape(does)}</span>" for k, does in KEYS)
            st.html(f'<div class="es-facts es-keys">{keys}</div>')
            panels.details(run_id, trajectory, outcome, chosen)
    if is_comparing and other is None:
        ui.empty("This episode has no sibling, and no other step has an episode of its prompt.")
    if other is not None:
        panels.comparison(trajectory, queries.trajectory(run_id, other), asked_turn)
    elif chosen is None:
        ui.empty(f"No turn was played: the episode ended by {trajectory.stop_reason.value}.")
        if trajectory.final_observation:
            st.html(replay_html.text_box(trajectory.final_observation))
    else:
        search_text = answer.asked.text
        panels.conversation(
            run_id, trajectory, outcome, turn, lambda text: hits_in(text, search_text)
        )
    panels.listen(f"{trajectory.id} {turn} {other}", _next_step)


def _key_of(run_id: str, trajectory: Trajectory) -> EpisodeKey:
    """The attempt and the id of an episode."""
    rows = queries.listing(run_id, trajectory.step)
    attempts = rows.loc[rows["id"] == trajectory.id, "attempt"]
    return int(attempts.max()), trajectory.id


def _next_step(by: int) -> None:
    """The next step that has episodes, or the previous one."""
    run_id = st.query_params.get("run", "")
    now = int(st.query_params.get("step", newest_step(run_id)))
    steps = queries.trajectory_steps(run_id)
    near = [step for step in steps if (step > now if by > 0 else step < now)]
    if near:
        go(step=min(near) if by > 0 else max(near), **dict.fromkeys(LEFT_WITH_STEP))


def _compare_button(is_comparing: bool) -> None:
    """Opens and closes the comparison with another episode of the same prompt."""
    st.button(
        "Conversation" if is_comparing else "Compare",
        key="replay_compare",
        shortcut="d",
        help="Beside a sibling, or the same prompt at another step (key d)",
        on_click=go,
        kwargs={"compare": None if is_comparing else 1, panels.BESIDE: None},
    )


def _buttons(trajectory_id: str, ids: Sequence[str], turn: int, num_turns: int) -> None:
    """Previous and next, with their keys."""
    index = ids.index(trajectory_id) if trajectory_id in ids else -1

    def episode(n: int) -> dict[str, object] | None:
        return {"trajectory": ids[n], **_FIRST_SIGHT} if 0 <= n < len(ids) else None

    def turn_of_this(n: int) -> dict[str, object] | None:
        return {"trajectory": trajectory_id, "turn": n} if 0 <= n < num_turns else None

    for label, key, icon, target in (
        ("Previous episode", "k", "arrow_upward", episode(index - 1)),
        ("Next episode", "j", "arrow_downward", episode(index + 1)),
        ("Previous turn", "p", "chevron_left", turn_of_this(turn - 1)),
        ("Next turn", "n", "chevron_right", turn_of_this(turn + 1)),
    ):
        st.button(
            label,
            key=f"replay_go_{key}",
            icon=f":material/{icon}:",
            shortcut=key,
            help=f"{label} (key {key})",
            disabled=target is None,
            on_click=go,
            kwargs=target,
        )


ui.run_frame("Replay", draw, beside=beside)
