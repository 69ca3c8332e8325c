"""echoscope plugins: list and check parts of the algorithm that are your own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from . import envs
from .options import AsJson
from .terminal import print_json, table_of

app = typer.Typer(help="List and check your own parts of the algorithm.", no_args_is_help=True)
SETTINGS = {
    "advantage": "advantage.kind=custom advantage.function=NAME",
    "loss": "loss.kind=custom loss.function=NAME",
    "selection": "selection.strategy=custom selection.function=NAME",
    "reward": "reward.shaping=[{name: mine, function: NAME}]",
    "observer": "observers=[NAME]",
    "environment": "envs.train=[{env: NAME}]",
    "weight_sync": "engine.weights=hook engine.sync_hook=NAME",
    "narrator": "echoscope sft generate TARGET --narrator NAME",
    "detector": "echoscope bench collapse --detector NAME",
}


@app.command("list")
def list_plugins(as_json: AsJson = False) -> None:
    """Print the plug-ins of installed packages, and the settings that use one.

    Nothing is imported. A function of your own that is not installed is named `module:function`.
    """
    from rich.console import Console

    from echoscope.text.user_code import GROUPS, entry_points

    if as_json:
        rows = [
            {
                "kind": kind,
                "group": group,
                "setting": SETTINGS[kind],
                "installed": dict(entry_points(group)),
            }
            for kind, group in GROUPS.items()
        ]
        print_json({"plugins": rows}, indent=2)
        return
    cells = [
        (kind, ", ".join(sorted(entry_points(group))) or "-", SETTINGS[kind], group)
        for kind, group in GROUPS.items()
    ]
    Console().print(table_of(("kind", "installed", "use", "group of entry points"), cells))


@app.command()
def check(
    kind: Annotated[
        str, typer.Argument(help="advantage, loss, selection, reward, observer or environment.")
    ],
    name: Annotated[str, typer.Argument(help="'module:function', or an entry point.")],
    params: envs.Params = None,
    as_json: AsJson = False,
) -> None:
    """Try a plug-in on a made-up step. Exit code 1 if it breaks its contract."""
    from echoscope.core.config.loading import parse_override
    from echoscope.core.plugins.checks import KINDS, check_plugin
    from echoscope.text.amounts import counted
    from echoscope.text.user_code import UserCodeError, search_working_folder

    kinds = (*KINDS, "environment")
    if kind not in kinds:
        raise UserCodeError(f"there is no kind of plug-in {kind!r}; kinds are {', '.join(kinds)}")
    search_working_folder()
    if kind == "environment":
        envs.check(name, params=params, as_json=as_json)
        return
    report = check_plugin(kind, name, dict(parse_override(word) for word in params or ()))
    if as_json:
        print_json({**asdict(report), "ok": report.is_ok}, indent=2)
    else:
        verdict = "ok" if report.is_ok else "FAILED"
        typer.echo(f"{kind} {name}: {verdict} ({counted(len(report.passed), 'check')} passed)")
        for check_name, reason in report.failed.items():
            typer.echo(f"  failed  {check_name}: {reason}")
    if not report.is_ok:
        raise typer.Exit(1)
