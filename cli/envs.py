"""echoscope envs: list, play and check the text worlds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echoscope.text.user_code import search_working_folder

from .options import AsJson
from .terminal import output_console, print_json, printable, progress_bars, table_of

if TYPE_CHECKING:
    from echoscope.envs.checks.check_env import CheckReport
    from echoscope.envs.checks.measure import ExpertScore
    from echoscope.envs.settings import EnvGroup
    from echoscope.envs.turns.turn import TurnEnv, TurnResult

app = typer.Typer(help="List, play and check environments.", no_args_is_help=True)
EnvId = Annotated[str, typer.Argument(help="Environment id, or 'module:Class'.")]
Params = Annotated[list[str] | None, typer.Argument(help="KEY=VALUE ..., the values in YAML.")]
MaxTurns = Annotated[
    int | None, typer.Option("--max-turns", min=1, help="Default: the environment's.")
]
MaxActions = Annotated[
    int | None, typer.Option("--max-actions-per-turn", min=1, help="Default: the environment's.")
]
SEPARATOR = "||"
CANNOT_PLAY = {"types", "hostile", "steps", "seeds"}
"""Failed checks after which neither speed nor the expert's score are measured: steps may raise."""


@app.command("list")
def list_envs(as_json: AsJson = False) -> None:
    """Print every environment with its limits and parameters."""
    from rich.console import Console

    from echoscope.envs import registry
    from echoscope.envs.params import choices, described_parameters

    search_working_folder()
    missing = registry.unavailable()
    specs = [registry.spec(env_id) for env_id in registry.known_ids() if env_id not in missing]
    if as_json:
        rows = [
            {
                "id": spec.id,
                "description": spec.description,
                "entry_point": spec.entry_point,
                "max_turns": spec.max_turns,
                "max_actions_per_turn": spec.max_actions_per_turn,
                "requires": list(spec.requires),
                "observation_formats": list(choices(spec.config_type, "observation")),
                "params": described_parameters(spec.config_type),
            }
            for spec in specs
        ]
        params = {env_id: _params_of_unavailable(env_id) for env_id in missing}
        listed = {"environments": rows, "unavailable": missing, "unavailable_params": params}
        print_json(listed, indent=2)
        return
    cells = []
    for spec in specs:
        names = ", ".join(_parameter_names(spec.config_type))
        limits = f"{spec.max_turns} x {spec.max_actions_per_turn}"
        cells.append((spec.id, limits, spec.description, names))
    cells += [(env_id, "-", f"not available: {why}", "") for env_id, why in missing.items()]
    Console().print(table_of(("id", "turns x actions", "description", "parameters"), cells))


@app.command()
def show(env_id: EnvId) -> None:
    """Print what a world shows, takes and pays, its parameters, and an episode of its expert."""
    from echoscope.envs.checks.description import described

    search_working_folder()
    typer.echo("\n".join(map(printable, described(env_id).splitlines())))


def _params_of_unavailable(env_id: str) -> dict[str, Any] | None:
    """The parameters of an environment that cannot run here; None where its class cannot load."""
    from echoscope.envs import registry
    from echoscope.envs.base import EnvError
    from echoscope.envs.params import described_parameters

    try:
        return described_parameters(registry.spec(env_id).config_type)
    except EnvError:
        return None


def _parameter_names(config_type: type[Any]) -> list[str]:
    """The parameters of an environment; those of `observation` with the formats that it has."""
    from echoscope.envs.params import choices

    names = [field.name for field in fields(config_type)]
    formats = " | ".join(choices(config_type, "observation"))
    return [f"{name} ({formats})" if name == "observation" and formats else name for name in names]


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
) -> None:
    """Play one episode: a line per turn, actions separated by '||' where several are allowed.

    Type actions and press Enter. An empty line is a turn without an action. 'hint' asks the
    expert. 'quit' (or the end of the input) leaves. Standard input works as well as a terminal.
    """
    from functools import partial

    from echoscope.envs import registry
    from echoscope.envs.base import EnvError, EnvUnavailableError
    from echoscope.envs.turns.wrappers import runner_of, wrap

    search_working_folder()
    group = make_group(env_id, params, max_turns, max_actions_per_turn)
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
        parts = [line] if group.is_one_action else line.split(SEPARATOR)
        result = stack.step_turn([part for part in parts if part.strip()], True)
        total += result.reward + result.format_penalty
        _show(result)
    typer.echo(f"{result.stop_reason}: return {total:g}, success {_success(result)}")


@app.command()
def check(
    env_id: Annotated[
        str | None, typer.Argument(help="Environment id, 'module:Class', or 'all'.")
    ] = None,
    params: Params = None,
    check_all: Annotated[bool, typer.Option("--all", help="Every named environment.")] = False,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=100_000, help="Tasks that the expert plays.")
    ] = 20,
    max_turns: MaxTurns = None,
    max_actions_per_turn: MaxActions = None,
    as_json: AsJson = False,
) -> None:
    """Test that environments follow the rules of the interface. Exit code 1 if one does not.

    The table says what is installed, whether the same seeds give the same episode (also in
    another process), on what share of tasks the scripted expert succeeds within the limits, and
    how many actions a second are stepped. Below it stands what players earn that do not solve the
    task: some repeat what they see, send junk, or do one action for ever.
    """
    from echoscope.envs import registry
    from echoscope.envs.base import EnvParamsError
    from echoscope.envs.checks.check_env import check_env

    is_all = check_all or env_id == "all"
    if is_all and (params or env_id not in (None, "all")):
        raise EnvParamsError("an id and parameters go with one environment, not with 'all'")
    if env_id is None and not is_all:
        raise EnvParamsError("name an environment, or give --all")
    search_working_folder()
    rows: list[_Checked] = []
    with progress_bars() as bars:
        report_progress = bars("environments")
        ids = registry.known_ids() if is_all else (str(env_id),)
        for done, each in enumerate(ids):
            report_progress(done, len(ids))
            group = make_group(each, params, max_turns, max_actions_per_turn)
            report = check_env(
                each,
                group.params,
                max_turns=max_turns,
                max_actions_per_turn=max_actions_per_turn,
            )
            rows.append(_measured(report, group, seeds))
    if as_json:
        print_json([row.as_json() for row in rows], indent=2)
    else:
        _print_checks(rows)
    if not all(row.report.is_ok for row in rows):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """What was found out about one environment.

    `steps_per_s` is None if nothing was measured. `score` is also None if it has no expert.
    """

    report: CheckReport
    score: ExpertScore | None = None
    steps_per_s: float | None = None

    @property
    def verdict(self) -> str:
        if self.report.failed:
            return "FAILED"
        return f"{len(self.report.passed)} passed" if self.report.is_installed else "skipped"

    @property
    def solvable(self) -> str:
        if not self.report.is_installed:
            return ""
        if self.steps_per_s is None:
            return "not measured"
        if self.score is None:
            return "no expert"
        return f"{self.score.num_solved} of {self.score.num_tried}"

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.report.env_id,
            "ok": self.report.is_ok,
            "installed": self.report.is_installed,
            "deterministic": self.report.is_deterministic,
            "expert": None if self.score is None else asdict(self.score),
            "steps_per_s": self.steps_per_s,
            "passed": list(self.report.passed),
            "failed": dict(self.report.failed),
            "skipped": dict(self.report.skipped),
            "scores": {name: asdict(score) for name, score in self.report.scores.items()},
        }


def _measured(report: CheckReport, group: EnvGroup, seeds: int) -> _Checked:
    """The report with the expert's score and the speed; without them if the world cannot play."""
    from echoscope.envs import registry
    from echoscope.envs.checks.measure import expert_score, steps_per_second

    cannot_play = CANNOT_PLAY & report.failed.keys() or "solvable" in report.skipped
    if not report.is_installed or cannot_play:
        return _Checked(report=report)
    env = registry.make(group.env, **group.params)
    try:
        speed, reports_success = steps_per_second(env), env.reports_success
    finally:
        env.close()
    score = expert_score(group, range(seeds))
    if score is not None and reports_success and not score.num_solved:
        unsolved = f"the expert solved 0 of {score.num_tried} tasks within the limits"
        report = replace(report, failed={"solvable": unsolved, **report.failed})
    return _Checked(report=report, score=score, steps_per_s=speed)


def _print_checks(rows: Sequence[_Checked]) -> None:
    """The table, and under it every failure and every skip with its reason."""
    words = {True: "yes", False: "NO", None: ""}
    cells = [
        (
            row.report.env_id,
            "yes" if row.report.is_installed else "no",
            row.verdict,
            words[row.report.is_deterministic],
            row.solvable,
            "" if row.steps_per_s is None else f"{row.steps_per_s:,.0f}",
        )
        for row in rows
    ]
    head = ("id", "installed", "checks", "deterministic", "solvable", "steps/s")
    output_console().print(table_of(head, cells, right=head[-2:]))
    for kind in ("failed", "skipped"):
        for row in rows:
            findings = row.report.failed if kind == "failed" else row.report.skipped
            for name, reason in findings.items():
                typer.echo(f"{kind:7} {row.report.env_id}, {name}: {printable(reason)}")
    for row in rows:
        earned = "; ".join(
            f"{name} {score.mean:.3g} ({score.success:.0%})"
            for name, score in row.report.scores.items()
        )
        if earned:
            typer.echo(f"players {row.report.env_id}, mean return (success): {earned}")


def parse_params(words: Sequence[str] | None) -> dict[str, Any]:
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


def make_group(
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
        params=parse_params(params),
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
