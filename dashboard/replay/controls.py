"""The controls above the replay, and the list that they ask for."""

from __future__ import annotations

from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.store.records import parse_trajectory_id
from echoscope.store.status import Origin, origin_of
from echoscope.store.steer.annotation_file import MAX_LABEL_CHARS
from echoscope.store.steer.episode_notes import EpisodeNotes
from echoscope.text.sentences import capitalised

from ..data import queries
from ..page import ui, url_state
from ..page.url_state import MAX_TEXT
from ..words import SPLITS
from . import notes as notes_box
from .listing import KEPT, NEWEST, ORDERS, SUCCESS, WORST, Listed, ListRequest, listed

STEP_PX, SPLIT_PX = 136, 128
MAX_LABELLED = 600
"""Labelled episodes that are listed: a query has room for so many."""
LEFT_WITH_STEP = ("trajectory", "turn", "page", "beside")
"""Parameters of the address that belong to what the list had before."""
choose = partial(url_state.choose, clears=LEFT_WITH_STEP)
number = partial(url_state.number, clears=LEFT_WITH_STEP)
type_in = partial(url_state.type_in, clears=LEFT_WITH_STEP)
_LIST_PARAMS = ("split", "success", "kept", "q", "where", "run", "order", "label")


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


def choose_list(run_id: str, notes: EpisodeNotes) -> Listed:
    """Draw the controls in one line, and answer with the list that they ask for.

    Raises:
        Problem: the condition is none, or the search takes too long.
    """
    last_step = max(queries.info(run_id).last_step, 0)
    follow_trajectory()
    text = url_state.text_param("q", most=MAX_TEXT).strip()
    where = url_state.text_param("where", most=MAX_TEXT).strip()
    labels = notes.labels
    label = url_state.text_param("label", most=MAX_LABEL_CHARS)
    is_search = bool(text or where)
    line = st.container(key="replay_controls", horizontal=True, vertical_alignment="center")
    with line.container(width=STEP_PX):
        step = number(
            "step",
            f"Step, 0 to {last_step}",
            default=newest_step(run_id),
            least=0,
            most=last_step,
            hides_label=True,
        )
    split = _split(run_id, line)
    with line.container(width="stretch"):
        type_in(
            "q",
            "Search",
            now=text,
            key="replay_search",
            placeholder="Search all steps",
        )
    active = sum(bool(st.query_params.get(name)) for name in ("success", "kept", "where", "label"))
    name = f"Filters, {active} active" if active else "Filters"
    with line.popover(name, key="replay_filters"):
        order = choose(
            "order",
            "Order",
            [*ORDERS],
            default=NEWEST if is_search else WORST,
            label_of=lambda name: ORDERS[name][0],
        )
        success = choose("success", "Success", [*SUCCESS], default="any")
        kept = choose("kept", "Update", [*KEPT], default="any")
        type_in(
            "where",
            "SQL condition",
            now=where,
            key="replay_where",
            placeholder="SQL over all steps: is_success AND num_turns > 3",
        )
        if labels or label:
            choices = ["", *dict.fromkeys((*labels, *([label] if label else [])))]
            label = choose(
                "label",
                "Label",
                choices,
                default="",
                label_of=lambda name: f"{name} ({labels.get(name, 0)})" if name else "any",
            )
        if label in labels:
            notes_box.export(run_id, label)
    asked = ListRequest(
        step=step,
        split=split,
        success=success,
        kept=kept,
        order=order,
        text=text,
        where=where,
        label=label,
        labelled=tuple(notes.labelled([label])[:MAX_LABELLED]) if label else (),
    )
    return listed(run_id, asked)


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


_SPLITS = "SELECT DISTINCT split FROM trajectories"


def _split(run_id: str, line: DeltaGenerator) -> str:
    """The split to list: training if there is any, unless the address says another one."""
    stored = set(queries.table(run_id, _SPLITS)["split"])
    splits = [split for split in SPLITS if split in stored] or ["train"]
    if len(splits) < 2 and st.query_params.get("split") in (None, *splits):
        return splits[0]
    with line.container(width=SPLIT_PX):
        return choose(
            "split",
            "Split",
            splits,
            default=splits[0],
            label_of=lambda split: split_words(run_id, split),
            hides_label=True,
        )


def split_words(run_id: str, split: str) -> str:
    """A split by its label; what another trainer wrote by how it came here: recorded, watched."""
    origin = origin_of(queries.info(run_id).config)
    is_foreign = split == "import" and origin is not Origin.TRAINED
    return capitalised(origin.value) if is_foreign else SPLITS[split]


def title(run_id: str, answer: Listed) -> str:
    """What is listed, in a line. Hostile where somebody searches for such words."""
    asked = answer.asked
    split = split_words(run_id, asked.split).lower()
    if not asked.is_search:
        heading = f"Step {asked.step} of {max(queries.info(run_id).last_step, 0)}, {split}"
    else:
        wishes = {"text": asked.text, "condition": asked.where, "label": asked.label}
        looked_for = [f"{what} {wish!r}" for what, wish in wishes.items() if wish]
        heading = f"All steps, {split}, {' and '.join(looked_for)}"
    if asked.order != WORST:
        heading += f". {ORDERS[asked.order][0]}"
    if answer.num > len(answer.rows):
        heading += f": {len(answer.rows)} of {answer.num:,} matches"
    return heading


_SPLIT_STEPS = "SELECT DISTINCT step FROM trajectories WHERE split = $1 ORDER BY step"


def why_empty(run_id: str, asked: ListRequest) -> str:
    """Why nothing is listed; the nearest steps that have the split."""
    split = split_words(run_id, asked.split).lower()
    if asked.is_search or asked.success != "any" or asked.kept != "any":
        return f"No {split} trajectory matches."
    steps = queries.table(run_id, _SPLIT_STEPS, (asked.split,))["step"].tolist()
    near = sorted(sorted(steps, key=lambda step: abs(step - asked.step))[:5])
    rest = f" Steps that have some: {', '.join(map(str, near))}." if near else ""
    return f"Step {asked.step} has no {split} trajectories.{rest}"
