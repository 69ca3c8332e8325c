"""The formats whose rows are one episode each, as tables of their keys.

**verl** writes `input, output, gts, score, step` and each extra of the reward function; its v1
trainer adds `uid`, `{sample}_{rollout}_{output}`. VAGEN trains with the same writer and keeps the
special tokens, so its turns are exact. Older versions of verl write no `gts`. Neither does
verl-agent, which writes one row a turn without the id of the trajectory: its prompts ask for an
action, or count the steps taken. Forks of verl-agent write whole episodes of a step, as
`global_step_N_observe_trajectories.json`. VAGEN's evaluation is a folder an episode, with
`messages.json` and `metrics.json`. EasyR1 strips the special tokens; `spooled/logs.py` has
its file.

**Rows of nobody in particular** are conversations as messages, or prompt and reply under two keys.
A row of prompt and reply with neither a reward nor a success is none: data of fine-tuning looks so.
With `--map` a user says which key holds what (`Roles`): such a row is read whatever its keys are
called.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ...records import Split
from .. import read
from ..dialogue import Dialogue, has_marks, is_messages
from ..draft import Draft, DraftTurn, RowError
from ..format import MAPPED, Format, Row, Where, has_keys, no_file_step, step_key
from .by_keys import Keys, by_keys, draft_of, texts_of

# --- verl, verl-agent, VAGEN --------------------------------------------------------------------

_VERL = Keys(
    prompt=("input",),
    reply=("output",),
    reward=("score",),
    success=("acc", "success", "is_correct"),
    env=("data_source",),
)
_TURN_OF_AGENT = re.compile(
    r"<action>|</action>|admissible actions|already taken \d+ step|respond for the current step"
)
"""What a prompt of verl-agent asks for, or what its reply holds."""
_is_dump = has_keys("score", "step", input=str, output=str)
_is_classic = has_keys("score", "step", "gts", input=str, output=str)


def _is_vagen(row: Row) -> bool:
    return _is_classic(row) and (has_marks(row["input"]) or has_marks(row["output"]))


def _is_plain(row: Row) -> bool:
    return _is_dump(row) and "gts" not in row


def _is_agent(row: Row) -> bool:
    return _is_plain(row) and any(_TURN_OF_AGENT.search(row[key]) for key in ("input", "output"))


def _of_v1(draft: Draft, row: Row, where: Where) -> None:
    parts = row["uid"].rsplit("_", 2)
    draft.group = parts[0] if len(parts) == 3 else None


def _of_agent(draft: Draft, row: Row, where: Where) -> None:
    draft.reconstructed.add("turn_is_episode")


_verl = partial(by_keys, _VERL, is_split_by_name=True)
VERL_V1 = _verl(
    _of_v1,
    name="verl v1 JSONL",
    trainer="verl",
    matches=has_keys("score", "step", input=str, output=str, uid=str),
)
VAGEN = _verl(name="VAGEN training JSONL", trainer="verl", matches=_is_vagen)
VERL = _verl(name="verl JSONL", trainer="verl", matches=_is_classic)
VERL_AGENT = _verl(
    _of_agent,
    name="verl-agent JSONL",
    trainer="verl-agent",
    matches=_is_agent,
    goes_on=_is_plain,
)
VERL_PLAIN = _verl(name="verl JSONL without gts", trainer="verl", matches=_is_plain)


def _observed_turns(episode: Any) -> list[Mapping[str, Any]]:
    steps = read.objects(read.inner(episode, "steps"))
    return steps if all("observation" in step and "action" in step for step in steps) else []


def _observed_drafts(row: Row, where: Where) -> Iterator[Draft]:
    for episode in row["trajectories"]:
        turns = [
            DraftTurn(
                observation=read.text(step["observation"]),
                response=read.text(step["action"]),
                reward=read.number(step.get("reward")),
                info=read.numbers(read.without(step, ("step", "reward"))),
            )
            for step in _observed_turns(episode)
        ]
        is_by_turn = not any(math.isnan(turn.reward) for turn in turns)
        yield Dialogue(turns=turns).draft(
            read.without(episode, ("steps", "success")),
            reward=math.nan if is_by_turn else read.first_number(episode, (*_REWARDS, "return")),
            env=read.name(row.get("env_name") or row.get("env")),
            tag=read.name(episode.get("task_type")),
            is_success=read.truth(episode.get("success")),
        )


OBSERVED = Format(
    name="verl-agent observed trajectories",
    trainer="verl-agent",
    matches=lambda row: any(map(_observed_turns, read.objects(row.get("trajectories"))[:1])),
    drafts=_observed_drafts,
    step=step_key("global_step"),
)
_VAGEN_FOLDER = Keys(
    messages=("messages",),
    reward=("total_reward", "cumulative_reward", "score", "reward"),
    turn_rewards=("rewards",),
    success=("success", "is_success", "traj_success"),
    env=("env_name",),
    stop=("finish_reason",),
    step=(),
)
_FOLDER = re.compile(r"(.+)_seed_(-?\d+)")


def _vagen_folder_drafts(row: Row, where: Where) -> list[Draft]:
    folder, metrics = row["vagen_folder"], row["metrics"]
    metrics = metrics if isinstance(metrics, Mapping) else {}
    draft = draft_of({**metrics, "messages": row["messages"]}, _VAGEN_FOLDER)
    named = _FOLDER.fullmatch(folder)
    env, seed_in_name = named.groups() if named else ("", None)
    seed = read.text(metrics.get("seed", seed_in_name))
    draft.env = draft.env or env
    draft.group = f"{draft.env}_seed_{seed}" if seed else None
    draft.tag = next((part for part in where.path.parts if part.startswith("tag_")), "")
    _keep(draft, folder=folder, metrics=metrics)
    infos = metrics.get("infos")
    # The first is that of the reset.
    if isinstance(infos, list) and len(infos) == len(draft.turns) + 1:
        for turn, info in zip(draft.turns, infos[1:], strict=True):
            turn.info = read.numbers(info)
    draft.add_info(read.numbers(metrics))
    return [draft]


def _keep(draft: Draft, **fields: Any) -> None:
    """Keep whole objects in place of the keys that were not used, and the system message."""
    system = {name: value for name, value in draft.fields.items() if name == "system"}
    draft.fields = {**fields, **system}


VAGEN_FOLDER = Format(
    name="VAGEN evaluation folders",
    trainer="VAGEN",
    matches=lambda row: "vagen_folder" in row and is_messages(row.get("messages")),
    drafts=_vagen_folder_drafts,
    file_step=no_file_step,
)


def _of_easyr1(draft: Draft, row: Row, where: Where) -> None:
    if row["easyr1"] is not None:
        draft.reconstructed.add("validations")


EASYR1 = by_keys(
    Keys(prompt=("prompt",), reply=("output",), reward=("score",), step=("easyr1",)),
    _of_easyr1,
    name="EasyR1 generations",
    trainer="EasyR1",
    matches=has_keys("easyr1"),
    file_step=no_file_step,
)

# --- SkyRL, AReaL, ART --------------------------------------------------------------------------

SKYRL = by_keys(
    Keys(
        prompt=("input_prompt",),
        reply=("output_response",),
        reward=("score",),
        env=("env_class",),
        tag=("data_source",),
        finish=("stop_reason",),
    ),
    name="SkyRL evaluation JSONL",
    trainer="SkyRL",
    matches=has_keys("input_prompt", "output_response", "env_class", "score"),
)


def _of_areal(draft: Draft, row: Row, where: Where) -> None:
    for turn in draft.turns:
        turn.policy_version = read.whole(row["head_version"])


def _version_folder(where: Where) -> int | None:
    """AReaL: `<version>/<task_id>.jsonl`; the name of the file is that of a task."""
    name = where.path.parent.name
    return int(name) if name.isascii() and name.isdigit() and len(name) <= 8 else None


AREAL = by_keys(
    Keys(prompt=("prompt",), reply=("completion",), group=("task_id",), step=()),
    _of_areal,
    name="AReaL rollout JSONL",
    trainer="AReaL",
    matches=has_keys("task_id", "sample_idx", "head_version", "tail_version"),
    file_step=_version_folder,
    is_split_by_name=True,
)


def _is_art(row: Row) -> bool:
    messages = row.get("messages")
    if "group_index" not in row or "reward" not in row or not is_messages(messages):
        return False
    return all("trainable" in message for message in messages)


def _art_drafts(row: Row, where: Where) -> list[Draft]:
    """Objects in columns are JSON text."""
    messages = [{**m, "tool_calls": read.json_in(m.get("tool_calls"))} for m in row["messages"]]
    plain = {name: read.json_in(value) for name, value in row.items()}
    draft = draft_of(
        {**plain, "messages": messages, "metrics": None},
        Keys(messages=("messages",), group=("group_index",), step=()),
    )
    draft.group = f"{where.path} {draft.group}"
    draft.add_info(read.numbers(plain.get("metrics")))
    return [draft]


ART_PARQUET = Format(
    name="ART trajectories Parquet",
    trainer="ART",
    matches=_is_art,
    drafts=_art_drafts,
    is_split_by_name=True,
)

# --- rows of nobody in particular ---------------------------------------------------------------

_MESSAGES = ("messages", "conversation", "conversations")
_REWARDS = ("reward", "score", "total_reward", "episode_reward")
_SUCCESS = ("success", "is_success", "is_correct", "correct", "solved", "passed", "acc")
_GROUPS = (
    *("group_id", "group", "prompt_id", "task_id", "example_id", "uid"),
    *("problem_id", "question_id"),
)
_STEPS = ("step", "global_step", "global_steps", "training_step", "train_step", "iteration")
_ENVS = ("env", "env_id", "data_source")
_DIALOGUE = Keys(
    messages=_MESSAGES,
    reward=_REWARDS,
    turn_rewards=("turn_rewards",),
    success=_SUCCESS,
    group=_GROUPS,
    env=_ENVS,
    stop=("stop_reason",),
    step=_STEPS,
)
_PAIR = Keys(
    prompt=(
        *("prompt", "question", "problem", "query", "instruction", "input", "prompt_text"),
        *("input_prompt", *_MESSAGES),
    ),
    reply=(
        *("response", "reply", "completion", "output", "generation", "raw_generation"),
        *("raw_output", "generated_text", "model_output", "output_text", "raw_response"),
        "model_response",
    ),
    reward=_REWARDS,
    success=_SUCCESS,
    group=_GROUPS,
    env=_ENVS,
    step=_STEPS,
)


def _is_pair(row: Row) -> bool:
    _, prompt, _, reply = texts_of(row, _PAIR)
    if not (isinstance(reply, str) or is_messages(reply)):
        return False
    if "reply" in (row.get(MAPPED) or {}):
        return True
    is_prompt = isinstance(prompt, str) or (
        is_messages(prompt) and all(message["role"] != "assistant" for message in prompt)
    )
    outcomes = (row.get(name) for name in (*_REWARDS, *_SUCCESS))
    is_judged = any(read.number_or_none(value) is not None for value in outcomes)
    return is_prompt and isinstance(reply, str) and (is_judged or MAPPED in row)


def _of_dialogue(draft: Draft, row: Row, where: Where) -> None:
    """Our own exports say which episodes are of an evaluation."""
    if row.get("split") in ("eval", "probe"):
        draft.split = Split.EVAL


def _tau_drafts(row: Row, where: Where) -> list[Draft]:
    if not is_messages(row["traj"]):
        raise RowError("the episode has no messages: it ended with an error")
    draft = draft_of(row, Keys(messages=("traj",), group=("task_id",)))
    reward = read.number(row["reward"])
    # As tau-bench counts: an episode is solved where its reward is 1.
    draft.is_success = None if math.isnan(reward) else abs(reward - 1.0) <= 1e-6
    return [draft]


TAU = Format(
    name="tau-bench results",
    trainer="tau-bench",
    matches=has_keys("task_id", "reward", traj=list),
    drafts=_tau_drafts,
)
_TRACE = Keys(
    messages=("messages",),
    reward=(*_REWARDS, "return"),
    success=_SUCCESS,
    group=_GROUPS,
    env=_ENVS,
    stop=("stop_reason",),
)


def _trace_drafts(row: Row, where: Where) -> list[Draft]:
    if not is_messages(row["messages"]):
        raise RowError("the trace has no messages")
    metadata = row["metadata"] if isinstance(row.get("metadata"), Mapping) else {}
    draft = draft_of({**metadata, "messages": row["messages"]}, _TRACE)
    _of_dialogue(draft, metadata, where)
    duration_ms = read.number_or_none(metadata.get("duration_ms"))
    draft.duration_s = None if duration_ms is None else duration_ms / 1000
    _keep(draft, trace=row["trackio_trace"], metadata=metadata)
    return [draft]


TRACES = Format(
    name="trackio traces",
    trainer="trackio",
    matches=has_keys("messages", trackio_trace=Mapping),
    drafts=_trace_drafts,
    step=lambda row: read.whole(row["trackio_trace"].get("step")),
    file_step=no_file_step,
)
PAIRS = by_keys(
    _PAIR,
    name="prompt-and-reply rows",
    trainer="prompt-and-reply rows",
    matches=_is_pair,
)
MESSAGES = by_keys(
    _DIALOGUE,
    _of_dialogue,
    name="messages JSONL",
    trainer="messages",
    matches=lambda row: any(is_messages(row.get(key)) for key in _MESSAGES),
)
