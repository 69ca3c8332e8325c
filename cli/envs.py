"""echoscope envs: list, play, check and serve the text worlds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson
from .terminal import output_console, print_json, print_lines, progress_bars, table_of

if TYPE_CHECKING:
    from echoscope.envs.checks.check_env import CheckReport
    from echoscope.envs.checks.players import PlayerScore
    from echoscope.envs.settings import EnvGroup
    from echoscope.envs.turns.runner import TurnRunner
    from echoscope.envs.worlds.remote.sessions import Served

app = typer.Typer(help="List, play, check and serve environments.", no_args_is_help=True)
EnvId = Annotated[str, typer.Argument(help="Environment id, or 'module:Class'.")]
Params = Annotated[list[str] | None, typer.Argument(help="KEY=VALUE ..., the values in YAML.")]
MaxTurns = Annotated[int | None, typer.Option(min=1, help="Default: the environment's.")]
MaxActions = Annotated[int | None, typer.Option(min=1, help="Default: the environment's.")]
SEPARATOR = "||"
CANNOT_PLAY = {"types", "hostile", "steps", "seeds"}
"""Failed checks after which the expert's score is not measured: steps may raise."""
ANSWERS = {True: "yes", False: "no", None: "unknown"}


@app.command("list")
def list_envs(
    family: Annotated[
        str | None, typer.Argument(help="List the worlds of a library: reasoning_gym or textarena.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print every environment with its limits and parameters."""
    from echoscope.envs import registry
    from echoscope.envs.base import EnvError
    from echoscope.envs.params import described_parameters

    if family is not None:
        names = [f"{family}:{name}" for name in registry.family_names(family)]
        print_json(names, indent=2) if as_json else typer.echo("\n".join(names))
        return
    missing, cells = registry.unavailable(), []
    rows: list[dict[str, Any]] = []
    for env_id in registry.listed_ids():
        try:
            spec = registry.spec(env_id)
        except EnvError:  # its class cannot be loaded
            rows.append({"id": env_id, "unavailable": missing[env_id]})
            cells.append((env_id, "-", f"not available: {missing[env_id]}", ""))
            continue
        params = described_parameters(spec.config_type)
        row = {name: value for name, value in asdict(spec).items() if name != "config_type"}
        rows.append({**row, "params": params, "unavailable": missing.get(env_id)})
        size = f"{spec.max_turns} x {spec.max_actions_per_turn}"
        about = f"not available: {missing[env_id]}" if env_id in missing else spec.description
        cells.append((env_id, size, about, ", ".join(params)))
    if as_json:
        print_json(rows, indent=2)
    else:
        head = ("id", "turns x actions", "description", "parameters")
        output_console(pipe_width=200, is_wrapped=True).print(table_of(head, cells))


@app.command()
def show(env_id: EnvId) -> None:
    """Print what a world shows, takes and pays, its parameters, and an episode of its expert."""
    from echoscope.envs.checks.description import described
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    print_lines(*described(env_id).splitlines())


@app.command()
def play(
    env_id: EnvId,
    params: Params = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the task.")] = 0,
    noise_seed: Annotated[
        int, typer.Option(min=0, help="Seed of the environment's randomness.")
    ] = 0,
    expert: Annotated[bool, typer.Option("--expert", help="Watch the scripted expert.")] = False,
    max_turns: MaxTurns = None,
    max_actions_per_turn: MaxActions = None,
) -> None:
    """Play one episode: a line per turn, actions separated by '||' where several are allowed.

    Type actions and press Enter. An empty line is a turn without an action. 'hint' asks the
    expert. 'quit' (or the end of the input) leaves. Standard input works as well as a terminal.
    """
    from echoscope.envs.base import EnvError, EnvUnavailableError
    from echoscope.envs.pool import turns_of

    group = make_group(env_id, params, max_turns, max_actions_per_turn)
    most, stack = group.settings().max_actions_per_turn, turns_of(group)
    opening = stack.reset(seed, noise_seed)
    if opening.error is not None:
        raise EnvUnavailableError(f"{env_id} cannot start: {opening.error}")
    typer.echo(opening.instructions)
    for tool in opening.tools:
        arguments = json.dumps(tool.parameters.get("properties", {}))
        typer.echo(f"tool {tool.name}: {tool.description} {arguments}")
    typer.echo(f"\n{opening.observation.text}")
    total, result = 0.0, None
    while result is None or result.stop_reason is None:
        line = _expert_line(stack, most) if expert else _read_line()
        if line is None:
            if expert:
                raise EnvError(f"{env_id} has no expert, or it sees no way from here")
            typer.echo("left the episode")
            return
        if line.strip() == "hint":
            hint = _expert_line(stack, most)
            typer.echo(f"hint: {hint}" if hint else "no hint")
            continue
        parts = [line] if group.is_one_action else line.split(SEPARATOR)
        result = stack.step_turn([part for part in parts if part.strip()], True)
        total += result.reward + result.format_penalty
        penalty = f", penalty {result.format_penalty:g}" if result.format_penalty else ""
        did = f" {SEPARATOR} ".join(result.actions) or "nothing"
        typer.echo(f"\n[{did}] reward {result.reward:g}{penalty}\n{result.observation.text}")
    typer.echo(f"{result.stop_reason}: return {total:g}, success {ANSWERS[result.success]}")


@app.command()
def check(
    env_id: Annotated[str, typer.Argument(help="Environment id, 'module:Class', or 'all'.")],
    params: Params = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=100_000, help="Tasks that the expert plays.")
    ] = 20,
    max_turns: MaxTurns = None,
    max_actions_per_turn: MaxActions = None,
    as_json: AsJson = False,
) -> None:
    """Test that environments follow the rules of the interface. Exit code 1 if one does not.

    The table says what is installed, whether the same seeds give the same episode (also in
    another process), and on what share of tasks the scripted expert succeeds within the limits.
    Below it stands what players earn that do not solve the task: some repeat what they see, send
    junk, or do one action for ever.
    """
    from echoscope.envs import registry
    from echoscope.envs.base import EnvParamsError
    from echoscope.envs.checks.check_env import check_env

    if env_id == "all" and params:
        raise EnvParamsError("parameters go with one environment, not with 'all'")
    ids = registry.known_ids() if env_id == "all" else (env_id,)
    rows: list[tuple[CheckReport, PlayerScore | None]] = []
    with progress_bars() as bars:
        report_progress = bars("environments")
        for done, each in enumerate(ids):
            report_progress(done, len(ids))
            group = make_group(each, params, max_turns, max_actions_per_turn)
            report = check_env(
                each,
                group.params,
                max_turns=max_turns,
                max_actions_per_turn=max_actions_per_turn,
            )
            rows.append((report, _expert_score(report, group, seeds)))
    if as_json:
        print_json([_as_json(*row) for row in rows], indent=2)
    else:
        _print_checks(rows)
    if not all(report.is_ok for report, _ in rows):
        raise typer.Exit(1)


def _expert_score(report: CheckReport, group: EnvGroup, seeds: int) -> PlayerScore | None:
    from echoscope.envs.checks.players import EXPERT, expert_moves, score

    if CANNOT_PLAY & report.failed.keys() or EXPERT not in report.scores:
        return None
    return score(group, expert_moves, range(seeds))


def _as_json(report: CheckReport, expert: PlayerScore | None) -> dict[str, Any]:
    return {
        "id": report.env_id,
        "ok": report.is_ok,
        "installed": report.is_installed,
        "deterministic": report.is_deterministic,
        "expert": None if expert is None else asdict(expert),
        "passed": list(report.passed),
        "failed": dict(report.failed),
        "skipped": dict(report.skipped),
        "scores": {name: asdict(score) for name, score in report.scores.items()},
    }


def _print_checks(rows: Sequence[tuple[CheckReport, PlayerScore | None]]) -> None:
    """The table, and under it every failure and every skip with its reason."""
    from echoscope.text.amounts import percent

    cells = []
    for report, expert in rows:
        passed = f"{len(report.passed)} passed" if report.is_installed else "skipped"
        solved = "" if expert is None else f"{expert.num_solved} of {expert.num_tried}"
        is_same = {True: "yes", False: "NO", None: ""}[report.is_deterministic]
        verdict = "FAILED" if report.failed else passed
        is_installed = "yes" if report.is_installed else "no"
        cells.append((report.env_id, is_installed, verdict, is_same, solved))
    head = ("id", "installed", "checks", "deterministic", "expert solves")
    output_console().print(table_of(head, cells, right=head[-1:]))
    for report, _ in rows:
        for kind, findings in (("failed ", report.failed), ("skipped", report.skipped)):
            for name, reason in findings.items():
                print_lines(f"{kind} {report.env_id}, {name}: {reason}")
        earned = "; ".join(
            f"{name} {score.mean:.3g} ({percent(score.num_solved / score.num_tried)})"
            for name, score in report.scores.items()
        )
        if earned:
            typer.echo(f"players {report.env_id}, mean return (success): {earned}")


@app.command()
def serve(
    world_specs: Annotated[
        list[str],
        typer.Argument(
            metavar="ENV|KEY=VALUE",
            help="Environment ids or 'module:Class', then parameters, the values in YAML: "
            "KEY=VALUE, or ID.KEY=VALUE, which several ids need.",
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Any address but loopback needs a token in "
            "ECHOSCOPE_ENV_TOKEN."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="From 1 to 65535; 0 takes a free one.")
    ] = 8700,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Worlds at once; every episode that runs needs one.")
    ] = 1024,
    idle: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a request after which a session ends.")
    ] = 1800.0,
    timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds that one call into a world may take.")
    ] = 60.0,
    client_params: Annotated[
        bool,
        typer.Option(
            "--client-params",
            help="Clients may set parameters, also those that name files of this machine or "
            "loosen a sandbox. Off: worlds have the parameters given here.",
        ),
    ] = False,
) -> None:
    """Serve environments to trainings elsewhere (`env: remote`), until Ctrl-C.

    Prints the address once it answers. docs/remote.md describes the protocol.
    """
    from echoscope.envs.worlds.remote.server import serve as serve_worlds
    from echoscope.envs.worlds.remote.sessions import SessionLimits
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    worlds = served_worlds(world_specs)
    limits = SessionLimits(
        max_sessions=max_sessions, idle_s=idle, call_s=timeout, has_client_params=client_params
    )
    ids = ", ".join(each.id for each in worlds)

    def ready(url: str) -> None:
        typer.echo(f"serving {ids} at {url} (Ctrl-C ends it)")

    serve_worlds(worlds, limits, address=host, port=port, on_ready=ready)
    typer.echo("stopped")


def served_worlds(world_specs: Sequence[str]) -> list[Served]:
    """The environments that words name, with their parameters."""
    from echoscope.envs.base import EnvParamsError
    from echoscope.envs.worlds.remote.sessions import Served
    from echoscope.text.yaml_text import short

    ids = [word for word in world_specs if "=" not in word]
    if not ids:
        raise EnvParamsError("name an environment first, such as `envs serve frozen_lake slip=0`")
    params: dict[str, dict[str, Any]] = {env_id: {} for env_id in ids}
    for word in world_specs:
        if "=" not in word:
            continue
        env_id, dot, _ = word.partition("=")[0].rpartition(".")
        is_named = bool(dot) and env_id in params
        if not is_named and len(ids) > 1:
            raise EnvParamsError(
                f"with several environments a parameter looks like {ids[0]}.KEY=VALUE, "
                f"not {short(word)!r}"
            )
        rest = word[len(env_id) + 1 :] if is_named else word
        params[env_id if is_named else ids[0]] |= parse_params([rest])
    return [Served(id=env_id, params=params[env_id]) for env_id in ids]


def parse_params(settings: Sequence[str] | None) -> dict[str, Any]:
    """`["size=[6, 6]", "boxes=1"]` -> `{"size": [6, 6], "boxes": 1}`."""
    from echoscope.envs.base import EnvParamsError
    from echoscope.text.yaml_text import YamlError, parse_yaml, short

    params: dict[str, Any] = {}
    for word in settings or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise EnvParamsError(f"{short(word)!r} must look like KEY=VALUE")
        try:
            params[name] = parse_yaml(value)
        except YamlError as error:
            raise EnvParamsError(f"the value of {short(name)} {error}") from None
    return params


def make_group(
    env_id: str,
    params: Sequence[str] | None,
    max_turns: int | None,
    max_actions_per_turn: int | None,
) -> EnvGroup:
    from echoscope.envs.settings import EnvGroup
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    return EnvGroup(
        env=env_id,
        groups=1,
        params=parse_params(params),
        max_turns=max_turns,
        max_actions_per_turn=max_actions_per_turn,
    )


def _expert_line(stack: TurnRunner, max_actions: int) -> str | None:
    moves = stack.env.solve()
    return f" {SEPARATOR} ".join((moves or [])[:max_actions]) or None


def _read_line() -> str | None:
    """The next line of input; None at its end, or when the player quits."""
    if sys.stdin.isatty():
        typer.echo("> ", nl=False)
    line = sys.stdin.readline()
    return None if not line or line.strip() == "quit" else line.rstrip("\n")
