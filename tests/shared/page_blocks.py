"""The Python that a page of the documentation prints, to be run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import echoscope

DOCS = Path(echoscope.__file__).resolve().parent / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def python_block(page: str, phrase: str) -> str:
    """The one block of a page that has some words in it."""
    blocks = _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    (chosen,) = [block for block in blocks if phrase in block]
    return str(chosen)
