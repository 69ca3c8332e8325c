"""Every stored column, declared once.

Arrow schemas, DuckDB tables and views, the tables of `docs/store.md` and the checks of `verify` all
come from `TABLES`. A change of the columns raises `SCHEMA_VERSION`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import pyarrow as pa

from .errors import StoreVersionError

SCHEMA_VERSION = "1"
"""What `run.json`, the journal and packs carry; a run of another version is refused."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """DuckDB spelling: `VARCHAR`, `BIGINT`, `FLOAT[]`, `MAP(VARCHAR, DOUBLE)`, ..."""
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    doc: str
    columns: tuple[Column, ...]
    is_audit: bool = False
    """Rows stay visible after a rewind: what people asked for is not undone."""

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


_RUN = Column("run_id", "VARCHAR", "The run.")
_STEP = Column("step", "INTEGER", "Training step, from 0.")
_ATTEMPT = Column(
    "attempt", "INTEGER", "1 for the first process; each resume from a checkpoint adds 1."
)
_TRAJECTORY = Column(
    "trajectory_id", "VARCHAR", "Split letter, step and index, for example `t00000120-00037`."
)
_WALL = Column("wall_time", "DOUBLE", "Seconds since the epoch; `to_timestamp(wall_time)`.")
_SEQUENCE = Column("sequence", "BIGINT", "Order within the attempt, whatever the clock did.")

STEP_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "return_std": "reward/return_std",
        "group_std_mean": "reward/group_std_mean",
        "kept_frac": "selection/kept_frac",
        "entropy": "policy/entropy",
        "mismatch_kl": "policy/mismatch_kl",
        "ref_kl": "policy/ref_kl",
        "loss": "loss/total",
        "policy_loss": "loss/policy",
        "grad_norm": "optim/grad_norm",
        "lr": "optim/lr",
        "clip_high_frac": "policy/clip_high_frac",
        "step_s": "time/step_s",
        "rollout_s": "time/rollout_s",
        "update_s": "time/update_s",
        "tokens_per_s": "time/tokens_per_s",
    }
)
"""Wide column of `steps` -> key of the training metric that it repeats."""

COUNTED_METRICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "return_mean": ("reward/return_mean",),
        "success_rate": ("rollout/success_rate",),
        "num_turns_mean": ("rollout/num_turns_mean",),
    }
)
"""Wide column of `steps` that is counted from trajectories -> the metrics of which the first stands
for it where a step has none."""

_RUNS = Table(
    "runs",
    "One row per run.",
    (
        _RUN,
        Column("name", "VARCHAR", "For people."),
        Column("project", "VARCHAR", "Groups runs."),
        Column("status", "VARCHAR", "running, finished, stopped, failed, interrupted or crashed."),
        Column("created_at", "DOUBLE", "Seconds since the epoch."),
        Column("ended_at", "DOUBLE", "Seconds since the epoch; NULL unless it ended in order."),
        Column("attempt", "INTEGER", "The latest attempt."),
        Column("last_step", "INTEGER", "The last acknowledged step; -1 before the first."),
        Column("base_model", "VARCHAR", "The model that training started from."),
        Column("parent_run_id", "VARCHAR", "The run that this one was branched from."),
        Column("tags", "VARCHAR[]", "Labels."),
        Column("config", "VARCHAR", "JSON text: the resolved configuration."),
        Column("live_knobs", "VARCHAR", "JSON text: schema of the settings that SET may change."),
        Column("host", "VARCHAR", "The machine that created it."),
        Column("pid", "BIGINT", "The process that created it."),
        Column("code_version", "VARCHAR", "Version of Echoscope that created it."),
        Column("schema_version", "VARCHAR", "Version of these columns."),
        Column("path", "VARCHAR", "Folder."),
        Column(
            "tokenizer",
            "VARCHAR",
            "Hash of the vocabulary that the stored token ids belong to; NULL where unknown.",
        ),
    ),
    is_audit=True,
)

_STEPS = Table(
    "steps",
    "One row per acknowledged step: the numbers that every page shows.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        Column("policy_version", "INTEGER", "Optimizer steps taken by the weights that sampled."),
        _WALL,
        Column("num_trajectories", "INTEGER", "Training trajectories of the step."),
        Column("num_kept", "INTEGER", "Trajectories used in the update."),
        Column(
            "return_mean",
            "DOUBLE",
            "Mean `episode_return` of training trajectories that did not fail.",
        ),
        Column("success_rate", "DOUBLE", "Mean `is_success`; NULL where it is not defined."),
        Column("num_turns_mean", "DOUBLE", "Turns per training trajectory."),
        Column("num_sampled_tokens", "BIGINT", "Tokens sampled in training trajectories."),
        *(
            Column(name, "DOUBLE", f"Metric `{key}`; NULL where the step has none.")
            for name, key in STEP_METRICS.items()
        ),
    ),
)

_METRICS = Table(
    "metrics",
    "Every metric, one row each. Keys that begin with `time/` are of durations and speeds, with "
    "`system/` of the machine: a run that is repeated has others.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        Column("phase", "VARCHAR", "train or eval."),
        Column("key", "VARCHAR", "For example `policy/entropy`."),
        Column("value", "DOUBLE", "NaN where it could not be computed."),
    ),
)

_TRAJECTORIES = Table(
    "trajectories",
    "One row per episode.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        Column("split", "VARCHAR", "train, eval, probe or import."),
        Column("id", "VARCHAR", "Split letter, step and index, for example `t00000120-00037`."),
        Column("group_index", "INTEGER", "Which prompt of the step."),
        Column("sibling_index", "INTEGER", "Which rollout of that prompt."),
        Column("env_id", "VARCHAR", "Environment."),
        Column("tag", "VARCHAR", "Name of the task set."),
        Column("env_seed", "BIGINT", "Fixes the task."),
        Column("noise_seed", "BIGINT", "Fixes the transitions."),
        Column("prompt_key", "VARCHAR", "Hash of the first prompt; equal prompts, equal keys."),
        Column("policy_version", "INTEGER", "Oldest policy version that sampled one of the turns."),
        Column("env_return", "DOUBLE", "Sum of the environment's rewards; NULL where one is."),
        Column("episode_return", "DOUBLE", "Plus penalties and shaping: what is optimised."),
        Column("reward_terms", "MAP(VARCHAR, DOUBLE)", "Parts of `episode_return` by name."),
        Column("advantage", "DOUBLE", "Mean over sampled tokens; NULL before the update."),
        Column("kept", "BOOLEAN", "The update used it; NULL before the update."),
        Column("drop_reason", "VARCHAR", "Why the update did not."),
        Column("is_success", "BOOLEAN", "NULL where success is not defined."),
        Column(
            "stop_reason",
            "VARCHAR",
            "terminated, max_turns, ..., aborted; unknown where an import does not say.",
        ),
        Column("num_turns", "INTEGER", "Turns."),
        Column("num_sampled_tokens", "INTEGER", "Tokens that the policy sampled."),
        Column("duration_s", "DOUBLE", "Seconds from reset to stop."),
        Column("final_observation", "VARCHAR", "What the policy would have seen next."),
        Column("final_frame", "VARCHAR", "JSON text for drawing the last state."),
        Column("source", "VARCHAR", "File that an imported trajectory came from."),
        Column("extra", "VARCHAR", "JSON text: imported fields without a column."),
        Column(
            "task_key",
            "VARCHAR",
            "Hash of the task's first state, whatever seed drew it; NULL where unknown.",
        ),
        Column(
            "final_image",
            "VARCHAR",
            "Key of the last state's picture in `images`; NULL without one.",
        ),
    ),
)

_TURNS = Table(
    "turns",
    "One row per turn: text and reward.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        _TRAJECTORY,
        Column("turn", "INTEGER", "From 0."),
        Column("observation", "VARCHAR", "What the environment said."),
        Column("frame", "VARCHAR", "JSON text for drawing that state."),
        Column("response", "VARCHAR", "What the policy said, decoded for people."),
        Column("reasoning_start", "INTEGER", "Character span of the reasoning in `response`."),
        Column("reasoning_end", "INTEGER", "Half open."),
        Column("answer_start", "INTEGER", "Character span of the answer in `response`."),
        Column("answer_end", "INTEGER", "Half open."),
        Column("actions", "VARCHAR[]", "Executed actions."),
        Column("reward", "DOUBLE", "From the environment; NULL where an import does not say."),
        Column("format_penalty", "DOUBLE", "Zero or negative."),
        Column(
            "is_valid",
            "BOOLEAN",
            "The response parsed into an action; NULL where an import does not say.",
        ),
        Column(
            "is_effective",
            "BOOLEAN",
            "The action changed something; NULL where an import does not say.",
        ),
        Column(
            "finish_reason",
            "VARCHAR",
            "stop, length or abort; unknown where an import does not say.",
        ),
        Column("policy_version", "INTEGER", "Policy version that sampled the response."),
        Column("info", "MAP(VARCHAR, DOUBLE)", "Numbers that the environment reported."),
        Column("shaping", "MAP(VARCHAR, DOUBLE)", "Shaping terms by name."),
        Column(
            "calls",
            "VARCHAR",
            "JSON text: tool calls with name, arguments, result and problem; NULL without any.",
        ),
        Column("image", "VARCHAR", "Key of that state's picture in `images`; NULL without one."),
    ),
)

_TOKENS = Table(
    "tokens",
    "One row per turn that has tokens. Arrays, `prompt_tokens` aside, align with the response.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        _TRAJECTORY,
        Column("turn", "INTEGER", "From 0."),
        Column(
            "prompt_prefix",
            "INTEGER",
            "Leading prompt tokens that repeat the previous turn's prompt and response.",
        ),
        Column("prompt_tokens", "INTEGER[]", "The prompt's tokens after that prefix."),
        Column("response_tokens", "INTEGER[]", "Sampled tokens."),
        Column("reasoning_start", "INTEGER", "Token span of the reasoning in `response_tokens`."),
        Column("reasoning_end", "INTEGER", "Half open."),
        Column("logprobs", "FLOAT[]", "Behaviour policy, at the sampling temperature."),
        Column("entropies", "FLOAT[]", "Nats, of the sampling distribution."),
        Column("trainer_logprobs", "FLOAT[]", "The trainer's, at the weights that sampled."),
        Column("ref_logprobs", "FLOAT[]", "Reference policy."),
        Column("advantages", "FLOAT[]", "Per token."),
        Column("information", "FLOAT[]", "Per token, nats."),
        Column("temperature", "DOUBLE", "Of the sampling; 0 for greedy."),
        Column(
            "support_sizes",
            "INTEGER[]",
            "Tokens that top_p, top_k and min_p left in at each place; NULL for all.",
        ),
        Column("support_tokens", "INTEGER[]", "Their ids, place by place."),
    ),
)

_IMAGES = Table(
    "images",
    "One row per picture: that of the step which showed it first, and again after a resume.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        Column("key", "VARCHAR", "32 hex characters of blake2b over `png`."),
        Column("png", "BLOB", "The bytes of a PNG file."),
    ),
)

_DIAGNOSTICS = Table(
    "diagnostics",
    "Arrays that a diagnostic computed at one step.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        Column("kind", "VARCHAR", "What was computed."),
        Column("arrays", "MAP(VARCHAR, DOUBLE[])", "By name, flat in C order."),
        Column("shapes", "MAP(VARCHAR, INTEGER[])", "Their shapes."),
        Column("trajectory_ids", "VARCHAR[]", "The trajectories that the rows stand for."),
        Column("payload", "VARCHAR", "JSON text."),
    ),
)

_ALARMS = Table(
    "alarms",
    "An alarm was raised or cleared: one row per event, never updated.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        Column("alarm_id", "VARCHAR", "Same for raised and cleared."),
        Column("rule", "VARCHAR", "The rule that fired."),
        Column("severity", "VARCHAR", "info, warning or critical."),
        Column("state", "VARCHAR", "raised or cleared."),
        Column("onset_step", "INTEGER", "Where the change began, by the rule's estimate."),
        Column("metric", "VARCHAR", "Metric key."),
        Column("value", "DOUBLE", "Its value."),
        Column("baseline", "DOUBLE", "What it is compared with."),
        Column("threshold", "DOUBLE", "The limit it crossed."),
        Column("window", "INTEGER", "Steps looked at."),
        Column("message", "VARCHAR", "In words."),
        Column("advice", "VARCHAR", "In words."),
        Column("suggested", "VARCHAR", "JSON text: the command that would act on it."),
        Column("evidence", "VARCHAR[]", "Trajectory ids."),
        Column("refuted_by", "VARCHAR", "What would show that the alarm is wrong."),
        Column("earliest_onset_step", "INTEGER", "The earliest step of the onset."),
    ),
)

_COMMANDS = Table(
    "commands",
    "What somebody asked the run to do.",
    (
        _RUN,
        Column("command_id", "VARCHAR", "Unique."),
        Column("issued_at", "DOUBLE", "Seconds since the epoch."),
        Column("issued_by", "VARCHAR", "Who asked."),
        Column(
            "action",
            "VARCHAR",
            "pause, resume, stop, stop_now, checkpoint, evaluate, set or rewind.",
        ),
        Column("settings", "VARCHAR", "JSON text: dotted key to value, for set."),
        Column("reason", "VARCHAR", "Why, in the words of who asked."),
        Column("expires_at", "DOUBLE", "Seconds since the epoch; NULL for never."),
    ),
    is_audit=True,
)

_COMMAND_EVENTS = Table(
    "command_events",
    "What became of a command.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        Column("command_id", "VARCHAR", "The command."),
        Column("outcome", "VARCHAR", "applied, rejected or expired."),
        Column("detail", "VARCHAR", "In words."),
        _WALL,
        _SEQUENCE,
    ),
    is_audit=True,
)

_CHECKPOINTS = Table(
    "checkpoints",
    "A checkpoint was written, or deleted: one row per event.",
    (
        _RUN,
        _STEP,
        _ATTEMPT,
        Column("path", "VARCHAR", "Relative to the run's folder."),
        Column("policy_version", "INTEGER", "Optimizer steps taken."),
        Column("num_bytes", "BIGINT", "Size."),
        Column("reason", "VARCHAR", "schedule, command, final or interrupt."),
        Column("is_deleted", "BOOLEAN", "Removed to save space."),
        _WALL,
        _SEQUENCE,
    ),
)

_SETTINGS = Table(
    "settings",
    "The live settings changed, or an attempt began: all of them, as they hold from this step on.",
    (
        Column("run_id", "VARCHAR", "The run."),
        Column("step", "INTEGER", "The first step that trains with them."),
        Column("attempt", "INTEGER", "The attempt that trained with them."),
        Column("settings", "VARCHAR", "JSON text: dotted key to value."),
        _SEQUENCE,
    ),
)

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        table.name: table
        for table in (
            _RUNS,
            _STEPS,
            _METRICS,
            _TRAJECTORIES,
            _TURNS,
            _TOKENS,
            _DIAGNOSTICS,
            _ALARMS,
            _COMMANDS,
            _COMMAND_EVENTS,
            _CHECKPOINTS,
            _SETTINGS,
            _IMAGES,
        )
    }
)
DATA_TABLES = ("tokens", "turns", "trajectories", "diagnostics", "images")
"""Written as Parquet segments, one per step, in this order."""
EVENT_TABLES = (
    "steps",
    "metrics",
    "alarms",
    "commands",
    "command_events",
    "checkpoints",
    "settings",
)
"""Written in the journal and moved to Parquet when it is packed."""

_ARROW_TYPES = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "BOOLEAN": pa.bool_(),
    "BLOB": pa.binary(),
}


def arrow_type(duckdb_type: str) -> pa.DataType:
    """The Arrow type of a DuckDB type as `Column.type` spells it."""
    if duckdb_type.endswith("[]"):
        return pa.list_(arrow_type(duckdb_type[:-2]))
    if duckdb_type.startswith("MAP("):
        key, value = duckdb_type[4:-1].split(", ")
        return pa.map_(arrow_type(key), arrow_type(value))
    return _ARROW_TYPES[duckdb_type]


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of one table, the schema version in its metadata."""
    fields = [pa.field(column.name, arrow_type(column.type)) for column in TABLES[table].columns]
    return pa.schema(fields, metadata={"echoscope.schema_version": SCHEMA_VERSION})


def create_table_sql(table: str, target: str, *, text_compression: bool = False) -> str:
    """`CREATE TABLE target (...)`. Long text is uncompressed in DuckDB files unless told."""
    columns = []
    for column in TABLES[table].columns:
        is_compressed = text_compression and column.type == "VARCHAR"
        compression = " USING COMPRESSION zstd" if is_compressed else ""
        columns.append(f'"{column.name}" {column.type}{compression}')
    return f"CREATE TABLE {target} ({', '.join(columns)})"


def check_version(version: object, where: str) -> None:
    """Raises StoreVersionError where a run was written by another version of the store."""
    if version != SCHEMA_VERSION:
        raise StoreVersionError(
            f"{where}: written with store version {str(version)[:20]!r}, but this Echoscope reads "
            f"{SCHEMA_VERSION!r}; install the Echoscope that wrote it"
        )


def schema_markdown() -> str:
    """The tables of `docs/store.md`: the site is built with them (`docs/hooks.py`)."""
    parts = []
    for table in TABLES.values():
        rows = [f"| `{c.name}` | `{c.type}` | {c.doc} |" for c in table.columns]
        parts.append(
            f"### {table.name}\n\n{table.doc}\n\n| column | type | meaning |\n| --- | --- | --- |\n"
            + "\n".join(rows)
        )
    return "\n\n".join(parts) + "\n"
