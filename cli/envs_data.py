"""echoscope envs export and data: tasks as a data set, and the data that worlds read."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .envs import EnvId, MaxActions, MaxTurns, Params, RegisterFile, make_group, prepare
from .options import AsJson, Overwrite
from .terminal import output_console, print_json, progress_bars, table_of

WIDTH = 200
"""Columns of the table of data in a file or a pipe."""


class Split(StrEnum):
    train = "train"
    eval = "eval"


def export(
    env_id: EnvId,
    params: Params = None,
    *,
    path: Annotated[
        Path, typer.Option("-o", "--output", help="File to write: .parquet or .jsonl.")
    ],
    episodes: Annotated[int, typer.Option(min=1, help="Tasks, a row each.")] = 1000,
    split: Annotated[
        Split,
        typer.Option(help="eval: tasks reserved for evaluation, where there are enough tasks."),
    ] = Split.train,
    seed: Annotated[int, typer.Option(min=0, help="The seed of a run.")] = 0,
    overwrite: Overwrite = False,
    max_turns: MaxTurns = None,
    max_actions_per_turn: MaxActions = None,
    register: RegisterFile = None,
) -> None:
    """Write first prompts, with seeds and task keys, as a prompt data set for TRL or verl.

    The file appears when it is complete, or not at all.
    """
    from echoscope.envs.base import EnvParamsError
    from echoscope.envs.data.prompts import WRITERS, draw_prompts, few_tasks_note
    from echoscope.store.log.durable import replace_file
    from echoscope.text.amounts import counted

    write = WRITERS.get(path.suffix)
    if write is None:
        raise EnvParamsError(f"{path} is none of {', '.join(WRITERS)}: name the file by what it is")
    if not path.absolute().parent.is_dir():
        raise EnvParamsError(f"there is no folder {path.absolute().parent}: make it first")
    if path.exists() and not path.is_file():
        raise EnvParamsError(f"{path} is not a regular file: choose another name")
    if path.exists() and not overwrite:
        raise EnvParamsError(f"{path} exists: choose another name, or add --overwrite")
    prepare(env_id, register)
    group = make_group(env_id, params, max_turns, max_actions_per_turn)
    with progress_bars() as bars:
        drawn = draw_prompts(group, episodes, split=split.value, seed=seed, report=bars("tasks"))
        prompts = list(drawn)
    replace_file(path, write(prompts))
    num_tasks = len({prompt.task_key for prompt in prompts})
    rows, tasks = counted(len(prompts), "prompt"), counted(num_tasks, "different task")
    typer.echo(f"wrote {rows} of {tasks} to {path}")
    if note := few_tasks_note(group):
        typer.echo(f"warning: {note}", err=True)


def data(as_json: AsJson = False) -> None:
    """Say which data each environment has, which public set it reads, and by which parameter."""
    from echoscope.envs import registry
    from echoscope.envs.data import sources

    if as_json:
        print_json([sources.as_json(env_id) for env_id in registry.BUILTIN], indent=2)
        return
    listed = {env_id for facts in sources.SOURCES for env_id in facts.worlds}
    others = tuple(env_id for env_id in registry.BUILTIN if env_id not in listed)
    rows = []
    for facts in (*sources.SOURCES, sources.WorldData(worlds=others, made=sources.DRAWN)):
        here = [_plain(facts.made)] if facts.made else []
        for file in facts.shipped:
            state = f"{file.rows:,} rows" if file.is_there else "missing: install Echoscope again"
            here.append(f"{file.name}: {state}, licence: {_plain(file.licence)}")
        ids, made = ", ".join(facts.worlds), "; ".join(here) or "nothing"
        for public in facts.public:
            state = {True: ", present", False: ", missing", None: ""}[public.is_there]
            ways = [*public.params, *[f"${public.variable}"] * bool(public.variable)]
            name = f"{public.name} ({public.size}{state})"
            rows.append((ids, made, name, ", ".join(ways)))
            ids, made = "", ""
        if not facts.public:
            rows.append((ids, made, "", ""))
    head = ("environments", "ships with Echoscope", "public set", "parameters")
    output_console(pipe_width=WIDTH, is_wrapped=True).print(table_of(head, rows))
    # Not in the table: a narrow column would break an address.
    typer.echo("\nFormat of each public set:")
    described = {public.name: public.described for f in sources.SOURCES for public in f.public}
    for name, text in described.items():
        typer.echo(f"  {name}: {text}")
    typer.echo(
        "\nA public set does not ship. Fetch it from its makers and give its files as parameters: "
        "docs/environments.md."
    )


def _plain(markdown: str) -> str:
    """Markdown of one line without the addresses of its links and without its marks."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")
