"""echoscope whatif: which groups another selection would have kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson
from .terminal import output_console, print_json, progress_bars

if TYPE_CHECKING:
    from rich.table import Table

    from echoscope.diagnostics.config import SelectionConfig
    from echoscope.diagnostics.tools.whatif import Kept, WhatIf, WhatIfRow

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
        typer.Option(
            "--steps", metavar="A:B", help="Steps from A to B, or one step. Default: all."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show which groups of a stored run another filter would have kept."""
    from echoscope.core.config.loading import parse_override
    from echoscope.diagnostics.read.table import steps_with_groups
    from echoscope.diagnostics.tools.whatif import own_settings, simulate
    from echoscope.store.reader import open_run
    from echoscope.text.user_code import load, search_working_folder

    reader = open_run(run)
    changes = dict(parse_override(word) for word in set_ or ())
    settings = own_settings(reader).changed(changes)
    if isinstance(changes.get("selection.function"), str):  # written here, not by the stored run
        search_working_folder()
        load("selection", changes["selection.function"])
    chosen = within(steps, steps_with_groups(reader))
    with progress_bars() as bar:
        result = simulate(reader, settings, chosen, progress=bar("selecting again"))
    if as_json:
        print_json(to_json(reader.run_id, result))
    else:
        _show(result)


def within(words: str, known: list[int]) -> list[int]:
    """The known steps that `A:B`, `A:`, `:B` or `A` names, both ends included."""
    first, colon, last = words.partition(":")
    try:
        low = int(first) if first else -1
        high = int(last) if last else (2**62 if colon or not first else low)
    except ValueError:
        raise typer.BadParameter(
            f"{words!r} names no steps; write A:B, A:, :B or one number", param_hint="--steps"
        ) from None
    chosen = [step for step in known if low <= step <= high]
    if not chosen and known:
        raise typer.BadParameter(
            f"no step of the run lies in {words}; it has steps {known[0]} to {known[-1]}",
            param_hint="--steps",
        )
    return chosen


def to_json(run_id: str, found: WhatIf) -> dict[str, Any]:
    """What `--json` prints."""
    payoff = found.payoff
    return {
        "run_id": run_id,
        "simulated": found.simulated.to_json(),
        "recorded": None if found.recorded is None else found.recorded.to_json(),
        "num_changed": found.num_changed,
        "payoff": {
            "worth": payoff.worth.value,
            "ratio": payoff.ratio,
            "num_groups": payoff.num_groups,
            "text": payoff.text,
        },
        "notes": list(found.notes),
        "steps": [_row_json(row) for row in found.rows],
    }


def _row_json(row: WhatIfRow) -> dict[str, Any]:
    groups = zip(
        row.group_index_P.tolist(),
        row.reward_std_P.tolist(),
        row.keep_P.tolist(),
        [None] * len(row.keep_P) if row.kept_P is None else row.kept_P.tolist(),
        row.drop_P,
        strict=True,
    )
    return {
        "step": row.step,
        "settings": row.settings.model_dump(mode="json"),
        "simulated": row.simulated.to_json(),
        "recorded": None if row.recorded is None else row.recorded.to_json(),
        "reason": row.reason,
        "groups": [
            {
                "group_index": index,
                "reward_std": std,
                "would_keep": would,
                "kept": kept,
                "why_dropped": None if why is None else why.value,
            }
            for index, std, would, kept, why in groups
        ],
    }


def _show(found: WhatIf) -> None:
    from rich.text import Text

    console = output_console()
    rows = _spread(found.rows)
    console.print(_table(found, rows))
    if len(rows) < len(found.rows):
        console.print(f"{len(rows)} of {len(found.rows)} steps; --json has all", style="dim")
    last = found.rows[-1].settings
    console.print(Text(f"would keep: {_sentence(found.simulated, last)}"))
    if found.recorded is not None:
        console.print(Text(f"the run kept: {_sentence(found.recorded, None)}"))
        console.print(Text(f"groups decided differently than in the run: {found.num_changed}"))
    console.print(Text(found.payoff.text))
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))


def _spread(rows: tuple[WhatIfRow, ...]) -> list[WhatIfRow]:
    """At most `MAX_ROWS`, evenly spread, the first and the last among them."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    return [rows[round(k * (len(rows) - 1) / (MAX_ROWS - 1))] for k in range(MAX_ROWS)]


def _table(found: WhatIf, rows: list[WhatIfRow]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("step", "would keep", "kept", "signal", "was", "tokens saved", "was", "changed"):
        table.add_column(name, justify="right")
    table.add_column("would drop")
    for row in rows:
        table.add_row(str(row.step), *_cells(row.simulated, row.recorded, row.num_changed))
    cells = _cells(found.simulated, found.recorded, found.num_changed)
    table.add_row("all", *cells, style="bold")
    return table


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
        _drops(now),
    ]


def _drops(kept: Kept) -> str:
    return ", ".join(f"{count} {why.value}" for why, count in kept.drops.items())


def _sentence(kept: Kept, settings: SelectionConfig | None) -> str:
    """One line: groups, reward std and tokens that a selection keeps."""
    from echoscope.text.amounts import share_of_all

    parts = [
        f"{kept.num_groups_kept} of {kept.num_groups} groups ({share_of_all(kept.kept_frac)})",
        f"{share_of_all(kept.signal_frac)} of the reward std",
        f"{share_of_all(kept.tokens_saved_frac)} of sampled tokens saved in the update",
    ]
    if kept.num_empty:
        parts.append(f"{kept.num_empty} of {kept.num_steps} steps without an update")
    by = "" if settings is None else f" (by {_words(settings)})"
    return ", ".join(parts) + by


def _words(settings: SelectionConfig) -> str:
    if settings.strategy == "none":
        return "strategy none"
    if settings.strategy == "custom":
        return f"the rule {settings.function}"
    unit = "" if settings.unit == "group" else " of trajectories"
    keep = "" if settings.keep == "largest" else ", smallest first"
    scope = "" if settings.scope == "batch" else ", each environment apart"
    return f"{settings.strategy} {settings.value:g} of {settings.metric}{unit}{keep}{scope}"
