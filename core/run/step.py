"""What a training step came to: its numbers, its outcomes, and what a person is told of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor

from echoscope.diagnostics.selection.filter import Selection
from echoscope.store.records import RolloutBatch, TrajectoryOutcome

from ..config.settings import RunConfig
from ..rollout.curriculum import curriculum_metrics, note_success
from ..update.assemble import fresh_tokens, outcomes
from ..update.batch import TokenBatch
from ..update.kl import mean_kl
from ..update.metrics import rollout_metrics, staleness_metrics
from ..update.update import UpdateResult, mismatch_metrics
from .checkpoint import Progress
from .observers import Observed


@dataclass(slots=True)
class Stopwatch:
    """Seconds of a step by phase."""

    # Looked up when a step starts: a benchmark lets the clock count processor time.
    started: float = field(default_factory=lambda: time.perf_counter())
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        key = f"time/{name}_s"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - begun

    def total(self) -> float:
        return time.perf_counter() - self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step after its update."""

    step: int
    config: RunConfig
    """Of this step: with the groups that each environment got."""
    version: int
    """Of the weights before the update."""
    rollouts: RolloutBatch
    selection: Selection
    batch: TokenBatch
    observed: Observed
    result: UpdateResult
    logprobs: Tensor | None
    """(B, T) of the trainer at the weights before the update; None where no pass computed them."""

    def after(self, progress: Progress) -> Progress:
        """What the loop carries on to the next step."""
        return replace(
            progress,
            num_nonfinite=progress.num_nonfinite + 1 if self.result.num_skipped else 0,
            success_by_tag=note_success(progress.success_by_tag, self.rollouts),
        )

    def metrics(self, success_by_tag: Mapping[str, float]) -> dict[str, float]:
        """All numbers of the step but durations.

        Args:
            success_by_tag: the curriculum's running success, this step included.
        """
        config, rollouts = self.config, self.rollouts
        values = self.observed.values | self.result.metrics | rollout_metrics(rollouts)
        values |= self.selection.metrics()
        is_fresh = None
        if config.from_run is None:
            is_fresh = fresh_tokens(self.batch, rollouts, self.selection, self.version)
            values |= staleness_metrics(rollouts, self.version)
        values |= mismatch_metrics(self.logprobs, self.batch, is_fresh)
        counts = [entry.groups for entry in config.envs.train]
        values |= curriculum_metrics(config, counts, success_by_tag)
        if config.dynamic_sampling.max_rounds > 1:
            values["rollout/num_rounds"] = rollouts.num_groups / sum(counts)
        if config.reward.kl is not None:
            values["reward/kl"] = mean_kl(self.batch, config.reward.kl)
        return values

    def outcomes(self) -> list[TrajectoryOutcome]:
        """What was learned of each trajectory."""
        information = self.observed.information
        return outcomes(self.rollouts, self.selection, self.batch, self.logprobs, information)

    def messages(self, *, num_nonfinite: int, most_tokens: int | None) -> Iterator[str]:
        """Sentences about an update that was not as planned.

        Args:
            num_nonfinite: such steps in a row, this one included.
            most_tokens: of a forward pass, since memory ran out.
        """
        values = self.result.metrics
        if not self.batch.num_rows:
            yield f"step {self.step}: no update, {self.selection.reason or 'nothing to train'}"
        if values["optim/num_oom_retries"]:
            yield (
                f"step {self.step}: the update ran out of memory and was made again with at most "
                f"{most_tokens} tokens per forward pass, as later ones will be; "
                f"optim.max_microbatch_tokens={most_tokens} avoids this"
            )
        if self.result.num_skipped:
            kinds = ("num_updates", "num_skipped", "num_without_gradient")
            num_tried = round(sum(values[f"optim/{kind}"] for kind in kinds))
            yield (
                f"step {self.step}: {self.result.num_skipped} of {num_tried} updates skipped, the "
                f"gradient was NaN or infinite ({num_nonfinite} such steps in a row)"
            )
