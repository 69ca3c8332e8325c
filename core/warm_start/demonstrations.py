"""Episodes for a warm start: a scripted expert who makes deliberate mistakes, told in words.

At each turn a coin decides between careful thinking (the expert's action, with its reason) and
careless thinking (a random action, admitted to be a guess). A few turns carry a reply that the
world does not understand; it shows what the answer to such a reply looks like and is never learned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.envs.base import Message, Observation, Tool
from echoscope.envs.pool import turns_of
from echoscope.envs.reserving import MAX_DRAWS, gave_up, may_play, variety_of
from echoscope.envs.settings import EnvGroup
from echoscope.envs.streams import demonstration_seeds, generator
from echoscope.envs.turns.runner import TurnRunner
from echoscope.envs.turns.turn import Opening
from echoscope.store.records import FloatArray, IntArray
from echoscope.text.amounts import bounds
from echoscope.text.replies import THINK_CLOSE, THINK_OPEN
from echoscope.text.tool_calls import (
    call_action,
    is_tool_name,
    read_answer,
    read_call,
    spell_call,
)
from echoscope.text.user_code import UserCodeError, call

from ..config.context import ContextConfig
from ..rollout.chat import ChatFormat
from ..rollout.context import Conversation, turn_messages
from .narrators import Narrator, NarratorOf, plain_narrator


class SftError(ValueError):
    """The data, the model or the state of a warm start cannot be used; one line says why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One episode as tokens. `weights[t]` is the loss weight of predicting `tokens[t]`."""

    tokens: IntArray  # (L,)
    weights: FloatArray  # (L,)


_ROLE_LETTERS: Mapping[str, str] = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}
_DIALOGUE = re.compile("s?ua(?:(?:u|t+u?)a)*")
_NONSENSE = ("jump", "wait", "north", "yes", "12")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoMessage:
    """One message of a chat. `train` is False on a response that is shown but not learned.

    `calls` are the tools that a response calls after its content, by name, with their arguments;
    how a call is spelled is the model's matter. `name` is the tool that a result comes from.
    """

    role: str
    content: str
    train: bool = True
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One episode as a chat: an optional system message, then user and assistant in turns.

    In place of a later user message there may be results of tools, and a user message after them.
    `instructions` are the rules that the first user message begins with, followed by an empty line;
    a rollout encodes them apart from the observation, so training has to know where they end.
    """

    env: str
    params: Mapping[str, Any]
    env_seed: int
    noise_seed: int
    messages: tuple[DemoMessage, ...]
    success: bool | None
    tools: tuple[Tool, ...] = ()
    instructions: str = ""

    def __post_init__(self) -> None:
        roles = [message.role for message in self.messages]
        letters = "".join(_ROLE_LETTERS.get(role, "?") for role in roles)
        if not _DIALOGUE.fullmatch(letters):
            raise SftError(
                f"the roles are {roles}, but must be user and assistant in turns, ending with "
                "assistant, after at most one system message; results of tools may stand in place "
                "of a later user message"
            )
        first = next(message for message in self.messages if message.role == "user")
        if self.instructions and not first.content.startswith(f"{self.instructions}\n\n"):
            raise SftError(
                "the first user message must begin with the instructions and an empty line, or "
                "leave out the key instructions"
            )

    @property
    def exchanges(self) -> list[tuple[tuple[DemoMessage, ...], DemoMessage]]:
        """(what a response answers, the response), in order, without the system message."""
        out = []
        asked: list[DemoMessage] = []
        for message in self.messages[self.messages[0].role == "system" :]:
            if message.role == "assistant":
                out.append((tuple(asked), message))
                asked = []
            else:
                asked.append(message)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One environment to demonstrate, how many episodes of it, and how.

    `careful`: probability of careful thinking per turn. `nonsense`: probability per turn of a reply
    that the world does not understand.
    """

    group: EnvGroup
    context: ContextConfig
    episodes: int
    careful: float
    nonsense: float = 0.02

    def __post_init__(self) -> None:
        for name, value in (("careful", self.careful), ("nonsense", self.nonsense)):
            if not 0 <= value <= 1:
                raise SftError(f"{name} is {value}, but must be {bounds(0, 1)}")


def demonstrate(
    lesson: Lesson,
    *,
    seed: int,
    all_tasks: bool = False,
    narrator_of: NarratorOf = plain_narrator,
) -> Iterator[Demonstration]:
    """Episodes of one environment, each with a task of its own. The same seed gives the same ones.

    Args:
        all_tasks: also play tasks that are reserved for evaluation.
        narrator_of: writes the reasoning of an environment.

    Raises:
        EnvError: an unknown environment or parameter.
        SftError: the environment has no scripted expert.
    """
    group, world = lesson.group, turns_of(lesson.group)
    is_reserving = not all_tasks and variety_of(world).is_enough
    narrator = narrator_of(group.env)
    try:
        for episode in range(lesson.episodes):
            rng = generator(seed, group.name, episode)
            yield _episode(lesson, world, rng, narrator, is_reserving=is_reserving)
    finally:
        world.close()


def _episode(
    lesson: Lesson,
    world: TurnRunner,
    rng: np.random.Generator,
    narrator: Narrator,
    *,
    is_reserving: bool,
) -> Demonstration:
    group, context = lesson.group, lesson.context
    env_seed, noise_seed, opening = _start(group, world, rng, is_reserving=is_reserving)
    observation = opening.observation
    env = world.env
    if env.solve() is None:
        raise SftError(f"{group.env} has no scripted expert, or one that fails on {group.params}")
    has_tools = bool(env.tools())
    messages = [DemoMessage(role="system", content=context.system)] if context.system else []
    instructions = opening.instructions if context.instructions else ""
    head = f"{instructions}\n\n" if instructions else ""

    def shown(seen: Observation, last_reward: float | None) -> list[DemoMessage]:
        messages = turn_messages(
            context, seen, last_reward, has_tools=has_tools, is_one_action=group.is_one_action
        )
        return [DemoMessage(role=m.role, content=m.content, name=m.name) for m in messages]

    messages_now = shown(observation, None)
    messages_now[-1] = replace(messages_now[-1], content=head + messages_now[-1].content)
    result = None
    while result is None or result.stop_reason is None:
        messages += messages_now
        is_nonsense = bool(rng.random() < lesson.nonsense)
        reasoning, action = (
            _nonsense(narrator, rng, has_tools=has_tools)
            if is_nonsense
            else _think(narrator, observation.text, env.solve(), env.guesses(), lesson.careful, rng)
        )
        messages.append(_reply(context, reasoning, action, train=not is_nonsense))
        result = world.step_turn([action], is_well_formed=True)
        if result.error is not None:
            raise SftError(f"{group.env} failed at task {env_seed}: {result.error}")
        observation = result.observation
        messages_now = shown(observation, result.reward)
    return Demonstration(
        env=group.env,
        params=group.params,
        env_seed=env_seed,
        noise_seed=noise_seed,
        messages=tuple(messages),
        success=result.success,
        tools=env.tools(),
        instructions=instructions,
    )


def _reply(context: ContextConfig, reasoning: str, action: str, *, train: bool) -> DemoMessage:
    """A response that plays an action: a call of a tool, or an answer."""
    call = read_call(action)
    answer = read_answer(action) if call is None else None
    text = "" if call is not None else f"<answer>{answer or action}</answer>"
    if context.reasoning:
        text = f"{THINK_OPEN}{reasoning}{THINK_CLOSE}{text}"
    return DemoMessage(
        role="assistant", content=text, train=train, calls=() if call is None else (call,)
    )


def _start(
    group: EnvGroup, world: TurnRunner, rng: np.random.Generator, *, is_reserving: bool
) -> tuple[int, int, Opening]:
    """(env_seed, noise_seed, how it begins) of a task that is not reserved for evaluation."""
    for _ in range(MAX_DRAWS):
        env_seed, noise_seed = demonstration_seeds(rng)
        opening = world.reset(env_seed, noise_seed)
        key = opening.task_key
        if key is None or not is_reserving or may_play("train", key):
            return env_seed, noise_seed, opening
    raise gave_up(group.name, "train")


def _think(
    narrator: Narrator,
    observation: str,
    plan: Sequence[str] | None,
    legal: Sequence[str],
    careful: float,
    rng: np.random.Generator,
) -> tuple[str, str]:
    is_careful = bool(rng.random() < careful)
    if is_careful and plan:
        name = type(narrator).__name__
        reply = call("narrator", name, narrator.careful, observation, plan, rng)
        match reply:
            case (str(reasoning), str(action)):
                return reasoning, action
        raise UserCodeError(f"{name}.careful returned {reply!r:.100}, but must return two texts")
    if not legal:
        raise SftError("the environment lists no actions to guess from: give it `guesses()`")
    action = legal[int(rng.integers(len(legal)))]
    return _careless(narrator, action, rng), action


def _careless(narrator: Narrator, action: str, rng: np.random.Generator) -> str:
    return str(call("narrator", type(narrator).__name__, narrator.careless, action, rng))


def _nonsense(narrator: Narrator, rng: np.random.Generator, *, has_tools: bool) -> tuple[str, str]:
    word = _NONSENSE[int(rng.integers(len(_NONSENSE)))]
    action = f"no_{word} {{}}" if has_tools else word  # a call of a tool that is not there
    return _careless(narrator, action, rng), action


def encode(
    demonstration: Demonstration, chat: ChatFormat, *, force_think: bool, prompt_weight: float
) -> Row:
    """The episode as one row, token for token as a rollout would have recorded it.

    With `force_think` the opening `<think>` belongs to the prompt, as in training.
    """
    messages = demonstration.messages
    plain = ContextConfig(
        system=messages[0].content if messages[0].role == "system" else "",
        instructions=True,
        format_hint=False,
        show_reward=False,
        force_think=force_think,
        max_prompt_tokens=10**9,
    )
    instructions = demonstration.instructions
    conversation = Conversation(chat, plain, instructions, tools=demonstration.tools)
    spans: list[tuple[int, int, float]] = []
    tokens: list[int] = []
    for turn, (asked, reply) in enumerate(demonstration.exchanges):
        begins_with = f"{instructions}\n\n" if turn == 0 and instructions else ""
        prompt = conversation.prompt(_observation(asked, begins_with)).tokens
        content = reply.content
        if chat.forces_think(force_think):
            content = content.removeprefix(THINK_OPEN)
        calls = [
            spell_call(name, arguments, conversation.tool_format) for name, arguments in reply.calls
        ]
        response = chat.encode_response(content + "\n".join(calls))
        conversation.respond(response)
        tokens = [*prompt.tolist(), *response.tolist()]
        spans.append((len(prompt), len(tokens), 1.0 if reply.train else 0.0))
    weights = np.full(len(tokens), prompt_weight, np.float32)
    for start, end, weight in spans:
        weights[start:end] = weight
    return Row(tokens=np.array(tokens, np.int32), weights=weights)


def _observation(asked: Sequence[DemoMessage], begins_with: str) -> Observation:
    """What was shown, without the instructions that it begins with."""
    text = "\n".join(message.content for message in asked).removeprefix(begins_with)
    messages = tuple(
        Message(role="tool" if m.role == "tool" else "user", content=m.content, name=m.name)
        for m in asked
    )
    return Observation(text=text, messages=messages if messages[0].role == "tool" else ())


def training_text(demonstrations: Iterable[Demonstration]) -> Iterator[str]:
    """Every message, to train a tokenizer on, with its calls as a fresh model writes them."""
    for demonstration in demonstrations:
        for message in demonstration.messages:
            yield message.content
            for name, arguments in message.calls:
                yield spell_call(name, arguments, "hermes")


def write_jsonl(demonstrations: Iterable[Demonstration], path: Path) -> int:
    """One JSON object a line; returns how many. The file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    number = 0
    with partial.open("w", encoding="utf-8") as file:
        for demonstration in demonstrations:
            file.write(json.dumps(_to_json(demonstration), ensure_ascii=True) + "\n")
            number += 1
    partial.replace(path)
    return number


def read_jsonl(path: Path) -> Iterator[Demonstration]:
    """The demonstrations of a file.

    Raises:
        SftError: the file cannot be read, or a line of it is not a demonstration; names the line.
    """
    if not path.is_file():
        raise SftError(f"cannot read {path}: it is no file")
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _from_json(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise SftError(f"cannot read {path}: {' '.join(str(error).split())}") from None


def _to_json(demonstration: Demonstration) -> dict[str, Any]:
    row = {
        "env": demonstration.env,
        "params": dict(demonstration.params),
        "env_seed": demonstration.env_seed,
        "noise_seed": demonstration.noise_seed,
        "messages": [_message_json(message) for message in demonstration.messages],
        "success": demonstration.success,
    }
    if demonstration.instructions:
        row["instructions"] = demonstration.instructions
    return (
        row | {"tools": [tool.as_json() for tool in demonstration.tools]}
        if demonstration.tools
        else row
    )


def _message_json(message: DemoMessage) -> dict[str, Any]:
    """A message in OpenAI's form, and whether it is learned."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        row["name"] = message.name
    if message.calls:
        row["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
            for name, arguments in message.calls
        ]
    return row if message.train else row | {"train": False}


def _from_json(line: str, where: str) -> Demonstration:
    try:
        row = json.loads(line)
        return Demonstration(
            env=str(row.get("env", "")),
            params=dict(row.get("params", {})),
            env_seed=int(row.get("env_seed", 0)),
            noise_seed=int(row.get("noise_seed", 0)),
            messages=tuple(_message(message) for message in row["messages"]),
            success=row.get("success"),
            tools=tuple(_tool(tool) for tool in row.get("tools", ())),
            instructions=str(row.get("instructions", "")),
        )
    except KeyError as error:
        raise SftError(f"{where}: the key {error} is missing") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SftError(f"{where} is not a demonstration: {reason}") from None


def _message(row: Mapping[str, Any]) -> DemoMessage:
    role, content, train = row["role"], row["content"], row.get("train", True)
    if not isinstance(role, str) or not isinstance(content, str) or not isinstance(train, bool):
        raise ValueError("a message has the texts role and content, and perhaps a boolean train")
    calls = tuple(_call(call["function"]) for call in row.get("tool_calls") or ())
    if calls and role != "assistant":
        raise ValueError(f"a message of the role {role} calls a tool; only assistant may")
    return DemoMessage(
        role=role, content=content, train=train, calls=calls, name=str(row.get("name", ""))
    )


def _call(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    arguments = row["arguments"]
    if isinstance(arguments, str):  # as OpenAI's API has them
        arguments = json.loads(arguments)
    name = str(row["name"])
    if not isinstance(arguments, dict) or read_call(call_action(name, arguments)) is None:
        raise ValueError(f"the call of {name!r} has no JSON object as its arguments")
    return name, arguments


def _tool(row: Mapping[str, Any]) -> Tool:
    function = row["function"]
    parameters = function.get("parameters", {})
    if not isinstance(parameters, dict) or not is_tool_name(str(function["name"])):
        raise ValueError("a tool has a name, and a JSON Schema as its parameters")
    return Tool(
        name=str(function["name"]),
        description=str(function.get("description", "")),
        parameters=parameters,
    )
