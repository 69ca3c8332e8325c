"""Settings of different sections that do not go together: each pair is refused in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .limits import MAX_ROWS

if TYPE_CHECKING:
    from .settings import RunConfig


def contradictions(config: RunConfig) -> Iterator[str]:
    """What cannot be in a configuration, and the way out; the first sentence is told."""
    advantage, reward, critic, steps = config.advantage, config.reward, config.critic, config.steps
    if advantage.kind in ("gae", "bi_level_gae") and critic.kind == "none":
        yield (
            f"advantage.kind is {advantage.kind}, which needs values: set critic.kind to "
            "head or model"
        )
    if reward.credit == "turn" and reward.normalization != "arpo":
        yield (
            f"reward.credit is turn, so reward.normalization must be arpo, not "
            f"{reward.normalization}: it normalises returns of whole episodes"
        )
    if config.trainer.ranks > 1 and config.optim.offload:
        yield (
            "optim.offload is true, which ranks cannot do: their weights are split already; "
            "set optim.offload=false or trainer.ranks=1"
        )
    may_compare = config.compares_siblings or advantage.kind == "custom"
    if reward.kl is not None and may_compare and config.selection.overlong == "drop":
        yield (  # siblings that do not train have no KL, so their returns cannot be compared with
            f"advantage.kind={advantage.kind} compares siblings after reward.kl, but with "
            "selection.overlong=drop some have no KL: set selection.overlong=keep, or "
            "loss.kl_coef instead of reward.kl"
        )
    yield from _of_collection(config)
    most, samples = max(config.eval.pass_at_k, default=1), config.envs.eval_group_size
    if most > samples:
        yield (
            f"eval.pass_at_k has {most}, which needs {most} samples of each task, but "
            f"envs.eval_group_size is {samples}: set envs.eval_group_size={most}"
        )
    yield from _of_curriculum(config)
    yield from _of_guard(config)
    if config.critic_warmup_steps >= steps:
        yield (
            f"critic.warmup_steps is {config.critic_warmup_steps} and steps is {steps}, so "
            "the policy would never train: set critic.warmup_steps below steps"
        )
    yield from _of_envs(config)


def _of_collection(config: RunConfig) -> Iterator[str]:
    """How many episodes are played, and when."""
    rounds, collection = config.dynamic_sampling.max_rounds, config.collection
    group_size, most = config.envs.group_size, collection.max_in_flight
    if rounds > 1 and config.selection.mixed == "any":
        yield (
            f"dynamic_sampling.max_rounds is {rounds}, but selection.mixed=any lets every "
            "group train, so no round is missing any: set selection.mixed=return or success"
        )
    if rounds > 1 and config.from_run is not None:
        yield (
            f"dynamic_sampling.max_rounds is {rounds}, but from_run has its groups already: "
            "set dynamic_sampling.max_rounds=1"
        )
    if collection.mode == "async" and config.from_run is not None:
        yield (
            "collection.mode is async, but from_run has its episodes already: set "
            "collection.mode=lockstep"
        )
    if most is not None and most < group_size:
        yield (
            f"collection.max_in_flight is {most}, but the {group_size} episodes of a "
            f"group begin together: set it to at least envs.group_size={group_size}"
        )
    ahead = f"collection.max_staleness is {collection.max_staleness}"
    if collection.max_staleness and config.off_policy.correction == "none":
        yield (
            f"{ahead}, so that samples are of older weights than those that learn from them: "
            "set off_policy.old_logprobs=trainer and off_policy.correction=tis or mis"
        )
    if collection.max_staleness and config.curriculum.by != "none":
        yield (
            f"{ahead}, but curriculum.by={config.curriculum.by} chooses the next tasks after "
            "each update: set curriculum.by=none or collection.max_staleness=0"
        )


def _of_curriculum(config: RunConfig) -> Iterator[str]:
    """A curriculum moves groups between tags of fresh rollouts."""
    by = config.curriculum.by
    if by != "none" and config.from_run is not None:
        yield (
            f"curriculum.by is {by}, but from_run has its groups already: set curriculum.by=none"
        )
    if by != "none" and not config.has_choice_of_tags:
        tags = [entry.name for entry in config.envs.train]
        yield (
            f"curriculum.by is {by}, which chooses between the tags of envs.train, but these are "
            f"{tags}: give it two entries or more, each with a tag of its own"
        )


def _of_guard(config: RunConfig) -> Iterator[str]:
    """A guard acts on alarms, and goes on in its own process."""
    mode, launcher = config.guard.mode, config.trainer.launcher
    if mode != "off" and not config.diagnostics.enabled:
        yield (
            f"guard.mode is {mode}, which acts on alarms, but diagnostics.enabled is false, so "
            "none is raised: set guard.mode=off"
        )
    if mode != "off" and launcher != "local":
        yield (
            f"guard.mode is {mode}, which goes on in the process of the run, but "
            f"trainer.launcher={launcher} ends it with the run: set guard.mode=off"
        )


def _of_envs(config: RunConfig) -> Iterator[str]:
    """A step's trajectories can be compared, counted and told apart."""
    envs, selection, normalization = config.envs, config.selection, config.reward.normalization
    comparing = {
        f"advantage.kind={config.advantage.kind}": config.compares_siblings,
        f"reward.normalization={normalization}": normalization in ("grpo", "mean", "asym_clip"),
        "selection.metric=reward_std": selection.strategy not in ("none", "custom")
        and selection.metric == "reward_std",
    }
    for name, compares in comparing.items():
        if compares and envs.group_size < 2:
            yield (
                f"{name} compares siblings: envs.group_size must be at least 2, not "
                f"{envs.group_size}"
            )
    for name, groups, size in (
        ("train", envs.train, envs.group_size * config.dynamic_sampling.max_rounds),
        ("eval", envs.eval, envs.eval_group_size),
    ):
        rows = size * sum(group.groups for group in groups)
        if rows > MAX_ROWS:
            yield (
                f"envs.{name} has {rows} trajectories in a step, at most {MAX_ROWS} are "
                "possible; lower the groups, the group size or dynamic_sampling.max_rounds"
            )
    tags = [group.name for group in envs.eval]
    if len(set(tags)) != len(tags):
        yield f"envs.eval has the tags {tags}, but each must be unique"
