"""Lines of text about a run that change by themselves: the browser puts in what a pulse says.

Nothing is drawn again for them, so a step counter that moves costs a page nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

import streamlit as st

from ..web import assets
from .pulses import EVERY_S, Line, address

Kind = Literal["badge", "caption", "bar"]


def show(run_id: str, name: str, line: Line, *, kind: Kind, every_s: float | None) -> None:
    """Show a line as it is now, and as it becomes.

    Args:
        name: What a pulse calls it.
        every_s: Seconds between two questions; None where the line stays as it is.
    """
    data = {
        "kind": kind,
        "name": name,
        "line": asdict(line),
        "address": None if every_s is None else address(run_id),
        "every": EVERY_S if every_s is None else every_s,
    }
    _component()(key=f"line_{name}", data=json.dumps(data))


@functools.cache
def _component() -> Callable[..., Any]:
    script = f"""
export default async function (given) {{
  const {{ line }} = await import(location.origin + {json.dumps(assets.PULSE.path)});
  return line(given);
}}
"""
    return st.components.v2.component("echoscope_line", js=script, isolate_styles=False)
