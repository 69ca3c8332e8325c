"""Every metric of a run, by section, found by a regular expression; drawn only when opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress

import streamlit as st

from echoscope.store.errors import QueryError
from echoscope.store.query.patterns import MAX_PATTERN, matches

from ..words import plain
from .problems import Problem

PER_PAGE = 12
"""Charts of a section that are drawn at once."""
SECTIONS: Mapping[str, str] = {
    "rollout": "Rollouts",
    "reward": "Reward",
    "selection": "Selection",
    "policy": "Policy",
    "loss": "Loss",
    "optim": "Optimizer",
    "critic": "Critic",
    "info": "Information",
    "text": "Text",
    "gradient": "Gradients",
    "eval": "Evaluation",
    "probe": "Probes",
    "collection": "Collection",
    "time": "Time",
    "system": "Machine",
    "collapse": "RAGEN-compatible metrics: format",
    "collapse_first_turn_sample": "RAGEN-compatible metrics: first turn",
}
"""What stands before the first "/" of a key, in words."""


def matching(keys: Sequence[str], pattern: str) -> list[str]:
    """The keys in which a regular expression is found, whatever the case.

    Raises:
        Problem: it is not a regular expression, or too long.
    """
    try:
        return [*compress(keys, matches(pattern, keys))]
    except QueryError as error:
        raise Problem(str(error)) from error


def section(key: str) -> str:
    """What stands before the first "/"; "other" where there is none.

    >>> section("policy/entropy"), section("loss")
    ('policy', 'other')
    """
    before, slash, _ = key.partition("/")
    return before if slash and before else "other"


def section_title(name: str) -> str:
    return SECTIONS.get(name, name.replace("_", " "))


def by_section(keys: Sequence[str]) -> dict[str, list[str]]:
    """Keys by what stands before the first "/", known sections first."""
    out: dict[str, list[str]] = {}
    for key in keys:
        out.setdefault(section(key), []).append(key)
    order = {name: index for index, name in enumerate(SECTIONS)}
    return dict(sorted(out.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def draw(metric_keys: Sequence[str], draw_charts: Callable[[Sequence[str]], None]) -> None:
    """The filter and one closed box for each section; `draw_charts` draws a page of keys."""
    st.subheader("All metrics", anchor=False)
    pattern = st.text_input(
        "Filter (regular expression)",
        key="metrics",
        bind="query-params",
        placeholder="entropy|kl",
        max_chars=MAX_PATTERN,
    )
    keys = matching(metric_keys, pattern)
    st.caption(f"{len(keys)} of {len(metric_keys)} metrics")
    for name, of_section in by_section(keys).items():
        title = f"{plain(section_title(name), 80)} ({len(of_section)})"
        with st.expander(title, key=f"section_{name}", on_change="rerun") as box:
            if box.open:
                _page(name, of_section, draw_charts)


def _page(name: str, keys: Sequence[str], draw_charts: Callable[[Sequence[str]], None]) -> None:
    pages = -(-len(keys) // PER_PAGE)
    page = 1
    if pages > 1:
        page = st.pagination(pages, key=f"page_{name}_{pages}")
    draw_charts(keys[(page - 1) * PER_PAGE : page * PER_PAGE])
