"""Messages: any run that the store can hold comes back from an export as it was."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trajectories import make_trajectory

from echoscope.store.exporters.exporting import export_run
from echoscope.store.records import (
    Split,
    ToolCall,
    Trajectory,
    TrajectoryOutcome,
    Turn,
)

from ..conftest import imported, write_run

TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "\x00", "a\r\nb", "<think>x</think>", "y</think>z", "\ud800", "<|im_end|>", "\u2028"]
    ),
)


@st.composite
def turns(draw: Callable[..., object], index: int) -> Turn:
    response = draw(TEXT)
    assert isinstance(response, str)
    span = st.one_of(st.none(), st.just((0, len(response))))
    call = st.builds(ToolCall, name=TEXT, arguments=TEXT, result=TEXT, problem=TEXT)
    return Turn(
        index=index,
        observation=draw(TEXT),
        response=response,
        reasoning_chars=draw(span),
        actions=tuple(draw(st.lists(TEXT, max_size=2))),
        reward=draw(st.one_of(st.floats(-1e100, 1e100), st.just(math.nan))),
        frame=draw(st.one_of(st.none(), TEXT)),
        calls=tuple(draw(st.lists(call, max_size=2))),
    )


@st.composite
def runs(draw: Callable[..., object]) -> list[Trajectory]:
    return [
        make_trajectory(
            *[draw(turns(k)) for k in range(draw(st.integers(0, 3)))],
            step=0,
            split=split,
            index=index,
            sibling_index=index,
            env_id=draw(TEXT),
            tag=draw(TEXT),
            final_observation=draw(TEXT),
            source=draw(st.one_of(st.none(), TEXT)),
            extra=draw(st.one_of(st.none(), TEXT)),
        )
        for split in draw(st.sets(st.sampled_from(Split), min_size=1, max_size=2))
        for index in range(draw(st.integers(1, 3)))
    ]


@pytest.mark.long
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(run=runs(), system=TEXT)
def test_any_run_can_be_exported_and_imported(run: list[Trajectory], system: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_run(root / "run", run, config={"context": {"system": system.replace("\ud800", "")}})
        if not any(t.turns for t in run):
            return
        export_run(root / "run", "messages", root / "out.jsonl")
        back = imported(root / "out.jsonl", root / "back")
        assert len(back) == sum(bool(t.turns) for t in run)


def exported(run: Path, to: str = "messages") -> list[dict]:
    target = run.parent / f"{to}.jsonl"
    export_run(run, to, target)
    return [json.loads(line) for line in target.read_text("utf-8").splitlines()]


def turn(index: int, **values: object) -> Turn:
    return Turn(index=index, **({"observation": f"o{index}", "response": f"r{index}"} | values))


def test_a_conversation(tmp_path: Path) -> None:
    trajectory = make_trajectory(
        turn(0, reward=0.5), turn(1, reward=0.25), final_observation="end", is_success=True
    )
    outcome = TrajectoryOutcome(trajectory_id=trajectory.id, advantage=0.5, kept=True)
    run = write_run(tmp_path / "run", [trajectory], [outcome], {"context": {"system": "Sys"}})
    (row,) = exported(run)
    assert [(m["role"], m["content"]) for m in row["messages"]] == [
        *(("system", "Sys"), ("user", "o0"), ("assistant", "r0")),
        *(("user", "o1"), ("assistant", "r1"), ("user", "end")),
    ]
    own = {key: row[key] for key in ("step", "split", "group_id", "reward", "turn_rewards")}
    assert own == {
        "step": 1,
        "split": "train",
        "group_id": "train-1-0",
        "reward": 0.75,
        "turn_rewards": [0.5, 0.25],
    }
    assert row["success"] is True
    assert (row["advantage"], row["kept"]) == (0.5, True)


def test_a_reply_whose_prompt_opened_the_reasoning_gets_the_tag_back(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_trajectory(turn(0, response="hm</think>yes"))])
    (row,) = exported(run)
    assert row["messages"][-1]["content"] == "<think>hm</think>yes"


def test_tool_calls_are_calls_and_results(tmp_path: Path) -> None:
    text = '<think>price?</think>\n<tool_call>\n{"name": "lookup", "arguments": {}}\n</tool_call>'
    call = ToolCall(name="lookup", arguments="{}", result="42")
    run = write_run(
        tmp_path / "run",
        [make_trajectory(turn(0, response=text, calls=(call,)), turn(1, observation="42"), step=0)],
    )
    (row,) = exported(run)
    _, reply, result, _ = row["messages"]
    key = "t00000000-00000-0-0"
    assert reply == {
        "role": "assistant",
        "content": "<think>price?</think>",
        "tool_calls": [
            {"id": key, "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
        ],
    }
    assert result == {"role": "tool", "tool_call_id": key, "name": "lookup", "content": "42"}
    (back,) = imported(tmp_path / "messages.jsonl", tmp_path / "back")
    assert back.turns[0].calls == (call,)
