"""Theorems to prove: from files in the format of miniF2F, or the ones that ship."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..rows import Row, read_items, shipped

MADE_THEOREMS = shipped("theorems.jsonl")
MAX_CHARS = 8_000
"""Of a statement, a header, or an informal statement; longer rows are left out."""
_ENDING = re.compile(r":=\s*(?:by\s*)?(?:sorry\s*)?\Z")
_NAME = re.compile(r"(?:theorem|lemma)\s+([^\s:(\[{⦃]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem:
    """One theorem. `statement` begins with `theorem NAME` and ends before `:=`.

    `header` is what stands before it in the file (imports, `open`). `informal` says it in words.
    `proof` are tactics that prove it, one a step; empty where none is known.
    """

    name: str
    statement: str
    header: str = ""
    informal: str = ""
    proof: tuple[str, ...] = ()


def read_theorems(path: str, split: str | None) -> tuple[Theorem, ...]:
    """The theorems of a file, of one of its splits or of all.

    Rows have `formal_statement` (`theorem NAME ... := by`, or `:= by sorry`), and may have `header`
    or `formal_header`, `informal_prefix`, `informal_statement` or `informal_stmt`, `split`, and
    `proof`: a list of tactics.

    Raises:
        EnvUnavailableError: the file cannot be read, or no row is a theorem of the split.
    """
    of_split = "" if split is None else f" with the split {split!r}"

    def make(row: Row) -> Theorem | None:
        return theorem_of(row) if split is None or row.get("split") == split else None

    what = f"row{of_split} whose formal_statement is 'theorem NAME ... := by'"
    return read_items(path, (), make, what)


def theorem_of(row: Row) -> Theorem | None:
    """The theorem of a row; None where the row is none."""
    stated = _text(row, "formal_statement")
    ending = _ENDING.search(stated)
    if ending is None:
        return None
    before = stated[: ending.start()].strip()
    names = list(_NAME.finditer(before))
    if not names:
        return None
    proof = row.get("proof")
    tactics = proof if isinstance(proof, list) else []
    # What stands before the last theorem (definitions, `open`) belongs to the header.
    start = names[-1].start()
    return Theorem(
        name=names[-1][1],
        statement=re.sub(r"\Alemma", "theorem", before[start:]),
        header="\n".join(
            part for part in (_text(row, "header", "formal_header"), before[:start].strip()) if part
        ),
        informal=_plain(_text(row, "informal_prefix", "informal_statement", "informal_stmt")),
        proof=tuple(tactic for tactic in tactics if isinstance(tactic, str) and tactic.strip()),
    )


def _text(row: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.strip() and len(value) <= MAX_CHARS:
            return value.encode("utf-8", "replace").decode("utf-8").strip()
    return ""


def _plain(comment: str) -> str:
    """The words of a documentation comment, on one line."""
    return " ".join(comment.removeprefix("/--").removesuffix("-/").split())
