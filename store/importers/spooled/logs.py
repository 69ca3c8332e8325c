"""Logs whose lines are joined to episodes: EasyR1's `generations.log`, agent-lightning's events.

EasyR1 writes four labelled texts a sample, without steps. Every validation appends its samples in
the same order. So where the prompts come again as before, the next validation begins, and its
number stands for the step. agent-lightning writes an event a line, so an episode is many lines,
mixed with those of others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..lines import MAX_LINE_BYTES

if TYPE_CHECKING:
    from ..sources import RowSource


def is_event(row: Any) -> bool:
    """Whether a row is an event of agent-lightning."""
    names = ("event_type", "rollout_id", "attempt_id", "data")
    return isinstance(row, Mapping) and all(name in row for name in names)


def write_events(source: RowSource, target: Path) -> None:
    """Write the events of each attempt at a rollout as one line, in their order.

    Only the places of the events are kept in memory, and the events of one attempt.
    """
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with target.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for row in source.scan():
            if is_event(row.value):
                key = (str(row.value["rollout_id"]), str(row.value["attempt_id"]))
                places.setdefault(key, []).append((row.place, row.size))
            else:
                file.write(json.dumps(row.problem or "not an event") + "\n")
        for (rollout, attempt), events_at in places.items():
            events = [source.row(offset, size) for offset, size in events_at]
            joined = {"lightning_rollout": rollout, "attempt_id": attempt, "events": events}
            file.write(json.dumps(joined) + "\n")


_LABELS = (b"[prompt] ", b"[output] ", b"[ground_truth] ", b"[score] ")
_NAMES = ("prompt", "output", "ground_truth", "score")
_MAX_BYTES = MAX_LINE_BYTES // 4
"""Of a sample: as JSON it may take four times as many."""
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"

Sample = tuple[list[bytes], str]
"""Its texts, as far as they are written, and its problem; "" for none."""


def is_generations(path: Path, head: bytes) -> bool:
    """Whether a file begins as such a log, and its first sample has all labels in their order."""
    if not head.removeprefix(_BOM).startswith(_LABELS[0]):
        return False
    texts, _ = next(_samples(path), ([], ""))
    return len(texts) == len(_LABELS)


def write_samples(path: Path, target: Path) -> None:
    """Write the samples as JSON lines, each with the number of its validation where there are
    several; one that is not whole as its problem."""
    # Half a prompt at the end is no other prompt: it says nothing of where a validation begins.
    period = _period([hash(texts[0]) for texts, _ in _samples(path) if len(texts) > 1])
    with target.open("w", encoding="utf-8") as file:
        for number, (texts, problem) in enumerate(_samples(path)):
            row: dict[str, object] = {"easyr1": number // period if period else None}
            row |= {n: t.decode("utf-8", "replace") for n, t in zip(_NAMES, texts, strict=False)}
            file.write(json.dumps(problem or row, ensure_ascii=False) + "\n")


def _samples(path: Path) -> Iterator[Sample]:
    texts: list[bytearray] = []
    num_bytes = 0
    with path.open("rb") as file:
        while line := file.readline(_BLOCK):
            line = line.removeprefix(_BOM) if not texts else line
            if line.startswith(_LABELS[0]) and len(texts) in (0, len(_LABELS)):
                if texts:
                    yield _sample(texts, num_bytes)
                texts, num_bytes = [], 0
            num_bytes += len(line)
            if len(texts) < len(_LABELS) and line.startswith(_LABELS[len(texts)]):
                line = line.removeprefix(_LABELS[len(texts)])
                texts.append(bytearray())
            if texts and num_bytes <= _MAX_BYTES:
                texts[-1] += line
    if texts:
        yield _sample(texts, num_bytes)


def _sample(read: Sequence[bytearray], num_bytes: int) -> Sample:
    texts = [bytes(text) for text in read]
    if num_bytes > _MAX_BYTES:
        return texts, f"a sample of more than {_MAX_BYTES >> 20} MB"
    if len(texts) == len(_LABELS) and not texts[-1].endswith(b"\n"):
        del texts[-1]  # a score may be half written
    problem = "" if len(texts) == len(_LABELS) else "the sample is not written to its end"
    return [text.removesuffix(b"\n") for text in texts], problem


def _period(prompts: Sequence[int]) -> int:
    """After how many samples all prompts come again in their order; 0 where they never do.

    >>> _period([1, 2, 1, 2, 1]), _period([1, 2, 3])
    (2, 0)
    """
    borders, border = [0] * len(prompts), 0
    for candidate in range(1, len(prompts)):
        while border and prompts[candidate] != prompts[border]:
            border = borders[border - 1]
        border += prompts[candidate] == prompts[border]
        borders[candidate] = border
    period = len(prompts) - border
    return period if prompts and 2 * period <= len(prompts) else 0
