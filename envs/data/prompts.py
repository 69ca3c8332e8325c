"""The first prompts of a world as a data set, in the columns that TRL and verl read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ..base import EnvParamsError, EnvUnavailableError, Observation
from ..pool import task_seed, transition_seed, turns_of
from ..reserving import MAX_DRAWS, few_tasks, gave_up, may_play, variety_of
from ..settings import EnvGroup
from ..turns.wrappers import runner_of

MAX_PROMPTS = 1_000_000
"""In one file: they are held in memory until the last one is there."""
Split = Literal["train", "eval"]
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_TASK = [
    ("env", pa.string()),
    ("params", pa.string()),
    ("env_seed", pa.int64()),
    ("noise_seed", pa.int64()),
    ("task_key", pa.string()),
]
SCHEMA = pa.schema(
    [
        ("prompt", pa.list_(_MESSAGE)),
        ("data_source", pa.string()),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [("index", pa.int64()), ("split", pa.string()), *_TASK, ("tools", pa.string())]
            ),
        ),
        *_TASK,
    ]
)
"""`params`, `tools` and `ground_truth` are JSON as text: columns have one type for all worlds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task: what the policy reads first, and the seeds that play it."""

    messages: tuple[tuple[str, str], ...]
    """Role and content."""
    env: str
    params: str
    """JSON."""
    env_seed: int
    noise_seed: int
    task_key: str
    index: int
    split: Split
    tools: str
    """JSON: a list as the OpenAI API takes it."""

    def row(self) -> dict[str, Any]:
        """The prompt in the columns of `SCHEMA`."""
        task = {
            "env": self.env,
            "params": self.params,
            "env_seed": self.env_seed,
            "noise_seed": self.noise_seed,
            "task_key": self.task_key,
        }
        return {
            "prompt": [{"role": role, "content": content} for role, content in self.messages],
            "data_source": f"echoscope/{self.env}",
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(task)},
            "extra_info": {"index": self.index, "split": self.split, **task, "tools": self.tools},
            **task,
        }


def few_tasks_note(group: EnvGroup) -> str:
    """One line if the world has too few tasks to reserve any for evaluation; else empty."""
    stack = turns_of(group)
    try:
        return few_tasks([(group.name, variety_of(stack))])
    finally:
        stack.close()


def draw_prompts(
    group: EnvGroup,
    number: int,
    *,
    split: Split,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> Iterator[Prompt]:
    """The prompts of the first `number` tasks of a split.

    Evaluation's are the tasks that a run with this seed evaluates on, in its order; the tasks of a
    training step have seeds of their own. Reserved tasks are kept apart as in a run.

    Raises:
        EnvError: the world cannot be built, cannot start, or draws no task of this split.
    """
    if not 1 <= number <= MAX_PROMPTS:
        raise EnvParamsError(f"episodes is {number}, but must lie between 1 and {MAX_PROMPTS}")
    stack = turns_of(group)
    try:
        world = runner_of(stack)
        is_reserving = variety_of(stack).is_enough
        params = json.dumps(dict(group.params), sort_keys=True)
        tools = json.dumps([tool.as_json() for tool in world.tools])
        for index in range(number):
            noise_seed = transition_seed(seed, split, 0, index, 0)
            for draw in range(MAX_DRAWS):
                env_seed = task_seed(seed, split, 0, index, draw)
                first = stack.reset(env_seed, noise_seed)
                key = world.task_key
                if key is None:
                    raise EnvUnavailableError(f"{group.env} cannot start: {world.error}")
                if not is_reserving or may_play(split, key):
                    break
            else:
                raise gave_up(group.name, split)
            yield Prompt(
                messages=_messages(stack.instructions(), first),
                env=group.env,
                params=params,
                env_seed=env_seed,
                noise_seed=noise_seed,
                task_key=key,
                index=index,
                split=split,
                tools=tools,
            )
            report(index + 1, number)
    finally:
        stack.close()


def _messages(instructions: str, first: Observation) -> tuple[tuple[str, str], ...]:
    """The first prompt, with the instructions in front of the first message of the user."""
    chat = [(message.role, message.content) for message in first.messages] or [("user", first.text)]
    place = next(place for place, (role, _) in enumerate(chat) if role == "user")
    role, content = chat[place]
    return (*chat[:place], (role, f"{instructions}\n\n{content}"), *chat[place + 1 :])


def as_parquet(prompts: Sequence[Prompt]) -> bytes:
    """The prompts as a Parquet file."""
    held = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([prompt.row() for prompt in prompts], SCHEMA), held)
    return held.getvalue()


def as_json_lines(prompts: Sequence[Prompt]) -> bytes:
    """The prompts as JSON lines."""
    rows = (json.dumps(prompt.row(), ensure_ascii=False) for prompt in prompts)
    return "".join(f"{row}\n" for row in rows).encode()


WRITERS: dict[str, Callable[[Sequence[Prompt]], bytes]] = {
    ".parquet": as_parquet,
    ".jsonl": as_json_lines,
}
