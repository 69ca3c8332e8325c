"""echoscope cure: compare treatments of a collapsed run, and go on with the one that holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson, Exit
from .terminal import output_console, print_json, print_lines, table_of

if TYPE_CHECKING:
    from echoscope.store.steer.cures import Arm, Cure


def cure(
    run: Annotated[Path, typer.Argument(help="The folder of the collapsed run.")],
    steps: Annotated[int, typer.Option(min=3, help="Steps that each branch trains at most.")] = 30,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Minutes for all branches together.")
    ] = 60.0,
    choose: Annotated[
        str,
        typer.Option(metavar="BRANCH", help="Go on with this branch; compare none."),
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Go on with the treatment that holds, without a question.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Begin anew; branches of an earlier cure stay.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the proposals; train nothing.")
    ] = False,
    issued_by: Annotated[
        str, typer.Option("--by", help="Who cures. Default: your login name.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Compare treatments of a collapsed run as short branches, and go on with the one that holds.

    The run itself is never touched. Interrupted, or after the minutes, the same command goes on.
    Exit code 0: a treatment holds; 3: none does yet.
    """
    from echoscope.diagnostics.tools.curing import compare, cure_of, promote, proposed, winner
    from echoscope.store.log.layout import Layout
    from echoscope.store.reader import open_run
    from echoscope.store.steer.cures import curing, read_cure
    from echoscope.store.steer.steering import os_user

    from .branch import require_weights

    Layout(run).require_run()
    run = run.resolve()
    require_weights(run)
    who = issued_by or os_user()
    plan = None if again else read_cure(run)
    if plan is None:
        treatments = proposed(open_run(run), may_change_task=not yes)
        plan = cure_of(run, treatments, by=who, steps=steps)
    if dry_run:
        _show(run, plan, "", as_json)
        return
    with curing(run):
        if not choose:
            plan = compare(run, plan, minutes=minutes, on_change=_told(run, as_json))
        arm, reason = _chosen(plan, choose) if choose else winner(run, plan)
        wants = arm is not None and (bool(choose) or yes or _agrees(arm, reason, as_json))
        if arm is not None and wants:
            plan = promote(run, plan, arm, by=who)
        _show(run, plan, reason, as_json)
    if arm is None:
        raise typer.Exit(Exit.NOTHING_HOLDS)
    if wants:
        _train_on(run.parent / arm.run_id, as_json)


def _chosen(plan: Cure, name: str) -> tuple[Arm, str]:
    arms = {arm.run_id: arm for arm in plan.arms if arm.run_id}
    if name not in arms:
        there = ", ".join(arms) or "none yet"
        raise typer.BadParameter(f"--choose is {name}, but the branches of this cure are: {there}")
    return arms[name], f"{name} was chosen."


def _agrees(arm: Arm, reason: str, as_json: bool) -> bool:
    """Ask, where somebody is there to answer."""
    if as_json or not sys.stdin.isatty():
        return False
    print_lines(reason)
    return typer.confirm(f"Go on with {arm.run_id}?", default=True)


def _told(run: Path, as_json: bool) -> Any:
    """Prints what happens, and the table whenever a number in it changed."""
    from echoscope.diagnostics.tools.curing import table

    printed: list[tuple[Any, ...]] = []

    def told(plan: Cure, event: str) -> None:
        if event:
            print_lines(event, err=as_json)
        rows = list(table(run, plan))
        numbers = [(row["num_steps"], row["ended"]) for row in rows]
        if numbers != printed and not as_json:
            printed[:] = numbers
            _print_table(rows)

    return told


def _show(run: Path, plan: Cure, reason: str, as_json: bool) -> None:
    from echoscope.diagnostics.tools.curing import table

    rows = list(table(run, plan))
    if as_json:
        print_json({"run_id": run.name, "steps": plan.steps, "text": reason, "arms": rows})
        return
    _print_table(rows)
    print_lines(*(f"{n}: {arm.why} {arm.rate}".rstrip() for n, arm in enumerate(plan.arms, 1)))
    if reason:
        print_lines(reason)


def _print_table(treatments: list[dict[str, Any]]) -> None:
    from echoscope.store.steer.steering import override_words
    from echoscope.text.amounts import percent

    rows = [
        (
            str(row["number"]),
            row["run_id"] or "not begun",
            str(row["checkpoint"]),
            " ".join(override_words(row["settings"])) or "untreated",
            str(row["num_steps"]),
            percent(row["success"]),
            "chosen" if row["is_chosen"] else row["ended"],
        )
        for row in treatments
    ]
    head = ("", "branch", "checkpoint", "settings", "steps", "success", "")
    output_console().print(table_of(head, rows))


def _train_on(branch: Path, as_json: bool) -> None:
    """To the end that the run was meant to have; its exit code is ours."""
    command = ["train", "--resume", str(branch), "--headless"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "echoscope", *command],
        stdout=sys.stderr if as_json else None,
        check=False,
    )
    raise typer.Exit(done.returncode)
