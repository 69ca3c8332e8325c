"""echoscope envs: list, play and check the text worlds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import print_json

if TYPE_CHECKING:
    from echoscope.envs.checks.check_env import CheckReport
    from echoscope.envs.settings import EnvGroup
    from echoscope.envs.turns.turn import TurnEnv, TurnResult

app = typer.Typer(help="List, play and check environments.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
EnvId = Annotated[str, typer.Argument(help="Environment id, or 'module:Class'.")]
Params = Annotated[list[str] | None, typer.Argument(help="KEY=VALUE ..., the values in YAML.")]
RegisterFile = Annotated[
    Path | None, typer.Option("--register", help="YAML file that names further environments.")
]
MaxTurns = Annotated[
    int | None, typer.Option("--max-turns", min=1, help="Default: the environment's.")
]
MaxActions = Annotated[
    int | None, typer.Option("--max-actions-per-turn", min=1, help="Default: the environment's.")
]
SEPARATOR = "||"


@app.command("list")
def list_envs(as_json: AsJson = False, register: RegisterFile = None) -> None:
    """Print every environment with its limits and parameters."""
    import dataclasses

    from rich.console import Console
    from rich.table import Table

    from echoscope.envs import registry

    _prepare("", register)
    specs, missing = registry.list_specs(), registry.unavailable()
    if as_json:
        rows = [
            {
                "id": spec.id,
                "description": spec.description,
                "entry_point": spec.entry_point,
                "max_turns": spec.max_turns,
                "max_actions_per_turn": spec.max_actions_per_turn,
                "requires": list(spec.requires),
                "params": {
                    field.name: str(field.type) for field in dataclasses.fields(spec.config_type)
                },
            }
            for spec in specs
        ]
        print_json({"environments": rows, "unavailable": missing}, indent=2)
        return
    table = Table("id", "turns x actions", "description", "parameters", box=None)
    for spec in specs:
        names = ", ".join(field.name for field in dataclasses.fields(spec.config_type))
        limits = f"{spec.max_turns} x {spec.max_actions_per_turn}"
        table.add_row(spec.id, limits, spec.description, names)
    for env_id, reason in missing.items():
        table.add_row(env_id, "-", f"not available: {reason}", "")
    Console().print(table)


@app.command()
def play(
    env_id: EnvId,
    params: Params = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the task.")] = 0,
    noise_seed: Annotated[
        int, typer.Option("--noise-seed", min=0, help="Seed of the environment's randomness.")
    ] = 0,
    expert: Annotated[bool, typer.Option("--expert", help="Watch the scripted expert.")] = False,
    max_turns: MaxTurns = None,
    max_actions_per_turn: MaxActions = None,
    register: RegisterFile = None,
) -> None:
    """Play one episode: a line per turn, actions separated by '||'.

    Type actions and press Enter. An empty line is a turn without an action. 'hint' asks the
    expert. 'quit' (or the end of the input) leaves. Standard input works as well as a terminal.
    """
    from functools import partial

    from echoscope.envs import registry
    from echoscope.envs.base import EnvError, EnvUnavailableError
    from echoscope.envs.turns.wrappers import runner_of, wrap

    _prepare(env_id, register)
    group = _group(env_id, params, max_turns, max_actions_per_turn)
    settings = group.settings()
    stack = wrap(partial(registry.make, env_id, **group.params), settings)
    observation = stack.reset(seed, noise_seed)
    if (failure := runner_of(stack).error) is not None:
        raise EnvUnavailableError(f"{env_id} cannot start: {failure}")
    typer.echo(stack.instructions())
    for tool in runner_of(stack).tools:
        arguments = json.dumps(tool.parameters.get("properties", {}))
        typer.echo(f"tool {tool.name}: {tool.description} {arguments}")
    typer.echo(f"\n{observation.text}")
    total, result = 0.0, None
    while result is None or result.stop_reason is None:
        line = _expert_line(stack, settings.max_actions_per_turn) if expert else _read_line()
        if line is None:
            if expert:
                raise EnvError(f"{env_id} has no expert, or it sees no way from here")
            typer.echo("left the episode")
            return
        if line.strip() == "hint":
            hint = _expert_line(stack, settings.max_actions_per_turn)
            typer.echo(f"hint: {hint}" if hint else "no hint")
            continue
        result = stack.step_turn([part for part in line.split(SEPARATOR) if part.strip()], True)
        total += result.reward + result.format_penalty
        _show(result)
    typer.echo(f"{result.stop_reason}: return {total:g}, success {_success(result)}")


@app.command()
def check(
    env_id: Annotated[str, typer.Argument(help="Environment id, 'module:Class', or 'all'.")],
    params: Params = None,
    max_turns: MaxTurns = None,
    max_actions_per_turn: MaxActions = None,
    register: RegisterFile = None,
    as_json: AsJson = False,
) -> None:
    """Test that an environment follows the rules of the interface. Exit code 1 if it does not."""

    from echoscope.envs import registry
    from echoscope.envs.base import EnvParamsError
    from echoscope.envs.checks.check_env import check_env

    _prepare(env_id, register)
    if env_id == "all" and params:
        raise EnvParamsError("parameters go with one environment, not with 'all'")
    ids = registry.known_ids() if env_id == "all" else (env_id,)
    limits = {"max_turns": max_turns, "max_actions_per_turn": max_actions_per_turn}
    reports = [check_env(each, _parse_params(params), **limits) for each in ids]
    if as_json:
        rows = [
            {
                "id": report.env_id,
                "ok": report.is_ok,
                "passed": list(report.passed),
                "failed": dict(report.failed),
                "skipped": dict(report.skipped),
            }
            for report in reports
        ]
        print_json(rows, indent=2)
    else:
        for report in reports:
            _print_report(report)
    if not all(report.is_ok for report in reports):
        raise typer.Exit(1)


def _prepare(env_id: str, register: Path | None) -> None:
    """Make the user's own classes and files known."""
    from echoscope.envs import registry
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    if register is not None:
        registry.register_file(register)


def _parse_params(words: Sequence[str] | None) -> dict[str, Any]:
    """`["size=[6, 6]", "boxes=1"]` -> `{"size": [6, 6], "boxes": 1}`."""
    from echoscope.envs.base import EnvParamsError
    from echoscope.text.yaml_text import YamlError, parse_yaml, short

    params: dict[str, Any] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise EnvParamsError(f"{short(word)!r} must look like KEY=VALUE")
        try:
            params[name] = parse_yaml(value)
        except YamlError as error:
            raise EnvParamsError(f"the value of {short(name)} {error}") from None
    return params


def _group(
    env_id: str,
    params: Sequence[str] | None,
    max_turns: int | None,
    max_actions_per_turn: int | None,
) -> EnvGroup:
    from echoscope.envs.settings import EnvGroup

    return EnvGroup(
        tag=env_id,
        env=env_id,
        groups=1,
        params=_parse_params(params),
        max_turns=max_turns,
        max_actions_per_turn=max_actions_per_turn,
    )


def _expert_line(stack: TurnEnv, max_actions: int) -> str | None:
    from echoscope.envs.turns.wrappers import runner_of

    moves = runner_of(stack).env.solve()
    line = f" {SEPARATOR} ".join((moves or [])[:max_actions])
    return line or None


def _read_line() -> str | None:
    """The next line of input; None at its end, or when the player quits."""
    if sys.stdin.isatty():
        typer.echo("> ", nl=False)
    line = sys.stdin.readline()
    return None if not line or line.strip() == "quit" else line.rstrip("\n")


def _show(result: TurnResult) -> None:
    penalty = f", penalty {result.format_penalty:g}" if result.format_penalty else ""
    did = f" {SEPARATOR} ".join(result.actions) or "nothing"
    typer.echo(f"\n[{did}] reward {result.reward:g}{penalty}\n{result.observation.text}")


def _success(result: TurnResult) -> str:
    return {True: "yes", False: "no", None: "unknown"}[result.success]


def _print_report(report: CheckReport) -> None:
    verdict = "FAILED" if report.failed else "ok" if report.passed else "skipped"
    typer.echo(f"{report.env_id}: {verdict} ({len(report.passed)} checks passed)")
    for name, reason in report.failed.items():
        typer.echo(f"  failed  {name}: {reason}")
    for name, reason in report.skipped.items():
        typer.echo(f"  skipped {name}: {reason}")
