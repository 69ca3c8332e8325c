"""The information of a stored run's rollouts, scored under a model that is at hand now.

For a run that did not measure it, or whose reasonings are to be compared under one and the same
model. What the scores mean depends on who sampled:

- Where these very weights sampled (their log-probs are those that were recorded), the estimates are
  what the run itself would have measured: unbiased for the batch.
- Under any other weights I(X;Z) is a lower bound (InfoNCE holds for any score: Poole et al. 2019,
  arXiv 1905.06922, section 2.2), so a high value is proof of dependence and a low one is not proof
  of its absence. H(Z|X) is not known then: what is computed is a cross-entropy, and is named so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from echoscope.store.reader import RunReader
from echoscope.store.records import Split, Trajectory

from ..config import InformationConfig
from ..measure.information.cross_scores import MAX_SAMPLING_GAP, Scorer
from ..measure.information.pairs import Decode
from ..measure.information.step import measure_information, plan_information
from ..measure.text.sample import evenly
from ..read.table import MetricTable, TableBuilder, steps_with_groups

DEFAULT_STEPS = 20
"""Steps that are scored where it is not said how many: spread evenly."""
SPARE_GROUPS = 2
"""Groups used per prompt that is compared: some have the same prompt."""


class RescoringError(ValueError):
    """A stored run cannot be scored this way. One line with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model at hand."""

    scorer: Callable[[], Scorer]
    """At the temperature that sampled."""
    decode: Decode
    name: str
    """In words, such as `the checkpoint of step 40`."""
    vocabulary: int
    """Ids from here on are not the model's."""
    config: InformationConfig = field(default_factory=InformationConfig)
    """How many prompts and reasonings are compared."""


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
    stored = steps_with_groups(reader, with_tokens=True)
    steps = evenly(stored, DEFAULT_STEPS) if every is None else stored[::every]
    if not steps:
        raise RescoringError(
            f"{reader.run_id} has no trajectories with recorded tokens, so no model can score "
            "them; text alone is what can be judged"
        )
    builder = TableBuilder()
    for step, values in table.rows():
        others = {key: value for key, value in values.items() if not key.startswith("info/")}
        builder.add_row(step, others)
    scorer = weights.scorer()
    own_steps: list[int] = []
    for done, step in enumerate(steps, 1):
        trajectories = sample_for_scoring(reader, step, weights.config)
        _check_vocabulary(trajectories, weights)
        plan = plan_information(trajectories, weights.config, step=step, decode=weights.decode)
        measured = measure_information(scorer, trajectories, plan)
        values = {k: v for k, v in measured.metrics().items() if k.startswith("info/")}
        scores = [family.scores for family in measured.estimates.values()]
        if any(of_family.sampling_gap <= MAX_SAMPLING_GAP for of_family in scores):
            own_steps.append(step)
        else:
            values = as_cross_entropy(values)
        builder.add_row(step, values)
        if progress:
            progress(done, len(steps))
    full = builder.build()
    notes = [f"I(X;Z) of {len(steps)} steps ({_some(steps)}) was scored under {weights.name}"]
    caveats = dict(table.caveats)
    if len(own_steps) < len(steps):
        sampled_here = (
            f"{len(own_steps)} of them ({_some(own_steps)})" if own_steps else "none of them"
        )
        notes.append(
            f"by the recorded log-probs those weights sampled {sampled_here}: for what another "
            "version sampled the estimate is not unbiased; I(X;Z) is a lower bound, so that a low "
            "value is no proof, and H(Z|X) is not known (info/.../cross_entropy_per_token stands "
            "in its place, and no rule reads it)"
        )
        caveats["info/"] = (
            f"Caution: I(X;Z) was scored under {weights.name}, which did not sample all of this; "
            "where it is low, that may be the scorer's distance and not the reasoning's."
        )
    return replace(full, notes=(*table.notes, *notes), caveats=caveats)


def sample_for_scoring(reader: RunReader, step: int, config: InformationConfig) -> list[Trajectory]:
    """Whole groups first: at most `config.reasonings` of each, of twice `config.prompts` groups."""
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in reader.trajectories_of_step(step):
        if trajectory.split in (Split.TRAIN, Split.IMPORT):
            groups.setdefault(trajectory.group_index, []).append(trajectory)
    chosen = sorted(groups)[: SPARE_GROUPS * config.prompts]
    return [trajectory for group in chosen for trajectory in groups[group][: config.reasonings]]


def as_cross_entropy(values: Mapping[str, float]) -> dict[str, float]:
    """Metrics under weights that did not sample: what would be an entropy is named differently.

    RAGEN measures under the weights that sampled, so its names would mislead.

    >>> as_cross_entropy({"info/first_turn/conditional_entropy_per_token": 2.0,
    ...     "info/first_turn/marginal_entropy": 9.0, "info/first_turn/dependence": 0.5})
    {'info/first_turn/cross_entropy_per_token': 2.0, 'info/first_turn/dependence': 0.5}
    """
    out: dict[str, float] = {}
    for key, value in values.items():
        prefix, _, name = key.rpartition("/")
        if name == "conditional_entropy_per_token":
            out[f"{prefix}/cross_entropy_per_token"] = value
        elif not key.startswith("collapse") and not name.startswith(
            ("conditional_entropy", "marginal_entropy")
        ):
            out[key] = value
    return out


def _check_vocabulary(trajectories: Sequence[Trajectory], weights: Weights) -> None:
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for tokens in (turn.prompt_tokens, turn.response_tokens):
                if tokens is None:
                    continue
                foreign = tokens[(tokens < 0) | (tokens >= weights.vocabulary)]
                if len(foreign):
                    raise RescoringError(
                        f"{trajectory.id} has the token id {foreign[0]}, but {weights.name} knows "
                        f"ids below {weights.vocabulary}: it is no model of that tokenizer"
                    )


def _some(steps: Sequence[int]) -> str:
    if len(steps) <= 6:
        return ", ".join(map(str, steps))
    return f"{steps[0]}, {steps[1]}, {steps[2]}, ... {steps[-1]}"
