"""Files that the trainers' own packages wrote, and joined files: every field, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rollout_import import import_run

from echoscope.store.records import FinishReason

from .conftest import Imported, texts

Rows = Callable[..., Imported]


def places(imported: Imported) -> list[tuple[int, int]]:
    return [(t.group_index, t.sibling_index) for t in imported.trajectories]


def rewards(trajectory: Any) -> list[float]:
    return [turn.reward for turn in trajectory.turns]


def request(rollout: str, asked: list[str], reply: str, **more: Any) -> dict[str, Any]:
    """A `model_request` event: what was asked and answered before, and the new reply."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(asked)]
    messages.insert(0, {"role": "system", "content": "Sys"})
    choice = {"message": {"role": "assistant", "content": reply}, **more.pop("choice", {})}
    data = {
        "model": "m",
        "model_version": 5,
        "request": {"messages": messages, "temperature": 1.0},
        "response": {"choices": [choice], **more.pop("response", {})},
        "finish_reason": "stop",
        **more,
    }
    return event(rollout, "model_request", data)


def event(rollout: str, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    event.clock += 0.5  # type: ignore[attr-defined]
    return {
        "event_type": kind,
        "rollout_id": rollout,
        "attempt_id": "0",
        "timestamp": event.clock,  # type: ignore[attr-defined]
        "data": data,
    }


event.clock = 0.0  # type: ignore[attr-defined]


def test_agent_lightning_events_of_several_rollouts_are_mixed(rows: Rows) -> None:
    tokens = {"token_ids": [4, 5], "logprobs": {"content": [{"logprob": -1.0}, {"logprob": -2.0}]}}
    imported = rows(
        request("r1", ["q1"], "a1", response={"prompt_token_ids": [1, 2]}, choice=tokens),
        request("r2", ["q1"], "other", finish_reason="length"),
        event("r1", "tool_call", {"name": "add"}),
        request("r1", ["q1", "a1", "q2"], "a2"),
        event("r2", "reward", {"value": 0.25, "source": "agent"}),
        event("r1", "reward", {"value": 1.0}),
        b'{"event_type": "rew',
    )
    first, second = imported.trajectories
    assert {t.step for t in imported.trajectories} == {5}
    assert texts(first.turns) == [("q1", "a1"), ("q2", "a2")]
    assert rewards(first) == [0.0, 1.0]
    assert second.episode_return == 0.25
    assert places(imported) == [(0, 0), (0, 1)]
    assert first.turns[0].prompt_tokens.tolist() == [1, 2]
    assert first.turns[0].response_tokens.tolist() == [4, 5]
    assert np.allclose(first.turns[0].logprobs, [-1.0, -2.0])
    assert first.policy_version == 5
    assert second.turns[0].finish_reason is FinishReason.LENGTH
    fields = imported.extra(0)["fields"]
    assert (fields["rollout_id"], fields["attempt_id"], fields["model"]) == ("r1", "0", "m")
    assert fields["rewards"] == [{"value": 1.0}]
    assert fields["system"] == "Sys"
    assert fields["events"][0]["event_type"] == "tool_call"
    assert imported.report.survey.refused_rows.total == 1, "the line that is cut off"


def test_agent_lightning_rewards_of_turns(rows: Rows) -> None:
    imported = rows(
        request("r", ["q1"], "a1"),
        event("r", "reward", {"value": 0.5}),
        request("r", ["q1", "a1", "q2"], "a2"),
        event("r", "reward", {"value": -1.0}),
    )
    assert rewards(imported.trajectories[0]) == [0.5, -1.0]


def test_agent_lightning_requests_that_do_not_follow_each_other(rows: Rows) -> None:
    imported = rows(
        request("r", ["plan"], "p"),
        request("r", ["write"], "w"),
        event("r", "reward", {"value": 2.0}),
    )
    (trajectory,) = imported.trajectories
    assert texts(trajectory.turns) == [("plan", "p"), ("write", "w")]
    assert rewards(trajectory) == [0.0, 2.0]


def test_a_list_of_events_as_the_server_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text(json.dumps([request("r", ["q"], "a"), event("r", "reward", {"value": 1.0})]))
    assert rewards(Imported(import_run(path, tmp_path / "run")).trajectories[0]) == [1.0]
