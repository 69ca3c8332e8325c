"""docs/worlds.md, written from the docstrings of the worlds and from episodes that are played.

    python benchmarks/world_pages.py

An episode is the expert's at seed 0, in the shipped limits. A world that cannot run here keeps the
episode that the page has, or says what it lacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import textwrap
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from echoscope.envs import registry
from echoscope.envs.base import EnvError, EnvSpec, Observation, TextEnv
from echoscope.envs.checks.contract import HEADINGS
from echoscope.envs.params import describe_type
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.turn import TurnEnv, TurnResult
from echoscope.envs.turns.wrappers import runner_of, wrap
from echoscope.text.amounts import counted

PAGE = Path(__file__).parents[1] / "docs" / "worlds.md"
NOT_RECORDED = {
    "remote": "Example, in two terminals:\n\n"
    "```\nechoscope envs serve frozen_lake slip=0\n```\n\n"
    "```sh\nechoscope envs play remote url=http://127.0.0.1:8700 --expert\n```"
}
"""Instead of an episode, for worlds that could not run where the page was written."""
NO_EXAMPLE = (
    "No example here: the world needs what stands under Requires. With it, "
    "`echoscope envs play {} --expert` plays one."
)
HEAD = """# Worlds

After reading this page you know what each shipped world shows, what it takes, what it pays and when
it ends. How to configure, check and write worlds is in [Environments](environments.md).

This page is generated: `python benchmarks/world_pages.py` writes it from the docstrings. The
example episodes are the expert's at seed 0, within the shipped limits. Where random events let the
expert fail at noise seed 0, the episode has the first noise seed at which the expert succeeds.

Values of parameters are YAML: `null` is no value.

![One picture of every world, as the page Replay draws it](pictures/worlds.png)
"""
WHERE = {"alfworld": ", in a small kitchen of our own in ALFWorld's format"}
"""Where an example was played, if not in the world's own data."""
MAX_LINES, MAX_CHARS = 16, 900
"""Of one observation in an example; longer ones are cut."""
NOISE_SEEDS = 10
"""That are tried for an episode that the expert solves."""
FIRST_TURNS, LAST_TURNS = 4, 1
"""Of an example; those between are left out."""


def page(existing: str = "") -> str:
    """The whole page.

    Args:
        existing: the page as it is, for the episodes of worlds that cannot run here.
    """
    return "\n".join([HEAD, *(section(env_id, existing) for env_id in registry.BUILTIN)])


def section(env_id: str, existing: str) -> str:
    """One world: what its docstring says, its parameters and limits, and an episode."""
    world = world_class(env_id)
    spec = world.spec
    parts = [f"## {env_id}", "", spec.description, ""]
    headings = docstring_parts(world)
    for heading in HEADINGS:
        if heading == "Example:":
            continue
        parts += [f"**{heading.removesuffix(':')}.** {headings[heading]}", ""]
    parts += [limits(spec), "", parameters(spec), ""]
    parts += [example(env_id, existing)]
    return "\n".join(parts)


def world_class(env_id: str) -> type[TextEnv]:
    module, _, name = registry.BUILTIN[env_id].partition(":")
    found: type[TextEnv] = getattr(__import__(module, fromlist=[name]), name)
    return found


def docstring_parts(world: type[TextEnv]) -> dict[str, str]:
    """Heading -> text on one line."""
    text = inspect.cleandoc(world.__doc__ or "")
    at = [text.index(heading) for heading in HEADINGS]
    ends = [*at[1:], len(text)]
    return {
        heading: " ".join(text[start + len(heading) : end].split())
        for heading, start, end in zip(HEADINGS, at, ends, strict=True)
    }


def limits(spec: EnvSpec) -> str:
    turns, actions = counted(spec.max_turns, "turn"), counted(spec.max_actions_per_turn, "action")
    each = " each" if spec.max_turns > 1 else ""
    install = f" Install: `pip install -e '.[{spec.extra}]'`." if spec.extra else ""
    return f"**Limits.** {turns}, at most {actions}{each}, unless set otherwise.{install}"


def parameters(spec: EnvSpec) -> str:
    """A table of the parameters, and what the configuration says about them."""
    fields = dataclasses.fields(spec.config_type)
    if not fields:
        return "**Parameters.** None."
    hints = get_type_hints(spec.config_type)
    rows = [
        f"| `{field.name}` | {cell(describe_type(hints[field.name]))} | {cell(default(field))} |"
        for field in fields
    ]
    words = re.sub(r"\s+", " ", " ".join((spec.config_type.__doc__ or "").split("\n\n")[1:]))
    if not words.strip():
        words = re.sub(r"\s+", " ", spec.config_type.__doc__ or "")
    return "\n".join(
        ["| parameter | type | default |", "| --- | --- | --- |", *rows, "", words.strip()]
    )


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{yaml_value(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{yaml_value(field.default_factory())}`"
    return "required"


def yaml_value(value: object) -> str:
    """As one writes it in a run file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(yaml_value, value))}]"
    return str(value) if value != "" else '""'


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def example(env_id: str, existing: str) -> str:
    """An episode in a block of its own, between comments that name the world."""
    begin, end = f"<!-- episode of {env_id}: begin -->", f"<!-- episode of {env_id}: end -->"
    body = ""
    if env_id not in registry.unavailable():
        try:
            body = episode(env_id)
        except EnvError as error:
            print(f"{env_id}: {error}")
    kept = existing.partition(begin)[2].partition(end)[0].strip()
    if not kept.startswith("Example, played by"):
        kept = ""
    body = body or kept or NOT_RECORDED.get(env_id, NO_EXAMPLE.format(env_id))
    return f"{begin}\n{body}\n{end}\n"


def episode(env_id: str) -> str:
    """The expert's episode, or one of random legal actions where there is no expert."""
    settings = EnvGroup(env=env_id).settings()
    stack = wrap(partial(registry.make, env_id), settings)
    try:
        for noise_seed in range(NOISE_SEEDS):
            first = stack.reset(0, noise_seed)
            if error := runner_of(stack).error:
                raise EnvError(error)
            has_expert = runner_of(stack).env.solve() is not None
            turns = played(stack, settings.max_actions_per_turn)
            if turns[-1][1].success or not has_expert:
                break
    finally:
        stack.close()
    who = "the expert" if has_expert else "random legal actions (there is no expert)"
    who += WHERE.get(env_id, "")
    noise = f" (noise seed {noise_seed})" if noise_seed else ""
    return f"Example, played by {who}{noise}:\n\n```text\n{told(first, turns)}\n```"


def told(first: Observation, turns: list[tuple[str, TurnResult]]) -> str:
    """An episode in words: the first turns and the last one."""
    shown = [cut(first.text)]
    left_out = len(turns) - FIRST_TURNS - LAST_TURNS
    for number, (line, result) in enumerate(turns, start=1):
        if FIRST_TURNS < number <= len(turns) - LAST_TURNS:
            if number == FIRST_TURNS + 1:
                shown.append(f"({counted(left_out, 'more turn')})")
            continue
        shown.append(f"> {cut(line)}\nreward {result.reward:g}\n{cut(result.observation.text)}")
    last = turns[-1][1]
    total = sum(result.reward + result.format_penalty for _, result in turns)
    success = {True: "yes", False: "no", None: "unknown"}[last.success]
    shown.append(f"{last.stop_reason}: return {total:g}, success {success}")
    return "\n\n".join(shown).replace("```", "'''")


def played(stack: TurnEnv, max_actions: int) -> list[tuple[str, TurnResult]]:
    """(actions, result) of every turn."""
    env, rng = runner_of(stack).env, np.random.default_rng(0)
    turns: list[tuple[str, TurnResult]] = []
    while not turns or turns[-1][1].stop_reason is None:
        moves = env.solve()
        if moves is None:
            legal = env.legal_actions()
            moves = [legal[int(n)] for n in rng.integers(len(legal), size=max_actions)]
        actions = moves[:max_actions]
        turns.append((" || ".join(actions), stack.step_turn(actions, True)))
    return turns


def cut(text: str) -> str:
    """The beginning of a long text."""
    lines = [
        textwrap.shorten(line, 300, placeholder=" (cut)") if len(line) > 300 else line
        for line in text.expandtabs(4).splitlines()
    ]
    kept, size = [], 0
    for line in lines:
        size += len(line)
        if len(kept) == MAX_LINES or size > MAX_CHARS:
            kept.append(f"({counted(len(lines) - len(kept), 'more line')})")
            break
        kept.append(line.rstrip())
    return "\n".join(kept)


def main() -> None:
    from outside_parts import kitchens, real_lean_server

    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    existing = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    with kitchens(), real_lean_server():
        PAGE.write_text(page(existing), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
