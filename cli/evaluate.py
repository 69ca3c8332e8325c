"""echoscope eval: how good is this checkpoint, or anybody's model, on tasks never trained?"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson, ConfigFile, Root, new_run_path
from .terminal import (
    Report,
    fail,
    interruptible,
    output_console,
    print_json,
    printable_text,
    progress_bars,
    table_of,
)

if TYPE_CHECKING:
    from echoscope.core.evaluation.play import Evaluation
    from echoscope.diagnostics.measure.outcomes import Estimate, SuccessDifference, WorldTable

LINE_EVERY_S = 30.0


def evaluate(
    who: Annotated[
        str | None,
        typer.Argument(
            help="A run's folder, a model's name or folder, a provider's model such as "
            "openai/NAME, or an address with a model, such as http://127.0.0.1:8000/v1#NAME."
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="KEY=VALUE ..., for example context.max_response_tokens=200."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A world to play. Repeat for more."),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="generalisation: each world as it was trained, near to it, and far."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Play the worlds of this recipe, as it shows them."),
    ] = None,
    config: ConfigFile = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of each world.")] = 100,
    siblings: Annotated[int, typer.Option(min=1, help="Attempts at each task, for pass@k.")] = 1,
    checkpoint: Annotated[
        int | None,
        typer.Option(help="Of a run: the step. Default: the best evaluated one."),
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 for greedy.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Other tasks. By default everyone plays the same ones."),
    ] = None,
    max_episodes: Annotated[
        int | None, typer.Option(min=1, help="Begin at most so many episodes.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens after which none begins."),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(min=0, help="US dollars after which none begins."),
    ] = None,
    price: Annotated[
        tuple[float, float] | None,
        typer.Option(help="US dollars for a million input and a million output tokens."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="An earlier evaluation to compare with."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Play what this evaluation has left."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="RUN", help="The evaluation's folder; default: in --root."
        ),
    ] = None,
    root: Root = Path("runs"),
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="A Markdown table instead of text.")
    ] = False,
) -> None:
    """Evaluate a checkpoint or a model on tasks that no training plays.

    Episodes are stored like those of a training. Ctrl-C ends it after what is on the disk; --resume
    plays the rest.
    """
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    from echoscope.core.evaluation import play
    from echoscope.core.evaluation.plan import Budget, settings_for
    from echoscope.core.evaluation.who import resolve
    from echoscope.envs.reserving import EVALUATION_SEED

    if max_cost is not None and price is None:
        raise typer.BadParameter("--max-cost needs --price: nobody else knows what a token costs")
    if against is not None:
        _check_other(against)
    budget = Budget(episodes=max_episodes, tokens=max_tokens, cost=max_cost)
    with progress_bars() as bar, interruptible() as pressed:
        on_progress = bar("episodes") if sys.stderr.isatty() else _lines()
        shared: dict[str, Any] = {"on_progress": on_progress, "should_stop": pressed.is_set}
        if resume is not None:
            if who is not None or output is not None:
                raise typer.BadParameter("--resume takes only a budget beside it")
            evaluation = play.resume(resume, budget=budget if budget.is_limited else None, **shared)
        else:
            if who is None:
                raise typer.BadParameter("name who plays, or give --resume RUN")
            player = resolve(who, checkpoint, price)
            settings = settings_for(
                player,
                envs=env or (),
                suite=suite,
                recipe=recipe,
                file=config,
                words=words or (),
                tasks=tasks,
                siblings=siblings,
                seed=EVALUATION_SEED if seed is None else seed,
                temperature=temperature,
            )
            path = output or new_run_path(root, f"eval-{player.slug}")
            evaluation = play.start(player, settings, path, budget=budget, **shared)
    compared = None if against is None else _compared(evaluation, against)
    if as_json:
        print_json(_json(evaluation, compared))
    elif as_markdown:
        typer.echo(_markdown(evaluation, compared))
    else:
        _show(evaluation, compared)
    if compared is not None and not compared.differences:
        fail(
            f"{against} has played none of these tasks: evaluate both with the same worlds, --seed "
            "and settings of the worlds",
            1,
        )
    if evaluation.reason:
        larger = " with a larger budget" if evaluation.is_used_up else ""
        fail(
            f"{evaluation.reason}; `echoscope eval --resume {evaluation.path}`{larger} plays them",
            1,
        )


def _lines() -> Report:
    """Says how far it is in a line now and then, where no bar can be drawn."""
    last = time.monotonic()

    def report(done: int, of: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            typer.echo(f"{done} of {of} episodes", err=True)

    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDifferences:
    """This evaluation minus another, on the tasks that both played."""

    name: str
    """Of the other."""
    differences: Sequence[SuccessDifference]


def _check_other(other: Path) -> None:
    """Refuse what cannot be compared with before anything is played."""
    from echoscope.core.config.loading import ConfigError
    from echoscope.store.reader import open_run

    counts = open_run(other).sql("SELECT count(*) AS n FROM trajectories WHERE split = 'eval'")
    if not counts.column("n").to_pylist()[0]:
        raise ConfigError(f"--against is {other}, which has no evaluation episodes")


def _compared(evaluation: Evaluation, other: Path) -> EvaluationDifferences:
    from echoscope.diagnostics.measure.outcomes import differences
    from echoscope.diagnostics.tools.stored_outcomes import planned, stored_outcomes
    from echoscope.store.reader import open_run

    reader = open_run(other)
    info = reader.info()
    plan, first = planned(info.config), 0
    if plan is not None:
        name = plan.name
    else:  # a training: its last evaluation
        row = reader.sql("SELECT max(step) AS s FROM trajectories WHERE split = 'eval'")
        first = row.column("s").to_pylist()[0]
        name = f"{info.run_id} at its evaluation of step {first}"
    outcomes = stored_outcomes(reader, first, info.last_step)
    return EvaluationDifferences(
        name=name, differences=differences(evaluation.outcomes, tuple(outcomes.values()))
    )


def _title(evaluation: Evaluation) -> str:
    return f"{evaluation.who.name} at temperature {evaluation.config.eval.temperature:g}"


def _in_words(evaluation: Evaluation, compared: EvaluationDifferences) -> list[str]:
    """A sentence for each world."""
    this, other = _title(evaluation), compared.name
    out = []
    for each in compared.differences:
        where = f"{each.tag}, {each.num_tasks} shared tasks"
        low, high = each.difference.low, each.difference.high
        if low > 0 or high < 0:
            better, worse = (this, other) if low > 0 else (other, this)
            out.append(f"{where}: {better} is better than {worse}: {each.difference.as_points()}.")
        else:
            out.append(
                f"{where}: {this} and {other} cannot be told apart: {each.difference.as_points()}."
            )
    return out


def _json(evaluation: Evaluation, compared: EvaluationDifferences | None) -> dict[str, Any]:
    spent, is_billed = evaluation.spent, evaluation.who.is_provider
    return {
        "who": evaluation.who.typed,
        "name": evaluation.who.name,
        "checkpoint": evaluation.who.step,
        "run": str(evaluation.path),
        "status": evaluation.status,
        "reason": evaluation.reason,
        "is_biased": evaluation.is_biased,
        "notes": evaluation.notes,
        "num_planned": evaluation.num_planned,
        "num_played": len(evaluation.outcomes),
        "siblings": evaluation.config.envs.eval_group_size,
        "temperature": evaluation.config.eval.temperature,
        "seed": evaluation.config.seed,
        "seconds": evaluation.seconds,
        "spent": {
            "input_tokens": spent.num_input_tokens if is_billed else None,
            "output_tokens": spent.num_output_tokens,
            "cost": spent.cost,
        },
        "worlds": evaluation.tables,
        "gaps": dict(_gaps(evaluation.tables)),
        "against": compared,
    }


def _gaps(tables: Sequence[WorldTable]) -> list[tuple[str, Estimate]]:
    """Of each world of a suite: its tag, and its success minus that on the player's own tasks."""
    from echoscope.core.evaluation.suites import origin_of
    from echoscope.diagnostics.measure.outcomes import unpaired_estimate

    success = {table.tag: table.success for table in tables}
    origins = {table.tag: origin_of(table.tag) for table in tables}
    return [
        (tag, unpaired_estimate(success[tag], success[origin]))
        for tag, origin in origins.items()
        if origin is not None and origin in success
    ]


def _number(estimate: Estimate) -> str:
    return "unknown" if estimate.value != estimate.value else f"{estimate.value:.3g}"


def _head_and_rows(tables: Sequence[WorldTable]) -> tuple[list[str], list[list[str]]]:
    from echoscope.diagnostics.measure.outcomes import shown_ks
    from echoscope.text.amounts import percent

    most = max((max(table.pass_at, default=1) for table in tables), default=1)
    ks = shown_ks(most)
    head = ["world", "tasks", "success (95 %)"]
    head += [f"pass@{k}" for k in ks] + [f"pass^{k}" for k in ks]
    gaps = dict(_gaps(tables))
    head += ["gap (95 %)"] if gaps else []
    head += ["return", "turns", "valid actions", "tokens"]
    rows = []
    for table in tables:
        row = [table.tag, str(table.num_tasks), table.success.as_rate()]
        for each in (table.pass_at, table.pass_all):
            row += [percent(each[k].value, 1) if k in each else "" for k in ks]
        if gaps:
            row.append(gaps[table.tag].as_points() if table.tag in gaps else "")
        valid = table.valid_frac.value
        row += [_number(table.episode_return), _number(table.num_turns)]
        row += ["unknown" if valid != valid else percent(valid), _number(table.num_tokens)]
        rows.append(row)
    return head, rows


def _difference_rows(compared: Sequence[SuccessDifference]) -> tuple[list[str], list[list[str]]]:
    from echoscope.text.amounts import percent

    head = ["world", "shared tasks", "this", "other", "difference (95 %)"]
    rows = [
        [
            each.tag,
            str(each.num_tasks),
            percent(each.first, 1),
            percent(each.second, 1),
            each.difference.as_points(),
        ]
        for each in compared
    ]
    return head, rows


def _show(evaluation: Evaluation, compared: EvaluationDifferences | None) -> None:
    console = output_console()
    head, rows = _head_and_rows(evaluation.tables)
    console.print(printable_text(_title(evaluation)))
    if rows:
        console.print(table_of(head, rows, right=head[1:]))
    if compared is not None and compared.differences:
        head, rows = _difference_rows(compared.differences)
        console.print(table_of(head, rows, right=head[1:]))
        for sentence in _in_words(evaluation, compared):
            console.print(printable_text(sentence))
    for sentence in _remarks(evaluation):
        console.print(printable_text(sentence))
    spent = evaluation.spent
    if spent.num_input_tokens:
        cost = "" if spent.cost is None else f", {spent.cost:.4g} $"
        console.print(f"{spent.num_input_tokens} tokens in, {spent.num_output_tokens} out{cost}")
    console.print(printable_text(f"evaluation {evaluation.path}"), soft_wrap=True)


def _remarks(evaluation: Evaluation) -> list[str]:
    """What limits the numbers of the table."""
    out = list(evaluation.notes)
    if evaluation.is_biased:
        out.append(
            "The evaluation was cut off. Short episodes end first, so success so far is biased."
        )
    unknown = evaluation.tables[-1].num_unknown if evaluation.tables else 0
    if unknown:
        out.append(
            f"{unknown} episodes count for nothing: their world failed, or cannot tell success."
        )
    return out


def _markdown(evaluation: Evaluation, compared: EvaluationDifferences | None) -> str:
    """The tables, for a page or a comment."""

    def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )

    parts = [_title(evaluation), table(*_head_and_rows(evaluation.tables))]
    if compared is not None and compared.differences:
        parts.append(table(*_difference_rows(compared.differences)))
        parts += _in_words(evaluation, compared)
    return "\n\n".join([*parts, *_remarks(evaluation)])
