"""What is asked, and when an answer of Lean is a proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echoscope.envs.worlds.proofs.statements import Theorem
from echoscope.envs.worlds.proofs.verdicts import LeanAnswer, LeanMessage, body_of, read_answer

THEOREM = Theorem(name="t", statement="theorem t (p : Prop)\n  (h : p) : p")
TACTICS = ("have g : p := h", "cases x with\n| a => exact g")
CLEAN = "'t' depends on axioms: [propext, Classical.choice,\n Quot.sound]"
NONE = "'t' does not depend on any axioms"


def info(text: str, line: int = 8) -> LeanMessage:
    return LeanMessage(severity="info", line=line, text=text)


def error(text: str, line: int) -> LeanMessage:
    return LeanMessage(severity="error", line=line, text=text)


def status(*messages: LeanMessage, has_sorry: bool = False) -> str:
    return read_answer(THEOREM, TACTICS, LeanAnswer(messages=messages, has_sorry=has_sorry)).status


def test_the_tactics_stand_between_brackets_after_the_statement() -> None:
    assert body_of(THEOREM, TACTICS) == (
        "theorem t (p : Prop)\n"
        "  (h : p) : p := (by\n"
        "  have g : p := h\n"
        "  cases x with\n"
        "  | a => exact g\n"
        "  )\n"
        "\n"
        "#print axioms t\n"
    )
    assert "(by\n  skip\n  )" in body_of(THEOREM, ())


@pytest.mark.parametrize("report", [NONE, CLEAN, "'Foo.t' depends on axioms: [propext]"])
def test_a_proof_rests_on_leans_own_axioms(report: str) -> None:
    assert status(info(report)) == "proved"
    linter = LeanMessage(severity="warning", line=3, text="unused variable")
    assert status(linter, info(report), info("Try this: exact g", 4)) == "proved"


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (info("'t' depends on axioms: [sorryAx]"),),
        (info("'t' depends on axioms: [propext, cheat]"),),
        (info("'t' depends on axioms: [Lean.ofReduceBool]"),),
        (info("'t' depends on axioms: [t._native.native_decide.ax_1_1]"),),
        (info("'other' does not depend on any axioms"),),
        (info(NONE, 4), info("'t' depends on axioms: [sorryAx]")),
        (info(NONE, 4), info(NONE)),
        (info(NONE), info("more", 9)),
        (info(f"{NONE} at all"),),
        (LeanMessage(severity="warning", line=8, text=NONE),),
        (LeanMessage(severity="warning", line=1, text="declaration uses 'sorry'"), info(NONE)),
        (LeanMessage(severity="warning", line=1, text="declaration uses `sorry`"), info(NONE)),
        (error("unknown identifier", 3), info(NONE)),
    ],
)
def test_nothing_else_is_one(messages: tuple[LeanMessage, ...]) -> None:
    assert status(*messages) == "rejected"


def test_a_sorry_that_the_repl_saw_is_none() -> None:
    assert status(info(NONE), has_sorry=True) == "rejected"


def test_open_goals_of_the_whole_proof_leave_it_open() -> None:
    answer = LeanAnswer(
        messages=(error("unsolved goals\ng : p\n⊢ p", 2), info("'t' depends on axioms: [sorryAx]"))
    )
    verdict = read_answer(THEOREM, TACTICS, answer)
    assert (verdict.status, verdict.text) == ("open", "g : p\n⊢ p")
    # A server that counts lines from the end of the header says the same three lines earlier.
    shifted = tuple(replace(each, line=each.line - 3) for each in answer.messages)
    assert read_answer(THEOREM, TACTICS, LeanAnswer(messages=shifted)) == verdict


def test_an_unproved_step_inside_is_rejected() -> None:
    """`have h : False := by skip` leaves an error of its own; what follows it is worth nothing."""
    inner = error("unsolved goals\n⊢ False", 3)
    assert status(inner, info("'t' depends on axioms: [sorryAx]")) == "rejected"
    assert status(inner, error("unsolved goals\n⊢ p", 2)) == "rejected"


def test_long_and_odd_messages_are_shown_short_and_clean() -> None:
    answer = LeanAnswer(messages=(error("\ud800\x1b[31m" + "x" * 1_000_000, 3),))
    text = read_answer(THEOREM, TACTICS, answer).text
    assert text.startswith("? [31mxxx")
    assert len(text) < 1_600
    text.encode("utf-8")
