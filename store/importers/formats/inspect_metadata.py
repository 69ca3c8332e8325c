"""What the metadata of an Inspect sample says of an episode of ours: the one place for its keys.

An export writes the keys that people read in Inspect's pages. A sample that was played in Inspect
also has the whole episode, under `KEY`: messages show what a model was shown, which is more than
the world's observation, and say nothing of actions, validity or seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from echoscope.text.strict_json import json_value

from ...records import Span, Split, ToolCall, Trajectory
from .. import read
from ..draft import Draft, DraftTurn, RowError

KEY = "echoscope"
"""Of the whole episode. It is there from the beginning, and holds `turns` once something of the
episode can be stored."""
_MAX_SEED = 2**63


def task_metadata(*, step: int, split: str, env: str) -> dict[str, Any]:
    """What is known before an episode is played."""
    return {"step": step, "split": split, "env": env}


def outcome_metadata(stop_reason: str, turn_rewards: Sequence[float | None]) -> dict[str, Any]:
    """What is known once it has ended."""
    return {"stop_reason": stop_reason, "turn_rewards": [*turn_rewards]}


def episode_metadata(trajectory: Trajectory) -> dict[str, Any]:
    """Everything of an episode that has text or numbers; tokens and pictures are left out."""
    rewards = [turn.reward for turn in trajectory.turns]
    whole = {
        **{name: getattr(trajectory, name) for name in _WHOLE},
        "env_seed": _seed_text(trajectory.env_seed),
        "noise_seed": _seed_text(trajectory.noise_seed),
        "turns": [
            {name: getattr(turn, name) for name in (*_TURN, *_PARTS)} for turn in trajectory.turns
        ],
    }
    value: dict[str, Any] = json_value(
        {
            **task_metadata(
                step=trajectory.step, split=trajectory.split.value, env=trajectory.env_id
            ),
            **outcome_metadata(trajectory.stop_reason.value, rewards),
            KEY: whole,
        }
    )
    return value


def scores_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """The scores of an episode by name, from its metadata; none where it says nothing of a task.

    `success` and `return`, the number of turns, and of all turns the share whose actions the world
    took, and the share that changed the world.
    """
    whole = metadata.get(KEY)
    turns = read.objects(read.inner(whole, "turns"))
    if read.inner(whole, "turns") is None or read.stop(metadata.get("stop_reason")).is_failure:
        return {}
    totals = [read.number(t.get("reward")) + read.number(t.get("format_penalty")) for t in turns]
    scores = {
        "success": float(bool(read.inner(whole, "is_success"))),
        "return": sum(totals),
        "turns": float(len(turns)),
    }
    if turns:
        for name, key in (("valid_actions", "is_valid"), ("effective_actions", "is_effective")):
            scores[name] = sum(bool(turn.get(key)) for turn in turns) / len(turns)
    return scores


def is_played_in_inspect(sample: Mapping[str, Any]) -> bool:
    """Whether one of our worlds was played in Inspect for this sample."""
    return isinstance(read.inner(sample, "metadata", KEY), Mapping)


def whole_draft(sample: Mapping[str, Any]) -> Draft:
    """The episode of a sample that was played in Inspect, as `episode_metadata` wrote it.

    Raises:
        RowError: it was not played to its end.
    """
    metadata = sample["metadata"]
    whole = metadata[KEY]
    stop_reason = read.stop(metadata.get("stop_reason"))
    is_failure = isinstance(sample.get("error"), Mapping)
    if not isinstance(whole.get("turns"), list) or (is_failure and not stop_reason.is_failure):
        problem = read.text(read.inner(sample, "error", "message"))[:200]
        raise RowError("the episode was not played to its end" + f": {problem}" * bool(problem))
    return Draft(
        turns=[_turn(turn) for turn in read.objects(whole["turns"])],
        group=read.text(sample.get("id")),
        split=split_of(metadata),
        env=read.name(metadata.get("env")),
        stop_reason=stop_reason,
        is_whole=True,
        **{name: value_in(whole.get(name)) for name, value_in in _WHOLE.items()},
    )


def split_of(metadata: Mapping[str, Any]) -> Split:
    """The split that an episode of ours is imported as."""
    return Split.EVAL if metadata.get("split") in ("eval", "probe") else Split.IMPORT


def _turn(turn: Mapping[str, Any]) -> DraftTurn:
    reasoning, answer = (_span(turn.get(name)) for name in _PARTS)
    values = {name: value_in(turn.get(name)) for name, value_in in _TURN.items()}
    return DraftTurn(**values, parts=(reasoning, answer))


def _actions(value: Any) -> tuple[str, ...]:
    return tuple(map(read.text, value if isinstance(value, list) else []))


def _calls(value: Any) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(**{f.name: read.text(call.get(f.name)) for f in fields(ToolCall)})
        for call in read.objects(value)
    )


def _span(value: Any) -> Span | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    start, end = read.whole(value[0]), read.whole(value[1])
    return None if start is None or end is None else (start, end)


def _seed_text(seed: int | None) -> str | None:
    """A seed as text: Inspect's pages read numbers of more than 53 bits inexactly."""
    return None if seed is None else str(seed)


def _seed(value: Any) -> int | None:
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()) or len(value) > 19:
        return None
    return seed if (seed := int(value)) < _MAX_SEED else None


_WHOLE: Mapping[str, Callable[[Any], Any]] = {
    "tag": read.name,
    "env_seed": _seed,
    "noise_seed": _seed,
    "task_key": read.text_or_none,
    "prompt_key": read.name,
    "is_success": read.truth,
    "duration_s": read.number_or_none,
    "final_observation": read.text,
    "final_frame": read.text_or_none,
}
"""The fields of an episode, and how each is read."""
_TURN: Mapping[str, Callable[[Any], Any]] = {
    "observation": read.text,
    "frame": read.text_or_none,
    "response": read.text,
    "actions": _actions,
    "reward": read.number,
    "format_penalty": lambda value: read.number_or_none(value) or 0.0,
    "is_valid": read.truth,
    "is_effective": read.truth,
    "finish_reason": read.finish,
    "info": read.numbers,
    "calls": _calls,
}
"""The fields of a turn, and how each is read."""
_PARTS = ("reasoning_chars", "answer_chars")
