"""Lessons for TRL's trainers: demonstrations (SFTTrainer), and pairs of siblings (DPOTrainer).

Siblings had the same task and the same prompt, so the better one can be preferred to the worse one.
The best is paired with the worst, the second best with the second worst, and so on: each episode is
in one pair at most. After the first prompt siblings see different things, so what is chosen and
rejected are whole continuations.

Two siblings that executed the same actions make no pair: chance or a penalty made their returns
differ, and preferring one to the other would teach that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from ..dialogue import EpisodeMessages, dialogue_of
from ..format import ExportFormat, Written
from ..source import EpisodeRows, RunSource
from .messages import write_lines

_FAILED = (
    "the environment failed, or a command dropped the step (stop_reason is env_error, timeout or "
    "aborted)"
)
_NO_TURNS = "the episode has no turns"
_ALONE = "there is no sibling with the same prompt"
_SAME_ACTIONS = (
    "both siblings executed the same actions, so chance or a penalty made their returns differ"
)


def _write_demonstrations(source: RunSource, path: Path) -> Written:
    dialogues = (dialogue_of(e) for e in source.episodes() if _is_lesson(source, e))
    # What comes after the last reply is no lesson.
    written = write_lines(path, ({"messages": d.messages[: d.last_reply + 1]} for d in dialogues))
    options = source.options
    if options.where == "" and options.best is None and not options.labels:
        written.notes.append(
            "Every episode is in it, failed ones too; --where is_success or --best 1 keeps the "
            "good ones."
        )
    return written


def _is_lesson(source: RunSource, episode: EpisodeRows) -> bool:
    """Whether there is something to learn from an episode; else it is counted as left out."""
    if episode.is_failure or not episode.turns:
        source.leave_out(_FAILED if episode.is_failure else _NO_TURNS, episode.row)
        return False
    return True


def _groups(source: RunSource) -> Iterator[list[EpisodeRows]]:
    """Siblings with the same prompt and task. The episodes of a step come group by group."""
    for _, members in groupby(source.episodes(), key=lambda episode: episode.group_id):
        for _, siblings in groupby(sorted(members, key=_task), key=_task):
            yield list(siblings)


def _task(episode: EpisodeRows) -> str:
    """Equal where prompt and task are equal."""
    row = episode.row
    return f"{row['prompt_key']} {row['task_key']} {row['env_seed']}"


def _pairs_by_label(source: RunSource) -> Iterator[tuple[EpisodeRows, EpisodeRows]]:
    """Pairs of a better and a worse sibling, as people labelled them."""
    labels, over = set(source.options.labels), source.options.over
    for siblings in _groups(source):
        usable = [episode for episode in siblings if _is_lesson(source, episode)]
        better = [episode for episode in usable if labels & set(episode.noted.labels)]
        worse = [e for e in usable if over in e.noted.labels and e not in better]
        num_pairs = min(len(better), len(worse))
        for episode in better[num_pairs:] + worse[num_pairs:]:
            source.leave_out("there is no sibling with the other label", episode.row)
        yield from zip(better[:num_pairs], worse[:num_pairs], strict=True)


def _pairs_by_return(source: RunSource) -> Iterator[tuple[EpisodeRows, EpisodeRows]]:
    for siblings in _groups(source):
        usable = []
        for episode in siblings:
            if _is_lesson(source, episode) and episode.episode_return is None:
                source.leave_out("the return is not known", episode.row)
            elif episode.turns and not episode.is_failure:
                usable.append(episode)
        if len(usable) == 1:
            source.leave_out(_ALONE, usable[0].row)
            continue
        usable.sort(key=lambda e: (-(e.episode_return or 0.0), e.row["sibling_index"]))
        half = len(usable) // 2
        if len(usable) % 2:
            source.leave_out(
                "the group has an odd number of siblings, and the one in the middle has no partner",
                usable[half].row,
            )
        for best, worst in zip(
            usable[:half], reversed(usable[-half:] if half else []), strict=True
        ):
            difference = (best.episode_return or 0.0) - (worst.episode_return or 0.0)
            if difference <= 0 or difference < source.options.margin:
                source.leave_out(
                    "the returns of the two siblings are too close", best.row, worst.row
                )
            else:
                yield best, worst


def _actions(episode: EpisodeRows) -> list[str]:
    """The executed actions in order; empty where there is none. Letter case counts, as in code."""
    return [action.strip() for turn in episode.turns for action in turn["actions"] or ()]


def _continuation(dialogue: EpisodeMessages) -> list[dict[str, Any]]:
    return dialogue.messages[dialogue.first_reply : dialogue.last_reply + 1]


def _texts(messages: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(message["role"], message["content"]) for message in messages]


def _preferences(source: RunSource) -> Iterator[dict[str, Any]]:
    """The pairs in the form of TRL."""
    pairs = _pairs_by_label if source.options.over else _pairs_by_return
    for best, worst in pairs(source):
        chosen, rejected = dialogue_of(best), dialogue_of(worst)
        prompt = chosen.messages[: chosen.first_reply]
        if _texts(prompt) != _texts(rejected.messages[: rejected.first_reply]):
            source.leave_out(_ALONE, best.row, worst.row)
        elif _texts(_continuation(chosen)) == _texts(_continuation(rejected)):
            source.leave_out("both siblings wrote the same text", best.row, worst.row)
        elif [] != _actions(best) == _actions(worst):
            source.leave_out(_SAME_ACTIONS, best.row, worst.row)
        else:
            yield {
                "prompt": prompt,
                "chosen": _continuation(chosen),
                "rejected": _continuation(rejected),
                "chosen_return": best.episode_return,
                "rejected_return": worst.episode_return,
                "step": best.step,
                "group_id": best.group_id,
            }


SFT = ExportFormat(
    name="sft",
    noun="conversation",
    write=_write_demonstrations,
    leaves_out="everything except the messages",
    split="train",
)
DPO = ExportFormat(
    name="dpo",
    noun="pair",
    write=lambda source, path: write_lines(path, _preferences(source)),
    leaves_out="everything except the messages, returns, steps and groups of the pairs",
    split="train",
)
