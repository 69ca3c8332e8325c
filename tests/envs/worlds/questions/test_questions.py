"""Questions: what counts as right, attempts and their rewards, files in the public shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError, TextEnv
from echoscope.envs.worlds.questions import math_worker
from echoscope.envs.worlds.questions.answers import chosen, number, plain, stated_number
from echoscope.envs.worlds.questions.made_problems import draw_problem
from echoscope.text.limited_child import LimitedChildren


def with_rows(folder: Path, env_id: str, *rows: object, **params: Any) -> TextEnv:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    world = registry.make(env_id, data=str(file), **params)
    world.reset(0, 0)
    return world


@pytest.mark.long
@given(st.text(max_size=200))
def test_any_text_can_be_an_answer(text: str) -> None:
    stated_number(text)
    number(text)
    plain(text)
    assert chosen(text, ["yes", "no"]) in (None, 0, 1)


def test_made_problems_have_whole_answers_and_no_odd_grammar() -> None:
    for seed in range(300):
        text, answer = draw_problem(np.random.default_rng(seed))
        assert answer > 0
        assert text.endswith("?")
        assert " 1 " not in text


def test_attempts_halve_the_reward(tmp_path: Path) -> None:
    row = {"question": "6 times 7?", "answer": "6*7 = <<6*7=42>>42\n#### 42"}
    world = with_rows(tmp_path, "static_qa", row, attempts=3)
    wrong, right = world.step("41"), world.step("It is 42.0 then.")
    assert (wrong.reward, wrong.terminated, wrong.observation.text) == (
        0.0,
        False,
        "Wrong. Try again.",
    )
    assert (right.reward, right.success, right.observation.text) == (0.5, True, "Right.")
    assert not world.step("42").is_valid


def test_the_last_attempt_tells_the_answer(tmp_path: Path) -> None:
    world = with_rows(tmp_path, "static_qa", {"question": "6 times 7?", "answer": "#### 42"})
    assert not world.step("no idea").is_valid
    result = world.step("6")
    assert (result.terminated, result.success, result.reward) == (True, False, 0.0)
    assert result.observation.text == "Wrong. The answer is 42."
    assert world.solve() is None


def test_choices(tmp_path: Path) -> None:
    row = {"question": "Which is prime?", "choices": ["4", "7", "9"], "answer": 1}
    world = with_rows(tmp_path, "static_qa", row, format="mmlu", attempts=9)
    assert world.reset(0, 0).text == "Which is prime?\nA. 4\nB. 7\nC. 9"
    assert world.solve() == ["B"]
    assert [world.step(text).is_valid for text in ("D", "8", "prime", "A", "4")] == [
        *[False] * 3,
        *[True] * 2,
    ]
    assert world.step("(b)").success


@pytest.mark.parametrize(
    ("answer", "action", "is_right"),
    [
        ("\\frac{1}{2}", "$\\boxed{0.5}$", True),
        ("x+1", "1 + x", True),
        ("1,200", "1200", True),
        ("12", "12.0", True),
        ("12", "13", False),
        ("\\sqrt{8}", "2\\sqrt{2}", True),
        ("(1, 2)", "(2, 1)", False),
    ],
)
def test_answers_are_compared_as_mathematics(
    tmp_path: Path, answer: str, action: str, is_right: bool
) -> None:
    row = {"query": "What is it?", "response": f"So it follows. The answer is: {answer}"}
    assert with_rows(tmp_path, "metamathqa", row).step(action).success is is_right


def test_text_equality_needs_no_worker(tmp_path: Path) -> None:
    row = {"query": "What is it?", "response": "The answer is: x + 1"}
    world = with_rows(tmp_path, "metamathqa", row, equality="text")
    assert not world.step("1 + x").success
    assert world.step(" X+1. ").reward == 0.5


HARD = ["9^{9^{9^9}}", "(x+1)^{100000}", "\\int_0^1 e^{x^{x^x}} dx", "100000!!", "\\sqrt{" * 40]


@pytest.mark.long
def test_what_never_ends_is_not_equal_and_costs_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = LimitedChildren(math_worker.__name__)
    monkeypatch.setattr(math_worker, "shared_children", lambda module, number: workers)
    math_worker.are_equal.cache_clear()
    [child] = workers._children
    try:
        assert math_worker.are_equal("0.5", "\\frac{1}{2}")
        first = child._process
        assert not any(math_worker.are_equal(text, "9") for text in HARD)
        assert math_worker.are_equal("x+1", "1+x")
        assert not math_worker.are_equal("x" * 301, "x" * 301)
        assert child._process is first
    finally:
        workers.close()
        math_worker.are_equal.cache_clear()
    assert child._process is None


@pytest.mark.parametrize(
    ("env_id", "row", "params", "message"),
    [
        ("static_qa", {"question": "?"}, {}, "row 1 has no 'answer': it has question"),
        ("static_qa", {"question": "?", "answer": "blue"}, {}, "no question of the format gsm8k"),
        (
            "static_qa",
            {"question": "?", "choices": ["a", "b"], "answer": 2},
            {"format": "mmlu"},
            "no question of the format mmlu",
        ),
        (
            "metamathqa",
            {"query": "?", "response": "42"},
            {},
            "holds no row with query and response",
        ),
    ],
)
def test_files_without_questions(
    tmp_path: Path, env_id: str, row: object, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvUnavailableError, match=message):
        with_rows(tmp_path, env_id, row, **params)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_is_installed", lambda name: False)
    command = "pip install -e '.[math]' in the folder of Echoscope"
    sentence = f"needs math-verify, which is not installed: {command}"
    assert registry.unavailable()["metamathqa"] == sentence
    with pytest.raises(EnvUnavailableError) as caught:
        registry.make("metamathqa")
    assert str(caught.value) == f"metamathqa {sentence}"


@pytest.mark.parametrize("env_id", ["static_qa", "metamathqa"])
def test_kinds_of_made_problems(env_id: str) -> None:
    world = registry.make(env_id, kinds=["ages"])
    assert all("years old" in world.reset(seed, 0).text for seed in range(20))
    with pytest.raises(EnvParamsError, match="must name different kinds of problems"):
        registry.make(env_id, kinds=[])
    with pytest.raises(EnvParamsError, match="kinds chooses among the made problems"):
        registry.make(env_id, kinds=["ages"], data="questions.jsonl")
