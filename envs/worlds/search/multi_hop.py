"""Questions of several hops: the made ones that ship, and files of the public shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...base import EnvUnavailableError
from ..rows import Row, cached_by_files, read_rows, shipped
from .passages import Passage, plain_text
from .scoring import MAX_ANSWER_CHARS, normalised

MADE_QUESTIONS = shipped("search_questions.jsonl.gz")
MAX_QUESTION_CHARS = 2_000
_MAX_ANSWERS = 50


@dataclass(frozen=True, slots=True)
class Hop:
    """A passage that the answer rests on (its id or its title), and a query that asks for it."""

    passage: str
    query: str


@dataclass(frozen=True, slots=True)
class HopQuestion:
    """A question, its right answers (the first is the one that is told), and its evidence."""

    text: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """The questions of a file, and the passages that came along with them (none for most files)."""

    questions: tuple[HopQuestion, ...]
    passages: tuple[Passage, ...]


@cached_by_files(4)
def read_questions(path: str, most: int) -> QuestionFile:
    """The first `most` questions of a file; rows without a question and an answer are left out.

    A row has `question` and its answer or answers as `golden_answers` (Search-R1), `answer` with
    `answer_aliases`, `answers`, `ground_truth` or `reward_model.ground_truth.target`. Evidence is
    read from `evidence` (ours), `supporting_facts` (HotpotQA, whose `context` becomes passages) or
    `paragraphs` (MuSiQue, which become passages, too).

    Raises:
        EnvUnavailableError: the file cannot be read, or holds no question.
    """
    rows = read_rows(path, (), most=most, keep=False)
    questions = [question for row in rows if (question := question_of(row)) is not None]
    if not questions:
        raise EnvUnavailableError(
            f"{path} holds no row with a 'question' and an answer ('golden_answers', 'answer', "
            "'answers' or 'ground_truth')"
        )
    passages: dict[tuple[str, str], Passage] = {}
    for title, text in (pair for row in rows for pair in _context(row)):
        number = str(len(passages) + 1)
        passages.setdefault((title, text), Passage(f"context-{number}", title, text))
    return QuestionFile(tuple(dict.fromkeys(questions)), tuple(passages.values()))


def question_of(row: Row) -> HopQuestion | None:
    """The question of a row; None where it has no question, or no answer that can be compared."""
    text = row.get("question")
    answers = tuple(dict.fromkeys(_answers(row)))
    if not isinstance(text, str) or not text.strip() or not answers:
        return None
    return HopQuestion(plain_text(text, MAX_QUESTION_CHARS), answers, tuple(_hops(row)))


def _answers(row: Row) -> Iterator[str]:
    model = row.get("reward_model")
    truths = model.get("ground_truth") if isinstance(model, dict) else None
    fields = ("golden_answers", "answer", "answers", "answer_aliases", "ground_truth")
    for value in (*(row.get(name) for name in fields), truths):
        for answer in _flat(value):
            short = plain_text(answer, MAX_ANSWER_CHARS + 1)
            if len(short) <= MAX_ANSWER_CHARS and normalised(short):
                yield short


def _flat(value: Any) -> Sequence[str]:
    """The texts of an answer: one, a list, or the list `target` (Search-R1) or `text` (SQuAD)."""
    if isinstance(value, dict):
        value = value.get("target", value.get("text"))
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for text in value[:_MAX_ANSWERS] if isinstance(text, str)]
    return []


def _hops(row: Row) -> Iterator[Hop]:
    evidence = row.get("evidence")
    for hop in _items(evidence):
        if isinstance(hop, dict) and isinstance(hop.get("query"), str):
            yield Hop(str(hop.get("id", "")), plain_text(hop["query"], 200))
    facts = row.get("supporting_facts")
    titles = facts.get("title") if isinstance(facts, dict) else facts
    names = [name[0] if isinstance(name, list) and name else name for name in _items(titles)]
    names += [part.get("title") for part in _paragraphs(row) if part.get("is_supporting")]
    for title in dict.fromkeys(name for name in names if isinstance(name, str)):
        yield Hop(plain_text(title, 200), plain_text(title, 200))


def _context(row: Row) -> Iterator[tuple[str, str]]:
    """Title and text of each paragraph that a row of HotpotQA or MuSiQue brings along."""
    for part in _paragraphs(row):
        title, text = part.get("title"), part.get("paragraph_text")
        if isinstance(title, str) and isinstance(text, str) and plain_text(text):
            yield plain_text(title, 200), plain_text(text)
    context = row.get("context")
    if isinstance(context, dict):
        columns = _items(context.get("title")), _items(context.get("sentences"))
        context = list(zip(*columns, strict=False))
    for paragraph in _items(context):
        if not isinstance(paragraph, list | tuple) or len(paragraph) != 2:
            continue
        title, sentences = paragraph
        if isinstance(title, str) and isinstance(sentences, list):
            text = plain_text("".join(part for part in sentences if isinstance(part, str)))
            if text:
                yield plain_text(title, 200), text


def _paragraphs(row: Row) -> list[dict[str, Any]]:
    return [part for part in _items(row.get("paragraphs")) if isinstance(part, dict)]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
