"""What Lean is asked, and what its answer says about a proof."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ...base import EnvUnavailableError
from .statements import Theorem

ALLOWED_AXIOMS = frozenset({"propext", "Classical.choice", "Quot.sound"})
"""Those of Lean's own logic. `sorryAx`, those of `native_decide` and new ones do not count."""
MAX_MESSAGE_CHARS = 1_500
_UNSOLVED = "unsolved goals"
PROBE = "example : True := trivial\n"
"""A question that every Lean answers without an error."""
Status = Literal["proved", "open", "rejected", "timeout"]


class LeanTimeoutError(Exception):
    """Lean took longer than it may for one step."""


class LeanFailedError(Exception):
    """Lean gave no answer; the message is a clause that says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanMessage:
    """One message of Lean. `line` counts from 1."""

    severity: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanAnswer:
    """What Lean said about a piece of code. `has_sorry`: it saw a `sorry`."""

    messages: tuple[LeanMessage, ...]
    has_sorry: bool = False

    @property
    def errors(self) -> tuple[LeanMessage, ...]:
        return tuple(message for message in self.messages if message.severity == "error")


class LeanBackend(Protocol):
    """Something that runs Lean."""

    @property
    def name(self) -> str:
        """What and where it is, for messages."""

    def check(self, header: str, body: str, timeout_s: float) -> LeanAnswer:
        """Lean's answer to a file of a header and a body.

        Raises:
            LeanTimeoutError: Lean took longer than `timeout_s`.
            LeanFailedError: there was no answer, or none that can be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanVerdict:
    """What Lean makes of a proof so far. `text`: the goals that are open, or what is wrong.

    `is_lasting`: Lean would say the same again; not so where it took too long or failed.
    """

    status: Status
    text: str = ""
    is_lasting: bool = True


def judge(
    backend: LeanBackend, theorem: Theorem, tactics: Sequence[str], timeout_s: float
) -> LeanVerdict:
    """Lean's verdict on the beginning of a proof.

    A step on which Lean fails without an answer is rejected if Lean then still answers a question
    that it always answers: the step was the reason.

    Raises:
        EnvUnavailableError: Lean answers nothing any more.
    """
    try:
        answer = backend.check(theorem.header, body_of(theorem, tactics), timeout_s)
    except LeanTimeoutError:
        text = f"Lean took longer than {timeout_s:g} s."
        return LeanVerdict(status="timeout", text=text, is_lasting=False)
    except LeanFailedError as error:
        if not _answers(backend, timeout_s):
            raise EnvUnavailableError(f"{backend.name} {error}") from None
        text = f"Lean failed on this step: it {error}."
        return LeanVerdict(status="rejected", text=text, is_lasting=False)
    return read_answer(theorem, tactics, answer)


def body_of(theorem: Theorem, tactics: Sequence[str]) -> str:
    """The file without its header: the theorem, the tactics between brackets, and the question
    which axioms the theorem rests on."""
    lines = [f"  {line}" for tactic in tactics for line in tactic.strip().split("\n")]
    proof = "\n".join(lines or ["  skip"])
    return f"{theorem.statement} := (by\n{proof}\n  )\n\n#print axioms {theorem.name}\n"


def read_answer(theorem: Theorem, tactics: Sequence[str], answer: LeanAnswer) -> LeanVerdict:
    """The verdict in an answer to `body_of(theorem, tactics)`.

    Proved: no error, no `sorry`, and the answer to the last line says that this theorem rests on
    Lean's own axioms only. Open: the one error is that goals of the whole proof are open. An
    unproved `have` inside a step is an error of its own place, and is rejected.
    """
    body = body_of(theorem, tactics)
    asked = re.compile(
        rf"'(?:[^'\s]+\.)?{re.escape(theorem.name)}' "
        r"(?:does not depend on any axioms|depends on axioms: \[(?P<axioms>[^\]]*)\])\s*"
    )
    reports = [
        (message, match)
        for message in answer.messages
        if message.severity == "info" and (match := asked.fullmatch(message.text))
    ]
    # Some servers count lines from the end of the header: the report says by how much.
    last_line = body.rstrip("\n").count("\n") + 1
    shift = reports[0][0].line - last_line if reports else 0
    by_line = theorem.statement.count("\n") + 1 + shift
    errors = answer.errors
    says_sorry = any(
        each.severity == "warning" and "declaration uses" in each.text and "sorry" in each.text
        for each in answer.messages
    )
    if answer.has_sorry or says_sorry:
        return LeanVerdict(status="rejected", text="sorry gives up instead of proving.")
    if not errors:
        if len(reports) != 1 or any(each.line > reports[0][0].line for each in answer.messages):
            return LeanVerdict(
                status="rejected", text="Lean did not say which axioms the proof uses."
            )
        axioms = reports[0][1]["axioms"] or ""
        foreign = {axiom.strip() for axiom in axioms.split(",")} - ALLOWED_AXIOMS - {""}
        if foreign:
            listed = _shortened(", ".join(sorted(foreign)))
            return LeanVerdict(status="rejected", text=f"The proof uses other axioms: {listed}.")
        return LeanVerdict(status="proved")
    if len(errors) == 1 and errors[0].text.startswith(_UNSOLVED) and errors[0].line == by_line:
        return LeanVerdict(status="open", text=_shortened(errors[0].text[len(_UNSOLVED) :].strip()))
    first = next((each for each in errors if each.line != by_line), errors[0])
    return LeanVerdict(status="rejected", text=_shortened(first.text))


def _answers(backend: LeanBackend, timeout_s: float) -> bool:
    try:
        answer = backend.check("", PROBE, timeout_s)
    except (LeanTimeoutError, LeanFailedError):
        return False
    return not answer.errors


def _shortened(text: str) -> str:
    """Text of Lean that can be shown and stored."""
    plain = text[: 2 * MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode("utf-8")
    plain = "".join(char if char.isprintable() or char == "\n" else " " for char in plain).strip()
    return plain if len(plain) <= MAX_MESSAGE_CHARS else f"{plain[:MAX_MESSAGE_CHARS]} (cut)"
