"""The controls above the replay, and the list that they ask for."""

from __future__ import annotations

import streamlit as st

from echoscope.store.records import parse_trajectory_id
from echoscope.store.status import Origin, origin_of
from echoscope.text.sentences import capitalised

from ..data import queries
from ..page import ui, url_state
from ..page.url_state import MAX_TEXT, choose, number, type_in
from .listing import KEPT, NEWEST, OLDEST, ORDERS, SPLITS, SUCCESS, Asked, Listed, listed

_CLEARS = ("trajectory", "turn", "page")
_LIST_PARAMS = ("split", "success", "kept", "q", "where", "run", "order")


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


def choose_list(run_id: str) -> Listed:
    """Draw the controls above the page, and answer with the list that they ask for.

    Raises:
        Problem: the condition is none, or the search takes too long.
    """
    last_step = max(queries.info(run_id).last_step, 0)
    follow_trajectory()
    text = url_state.text_param("q", most=MAX_TEXT).strip()
    where = url_state.text_param("where", most=MAX_TEXT).strip()
    is_search = bool(text or where)
    places = st.container(key="replay_controls").columns(
        [8, 14, 14, 9, 6], vertical_alignment="center"
    )
    with places[0]:
        step = number(
            "step",
            f"Step, 0 to {last_step}",
            default=newest_step(run_id),
            least=0,
            most=last_step,
            clears=_CLEARS,
            hides_label=True,
        )
    with places[1]:
        split = _split(run_id)
    with places[2]:
        type_in(
            "q",
            "Search",
            now=text,
            key="replay_search",
            placeholder="Search responses and observations of all steps",
            clears=_CLEARS,
        )
    with places[3]:
        order = choose(
            "order",
            "Order",
            [*ORDERS],
            default=NEWEST if is_search else OLDEST,
            label_of=lambda name: ORDERS[name][0],
            clears=_CLEARS,
            hides_label=True,
        )
    active = sum(bool(st.query_params.get(name)) for name in ("success", "kept", "where"))
    label = f"Filters, {active} active" if active else "Filters"
    with places[4], st.popover(label, width="stretch", key="replay_filters"):
        success = choose("success", "Success", [*SUCCESS], default="any", clears=_CLEARS)
        kept = choose("kept", "Update", [*KEPT], default="any", clears=_CLEARS)
        type_in(
            "where",
            "SQL condition",
            now=where,
            key="replay_where",
            placeholder="SQL over all steps: is_success AND num_turns > 3",
            clears=_CLEARS,
        )
    asked = Asked(
        step=step,
        split=split,
        success=success,
        kept=kept,
        order=order,
        text=text,
        where=where,
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


def _split(run_id: str) -> str:
    """The split to list: training if there is any, unless the address says another one."""
    stored = set(queries.table(run_id, _SPLITS)["split"])
    splits = [split for split in SPLITS if split in stored] or ["train"]
    if len(splits) < 2 and st.query_params.get("split") in (None, *splits):
        return splits[0]
    return choose(
        "split",
        "Split",
        splits,
        default=splits[0],
        label_of=lambda split: split_words(run_id, split),
        clears=_CLEARS,
        is_segmented=True,
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
        looked_for = [f"text {asked.text!r}"] * bool(asked.text)
        looked_for += [f"condition {asked.where!r}"] * bool(asked.where)
        heading = f"All steps, {split}, {' and '.join(looked_for)}"
    if asked.order != OLDEST:
        heading += f". {ORDERS[asked.order][0]}"
    if answer.num > len(answer.rows):
        heading += f": {len(answer.rows)} of {answer.num:,} matches"
    return heading


_SPLIT_STEPS = "SELECT DISTINCT step FROM trajectories WHERE split = $1 ORDER BY step"


def why_empty(run_id: str, asked: Asked) -> str:
    """Why nothing is listed; the nearest steps that have the split."""
    split = split_words(run_id, asked.split).lower()
    if asked.is_search or asked.success != "any" or asked.kept != "any":
        return f"No {split} trajectory matches."
    steps = queries.table(run_id, _SPLIT_STEPS, (asked.split,))["step"].tolist()
    near = sorted(sorted(steps, key=lambda step: abs(step - asked.step))[:5])
    rest = f" Steps that have some: {', '.join(map(str, near))}." if near else ""
    return f"Step {asked.step} has no {split} trajectories.{rest}"
