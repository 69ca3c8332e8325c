"""Files whose rows all stand in another file: copies, and older backups of a file that grew.

Only the beginning of a file is compared. Two rows are the same if their bytes, their step, their
format and their split are. Rows that come again inside one file are episodes of their own.
"""

from __future__ import annotations

import filecmp
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.uint64]
"""(rows, facts): a row each, equal where the rows are the same."""


def copies_among(files: Sequence[tuple[Path, Rows]]) -> dict[int, int]:
    """The files that are copies -> the file that holds their rows, by their numbers.

    A file of rows that are all the same, such as one episode, is a copy only of a file of the same
    folder with the same bytes: its rows may be episodes of equal text.

    Args:
        files: Path and rows of each file, in the order in which they are read.
    """
    longest_first = sorted(range(len(files)), key=lambda n: (-len(files[n][1]), n))
    alike: dict[bytes, list[int]] = {}
    for number in longest_first:
        rows = files[number][1]
        if len(rows):
            alike.setdefault(rows[0].tobytes(), []).append(number)
    out: dict[int, int] = {}
    for numbers in alike.values():
        if len(numbers) > 1:
            out |= _copies_of_one_beginning(files, numbers)
    return out


def _copies_of_one_beginning(
    files: Sequence[tuple[Path, Rows]], numbers: Sequence[int]
) -> dict[int, int]:
    """Of files with the same first row, the longest first."""
    lengths = sorted({len(files[number][1]) for number in numbers})
    holder: dict[tuple[int, bytes], int] = {}
    uniform: dict[tuple[bytes, Path], list[int]] = {}
    out: dict[int, int] = {}
    for number in numbers:
        path, rows = files[number]
        if (rows == rows[0]).all():
            kept = uniform.setdefault((rows.tobytes(), path.parent), [])
            same = next((n for n in kept if filecmp.cmp(files[n][0], path, shallow=False)), None)
            if same is None:
                kept.append(number)
            else:
                out[number] = same
            continue
        beginnings = _beginnings(rows, lengths)
        whole = (len(rows), beginnings[len(rows)])
        if whole in holder:
            out[number] = holder[whole]
            continue
        for beginning in beginnings.items():
            holder.setdefault(beginning, number)
    return out


def _beginnings(rows: Rows, lengths: Sequence[int]) -> dict[int, bytes]:
    """Length -> hash of so many first rows."""
    out, done, state = {}, 0, hashlib.blake2b(digest_size=16)
    for length in lengths:
        if length > len(rows):
            break
        state.update(rows[done:length].tobytes())
        done, out[length] = length, state.copy().digest()
    return out
