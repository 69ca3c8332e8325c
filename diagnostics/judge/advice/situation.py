"""What advice has to know of a run: its settings, its checkpoints, and earlier metrics."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from echoscope.store.query.metric_keys import ENTROPY, SAMPLED_TOKENS
from echoscope.store.records import CommandAction
from echoscope.text.strict_json import value_at

from ..claims import Fate
from ..rules.base import View
from ..rules.task import TERM_AGREEMENT, TERM_SHARE
from .luck import moving_average

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

_LIVE = ("live", "waiting", "paused", "stale")
"""Statuses in which a trainer takes commands."""
_TERMS_OF = {"verl": "verl", "verl-agent": "verl", "RAGEN": "ragen", "VAGEN": "verl", "TRL": "trl"}


def terms_of(trainer: Any) -> str:
    """Whose settings advice names, by what a run says of its trainer; "" where nobody's are known.

    >>> terms_of("RAGEN"), terms_of("mine")
    ('ragen', '')
    """
    return _TERMS_OF.get(trainer, "") if isinstance(trainer, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """Settings that changed together: live, or where a branch began."""

    step: int
    """The first step that trained with them."""
    values: Mapping[str, tuple[Any, Any]]
    """Dotted key to the value before and the new one; None where there was none."""
    is_branch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What advice has to know of a run beside its metrics."""

    kind: Literal["live", "ended", "foreign"] = "foreign"
    run: str = "RUN"
    """How a command names the run, as a shell reads it."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """As it was at the start, nested; empty where it is not known."""
    live: Mapping[str, Any] = field(default_factory=dict)
    """Live settings by dotted key, as they are now."""
    changes: tuple[SettingsChange, ...] = ()
    """Of settings, in the order of steps, those of ancestors included."""
    checkpoints: tuple[int, ...] | None = None
    """Steps of those that are left; None where that is not known, and a command chooses."""
    success: Mapping[int, float] = field(default_factory=dict)
    """Evaluation step to success."""
    trainer: str = ""
    """Who wrote a foreign run, where that is known: `verl`, `ragen` or `trl`."""
    has_own_keys: bool = False
    """Most columns of a foreign file are named by our keys."""
    fate: Fate | None = None
    """What became of the run; None while it goes on, and where it was trained to its end."""
    has_ended: bool = False
    """No step follows; False also where that is not known, as of files of another trainer."""

    def setting(self, key: str) -> Any:
        """The value at a dotted key; None where there is none."""
        if key in self.live:
            return self.live[key]
        value: Any = self.config
        for part in key.split("."):
            if isinstance(value, Sequence) and not isinstance(value, str) and part.isdigit():
                value = value[int(part)] if int(part) < len(value) else None
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def number(self, key: str) -> float:
        value = self.setting(key)
        return float(value) if isinstance(value, int | float) else math.nan

    @property
    def recipe(self) -> tuple[str, Mapping[str, Any]]:
        """The recipe that the run extends, and its values where the run began with others."""
        origin = self.config.get("recipe")
        if not isinstance(origin, Mapping) or not isinstance(origin.get("values"), Mapping):
            return "", {}
        return str(origin.get("name", "")), origin["values"]

    @property
    def rewound_to(self) -> int | None:
        """The checkpoint that a rewind took over, from before what went wrong; None without one."""
        origin = value_at(self.config, dict, "branched_from") or {}
        return origin.get("step") if origin.get("command_id") else None

    @property
    def tasks(self) -> list[Mapping[str, Any]]:
        tasks = self.setting("envs.train")
        return [task for task in tasks if isinstance(task, Mapping)] if tasks else []


def situation_of(run: RunReader, name: str) -> Situation:
    """What advice knows of a stored run; a run of another trainer is foreign.

    Args:
        name: How a command names it.

    Raises:
        StoreError: the run cannot be read.
    """
    from echoscope.store.checkpoints import evaluation_success  # a metrics file needs no store
    from echoscope.store.status import has_ended, origin_of
    from echoscope.store.steer.settings import live_settings
    from echoscope.store.steer.steering import obeyed_actions

    from ..lineage import changes_of
    from .fate import fate_of

    info, fate, status = run.info(), fate_of(run, name), run.status().status
    is_over = has_ended(status, origin_of(info.config))
    if not info.live_knobs or info.config.get("recorded") is True:
        imported = info.config.get("imported")
        source = imported if isinstance(imported, Mapping) else info.config
        takes_settings = CommandAction.SET in obeyed_actions(info.config) and status.value in _LIVE
        return Situation(
            run=name,
            trainer=terms_of(source.get("trainer")),
            live=live_settings(run).now if takes_settings else {},
            changes=changes_of(run),
            fate=fate,
            has_ended=is_over,
        )
    return Situation(
        kind="live" if status.value in _LIVE else "ended",
        run=name,
        config=info.config,
        live=live_settings(run).now,
        changes=changes_of(run),
        checkpoints=tuple(checkpoint.step for checkpoint in run.checkpoints()),
        success=evaluation_success(run),
        fate=fate,
        has_ended=is_over,
    )


LEAST_LUCK = 10
"""Steps before which the average is mostly that of the first."""
RECENT = 3
"""Measurements over which the share of a term and its agreement are averaged."""


@dataclass(slots=True, kw_only=True)
class History:
    """What advice remembers of a run's metrics that no channel follows."""

    rates: list[tuple[int, float]] = field(default_factory=list)
    """(step, learning rate) where it changed."""
    rate_at_best: float = math.nan
    """Learning rate when success was last at its best."""
    peak_rate: float = math.nan
    """Highest learning rate since then."""
    luck: float = math.nan
    """Highest moving average of `reward/luck_frac` since success was last at its best.

    A policy that always makes the same choice hides how much of the reward is luck.
    """
    recent_luck: float = math.nan
    """The moving average itself."""
    num_luck: int = 0
    """Steps that say how much is luck."""
    first_entropy: float = math.nan
    entropy: float = math.nan
    """First and newest `policy/entropy`: in a run of a few steps no level is settled yet."""
    lag: float = math.nan
    """Updates that the sampler is behind, at the last step that says so."""
    trajectory_kl: float = math.nan
    """Moving average of the KL between sampler and trainer over a whole trajectory, in nats."""
    _terms: dict[str, deque[float]] = field(default_factory=dict)
    """The newest measurements of each term's share in the reward's differences and of its agreement
    with the environment's reward, by metric."""

    def of_term(self, metric: str) -> float:
        """Mean of the newest measurements of a term; NaN without any.

        A term that paid for solving tasks until the fall began no longer does.
        """
        newest = self._terms.get(metric, ())
        return sum(newest) / len(newest) if newest else math.nan

    def rate_before(self, step: int) -> float:
        """The learning rate of the last step before one; NaN where none is known."""
        return next((rate for since, rate in reversed(self.rates) if since < step), math.nan)

    def held_rate(self, rate: float) -> int:
        """Steps for which a learning rate was held, the last time; 0 where it never ended."""
        held = [(rate, end - since) for (since, rate), (end, _) in itertools.pairwise(self.rates)]
        return next((steps for held_rate, steps in reversed(held) if held_rate == rate), 0)

    def observe(self, view: View, values: Mapping[str, float]) -> None:
        rate, luck = values.get("optim/lr", math.nan), values.get("reward/luck_frac", math.nan)
        if math.isfinite(rate):
            if not self.rates or rate != self.rates[-1][1]:
                self.rates.append((view.step, rate))
            is_first = math.isnan(self.peak_rate)
            self.peak_rate = rate if is_first else max(rate, self.peak_rate)
            if view.is_success_at_best:
                self.rate_at_best = self.peak_rate = rate
        entropy = values.get(ENTROPY, math.nan)
        if math.isfinite(entropy):
            self.entropy = entropy
            self.first_entropy = entropy if math.isnan(self.first_entropy) else self.first_entropy
        self.lag = values.get("rollout/staleness_mean", self.lag)
        kl = values.get("policy/stale_kl", values.get("policy/mismatch_kl", math.nan)) * values.get(
            SAMPLED_TOKENS, math.nan
        )
        if math.isfinite(kl):
            self.trajectory_kl = moving_average([kl], self.trajectory_kl)
        for key, value in values.items():
            if key.startswith((TERM_SHARE, TERM_AGREEMENT)) and math.isfinite(value):
                self._terms.setdefault(key, deque(maxlen=RECENT)).append(value)
        if math.isfinite(luck):
            self.num_luck += 1
            self.recent_luck = moving_average([luck], self.recent_luck)
            is_settled = self.num_luck > LEAST_LUCK and not view.is_success_at_best
            self.luck = max(self.luck, self.recent_luck) if is_settled else self.recent_luck
