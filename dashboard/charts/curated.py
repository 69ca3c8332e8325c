"""The curated charts of a run: which curves they have. One chart has one unit."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.courses.channels import SOURCES, derived
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.diagnostics.metric_entry import POINTS, SHARE
from echoscope.store.query import metric_keys
from echoscope.store.records import FloatArray64
from echoscope.text.sentences import capitalised

from ..data.curves import FIXED_TASKS, Curve, curve, success_keys
from . import theme


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """One curve of a chart."""

    key: str
    name: str = ""
    """Shorter than the label of the key, where the chart's title says the rest."""
    has_interval: bool = False
    """The run stores `KEY_low` and `KEY_high`."""
    is_rest: bool = False
    """What is left of a share is drawn: 1 - value."""
    color: str = ""
    """Where the colour means something on other charts and pages, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart by name."""

    name: str
    """In URLs and file names."""
    title: str
    help: str
    lines: tuple[ChartLine, ...] = ()


def plain_chart(key: str) -> Chart:
    """The chart of any metric, under its plain name."""
    return Chart(
        name=key, title=metric(key).name, help=metric(key).help, lines=(ChartLine(key=key),)
    )


def _of(name: str, key: str, help: str) -> Chart:
    """The chart of one metric, which is called as the metric is."""
    return replace(plain_chart(key), name=name, help=help)


EVIDENCE = "evidence"
"""Name of the chart that shows what the verdict rests on."""
_INFO = "info/first_turn"

CHARTS: tuple[Chart, ...] = (
    Chart(
        name="success",
        title="Success",
        help="Share of tasks solved. Line: training, with its 95 % interval over the step's "
        "trajectories (siblings share a task, so in truth it is somewhat wider). Dots: evaluation "
        "on fixed tasks that never train; a probe plays the same seeds each time.",
        lines=(ChartLine(key=metric_keys.SUCCESS_RATE, name="training"),),
    ),
    Chart(
        name="groups",
        title="Groups by outcome",
        help="Share of groups in which all siblings succeeded, in which all failed, and in which "
        "rewards differ: only these give a gradient. And the share that the filter keeps.",
        lines=(
            ChartLine(key="reward/solved_frac", name="all solved", color=theme.OUTCOMES["solved"]),
            ChartLine(
                key="reward/hopeless_frac", name="all failed", color=theme.OUTCOMES["hopeless"]
            ),
            ChartLine(
                key=metric_keys.ZERO_STD,
                name="with signal",
                is_rest=True,
                color=theme.OUTCOMES["mixed"],
            ),
            ChartLine(key="selection/kept_frac", name="kept", color=theme.COMMAND_MARK),
        ),
    ),
    _of(
        "entropy",
        metric_keys.ENTROPY,
        "Entropy of the sampling distribution per token; a run that loses it stops exploring.",
    ),
    Chart(
        name="information",
        title="Dependence on the prompt, I(X;Z)",
        help="How much the reasoning depends on its prompt; near zero is template collapse.",
        lines=(ChartLine(key=f"{_INFO}/mutual_information", has_interval=True),),
    ),
    Chart(
        name="variety",
        title="Variety of the reasoning, H(Z|X)",
        help="How varied the reasoning is for one prompt. The band is the 95 % interval.",
        lines=(ChartLine(key=f"{_INFO}/conditional_entropy", has_interval=True),),
    ),
    Chart(
        name="gradient",
        title="Gradient norm",
        help="Norm before clipping; the terms are decomposed every few steps.",
        lines=(
            ChartLine(key=metric_keys.GRAD_NORM, name="all terms"),
            ChartLine(key="gradient/policy/all/norm", name="policy"),
            ChartLine(key="gradient/entropy/all/norm", name="entropy"),
            ChartLine(key="gradient/kl/all/norm", name="KL"),
            ChartLine(key="gradient/value/all/norm", name="value"),
        ),
    ),
    _of(
        "return",
        metric_keys.RETURN_MEAN,
        "Mean return of a trajectory with the 95 % interval of its mean.",
    ),
    Chart(
        name="length",
        title="Reply length",
        help="Sampled tokens per reply, and those of its reasoning.",
        lines=(
            ChartLine(key=metric_keys.RESPONSE_LENGTH, name="reply"),
            ChartLine(key="rollout/reasoning_length_mean", name="reasoning"),
        ),
    ),
    _of(
        "spread",
        metric_keys.GROUP_STD,
        "What there is to learn: siblings that all earn the same give no gradient.",
    ),
    _of(
        "mismatch",
        "policy/mismatch_kl",
        "Log-probs that the sampler recorded against the trainer's: worry above 0.05.",
    ),
    _of("reference", metric_keys.REF_KL, "How far the policy has moved from the reference policy."),
    _of("speed", "time/step_s", "The seconds that a step takes."),
)
BY_NAME: Mapping[str, Chart] = {chart.name: chart for chart in CHARTS}


def evidence_chart(verdict: Verdict | None, known_keys: Sequence[str]) -> Chart | None:
    """What the verdict rests on besides success, which has a chart of its own.

    Two metrics of one unit at most; None where the verdict rests on nothing else.
    """
    chart_metrics = {metric_keys.SUCCESS_RATE, *eval_keys(known_keys)}
    evidence = verdict.evidence if verdict else ()
    keys = dict.fromkeys(drawable_key(each.metric, known_keys) for each in evidence)
    candidates = [key for key in keys if key and key not in chart_metrics]
    drawn = [key for key in candidates if _unit(key) == _unit(candidates[0])][:2]
    if not drawn:
        return None
    lines = tuple(
        ChartLine(
            key=key,
            name=capitalised(metric(key).in_sentence),
            has_interval=f"{key}_low" in known_keys,
        )
        for key in drawn
    )
    help = " ".join(metric(key).help for key in drawn)
    return Chart(name=EVIDENCE, title="Evidence", help=help, lines=lines)


def drawable_key(key: str, known_keys: Sequence[str]) -> str | None:
    """A metric that the run stores or has the sources of; the first of those that a pattern names.

    None where there is none.
    """
    if SOURCES.get(key, ("",))[0] in known_keys:
        return key
    return next((known for known in known_keys if fnmatch.fnmatchcase(known, key)), None)


def onset_range(verdict: Verdict | None) -> tuple[int, int] | None:
    """Between which steps the change began that a verdict speaks of; None without one."""
    if verdict is None or verdict.onset_step is None:
        return None
    return verdict.onset_interval or (verdict.onset_step, verdict.onset_step)


def _unit(key: str) -> str:
    """A difference of two shares stands on the axis of shares."""
    unit = metric(key).unit
    return SHARE if unit == POINTS else unit


def charts_of(verdict: Verdict | None, keys: Sequence[str]) -> list[Chart]:
    """The curated charts that a run has metrics for; the evidence stands beside success.

    A chart whose only curves the evidence shows is left out: nothing stands twice.
    """
    proof = evidence_chart(verdict, keys)
    listed = [*CHARTS[:1], *([] if proof is None else [proof]), *CHARTS[1:]]
    proven = set() if proof is None else {line.key for line in proof.lines}

    def is_news(chart: Chart) -> bool:
        drawn = {line.key for line in chart.lines} & set(keys)
        return chart is proof or not drawn or not drawn <= proven

    return [chart for chart in listed if chart_keys([chart], keys) and is_news(chart)]


def chart_keys(charts: Sequence[Chart], keys: Sequence[str]) -> list[str]:
    """The metrics to read for some charts, of those that the run has."""
    needed: set[str] = set()
    for chart in charts:
        for line in chart.lines:
            needed |= {*SOURCES.get(line.key, ()), line.key}
            if line.has_interval:
                needed |= {f"{line.key}_low", f"{line.key}_high"}
        if chart.name == "success":
            needed |= {f"{key}{end}" for key in eval_keys(keys) for end in ("", "_low", "_high")}
    return sorted(needed & set(keys))


def eval_keys(metric_keys: Sequence[str]) -> list[str]:
    """Success on tasks that never train: over all tags, or of each of the first three."""
    return success_keys(metric_keys)[:3]


def chart_curves(
    chart: Chart, data: pd.DataFrame, steps: pd.DataFrame, keys: Sequence[str]
) -> list[Curve]:
    """The curves of one chart that the run has.

    Args:
        data: columns step, key, value.
        steps: the table `steps`, for the number of trajectories behind a rate.
    """
    lines = list(chart.lines)
    if chart.name == "success":
        evaluated = eval_keys(keys)
        has_tags = len({key.split("/")[1] for key in evaluated}) > 1
        lines[1:1] = [
            ChartLine(key=key, name=_eval_name(key, has_tags=has_tags), has_interval=True)
            for key in evaluated
        ]
    data = _with_derived(data, {line.key for line in lines})
    curves = []
    palette = [color for color in theme.SERIES if color != theme.FIXED_TASKS]
    for index, line in enumerate(lines):
        usual = palette[index % len(palette)]
        if line.key.startswith(FIXED_TASKS):
            usual = theme.FIXED_TASKS
        drawn = curve(
            data,
            line.key,
            name=line.name,
            has_interval=line.has_interval,
            color=line.color or usual,
        )
        if line.is_rest:
            drawn = replace(drawn, key=f"1 - {drawn.key}", values=1.0 - drawn.values)
        is_outcome = line.key in (metric_keys.SUCCESS_RATE, metric_keys.RETURN_MEAN)
        if is_outcome and chart.name in ("success", "return"):
            low, high = _interval(drawn, steps)
            drawn = replace(drawn, low=low, high=high)
        if len(drawn.steps):
            curves.append(drawn)
    if len(curves) == 1 and metric(curves[0].key).name.lower() == chart.title.lower():
        return [replace(curves[0], name=metric(curves[0].key).name)]  # the title says it
    return curves


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


def _eval_name(key: str, *, has_tags: bool) -> str:
    split, tag = key.split("/")[:2]
    name = "evaluation" if split == "eval" else split
    return f"{name} {tag}" if has_tags else name


def _interval(curve_: Curve, steps: pd.DataFrame) -> tuple[FloatArray64, FloatArray64]:
    """95 % around the success rate or the mean return of each step's trajectories."""
    by_step = steps.drop_duplicates("step", keep="last").set_index("step").reindex(curve_.steps)
    counts = by_step["num_trajectories"].to_numpy(np.float64, na_value=np.nan)
    if curve_.key == metric_keys.SUCCESS_RATE:
        return wilson_interval(curve_.values, counts)
    spread = by_step["return_std"].to_numpy(np.float64, na_value=np.nan)
    half = 1.96 * spread / np.sqrt(np.where(counts > 0, counts, np.nan))
    return curve_.values - half, curve_.values + half
