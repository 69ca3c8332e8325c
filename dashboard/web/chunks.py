"""Which of Streamlit's own files a page will need, so that they are fetched while it starts.

Streamlit loads the script of a widget when the first one of its kind arrives: on a page with ten
kinds that is ten more rounds to the server, one behind another, before anything is drawn.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_COMMON = ("Html", "Selectbox")
_KINDS: Mapping[str, tuple[str, ...]] = {
    "": ("TextInput", "BidiComponent"),
    "live": (
        "PageLink",
        "Progress",
        "Slider",
        "ButtonGroup",
        "Multiselect",
        "Checkbox",
        "BidiComponent",
        "TextInput",
        "Button",
    ),
    "diagnosis": ("PageLink", "DataFrame", "Slider", "BidiComponent", "ButtonGroup"),
    "replay": (
        "BidiComponent",
        "Button",
        "NumberInput",
        "TextInput",
        "Pagination",
        "ButtonGroup",
        "Checkbox",
        "DownloadButton",
    ),
    "compare": ("Multiselect", "ButtonGroup", "Slider", "BidiComponent", "DataFrame"),
    "alarms": ("BidiComponent", "ButtonGroup", "PageLink", "Button"),
    "evaluations": ("TextInput", "ButtonGroup", "DataFrame", "BidiComponent"),
    "sql": ("TextArea", "DataFrame"),
}
"""Path of a page -> kinds of widgets, as Streamlit names their files."""
_IMPORT = re.compile(r"""(?:from|import)\s*["'`]\./([\w.-]+\.js)["'`]""")


@functools.cache
def _folder() -> Path:
    found = importlib.util.find_spec("streamlit")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "static" / "static" / "js"


@functools.cache
def chunks(page: str) -> tuple[str, ...]:
    """Addresses of the scripts behind one of our pages, each once; () for any other path."""
    name = page.strip("/")
    if name not in _KINDS:
        return ()
    files = [file for kind in (*_COMMON, *_KINDS[name]) for file in _folder().glob(f"{kind}.*.js")]
    return tuple(f"/static/js/{name}" for name in _with_imports(file.name for file in files))


def _with_imports(names: Iterable[str]) -> list[str]:
    """The files, and those they cannot begin without."""
    out: list[str] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        if name not in out:
            out.append(name)
            waiting += _imports(_folder() / name)
    return out


@functools.cache
def _imports(file: Path) -> tuple[str, ...]:
    if not file.is_file():
        return ()
    return tuple(dict.fromkeys(_IMPORT.findall(file.read_text(encoding="utf-8"))))
