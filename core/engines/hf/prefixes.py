"""Which tokens of a call need a forward pass at all: stored prefixes, siblings, shared beginnings.

Pure bookkeeping over token ids. Token rows are compared as big-endian bytes, whose order is the
lexicographic order of the ids, so the longest stored prefix of a prompt is next to the place where
the prompt would be sorted in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from echoscope.store.records import IntArray

MIN_SHARED_TOKENS = 256
"""A beginning that all prompts share gets its own forward pass from so many tokens saved on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRow:
    """What a cache row holds."""

    tokens: IntArray  # (Lp + Lr,) prompt and response
    num_cached: int
    """Leading tokens whose keys and values are in the row; the last sampled one's need not be."""

    def is_continued_by(self, prompt: IntArray) -> bool:
        """The prompt is this whole row, response included, and more."""
        size = len(self.tokens)
        return len(prompt) > size and bool(np.array_equal(prompt[:size], self.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens `[start, end)` of prompt `prompt` to be forwarded in cache row `row`."""

    prompt: int
    row: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCopies:
    """Copy the first `num_columns` columns of rows `sources` over rows `targets`, at once."""

    sources: list[int]
    targets: list[int]
    num_columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Spans forwarded together, then copies to the rows that share them."""

    spans: list[Span]
    copies: RowCopies


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlan:
    """How every prompt gets into its cache row.

    `first` brings stored prefixes into place; then the waves run in order. The last wave ends
    every distinct prompt (its spans give the first logits); `leader[i]` is the prompt whose row
    and logits prompt i shares.
    """

    rows: list[int]
    leader: list[int]
    first: RowCopies
    waves: list[Wave]


def common_prefix(left: IntArray, right: IntArray) -> int:
    """Number of equal leading tokens."""
    size = min(len(left), len(right))
    different = left[:size] != right[:size]
    return int(different.argmax()) if different.any() else size


def _sort_key(tokens: IntArray) -> bytes:
    return tokens.astype(">u4").tobytes()


class PrefixIndex:
    """Longest stored prefix of a prompt, in a logarithmic number of comparisons."""

    def __init__(self, stored: Sequence[StoredRow | None]) -> None:
        entries = [
            (_sort_key(row.tokens[: row.num_cached]), index, row)
            for index, row in enumerate(stored)
            if row is not None
        ]
        entries.sort(key=lambda entry: entry[:2])
        self._keys = [key for key, _, _ in entries]
        self._entries = [(index, row) for _, index, row in entries]

    def match(self, prompt: IntArray) -> tuple[int, int]:
        """(row, number of its leading tokens to use), (-1, 0) for none.

        At least the prompt's last token is left to be forwarded: its logits are needed.
        """
        insertion = bisect_left(self._keys, _sort_key(prompt))
        best = (-1, 0)
        for index, row in self._entries[max(insertion - 1, 0) : insertion + 1]:
            size = min(common_prefix(prompt, row.tokens[: row.num_cached]), len(prompt) - 1)
            if size > best[1]:
                best = (index, size)
        return best

    def continued_by(self, prompt: IntArray) -> int:
        """The row whose prompt and response this prompt continues; -1 for none."""
        row, _ = self.match(prompt)
        rows = dict(self._entries)
        return row if row >= 0 and rows[row].is_continued_by(prompt) else -1


def plan_prefill(
    prompts: Sequence[IntArray],
    stored: Sequence[StoredRow | None],
    *,
    share: bool,
    first_row: int = 0,
) -> PrefillPlan:
    """Plan the prefill of `prompts` into as many cache rows from `first_row` on.

    Args:
        stored: what every cache row from `first_row` on holds now; rows beyond those of the prompts
            may be read, not written.
        share: forward equal prompts once, and the beginning of all where that saves at least
            `MIN_SHARED_TOKENS`.
    """
    keys = [_sort_key(prompt) for prompt in prompts]
    leader = list(range(len(prompts)))
    if share:
        seen: dict[bytes, int] = {}
        leader = [seen.setdefault(key, index) for index, key in enumerate(keys)]
    distinct = sorted(set(leader), key=lambda index: (keys[index], index))
    index = PrefixIndex(stored)
    matches = {prompt: index.match(prompts[prompt]) for prompt in distinct}
    matches = {prompt: (first_row + row, size) for prompt, (row, size) in matches.items()}
    rows, first = _place(range(first_row, first_row + len(prompts)), matches)
    depth = {prompt: size for prompt, (_, size) in matches.items()}
    waves: list[Wave] = []
    if share:
        waves = _shared_wave(prompts, distinct, depth, rows)
    last = [
        Span(prompt=i, row=rows[i], start=depth[i], end=len(prompts[i])) for i in sorted(distinct)
    ]
    followers = [i for i, lead in enumerate(leader) if i != lead]
    copies = RowCopies(
        sources=[rows[leader[i]] for i in followers],
        targets=[rows[i] for i in followers],
        num_columns=max((len(prompts[i]) for i in followers), default=0),
    )
    waves.append(Wave(spans=last, copies=copies))
    return PrefillPlan(rows=rows, leader=leader, first=first, waves=waves)


def _place(own_rows: range, matches: dict[int, tuple[int, int]]) -> tuple[list[int], RowCopies]:
    """Give every prompt one of these rows, its stored prefix's own row where that is free."""
    rows = [-1] * len(own_rows)
    free = set(own_rows)
    for prompt in sorted(matches, key=lambda prompt: -matches[prompt][1]):
        row, size = matches[prompt]
        if size and row in free:
            rows[prompt] = row
            free.remove(row)
    remaining = iter(sorted(free))
    rows = [row if row >= 0 else next(remaining) for row in rows]
    moved = [(match, rows[p]) for p, match in matches.items() if match[1] and match[0] != rows[p]]
    copies = RowCopies(
        sources=[source for (source, _), _ in moved],
        targets=[target for _, target in moved],
        num_columns=max((size for (_, size), _ in moved), default=0),
    )
    return rows, copies


def _shared_wave(
    prompts: Sequence[IntArray],
    distinct: Sequence[int],
    depth: dict[int, int],
    rows: Sequence[int],
) -> list[Wave]:
    """Forward the beginning of all distinct prompts once, such as their system message.

    `distinct` is in the order of the tokens, so that the first and the last prompt share what all
    share. Prompts whose row has a longer stored beginning are left alone. Raises `depth` to what is
    then in every prompt's row.
    """
    first, last = prompts[distinct[0]], prompts[distinct[-1]]
    common = min(common_prefix(first, last), min(len(prompts[i]) for i in distinct) - 1)
    short = [i for i in distinct if depth[i] < common]
    if not short:
        return []
    lead, *others = sorted(short, key=lambda i: -depth[i])
    if sum(common - depth[i] for i in others) < MIN_SHARED_TOKENS:
        return []
    span = Span(prompt=lead, row=rows[lead], start=depth[lead], end=common)
    copies = RowCopies(
        sources=[rows[lead]] * len(others), targets=[rows[i] for i in others], num_columns=common
    )
    depth.update(dict.fromkeys(short, common))
    return [Wave(spans=[span], copies=copies)]
