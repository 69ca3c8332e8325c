"""Every noun that several parts of Echoscope share.

Legend: **P** prompts (groups) per step, **G** siblings of a group, **K** turns of one trajectory,
**Lp** prompt tokens and **Lr** response tokens of one turn. Array names carry their axes
(`returns_PG`). `None` means absent, `0` means zero.

All records are frozen, slotted and keyword-only. Arrays inside them are read-only. Invariants are
checked when a record is built, and the message names the values.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echoscope.text.amounts import bounds

FloatArray64 = NDArray[np.float64]
IntArray64 = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
IndexArray = NDArray[np.intp]
IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
Span = tuple[int, int]
"""Half-open `[start, end)`."""


class Split(StrEnum):
    """Which stream of tasks a trajectory belongs to."""

    TRAIN = "train"
    EVAL = "eval"
    PROBE = "probe"
    """A fixed set of tasks, evaluated on schedule for the alarms."""
    IMPORT = "import"
    """Read from another trainer's files."""


class StopReason(StrEnum):
    """Why an episode ended: one per trajectory."""

    TERMINATED = "terminated"
    """The task ended: solved, lost or answered."""
    MAX_TURNS = "max_turns"
    MAX_ACTIONS = "max_actions"
    MAX_TOKENS = "max_tokens"
    """The episode's budget of sampled tokens was spent."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The next prompt would not have fitted the context."""
    ENV_ERROR = "env_error"
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """An imported file does not say."""

    @property
    def is_truncated(self) -> bool:
        """A limit ended the episode, not the task."""
        return self not in (StopReason.TERMINATED, StopReason.UNKNOWN)

    @property
    def is_failure(self) -> bool:
        """The world, or whoever dropped the step, ended the episode: its reward says nothing."""
        return self in (StopReason.ENV_ERROR, StopReason.TIMEOUT, StopReason.ABORTED)


class FinishReason(StrEnum):
    """Why one response ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    UNKNOWN = "unknown"
    """An imported file does not say."""

    @property
    def is_cut(self) -> bool:
        """The policy had not ended the reply: it was too long."""
        return self is FinishReason.LENGTH


class CommandAction(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    """Finish the current step, write a checkpoint, end the run."""
    STOP_NOW = "stop_now"
    """Drop the current step, end the run as soon as possible."""
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    SET = "set"
    """Change live settings, all of them or none."""
    REWIND = "rewind"
    """Finish the current step, end the run, and go on as a branch from a checkpoint."""


class CommandOutcome(StrEnum):
    APPLIED = "applied"
    REJECTED = "rejected"
    EXPIRED = "expired"


class AlarmSeverity(StrEnum):
    """The mildest first."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


SEVERITY_RANK: Mapping[str, int] = {name: rank for rank, name in enumerate(AlarmSeverity)}
"""The worse the higher: the one order of alarms, by a severity or by its word in a file."""


class AlarmState(StrEnum):
    RAISED = "raised"
    CLEARED = "cleared"


def read_only(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """A one-dimensional read-only view or copy of `array` with the given dtype."""
    out = np.ascontiguousarray(array, dtype=dtype)
    if out.ndim != 1:
        raise ValueError(f"expected a one-dimensional array, got shape {out.shape}")
    if out.flags.writeable:
        out = out.view()
        out.flags.writeable = False
    return out


def prompt_key(first_prompt: str | IntArray) -> str:
    """Hash of an episode's first prompt: equal exactly when the prompts are equal.

    16 hex characters of blake2b over the token ids (int32, little endian) or the UTF-8 text.
    """
    if isinstance(first_prompt, str):
        payload = b"text:" + first_prompt.encode("utf-8", errors="surrogatepass")
    else:
        payload = b"ids:" + np.asarray(first_prompt).astype("<i4").tobytes()
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def _check_span(name: str, span: Span | None, size: int) -> None:
    if span is not None and not 0 <= span[0] <= span[1] <= size:
        raise ValueError(f"{name} is {span}, but must lie inside [0, {size}]")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Support:
    """The tokens that each token of a response was drawn from: what truncation left in.

    The sampling distribution is the softmax over these tokens alone.
    """

    sizes: IntArray  # (Lr,) tokens left in at each place; 0 for the whole vocabulary
    tokens: IntArray  # (sum of sizes,) their ids, place by place

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", read_only(self.sizes, np.int32))
        object.__setattr__(self, "tokens", read_only(self.tokens, np.int32))
        total = int(self.sizes.sum(dtype=np.int64))
        if len(self.tokens) != total or (self.sizes < 0).any():
            raise ValueError(f"the supports hold {len(self.tokens)} tokens, but say {total}")

    def first(self, num_tokens: int) -> Support:
        """Those of the first so many tokens of the response."""
        sizes = self.sizes[:num_tokens]
        return Support(sizes=sizes, tokens=self.tokens[: int(sizes.sum(dtype=np.int64))])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of a reply and what came of it."""

    name: str
    """Empty where the call could not be read."""
    arguments: str
    """A JSON object as text; the call as it was written where it could not be read."""
    result: str = ""
    """What the tool, or the environment in its place, answered; empty if nothing was played."""
    problem: str = ""
    """Why the call could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One observation, the policy's response to it, and what the environment made of it.

    Of an imported turn, what the other trainer did not write is unknown: None, NaN for the reward,
    `UNKNOWN` for the finish reason. Token fields are None for imported text. `response` is decoded
    for people and is never tokenised again. `reward` is the environment's, `format_penalty` is
    zero or negative. `frame` draws the state that `observation` describes, and `image` is a
    picture of it.
    """

    index: int
    observation: str
    response: str
    reasoning_chars: Span | None = None
    answer_chars: Span | None = None
    prompt_tokens: IntArray | None = None  # (Lp,)
    response_tokens: IntArray | None = None  # (Lr,)
    logprobs: FloatArray | None = None  # (Lr,) behaviour policy, at the sampling temperature
    entropies: FloatArray | None = None  # (Lr,) nats, of the sampling distribution
    temperature: float | None = None
    """Of the sampling; 0 for greedy, whose log-probs are those at temperature 1. None where it was
    not recorded."""
    support: Support | None = None
    """What truncation left in; None for the whole vocabulary, or where it was not recorded."""
    reasoning_span: Span | None = None
    """Half-open slice of `response_tokens`. A token that straddles a tag belongs to the tag."""
    actions: tuple[str, ...] = ()
    """Executed actions."""
    reward: float = 0.0
    """NaN where an imported file does not say it."""
    format_penalty: float = 0.0
    is_valid: bool | None = True
    is_effective: bool | None = True
    finish_reason: FinishReason = FinishReason.STOP
    policy_version: int | None = 0
    frame: str | None = None
    info: Mapping[str, float] = field(default_factory=dict)
    shaping: Mapping[str, float] = field(default_factory=dict)
    """Named shaping terms, kept apart from the environment's reward."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls of the response, in order."""
    image: bytes | None = None
    """The bytes of a PNG file."""

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"turn index is {self.index}, but must be 0 or more")
        if self.format_penalty > 0:
            raise ValueError(f"format_penalty is {self.format_penalty}, but must be <= 0")
        _check_span("reasoning_chars", self.reasoning_chars, len(self.response))
        _check_span("answer_chars", self.answer_chars, len(self.response))
        for name, dtype in _TURN_ARRAYS:
            array = getattr(self, name)
            if array is not None:
                object.__setattr__(self, name, read_only(array, dtype))
        if (self.prompt_tokens is None) != (self.response_tokens is None):
            raise ValueError("prompt_tokens and response_tokens are given together or not at all")
        size = 0 if self.response_tokens is None else len(self.response_tokens)
        for name in ("logprobs", "entropies"):
            array = getattr(self, name)
            if array is not None and len(array) != size:
                raise ValueError(f"turn {self.index}: {len(array)} {name} for {size} tokens")
        if self.support is not None and len(self.support.sizes) != size:
            raise ValueError(
                f"turn {self.index}: supports of {len(self.support.sizes)} tokens for {size} tokens"
            )
        _check_span("reasoning_span", self.reasoning_span, size)

    @property
    def total_reward(self) -> float:
        """Environment reward plus format penalty plus shaping: what is optimised."""
        return self.reward + self.format_penalty + sum(self.shaping.values())

    @property
    def num_sampled_tokens(self) -> int:
        return 0 if self.response_tokens is None else len(self.response_tokens)

    @property
    def reasoning(self) -> str:
        return "" if self.reasoning_chars is None else self.response[slice(*self.reasoning_chars)]

    @property
    def is_reasoning_closed(self) -> bool:
        """Whether the response goes on after the reasoning: its closing tag was written."""
        return self.reasoning_chars is not None and self.reasoning_chars[1] < len(self.response)

    @property
    def answer(self) -> str:
        return "" if self.answer_chars is None else self.response[slice(*self.answer_chars)]


_TURN_ARRAYS: tuple[tuple[str, type[np.generic]], ...] = (
    ("prompt_tokens", np.int32),
    ("response_tokens", np.int32),
    ("logprobs", np.float32),
    ("entropies", np.float32),
)

MAX_STEP = 99_999_999
"""Ids of trajectories hold eight digits of the step ..."""
MAX_INDEX = 99_999
"""... and five of the index within it."""
_SPLITS = {split.value[0]: split for split in Split}
"""By the letter that a trajectory id begins with."""
_TRAJECTORY_ID = re.compile(r"([tepi])([0-9]{8})-([0-9]{5})")


def trajectory_id(split: Split, step: int, index: int) -> str:
    """`"t00000120-00037"`: split letter, step, index within the step. Sorts by step."""
    if not 0 <= step <= MAX_STEP:
        raise ValueError(f"step is {step}, but must be {bounds(0, MAX_STEP)}")
    if not 0 <= index <= MAX_INDEX:
        raise ValueError(f"trajectory index is {index}, but must be {bounds(0, MAX_INDEX)}")
    return f"{split.value[0]}{step:08d}-{index:05d}"


def parse_trajectory_id(text: str) -> tuple[Split, int, int]:
    """The split, step and index that an id names.

    Raises:
        ValueError: the text is not a trajectory id.
    """
    match = _TRAJECTORY_ID.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a trajectory id; one looks like 't00000120-00037'")
    return _SPLITS[match[1]], int(match[2]), int(match[3])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One episode from reset to stop. A failed episode is data: it stays, with its reason."""

    step: int
    split: Split
    index: int
    """Position within the step: `group_index * G + sibling_index` for training rollouts."""
    group_index: int
    sibling_index: int
    env_id: str
    tag: str
    env_seed: int | None
    """Fixes the task; None for an imported trajectory."""
    noise_seed: int | None
    """Fixes the transitions. Both seeds and the actions together replay the episode."""
    prompt_key: str
    turns: tuple[Turn, ...]
    final_observation: str = ""
    final_frame: str | None = None
    final_image: bytes | None = None
    stop_reason: StopReason
    is_success: bool | None = None
    duration_s: float | None = 0.0
    source: str | None = None
    """Where an imported trajectory came from."""
    task_key: str | None = None
    """Hash of the task's first state, whatever seed drew it; None where nobody said."""
    extra: str | None = None
    """JSON text: fields of an imported trajectory that have no column here."""

    def __post_init__(self) -> None:
        trajectory_id(self.split, self.step, self.index)
        indices = [turn.index for turn in self.turns]
        if indices != list(range(len(self.turns))):
            raise ValueError(f"turn indices are {indices}, but must count up from 0")

    @property
    def id(self) -> str:
        return trajectory_id(self.split, self.step, self.index)

    @property
    def env_return(self) -> float:
        """Sum of the environment's rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def episode_return(self) -> float:
        """Environment rewards, format penalties and shaping: what is optimised."""
        return sum(turn.total_reward for turn in self.turns)

    @property
    def reward_terms(self) -> dict[str, float]:
        """The parts of `episode_return` by name: `env`, `format`, and each shaping term."""
        terms = {"env": self.env_return, "format": sum(t.format_penalty for t in self.turns)}
        for turn in self.turns:
            for name, value in turn.shaping.items():
                terms[name] = terms.get(name, 0.0) + value
        return terms

    @property
    def num_turns(self) -> int:
        return len(self.turns)

    @property
    def num_sampled_tokens(self) -> int:
        return sum(turn.num_sampled_tokens for turn in self.turns)

    @property
    def policy_version(self) -> int | None:
        """The oldest policy version that sampled one of the turns; 0 without turns."""
        versions = [turn.policy_version for turn in self.turns]
        sampled_versions = [version for version in versions if version is not None]
        return min(sampled_versions, default=None) if versions else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrajectoryOutcome:
    """What the update learned about a trajectory, after it was written down.

    Per-token fields hold one array per turn, each (Lr,); None where nothing was computed.
    """

    trajectory_id: str
    advantage: float | None
    """Mean over the trajectory's sampled tokens."""
    kept: bool
    drop_reason: str | None = None
    advantages: tuple[FloatArray, ...] | None = None
    trainer_logprobs: tuple[FloatArray, ...] | None = None
    ref_logprobs: tuple[FloatArray, ...] | None = None
    information: tuple[FloatArray, ...] | None = None

    def __post_init__(self) -> None:
        parse_trajectory_id(self.trajectory_id)
        if self.kept and self.drop_reason is not None:
            raise ValueError(
                f"{self.trajectory_id} is kept, yet has drop_reason {self.drop_reason!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutBatch:
    """Rectangular `groups[p][g]` of one step; a failed sibling stays in its place."""

    groups: tuple[tuple[Trajectory, ...], ...]

    def __post_init__(self) -> None:
        sizes = sorted({len(group) for group in self.groups})
        if len(sizes) > 1:
            raise ValueError(f"groups have sizes {sizes}, but must all have the same size")

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """All P * G trajectories, group by group."""
        return tuple(trajectory for group in self.groups for trajectory in group)

    @property
    def num_groups(self) -> int:
        return len(self.groups)

    @property
    def group_size(self) -> int:
        return len(self.groups[0]) if self.groups else 0

    def array_PG(self, value: Callable[[Trajectory], float]) -> NDArray[np.float64]:
        """`value` of every trajectory, (P, G)."""
        rows = [[value(trajectory) for trajectory in group] for group in self.groups]
        return np.array(rows, dtype=np.float64).reshape(self.num_groups, self.group_size)

    @property
    def returns_PG(self) -> NDArray[np.float64]:
        return self.array_PG(lambda t: t.episode_return)

    @property
    def success_PG(self) -> NDArray[np.float64]:
        """1, 0, or NaN where success is not defined."""
        return self.array_PG(lambda t: np.nan if t.is_success is None else float(t.is_success))

    @property
    def trainable_PG(self) -> NDArray[np.bool_]:
        """True where the trajectory has sampled tokens and did not fail (`is_failure`)."""
        good = self.array_PG(lambda t: t.num_sampled_tokens > 0 and not t.stop_reason.is_failure)
        return good.astype(np.bool_)

    def select(self, keep_P: Sequence[bool] | NDArray[np.bool_]) -> RolloutBatch:
        """The groups marked True, in their order."""
        if len(keep_P) != self.num_groups:
            raise ValueError(f"keep_P has {len(keep_P)} entries for {self.num_groups} groups")
        return RolloutBatch(
            groups=tuple(g for g, keep in zip(self.groups, keep_P, strict=True) if keep)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The numbers of one step. A metric that could not be computed is NaN, never missing."""

    run_id: str
    step: int
    phase: str
    """`"train"` or `"eval"`."""
    policy_version: int | None = None
    """None of another trainer's policy."""
    wall_time: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    values: Mapping[str, float]
    durations_s: Mapping[str, float] = field(default_factory=dict)
    """What no seed decides: seconds (`time/...`), and how busy the machine was (`system/...`)."""


ALARM_AUTHOR = "alarm "
"""How `Command.issued_by` begins where an alarm acts; the name of its rule follows."""


def rule_words(rule: str) -> str:
    """The name of an alarm's rule, as a sentence has it.

    >>> rule_words("TEMPLATE_COLLAPSE"), rule_words("KL_DRIFT")
    ('template collapse', 'KL drift')
    """
    name_parts = rule.replace("_", " ").lower().split(" ")
    return " ".join(word.upper() if word == "kl" else word for word in name_parts)


def author_words(issued_by: str) -> str:
    """Who gave a command, as a sentence has it; a name of a person is foreign text.

    >>> author_words("alarm TEMPLATE_COLLAPSE"), author_words("kim")
    ('the alarm "template collapse"', 'kim')
    """
    if not issued_by.startswith(ALARM_AUTHOR):
        return issued_by
    return f'the alarm "{rule_words(issued_by.removeprefix(ALARM_AUTHOR))}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A wish of whoever steers the run; applied only between two steps."""

    command_id: str
    run_id: str
    issued_at: float
    issued_by: str
    action: CommandAction
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key to value, for SET and REWIND: applied together or not at all."""
    reason: str = ""
    expires_at: float | None = None

    def answered(self, step: int, outcome: CommandOutcome, detail: str) -> CommandAck:
        """The answer to it, before step `step`."""
        return CommandAck(command_id=self.command_id, step=step, outcome=outcome, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAck:
    command_id: str
    step: int
    outcome: CommandOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A rule raised or cleared: an event, never updated."""

    alarm_id: str
    rule: str
    severity: AlarmSeverity
    state: AlarmState
    step: int
    onset_step: int | None
    metric: str
    value: float
    baseline: float | None
    threshold: float
    window: int
    message: str
    advice: str = ""
    suggested: Command | None = None
    evidence: tuple[str, ...] = ()
    """Trajectory ids."""
    refuted_by: str = ""
    earliest_onset_step: int | None = None
    """The first step whose update may have made the change: older checkpoints are healthy."""


REQUESTED = "command"
"""`CheckpointRecord.reason` of a checkpoint that a person asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint was written, or removed to save space: an event, never updated."""

    step: int
    path: str
    """Relative to the run's folder, for example `checkpoints/step_000100`."""
    policy_version: int
    num_bytes: int
    wall_time: float
    """Seconds since the epoch."""
    reason: str = "schedule"
    """`"schedule"`, `"time"`, `"command"`, `"final"`, `"interrupt"`: who asked for it."""
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsRecord:
    """The live settings changed, or an attempt began: an event, never updated."""

    step: int
    """The first step that trains with them."""
    values: Mapping[str, Any]
    """Every live setting by dotted key."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiagnosticRecord:
    """Arrays that a diagnostic computed at one step: a score matrix, a histogram, a gradient table.

    `arrays` may have any shape; they are stored as float64 and read back with their shape.
    """

    step: int
    kind: str
    """What was computed, for example `"cross_scores"`."""
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    trajectory_ids: tuple[str, ...] = ()
    """The trajectories that the rows stand for, where they stand for any."""
    payload: str | None = None
    """JSON text: settings and scalars that belong to the arrays."""

    def __post_init__(self) -> None:
        arrays = {}
        for name, array in self.arrays.items():
            copy = np.array(array, dtype=np.float64)
            copy.flags.writeable = False
            arrays[name] = copy
        object.__setattr__(self, "arrays", arrays)


def num_outcomes(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Over how many episodes the outcome of a step is a mean, and how many groups they came in.

    Of those whose success is known; where it is of none, of those whose return is.
    """
    told = [t for t in trajectories if t.is_success is not None]
    told = told or [t for t in trajectories if not math.isnan(t.episode_return)]
    if not told:
        return {}
    num_groups = len({trajectory.group_index for trajectory in told})
    return {"rollout/num_episodes": float(len(told)), "rollout/num_groups": float(num_groups)}
