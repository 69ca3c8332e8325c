"""A file whose rows are answers to questions: one success rate, and how two such files differ.

    from echoscope.diagnostics.tools.evaluation_file import compare, evaluation_of
    print(compare(evaluation_of(Path("before.jsonl")), evaluation_of(Path("after.jsonl"))).text)

Rows of such a file are no time: it has no course, so it is not judged as a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.store.records import FloatArray64
from echoscope.text.amounts import counted, percent_in_digits

from ..measure.outcomes import Estimate, unpaired_estimate
from ..measure.rates import wilson_interval
from ..read.foreign_names import Meaning, spelled
from ..read.metrics_file import read_metrics
from ..read.records import AnswersError, MetricsFileError
from ..read.rollouts import outcomes_mapping

_IDS = (
    *("question_id", "task_id", "problem_id", "sample_id", "example_id", "instance_id", "item_id"),
    *("id", "uid", "idx", "index", "question", "problem", "instruction", "prompt"),
)
LEAST_SHARED = 0.5
"""Of the questions of the smaller file, so many must be in the other for a paired comparison."""
_Z = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRate(Estimate):
    """A success rate, or the mean of a score."""

    num_rows: int
    num_questions: int
    """Rows of one question are not independent."""
    is_share: bool

    @property
    def words(self) -> str:
        of = counted(self.num_rows, "row")
        if self.num_questions < self.num_rows:
            of += f" of {counted(self.num_questions, 'question')}"
        ends = f"95 % interval {_shown(self.low, self.is_share, is_bare=True)} to "
        return (
            f"{_shown(self.value, self.is_share)} ({ends}{_shown(self.high, self.is_share)}; {of})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFile:
    """What a file of answers holds."""

    path: str
    outcome: str
    rate: AnswerRate
    num_without: int = 0
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    """Question -> the outcomes of its rows; empty where no column names the question."""

    @property
    def text(self) -> str:
        kind = "Success" if self.rate.is_share else f"Mean of {self.outcome}"
        lines = [
            f"One evaluation, no course: the rows of {self.path} are answers, not steps.",
            f"{kind}: {self.rate.words}. Read from the column {self.outcome}.",
        ]
        if self.num_without:
            lines.append(f"Left out: {counted(self.num_without, 'row')} without a value there.")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "evaluation",
            "path": self.path,
            "outcome": self.outcome,
            **asdict(self.rate),
            "num_without": self.num_without,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Estimate):
    """How the second of two evaluations differs from the first."""

    first: AnswerFile
    second: AnswerFile
    num_pairs: int
    """Questions that both files have; 0 where they were compared as two samples."""

    @property
    def is_beyond_chance(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def text(self) -> str:
        is_share = self.first.rate.is_share
        low = _change(self.low, is_share).removesuffix(" points")
        ends = f"{low} to {_change(self.high, is_share)}"
        verb = "is higher" if self.value > 0 else "is lower"
        what = "success" if is_share else "the mean score"
        verdict = (
            f"In the second file {what} {verb}, beyond chance."
            if self.is_beyond_chance
            else "No difference beyond chance."
        )
        how = f"two samples of {self.first.rate.num_rows:,} and {self.second.rate.num_rows:,} rows"
        if self.num_pairs:
            how = f"paired by {counted(self.num_pairs, 'question')} that both files have"
        return "\n".join(
            (
                f"{verdict} Difference: {_change(self.value, is_share)} "
                f"(95 % interval {ends}; {how}).",
                f"  {self.first.path}: {self.first.rate.words}",
                f"  {self.second.path}: {self.second.rate.words}",
            )
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "comparison",
            "difference": self.value,
            "low": self.low,
            "high": self.high,
            "num_pairs": self.num_pairs,
            "is_beyond_chance": self.is_beyond_chance,
            "evaluations": [self.first.to_json(), self.second.to_json()],
        }


def _shown(value: float, is_share: bool, *, is_bare: bool = False) -> str:
    if not is_share:
        return f"{value:.4g}"
    text = percent_in_digits(value)
    return text.removesuffix(" %") if is_bare else text


def _change(value: float, is_share: bool) -> str:
    if not is_share:
        return f"{value:+.4g}"
    return f"{'+' * (value > 0)}{percent_in_digits(value).removesuffix(' %')} points"


def evaluation_of(path: Path, mapping: Mapping[str, Meaning] | None = None) -> AnswerFile:
    """The evaluation that a file of answers holds.

    Raises:
        MetricsFileError: its rows are no answers, or no column says which are right; one line.
        OSError: it cannot be read.
    """
    try:
        table = read_metrics(path, outcomes_mapping(mapping))
    except AnswersError as error:
        return of_answers(error)
    raise MetricsFileError(
        f"{path}: holds {counted(table.num_rows, 'step')} of a run, and no answers of one "
        "evaluation; diagnose it by itself"
    )


def of_answers(answers: AnswersError) -> AnswerFile:
    """The evaluation of rows that were found to be answers.

    Raises:
        MetricsFileError: no column says which answers are right.
    """
    rows = answers.rows
    outcome = answers.outcome
    if outcome is None:
        raise MetricsFileError(
            f"{answers.path}: its rows are answers of one evaluation, but no column says which are "
            "right; say so: --map NAME=rollout/success_rate"
        )
    told = np.isfinite(outcome.values)
    kept = [row for row, is_told in zip(rows, told, strict=True) if is_told]
    values = outcome.values[told]
    name = _id_of(kept)
    ids = [str(row.get(name)) for row in kept] if name else [str(n) for n in range(len(kept))]
    scores: dict[str, list[float]] = {}
    for question, value in zip(ids, values.tolist(), strict=True):
        scores.setdefault(question, []).append(value)
    return AnswerFile(
        path=answers.path,
        outcome=outcome.name,
        rate=_rate(values, ids, outcome.is_share),
        num_without=int((~told).sum()),
        scores={q: tuple(v) for q, v in scores.items()} if name else {},
    )


def _id_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """The field that names the question; "" where there is none."""
    by_word = {spelled(name): name for name in (rows[0] if rows else ())}
    for word in _IDS:
        name = by_word.get(word)
        if name is not None and len({str(row.get(name)) for row in rows}) > 1:
            return name
    return ""


def _rate(values: FloatArray64, ids: Sequence[str], is_share: bool) -> AnswerRate:
    """The mean with an interval that knows that rows of one question are not independent."""
    num_rows, mean = len(values), float(values.mean())
    _, question_R = np.unique(np.array(ids), return_inverse=True)
    sizes = np.bincount(question_R).astype(np.float64)
    variance = float(values.var(ddof=1)) if num_rows > 1 else 0.0
    residues = np.bincount(question_R, weights=values - mean)
    num = len(sizes)
    by_question = float((residues**2).sum()) / num_rows**2 * num / max(num - 1, 1)
    is_repeated = num < num_rows
    if is_share:
        # Rows of one question that agree are worth less than rows of several questions.
        alone = mean * (1 - mean) / num_rows
        excess = max(1.0, by_question / alone) if is_repeated and alone > 0 else 1.0
        effective = num if is_repeated and alone == 0 else num_rows / excess
        low, high = map(float, wilson_interval(mean, effective))
    else:
        error = math.sqrt(by_question if is_repeated else variance / num_rows)
        low, high = mean - _Z * error, mean + _Z * error
    return AnswerRate(
        value=mean,
        low=low,
        high=high,
        num_rows=num_rows,
        num_questions=num,
        is_share=is_share,
    )


def compare(first: AnswerFile, second: AnswerFile) -> Comparison:
    """How the second differs from the first: question by question where both name the same.

    Raises:
        MetricsFileError: one tells right from wrong, and the other a score.
    """
    if first.rate.is_share != second.rate.is_share:
        raise MetricsFileError(
            f"{first.path} and {second.path}: {first.outcome} and {second.outcome} are not the "
            "same measure, so they cannot be compared; --map names the column of both"
        )
    shared = [question for question in first.scores if question in second.scores]
    smaller = min(len(first.scores), len(second.scores))
    if not shared or len(shared) < LEAST_SHARED * smaller:
        shared, apart = [], unpaired_estimate(second.rate, first.rate)
    else:
        apart = _paired(first, second, shared)
    return Comparison(**asdict(apart), first=first, second=second, num_pairs=len(shared))


def _paired(first: AnswerFile, second: AnswerFile, shared: Sequence[str]) -> Estimate:
    """Difference and interval over the questions that both have."""
    a_Q = np.array([np.mean(first.scores[question]) for question in shared])
    b_Q = np.array([np.mean(second.scores[question]) for question in shared])
    change_Q = b_Q - a_Q
    difference, num = float(change_Q.mean()), len(shared)
    if np.isin(np.concatenate([a_Q, b_Q]), (0.0, 1.0)).all():
        from scipy.special import betaincinv

        # Clopper and Pearson 1934: of the questions whose answers differ, the share that was gained
        gained, lost = int((change_Q > 0).sum()), int((change_Q < 0).sum())
        least = float(betaincinv(gained, lost + 1, 0.025)) if gained else 0.0
        most = float(betaincinv(gained + 1, lost, 0.975)) if lost else 1.0
        low, high = ((2 * share - 1) * (gained + lost) / num for share in (least, most))
    else:
        error = _Z * float(change_Q.std(ddof=1)) / math.sqrt(num) if num > 1 else math.inf
        low, high = difference - error, difference + error
    return Estimate(value=difference, low=low, high=high)
