"""A policy on the bench: one step's rollouts, packed and ready to train on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.optim import Optimizer
from echoscope.core.policy import Policy, build_policy
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.chat import ChatFormat, load_chat
from echoscope.core.rollout.sources import EnvSource
from echoscope.core.update.assemble import pack_kept, with_advantages
from echoscope.core.update.batch import TokenBatch
from echoscope.core.update.learners.alone import Learner
from echoscope.core.update.update import annotate
from echoscope.diagnostics.selection.filter import select_groups
from echoscope.envs.pool import EnvPool
from echoscope.store.records import RolloutBatch, Split


@dataclass(kw_only=True)
class Bench:
    config: RunConfig
    policy: Policy
    optimizer: Optimizer
    chat: ChatFormat

    @property
    def learner(self) -> Learner:
        return Learner(policy=self.policy, optimizer=self.optimizer)

    def collect(self, step: int = 1) -> RolloutBatch:
        """Fresh rollouts at the policy's present weights."""
        envs = self.config.envs
        pool = EnvPool(
            envs.train, group_size=envs.group_size, seed=self.config.seed, split=Split.TRAIN
        )
        engine = HfEngine(self.policy.model, config=self.config.engine)
        source = EnvSource(
            pool,
            engine,
            self.chat,
            self.config,
            Split.TRAIN,
            on_finished=lambda finished: None,
            should_abort=lambda: False,
        )
        return source.collect(step, self.config)

    def batch(self, step: int = 1) -> TokenBatch:
        """What the update of a step trains on."""
        return self.prepare(self.collect(step))[0]

    def prepare(self, rollouts: RolloutBatch) -> tuple[TokenBatch, torch.Tensor | None]:
        """The batch, and log-probs at the sampling weights if annotating gave them."""
        selection = select_groups(rollouts, self.config.selection)
        packed, unpacked = pack_kept(rollouts, selection, self.config, self.chat)
        annotated, logprobs = annotate(self.policy, packed, self.config)
        return with_advantages(annotated, self.config, unpacked), logprobs

    def gradients(self) -> dict[str, torch.Tensor]:
        values = {
            name: parameter.grad.clone()
            for name, parameter in self.policy.model.named_parameters()
            if parameter.grad is not None
        }
        self.optimizer.zero_grad()
        return values

    def weights(self) -> dict[str, torch.Tensor]:
        """Everything that trains or could, critic included, by name."""
        modules = {"model": self.policy.model, "critic": self.policy.critic}
        return {
            f"{prefix}.{name}": parameter.detach().clone()
            for prefix, module in modules.items()
            if module is not None
            for name, parameter in module.named_parameters()
        }


def make_bench(config: RunConfig) -> Bench:
    torch.set_num_threads(1)
    policy = build_policy(config.model, config.critic, seed=config.seed)
    return Bench(
        config=config,
        policy=policy,
        optimizer=Optimizer(policy.parameter_groups(), config.optim),
        chat=load_chat(resolve_model(config.model.path)),
    )
