"""Options that several commands have, each spelled once, and what follows from their words; and the
exit codes by which commands speak to a script."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from echoscope.diagnostics.judge.record import Verdict
    from echoscope.diagnostics.read.foreign_names import Meaning


class Exit(IntEnum):
    OK = 0
    """Healthy, converged, or watch."""
    REJECTED = 1
    USAGE = 2
    COLLAPSE = 3
    NOTHING_HOLDS = 3
    DO_NOT_START = 3
    UNREADABLE = 4
    NOT_ANSWERED = 4
    INSUFFICIENT = 5
    CRASHED = 6
    """The curves are in order, and the run ended by an accident."""


class FailOn(StrEnum):
    COLLAPSE = "collapse"
    WATCH = "watch"


def exit_code(verdict: Verdict, fail_on: FailOn) -> Exit:
    """The exit code of a verdict."""
    from echoscope.diagnostics.judge.alarms import RunState
    from echoscope.diagnostics.judge.claims import Fate

    has_crashed = any(
        isinstance(claim, Fate) and claim.kind in ("crashed", "failed") for claim in verdict.claims
    )
    if verdict.state is RunState.INSUFFICIENT:
        return Exit.INSUFFICIENT
    is_failure = verdict.state.is_failure or (
        fail_on is FailOn.WATCH and verdict.state is RunState.WATCH
    )
    if is_failure:
        return Exit.COLLAPSE
    return Exit.CRASHED if has_crashed else Exit.OK


Recipe = Annotated[
    str | None, typer.Argument(help="Recipe name; `echoscope config show` lists them.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="KEY=VALUE ..., for example optim.lr=1e-4.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Run file (YAML): settings on top of a recipe. KEY=VALUE words override it.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="RUN", help="The run's folder; default: runs/NAME."),
]
Root = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Headless = Annotated[
    bool, typer.Option("--headless", help="Print a line a step instead of the live view.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
MetricsRun = Annotated[
    str,
    typer.Option("--run", metavar="NAME", help="Which run, where metrics files hold several."),
]
Meanings = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NAME=KEY",
        help="Meaning of a metrics column, such as ent=policy/entropy, it=step, or "
        "bad=1-rollout/action_valid_frac; or a key of rollouts by its role (prompt, reply, reward, "
        "group, step, success), such as reply=model_text. Repeat for more.",
    ),
]
FailOnOption = Annotated[
    FailOn,
    typer.Option(
        help="collapse: exit code 3 for collapsing, collapsed and not learning. "
        "watch: for watch as well.",
    ),
]


def recipe_and_words(
    recipe: str | None, overrides: Sequence[str] | None
) -> tuple[str | None, list[str]]:
    """The recipe and the KEY=VALUE words: where no recipe is named, the first word stands there.

    >>> recipe_and_words("demo", ["steps=9"]), recipe_and_words("steps=9", None)
    (('demo', ['steps=9']), (None, ['steps=9']))
    """
    words = [word for word in (recipe, *(overrides or ())) if word is not None]
    return (words[0], words[1:]) if words and "=" not in words[0] else (None, words)


def required_recipe(
    recipe: str | None, overrides: Sequence[str] | None, config: Path | None
) -> tuple[str | None, list[str]]:
    """As `recipe_and_words`; BadParameter where neither a recipe nor a file is named."""
    recipe, words = recipe_and_words(recipe, overrides)
    if recipe is None and config is None:
        raise typer.BadParameter("name a recipe, or give --config FILE.yaml")
    return recipe, words


def mapping_of(meanings: Sequence[str] | None) -> dict[str, Meaning]:
    """What the words of `--map` say of columns.

    Raises:
        MetricNameError: a word is not NAME=KEY, or the key is unknown.
    """
    from echoscope.diagnostics.judge.courses.channels import known_keys
    from echoscope.diagnostics.read.names import parse_map

    return parse_map(meanings or (), known_keys(), has_rollouts=True)


def step_range(
    text: str, error: type[Exception] = typer.BadParameter
) -> tuple[int | None, int | None]:
    """The first and the last step of `A:B`, `A:`, `:B` or one step; None for no bound.

    >>> step_range("3:9"), step_range(":9"), step_range("3"), step_range("")
    ((3, 9), (None, 9), (3, 3), (None, None))
    """
    first, colon, last = text.partition(":")
    bounds = [first, last if colon else first]
    if any(bound and not (bound.isascii() and bound.isdigit()) for bound in bounds):
        raise error(f"--steps is {text!r}, but must be A:B, A:, :B or one step")
    start, end = (int(bound) if bound else None for bound in bounds)
    return start, end


def new_run_path(root: Path, name: str) -> Path:
    """`root/<name>-<date>-<time>-<4 hex>`."""
    return root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
