"""Training on several ranks: each holds a part of the weights and of the optimizer's state.

Every rank is given the same step, forwards its share of the rows, and joins the same collectives.
Rank 0 also holds the whole weights, from which it samples, scores and writes checkpoints; they are
gathered after each update.

FSDP2 splits the weights. A step's `Policy.outputs` calls parts of the model past its own `forward`,
so the model is wrapped in a module that calls whatever it is given: FSDP's hooks see every pass,
tied weights stay tied, and the same code runs with whole weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from echoscope.diagnostics.measure.gradients import GradientMemoryError, GradientReport
from echoscope.diagnostics.measure.information.cross_scores import Scorer, Tally
from echoscope.diagnostics.measure.information.scoring import MEMORY_BUDGET_BYTES, ModelScorer
from echoscope.store.records import FloatArray, IntArray

from ...config.loading import validate
from ...config.settings import RunConfig
from ...memory import sums_each_part
from ...optim import Optimizer
from ...policy import ModelCritic, Policy, build_policy
from ..batch import TokenBatch
from ..step_gradients import AllGroups
from ..update import UpdateResult
from .alone import OPTIMIZER_NAME, SHARDS_NAME, Learner
from .processes import RankError, Ranks
from .world import World

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

Scored = tuple[Mapping[int, list[FloatArray]], int, Exception | None]
"""Scores by prompt, token-forwards of all ranks, and the first error of one of them."""


class Whole(nn.Module):
    """Calls what it is given; its weights are whole meanwhile."""

    def __init__(self, model: nn.Module, critic: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.critic = critic

    def forward(self, work: Callable[[], _T]) -> _T:
        return work()


def shard(policy: Policy, world: World) -> None:
    """Split the weights of a policy, whole and equal on all ranks, over them.

    Weights are kept in float32, so that the optimizer needs no masters of its own. Where the model
    computes in bfloat16 they are cast as they are gathered, and gradients are summed in float32.
    """
    computes_in = next(policy.model.parameters()).dtype
    whole = Whole(policy.model, policy.critic).to(torch.float32)
    mesh = init_device_mesh(policy.device.type, (world.size,))
    precision = MixedPrecisionPolicy(param_dtype=computes_in, reduce_dtype=torch.float32)
    critic = policy.critic
    head = critic.head if isinstance(critic, ModelCritic) else critic
    if head is not None:
        fully_shard(head, mesh=mesh)  # in float32, whatever the model computes in
    _split(whole, mesh, precision)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by what all ranks train on: gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo can only sum
    policy.world, policy.shards = world, whole
    policy.split = lambda model: _split(Whole(model, None), mesh, MixedPrecisionPolicy())


def _split(whole: Whole, mesh: DeviceMesh, precision: MixedPrecisionPolicy) -> Whole:
    for module in whole.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mesh=mesh, mp_policy=precision)
    # What is outside of the layers is gathered once a pass: backward reads the output layer again.
    fully_shard(whole, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    return whole


def with_whole_weights(policy: Policy, work: Callable[[], _T]) -> _T:
    """What `work` gives where every rank has all weights of the model in memory.

    Ranks may then call the model as often as they like, each by itself.
    """
    assert policy.shards is not None
    layers = [m for m in policy.model.modules() if isinstance(m, FSDPModule)]

    def inside() -> _T:
        for layer in layers:
            layer.set_reshard_after_forward(False, recurse=False)
            layer.unshard()
        try:
            return work()
        finally:
            for layer in layers:
                layer.set_reshard_after_forward(True, recurse=False)
                layer.reshard()

    result: _T = policy.shards(inside)
    policy.keeps_parts()
    return result


class ShardedLearner(Learner):
    """One rank's part.

    Args:
        policy: whole, with the weights of rank 0 on every rank; split here.
        whole: rank 0's copy of the weights, which follows them.
    """

    def __init__(self, policy: Policy, config: RunConfig, ranks: Ranks, whole: Policy | None):
        for tensor in [*policy.model.parameters(), *policy.critic_parameters()]:
            dist.broadcast(tensor.data, src=0)
        self._dtype = next(policy.model.parameters()).dtype
        shard(policy, ranks.world)
        super().__init__(
            policy=policy, optimizer=Optimizer(policy.parameter_groups(), config.optim)
        )
        self._whole, self._calls = whole, ranks.calls

    def update(self, batch: TokenBatch, config: RunConfig, step: int) -> UpdateResult:
        """See `update.update`; rank 0's copy of the weights follows."""
        before = self.policy.version
        result = super().update(batch.to(self.policy.device), config, step)
        if self.policy.version != before or self.policy.critic is not None:
            self._gather()
        return result

    def score(
        self,
        prompts: Sequence[IntArray],
        continuations: Sequence[Sequence[IntArray]],
        temperature: float,
    ) -> Scored:
        """See `Scorer.score`: each rank scores its share of the prompts; rank 0 has them all.

        No rank raises here, so that all of them come to the end.
        """
        world = self.policy.world
        mine = range(world.rank, len(prompts), world.size)
        own: dict[int, list[FloatArray]] = {}
        error: Exception | None = None
        num_tokens = 0

        def work() -> None:
            nonlocal error, num_tokens
            model = self.policy.model if self._whole is None else self._whole.model
            try:
                scorer = ModelScorer(model, temperature=temperature)
                rows = scorer.score([prompts[n] for n in mine], [continuations[n] for n in mine])
                own.update(zip(mine, rows, strict=True))
                num_tokens = scorer.tally.num_tokens
            except Exception as failure:  # noqa: BLE001 - raised by rank 0 when all have ended
                error = failure

        with_whole_weights(self.policy, work)
        of_ranks: list[Any] = [None] * world.size
        dist.gather_object(
            (own, num_tokens, error), of_ranks if world.rank == 0 else None, group=self._calls
        )
        if world.rank:
            return {}, 0, None
        rows_of = {n: rows for part, _, _ in of_ranks for n, rows in part.items()}
        errors = [failure for _, _, failure in of_ranks if failure is not None]
        total = sum(count for _, count, _ in of_ranks)
        return rows_of, total, errors[0] if errors else None

    def save(self, folder: Path) -> None:
        """Every rank writes its part of the optimizer's state.

        Raises:
            OSError: a rank could not; all of them know.
        """
        writer = HuggingFaceStorageWriter(str(folder / SHARDS_NAME), save_distributed=True)
        try:
            dcp.save(self._state(), storage_writer=writer)
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            raise OSError(f"rank {rank}: {cause}") from error

    def load(self, folder: Path) -> None:
        """Take back what any number of ranks has written."""
        if (folder / SHARDS_NAME).is_dir():
            super().load(folder)
            return
        masters = list(self.optimizer.masters())
        state: dict[str, Tensor] = {}
        for key, whole in load_file(folder / OPTIMIZER_NAME).items():
            like, state[key] = masters[int(key.partition(".")[0])], whole
            if isinstance(like, DTensor) and whole.ndim:  # this rank's part of what all have read
                here, mesh = whole.to(like.device), like.device_mesh
                state[key] = distribute_tensor(here, mesh, like.placements, src_data_rank=None)
        self.optimizer.load_state_tensors(state)

    def _state(self) -> dict[str, Tensor]:
        state = self.optimizer.state_tensors()
        if self._dtype != torch.float32:  # the weights themselves are what one rank calls masters
            masters = self.optimizer.masters()
            state |= {f"{index}.master": master for index, master in enumerate(masters)}
        return state

    def _gather(self) -> None:
        targets: Mapping[str, Tensor] = {}
        if self._whole is not None:
            self._whole.version = self.policy.version
            targets = dict(self._whole.model.named_parameters(prefix="model"))
            if self._whole.critic is not None:
                targets |= dict(self._whole.critic.named_parameters(prefix="critic"))
        assert self.policy.shards is not None
        with torch.no_grad():  # one at a time; all ranks must go through all of them
            for name, weight in self.policy.shards.named_parameters():
                whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
                if name in targets:
                    targets[name].copy_(whole)


class RankedScorer:
    """A `Scorer` whose prompts are shared out over the ranks."""

    def __init__(self, score: Callable[..., Scored]) -> None:
        self.tally = Tally()
        self._score = score

    def score(
        self, prompts: Sequence[IntArray], continuations: Sequence[Sequence[IntArray]]
    ) -> list[list[FloatArray]]:
        """See `Scorer.score`."""
        rows_of, num_tokens, error = self._score(prompts, continuations)
        self.tally.num_tokens += num_tokens
        if error is not None:
            raise error
        return [rows_of[n] for n in range(len(prompts))]


class RankedLearner(Learner):
    """Rank 0's side of all ranks: the same verbs, in which the others join.

    Args:
        policy: the whole weights.
    """

    def __init__(self, policy: Policy, config: RunConfig, ranks: Ranks) -> None:
        self.policy, self._config, self._ranks = policy, config, ranks
        self._own: ShardedLearner | None = None
        self._checkpoint: Path | None = None
        self._failed: str | None = None
        """Why ranks may still wait for this one: whoever catches that error must not call again."""

    def annotate(self, batch: TokenBatch, config: RunConfig) -> tuple[TokenBatch, Tensor | None]:
        return self._together(ShardedLearner.annotate, batch.to("cpu"), config)

    def update(self, batch: TokenBatch, config: RunConfig, step: int) -> UpdateResult:
        return self._together(ShardedLearner.update, batch.to("cpu"), config, step)

    def scorer(self, temperature: float) -> Scorer:
        """Over the ranks, where the weights fit into this one's memory once more."""
        if not (temperature > 0 and self._fits_again()):
            return super().scorer(temperature)  # which refuses a temperature of 0
        return RankedScorer(
            lambda prompts, continuations: self._together(
                ShardedLearner.score, prompts, continuations, temperature
            )
        )

    def _fits_again(self) -> bool:
        if self.policy.device.type != "cuda":
            return True
        free, _ = torch.cuda.mem_get_info(self.policy.device)
        needed = sum(weight.nbytes for weight in self.policy.model.parameters())
        return bool(free > needed + 2 * MEMORY_BUDGET_BYTES)

    def break_down(self, groups: AllGroups, config: RunConfig) -> GradientReport:
        on_cpu = replace(groups, batch=groups.batch.to("cpu"))
        return self._together(ShardedLearner.break_down, on_cpu, config)

    def forget_gradients(self) -> None:
        """A pass that failed has ended the ranks."""

    def optimizer_bytes(self) -> int:
        """Moments, and float32 weights where the model computes in less."""
        trained = [*self.policy.policy_parameters(), *self.policy.critic_parameters()]
        return sum(p.numel() * (8 if p.dtype == torch.float32 else 12) for p in trained)

    def save(self, folder: Path) -> None:
        self._together(ShardedLearner.save, folder)

    def load(self, folder: Path) -> None:
        """Before the first step: the ranks begin with the weights that `policy` has by then."""
        self._checkpoint = folder

    def close(self) -> None:
        self._ranks.close()

    def _together(self, call: Callable[[ShardedLearner, *_Ts], _T], *arguments: *_Ts) -> _T:
        if self._failed is not None:
            raise RankError(self._failed)
        own, name = self._begun(), call.__name__
        self._ranks.send(name, arguments)
        try:
            with self._ranks.failing():
                return call(own, *arguments)
        except GradientMemoryError:
            raise  # found by every rank, before any of them waits for another
        except Exception as error:
            self._failed = f"the ranks cannot go on: {name} failed on rank 0 with {error!r}"
            raise

    def _begun(self) -> ShardedLearner:
        if self._own is None:
            trained = [*self.policy.policy_parameters(), *self.policy.critic_parameters()]
            begin: dict[str, Any] = {
                "sums_each_part": sums_each_part(sum(p.numel() for p in trained)),
                "config": self._config.model_dump(mode="json"),
                "version": self.policy.version,
                "fitting_tokens": self.policy.fitting_tokens,
                "checkpoint": self._checkpoint,
            }
            self._ranks.send("begin", begin)
            with self._ranks.failing():
                self._own = begun(self._ranks, whole=self.policy, **begin)
        return self._own


def begun(
    ranks: Ranks,
    *,
    config: Mapping[str, Any],
    version: int,
    fitting_tokens: int,
    sums_each_part: bool,
    checkpoint: Path | None,
    whole: Policy | None = None,
) -> ShardedLearner:
    """This rank's part of the weights that rank 0 has, and of a checkpoint's optimizer state."""
    settings = validate(config)
    policy = build_policy(settings.model, settings.critic, seed=settings.seed)
    policy.version, policy.fitting_tokens = version, fitting_tokens
    policy.sums_each_part = sums_each_part
    if whole is not None:
        policy.model.load_state_dict(whole.model.state_dict())
        if policy.critic is not None and whole.critic is not None:
            policy.critic.load_state_dict(whole.critic.state_dict())
    learner = ShardedLearner(policy, settings, ranks, whole)
    if checkpoint is not None:
        learner.load(checkpoint)
    return learner
