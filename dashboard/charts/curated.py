"""The curated charts of the Live page: which curves they have, and what they say without any."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.courses.channels import (
    CHANNELS,
    SOURCES,
    derived,
)
from echoscope.diagnostics.judge.courses.course import levels, matches
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.diagnostics.metric_entry import (
    ENTROPY,
    POINTS,
    RESPONSE_LENGTH,
    RETURN,
    SHARE,
    SUCCESS,
)
from echoscope.store.records import FloatArray64
from echoscope.text.sentences import capitalised

from ..data.curves import MANY_POINTS, Curve, curve
from . import theme


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve of a chart."""

    key: str
    name: str = ""
    """Shorter than the label of the key, where the chart's title says the rest."""
    has_interval: bool = False
    """The run stores `KEY_low` and `KEY_high`."""
    is_right: bool = False
    is_rest: bool = False
    """What is left of a share is drawn: 1 - value."""
    is_shown_below: float = math.inf
    """Only where a value is less than this, after `is_rest`."""
    least_points: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart by name; `missing` says what a run needs to have it."""

    name: str
    """In URLs and file names."""
    title: str
    help: str
    lines: tuple[Line, ...]
    missing: str = "The run has logged none of these metrics."
    shows_level: bool = False
    """Curves are drawn as the verdict reads them, with the values faint behind."""

    @property
    def words(self) -> dict[str, str]:
        """What `charts.line_spec` writes on it."""
        return {"title": self.title, "help": self.help, "missing": self.missing}


EVIDENCE = "evidence"
"""Name of the chart that shows what the verdict rests on; without evidence, what there is to learn.
"""
_INFO = "info/first_turn"
_LEVEL = "Line: what the verdict reads, the median or mean of the last values. Faint: each step."

CHARTS: tuple[Chart, ...] = (
    Chart(
        name="success",
        title="Success",
        help=(
            "Share of tasks solved. Line: training, with its 95 % interval over the step's"
            " trajectories (siblings share a task, so in truth it is somewhat wider). Dots:"
            " evaluation on fixed tasks that never train."
        ),
        lines=(Line(key=SUCCESS, name="training"),),
        missing="No success was logged yet.",
    ),
    Chart(
        name=EVIDENCE,
        title="Reward std within groups",
        help="What there is to learn: siblings that all earn the same give no gradient.",
        lines=(Line(key="reward/group_std_mean"),),
        missing="Needs groups of at least two siblings.",
    ),
    Chart(
        name="groups",
        title="Groups by outcome",
        help=(
            "Share of groups in which all siblings succeeded, in which all failed, and in which"
            " rewards differ: only these give a gradient. With a filter: the share that it keeps."
        ),
        lines=(
            Line(key="reward/solved_frac", name="all solved"),
            Line(key="reward/hopeless_frac", name="all failed"),
            Line(key="reward/zero_std_frac", name="with signal: rewards differ", is_rest=True),
            Line(key="selection/kept_frac", name="kept by the filter", is_shown_below=1.0),
        ),
        missing="Needs groups of at least two siblings.",
    ),
    Chart(
        name="entropy",
        title="Policy entropy",
        help="Entropy of the sampling distribution per token; a run that loses it stops exploring.",
        lines=(Line(key=ENTROPY),),
        missing="The sampler reported no entropies.",
    ),
    Chart(
        name="information",
        title="Reasoning",
        help=(
            "I(X;Z): how much the reasoning depends on its prompt; near zero is template collapse."
            " H(Z|X): how varied it is for one prompt. Bands are 95 % intervals."
        ),
        lines=(
            Line(key=f"{_INFO}/conditional_entropy", name="variety H(Z|X)", has_interval=True),
            Line(
                key=f"{_INFO}/mutual_information",
                name="dependence on the prompt I(X;Z)",
                has_interval=True,
                is_right=True,
            ),
        ),
        missing="I(X;Z) was not measured. It needs the model and several prompts.",
    ),
    Chart(
        name="gradient",
        title="Gradient norm",
        help="Norm before clipping; the terms are decomposed every few steps.",
        lines=(
            Line(key="optim/grad_norm", name="all terms"),
            Line(key="gradient/policy/all/norm", name="policy", least_points=2),
            Line(key="gradient/entropy/all/norm", name="entropy", least_points=2),
            Line(key="gradient/kl/all/norm", name="KL", least_points=2),
            Line(key="gradient/value/all/norm", name="value", least_points=2),
        ),
        missing="No update was made yet.",
    ),
    Chart(
        name="return",
        title="Return",
        help="Mean return of a trajectory with the 95 % interval of its mean.",
        lines=(Line(key=RETURN),),
        missing="No reward was logged yet.",
    ),
    Chart(
        name="length",
        title="Response length",
        help="Sampled tokens per response, and those of its reasoning.",
        lines=(
            Line(key=RESPONSE_LENGTH, name="response"),
            Line(key="rollout/reasoning_length_mean", name="reasoning"),
        ),
    ),
    Chart(
        name="spread",
        title="Reward std within groups",
        help="What there is to learn: siblings that all earn the same give no gradient.",
        lines=(Line(key="reward/group_std_mean"),),
        missing="Needs groups of at least two siblings.",
    ),
    Chart(
        name="mismatch",
        title="Mismatch KL",
        help="Log-probs that the sampler recorded against the trainer's: worry above 0.05.",
        lines=(
            Line(key="policy/mismatch_kl", name="mismatch KL"),
            Line(key="policy/ref_kl", name="KL to the reference", is_right=True),
        ),
        missing="The trainer did not score the sampled tokens again.",
    ),
    Chart(
        name="speed",
        title="Speed",
        help="Sampled tokens over the time of the whole step, and the seconds that a step takes.",
        lines=(
            Line(key="time/tokens_per_s", name="tokens/s"),
            Line(key="time/step_s", name="step time", is_right=True),
        ),
        missing="No times were logged.",
    ),
    Chart(
        name="waiting",
        title="Who waits for whom",
        help=(
            "Seconds of a step in which one side waited. Engine: no reply to sample, because all"
            " episodes waited for their environments. Environments: none at work, because all"
            " episodes waited for replies. Update: no complete step to learn from yet."
        ),
        lines=(
            Line(key="collection/engine_wait_s", name="engine"),
            Line(key="collection/env_wait_s", name="environments"),
            Line(key="collection/update_wait_s", name="update"),
        ),
        missing="Measured with collection.mode=async only.",
    ),
    Chart(
        name="queue",
        title="Queue and staleness",
        help=(
            "Replies and environments under way at the same time, mean over a step, and the"
            " updates that the weights behind a turn lack."
        ),
        lines=(
            Line(key="collection/num_requests_mean", name="replies at the engine"),
            Line(key="collection/num_env_calls_mean", name="environments at work"),
            Line(key="rollout/staleness_mean", name="staleness", is_right=True),
        ),
        missing="Measured with collection.mode=async only.",
    ),
)


OWN_CHARTS = frozenset({"waiting", "queue"})
"""Names of charts that only our own trainer can fill, with `collection.mode=async`."""


def evidence_chart(verdict: Verdict | None, known: Sequence[str]) -> Chart:
    """What the verdict rests on besides success, which has a chart of its own.

    Two metrics at most, the second on the right axis; `CHARTS` has what is shown without any.
    """
    usual = next(chart for chart in CHARTS if chart.name == EVIDENCE)
    shown = {line.key for chart in CHARTS[:1] for line in chart.lines} | set(eval_keys(known))
    keys: dict[str, None] = {}
    for evidence in verdict.evidence if verdict else ():
        if SOURCES.get(evidence.metric, ("",))[0] in known:
            keys[evidence.metric] = None
        else:
            stored = [key for key in known if fnmatch.fnmatchcase(key, evidence.metric)]
            keys |= dict.fromkeys(stored[:1])
    found = [key for key in keys if key not in shown][:2]
    if not found:
        return usual
    units = [SHARE if metric(key).unit == POINTS else metric(key).unit for key in found]
    lines = tuple(
        Line(
            key=key,
            name=capitalised(metric(key).in_sentence),
            is_right=unit != units[0],
            has_interval=f"{key}_low" in known,
        )
        for key, unit in zip(found, units, strict=True)
    )
    help = f"{_LEVEL} {' '.join(metric(key).help for key in found)}"
    return Chart(name=EVIDENCE, title="Evidence", help=help, lines=lines, shows_level=True)


def chart_keys(charts: Sequence[Chart], known: Sequence[str]) -> list[str]:
    """The metrics to read for some charts, of those that the run has."""
    wanted = {
        source
        for chart in charts
        for line in chart.lines
        for source in SOURCES.get(line.key, (line.key,))
    }
    wanted |= {
        f"{line.key}_{end}"
        for chart in charts
        for line in chart.lines
        if line.has_interval
        for end in ("low", "high")
    }
    if any(chart.name == "success" for chart in charts):
        wanted |= {f"{key}{end}" for key in eval_keys(known) for end in ("", "_low", "_high")}
    return sorted(wanted & set(known))


def shown_charts(
    charts: Sequence[Chart], known: Sequence[str], *, is_ours: bool = False
) -> tuple[list[Chart], list[Chart]]:
    """The charts that a page draws, and those that it names as missing; no curves twice.

    Args:
        is_ours: Our trainer made the run: an empty chart says what fills it. Those that only some
            runs fill are drawn if they are, or if nobody knows yet.
    """
    shown: dict[tuple[Line, ...], Chart] = {}
    absent = []
    for chart in charts:
        is_usual = is_ours and (chart.name not in OWN_CHARTS or not known)
        if is_usual or chart_keys([chart], known):
            shown.setdefault(chart.lines, chart)
        elif chart.name not in OWN_CHARTS and chart.name != EVIDENCE:
            absent.append(chart)
    return list(shown.values()), absent


def eval_keys(known: Sequence[str]) -> list[str]:
    """Success on tasks that never train: over all tags, or of each of the first three."""
    found = [
        key
        for key in known
        if key.startswith(("eval/", "probe/")) and key.endswith("/success_rate")
    ]
    over_all = [key for key in found if key.split("/")[1] == "all"]
    return over_all or found[:3]


def chart_curves(
    chart: Chart, data: pd.DataFrame, steps: pd.DataFrame, known: Sequence[str]
) -> list[Curve]:
    """The curves of one chart that the run has.

    Args:
        data: columns step, key, value.
        steps: the table `steps`, for the number of trajectories behind a rate.
    """
    lines = list(chart.lines)
    if chart.name == "success":
        found = eval_keys(known)
        has_tags = len({key.split("/")[1] for key in found}) > 1
        evals = [Line(key=key, name=_eval_name(key, has_tags=has_tags)) for key in found]
        lines[1:1] = evals
    if chart.shows_level:
        data = _with_derived(data, {line.key for line in lines})
    out = []
    for place, line in enumerate(lines):
        stores_interval = line.has_interval or line.key.startswith(("eval/", "probe/"))
        one = curve(
            data,
            line.key,
            name=line.name,
            low_key=f"{line.key}_low" if stores_interval else "",
            high_key=f"{line.key}_high" if stores_interval else "",
            color=theme.SERIES[place % len(theme.SERIES)],
            is_right=line.is_right,
        )
        if line.is_rest:
            one = replace(one, key=f"1 - {one.key}", values=1.0 - one.values)
        if len(one.steps) < line.least_points or not (one.values < line.is_shown_below).any():
            continue
        if line.key == SUCCESS:
            low, high = _success_interval(one, steps)
            one = replace(one, low=low, high=high)
        elif line.key == RETURN:
            low, high = _mean_interval(one, steps)
            one = replace(one, low=low, high=high)
        if chart.shows_level:
            one = replace(one, level=_level(one, steps))
        out.append(one)
    return out


def _with_derived(data: pd.DataFrame, keys: set[str]) -> pd.DataFrame:
    """The table with those metrics, too, that rules make of stored ones: `SOURCES`."""
    made = keys & SOURCES.keys()
    if not made:
        return data
    sources = {source for key in made for source in SOURCES[key]}
    rows = [
        (step, key, value)
        for step, group in data[data["key"].isin(sources)].groupby("step")
        for key, value in derived(dict(zip(group["key"], group["value"], strict=True))).items()
        if key in made
    ]
    more = pd.DataFrame(rows, columns=["step", "key", "value"])
    return pd.concat([data[["step", "key", "value"]].astype({"key": object}), more])


def _level(one: Curve, steps: pd.DataFrame) -> FloatArray64 | None:
    """What the verdict reads of a metric; None where no channel follows it, or it is too long."""
    spec = next((s for s in CHANNELS if any(matches(one.key, key) for key in s.keys)), None)
    if spec is None or one.is_sparse or len(one.steps) > MANY_POINTS:
        return None
    rows = zip(one.steps.tolist(), one.values.tolist(), strict=True)
    found = dict(levels(one.key, spec, rows, steps["step"].tolist()))
    return np.array([found.get(step, np.nan) for step in one.steps.tolist()], np.float64)


def _eval_name(key: str, *, has_tags: bool) -> str:
    split, tag = key.split("/")[:2]
    name = {"eval": "evaluation", "probe": "probe, same seeds"}.get(split, split)
    return f"{name} {tag}" if has_tags else name


def _success_interval(one: Curve, steps: pd.DataFrame) -> tuple[FloatArray64, FloatArray64]:
    return wilson_interval(one.values, _at(steps, "num_trajectories", one))


def _mean_interval(one: Curve, steps: pd.DataFrame) -> tuple[FloatArray64, FloatArray64]:
    """The mean of a step's returns, 1.96 standard errors on each side."""
    counts = _at(steps, "num_trajectories", one)
    half = 1.96 * _at(steps, "return_std", one) / np.sqrt(np.where(counts > 0, counts, np.nan))
    return one.values - half, one.values + half


def _at(steps: pd.DataFrame, column: str, one: Curve) -> FloatArray64:
    """A column of the table `steps` at the steps of a curve, NaN where it has none."""
    by_step = steps.drop_duplicates("step", keep="last").set_index("step")[column]
    return by_step.reindex(one.steps).to_numpy(np.float64, na_value=np.nan)
