"""Where the replay's list comes from: a step, a search, or the evidence of an alarm."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from ..store.records import Alarm, parse_trajectory_id
from . import keyboard, queries, ui
from .escaping import visible
from .problems import Problem
from .replay_list import (
    ANY,
    CHANGED,
    COLUMNS,
    KEPT,
    ORDERS,
    SUCCESS,
    Filters,
    changed_since,
    present,
)
from .replay_search import MODES, PARAM_OF, Found, Search, search
from .url_state import MAX_TEXT, choose, go, number, type_in

_WORDS_OF_MODE = {"text": "text", "regex": "regular expression", "where": "SQL condition"}
_HINTS = {
    "text": "in responses and observations",
    "regex": "for example  (!{5,}|\\bI am sure\\b)",
    "where": "for example  is_success AND num_turns > 3",
}
_MAX_EVIDENCE = 64
_FILTERS = ("success", "kept", "split", "tag", "stop")
_CLEARS = ("trajectory", "turn", "part", "page")
_LIST_PARAMS = (*_FILTERS, *PARAM_OF.values(), "run", "by", "from", "to", "order", "since", "alarm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The list, filtered and in order."""

    title: str
    """May be hostile."""
    rows: pd.DataFrame
    """COLUMNS of replay_list, and those of `extra_columns`."""
    if_empty: str
    extra_columns: tuple[tuple[str, str], ...] = ()
    """(column, heading) of what this source knows besides."""
    step: int | None = None
    """The step whose trajectories these are; None for a search and the evidence of an alarm."""


def asked_of_page(run_id: str) -> tuple[object, ...]:
    """What the address says of the list: another answer needs the whole page drawn anew."""
    step = st.query_params.get("step") or str(newest_step(run_id))
    return step, *(st.query_params.get(name) for name in _LIST_PARAMS)


def newest_step(run_id: str) -> int:
    """The newest step when somebody came here: what they read stays while the run goes on."""
    last = max(queries.info(run_id).last_step, 0)
    seen = st.session_state.get(ui.SEEN_STEP)
    if seen is None or seen[0] != run_id or seen[1] > last:
        seen = st.session_state[ui.SEEN_STEP] = (run_id, last)
    return int(seen[1])


def choose_source(run_id: str) -> Source:
    """Draw the controls above the page, and answer with the list that they ask for."""
    last_step = max(queries.info(run_id).last_step, 0)
    follow_trajectory()
    mode = _mode()
    words = ui.text_param(PARAM_OF[mode], most=MAX_TEXT).strip()
    alarm_id = ui.text_param("alarm", most=200)
    stepper, seek, order_place, more = st.columns([3, 5, 3, 2], vertical_alignment="bottom")
    with stepper:
        step = _stepper(newest_step(run_id), last_step)
    with seek:
        _search_field(mode, words)
    against = None
    with order_place:
        order = choose(
            "order",
            "Order",
            [*ORDERS, CHANGED],
            default="id",
            words=lambda name: "Changed since step ..." if name == CHANGED else ORDERS[name].label,
            clears=_CLEARS,
        )
    if alarm_id:
        source = _evidence(run_id, alarm_id)
    elif words:
        source = _searched(run_id, mode, words, last_step)
    else:
        rows = queries.listing(run_id, step)[list(COLUMNS)]
        source = Source(
            title=f"Step {step}", rows=rows, if_empty=_no_rows(step, last_step), step=step
        )
    active = sum(bool(st.query_params.get(name)) for name in (*_FILTERS, "alarm"))
    label = f"Filters, {active} active" if active else "Filters"
    with more, st.popover(label, width="stretch", key="replay_filters"):
        filters = _filters(source.rows)
        _alarm_choice(run_id, alarm_id)
    if order == CHANGED:
        against = number(
            "since", "Changed since step", default=0, least=0, most=last_step, clears=_CLEARS
        )
    return _ordered(run_id, _filtered(source, filters), order, against)


def follow_trajectory() -> None:
    """A link to a trajectory is a link to its step."""
    try:
        _, step, _ = parse_trajectory_id(st.query_params.get("trajectory", ""))
    except ValueError:
        return
    if st.query_params.get("step") != str(step):
        st.query_params["step"] = str(step)


def _stepper(newest: int, last_step: int) -> int:
    """Step number between its two buttons."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        now = ui.int_param("step", newest, least=0, most=last_step)
        now = newest if now is None else now
        _step_button("[", keyboard.PREVIOUS_STEP, now - 1, last_step)
        with st.container(width=120):
            step = number(
                "step",
                f"Step, 0 to {last_step}",
                default=newest,
                least=0,
                most=last_step,
                clears=_CLEARS,
                now=now,
            )
        _step_button("]", keyboard.NEXT_STEP, now + 1, last_step)
    return step


def _step_button(sign: str, key: str, target: int, last_step: int) -> None:
    st.button(
        f"\\{sign}",
        key=key,
        disabled=not 0 <= target <= last_step,
        on_click=go,
        kwargs={"step": target, **dict.fromkeys(_CLEARS)},
        help="previous step" if sign == "[" else "next step",
    )


def _mode() -> str:
    """The way to search that the URL has words for, or that was chosen last."""
    given = [mode for mode in MODES if st.query_params.get(PARAM_OF[mode])]
    return given[0] if given else ui.choice_param("by", MODES, "text")


def _search_field(mode: str, words: str) -> None:
    words_place, mode_place = st.columns([3, 2], vertical_alignment="bottom")
    with words_place:
        type_in(
            PARAM_OF[mode],
            "Search",
            now=words,
            key=keyboard.SEARCH,
            placeholder=_HINTS[mode],
            clears=(*_CLEARS, "alarm"),
        )
    with mode_place:
        st.session_state["replay_by"] = mode
        st.selectbox(
            "by",
            MODES,
            key="replay_by",
            format_func=lambda name: _WORDS_OF_MODE[name],
            on_change=_store_mode,
            args=(mode,),
        )


def _store_mode(before: str) -> None:
    """The words move to the parameter of the new way to search."""
    mode = st.session_state["replay_by"]
    words = st.query_params.get(PARAM_OF[before], "")
    go(**{PARAM_OF[before]: None, PARAM_OF[mode]: words, "by": mode})


def _searched(run_id: str, mode: str, words: str, last_step: int) -> Source:
    first_place, last_place, _ = st.columns([2, 2, 9])
    with first_place:
        first = number("from", "From step", default=0, least=0, most=last_step, clears=_CLEARS)
    with last_place:
        last = number("to", "to step", default=last_step, least=0, most=last_step, clears=_CLEARS)
    if last < first:
        ui.notice(f"the search ends at step {last}, before it begins; both are taken as {first}")
        last = first
    wanted = Search(mode=mode, words=words, first=first, last=last)
    found = _run_search(run_id, wanted)
    extra: tuple[tuple[str, str], ...] = () if mode == "where" else (("excerpt", "found"),)
    title = f"Steps {first} to {last}, {_WORDS_OF_MODE[mode]} {words!r}"
    if found.is_cut:
        title += f"; the first {wanted.limit}, up to step {found.next_step - 1}"
    return Source(title=title, rows=found.rows, if_empty="Nothing was found.", extra_columns=extra)


def _run_search(run_id: str, wanted: Search) -> Found:
    empty = pd.DataFrame(columns=[*COLUMNS, "turn", "excerpt"])
    found = Found(rows=empty, done_share=0.0, next_step=wanted.first, is_cut=False)
    bar = st.progress(0.0, text="Searching")
    try:
        for found in search(run_id, wanted):
            bar.progress(
                min(found.done_share, 1.0),
                text=f"Searching: {len(found.rows)} found up to step {found.next_step - 1}",
            )
    except Problem as problem:
        ui.problem(problem)
    bar.empty()
    return found


def _evidence(run_id: str, alarm_id: str) -> Source:
    alarm = next((a for a in queries.alarms(run_id) if a.alarm_id == alarm_id), None)
    st.button("Back to the list of the step", on_click=go, kwargs={"alarm": None})
    empty = pd.DataFrame(columns=list(COLUMNS))
    if alarm is None:
        ui.notice(f"this run has no alarm {alarm_id}")
        return Source(title="No such alarm", rows=empty, if_empty="There is no such alarm.")
    ids, where = _evidence_ids(run_id, alarm)
    steps = sorted({parse_trajectory_id(found)[1] for found in ids})
    tables = [queries.listing(run_id, step)[list(COLUMNS)] for step in steps]
    rows = pd.concat(tables, ignore_index=True) if tables else empty
    return Source(
        title=f"{where}: {alarm.message}",
        rows=rows[rows["id"].isin(ids)],
        if_empty="What the alarm names is not stored any more.",
    )


def _evidence_ids(run_id: str, alarm: Alarm) -> tuple[list[str], str]:
    """The trajectories an alarm names, else those of the step where the change began."""
    if alarm.evidence:
        return list(alarm.evidence[:_MAX_EVIDENCE]), "Evidence"
    step = alarm.step if alarm.onset_step is None else alarm.onset_step
    rows = queries.listing(run_id, max(step, 0))
    return [str(found) for found in rows["id"]], f"No trajectory is named; step {step}, its onset"


def _filters(rows: pd.DataFrame) -> Filters:
    def pick(param: str, label: str, options: list[str]) -> str:
        asked = st.query_params.get(param)
        known = options if asked in (None, *options) else [*options, str(asked)[:80]]
        return choose(param, label, known, default=ANY, words=ui.plain, clears=_CLEARS)

    return Filters(
        success=choose("success", "Success", SUCCESS, default=ANY, clears=_CLEARS),
        kept=choose("kept", "Update", KEPT, default=ANY, clears=_CLEARS),
        split=pick("split", "Split", present(rows, "split")),
        tag=pick("tag", "Tag", present(rows, "tag")),
        stop=pick("stop", "Ended by", present(rows, "stop_reason")),
    )


def _alarm_choice(run_id: str, asked: str) -> None:
    """The alarms of the run: their evidence is a list, too."""
    known = {alarm.alarm_id: alarm for alarm in reversed(queries.alarms(run_id))}
    if not known and not asked:
        return
    ids = ["", *reversed(known), *([asked] if asked and asked not in known else [])]
    choose(
        "alarm",
        "Evidence of an alarm",
        ids,
        default="",
        words=lambda found: (
            visible(f"{known[found].rule}, step {known[found].step}", 80)
            if found in known
            else visible(found, 80) or "any"
        ),
        clears=_CLEARS,
    )


def _filtered(source: Source, filters: Filters) -> Source:
    if filters.is_open:
        return source
    rows = filters.apply(source.rows)
    return Source(
        title=f"{source.title}, {len(source.rows) - len(rows)} filtered out",
        rows=rows,
        if_empty=f"All {len(source.rows)} are filtered out."
        if len(source.rows)
        else source.if_empty,
        extra_columns=source.extra_columns,
        step=source.step,
    )


def _ordered(run_id: str, source: Source, order: str, against: int | None) -> Source:
    extra: tuple[tuple[str, str], ...] = ()
    if order != CHANGED:
        chosen = ORDERS[order]
        words = "" if order == "id" else f". {chosen.label}: {chosen.meaning}"
        rows, if_empty = chosen.sort(source.rows), source.if_empty
    else:
        rows = changed_since(source.rows, queries.listing(run_id, against or 0))
        words = f". Prompts that step {against} had too, largest change of mean return first"
        extra = (("change", "change"),)
        if_empty = f"No prompt of these was sampled at step {against}."
    return Source(
        title=source.title + words,
        rows=rows,
        if_empty=if_empty,
        extra_columns=(*source.extra_columns, *extra),
        step=source.step,
    )


def _no_rows(step: int, last_step: int) -> str:
    return f"Step {step} has no trajectories; the run has steps 0 to {last_step}."
