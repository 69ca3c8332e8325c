"""Where the replay's list comes from: a step, a search, or the evidence of an alarm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.store.records import Alarm, parse_trajectory_id
from echoscope.store.status import Origin, origin_of
from echoscope.text.sentences import capitalised

from ..data import queries
from ..escaping import visible
from ..live import keyboard
from ..live.refreshing import problem
from ..page import ui, url_state
from ..page.problems import Problem
from ..page.url_state import MAX_TEXT, choose, go, number, type_in
from ..words import plain
from .list import (
    ANY,
    CHANGED,
    COLUMNS,
    KEPT,
    NEWEST,
    OLDEST,
    ORDERS,
    SPLITS,
    SUCCESS,
    Filters,
    changed_since,
    first_split,
    present,
)
from .search import MODES, PARAM_OF, Found, Search, search

_WORDS_OF_MODE = {"text": "text", "regex": "regular expression", "where": "SQL condition"}
_HINTS = {
    "text": "in responses and observations",
    "regex": "for example  (!{5,}|\\bI am sure\\b)",
    "where": "for example  is_success AND num_turns > 3",
}
_MAX_EVIDENCE = 64
_FILTERS = ("success", "kept", "tag", "stop")
_CLEARS = ("trajectory", "turn", "part", "page")
_LIST_PARAMS = (
    "split",
    *_FILTERS,
    *PARAM_OF.values(),
    "run",
    "by",
    "from",
    "to",
    "order",
    "since",
    "alarm",
)


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
    search: tuple[str, str] | None = None
    """(mode, words) of the search that made the list."""


def asked_of_page(run_id: str) -> tuple[object, ...]:
    """What the address says of the list: another answer needs the whole page drawn anew."""
    step = st.query_params.get("step") or str(newest_step(run_id))
    return step, *(st.query_params.get(name) for name in _LIST_PARAMS)


def newest_step(run_id: str) -> int:
    """The newest step when somebody came here: what they read stays while the run goes on."""
    info = queries.info(run_id)
    last = max(info.last_step, 0)
    if origin_of(info.config) is not Origin.TRAINED:  # its last steps may have metrics alone
        last = max(queries.trajectory_steps(run_id), default=last)
    seen = st.session_state.get(ui.SEEN_STEP)
    if seen is None or seen[0] != run_id or seen[1] > last:
        seen = st.session_state[ui.SEEN_STEP] = (run_id, last)
    return int(seen[1])


def choose_source(run_id: str) -> Source:
    """Draw the controls above the page, and answer with the list that they ask for."""
    last_step = max(queries.info(run_id).last_step, 0)
    follow_trajectory()
    mode = _mode()
    words = url_state.text_param(PARAM_OF[mode], most=MAX_TEXT).strip()
    alarm_id = url_state.text_param("alarm", most=200)
    stepper, split_place, seek, order_place, more = st.container(key="replay_controls").columns(
        [13, 14, 20, 9, 6], vertical_alignment="center"
    )
    with stepper:
        step = _stepper(newest_step(run_id), last_step)
    with seek:
        _search_field(mode, words)
    is_search = bool(words) and not alarm_id
    with order_place:
        order = _order(is_search)
    with more:
        filters_place = st.popover(_filters_label(), width="stretch", key="replay_filters")
    if is_search:
        with split_place:
            split = _split(run_id, _splits_of_run(run_id), {})
        filters = replace(_filters(run_id, None, filters_place), split=split)
        _alarm_choice(run_id, alarm_id, filters_place)
        return _searched(
            run_id,
            Search(mode=mode, words=words, first=0, last=last_step, filters=filters, order=order),
        )
    if alarm_id:
        source = _evidence(run_id, alarm_id)
    else:
        rows = queries.listing(run_id, step)[list(COLUMNS)]
        source = Source(
            title=f"Step {step} of {last_step}",
            rows=rows,
            if_empty=_no_rows(step, last_step),
            step=step,
        )
    counts = {str(name): int(n) for name, n in source.rows["split"].value_counts().items()}
    with split_place:
        split = _split(run_id, _splits_of_run(run_id), counts)
    source = _of_split(run_id, source, split, counts)
    filters = _filters(run_id, source.rows, filters_place)
    _alarm_choice(run_id, alarm_id, filters_place)
    against = None
    if order == CHANGED:
        against = number(
            "since", "Changed since step", default=0, least=0, most=last_step, clears=_CLEARS
        )
    return _ordered(run_id, _filtered(source, filters), order, against)


def _order(is_search: bool) -> str:
    """Of a search, the newest matches come first; prompts are compared within a step only."""
    options = [*ORDERS] if is_search else [*ORDERS, CHANGED]
    return choose(
        "order",
        "Order",
        options,
        default=NEWEST if is_search else OLDEST,
        words=lambda name: "Changed since step ..." if name == CHANGED else ORDERS[name].label,
        clears=_CLEARS,
        hides_label=True,
    )


def _filters_label() -> str:
    active = sum(bool(st.query_params.get(name)) for name in (*_FILTERS, "alarm"))
    return f"Filters, {active} active" if active else "Filters"


_SPLITS = "SELECT DISTINCT split FROM trajectories"


def _splits_of_run(run_id: str) -> list[str]:
    """The splits that the run has trajectories of, training first."""
    stored = set(queries.table(run_id, _SPLITS)["split"])
    return [split for split in SPLITS if split in stored]


def split_words(run_id: str, split: str) -> str:
    """A split by its label; what another trainer wrote by how it came here: recorded, watched."""
    origin = origin_of(queries.info(run_id).config)
    is_foreign = split == "import" and origin is not Origin.TRAINED
    return capitalised(origin.value) if is_foreign else SPLITS[split]


def _split(run_id: str, splits: list[str], counts: Mapping[str, int]) -> str:
    """One split at a time: training and evaluation episodes are different distributions.

    Args:
        splits: What the run has.
        counts: Trajectories of each split in the list, if it is known.
    """
    default = first_split(list(counts) or splits)
    if len(splits) < 2 and st.query_params.get("split") in (None, *splits):
        return default

    def label_of(split: str) -> str:
        words = split_words(run_id, split)
        return f"{words} {counts[split]:,}" if split in counts else words

    return choose(
        "split",
        "Split",
        splits or [default],
        default=default,
        words=label_of,
        clears=_CLEARS,
        is_segmented=True,
        hides_label=True,
    )


_SPLIT_STEPS = "SELECT DISTINCT step FROM trajectories WHERE split = $1 ORDER BY step"


def _of_split(run_id: str, source: Source, split: str, counts: Mapping[str, int]) -> Source:
    """The part of a list that belongs to one split."""
    if_empty = source.if_empty
    if source.step is not None and counts and split not in counts:
        steps = queries.table(run_id, _SPLIT_STEPS, (split,))["step"].tolist()
        near = sorted(sorted(steps, key=lambda step: abs(step - (source.step or 0)))[:5])
        if_empty = (
            f"Step {source.step} has no {split_words(run_id, split).lower()} trajectories. "
            f"Steps that have some: {', '.join(map(str, near))}."
        )
    return replace(
        source,
        title=f"{source.title}, {split_words(run_id, split).lower()}",
        rows=source.rows[source.rows["split"] == split],
        if_empty=if_empty,
    )


def follow_trajectory() -> None:
    """A link to a trajectory is a link to its step and its split."""
    try:
        split, step, _ = parse_trajectory_id(st.query_params.get("trajectory", ""))
    except ValueError:
        return
    if st.query_params.get("step") != str(step):
        st.query_params["step"] = str(step)
    if st.query_params.get("split") != split.value:
        st.query_params["split"] = split.value


def _stepper(newest: int, last_step: int) -> int:
    """Step number between its two buttons."""
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall"):
        now = url_state.int_param("step", newest, least=0, most=last_step)
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
                hides_label=True,
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
    return given[0] if given else url_state.choice_param("by", MODES, "text")


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
            label_visibility="collapsed",
        )


def _store_mode(before: str) -> None:
    """The words move to the parameter of the new way to search."""
    mode = st.session_state["replay_by"]
    words = st.query_params.get(PARAM_OF[before], "")
    go(**{PARAM_OF[before]: None, PARAM_OF[mode]: words, "by": mode})


def _searched(run_id: str, wanted: Search) -> Source:
    last_step = wanted.last
    first_place, last_place, _ = st.columns([2, 2, 9])
    with first_place:
        first = number("from", "From step", default=0, least=0, most=last_step, clears=_CLEARS)
    with last_place:
        last = number("to", "to step", default=last_step, least=0, most=last_step, clears=_CLEARS)
    if last < first:
        ui.notice(f"the search ends at step {last}, before it begins; both are taken as {first}")
        last = first
    found = _run_search(run_id, replace(wanted, first=first, last=last))
    extra: tuple[tuple[str, str], ...] = () if wanted.mode == "where" else (("excerpt", "match"),)
    split = split_words(run_id, wanted.filters.split).lower()
    title = f"Steps {first} to {last}, {split}, {_WORDS_OF_MODE[wanted.mode]} {wanted.words!r}"
    order = ORDERS[wanted.order]
    if found.is_cut and wanted.order in (OLDEST, NEWEST):
        low, high = found.searched
        title += f". {order.label}: the first {wanted.limit}, from steps {low} to {high}"
    elif found.is_cut:
        title += f". {order.label}: {wanted.limit} of {found.num_matches:,} matches"
    elif wanted.order != OLDEST:
        title += f". {order.label}"
    return Source(
        title=title,
        rows=found.rows,
        if_empty=f"No {split} trajectory matches.",
        extra_columns=extra,
        search=(wanted.mode, wanted.words),
    )


def _run_search(run_id: str, wanted: Search) -> Found:
    empty = pd.DataFrame(columns=[*COLUMNS, "turn", "excerpt"])
    searched = (wanted.first, wanted.first)
    found = Found(rows=empty, done_share=0.0, searched=searched, num_matches=0, is_cut=False)
    bar = st.progress(0.0, text="Searching")
    try:
        for found in search(run_id, wanted):
            low, high = found.searched
            bar.progress(
                min(found.done_share, 1.0),
                text=f"Searching: {found.num_matches:,} matches in steps {low} to {high}",
            )
    except Problem as trouble:
        problem(trouble)
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


_TAGS = "SELECT DISTINCT tag, stop_reason FROM trajectories"


def _filters(run_id: str, rows: pd.DataFrame | None, place: DeltaGenerator) -> Filters:
    """What the form asks for.

    Args:
        rows: The list, whose values are offered; None offers those of the whole run.
    """
    values = queries.table(run_id, _TAGS) if rows is None else rows

    def pick(param: str, label: str, options: list[str]) -> str:
        asked = st.query_params.get(param)
        known = options if asked in (None, *options) else [*options, str(asked)[:80]]
        return choose(param, label, known, default=ANY, words=plain, clears=_CLEARS)

    with place:
        return Filters(
            success=choose("success", "Success", SUCCESS, default=ANY, clears=_CLEARS),
            kept=choose("kept", "Update", KEPT, default=ANY, clears=_CLEARS),
            tag=pick("tag", "Tag", present(values, "tag")),
            stop=pick("stop", "Ended by", present(values, "stop_reason")),
        )


def _alarm_choice(run_id: str, asked: str, place: DeltaGenerator) -> None:
    """The alarms of the run: the evidence of each is a list, too."""
    alarms = {alarm.alarm_id: alarm for alarm in reversed(queries.alarms(run_id))}
    if not alarms and not asked:
        return
    ids = ["", *reversed(alarms), *([asked] if asked and asked not in alarms else [])]
    with place:
        choose(
            "alarm",
            "Evidence of an alarm",
            ids,
            default="",
            words=lambda name: (
                visible(f"{alarms[name].rule}, step {alarms[name].step}", 80)
                if name in alarms
                else visible(name, 80) or "any"
            ),
            clears=_CLEARS,
        )


def _filtered(source: Source, filters: Filters) -> Source:
    if filters.is_open:
        return source
    rows = filters.apply(source.rows)
    if_empty = f"All {len(source.rows)} are filtered out." if len(source.rows) else source.if_empty
    title = f"{source.title}, {len(source.rows) - len(rows)} filtered out"
    return replace(source, title=title, rows=rows, if_empty=if_empty)


def _ordered(run_id: str, source: Source, order: str, against: int | None) -> Source:
    if order == CHANGED:
        title = f"{source.title}. Prompts that step {against} had too, largest change first"
        return replace(
            source,
            title=title,
            rows=changed_since(source.rows, queries.listing(run_id, against or 0)),
            if_empty=f"No prompt of these was sampled at step {against}.",
            extra_columns=(*source.extra_columns, ("change", "change")),
        )
    chosen = ORDERS[order]
    words = "" if order == OLDEST else f". {chosen.label}: {chosen.meaning}"
    return replace(source, title=source.title + words, rows=chosen.sort(source.rows))


def _no_rows(step: int, last_step: int) -> str:
    return f"Step {step} has no trajectories; the run has steps 0 to {last_step}."
