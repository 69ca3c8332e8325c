"""A world in Markdown: what its docstring says, its parameters, its limits and an episode.

`echoscope envs show ID` prints it, and the page Worlds of the documentation has it of every world.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from functools import partial
from typing import Any, get_type_hints

import numpy as np

from echoscope.text.amounts import counted

from .. import registry
from ..base import EnvError, EnvSpec, Observation, TextEnv
from ..params import describe_type
from ..settings import EnvGroup
from ..turns.turn import TurnEnv, TurnResult
from ..turns.wrappers import runner_of, wrap
from .contract import HEADINGS

NEEDS_A_SERVER = (
    "Example, in two terminals:\n\n"
    "```\nechoscope envs serve frozen_lake slip=0\n```\n\n"
    "```sh\nechoscope envs play remote url=http://127.0.0.1:8700 --expert\n```"
)
NO_EXAMPLE = (
    "No example here: the world needs what stands under Requires. With it, "
    "`echoscope envs play {} --expert` plays one."
)
MAX_LINES, MAX_CHARS = 16, 900
"""Of one observation in an example; longer ones are cut."""
NOISE_SEEDS = 10
"""That are tried for an episode that the expert solves."""
FIRST_TURNS, LAST_TURNS = 4, 1
"""Of an example; those between are left out."""


def described(env_id: str) -> str:
    """The whole section of a world.

    Raises:
        EnvError: there is no such world, or its module cannot be imported.
    """
    world = registry.env_class(env_id)
    parts = [f"## {env_id}", world.spec.description]
    parts += [f"**{heading}.** {text}" for heading, text in docstring_parts(world).items()]
    parts += [limits(world.spec), parameters(world.spec), example(env_id)]
    return "\n\n".join(parts) + "\n"


def docstring_parts(world: type[TextEnv]) -> dict[str, str]:
    """Heading -> text on one line, of the headings that the docstring has; without its example."""
    text = inspect.cleandoc(world.__doc__ or "")
    headings = [heading for heading in HEADINGS if heading in text]
    starts = [text.index(heading) for heading in headings]
    return {
        heading.removesuffix(":"): " ".join(text[start + len(heading) : end].split())
        for heading, start, end in zip(headings, starts, [*starts[1:], len(text)], strict=True)
        if heading != "Example:"
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
        f"| `{field.name}` | {_cell(describe_type(hints[field.name]))} | {_cell(_default(field))} |"
        for field in fields
    ]
    meaning = inspect.cleandoc(spec.config_type.__doc__ or "")
    after_title = " ".join(meaning.partition("\n\n")[2].split()) or " ".join(meaning.split())
    return "\n".join(
        ["| parameter | type | default |", "| --- | --- | --- |", *rows, "", after_title]
    )


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{_yaml(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{_yaml(field.default_factory())}`"
    return "required"


def _yaml(value: object) -> str:
    """As one writes it in a run file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value) if value != "" else '""'


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def example(env_id: str) -> str:
    """An episode, or why there is none."""
    if env_id == "remote":
        return NEEDS_A_SERVER
    try:
        return episode(env_id)
    except EnvError:
        return NO_EXAMPLE.format(env_id)


def episode(env_id: str) -> str:
    """The expert's episode at seed 0, or random legal actions where there is no expert.

    Where random events let the expert fail at noise seed 0, the first noise seed at which the
    expert succeeds.
    """
    settings = EnvGroup(env=env_id).settings()
    stack = wrap(partial(registry.make, env_id), settings)
    try:
        for noise_seed in range(NOISE_SEEDS):
            first = stack.reset(0, noise_seed)
            if error := runner_of(stack).error:
                raise EnvError(error)
            has_expert = runner_of(stack).env.solve() is not None
            turns = _played(stack, settings.max_actions_per_turn)
            if turns[-1][1].success or not has_expert:
                break
    finally:
        stack.close()
    player = "the expert" if has_expert else "random legal actions (there is no expert)"
    noise = f" (noise seed {noise_seed})" if noise_seed else ""
    return f"Example, played by {player}{noise}:\n\n```text\n{_transcript(first, turns)}\n```"


def _played(stack: TurnEnv, max_actions: int) -> list[tuple[str, TurnResult]]:
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


def _transcript(first: Observation, turns: list[tuple[str, TurnResult]]) -> str:
    """The first turns of an episode and the last one."""
    lines = [_cut(first.text)]
    left_out = len(turns) - FIRST_TURNS - LAST_TURNS
    for number, (actions, result) in enumerate(turns, start=1):
        if FIRST_TURNS < number <= len(turns) - LAST_TURNS:
            if number == FIRST_TURNS + 1:
                lines.append(f"({counted(left_out, 'more turn')})")
            continue
        observation = _cut(result.observation.text)
        lines.append(f"> {_cut(actions)}\nreward {result.reward:g}\n{observation}")
    last = turns[-1][1]
    total = sum(result.reward + result.format_penalty for _, result in turns)
    success = {True: "yes", False: "no", None: "unknown"}[last.success]
    lines.append(f"{last.stop_reason}: return {total:g}, success {success}")
    return "\n\n".join(lines).replace("```", "'''")


def _cut(text: str) -> str:
    """The beginning of a long text."""
    lines = [
        textwrap.shorten(line, 300, placeholder=" (cut)") if len(line) > 300 else line
        for line in text.expandtabs(4).splitlines()
    ]
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line)
        if len(kept) == MAX_LINES or size > MAX_CHARS:
            kept.append(f"({counted(len(lines) - len(kept), 'more line')})")
            break
        kept.append(line.rstrip())
    return "\n".join(kept)
