"""The narrators that the demonstrations of the shipped policies have: README.md.

    echoscope sft generate LESSONS --narrator examples.narrators:narrator_of -o demos.jsonl

They read the text of an observation alone, as a policy would.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from echoscope.core.warm_start.narrators import Narrator, PlainNarrator

from .puzzles import (
    CountdownNarrator,
    Game2048Narrator,
    RubiksNarrator,
    SudokuNarrator,
    WordProblemNarrator,
)
from .search import SearchNarrator
from .worlds import BanditNarrator, FrozenLakeNarrator, PriceListNarrator, SokobanNarrator

_NARRATORS: Mapping[str, Narrator] = MappingProxyType(
    {
        "bandit": BanditNarrator(),
        "countdown": CountdownNarrator(),
        "frozen_lake": FrozenLakeNarrator(),
        "game_2048": Game2048Narrator(),
        "price_list": PriceListNarrator(),
        "rubiks": RubiksNarrator(),
        "search_qa": SearchNarrator(),
        "search_tools": SearchNarrator(),
        "sokoban": SokobanNarrator(),
        "static_qa": WordProblemNarrator(),
        "sudoku": SudokuNarrator(),
    }
)


def narrator_of(env_id: str) -> Narrator:
    """The narrator of an environment; a plain one where it has none of its own."""
    return _NARRATORS.get(env_id, PlainNarrator())
