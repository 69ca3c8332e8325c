"""Covering arrays: few combinations of settings in which every pair of values occurs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random

Row = tuple[str, ...]
"""One value for every factor, in the order of the factors."""
Pair = tuple[int, str, int, str]
"""Factor, value, later factor, value."""

_CANDIDATES = 20
_TRIES = 200


def covering_rows(
    factors: Mapping[str, Sequence[str]], is_possible: Callable[[Row], bool]
) -> tuple[list[Row], list[Row]]:
    """(possible rows in which every pair that can occur does, one row for every pair that cannot).

    Greedy: each row is the best of some that begin with a pair not covered yet. A pair cannot occur
    if none of many rows with it is possible. Deterministic.
    """
    values = [list(choices) for choices in factors.values()]
    random = Random(0)
    missing = dict.fromkeys(_all_pairs(values))
    possible: list[Row] = []
    impossible: list[Row] = []
    while missing:
        pair = next(iter(missing))
        candidates = [_grown(values, pair, missing, random) for _ in range(_CANDIDATES)]
        allowed = [row for row in dict.fromkeys(candidates) if is_possible(row)]
        if not allowed:
            rows = (_grown(values, pair, {}, random) for _ in range(_TRIES))
            allowed = next(([row] for row in rows if is_possible(row)), [])
        if allowed:
            best = max(allowed, key=lambda row: sum(p in missing for p in _pairs_of(row)))
            possible.append(best)
            for covered in _pairs_of(best):
                missing.pop(covered, None)
        else:
            impossible.append(candidates[0])
            missing.pop(pair)
    return possible, impossible


def _grown(
    values: Sequence[Sequence[str]], pair: Pair, missing: Mapping[Pair, None], random: Random
) -> Row:
    """A row that holds the pair; the other factors cover as many missing pairs as they can."""
    chosen: dict[int, str] = {pair[0]: pair[1], pair[2]: pair[3]}
    rest = [factor for factor in range(len(values)) if factor not in chosen]
    random.shuffle(rest)
    for factor in rest:

        def gain(value: str, factor: int = factor) -> tuple[int, float]:
            pairs = (_pair(factor, value, other, taken) for other, taken in chosen.items())
            return sum(pair in missing for pair in pairs), random.random()

        chosen[factor] = max(values[factor], key=gain)
    return tuple(chosen[factor] for factor in range(len(values)))


def _pair(factor: int, value: str, other: int, taken: str) -> Pair:
    return (factor, value, other, taken) if factor < other else (other, taken, factor, value)


def _pairs_of(row: Row) -> Iterator[Pair]:
    for a, b in combinations(range(len(row)), 2):
        yield a, row[a], b, row[b]


def _all_pairs(values: Sequence[Sequence[str]]) -> Iterator[Pair]:
    for a, b in combinations(range(len(values)), 2):
        for left, right in product(values[a], values[b]):
            yield a, left, b, right
