"""Files that the trainers' own packages wrote, and joined files: every field, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest

from echoscope.store.importers.format import Where
from echoscope.store.importers.formats import verifiers
from echoscope.store.importers.importing import ImportingError, import_run
from echoscope.store.records import FinishReason, Split

from .conftest import FIXTURES, Imported, texts

Fixture = Callable[[str], Imported]
Rows = Callable[..., Imported]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'


def places(found: Imported) -> list[tuple[int, int]]:
    return [(t.group_index, t.sibling_index) for t in found.trajectories]


def rewards(trajectory: Any) -> list[float]:
    return [turn.reward for turn in trajectory.turns]


def test_art_parquet(fixture: Fixture) -> None:
    found = fixture("art_parquet")
    first, second, third = found.trajectories
    assert {t.step for t in found.trajectories} == {7}
    assert places(found) == [(0, 0), (0, 1), (1, 0)]
    assert texts(first.turns) == [("2 + 3?", CALL), ("5", "It is 5.")]
    assert [(c.name, c.arguments, c.result) for c in first.turns[0].calls] == [
        ("add", '{"a": 2}', "5")
    ]
    assert rewards(first) == [0.0, 1.0]
    assert first.turns[-1].info == {"win": 1.0, "turns": 2.0}
    assert (second.episode_return, third.episode_return) == (-0.25, 0.5)
    assert found.extra(0)["fields"] == {
        "group_index": 0,
        "group_metadata": {"g": 1},
        "metadata": {"task": "add", "n": 7},
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "logs": ["started"],
        "system": "Be brief.",
    }


def test_art_yaml(fixture: Fixture) -> None:
    found = fixture("art_yaml")
    first, second, third = found.trajectories
    assert {(t.step, t.split) for t in found.trajectories} == {(3, Split.EVAL)}
    assert places(found) == [(0, 0), (0, 1), (1, 0)]
    assert texts(first.turns) == [("2 + 3?", CALL), ("5", "It is 5.")]
    assert [turn.finish_reason for turn in first.turns] == [FinishReason.STOP, FinishReason.STOP]
    assert second.turns[0].finish_reason is FinishReason.LENGTH
    assert [t.episode_return for t in (first, second, third)] == [1.0, -0.25, 0.5]
    assert found.extra(0)["fields"]["metadata"] == {"task": "add", "n": 7}


LAUGHS = "- trajectories: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"- &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "as a bomb does"),
        ("- trajectories: !!python/object/apply:os.system ['touch sprung']\n", "YAML"),
        ("- trajectories: {<<: {a: 1}}\n", "YAML"),
        ("- trajectories: " + "[" * 3000 + "]" * 3000 + "\n", "YAML"),
        ("- trajectories: [\n", "YAML"),
        ("- trajectories: " + "9" * 5000 + "\n", "YAML"),
    ],
    ids=["laughs", "code", "merge keys", "deep", "cut off", "digits"],
)
def test_bad_yaml(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "0001.yaml").write_text(text)
    with pytest.raises(ImportingError, match=reason):
        import_run(tmp_path / "0001.yaml", tmp_path / "run")


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
    found = rows(
        request("r1", ["q1"], "a1", response={"prompt_token_ids": [1, 2]}, choice=tokens),
        request("r2", ["q1"], "other", finish_reason="length"),
        event("r1", "tool_call", {"name": "add"}),
        request("r1", ["q1", "a1", "q2"], "a2"),
        event("r2", "reward", {"value": 0.25, "source": "agent"}),
        event("r1", "reward", {"value": 1.0}),
        b'{"event_type": "rew',
    )
    first, second = found.trajectories
    assert {t.step for t in found.trajectories} == {5}
    assert texts(first.turns) == [("q1", "a1"), ("q2", "a2")]
    assert rewards(first) == [0.0, 1.0]
    assert second.episode_return == 0.25
    assert places(found) == [(0, 0), (0, 1)]
    assert first.turns[0].prompt_tokens.tolist() == [1, 2]
    assert first.turns[0].response_tokens.tolist() == [4, 5]
    assert np.allclose(first.turns[0].logprobs, [-1.0, -2.0])
    assert first.policy_version == 5
    assert second.turns[0].finish_reason is FinishReason.LENGTH
    fields = found.extra(0)["fields"]
    assert (fields["rollout_id"], fields["attempt_id"], fields["model"]) == ("r1", "0", "m")
    assert fields["rewards"] == [{"value": 1.0}]
    assert fields["system"] == "Sys"
    assert fields["events"][0]["event_type"] == "tool_call"
    assert found.report.rows.total == 1, "the line that is cut off"


def test_agent_lightning_rewards_of_turns(rows: Rows) -> None:
    found = rows(
        request("r", ["q1"], "a1"),
        event("r", "reward", {"value": 0.5}),
        request("r", ["q1", "a1", "q2"], "a2"),
        event("r", "reward", {"value": -1.0}),
    )
    assert rewards(found.trajectories[0]) == [0.5, -1.0]


def test_agent_lightning_requests_that_do_not_follow_each_other(rows: Rows) -> None:
    found = rows(
        request("r", ["plan"], "p"),
        request("r", ["write"], "w"),
        event("r", "reward", {"value": 2.0}),
    )
    (trajectory,) = found.trajectories
    assert texts(trajectory.turns) == [("plan", "p"), ("write", "w")]
    assert rewards(trajectory) == [0.0, 2.0]


def test_a_list_of_events_as_the_server_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text(json.dumps([request("r", ["q"], "a"), event("r", "reward", {"value": 1.0})]))
    assert rewards(Imported(import_run(path, tmp_path / "run")).trajectories[0]) == [1.0]


def test_verifiers_episodes_of_their_own_records(fixture: Fixture) -> None:
    """A reply that was given as an example, and four values of each sampled token."""
    found = fixture("verifiers_written")
    first, second, third = found.trajectories
    assert {t.step for t in found.trajectories} == {6}
    assert places(found) == [(0, 0), (0, 1), (1, 0)]
    reply = f"<think>call it</think>\n{CALL}"
    assert texts(first.turns) == [("1 + 1?\n\n2\n\n2 + 3?", reply), ("5", "It is 5.")]
    assert [(c.name, c.result) for c in first.turns[0].calls] == [("add", "5")]
    assert [t.episode_return for t in (first, second, third)] == [2.5, 0.5, 2.5]
    assert first.turns[-1].info == {"calls": 1.0, "reward/solved": 1.0, "reward/style": 0.5}
    assert [turn.prompt_tokens.tolist() for turn in first.turns] == [
        [*range(1, 8)],
        [*range(1, 12)],
    ]
    assert [turn.response_tokens.tolist() for turn in first.turns] == [[8, 9], [12]]
    assert [turn.logprobs.tolist() for turn in first.turns] == [[-0.5, -0.25], [-2.0]]
    assert [turn.entropies.tolist() for turn in first.turns] == [[0.125, 0.25], [0.5]]
    assert {t.policy_version for t in found.trajectories} == {5}
    assert {t.env_id for t in found.trajectories} == {"add"}
    rows = found.reader.sql("SELECT advantage FROM trajectories").column("advantage")
    assert rows.to_pylist() == [0.75, 0.75, 0.75]
    draft = next(iter(verifiers.EPISODES.drafts(_first_row("verifiers_written"), _WHERE)))
    assert [values.tolist() for values in draft.reference_logprobs or ()] == [[-1.0, -1.5], [-2.5]]
    assert [values.tolist() for values in draft.advantages or ()] == [[0.75, 0.75], [0.75]]


_WHERE = Where(path=PurePath("traces.jsonl"))


def _first_row(name: str) -> dict[str, Any]:
    (path,) = (FIXTURES / name).rglob("*.jsonl")
    row: dict[str, Any] = json.loads(path.read_text().split("\n")[0])
    return row
