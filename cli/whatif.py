"""echoscope whatif: which groups another selection would have kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, step_range
from .terminal import output_console, print_json, progress_bars

if TYPE_CHECKING:
    from echoscope.diagnostics.tools.whatif import Kept, WhatIf

MAX_ROWS = 40
"""Of the table; `--json` has every step."""


def whatif(
    run: Annotated[Path, typer.Argument(help="The run's folder, live or finished.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A selection setting, such as selection.value=0.5. Repeat for "
            "more. Default: the settings of the run.",
        ),
    ] = None,
    steps: Annotated[
        str,
        typer.Option(metavar="A:B", help="Steps from A to B, or one step. Default: all."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show which groups of a stored run another filter would have kept."""
    from echoscope.core.config.loading import parse_override
    from echoscope.diagnostics.read.table import steps_with_groups
    from echoscope.diagnostics.tools.whatif import simulate
    from echoscope.store.reader import open_run
    from echoscope.text.user_code import load, search_working_folder

    reader = open_run(run)
    changes = dict(parse_override(word) for word in set_ or ())
    if isinstance(changes.get("selection.function"), str):  # written here, not by the stored run
        search_working_folder()
        load("selection", changes["selection.function"])
    chosen = within(steps, steps_with_groups(reader))
    with progress_bars() as bar:
        result = simulate(reader, changes, chosen, progress=bar("selecting again"))
    if as_json:
        print_json({"run_id": reader.run_id, **result.to_json()})
    else:
        _show(result)


def within(text: str, steps: list[int]) -> list[int]:
    """The known steps that `A:B`, `A:`, `:B` or `A` names, both ends included."""
    first, last = step_range(text)
    chosen = [s for s in steps if (first or 0) <= s and (last is None or s <= last)]
    if not chosen and steps:
        raise typer.BadParameter(
            f"no step of the run lies in {text}; it has steps {steps[0]} to {steps[-1]}",
            param_hint="--steps",
        )
    return chosen


def _show(result: WhatIf) -> None:
    from rich.table import Table
    from rich.text import Text

    console = output_console()
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("step", "would keep", "kept", "signal", "was", "tokens saved", "was", "changed"):
        table.add_column(name, justify="right")
    table.add_column("would drop")
    # Evenly spread where there are many, the first and the last among them.
    size = min(len(result.rows), MAX_ROWS)
    places = sorted({round(k * (len(result.rows) - 1) / max(size - 1, 1)) for k in range(size)})
    for row in (result.rows[index] for index in places):
        table.add_row(str(row.step), *_cells(row.simulated, row.recorded, row.num_changed))
    cells = _cells(result.simulated, result.recorded, result.num_changed)
    table.add_row("all", *cells, style="bold")
    console.print(table)
    if size < len(result.rows):
        console.print(f"{size} of {len(result.rows)} steps; --json has all", style="dim")
    console.print(Text(f"would keep: {_sentence(result.simulated)}"))
    if result.recorded is not None:
        console.print(Text(f"the run kept: {_sentence(result.recorded)}"))
    console.print(Text(result.payoff.text))
    for note in result.notes:
        console.print(Text(f"note: {note}", style="dim"))


def _cells(now: Kept, was: Kept | None, num_changed: int) -> list[str]:
    from echoscope.text.amounts import share_of_all

    return [
        f"{now.num_groups_kept}/{now.num_groups}",
        "-" if was is None else f"{was.num_groups_kept}/{was.num_groups}",
        share_of_all(now.signal_frac),
        "-" if was is None else share_of_all(was.signal_frac),
        share_of_all(now.tokens_saved_frac),
        "-" if was is None else share_of_all(was.tokens_saved_frac),
        "-" if was is None else str(num_changed),
        ", ".join(f"{count} {why}" for why, count in now.drops.items()),
    ]


def _sentence(kept: Kept) -> str:
    """One line: groups, reward std and tokens that a selection keeps."""
    from echoscope.text.amounts import share_of_all

    empty = f", {kept.num_empty} of {kept.num_steps} steps without an update"
    return (
        f"{kept.num_groups_kept} of {kept.num_groups} groups ({share_of_all(kept.kept_frac)}), "
        f"{share_of_all(kept.signal_frac)} of the reward std, "
        f"{share_of_all(kept.tokens_saved_frac)} of sampled tokens saved in the update"
        + (empty if kept.num_empty else "")
    )
