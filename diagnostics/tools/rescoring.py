"""The information of a stored run's rollouts, scored under a model that is at hand now.

For a run that did not measure it, or whose reasonings are to be compared under one and the same
model. What the scores mean depends on who sampled:

- Where these very weights sampled (their log-probs are those that were recorded), the estimates are
  what the run itself would have measured: unbiased for the batch.
- Under any other weights I(X;Z) is a lower bound (InfoNCE holds for any score: Poole et al. 2019,
  arXiv 1905.06922, section 2.2), so a high value is proof of dependence and a low one is not proof
  of its absence. H(Z|X) is not known then: what is computed is a cross-entropy, and is named so.

One step is read and scored at a time, at most a few groups of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from echoscope.store.reader import RunReader
from echoscope.store.records import Trajectory

from ..config import InformationConfig
from ..measure.information.cross_scores import MAX_SAMPLING_GAP, Scorer
from ..measure.information.pairs import Decode
from ..measure.information.step import measure_information, plan_information
from ..read.table import MetricTable, TableBuilder, steps_with_groups

DEFAULT_STEPS = 20
"""Steps that are scored where it is not said how many: spread evenly."""
SPARE_GROUPS = 2
"""Groups read per prompt that is wanted: some have the same prompt."""
MAX_WHOLE_STEP = 512
"""Trajectories up to which a step is read at once instead of one by one."""


class RescoringError(ValueError):
    """A stored run cannot be scored this way. One line with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model at hand, and how the run sampled."""

    scorer: Callable[[], Scorer]
    """At the temperature that sampled."""
    decode: Decode
    name: str
    """In words, such as `the checkpoint of step 40`."""
    policy_version: int | None = None
    """Of a checkpoint of the run; None for a model from elsewhere."""
    vocabulary: int
    """Ids from here on are not the model's."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    config: InformationConfig = field(default_factory=InformationConfig)
    """How many prompts and reasonings are compared."""


@dataclass(slots=True)
class _Seen:
    """What was met on the way, for the notes."""

    steps: list[int]
    own: list[int]
    """Steps that these weights sampled, by the recorded log-probs."""
    versions: set[int]
    problems: dict[str, int]


def with_information(
    table: MetricTable,
    reader: RunReader,
    weights: Weights,
    *,
    every: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MetricTable:
    """`table` with `info/...` of a sample of steps instead of whatever it had of them.

    Args:
        every: score every so many steps that have trajectories; `DEFAULT_STEPS` of them if None.
        progress: called with (done, of) after each step.

    Raises:
        RescoringError: no step has recorded tokens, or they are of another vocabulary.
    """
    settings = weights.config.model_copy(update={"ragen_samples": ()})
    steps = _chosen(steps_with_groups(reader, with_tokens=True), every)
    if not steps:
        raise RescoringError(
            f"{reader.run_id} has no trajectories with recorded tokens, so no model can score "
            "them; text alone is what can be judged"
        )
    builder = TableBuilder()
    for step, values in table.rows():
        own = {key: value for key, value in values.items() if not key.startswith("info/")}
        builder.add_row(step, own)
    seen = _Seen(steps=steps, own=[], versions=set(), problems={})
    scorer = weights.scorer()
    for done, step in enumerate(steps):
        trajectories = sample_for_scoring(reader, step, settings)
        _check_vocabulary(trajectories, weights)
        builder.add_row(step, _measured(trajectories, step, scorer, weights, settings, seen))
        if progress:
            progress(done + 1, len(steps))
    full = builder.build(kind=table.kind, path=table.path)
    caveats = dict(table.caveats)
    if len(seen.own) < len(seen.steps):
        caveats["info/"] = (
            f"Caution: I(X;Z) was scored under {weights.name}, which did not sample all of this; "
            "where it is low, that may be the scorer's distance and not the reasoning's."
        )
    notes = (*table.notes, *_notes(seen, weights))
    return replace(full, notes=notes, caveats=caveats)


def sample_for_scoring(reader: RunReader, step: int, config: InformationConfig) -> list[Trajectory]:
    """Whole groups first: at most `config.reasonings` of each, of twice `config.prompts` groups."""
    rows = reader.sql(
        "SELECT id FROM (SELECT id, "
        "row_number() OVER (PARTITION BY group_index ORDER BY sibling_index, id) AS sibling, "
        "dense_rank() OVER (ORDER BY group_index) AS place "
        "FROM trajectories WHERE step = $1 AND split IN ('train', 'import')) "
        "WHERE sibling <= $2 AND place <= $3 ORDER BY id",
        [step, config.reasonings, SPARE_GROUPS * config.prompts],
    )
    ids = [str(found) for found in rows.column("id").to_pylist()]
    if reader.listing(step).num_rows > MAX_WHOLE_STEP:
        return [reader.trajectory(one) for one in ids]
    wanted = set(ids)
    return [one for one in reader.trajectories_of_step(step) if one.id in wanted]


def _chosen(steps: Sequence[int], every: int | None) -> list[int]:
    if every is not None:
        return list(steps[::every])
    places = np.unique(np.linspace(0, len(steps) - 1, DEFAULT_STEPS).astype(int))
    return [steps[place] for place in places] if steps else []


def _measured(
    trajectories: Sequence[Trajectory],
    step: int,
    scorer: Scorer,
    weights: Weights,
    config: InformationConfig,
    seen: _Seen,
) -> dict[str, float]:
    found = measure_information(
        scorer,
        trajectories,
        plan_information(trajectories, config, step=step, decode=weights.decode),
        config,
        top_k=weights.top_k,
        top_p=weights.top_p,
        min_p=weights.min_p,
    )
    for problem in found.problems:
        seen.problems[problem] = seen.problems.get(problem, 0) + 1
    seen.versions |= {trajectory.policy_version or 0 for trajectory in trajectories}
    is_own = any(one.sampling_gap <= MAX_SAMPLING_GAP for one in found.estimates.values())
    if is_own:
        seen.own.append(step)
    values = found.metrics()
    return values if is_own else as_cross_entropy(values)


def as_cross_entropy(values: Mapping[str, float]) -> dict[str, float]:
    """Metrics under weights that did not sample: what would be an entropy is named differently.

    >>> as_cross_entropy({"info/first_turn/conditional_entropy_per_token": 2.0,
    ...     "info/first_turn/marginal_entropy": 9.0, "info/first_turn/dependence": 0.5})
    {'info/first_turn/cross_entropy_per_token': 2.0, 'info/first_turn/dependence': 0.5}
    """
    out: dict[str, float] = {}
    for key, value in values.items():
        prefix, _, name = key.rpartition("/")
        if name == "conditional_entropy_per_token":
            out[f"{prefix}/cross_entropy_per_token"] = value
        elif not name.startswith(("conditional_entropy", "marginal_entropy")):
            out[key] = value
    return out


def _check_vocabulary(trajectories: Sequence[Trajectory], weights: Weights) -> None:
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.prompt_images:
                raise RescoringError(
                    f"{trajectory.id} was sampled from prompts with pictures, which a stored run "
                    "cannot be scored with yet: train with diagnostics.information on instead"
                )
            for tokens in (turn.prompt_tokens, turn.response_tokens):
                if tokens is None or not len(tokens):
                    continue
                worst = int(tokens.min()) if int(tokens.min()) < 0 else int(tokens.max())
                if not 0 <= worst < weights.vocabulary:
                    raise RescoringError(
                        f"{trajectory.id} has the token id {worst}, but {weights.name} knows ids "
                        f"below {weights.vocabulary}: it is no model of that tokenizer"
                    )


def _notes(seen: _Seen, weights: Weights) -> list[str]:
    version = "" if weights.policy_version is None else f" (version {weights.policy_version})"
    num_steps, num_own = len(seen.steps), len(seen.own)
    notes = [
        f"I(X;Z) of {num_steps} steps ({_some(seen.steps)}) was scored under {weights.name}"
        f"{version}; policy versions {min(seen.versions)} to {max(seen.versions)} sampled them"
    ]
    if num_own < num_steps:
        own = f"{num_own} of them ({_some(seen.own)})" if num_own else "none of them"
        notes.append(
            f"by the recorded log-probs those weights sampled {own}: for what another version "
            "sampled the estimate is not unbiased; I(X;Z) is a lower bound, so that a low value is "
            "no proof, and H(Z|X) is not known (info/.../cross_entropy_per_token stands in its "
            "place, and no rule reads it)"
        )
    most = sorted(seen.problems.items(), key=lambda item: -item[1])[:3]
    notes += [f"{problem} (at {count} of {num_steps} steps)" for problem, count in most]
    return notes


def _some(steps: Sequence[int]) -> str:
    if len(steps) <= 6:
        return ", ".join(map(str, steps))
    return f"{steps[0]}, {steps[1]}, {steps[2]}, ... {steps[-1]}"
