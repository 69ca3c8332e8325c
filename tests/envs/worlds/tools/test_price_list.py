"""The world of tools: calls are checked, results come back as messages, the answer ends it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from echoscope.envs.base import EnvParamsError, Message, Observation, StepResult, Tool
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.turns.runner import TurnRunner
from echoscope.envs.turns.turn import TurnSettings
from echoscope.envs.worlds.tools.calculator import (
    CalculationError,
    calculate,
    number_text,
    read_number,
)
from echoscope.envs.worlds.tools.price_list import PriceList, PriceListConfig


def started(**params: object) -> PriceList:
    world = PriceList(PriceListConfig(**params))
    world.reset(seed=7, noise_seed=0)
    return world


@pytest.mark.parametrize("params", [{}, {"items": 1, "calculator": False}, {"items": 3}])
def test_it_keeps_the_contract(params: dict[str, object]) -> None:
    report = check_env("price_list", params)
    assert report.failed == {}
    assert "expert" in report.passed


def test_an_episode_by_hand() -> None:
    world = started()
    looks, total = [], 0
    for name, number in world._wanted.items():
        result = world.step(f'lookup {{"item": " {name.upper()} "}}')
        looks.append(result.observation.text)
        total += number * int(result.observation.text.split(": ")[1])
        assert result.observation.messages == (
            Message(role="tool", name="lookup", content=result.observation.text),
        )
        assert (result.reward, result.terminated, result.is_effective) == (0.0, False, True)
    assert len({*looks}) == 2
    answered = world.step(f"answer {total}")
    assert (answered.reward, answered.terminated, answered.success) == (1.0, True, True)
    assert world.solve() == []


def test_a_wrong_answer_ends_the_episode_and_says_what_was_right() -> None:
    world = started()
    result = world.step("answer 1")
    assert (result.reward, result.terminated, result.success) == (0.0, True, False)
    assert result.observation.text.startswith("Wrong: it costs ")
    assert world.solve() is None


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ('look {"item": "tea"}', 'Error: there is no tool "look", only lookup, calculate.'),
        ("lookup {}", "Error: the arguments of lookup do not fit: 'item' is a required property."),
        ('lookup {"item": 4}', "Error: the arguments of lookup do not fit at item: 4 is not of"),
        ('lookup {"item": "tea", "n": 1}', "Additional properties are not allowed"),
        ("! the call is not JSON", "Error: the call is not JSON."),
        ("tea", 'Error: "tea" is neither a tool call nor an answer.'),
    ],
)
def test_a_call_that_cannot_be_played_is_answered_with_the_reason(action, answer) -> None:
    world = started()
    result = world.step(action)
    assert answer in result.observation.text
    assert (result.is_valid, result.is_effective, result.terminated) == (False, False, False)
    (message,) = result.observation.messages
    assert message.role == ("user" if action == "tea" else "tool")


def test_a_turn_gives_every_result_once() -> None:
    runner = TurnRunner(PriceList, TurnSettings(max_turns=10, max_actions_per_turn=2))
    runner.reset(3, 0)
    good = runner.env.solve()[0]
    result = runner.step_turn([good, "! not JSON", good], is_well_formed=True)
    roles = [message.role for message in result.observation.messages]
    assert roles == ["tool", "tool", "user"]
    assert result.observation.messages[-1].content == "Only the first 2 actions counted."
    assert result.answers == tuple(m.content for m in result.observation.messages[:2])
    assert result.actions == (good,)
    assert not result.is_valid
    silent = runner.step_turn([], is_well_formed=False)
    assert [m.role for m in silent.observation.messages] == ["user"]
    assert "neither a tool call nor an answer" in silent.observation.text


class TestCalculator:
    @pytest.mark.parametrize(
        ("expression", "value"),
        [("2*(3+4)", 14), ("-1.5 + 2", Fraction(1, 2)), ("1/3*3", 1), (" 007 ", None), ("7", 7)],
    )
    def test_exact(self, expression, value) -> None:
        if value is None:
            with pytest.raises(CalculationError, match="not an expression"):
                calculate(expression)
        else:
            assert calculate(expression) == value

    @pytest.mark.parametrize(
        "expression",
        ["9**9**9", "1/0", "__import__('os')", "1e9", "(" * 40, "9" * 81, "", "1//2", "0x10",
         "1 2", "\u0663", "1_0", "*1", "-" * 79 + "x"],
    )  # fmt: skip
    def test_anything_else_is_one_sentence(self, expression: str) -> None:
        with pytest.raises(CalculationError):
            calculate(expression)

    def test_numbers_as_people_write_them(self) -> None:
        assert [number_text(Fraction(n, 3)) for n in (6, -1, 1)] == ["2", "-0.333333", "0.333333"]
        assert [read_number(t) for t in ("26", " 26.0", "-1", "2 6", "", "nan", "\u0661")] == [
            26, 26, -1, None, None, None, None
        ]  # fmt: skip


class BadTools(PriceList):
    """Declares what it is given."""

    declared: tuple[Tool, ...] = ()

    def tools(self) -> tuple[Tool, ...]:
        return self.declared


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (Tool(name="answer", description="", parameters={}), "is not 'answer'"),
        (Tool(name="f", description="", parameters={"type": "no"}), "no JSON Schema"),
    ],
)
def test_a_bad_declaration_is_one_sentence(tool: Tool, reason: str) -> None:
    world = BadTools()
    world.declared = (tool,)
    world.reset(0, 0)
    with pytest.raises(EnvParamsError, match=reason):
        world.step("f {}")


class Talk(PriceList):
    """Opens with messages of the roles it is given."""

    roles: tuple[str, ...] = ()

    def reset(self, seed: int, noise_seed: int) -> Observation:
        super().reset(seed, noise_seed)
        messages = tuple(Message(role=role, content=role) for role in self.roles)
        return Observation(text="hello", messages=messages)

    def answer(self, text: str) -> StepResult:
        return super().answer(text)


@pytest.mark.parametrize(
    ("roles", "is_good"),
    [
        (("system", "user"), True),
        (("user", "assistant", "user"), True),
        (("system", "user", "assistant", "user"), True),
        (("system",), False),
        (("user", "user"), False),
        (("user", "system", "user"), False),
        (("user", "assistant"), False),
        (("tool",), False),
    ],
)
def test_an_episode_may_open_with_a_chat(roles, is_good) -> None:
    def build() -> Talk:
        world = Talk()
        world.roles = roles
        return world

    runner = TurnRunner(build, TurnSettings(max_turns=10, max_actions_per_turn=1))
    error = runner.reset(0, 0).error
    assert (error is None) == is_good
    assert is_good or "has the roles" in error
