"""Does a plug-in keep its contract? Tried on tiny made-up steps, before a run and by the CLI."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.selection.filter import arrays_of, select_from
from echoscope.text.user_code import UserCodeError, call, load, require_params

from ..config.loading import validate
from ..config.loss import CustomLossConfig
from ..config.schedule import ObserverEntry
from ..config.settings import CustomAdvantageConfig, RunConfig, ShapingTerm
from ..rollout.shaping import BUILT_IN, resolve
from ..run.observers import StepObservation
from ..update.advantages import estimate_advantages
from ..update.batch import PolicyOutputs, TokenBatch, select_rows
from ..update.losses import Denominators, compute_loss, loss_inputs
from .observing import UserObserver, user_observers
from .synthetic import CASES, batch_of, outputs_of, rollouts_of, with_noise_advantages

KINDS = ("advantage", "loss", "selection", "reward", "observer")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is checked, and for which run."""

    kind: str
    name: str
    params: Mapping[str, Any]
    naive: str
    config: RunConfig | None
    """The run that it is for; None where a person only asks."""

    @property
    def group_size(self) -> int:
        return 4 if self.config is None else min(4, self.config.envs.group_size)

    @property
    def with_values(self) -> bool:
        return self.config is not None and self.config.critic.kind != "none"

    def wrong(self, rule: str) -> UserCodeError:
        return UserCodeError(f"{self.kind} plug-in {self.name!r} {rule}")


def check_plugin(
    kind: str,
    name: str,
    params: Mapping[str, Any] | None = None,
    *,
    naive: str = "",
    config: RunConfig | None = None,
) -> PluginReport:
    """Load a plug-in and try it on made-up steps: some hundredths of a second.

    Every kind: it loads, takes its parameters, returns what its contract says for rewards that
    differ, that are all equal, of episodes that failed and of 1e6, gives the same twice, and writes
    into nothing that it is given. A loss also gives the same gradient for every split of the rows
    into microbatches. An observer gives the same after its state was saved and restored.

    Args:
        kind: one of `KINDS`.
        name: `module:function`, or an entry point.
        params: keyword arguments.
        naive: a second implementation of the same, which must agree; empty for none.
        config: the run it is for, whose group size, critic and settings are then used.

    Raises:
        UserCodeError: an unknown kind.
    """
    if kind not in KINDS:
        raise UserCodeError(f"there is no kind of plug-in {kind!r}; kinds are {', '.join(KINDS)}")
    subject = _Subject(kind=kind, name=name, params=params or {}, naive=naive, config=config)
    passed: list[str] = []
    failed: dict[str, str] = {}
    for check, run in _checks(subject):
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
    named: list[tuple[str, str, Mapping[str, Any]]] = []
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
    subject = _Subject(kind="observer", name="", params={}, naive="", config=config)
    for observer in user_observers(config):
        name = observer.entry.function
        for key in observer.observe(_observation(subject, CASES[0], 1)).values:
            if key in taken:
                raise UserCodeError(
                    f"two observers return {key}, {taken[key]!r} and {name!r}: give one of them "
                    "another name, by a parameter of the class"
                )
            taken[key] = name


def _checks(subject: _Subject) -> Iterator[tuple[str, Callable[[], None]]]:
    run_of = _RUNS[subject.kind]
    run = run_of(subject, subject.name)

    def take(name: str) -> None:
        load(subject.kind, name)
        if subject.kind != "observer":
            require_params(subject.kind, name, subject.params)

    yield "loads", lambda: take(subject.name)
    yield "returns", lambda: _each_case(subject, run)
    yield "same twice", lambda: _each_case(subject, lambda case: _same_twice(subject, run, case))
    yield "inputs unchanged", lambda: _each_case(subject, lambda case: _unwritten(subject, case))
    if subject.kind == "loss":
        yield "microbatches", lambda: _each_case(subject, lambda case: _adds_up(subject, case))
    if subject.kind == "observer":
        yield "state", lambda: _restores(subject)
    if subject.naive:
        if subject.kind == "observer":
            raise UserCodeError("an observer is not compared with a naive version")
        naive = run_of(subject, subject.naive)
        yield "naive version loads", lambda: take(subject.naive)
        yield "naive", lambda: _each_case(subject, lambda c: _agrees(subject, run, naive, c))


def _each_case(subject: _Subject, check: Callable[[str], Any]) -> None:
    for case in CASES:
        try:
            check(case)
        except UserCodeError as error:
            raise UserCodeError(f"{error} (tried on a made-up step with {case})") from error


_Run = Callable[[str], Any]
"""Case to what the plug-in returned."""


def _advantage(subject: _Subject, name: str) -> _Run:
    config = CustomAdvantageConfig(function=name, params=dict(subject.params))

    def run(case: str) -> Any:
        rollouts = rollouts_of(case, group_size=subject.group_size)
        batch, left_out = batch_of(rollouts, with_values=subject.with_values)
        credit = "trajectory" if subject.config is None else subject.config.reward.credit
        return estimate_advantages(batch, config, credit=credit, left_out=left_out)

    return run


def _loss(subject: _Subject, name: str) -> _Run:
    def run(case: str) -> Any:
        batch = _loss_batch(subject, case)
        return _gradient(subject, name, batch, [list(range(batch.num_rows))])

    return run


def _selection(subject: _Subject, name: str) -> _Run:
    update = {"strategy": "custom", "function": name, "params": dict(subject.params)}
    units: Sequence[str] = ("group", "trajectory")
    base = SelectionConfig()
    if subject.config is not None:
        base, units = subject.config.selection, (subject.config.selection.unit,)

    def run(case: str) -> Any:
        arrays = arrays_of(rollouts_of(case, group_size=subject.group_size), "entropy")
        for unit in units:  # a person who only asks need not say which one the rule is for
            try:
                return select_from(arrays, base.model_copy(update=update | {"unit": unit})).keep_PG
            except UserCodeError as error:
                if unit == units[-1] or "selection.unit" not in str(error):
                    raise
        raise AssertionError

    return run


def _reward(subject: _Subject, name: str) -> _Run:
    term = ShapingTerm(name="checked", function=name, params=dict(subject.params))

    def run(case: str) -> Any:
        shaping = resolve([term])
        assert shaping is not None
        turns = [turn for one in rollouts_of(case).trajectories for turn in one.turns]
        return [shaping(turn)["checked"] for turn in turns]

    return run


def _observer(subject: _Subject, name: str) -> _Run:
    entry = ObserverEntry(function=name, params=dict(subject.params))

    def run(case: str) -> Any:
        observer = UserObserver(entry, 0)
        return [observer.observe(_observation(subject, case, step)).values for step in (1, 2)]

    return run


_RUNS: Mapping[str, Callable[[_Subject, str], _Run]] = {
    "advantage": _advantage,
    "loss": _loss,
    "selection": _selection,
    "reward": _reward,
    "observer": _observer,
}


def _same_twice(subject: _Subject, run: _Run, case: str) -> None:
    if not _equal(run(case), run(case)):
        raise subject.wrong(
            "gives another result for the same step: it must depend on nothing but its inputs, so "
            "that a resumed run repeats itself"
        )


def _agrees(subject: _Subject, run: _Run, naive: _Run, case: str) -> None:
    if not _equal(run(case), naive(case), close=True):
        raise subject.wrong(f"does not agree with its naive version {subject.naive!r}")


def _unwritten(subject: _Subject, case: str) -> None:
    """Arrays of estimators, rules and turns are read-only; tensors are compared."""
    given: Any
    if subject.kind == "observer":
        given = _observation(subject, case, 1)
        observer = UserObserver(ObserverEntry(function=subject.name, params={**subject.params}), 0)
        before = copy.deepcopy(_tensors(given.batch))
        observer.observe(given)
        after = _tensors(given.batch)
    elif subject.kind == "loss":
        batch = _loss_batch(subject, case)
        given = loss_inputs(outputs_of(batch), batch, batch.behaviour_logprobs[batch.loss_mask])
        before = [tensor.detach().clone() for tensor in _tensors(given)]
        call("loss", subject.name, load("loss", subject.name), given, **subject.params)
        after = _tensors(given)
    else:
        return
    if not _equal(before, after):
        raise subject.wrong("writes into what it is given: work on a copy")


def _adds_up(subject: _Subject, case: str) -> None:
    """Loss and gradient of a step are the same however its rows are split into microbatches."""
    batch = _loss_batch(subject, case)
    rows = list(range(batch.num_rows))
    whole = _gradient(subject, subject.name, batch, [rows])
    for parts in ([[row] for row in rows], [rows[::2], rows[1::2]], [rows[::-1]]):
        if not _equal(whole, _gradient(subject, subject.name, batch, parts), close=True):
            raise subject.wrong(
                "gives another gradient when the rows of a step are split into other "
                "microbatches: the loss of a token may depend on its own row only, and its mean is "
                "taken by loss.aggregation"
            )


def _restores(subject: _Subject) -> None:
    """An observer that comes back from a checkpoint says what it would have said."""
    entry = ObserverEntry(function=subject.name, params=dict(subject.params))
    seen = [_observation(subject, CASES[0], step) for step in (1, 2)]
    observer, restored = UserObserver(entry, 0), UserObserver(entry, 0)
    observer.observe(seen[0])
    restored.restore(observer.state())
    if not _equal(observer.observe(seen[1]).values, restored.observe(seen[1]).values):
        raise subject.wrong(
            "forgets something between a checkpoint and its resumption: keep it in state() and "
            "restore(state)"
        )


def _loss_batch(subject: _Subject, case: str) -> TokenBatch:
    return with_noise_advantages(batch_of(rollouts_of(case, group_size=subject.group_size))[0])


def _gradient(
    subject: _Subject, name: str, batch: TokenBatch, parts: Sequence[Sequence[int]]
) -> Tensor:
    """Loss of a step and its gradient with respect to log-probs and entropies, flat."""
    settings: dict[str, Any] = {"function": name, "params": dict(subject.params)}
    if subject.config is not None:
        settings["aggregation"] = subject.config.loss.aggregation
    config = CustomLossConfig(**settings)
    outputs = outputs_of(batch)
    assert outputs.entropies is not None
    leaves = (outputs.logprobs, outputs.entropies)
    denominators = Denominators.of(batch, norm_tokens=32)
    total = torch.zeros(())
    for rows in parts:
        if not rows:
            continue
        micro = select_rows(batch, rows)
        own = PolicyOutputs(
            logprobs=leaves[0][list(rows), : micro.width],
            entropies=leaves[1][list(rows), : micro.width],
        )
        total = total + compute_loss(own, micro, config, denominators).policy
    if not total.requires_grad:
        raise subject.wrong(
            "has no gradient: compute it from logprobs_L (or entropies_L) without detach(), item() "
            "or numpy"
        )
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    filled = [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]
    gradient = torch.cat([one.flatten() for one in filled])
    if not torch.isfinite(gradient).all():
        raise subject.wrong("has a NaN or infinite gradient")
    return torch.cat([total.detach().reshape(1), gradient])


def _observation(subject: _Subject, case: str, step: int) -> StepObservation:
    rollouts = rollouts_of(case, group_size=subject.group_size)
    selection = select_from(arrays_of(rollouts, "reward_std"), SelectionConfig())
    config = subject.config
    if config is None:
        config = validate({"envs": {"train": [{"env": "bandit"}]}})
    batch = with_noise_advantages(batch_of(rollouts)[0])
    return StepObservation(
        step=step, config=config, rollouts=rollouts, selection=selection, batch=batch
    )


def _tensors(record: Any) -> list[Tensor]:
    values = [getattr(record, one.name) for one in fields(record)]
    return [value for value in values if isinstance(value, Tensor)]


def _equal(one: Any, other: Any, *, close: bool = False) -> bool:
    """Whether nested results are the same, NaN included; `close`: within 1e-5."""
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and _equal(
            sorted(one.items()), sorted(other.items()), close=close
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(
            _equal(*pair, close=close) for pair in zip(one, other, strict=True)
        )
    if isinstance(one, str) or one is None or other is None:
        return bool(one == other)
    first, second = (np.asarray(torch.as_tensor(value).detach()) for value in (one, other))
    if first.shape != second.shape:
        return False
    if close and first.dtype.kind == "f":
        scale = float(np.nanmax(np.abs(first), initial=0.0))
        return bool(np.allclose(first, second, rtol=1e-5, atol=1e-5 * scale, equal_nan=True))
    return bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))
