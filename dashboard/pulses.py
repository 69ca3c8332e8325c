"""A few bytes about a run that change when a page about it should."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

from ..store.layout import Layout
from . import queries
from .cache import AnswerCache
from .problems import Problem
from .progress import Pace, pace, silence
from .words import status_words

Pulse = Mapping[str, str]
"""Name -> short text that changes with what it stands for; it tells nothing about the run.

`position` changes with what is acknowledged or asked for, `judging` when a verdict is begun or
done, `words` when a run is called otherwise than before: another step, another status, silent for
a minute more.
"""
_paces = AnswerCache()


def pulse(run_id: str) -> Pulse:
    """The pulse of a run; one that cannot be read has one, too. Cheap."""
    try:
        return {
            "position": _digest(queries.position(run_id)),
            "judging": str(int(queries.is_judging(run_id))),
            "words": _digest(_words(run_id)),
        }
    except Problem as found:
        return dict.fromkeys(("position", "judging", "words"), _digest(found.text))


def _words(run_id: str) -> object:
    info, heard_at = queries.info(run_id), updated_at(run_id)
    silent = None
    if info.status == "running":
        silent = silence(_pace(run_id), now=time.time(), heard_at=heard_at)
    return status_words(info, heard_at), None if silent is None else int(silent // 60)


def _pace(run_id: str) -> Pace:
    at = queries.position(run_id)
    found: Pace = _paces.get(at[0], at, lambda: pace(queries.step_table(run_id)))
    return found


def updated_at(run_id: str) -> float:
    """When the run last acknowledged something, in seconds since the epoch."""
    try:
        return Layout(queries.path_of(run_id)).journal.stat().st_mtime
    except FileNotFoundError:
        return time.time()  # between two pieces of the journal


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
