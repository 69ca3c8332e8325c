"""What a sink gets of a step: numbers under both names, alarms, the verdict, bounded episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from echoscope.store.records import Alarm, Split, Trajectory

from ..judge.record import Verdict
from .ragen_names import ragen_values
from .settings import SinkName, SinksConfig

MAX_MESSAGES = 50
"""Messages of an episode that are copied; of a longer one the last ones are left out."""
STATE_LEVELS: Mapping[str, int] = {
    "insufficient evidence": 0,
    "healthy": 0,
    "converged": 0,
    "watch": 1,
    "recovering": 1,
    "not learning": 2,
    "collapsing": 2,
    "collapsed": 3,
}
"""The state of the verdict as a number that can be drawn: 0 is well, 3 is collapsed."""

PANELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "entropy": (
        "Entropy: per token, and of the reasoning given its prompt, H(Z|X) (nats)",
        ("policy/entropy", "info/first_turn/conditional_entropy_per_token"),
    ),
    "mutual_information": (
        "Mutual information of prompt and reasoning, I(X;Z) (nats)",
        (
            "info/first_turn/mutual_information",
            "info/all_turns/mutual_information",
            "text/information_bound",
        ),
    ),
    "gradient_terms": (
        "Gradient norm of each term of the loss",
        ("gradient/policy/all/norm", "gradient/entropy/all/norm", "gradient/kl/all/norm"),
    ),
    "gradient_buckets": (
        "Gradient norm of the policy term by reward std of the group (bucket 1: lowest)",
        tuple(f"gradient/policy/bucket_{number}/norm" for number in range(1, 9)),
    ),
}
"""Charts of several lines: name to title and metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a writer needs to begin."""

    config: SinksConfig
    run: str
    folder: Path
    """Where the copy goes if the settings name no folder."""
    run_config: Mapping[str, Any]
    identity: str
    """Of a run that goes on; "" for a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCopy:
    """One step."""

    step: int
    values: Mapping[str, float]
    alarms: tuple[Alarm, ...] = ()
    verdict: Verdict | None = None
    is_news: bool = False
    """Whether the verdict differs from that of the step before."""
    episodes: tuple[Trajectory, ...] = ()
    tag: str = ""
    """The environment of all training episodes; "" where there are several."""


class Writer(Protocol):
    """A run in one tool, opened by `__init__`. Every method may raise."""

    where: str
    """A folder, or the address of a page."""
    identity: str
    """The run's id there."""

    def write(self, copy: StepCopy) -> None: ...

    def close(self, status: str) -> None: ...


def open_writer(sink: SinkName, opening: Opening) -> Writer:
    """The writer of a tool, whose package is imported here and nowhere else."""
    if sink == "wandb":
        from .wandb_sink import WandbWriter

        return WandbWriter(opening)
    if sink == "tensorboard":
        from .tensorboard_sink import TensorboardWriter

        return TensorboardWriter(opening)
    from .trackio_sink import TrackioWriter

    return TrackioWriter(opening)


def numbers(copy: StepCopy, config: SinksConfig) -> dict[str, float]:
    """The numbers of a step. What could not be computed (NaN) is left out, but of the update."""
    kept = {
        key: float(value)
        for key, value in copy.values.items()
        if not math.isnan(value) or key.startswith(("loss/", "optim/"))
    }
    return kept | ragen_values(kept, copy.tag) if config.ragen_names else kept


def tag_of(trajectories: Sequence[Trajectory]) -> str:
    """The environment of the training episodes, if it is one."""
    tags = {trajectory.tag for trajectory in trajectories if trajectory.split is Split.TRAIN}
    return tags.pop() if len(tags) == 1 else ""


def alarm_title(alarm: Alarm) -> str:
    return f"{alarm.severity.value}: {alarm.rule} at step {alarm.step}"


def alarm_text(alarm: Alarm) -> str:
    """What an alarm says and advises."""
    return "\n\n".join(_line(text) for text in (alarm.message, alarm.advice) if text)


def episode_rows(copy: StepCopy, config: SinksConfig) -> list[dict[str, Any]]:
    """At most `config.episodes` episodes with their text: first one of each group, then more."""
    chosen = sorted(copy.episodes, key=lambda e: (e.split.value, e.sibling_index, e.index))
    return [_episode(e, config.max_chars) for e in chosen[: config.episodes]]


def _episode(trajectory: Trajectory, max_chars: int) -> dict[str, Any]:
    texts = [
        pair
        for turn in trajectory.turns
        for pair in (("user", turn.observation), ("assistant", turn.response))
    ]
    if trajectory.final_observation:
        texts.append(("user", trajectory.final_observation))
    value = trajectory.episode_return
    return {
        "id": trajectory.id,
        "split": trajectory.split.value,
        "env": trajectory.tag or trajectory.env_id,
        "group": trajectory.group_index,
        "sibling": trajectory.sibling_index,
        "return": value if math.isfinite(value) else None,
        "success": trajectory.is_success,
        "stop": trajectory.stop_reason.value,
        "turns": len(trajectory.turns),
        "messages": [
            {"role": role, "content": _clipped(text, max_chars)}
            for role, text in texts[:MAX_MESSAGES]
        ],
    }


def _clipped(text: str, max_chars: int) -> str:
    """Characters that UTF-8 cannot carry, lone surrogates, are replaced."""
    cut = text if len(text) <= max_chars else text[: max_chars - 3] + "..."
    return cut.encode("utf-8", "replace").decode("utf-8")


def _line(text: str) -> str:
    return _clipped("".join(char if char.isprintable() else " " for char in text), 1000)
