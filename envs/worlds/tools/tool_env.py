"""The base of worlds with tools: calls checked against their schema, results as tool messages.

A subclass declares its tools, answers calls and answers; what a reply may hold besides is dealt
with here. A call that cannot be played, whatever is wrong with it, is answered with a message that
says what is wrong, and leaves the world as it was.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match

from echoscope.text.tool_calls import (
    answer_action,
    call_action,
    is_tool_name,
    read_answer,
    read_call,
    read_problem,
)

from ...base import (
    EnvParamsError,
    Message,
    Observation,
    StepResult,
    Tool,
    shorten,
)
from ..task_env import C, TaskEnv


class ToolEnv(TaskEnv[C]):
    """A world that is acted on by tool calls and ended by an answer.

    Arguments that a tool's schema does not name are refused, unless it allows
    `additionalProperties`.

    Its actions are spelled as `text.tool_calls` says: `lookup {"item": "tea"}`, `answer 42`.
    """

    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """The tools of this world, the same in every episode."""

    @abstractmethod
    def call(self, name: str, arguments: Mapping[str, Any]) -> StepResult:
        """The result of a call that fits the tool's schema; `observation.text` is what it gives.

        A call that fits the schema but makes no sense (a division by zero) is answered in text,
        with `is_valid` as the world sees it. Never raises for what the arguments say.
        """

    @abstractmethod
    def answer(self, text: str) -> StepResult:
        """The result of an answer; usually the end of the episode."""

    def step(self, action: str) -> StepResult:
        call = read_call(action)
        if self._problem(action):
            # The answer to something that was not even a call comes from the user, not from a tool.
            name = "" if read_problem(action) is None else "error"
            return self._refused(action, name if call is None else call[0])
        if call is None:
            return self.answer(read_answer(action) or "")
        result = self.call(*call)
        if result.observation.messages:
            return result
        message = Message(role="tool", name=call[0], content=result.observation.text)
        return replace(result, observation=replace(result.observation, messages=(message,)))

    def invalid_notice(self, action: str) -> str:
        if not action.strip():
            return "Invalid reply: it has neither a tool call nor an answer."
        return f"Error: {self._problem(action) or 'this call is not possible now'}."

    def _problem(self, action: str) -> str:
        """Why an action cannot be played; empty if it can."""
        if self.is_over:
            return "the episode is over"
        broken = read_problem(action)
        if broken is not None:
            return shorten(broken, 300)
        call = read_call(action)
        if call is None:
            has_answer = read_answer(action) is not None
            return "" if has_answer else f'"{shorten(action)}" is neither a tool call nor an answer'
        name, arguments = call
        validator = self._validators.get(name)
        if validator is None:
            return f'there is no tool "{shorten(name)}", only {", ".join(self._validators)}'
        error = best_match(validator.iter_errors(arguments))
        if error is None:
            return ""
        path = "".join(f".{part}" for part in error.absolute_path)
        where = f" at {shorten(path[1:])}" if path else ""
        return f"the arguments of {name} do not fit{where}: {shorten(error.message, 160)}"

    def _refused(self, action: str, tool: str) -> StepResult:
        told = spoken(self.invalid_notice(action), self.observe().frame, tool=tool)
        return replace(self.result(0.0, told, is_valid=False, is_effective=False), info={})

    @cached_property
    def _validators(self) -> Mapping[str, Draft202012Validator]:
        return {tool.name: _validator(tool) for tool in self.tools()}


class CommandTools(ToolEnv[Any]):
    """The commands of another world as tools: a call is one command there."""

    inner: ClassVar[type[TaskEnv[Any]]]
    commands: ClassVar[Mapping[str, str]]
    """Tool -> the command that a call of it stands for, such as `search[{query}]`."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._world = self.inner(self._config)

    @abstractmethod
    def finish(self, text: str) -> StepResult:
        """What an answer does in the other world."""

    def begin(self, seed: int, noise_seed: int) -> None:
        self._world.begin(seed, noise_seed)

    def observe(self) -> Observation:
        first = self._world.observe()
        return spoken(first.text, first.frame)

    def call(self, name: str, arguments: Mapping[str, Any]) -> StepResult:
        return self._world.step(self.commands[name].format(**arguments))

    def answer(self, text: str) -> StepResult:
        result = self.finish(text)
        told = spoken(result.observation.text, result.observation.frame)
        return replace(result, observation=told)

    def solve(self) -> list[str] | None:
        plan = self._world.solve()
        return None if plan is None else [self._called(command) for command in plan]

    def guesses(self) -> tuple[str, ...]:
        return tuple(map(self._called, self._world.guesses()))

    def task_key(self) -> str | None:
        return self._world.task_key()

    @property
    def num_tasks(self) -> int | None:
        return self._world.num_tasks

    @property
    def is_over(self) -> bool:
        return self._world.is_over

    @property
    def is_solved(self) -> bool | None:
        return self._world.is_solved

    def info(self) -> Mapping[str, float]:
        return self._world.info()

    def _called(self, command: str) -> str:
        """The call that stands for a command; a command that no tool has is an answer."""
        word, _, content = command.removesuffix("]").partition("[")
        if word not in self.commands:
            return answer_action(content)
        [field] = next(tool.parameters["properties"] for tool in self.tools() if tool.name == word)
        return call_action(word, {field: content})


def tool_of(name: str, description: str, required: int, /, **properties: Any) -> Tool:
    """A tool whose arguments have these JSON Schemas; the first `required` of them must be given.

    >>> tool_of("buy", "Buy it.", 0).parameters
    {'type': 'object', 'properties': {}, 'required': []}
    """
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:required],
    }
    return Tool(name=name, description=description, parameters=parameters)


def spoken(text: str, frame: str | None, *, tool: str = "") -> Observation:
    """What a tool gives, or what the user says where `tool` is empty."""
    role: Any = "tool" if tool else "user"
    return Observation(
        text=text, frame=frame, messages=(Message(role=role, name=tool, content=text),)
    )


def _validator(tool: Tool) -> Draft202012Validator:
    if not is_tool_name(tool.name):
        raise EnvParamsError(
            f"a tool is named {shorten(tool.name)!r}, but a name has letters, digits, '_', '.' and "
            "'-', at most 64 of them, and is not 'answer'"
        )
    try:
        Draft202012Validator.check_schema(dict(tool.parameters))
    except SchemaError as error:
        raise EnvParamsError(
            f"the parameters of the tool {tool.name} are no JSON Schema: "
            f"{shorten(error.message, 160)}"
        ) from None
    # A misspelled optional argument would be ignored otherwise, and nobody would learn of it.
    return Draft202012Validator({"additionalProperties": False, **tool.parameters})
