"""echoscope ctl RUN branch: a new run from a checkpoint, with other settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Headless, new_run_path
from .terminal import print_json

if TYPE_CHECKING:
    from echoscope.core.run.branching import Branch

Checkpoint = Annotated[
    int | None, typer.Option(help="Step of the checkpoint. Default: the last good one.")
]


def branch(
    context: typer.Context,
    settings: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE ..., for example steps=120 optim.lr=1e-5.")
    ] = None,
    checkpoint: Checkpoint = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the new run. Default: the name of its parent."),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="Folder that will hold the new run. Default: the folder of its parent."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, in your words. Stored with the new run.")] = "",
    issued_by: Annotated[
        str, typer.Option("--by", help="Who starts the branch. Default: your login name.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change; start nothing.")
    ] = False,
    headless: Headless = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object at the start and one at the end; all else to stderr.",
        ),
    ] = False,
) -> None:
    """Train a new run from a checkpoint of this one, with changed settings.

    Any setting may change that the checkpoint's weights allow. Ctrl-C stops with a checkpoint.
    """
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    from echoscope.core.config.loading import parse_override
    from echoscope.store.log.layout import Layout
    from echoscope.store.steer.steering import os_user

    Layout(context.obj).require_run()
    parent: Path = context.obj.resolve()
    require_weights(parent)
    for word in settings or ():
        parse_override(word)
    # Loads torch, which may take minutes: what can be refused without it is refused above.
    from echoscope.core.run.branching import check_branch, go_on, plan_branch, start_branch

    from .train import EXIT_CODES
    from .training_view import treatments_of, watch

    plan = plan_branch(
        parent,
        checkpoint=checkpoint,
        overrides=settings or (),
        name=name,
        reason=reason,
        issued_by=issued_by or os_user(),
    )
    path = new_run_path((root or parent.parent).resolve(), plan.config.name)
    check_branch(plan, path)
    start = _start(plan, path) | {"outcome": "dry_run" if dry_run else "starting"}
    _say(start, as_json)
    if dry_run:
        return
    is_live = not headless and not as_json and sys.stdout.isatty()
    with watch(plan.config, is_live=is_live, to_stderr=as_json) as events:
        path, status = go_on(path, events, start_branch(plan, path, events))
    if as_json:
        print_json({"run_id": path.name, "path": path, "status": status})
    else:
        events.summary(path, status, treatments_of(path))
    raise typer.Exit(EXIT_CODES[status])


def require_weights(parent: Path) -> None:
    """Raises NotARunError for a run of another trainer."""
    from echoscope.store.errors import NotARunError
    from echoscope.store.log.layout import shown_path
    from echoscope.store.reader import open_run
    from echoscope.store.steer.steering import why_no_branch

    if why := why_no_branch(open_run(parent).info().config):
        raise NotARunError(f"{shown_path(parent)}: {why}")


def _start(plan: Branch, path: Path) -> dict[str, Any]:
    return {
        "run_id": path.name,
        "path": str(path),
        "parent_run_id": plan.parent_run_id,
        "parent_step": plan.step,
        "checkpoint_reason": plan.choice,
        "steps": plan.config.steps,
        "changed": {key: list(pair) for key, pair in plan.changed.items()},
    }


def _say(start: dict[str, Any], as_json: bool) -> None:
    """At once, so that whoever started this process knows the run before it trains."""
    if as_json:
        print_json(start)
    else:
        verb = "would start" if start["outcome"] == "dry_run" else "starting"
        typer.echo(
            f"{verb} {start['path']} from step {start['parent_step']} of {start['parent_run_id']}, "
            f"to step {start['steps']}"
        )
        if start["checkpoint_reason"]:
            typer.echo(f"  checkpoint {start['parent_step']}: {start['checkpoint_reason']}")
        for key, (old, new) in start["changed"].items():
            typer.echo(f"  {key} {json.dumps(old)} -> {json.dumps(new)}")
    sys.stdout.flush()
