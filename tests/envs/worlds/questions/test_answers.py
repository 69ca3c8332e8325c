"""Which answer a reply states, and which number it is: a table of pairs worked by hand."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from echoscope.envs import registry
from echoscope.envs.base import StepResult
from echoscope.envs.worlds.questions.answers import number, stated

PLACES = ["Rome", "Paris", "London", "Paris and London"]
"""The right one is B."""


def answered(folder: Path, env_id: str, row: dict[str, object], reply: str, **params: str) -> str:
    file = folder / "rows.jsonl"
    file.write_text(json.dumps(row))
    world = registry.make(env_id, data=str(file), attempts=2, **params)
    world.reset(0, 0)
    return verdict(world.step(reply))


def verdict(result: StepResult) -> str:
    if not result.is_valid:
        return "none"
    return "right" if result.success else "wrong"


CHOICES = [
    ("B", "right"),
    ("b", "right"),
    ("(b)", "right"),
    ("B.", "right"),
    ("B)", "right"),
    ("[B]", "right"),
    ("B. Paris", "right"),
    ("B) Paris", "right"),
    ("B: Paris.", "right"),
    ("(B) Paris", "right"),
    ("Paris", "right"),
    ("paris.", "right"),
    ("Paris (B)", "right"),
    ("Answer: B", "right"),
    ("Answer: B. Paris", "right"),
    ("**Answer:** B", "right"),
    ("The answer is B", "right"),
    ("The answer is: (B).", "right"),
    ("The correct answer is **B**.", "right"),
    ("The answer is Paris.", "right"),
    ("The answer is\nB", "right"),
    ("**B**", "right"),
    ("`B`", "right"),
    (r"\boxed{B}", "right"),
    (r"$\boxed{\text{B}}$", "right"),
    (r"So it is \boxed{\textbf{(B) }\text{Paris}}.", "right"),
    ("B, because the others are no capitals of France.", "right"),
    # Rome has the letter A; the last mark of a reply counts.
    ("A", "wrong"),
    ("A. Rome", "wrong"),
    ("The answer is B. No: the answer is A.", "wrong"),
    ("Paris and London", "wrong"),
    # Two choices at once, a letter that is none, words without a choice.
    ("B. London", "none"),
    ("A or B", "none"),
    ("A, B", "none"),
    ("E", "none"),
    ("A good answer would be Paris or London", "none"),
    ("Par", "none"),
]


@pytest.mark.parametrize(("reply", "expected"), CHOICES)
def test_which_choice_a_reply_names(tmp_path: Path, reply: str, expected: str) -> None:
    row = {"question": "Capital of France?", "choices": PLACES, "answer": 1}
    assert answered(tmp_path, "static_qa", row, reply, format="mmlu") == expected


NUMBERS = [
    # (right number, reply, verdict)
    ("42", "42", "right"),
    ("42", "42.0", "right"),
    ("42", "It is 42 then.", "right"),
    ("42", "The answer is: 42.", "right"),
    ("42", "#### 42", "right"),
    ("42", "6 * 7 = 42", "right"),
    ("42", "The answer is 6 * 7 = 42 for 3 days.", "right"),
    ("42", "The answer is 42. I checked it 3 times.", "right"),
    ("42", "**42**", "right"),
    ("42", r"We get \boxed{42} in 3 days.", "right"),
    ("7", r"\$7", "right"),
    ("7", "$7.00", "right"),
    ("50", r"50\%", "right"),
    ("1200", "1,200", "right"),
    ("1200", "1,200.00 euros", "right"),
    ("1200", r"1{,}200", "right"),
    ("1234567", "1,234,567", "right"),
    ("1000", "1e3", "right"),
    ("1000", "10^3", "right"),
    ("3000", r"3 \times 10^3", "right"),
    ("25", "5^2", "right"),
    ("25", "5**2", "right"),
    ("25", "5^{2}", "right"),
    ("3.5", "3 1/2", "right"),
    ("3.5", r"3\frac{1}{2}", "right"),
    ("0.5", r"\frac{1}{2}", "right"),
    ("0.5", r"\dfrac12", "right"),
    ("0.5", "1 / 2", "right"),
    ("0.5", ".5", "right"),
    ("-3", "\u22123", "right"),
    ("-3", "x = -3", "right"),
    ("-0.5", r"-\frac{1}{2}", "right"),
    ("3", "10-3", "right"),  # the last number of the text: nothing is calculated for the policy
    ("2", r"\frac{1}{2}", "wrong"),
    ("2", "5^2", "wrong"),
    ("9", "9^9^9", "wrong"),
    ("7", "5=7", "wrong"),
    ("5", "5=7", "wrong"),
    ("123", "1,2,3", "wrong"),
    ("3", "1,2,3", "wrong"),
    ("3", "1, 2, 3", "wrong"),
    ("3", "3/0", "wrong"),
    ("16", r"\sqrt{16}", "wrong"),
    ("-3", "3", "wrong"),
    ("1", "forty-two", "none"),
    ("4", "\u0664", "none"),
]


@pytest.mark.parametrize(("right_answer", "reply", "expected"), NUMBERS)
def test_which_number_a_reply_states(
    tmp_path: Path, right_answer: str, reply: str, expected: str
) -> None:
    row = {"question": "How many?", "answer": f"#### {right_answer}"}
    assert answered(tmp_path, "static_qa", row, reply) == expected


MATHEMATICS = [
    ("42", "42", "right"),
    ("42", "The answer is: 42", "right"),
    ("42", "The answer is 42.", "right"),
    ("42", "#### 42", "right"),
    ("42", "Answer: 42", "right"),
    ("42", "**42**", "right"),
    ("42", "So 42", "right"),
    ("42", "Therefore, 42.", "right"),
    ("42", r"\boxed{42}", "right"),
    ("42", "$42$", "right"),
    ("42", r"\(42\)", "right"),
    ("42", r"\[ \boxed{42} \]", "right"),
    ("7", r"\$7", "right"),
    ("7", "x = 7", "right"),
    ("1000", "1e3", "right"),
    ("3.5", "3 1/2", "right"),
    (r"\frac{7}{2}", "3 1/2", "right"),
    ("-3", "\u22123", "right"),
    ("25", "5^2", "right"),
    (r"\frac{1}{2}", "0.5", "right"),
    ("0.5", r"\boxed{\frac{1}{2}}", "right"),
    ("1,200", "1200", "right"),
    ("x+1", "The answer is 1 + x.", "right"),
    ("x+1", r"\boxed{x + 1}", "right"),
    (r"\sqrt{8}", r"2\sqrt{2}", "right"),
    ("1,2,3", "3,2,1", "right"),  # a set, for math-verify
    ("15.5", "31/2", "right"),
    ("7", "5=7", "wrong"),
    ("5", "2+2=5", "wrong"),
    ("123", "1,2,3", "wrong"),
    ("7", "5 or 7", "wrong"),
    ("7", "5, 7", "wrong"),
    ("31/2", "3 1/2", "wrong"),
    ("2", r"\frac{1}{2}", "wrong"),
    ("42", r"\boxed{42} or \boxed{43}", "wrong"),  # the last box counts
    ("42", "I do not know", "wrong"),
    ("(1, 2)", "(2, 1)", "wrong"),
]


@pytest.mark.parametrize(("right_answer", "reply", "expected"), MATHEMATICS)
def test_which_mathematics_a_reply_states(
    tmp_path: Path, right_answer: str, reply: str, expected: str
) -> None:
    row = {"query": "What is it?", "response": f"The answer is: {right_answer}"}
    assert answered(tmp_path, "metamathqa", row, reply) == expected


def test_the_table_is_long_enough() -> None:
    assert len(CHOICES) + len(NUMBERS) + len(MATHEMATICS) >= 75


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3 1/2", Fraction(-7, 2)),
        ("2^{-2}", Fraction(1, 4)),
        ("1.5e-3", Fraction(3, 2000)),
        ("2^999999999", None),
        ("1e999999999", None),
        ("1.000,50", None),
        ("1.2.3", None),
        ("42 apples", None),
        ("", None),
    ],
)
def test_a_text_that_is_one_number(text: str, value: Fraction | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["\\boxed{" * 50_000, "**" * 100_000, "answer is " * 50_000])
def test_a_hostile_reply_is_read_in_bounded_time(text: str) -> None:
    assert len(stated(text)) <= 4_000
