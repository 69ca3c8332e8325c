"""Rollouts in pickles: RAGEN's batches (`.pkl`) and slime's debug files (`.pt`), as rows.

A pickle is read once by the machine of `machine.py`, and its episodes are written as JSON lines
into the spool, where they are read as any other file: one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.text.strict_json import json_value

from .machine import Machine, Name, PickleError, Stranger, unwrapped
from .torch_files import of_bytes, packed_tensors, read_pickled

NO_ROLLOUTS = (
    "a pickle that holds neither a batch of RAGEN nor samples of slime. No other pickle is read: "
    "write its content as JSON lines or CSV"
)
_SUMMED = ("rm_scores", "original_rm_scores", "token_level_scores", "token_level_rewards")
"""Rewards of each token. They are added up to one of the episode."""
_MAX_ROWS = 1_000_000


@dataclass(slots=True)
class Plain:
    """Turns what was read into values of JSON. A few values that refer to each other may stand for
    billions: the texts and values that come out are counted."""

    left: int

    def of(self, value: Any, depth: int = 0) -> Any:
        """The value as JSON has it.

        Raises:
            PickleError: it is nested too deeply, or too large.
        """
        if depth > 100:
            raise PickleError("its values are nested more than 100 deep, or refer to themselves")
        value = unwrapped(value)
        if isinstance(value, str):
            self._spend(len(value) + 8)
            return value
        if isinstance(value, dict):
            self._spend(60 * len(value))
            return {str(key)[:200]: self.of(entry, depth + 1) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            self._spend(8 * len(value))
            return [self.of(entry, depth + 1) for entry in value]
        if isinstance(value, np.ndarray):
            self._spend(24 * value.size + value.nbytes)
            return json_value(value.tolist())
        self._spend(8)
        if isinstance(value, bytes | memoryview):
            return f"[{len(value)} bytes]"
        if isinstance(value, Stranger | Name):
            return f"[{value.kind if isinstance(value, Stranger) else value}]"
        return value if value is None or isinstance(value, bool | int | float) else str(value)

    def _spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise PickleError("it unpacks to far more than its size, as a bomb does")


def spool_pickled(path: Path, spool: Path, limit: int) -> Path:
    """A copy of the episodes of a pickled file as JSON lines.

    Args:
        spool: The folder of the copy.
        limit: The largest size of the copy, in bytes.

    Raises:
        PickleError: it asks for code, it is damaged, too large, or holds no rollouts.
        OSError: it cannot be read.
    """
    value = read_pickled(path)
    copy = spool / f"unpickled-{len(list(spool.iterdir()))}"
    plain = Plain(left=limit)
    with copy.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for row in _rows(value, plain):
            file.write(json.dumps(row) + "\n")
    return copy


def _rows(value: Any, plain: Plain) -> Iterator[dict[str, Any]]:
    if isinstance(value, Stranger) and str(value.kind) == "verl.protocol.DataProto":
        yield from _batch_rows(value.state, plain)
    elif isinstance(value, Mapping) and isinstance(value.get("samples"), list):
        for sample in value["samples"]:
            yield {"slime_rollout": plain.of(value.get("rollout_id")), "sample": plain.of(sample)}
    else:
        raise PickleError(NO_ROLLOUTS)


def _batch_rows(state: Any, plain: Plain) -> Iterator[dict[str, Any]]:
    """One row for each entry of a batch of verl, with its part of every column."""
    if not isinstance(state, tuple) or len(state) != 3 or not isinstance(state[1], dict):
        raise PickleError("the batch is damaged: it has no columns")
    columns = {str(name): unwrapped(column) for name, column in state[1].items()}
    tensors = {name: t for name, t in _tensors(state[0]).items() if isinstance(t, np.ndarray)}
    size = max((len(c) for c in columns.values() if isinstance(c, list | np.ndarray)), default=0)
    if "messages_list" not in columns and "history" not in columns:
        raise PickleError(
            "a batch of verl without the columns messages_list and history, which RAGEN writes: "
            "it has tokens, but no text"
        )
    if size > _MAX_ROWS:
        raise PickleError(f"a batch of {size:,} rows; at most {_MAX_ROWS:,} are read")
    shapes = {n: list(t.shape) for n, t in tensors.items() if n not in _SUMMED and t.ndim != 1}
    for index in range(size):
        yield {
            "dataproto_row": index,
            "columns": {
                name: plain.of(_entry(column, index, size)) for name, column in columns.items()
            },
            "batch": {
                name: _number(name, tensor[index])
                for name, tensor in tensors.items()
                if len(tensor) == size and (name in _SUMMED or tensor.ndim == 1)
            },
            "tensors": shapes,
        }


def _tensors(batch: Any) -> dict[str, Any]:
    if isinstance(batch, bytes | memoryview):
        found = of_bytes(memoryview(batch), Machine(), 1)
        return found if isinstance(found, dict) else {}
    return packed_tensors(batch) if isinstance(batch, tuple) else {}


def _entry(column: Any, index: int, size: int) -> Any:
    is_column = isinstance(column, list | np.ndarray) and len(column) == size
    return column[index] if is_column else None


def _number(name: str, entry: Any) -> float | int | None:
    value = entry.sum(dtype=np.float64) if name in _SUMMED else entry
    found = value.item()
    return found if found == found and abs(found) != float("inf") else None
