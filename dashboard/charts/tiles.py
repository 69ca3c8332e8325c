"""The six tiles at the top of the Live page: a number, how it has changed, and its course. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.claims import Change, Claim, Dip, Level, Lost
from echoscope.diagnostics.judge.courses.course import matches
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.rules.base import level_amount
from echoscope.diagnostics.metric_entry import SHARE
from echoscope.store.query import metric_keys
from echoscope.text.amounts import percent_ends, points

from ..data.curves import FIXED_TASKS
from ..data.tables import Outline
from ..words import value_words
from .curated import EVIDENCE, charts_of, eval_keys

NOTHING = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One tile as the browser shows it."""

    name: str
    """One to three words."""
    value: str
    change: str
    """How the number has changed, or why there is none."""
    help: str
    """What the number is, what is good, and when to worry."""
    chart: str
    """Name of the chart that a click scrolls to."""
    spark: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """What one tile shows."""

    name: str
    key: str
    chart: str
    help: str = ""
    """Empty where the metric's own sentence says it."""
    is_rest: bool = False
    """Whether the tile shows what is left of a share: 1 - value."""


_EVALUATION = (
    "Success on fixed tasks that never train, with its 95 % interval. Higher is better; "
    "worry when its interval lies below that of earlier evaluations."
)
_SIGNAL = (
    "Groups whose siblings earned different rewards. Only these give a gradient. Worry below 25 %."
)
_STEP = "Steps done, of those planned; the time of a step; and the time that is left."
_SUCCESS = _Number(name="Training success", key=metric_keys.SUCCESS_RATE, chart="success")
_REWARD = _Number(name="Mean reward", key=metric_keys.RETURN_MEAN, chart="return")
"""Of a run that logs no success: a mean reward is none, whatever values it takes."""
_OTHERS = (
    _Number(name="Policy entropy", key=metric_keys.ENTROPY, chart="entropy"),
    _Number(
        name="Groups with signal",
        key=metric_keys.ZERO_STD,
        chart="groups",
        help=_SIGNAL,
        is_rest=True,
    ),
    _Number(name="Reply tokens", key=metric_keys.RESPONSE_LENGTH, chart="length"),
)


def _numbers(keys: Sequence[str]) -> list[_Number]:
    """The numbers that a run's tiles show, the first first."""
    evaluated = next(iter(eval_keys(keys)), "")
    evaluation = _Number(
        name="Evaluation success", key=evaluated, chart="success", help=_EVALUATION
    )
    return [evaluation, _SUCCESS if _SUCCESS.key in keys else _REWARD, *_OTHERS]


def tile_keys(keys: Sequence[str]) -> list[str]:
    """The metrics that the tiles of a run read, of those that the run has."""
    needed = {number.key + end for number in _numbers(keys) for end in ("", "_low", "_high")}
    return sorted(needed & set(keys))


def tiles(
    outlines: Mapping[str, Outline],
    keys: Sequence[str],
    *,
    verdict: Verdict | None,
    progress: tuple[str, str],
) -> list[Tile]:
    """The six tiles of a run.

    Args:
        outlines: of `tile_keys` at least.
        keys: The metrics that the run has.
        verdict: None where the run is not judged yet.
        progress: Value and second line of the tile that says how far the run is.
    """
    done, pace = progress
    drawn = {chart.name for chart in charts_of(verdict, keys)}
    made = [
        *(_tile(number, outlines, verdict) for number in _numbers(keys)),
        Tile(name="Step", value=done, change=pace, help=_STEP, chart="speed"),
    ]
    # A chart that is not drawn shows nothing but what the evidence shows, too.
    return [tile if tile.chart in drawn else replace(tile, chart=EVIDENCE) for tile in made]


def _tile(number: _Number, outlines: Mapping[str, Outline], verdict: Verdict | None) -> Tile:
    help = number.help or metric(number.key).help
    outline = outlines.get(number.key)
    if outline is None:
        return Tile(name=number.name, value="-", change=NOTHING, help=help, chart=number.chart)
    claim = _claim(number.key, verdict)
    return Tile(
        name=number.name,
        value=_value(number, outlines, outline.last),
        change=_change(number, outline) if claim is None else claim_words(claim),
        help=help,
        chart=number.chart,
        spark=tuple(float(f"{_shown(number, mean):.4g}") for mean in outline.means),
    )


def _shown(number: _Number, value: float) -> float:
    return 1.0 - value if number.is_rest else value


def _value(number: _Number, outlines: Mapping[str, Outline], last: float) -> str:
    text = value_words(number.key, _shown(number, last))
    low, high = (outlines.get(f"{number.key}_{end}") for end in ("low", "high"))
    if low is None or high is None or not number.key.startswith(FIXED_TASKS):
        return text
    return f"{text} ({percent_ends(low.last, high.last)})"


def _change(number: _Number, outline: Outline) -> str:
    """How a number that nobody judges has changed, in a few words; the tests show each form."""
    if outline.num_points == 1:
        return f"measured once, at step {outline.first_step}"
    first, last = _shown(number, outline.first), _shown(number, outline.last)
    if metric(number.key).unit == SHARE:
        return f"{points(last - first)} since step {outline.first_step}"
    return f"was {value_words(number.key, first)} at step {outline.first_step}"


def _claim(key: str, verdict: Verdict | None) -> Claim | None:
    """The first claim of the verdict about a metric; one about the mean over tags is about each."""
    claims = () if verdict is None else verdict.claims
    kinds = (Change, Lost, Dip, Level)
    return next((c for c in claims if isinstance(c, kinds) and matches(key, c.metric)), None)


def claim_words(claim: Claim) -> str:
    """A claim about one metric, in a few words; the tests show each form."""
    if isinstance(claim, Lost):
        claim = claim.change
    if isinstance(claim, Change):
        verb = "rose" if claim.direction == "rise" else "fell"
        return f"{verb} from {level_amount(claim.before)} to {level_amount(claim.after)}"
    if isinstance(claim, Dip):
        return f"fell to {level_amount(claim.bottom)}, then rose to {level_amount(claim.now)}"
    assert isinstance(claim, Level), claim
    ends = [level_amount(claim, end).removesuffix(" %") for end in (claim.low, claim.high)]
    return f"mean {level_amount(claim)} ({' to '.join(ends)}), no trend"
