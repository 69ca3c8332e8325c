"""tinker-cookbook: `*_rollout_summaries.jsonl`: rewards, lengths and logs of each step.

The text is what the cookbook's environment for tools logs of each step: replies without their
reasoning, calls and results, no prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...records import Split
from ..dialogue import Dialogue, read_messages
from ..draft import (
    Draft,
    DraftTurn,
    name_of,
    number,
    number_or_none,
    numbers_of,
    objects_of,
    text_of,
    whole,
    without,
)
from ..format import Format, Row, Where, has_keys, step_key

_STEP_USED = ("step_idx", "ob_len", "ac_len", "reward", "metrics")
_CALL = re.compile(r"([^\s(]{1,200})\((.*)\)", re.DOTALL)
_LOGGED = re.compile(r"assistant_content|tool_(?:call|result)_\d{1,4}")


def _drafts(row: Row, where: Where) -> list[Draft]:
    steps = objects_of(row["steps"])
    dialogue = Dialogue()
    dialogue.turns = [
        DraftTurn(
            observation="",
            response="",
            reward=number(step.get("reward")),
            policy_version=whole(row.get("sampling_client_step")),
            info={
                **numbers_of(step.get("metrics")),
                **numbers_of({name: step.get(name) for name in ("ob_len", "ac_len")}),
            },
        )
        for step in steps
    ]
    group = text_of(row["group_idx"])
    tags = row.get("tags")
    is_evaluation = text_of(row.get("split")).startswith("eval")
    draft = dialogue.draft(
        without(row, ("steps", "iteration", "split")),
        prompt=f"group {group}",
        group=group,
        split=Split.EVAL if is_evaluation else Split.IMPORT,
        env=name_of(tags[0]) if isinstance(tags, list) and tags else "",
    )
    more = _set_text(draft, steps)
    draft.fields = {**draft.fields, "steps": more}
    final = number_or_none(row.get("final_reward"))
    if draft.turns and final is not None:
        # It is given for the whole group after the steps.
        draft.turns[-1].reward += final
    draft.add_info(numbers_of(row.get("trajectory_metrics")))
    return [draft]


def _set_text(draft: Draft, steps: Sequence[Row]) -> list[dict[str, Any]]:
    """Set the text of the turns; what remains of the steps."""
    more = [without(step, _STEP_USED) for step in steps]
    logged = _logged(steps)
    if logged and _set_dialogue(draft, read_messages(logged)):
        draft.reconstructed.add("step_logs")
        for step in more:
            logs = step["logs"]
            step["logs"] = {name: v for name, v in logs.items() if not _LOGGED.fullmatch(name)}
    return more


def _set_dialogue(draft: Draft, dialogue: Dialogue) -> bool:
    """Take the text of a conversation, where it has a reply for each step."""
    if len(dialogue.turns) != len(draft.turns):
        return False
    for turn, said in zip(draft.turns, dialogue.turns, strict=True):
        turn.observation, turn.response, turn.calls = said.observation, said.response, said.calls
    draft.final_observation = dialogue.final_observation
    if dialogue.system:
        draft.fields = {**draft.fields, "system": dialogue.system}
    return True


def _logged(steps: Sequence[Row]) -> list[dict[str, Any]]:
    """The conversation as `AgentToolMessageEnv` logs it; empty where another environment logged.

    A step that the trainer ended, because the reply was too long, has no logs.
    """
    out: list[dict[str, Any]] = []
    is_any = False
    for step in steps:
        logs = step.get("logs")
        if not isinstance(logs, Mapping):
            return []
        calls = [_CALL.fullmatch(text) for text in _numbered(logs, "tool_call")]
        if not all(calls):
            return []
        results = _numbered(logs, "tool_result")
        content = logs.get("assistant_content", "")
        is_any = is_any or bool(content or calls)
        functions = [{"name": call[1], "arguments": call[2]} for call in calls if call]
        out.append(
            {
                "role": "assistant",
                "content": content,
                "tool_calls": [{"id": str(i), "function": f} for i, f in enumerate(functions)],
            }
        )
        # A tool may give several messages; then it is not known which call they belong to.
        is_each = len(results) == len(calls)
        out += [
            {"role": "tool", "content": text, "tool_call_id": str(i) if is_each else ""}
            for i, text in enumerate(results)
        ]
    return out if is_any else []


def _numbered(logs: Mapping[str, Any], name: str) -> list[str]:
    """The texts `name_0`, `name_1` and so on."""
    out: list[str] = []
    while isinstance(text := logs.get(f"{name}_{len(out)}"), str):
        out.append(text)
    return out


SUMMARIES = Format(
    name="tinker-cookbook rollout summaries",
    trainer="tinker-cookbook",
    matches=has_keys("group_idx", "traj_idx", "total_reward", steps=list),
    drafts=_drafts,
    step=step_key("iteration"),
)
