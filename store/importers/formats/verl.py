"""verl's dumps of rollouts and validation: one row a sample, prompt and response as flat text.

The classic trainer writes `input, output, gts, score, step` and each extra of the reward function.
The v1 trainer adds `uid`, `{sample}_{rollout}_{output}`. VAGEN trains with the same writer and
keeps the special tokens, so its turns are exact. Older versions of verl write no `gts`. Neither
does verl-agent, which writes one row a turn without the id of the trajectory: its prompts ask for
an action, or count the steps taken. Forks of verl-agent write whole episodes of a step, as
`global_step_N_observe_trajectories.json`. VAGEN's evaluation is a folder an episode, with
`messages.json` and `metrics.json`. Both writers of VAGEN leave pictures beside the rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...records import Split, StopReason
from ..dialogue import Dialogue, has_marks, is_messages, read_flat, read_messages
from ..draft import (
    Draft,
    DraftTurn,
    PictureFiles,
    RowError,
    first_number,
    inner,
    name_of,
    number,
    numbers_of,
    text_of,
    truth,
    whole,
    without,
)
from ..format import Format, Row, Where, no_file_step, step_key

_USED = ("input", "output", "score", "step", "uid")
_SUCCESS = ("acc", "success", "is_correct")
_TURN_OF_AGENT = re.compile(
    r"<action>|</action>|admissible actions|already taken \d+ step|respond for the current step"
)
"""What a prompt of verl-agent asks for, or what its reply holds."""
_FOLDER = re.compile(r"(.+)_seed_(-?\d+)")
_FOLDER_REWARDS = ("total_reward", "cumulative_reward", "score", "reward")
_EPISODE_REWARDS = ("reward", "total_reward", "episode_reward", "return", "score")
_FOLDER_SUCCESS = ("success", "is_success", "traj_success")
_FINISHES = {
    "done": StopReason.TERMINATED,
    "max_turns": StopReason.MAX_TURNS,
    "no_room": StopReason.PROMPT_TOO_LONG,
    "env_error": StopReason.ENV_ERROR,
    "error": StopReason.ABORTED,
    "empty_generation": StopReason.ABORTED,
}
"""`finish_reason` of VAGEN's evaluation -> ours."""


def _is_dump(row: Row) -> bool:
    is_text = isinstance(row.get("input"), str) and isinstance(row.get("output"), str)
    return is_text and "score" in row and "step" in row


def _is_v1(row: Row) -> bool:
    return _is_dump(row) and isinstance(row.get("uid"), str)


def _is_classic(row: Row) -> bool:
    return _is_dump(row) and "gts" in row


def _is_vagen(row: Row) -> bool:
    return _is_classic(row) and (has_marks(row["input"]) or has_marks(row["output"]))


def _is_plain(row: Row) -> bool:
    return _is_dump(row) and "gts" not in row


def _is_agent(row: Row) -> bool:
    return _is_plain(row) and any(_TURN_OF_AGENT.search(row[key]) for key in ("input", "output"))


def _drafts(row: Row, where: Where) -> list[Draft]:
    if not row["output"].strip() and not row["input"].strip():
        raise RowError("prompt and response are empty")
    dialogue, is_guess = read_flat(row["input"], row["output"])
    folder = where.path.parent / f"image_{whole(row['step'])}"
    draft = dialogue.draft(
        without(row, _USED),
        reward=number(row["score"]),
        is_guess=is_guess,
        prompt=row["input"],
        env=name_of(row.get("data_source")),
        is_success=truth(first_number(row, _SUCCESS)),
        pictures=PictureFiles(folder=folder, is_of_rows=True),
    )
    if where.is_evaluation:
        draft.split = Split.EVAL
        draft.reconstructed.add("split")
    return [draft]


def _v1_drafts(row: Row, where: Where) -> list[Draft]:
    (draft,) = _drafts(row, where)
    parts = row["uid"].rsplit("_", 2)
    draft.fields = {**draft.fields, "uid": row["uid"]}
    if len(parts) == 3:
        draft.group = parts[0]
    return [draft]


def _agent_drafts(row: Row, where: Where) -> list[Draft]:
    (draft,) = _drafts(row, where)
    draft.reconstructed.add("turn_is_episode")
    return [draft]


def _is_observed(row: Row) -> bool:
    episodes = row.get("trajectories")
    steps = inner(episodes[0], "steps") if isinstance(episodes, list) and episodes else None
    turn = steps[0] if isinstance(steps, list) and steps else None
    return isinstance(turn, Mapping) and "observation" in turn and "action" in turn


def _observed_drafts(row: Row, where: Where) -> Iterator[Draft]:
    for episode in row["trajectories"]:
        dialogue = Dialogue()
        dialogue.turns = [
            DraftTurn(
                observation=text_of(step["observation"]),
                response=text_of(step["action"]),
                reward=number(step.get("reward")),
                info=numbers_of(without(step, ("step", "reward"))),
            )
            for step in episode["steps"]
        ]
        is_by_turn = not any(math.isnan(turn.reward) for turn in dialogue.turns)
        yield dialogue.draft(
            without(episode, ("steps", "success")),
            reward=math.nan if is_by_turn else first_number(episode, _EPISODE_REWARDS),
            env=name_of(row.get("env_name") or row.get("env")),
            tag=name_of(episode.get("task_type")),
            is_success=truth(episode.get("success")),
        )


def _is_vagen_folder(row: Row) -> bool:
    return "vagen_metrics" in row and is_messages(row.get("messages"))


def _vagen_folder_drafts(row: Row, where: Where) -> list[Draft]:
    metrics = row["vagen_metrics"] if isinstance(row["vagen_metrics"], Mapping) else {}
    env, seed = _task(row["vagen_folder"], metrics)
    success = (truth(metrics[name]) for name in _FOLDER_SUCCESS if name in metrics)
    draft = read_messages(row["messages"]).draft(
        {"folder": row["vagen_folder"], "metrics": without(metrics, ())},
        group=f"{env}_seed_{seed}" if seed else None,
        env=env,
        tag=next((part for part in where.path.parts if part.startswith("tag_")), ""),
        stop_reason=_FINISHES.get(text_of(metrics.get("finish_reason")), StopReason.UNKNOWN),
        is_success=next(success, None),
    )
    _set_turns(draft, metrics, where)
    draft.add_info(numbers_of(metrics))
    return [draft]


def _task(folder: str, metrics: Mapping[str, Any]) -> tuple[str, str]:
    """The environment and the seed: of the metrics, or of the folder's name where it has them."""
    env, seed = name_of(metrics.get("env_name")), whole(metrics.get("seed"))
    if env and seed is not None:
        return env, str(seed)
    named = _FOLDER.fullmatch(folder)
    return (named[1], named[2]) if named else (env, "")


def _set_turns(draft: Draft, metrics: Mapping[str, Any], where: Where) -> None:
    """Rewards, numbers and pictures of the turns, where each reply is one step of the world.

    A harness that sums up its history has replies that are no step: which is which is not said.
    """
    rewards, infos = metrics.get("rewards"), metrics.get("infos")
    is_by_turn = isinstance(rewards, list) and len(rewards) == len(draft.turns)
    if isinstance(rewards, list) and is_by_turn:
        for turn, reward in zip(draft.turns, rewards, strict=True):
            turn.reward = number(reward)
        if isinstance(infos, list) and len(infos) == len(rewards) + 1:
            for turn, info in zip(draft.turns, infos[1:], strict=True):
                turn.info = numbers_of(info)
    else:
        draft.set_episode_reward(first_number(metrics, _FOLDER_REWARDS))
    if is_by_turn or rewards is None:
        draft.pictures = PictureFiles(folder=where.path.parent / "images", is_of_rows=False)


def _dump(name: str, matches: Any, drafts: Any = _drafts, **more: Any) -> Format:
    return Format(
        **{"name": name, "trainer": "verl", "matches": matches, "drafts": drafts, **more},
        step=step_key("step"),
    )


V1 = _dump("verl v1 JSONL", _is_v1, _v1_drafts)
VAGEN = _dump("VAGEN training JSONL", _is_vagen)
CLASSIC = _dump("verl JSONL", _is_classic)
AGENT = _dump("verl-agent JSONL", _is_agent, _agent_drafts, trainer="verl-agent", goes_on=_is_plain)
PLAIN = _dump("verl JSONL without gts", _is_plain)
OBSERVED = Format(
    name="verl-agent observed trajectories",
    trainer="verl-agent",
    matches=_is_observed,
    drafts=_observed_drafts,
    step=step_key("global_step"),
)
VAGEN_FOLDERS = Format(
    name="VAGEN evaluation folders",
    trainer="VAGEN",
    matches=_is_vagen_folder,
    drafts=_vagen_folder_drafts,
    file_step=no_file_step,
)
