"""Why a file or folder was not read, in words: the one owner of these sentences.

`echoscope diagnose` and `echoscope import` say the same of the same file: the reason, and the way
out. What a file holds is told by reading its first rows, as rollouts and as metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from echoscope.store.importers.registry import FORMATS
from echoscope.store.importers.survey import Refusals, look
from echoscope.text.amounts import counted

from .metrics_file import NO_TEXT, NOT_METRICS
from .runs import NEITHER, MetricsFolder

_WHERE_LISTED = "docs/importing.md lists the formats"
MAX_REASONS = 6
"""Reasons for which files were refused, or passed over, that a report lists."""
MAX_SHOWN = 4
MAX_KEYS = 6


def file_sentences(refused: Iterable[Refusals], passed: Refusals) -> list[str]:
    """What became of files that were not taken, each reason once, for notes and reports.

    Args:
        refused: Files that should hold something and cannot be read.
        passed: Files that hold neither rollouts nor metrics.
    """
    pairs = [("refused", refusals) for refusals in refused] + [("passed over", passed)]
    sentences = []
    for verb, refusals in pairs:
        reasons = refusals.counts.most_common()
        for why, times in reasons[:MAX_REASONS]:
            sentences.append(f"{verb} {_files(refusals, why, times)}: {why}")
        rest = sum(times for _, times in reasons[MAX_REASONS:])
        sentences += [f"{verb} {counted(rest, 'file')} more for other reasons"] if rest else []
    return list(dict.fromkeys(sentences))  # one file may be refused as rollouts and as metrics


def _files(refusals: Refusals, reason: str, times: int) -> str:
    """The first files of a reason by name, and how many there are."""
    names = refusals.names[reason][:MAX_SHOWN]
    if times == 1:
        return names[0]
    rest = " ..." if times > len(names) else ""
    return f"{counted(times, 'file')} ({', '.join(names)}{rest})"


def passed_over(
    folder: Path, metrics: MetricsFolder, without_rows: Collection[str] | None = None
) -> Refusals:
    """The files of a folder that hold neither metrics nor rollouts.

    Those that should hold rollouts and cannot be read are added to what was refused.

    Args:
        without_rows: Files in which a survey found no rows of rollouts, relative to the folder;
            the survey has refused what cannot be read. None: there was no survey, so each file is
            looked at.
    """
    passed = Refusals()
    for name, reason in metrics.passed.items():
        problem = look(folder / name).problem if without_rows is None else ""
        if problem:
            metrics.refused.add(problem, name)
        elif without_rows is None or name in without_rows:
            passed.add(reason, name)
    return passed


def file_unread(path: Path, metrics_reason: str) -> str:
    """Why a file holds neither rollouts nor metrics that can be read: one sentence, with a way out.

    Args:
        metrics_reason: Why it cannot be read as metrics.
    """
    reason = metrics_reason.removeprefix(f"{path}: ")
    if reason.startswith("--map"):
        return f"{path}: {reason}"
    seen = look(path, run="")
    if seen.problem:
        return f"{path}: {seen.problem}"
    if seen.keys:
        keys = ", ".join(seen.keys[:MAX_KEYS]) + (" ..." if len(seen.keys) > MAX_KEYS else "")
        rows = (
            f"If its rows are rollouts: no format that is read has the keys {keys}; {_WHERE_LISTED}"
        )
        short = "holds no metrics of a known form" if reason == NOT_METRICS else reason
        return f"{path}: {short}. {rows}"
    if reason in (NOT_METRICS, NO_TEXT):
        return f"{path}: holds {NEITHER}. {_what_is_read()}"
    return f"{path}: {reason}"


def folder_unread(folder: Path, *refusals: Refusals) -> str:
    """Why nothing in a folder can be read: one sentence for the first files, and the way out.

    Args:
        refusals: Of the files of the folder; what comes first is said first.
    """
    reasons: dict[str, str] = {}
    for why, names in (pair for each in refusals for pair in each.names.items()):
        reasons |= {name: why for name in names if name not in reasons}
    reasons_shown = [f"{name}: {why}" for name, why in list(reasons.items())[:MAX_SHOWN]]
    more = len(reasons) - len(reasons_shown)
    files = "; ".join(reasons_shown) + (f"; and {more} more" if more > 0 else "")
    why = f" ({files})" if files else ""
    return f"{folder}: holds {NEITHER}, and no run{why}. {_what_is_read()}"


def _what_is_read() -> str:
    trainers = ", ".join(dict.fromkeys(form.trainer for form in FORMATS))
    return (
        "What is read: metrics (CSV, JSON, a console log with lines such as `step:1 - reward:0.5`, "
        f"files of TensorBoard, trackio or W&B) and rollouts of {trainers}; {_WHERE_LISTED}"
    )
