"""Writes `fixtures/tinker_written` with tinker-cookbook's own rollouts, summaries and trees.

Run: `python tests/store/importers/writers/tinker_tree.py OUTPUT_FOLDER`, with tinker-cookbook
(`pip install --no-deps tinker-cookbook chz`). `do_group_rollout` runs the worlds below with replies
that are known beforehand, and `AgentToolMessageEnv` of the cookbook with a tool.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stand_ins import stand_in

stand_in("tinker", "torch", "transformers")
from tinker_cookbook.renderers.base import ToolCall  # noqa: E402
from tinker_cookbook.rl import rollout_logging, rollouts, types  # noqa: E402
from tinker_cookbook.tool_use.agent_tool_message_env import AgentToolMessageEnv  # noqa: E402
from tinker_cookbook.tool_use.types import ToolResult  # noqa: E402
from tinker_cookbook.utils import logtree  # noqa: E402
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter  # noqa: E402


@dataclass
class Prompt:
    """Stands for a tokenised prompt."""

    length: int


@dataclass
class Sampled:
    """Stands for a sampled reply: its message, and as many tokens as it has words."""

    message: dict[str, Any]
    stop_reason: str = "stop"

    @property
    def tokens(self) -> Any:
        return Tokens(self.message)


class Tokens(list):  # type: ignore[type-arg]
    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__(str(message).split())
        self.message = message


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Scripted(types.Env):
    """Replies that are known beforehand, each after some other tasks had their turn."""

    def __init__(self, replies: Sequence[dict[str, Any]], waits: Sequence[int]) -> None:
        self.replies, self.waits, self.step_number = list(replies), list(waits), 0
        self.talk: list[Any] = []

    async def initial_observation(self) -> Any:
        return Prompt(len(str(self.talk))), []

    async def wait(self) -> None:
        for _ in range(self.waits[self.step_number]):
            await asyncio.sleep(0)

    def result(self, reward: float, is_done: bool, **more: Any) -> types.StepResult:
        return types.StepResult(
            reward=reward,
            episode_done=is_done,
            next_observation=Prompt(0 if is_done else len(str(self.talk))),  # type: ignore[arg-type]
            next_stop_condition=[],
            **more,
        )


class Sums(Scripted):
    """One step, logged as `ProblemEnv.step` logs it."""

    def __init__(self, task: int, reply: str, reward: float, wait: int) -> None:
        super().__init__([said(reply)], [wait])
        self.task, self.reward = task, reward
        self.talk = [{"role": "system", "content": "Add."}, user(f"{task} + 1?")]

    async def step(self, action: Any, *, extra: Any = None) -> types.StepResult:
        await self.wait()
        with logtree.scope_header("Prompt"):
            logtree.log_formatter(ConversationFormatter(messages=self.talk))
        with logtree.scope_header("Policy Response"):
            logtree.log_formatter(ConversationFormatter(messages=[action.message]))
        with logtree.scope_header("Reward"):
            logtree.table_from_dict(
                {"reference_answer": self.task + 1, "reward": f"{self.reward:.3f}"},
                caption="Reward components",
            )
        return self.result(self.reward, True, metrics={"correct": float(self.reward > 0)})


class Maze(Scripted):
    """Several steps; each logs its prompt and the reply in the same way, without a reward."""

    def __init__(
        self, replies: Sequence[str], rewards: Sequence[float], waits: Sequence[int]
    ) -> None:
        thought = {"type": "thinking", "thinking": "look"}
        super().__init__(
            [said([thought, {"type": "text", "text": r}]) for r in replies],  # type: ignore[arg-type]
            waits,
        )
        self.rewards = rewards
        self.talk = [user("You are at 0, the goal is at 2.")]

    async def step(self, action: Any, *, extra: Any = None) -> types.StepResult:
        await self.wait()
        with logtree.scope_header("Prompt"):
            logtree.log_formatter(ConversationFormatter(messages=list(self.talk)))
        with logtree.scope_header("Policy Response"):
            logtree.log_formatter(ConversationFormatter(messages=[action.message]))
        self.step_number += 1
        is_done = self.step_number == len(self.replies)
        # The reasoning of a reply is left out of the prompts after it.
        text = action.message["content"][1]["text"]
        self.talk += [said(text), user(f"You went {text}.")]
        return self.result(self.rewards[self.step_number - 1], is_done)


class Search:
    """A tool that finds what it is asked for."""

    name = "search"

    async def run(self, call: Any) -> ToolResult:
        asked = call.arguments["query"]
        found = {"role": "tool", "content": f"found {asked}", "tool_call_id": "", "name": self.name}
        return ToolResult(messages=[found])  # type: ignore[list-item]


class Questions(Scripted):
    """The cookbook's own environment for tools, which logs no conversation but each step."""

    def __init__(self, replies: Sequence[dict[str, Any]], reward: float) -> None:
        super().__init__(replies, [0] * len(replies))

        async def grade(history: Any) -> tuple[float, dict[str, float]]:
            return reward, {"correct": reward}

        self.inner = AgentToolMessageEnv(
            tools=[Search()],  # type: ignore[list-item]
            initial_messages=[user("Where is it?")],
            max_turns=5,
            reward_fn=grade,
        )
        self.talk = self.inner.initial_messages  # type: ignore[assignment]

    async def initial_observation(self) -> Any:
        await self.inner.initial_observation()
        return await super().initial_observation()

    async def step(self, action: Any, *, extra: Any = None) -> types.StepResult:
        done = await self.inner.step(action.message)
        self.talk = done.next_messages
        return self.result(done.reward, done.episode_done, metrics=done.metrics, logs=done.logs)


@dataclass(frozen=True)
class Group(types.EnvGroupBuilder):
    name: str
    envs: tuple[Scripted, ...]
    finals: tuple[float, ...]

    async def make_envs(self) -> Sequence[types.Env]:
        return self.envs

    async def compute_group_rewards(self, trajectory_group: Any, env_group: Any) -> Any:
        return [
            (final, {"m": 1.0} if number == 0 else {}) for number, final in enumerate(self.finals)
        ]

    def logging_tags(self) -> list[str]:
        return [self.name]


def call(query: str) -> ToolCall:
    body = ToolCall.FunctionBody(name="search", arguments=json.dumps({"query": query}))
    return ToolCall(function=body, id="c1")


class Replies:
    """A policy that says what was written down for the world that asks it."""

    def __init__(self, env: Scripted) -> None:
        self.left = list(env.replies)

    async def __call__(self, prompt: Any, stop: Any) -> Sampled:
        return Sampled(self.left.pop(0))


GROUPS = (
    Group("sums", (Sums(0, "zero <b>", 1.0, 3), Sums(0, "nought & 1", -0.1, 0)), (0.0, 0.0)),
    Group(
        "maze",
        (
            Maze(["left", "right", "right"], [0.0, 0.0, 1.0], [2, 0, 0]),
            Maze(["left", "left"], [0.0, -1.0], [0, 6]),
        ),
        (0.5, 0.0),
    ),
    Group(
        "search",
        (
            Questions([said("I look.", tool_calls=[call("it")]), said("There.")], 1.0),
            Questions([said("", tool_calls=[call("a"), call("b")]), said("Nowhere.")], 0.0),
        ),
        (0.0, 0.0),
    ),
    Group("sums", (Sums(1, "not in the tree", 0.5, 0), Sums(1, "nor this", 0.5, 0)), (0.0, 0.0)),
)
"""The tree has the first three."""


class FromOwn(rollouts.RolloutStrategy):  # type: ignore[name-defined,misc]
    """`FailFast` with a policy of its own for each environment."""

    async def execute(self, env_group_builder: Any, policy: Any) -> Any:
        from tinker_cookbook.rl.rollout_strategy import RolloutResult

        envs = await env_group_builder.make_envs()
        runs = [rollouts.do_single_rollout(Replies(env), env) for env in envs]  # type: ignore[arg-type]
        return RolloutResult(trajectories=list(await asyncio.gather(*runs)), envs=envs, errors=[])


async def rolled_out() -> list[Any]:
    async def one(number: int, group: Group) -> Any:
        with logtree.optional_enable_logging(number < 3):
            return await rollouts.do_group_rollout(group, None, strategy=FromOwn())  # type: ignore[arg-type]

    return await asyncio.gather(*[one(number, group) for number, group in enumerate(GROUPS)])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "iteration_000004"
    folder.mkdir(parents=True, exist_ok=True)
    with logtree.init_trace("RL Iteration 4", path=None) as trace:
        groups = asyncio.run(rolled_out())
    records = rollout_logging.serialize_rollout_summaries(
        split="train",
        iteration=4,
        trajectory_groups_P=groups,
        taglist_P=[group.logging_tags() for group in GROUPS],
        sampling_client_steps_P=[3, 3, 3, 4],
    )
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "train_rollout_summaries.jsonl").write_text(lines)
    (folder / "train_logtree.json").write_text(json.dumps(trace.to_dict()))
