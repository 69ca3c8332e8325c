"""Does a plug-in keep its contract? Tried on a tiny made-up step, before a run and by the CLI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.selection.filter import arrays_of, select_from, select_groups
from echoscope.store.records import RolloutBatch, Split, StopReason, Trajectory, Turn
from echoscope.text.user_code import UserCodeError, load, require_params

from ..config.beside_training import ObserverEntry
from ..config.loading import validate
from ..config.loss import CustomLossConfig
from ..config.settings import CustomAdvantageConfig, RunConfig, ShapingTerm
from ..rollout.shaping import BUILT_IN, resolve
from ..run.observers import StepObservation
from ..update.advantages import LeftOut, estimate_advantages, left_out_rewards
from ..update.batch import PolicyOutputs, TokenBatch, credit_rewards, pack, select_rows
from ..update.losses import Denominators, compute_loss
from .observing import UserObserver, user_observers

VOCABULARY = 16
RESPONSE = "<think>go up</think><answer>up</answer>"


def made_up_rollouts(*, group_size: int = 4) -> RolloutBatch:
    """A step of 3 x `group_size` episodes with 1 to 3 turns of 1 to 4 tokens.

    One group has different rewards, one is solved and one is hopeless; one episode failed.
    """
    rng = np.random.default_rng([0, group_size])
    groups = [
        tuple(_trajectory(p, g, group_size, _turns(rng)) for g in range(group_size))
        for p in range(3)
    ]
    return RolloutBatch(groups=tuple(groups))


def _trajectory(p: int, g: int, group_size: int, turns: list[Turn]) -> Trajectory:
    is_success = (bool(g % 2), True, False)[p]
    turns[-1] = replace(turns[-1], reward=float(is_success) + (0.1 * g if p == 0 else 0.0))
    failed = (p, g) == (2, 0)
    name = ("lake", "bandit")[p % 2]
    return Trajectory(
        step=1,
        split=Split.TRAIN,
        index=p * group_size + g,
        group_index=p,
        sibling_index=g,
        env_id=name,
        tag=name,
        env_seed=p,
        noise_seed=g,
        prompt_key=str(p),
        turns=tuple(turns),
        stop_reason=StopReason.ENV_ERROR if failed else StopReason.TERMINATED,
        is_success=None if failed else is_success,
    )


def batch_of(rollouts: RolloutBatch, *, with_values: bool = False) -> tuple[TokenBatch, LeftOut]:
    """The packed rows of all episodes that can train but the last, which selection left out."""
    selection = select_groups(rollouts, SelectionConfig(strategy="none"))
    keep_PG = selection.keep_PG.copy()
    if keep_PG.sum() > 1:
        keep_PG[tuple(np.argwhere(keep_PG)[-1])] = False
    chosen = [rollouts.groups[p][g] for p, g in np.argwhere(keep_PG)]
    rewards = [credit_rewards(each, each.episode_return, "trajectory") for each in chosen]
    left_out = left_out_rewards(rollouts, keep_PG, rollouts.returns_PG, "trajectory")
    batch = pack(chosen, rewards)
    values = _noise(batch, seed=1) if with_values else None
    return replace(batch, values=values), left_out


def outputs_of(batch: TokenBatch) -> PolicyOutputs:
    """Log-probs near the sampler's, some far from them, with gradient; entropies as well."""
    drift = _noise(batch, seed=2)
    drift[:, 1::3] *= 20
    logprobs = (batch.behaviour_logprobs + 0.1 * drift) * batch.loss_mask
    entropies = _noise(batch, seed=3).abs()
    return PolicyOutputs(
        logprobs=logprobs.detach().requires_grad_(True),
        entropies=entropies.detach().requires_grad_(True),
    )


def with_noise_advantages(batch: TokenBatch) -> TokenBatch:
    """Advantages of either sign, one in four zero; reference log-probs as well."""
    advantages = _noise(batch, seed=4)
    advantages[:, ::4] = 0
    return replace(
        batch,
        advantages=advantages,
        ref_logprobs=(batch.behaviour_logprobs + 0.2 * _noise(batch, seed=5)) * batch.loss_mask,
    )


def _turns(rng: np.random.Generator) -> list[Turn]:
    """Turns each of which continues the row of the one before, or begins a row of its own."""
    turns: list[Turn] = []
    row: list[int] = []
    for index in range(int(rng.integers(1, 4))):
        starts_anew = index > 0 and bool(rng.integers(2))
        more = rng.integers(VOCABULARY, size=2).tolist()
        prompt = [VOCABULARY, *more] if starts_anew else [*row, *more]
        size = int(rng.integers(1, 5))
        response = rng.integers(VOCABULARY, size=size)
        turns.append(
            Turn(
                index=index,
                observation="Goal 2 up 1 right.",
                response=RESPONSE,
                reasoning_chars=(7, 12),
                answer_chars=(28, 30),
                actions=("up",),
                prompt_tokens=np.array(prompt, dtype=np.int32),
                response_tokens=response.astype(np.int32),
                logprobs=rng.uniform(-4, -0.1, size).astype(np.float32),
                entropies=rng.uniform(0.1, 2, size).astype(np.float32),
                temperature=1.0,
            )
        )
        row = [*prompt, *response.tolist()]
    return turns


def _noise(batch: TokenBatch, *, seed: int) -> torch.Tensor:
    """(B, T) standard normal numbers on sampled tokens, 0 elsewhere; from no global generator."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(tuple(batch.loss_mask.shape), generator=generator)
    return noise * batch.loss_mask


KINDS = ("advantage", "loss", "selection", "reward", "observer")
_Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """What the checks of a plug-in found: names that passed, and failures with their sentences."""

    kind: str
    name: str
    passed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return not self.failed


def check_plugin(
    kind: str, name: str, params: _Params | None = None, *, config: RunConfig | None = None
) -> PluginReport:
    """Load a plug-in and try it on a made-up step: some hundredths of a second.

    Every kind: it loads, takes its parameters, returns what its contract says, and gives the same
    twice. A loss also gives the same gradient for every split of the rows into microbatches. An
    observer gives the same after its state was saved and restored. What is given is read-only, or a
    copy.

    Args:
        kind: one of `KINDS`.
        name: `module:function`, or an entry point.
        params: keyword arguments.
        config: the run it is for, whose group size, critic and settings are then used.

    Raises:
        UserCodeError: an unknown kind.
    """
    if kind not in KINDS:
        raise UserCodeError(f"there is no kind of plug-in {kind!r}; kinds are {', '.join(KINDS)}")
    run_config = config or validate({"envs": {"train": [{"env": "bandit"}]}})
    passed: list[str] = []
    failed: dict[str, str] = {}
    for check, run in _checks(kind, name, params or {}, run_config):
        try:
            run()
            passed.append(check)
        except (UserCodeError, ValueError) as error:
            failed[check] = str(error)
            break  # the later ones would only say it again
    return PluginReport(kind=kind, name=name, passed=tuple(passed), failed=failed)


def load_plugins(config: RunConfig) -> None:
    """Load and check everything of the user's own that a configuration names.

    Raises:
        UserCodeError: one is missing, or broke its contract; the sentence says which and how.
    """
    named: list[tuple[str, str, _Params]] = []
    if config.advantage.kind == "custom":
        named.append(("advantage", config.advantage.function, config.advantage.params))
    if config.loss.kind == "custom":
        named.append(("loss", config.loss.function, config.loss.params))
    if config.selection.function:
        named.append(("selection", config.selection.function, config.selection.params))
    for term in config.reward.shaping:
        if term.function not in BUILT_IN:
            named.append(("reward", term.function, term.params))
    for entry in config.observers:
        named.append(("observer", entry.function, entry.params))
    for kind, name, params in named:
        report = check_plugin(kind, name, params, config=config)
        for sentence in report.failed.values():
            raise UserCodeError(sentence)
    _require_own_names(config)


def _require_own_names(config: RunConfig) -> None:
    """No two observers of a run return the same metric."""
    taken: dict[str, str] = {}
    for observer in user_observers(config):
        name = observer.entry.function
        for key in observer.observe(_observation(config, 1)).values:
            if key in taken:
                raise UserCodeError(
                    f"two observers return {key}, {taken[key]!r} and {name!r}: give one of them "
                    "another name, by a parameter of the class"
                )
            taken[key] = name


def _checks(
    kind: str, name: str, params: _Params, config: RunConfig
) -> Iterator[tuple[str, Callable[[], None]]]:
    run = partial(_RUNS[kind], name, params, config)

    def take() -> None:
        load(kind, name)
        if kind != "observer":
            require_params(kind, name, params)

    def same_twice() -> None:
        if not _equal(run(), run()):
            raise UserCodeError(
                f"{kind} plug-in {name!r} gives another result for the same step: it must depend "
                "on nothing but its inputs, so that a resumed run repeats itself"
            )

    yield "loads", take
    yield "returns", run
    yield "same twice", same_twice
    if kind == "loss":
        yield "microbatches", lambda: _adds_up(name, params, config)
    if kind == "observer":
        yield "state", lambda: _restores(name, params, config)


def _rollouts(config: RunConfig) -> RolloutBatch:
    return made_up_rollouts(group_size=min(4, config.envs.group_size))


def _advantage(name: str, params: _Params, config: RunConfig) -> Any:
    custom = CustomAdvantageConfig(function=name, params=dict(params))
    batch, left_out = batch_of(_rollouts(config), with_values=config.critic.kind != "none")
    return estimate_advantages(batch, custom, credit=config.reward.credit, left_out=left_out)


def _loss(name: str, params: _Params, config: RunConfig) -> Any:
    batch = _loss_batch(config)
    return _gradient(name, params, config, batch, [list(range(batch.num_rows))])


def _selection(name: str, params: _Params, config: RunConfig) -> Any:
    update = {"strategy": "custom", "function": name, "params": dict(params)}
    settings = config.selection.model_copy(update=update)
    return select_from(arrays_of(_rollouts(config), "entropy"), settings).keep_PG


def _reward(name: str, params: _Params, config: RunConfig) -> Any:
    shaping = resolve([ShapingTerm(name="checked", function=name, params=dict(params))])
    assert shaping is not None
    turns = [turn for each in _rollouts(config).trajectories for turn in each.turns]
    return [shaping(turn)["checked"] for turn in turns]


def _observer(name: str, params: _Params, config: RunConfig) -> Any:
    observer = UserObserver(ObserverEntry(function=name, params=dict(params)), 0)
    return [observer.observe(_observation(config, step)).values for step in (1, 2)]


_RUNS: Mapping[str, Callable[[str, _Params, RunConfig], Any]] = {
    "advantage": _advantage,
    "loss": _loss,
    "selection": _selection,
    "reward": _reward,
    "observer": _observer,
}
"""Kind to what calls a plug-in of it; what that returned."""


def _adds_up(name: str, params: _Params, config: RunConfig) -> None:
    """Loss and gradient of a step are the same however its rows are split into microbatches."""
    batch = _loss_batch(config)
    rows = list(range(batch.num_rows))
    whole = _gradient(name, params, config, batch, [rows])
    for parts in ([[row] for row in rows], [rows[::2], rows[1::2]]):
        gradient = _gradient(name, params, config, batch, parts)
        allowed = 1e-5 * float(whole.abs().max())
        if not torch.allclose(whole, gradient, rtol=1e-5, atol=allowed):
            raise UserCodeError(
                f"loss plug-in {name!r} gives another gradient when the rows of a step are split "
                "into other microbatches: the loss of a token may depend on its own row only, and "
                "its mean is taken by loss.aggregation"
            )


def _restores(name: str, params: _Params, config: RunConfig) -> None:
    """An observer that comes back from a checkpoint says what it would have said."""
    entry = ObserverEntry(function=name, params=dict(params))
    seen = [_observation(config, step) for step in (1, 2)]
    observer, restored = UserObserver(entry, 0), UserObserver(entry, 0)
    observer.observe(seen[0])
    restored.restore(observer.state())
    if not _equal(observer.observe(seen[1]).values, restored.observe(seen[1]).values):
        raise UserCodeError(
            f"observer plug-in {name!r} forgets something between a checkpoint and its resumption: "
            "keep it in state() and restore(state)"
        )


def _loss_batch(config: RunConfig) -> TokenBatch:
    return with_noise_advantages(batch_of(_rollouts(config))[0])


def _gradient(
    name: str, params: _Params, config: RunConfig, batch: TokenBatch, parts: Sequence[Sequence[int]]
) -> Tensor:
    """Loss of a step and its gradient with respect to log-probs and entropies, flat."""
    custom = CustomLossConfig(
        function=name, params=dict(params), aggregation=config.loss.aggregation
    )
    outputs = outputs_of(batch)
    leaves = (outputs.logprobs, outputs.entropies)
    denominators = Denominators.of(batch, norm_tokens=32)
    total = torch.zeros(())
    for rows in filter(None, parts):
        micro = select_rows(batch, rows)
        own = PolicyOutputs(
            logprobs=leaves[0][list(rows), : micro.width],
            entropies=leaves[1][list(rows), : micro.width],
        )
        total = total + compute_loss(own, micro, custom, denominators).named["policy"]
    if not total.requires_grad:
        raise UserCodeError(
            f"loss plug-in {name!r} has no gradient: compute it from logprobs_L (or entropies_L) "
            "without detach(), item() or numpy"
        )
    gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    gradient = torch.cat([each.flatten() for each in gradients])
    if not torch.isfinite(gradient).all():
        raise UserCodeError(f"loss plug-in {name!r} has a NaN or infinite gradient")
    return torch.cat([total.detach().reshape(1), gradient])


def _observation(config: RunConfig, step: int) -> StepObservation:
    rollouts = _rollouts(config)
    selection = select_from(arrays_of(rollouts, "reward_std"), SelectionConfig())
    batch = with_noise_advantages(batch_of(rollouts)[0])
    return StepObservation(
        step=step, config=config, rollouts=rollouts, selection=selection, batch=batch
    )


def _equal(left: Any, right: Any) -> bool:
    """Whether results are the same, NaN included."""
    try:
        assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True
