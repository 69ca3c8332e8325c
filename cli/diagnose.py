"""echoscope diagnose: what is happening to a run, in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, Exit, FailOn, FailOnOption, Meanings, MetricsRun, exit_code, mapping_of
from .terminal import (
    Report,
    fail,
    output_console,
    print_json,
    print_lines,
    printable_text,
    progress_bars,
)

if TYPE_CHECKING:
    from echoscope.diagnostics.judge.record import Verdict
    from echoscope.diagnostics.read.foreign_names import Meaning
    from echoscope.diagnostics.read.sources import Rescore
    from echoscope.diagnostics.read.table import MetricTable
    from echoscope.diagnostics.tools.evaluation_file import AnswerFile, Comparison
    from echoscope.store.reader import RunReader

    Answer = Verdict | AnswerFile | Comparison


def diagnose(
    path: Annotated[
        Path,
        typer.Argument(
            help="A run's folder, or a file or folder of any trainer: metrics, console logs, "
            "rollouts, answers of one evaluation."
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(help="A second file of answers: how its success differs from the first's."),
    ] = None,
    as_json: AsJson = False,
    map_: Meanings = None,
    run: MetricsRun = "",
    fail_on: FailOnOption = FailOn.COLLAPSE,
    model: Annotated[
        str | None,
        typer.Option(
            help="Score the reasoning of a stored run with this model: folder, name or hub id.",
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="The verdict as it was after this step."),
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Score it with this checkpoint of the run."),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(min=1, help="Score every N-th step. Default: 20 steps, evenly spread."),
    ] = None,
) -> None:
    """Tell whether a run is collapsing, since when, the evidence, and what to do.

    With --model or --checkpoint, the mutual information I(X;Z) of a stored run is computed again
    with those weights.

    A file whose rows are answers to questions is one evaluation: its success rate is printed with
    an interval, and two such files are compared.

    Exit code 0: healthy, converged or watch, or an evaluation; 3: collapsing, collapsed or not
    learning; 4: unreadable; 5: too early to tell, or too little logged; 6: none of these, and the
    run crashed or failed.
    """
    if model is not None and checkpoint is not None:
        raise typer.BadParameter("--model and --checkpoint exclude each other")
    if every is not None and model is None and checkpoint is None:
        raise typer.BadParameter("--every says how often to score: give --model or --checkpoint")
    with _exit_codes():
        _require_path(path)
        mapping = mapping_of(map_)
        if other is not None:
            _require_path(other)
            from echoscope.diagnostics.tools.evaluation_file import compare, evaluation_of

            answer: Answer = compare(evaluation_of(path, mapping), evaluation_of(other, mapping))
        else:
            from echoscope.diagnostics.judge.verdict import diagnose as judge

            with progress_bars() as bar:
                rescore = _rescore(model, checkpoint, every, bar("scoring reasonings"))
                judged = partial(
                    judge, path, progress=bar("importing (rows)"), rescore=rescore, run=run, at=at
                )
                answer = _verdict_or_evaluation(path, mapping, judged)
    from echoscope.diagnostics.judge.record import Verdict  # loaded by now

    if as_json:
        print_json(answer.to_json())
    elif isinstance(answer, Verdict):
        _show(answer)
    else:
        print_lines(*answer.text.split("\n"))
    raise typer.Exit(exit_code(answer, fail_on) if isinstance(answer, Verdict) else Exit.OK)


def _verdict_or_evaluation(
    path: Path, mapping: Mapping[str, Meaning], judged: Callable[..., Verdict]
) -> Verdict | AnswerFile:
    """The verdict; or what a file says as an evaluation, where its replies have no steps."""
    from echoscope.diagnostics.read.records import AnswersError, MetricsFileError

    try:
        verdict = judged(mapping=mapping)
    except AnswersError as answers:
        from echoscope.diagnostics.tools.evaluation_file import of_answers

        return of_answers(answers)
    if exit_code(verdict, FailOn.COLLAPSE) is Exit.INSUFFICIENT and path.is_file():
        from echoscope.diagnostics.tools.evaluation_file import evaluation_of

        with suppress(MetricsFileError):  # it has steps: the verdict says all that is known
            return evaluation_of(path, mapping)
    return verdict


def _require_path(path: Path) -> None:
    """Raises OSError where the path is neither a file nor a folder; names the run meant."""
    from echoscope.diagnostics.read.wandb_address import is_address

    if path.exists() or is_address(path):
        return
    from echoscope.store.log.layout import Layout, run_meant  # a metrics file does without

    if run_meant(path):
        Layout(path).require_run()
    raise FileNotFoundError(f"{path}: no such file or folder")


_ERRORS = (
    ("echoscope.core.config.loading", "ConfigError", Exit.USAGE),
    ("echoscope.diagnostics.read.names", "MetricNameError", Exit.USAGE),
    ("echoscope.diagnostics.read.metrics_file", "MetricsFileError", Exit.UNREADABLE),
    ("echoscope.diagnostics.tools.rescoring", "RescoringError", Exit.UNREADABLE),
)
"""What a user can put right: module, class, exit code. A class is looked up only once something
failed, because most of these modules import what a metrics file does not need."""


@contextmanager
def _exit_codes() -> Iterator[None]:
    """A user's mistake in the block is one line and its exit code; a bug stays a traceback."""
    try:
        yield
    except Exception as error:
        for module, name, code in _ERRORS:
            if module in sys.modules and isinstance(error, vars(sys.modules[module])[name]):
                fail(error, code)
        if isinstance(error, OSError):  # StoreError is one
            fail(error, Exit.UNREADABLE)
        raise


def _rescore(
    model: str | None, checkpoint: int | None, every: int | None, progress: Report
) -> Rescore | None:
    """What puts the information under a model at hand into a run's metrics, where one is named."""
    if model is None and checkpoint is None:
        return None
    from echoscope.diagnostics.tools.rescoring import with_information

    def rescore(table: MetricTable, reader: RunReader) -> MetricTable:
        from echoscope.core.evaluation.scored_by import by_checkpoint, by_model

        if checkpoint is not None:
            weights = by_checkpoint(reader, checkpoint)
        else:
            assert model is not None
            weights = by_model(reader, model)
        return with_information(table, reader, weights, every=every, progress=progress)

    return rescore


def _show(verdict: Verdict) -> None:
    from echoscope.diagnostics.judge.alarms import RunState

    if verdict.state is RunState.EVALUATION:
        print_lines(verdict.text)
        return
    console = output_console()
    colour = {"healthy": "green", "converged": "green", "watch": "yellow"}.get(
        verdict.state.value, "red" if verdict.state.is_failure else "dim"
    )
    confidence = f"  (confidence {verdict.confidence}: {verdict.rests_on})"
    state = printable_text(verdict.state_words, f"bold {colour}")
    console.print(state + printable_text(confidence, "dim"))
    for line in verdict.text.split("\n"):
        console.print(printable_text(line), soft_wrap=line.startswith("  ") or None)
    for exemplar in verdict.exemplars:
        note = f"  {exemplar.trajectory_id} turn {exemplar.turn}: {exemplar.note}"
        console.print(printable_text(note))
    for note in verdict.notes:
        console.print(printable_text(f"note: {note}", "dim"))
