"""Episodes of verifiers, made by verifiers itself and handed over by its own hook."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from page_blocks import python_block

from echoscope.recorder.recorder import Recorder
from echoscope.recorder.verifiers import EpisodeHook
from echoscope.store.reader import open_run

REPLY = "<think>so</think><answer>left</answer>"


def test_rows_of_the_older_verifiers(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        hook = EpisodeHook(recorder)
        for number in (0, 0, 1, 1):
            hook.add(
                {
                    "example_id": number,
                    "prompt": [{"role": "user", "content": f"task {number}"}],
                    "completion": [{"role": "assistant", "content": REPLY}],
                    "reward": 0.5,
                }
            )
        recorder.step(1)
    rows = open_run(tmp_path / "run").trajectories_of_step(1)
    assert [(t.group_index, t.episode_return) for t in rows] == [(0, 0.5)] * 2 + [(1, 0.5)] * 2
    assert rows[0].turns[0].response == REPLY


@pytest.mark.parametrize(
    ("episode", "why"),
    [
        ({"what": 1}, "it is neither an episode of v1 nor a row of results.jsonl"),
        (3, "AttributeError"),
    ],
)
def test_what_is_no_episode_is_said_once(tmp_path: Path, episode: Any, why: str) -> None:
    told: list[str] = []
    with Recorder(tmp_path / "run", on_message=told.append) as recorder:
        hook = EpisodeHook(recorder)
        for _ in range(3):
            asyncio.run(hook(episode))
        recorder.step(1)
    assert len(told) == 1
    assert why in told[0]


# -- verifiers itself ----------------------------------------------------------------------------


def test_an_environment_of_verifiers_hands_over_its_episodes(tmp_path: Path) -> None:
    """`Env.run_slot` calls the hook with each final episode; only the model's replies are ours."""
    vf = pytest.importorskip("verifiers.v1", reason="needs verifiers: make test-peers")
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import AgentInfo, TraceTask
    from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage

    class Played(vf.Env):
        """An environment whose episodes need no model."""

        def __init__(self) -> None:
            self.config = SimpleNamespace(retries=vf.RetryConfig())

        async def run(self, task: Any, agents: Any) -> None: ...

        async def run_episode(self, task: Any, ctx: Any, **_: Any) -> Any:
            messages = [
                SystemMessage(content="You play."),
                UserMessage(content=task.data.prompt),
                AssistantMessage(content=REPLY),
                UserMessage(content="hit"),
                AssistantMessage(content="done"),
            ]
            nodes = [
                vf.MessageNode(
                    parent=None if index == 0 else index - 1,
                    message=message,
                    sampled=isinstance(message, AssistantMessage),
                )
                for index, message in enumerate(messages)
            ]
            seed = TraceTask(type="Played", data=task.data, hash=task.hash)
            trace = vf.Trace(
                task=seed,
                agent=AgentInfo(config=WireAgentConfig()),
                nodes=nodes,
                is_completed=True,
                ok=True,
            )
            trace.record_reward("solved", float(task.data.prompt.endswith("0")))
            trace.record_reward("format", 0.5, weight=0.5)
            trace.record_metric("num_words", 3.0)
            return vf.Episode(env=vf.EnvInfo(id="played"), task=seed, traces=[trace], ok=True)

    env = Played()

    async def rollouts(hook: EpisodeHook) -> None:
        for number in (0, 1):
            task = vf.Task(WireTaskData(idx=number, prompt=f"task {number}"))
            for slot in env.slots(task, n=3):
                await env.run_slot(slot, None, on_complete=hook)

    told: list[str] = []
    with Recorder(tmp_path / "run", on_message=told.append) as recorder:
        hook = EpisodeHook(recorder)
        for step in (1, 2):
            asyncio.run(rollouts(hook))
            recorder.step(step, {"loss": 1.0})
        # The same by the lines of docs/recorder.md, which stand in a coroutine.
        (slot,) = env.slots(vf.Task(WireTaskData(idx=0, prompt="task 0")), n=1)
        names = {"recorder": recorder, "env": env, "slot": slot, "ctx": None}
        block = python_block("recorder.md", "run_slot(")
        code = compile(block, "recorder.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        asyncio.run(eval(code, names | {"step": 3, "metrics": {"loss": 1.0}}))
    assert told == []
    run = open_run(tmp_path / "run")
    assert [t.episode_return for t in run.trajectories_of_step(3)] == [1.25]
    for step in (1, 2):
        rows = run.trajectories_of_step(step)
        assert [t.group_index for t in rows] == [0, 0, 0, 1, 1, 1]
        assert [t.episode_return for t in rows] == [1.25] * 3 + [0.25] * 3
        assert [turn.response for turn in rows[0].turns] == [REPLY, "done"]
        assert [turn.observation for turn in rows[0].turns] == ["task 0", "hit"]
        assert rows[0].env_id == "played"
        assert rows[0].turns[-1].info["num_words"] == 3.0
        assert rows[0].turns[-1].info["reward/solved"] == 1.0
