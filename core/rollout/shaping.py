"""Reward shaping: named terms computed from a turn and kept apart from the environment's reward.

A term's function maps a turn to a number. `format`, `length` and `agreement` are built in. Any
other is named `module:function`, or by an entry point of the group `echoscope.rewards`, and is
called as `function(turn, **params)`. The number times the term's weight is stored in `Turn.shaping`
under the term's name.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Literal

from echoscope.store.records import Trajectory, Turn
from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.user_code import GROUPS, UserCodeError, entry_points, load

from ..config.loading import ConfigError
from ..config.settings import ShapingTerm

TurnFunction = Callable[..., float]

RESERVED_NAMES = {"env": "the environment's reward", "format": "the format penalty"}
"""Names that `Trajectory.reward_terms` already gives away."""


class ShapingError(UserCodeError):
    """A shaping function returned something that is no reward."""


def reward_format(turn: Turn, *, reasoning: bool = True) -> float:
    """1 for a reply with a closed answer, only valid actions and, by default, closed reasoning."""
    is_complete = turn.answer_chars is not None and bool(turn.is_valid)
    return float(is_complete and (turn.reasoning_chars is not None or not reasoning))


def penalize_length(
    turn: Turn, *, soft: int, hard: int, part: Literal["response", "reasoning"] = "response"
) -> float:
    """0 up to `soft` tokens, falling linearly to -1 at `hard` (DAPO's overlong punishment)."""
    if not 0 <= soft < hard:
        raise ShapingError(
            f"length has soft {soft} and hard {hard}, but 0 <= soft < hard must hold"
        )
    if part not in ("response", "reasoning"):
        raise ShapingError(f"length has part {part!r}, but must be 'response' or 'reasoning'")
    if part == "response":
        num_tokens = turn.num_sampled_tokens
    else:
        start, end = turn.reasoning_span or (0, 0)
        num_tokens = end - start
    return -min(max((num_tokens - soft) / (hard - soft), 0.0), 1.0)


def reward_agreement(
    turn: Turn, *, moves: Sequence[str] = ("up", "down", "left", "right")
) -> float:
    """1 if the last move that the reasoning names is the last action that was executed, else 0.

    A reasoning that names none of `moves` gets 0 as well, so silence is not a way out. Names are
    whole words in any case.
    """
    if isinstance(moves, str) or not moves:
        raise ShapingError(f"agreement has moves {moves!r}, but moves must name at least one move")
    if not turn.actions:
        return 0.0
    names = "|".join(re.escape(move) for move in sorted(moves, key=len, reverse=True))
    named = re.findall(rf"(?<!\w)(?:{names})(?!\w)", turn.reasoning, flags=re.IGNORECASE)
    return float(bool(named) and named[-1].casefold() == turn.actions[-1].strip().casefold())


BUILT_IN: Mapping[str, TurnFunction] = {
    "format": reward_format,
    "length": penalize_length,
    "agreement": reward_agreement,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """Checked terms, ready to be called on a turn."""

    terms: tuple[tuple[ShapingTerm, TurnFunction], ...]

    def __call__(self, turn: Turn) -> dict[str, float]:
        """Weighted terms of one turn by name.

        Raises:
            ShapingError: a function returned something else than a finite number.
        """
        out: dict[str, float] = {}
        for term, function in self.terms:
            try:
                value = function(turn)
            except (Exception, SystemExit) as error:  # a stranger's function: say whose it is
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise ShapingError(
                    f"shaping term {term.name!r} ({term.function}) failed on turn {turn.index}: "
                    f"{reason}"
                ) from error
            if not isinstance(value, Real) or not math.isfinite(value):
                raise ShapingError(
                    f"shaping term {term.name!r} ({term.function}) returned {value!r} for turn "
                    f"{turn.index}, but must return a finite number"
                )
            out[term.name] = term.weight * float(value)
        return out


def resolve(terms: Sequence[ShapingTerm]) -> Shaping | None:
    """The terms of a configuration as one callable; None without terms.

    Raises:
        ConfigError: an unknown function, wrong parameters, or a name that is taken.
    """
    seen: set[str] = set()
    for term in terms:
        if term.name in RESERVED_NAMES:
            raise ConfigError(
                f"reward.shaping has a term named {term.name!r}, which is the name of "
                f"{RESERVED_NAMES[term.name]} in the records; choose another, for example "
                f"'{term.name}_bonus'"
            )
        if term.name in seen:
            raise ConfigError(f"reward.shaping has two terms named {term.name!r}; names are unique")
        seen.add(term.name)
    return Shaping(terms=tuple((term, _bind(term)) for term in terms)) if terms else None


def apply(trajectory: Trajectory, shaping: Shaping | None) -> Trajectory:
    """A stored trajectory with `Turn.shaping` computed anew; None leaves no terms."""
    turns = tuple(
        replace(turn, shaping={} if shaping is None else shaping(turn)) for turn in trajectory.turns
    )
    return replace(trajectory, turns=turns)


def _bind(term: ShapingTerm) -> TurnFunction:
    function = BUILT_IN.get(term.function) or _load(term.function)
    empty_turn = Turn(index=0, observation="", response="")
    try:
        inspect.signature(function).bind(empty_turn, **term.params)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"shaping term {term.name!r} has params {term.params}, which do not fit "
            f"{term.function}: {error}"
        ) from None
    bound = partial(function, **term.params)
    if term.function in BUILT_IN:
        try:
            bound(empty_turn)
        except (ShapingError, TypeError) as error:
            raise ConfigError(f"shaping term {term.name!r}: {error}") from None
    return bound


def _load(name: str) -> TurnFunction:
    points = entry_points(GROUPS["reward"])
    if ":" not in name and name not in points:
        hint = did_you_mean(name, [*BUILT_IN, *points])
        raise ConfigError(
            f"unknown shaping function {name!r}{hint}; your own is named 'module:function'"
        )
    try:
        return load("reward", name)
    except UserCodeError as error:
        raise ConfigError(str(error)) from None
