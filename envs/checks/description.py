"""A world in Markdown: what its docstring says, its parameters, its limits and an episode.

`echoscope envs show ID` prints it, and the page Worlds of the documentation has it of every world.
"""

from __future__ import annotations

import inspect
import json
import textwrap

import numpy as np

from echoscope.text.amounts import counted

from .. import registry
from ..base import EnvError, EnvSpec, TextEnv
from ..params import described_parameters
from ..pool import turns_of
from ..settings import EnvGroup
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
MAX_TURNS = 5
"""Of an example; those between the first ones and the last one are left out."""


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
    listed = described_parameters(spec.config_type)
    if not listed:
        return "**Parameters.** None."
    rows = []
    for name, facts in listed.items():
        default = f"`{_yaml(facts['default'])}`" if "default" in facts else "required"
        rows.append(f"| `{name}` | {facts['type']} | {default} |")
    meaning = inspect.cleandoc(spec.config_type.__doc__ or "")
    after_title = " ".join(meaning.partition("\n\n")[2].split()) or " ".join(meaning.split())
    return "\n".join(
        ["| parameter | type | default |", "| --- | --- | --- |", *rows, "", after_title]
    )


def _yaml(value: object) -> str:
    """As one writes it in a run file."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return json.dumps(value) if value in (None, "", True, False) else str(value)


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
    group = EnvGroup(env=env_id)
    stack, rng = turns_of(group), np.random.default_rng(0)
    most = group.settings().max_actions_per_turn
    try:
        for noise_seed in range(NOISE_SEEDS):
            opening = stack.reset(0, noise_seed)
            if opening.error:
                raise EnvError(opening.error)
            lines, total = [_cut(opening.observation.text)], 0.0
            env = stack.env
            has_expert = env.solve() is not None
            while True:
                legal = env.legal_actions()
                actions = env.solve() or [
                    legal[int(n)] for n in rng.integers(len(legal), size=most)
                ]
                result = stack.step_turn(actions[:most], True)
                total += result.reward + result.format_penalty
                observation_text = _cut(result.observation.text)
                played = _cut(" || ".join(actions[:most]))
                lines.append(f"> {played}\nreward {result.reward:g}\n{observation_text}")
                if result.stop_reason is not None:
                    break
            if result.success or not has_expert:
                break
    finally:
        stack.close()
    if (left_out := len(lines) - 1 - MAX_TURNS) > 0:
        lines[MAX_TURNS:-1] = [f"({counted(left_out, 'more turn')})"]
    success = {True: "yes", False: "no", None: "unknown"}[result.success]
    lines.append(f"{result.stop_reason}: return {total:g}, success {success}")
    player = "the expert" if has_expert else "random legal actions (there is no expert)"
    noise = f" (noise seed {noise_seed})" if noise_seed else ""
    transcript = "\n\n".join(lines).replace("```", "'''")
    return f"Example, played by {player}{noise}:\n\n```text\n{transcript}\n```"


def _cut(text: str) -> str:
    """The beginning of a long text."""
    lines = [
        textwrap.shorten(line, 300, placeholder=" (cut)") if len(line) > 300 else line.rstrip()
        for line in text.expandtabs(4).splitlines()
    ]
    shorter: list[str] = []
    for line in lines:
        if len(shorter) == MAX_LINES or len("".join(shorter)) + len(line) > MAX_CHARS:
            shorter.append(f"({counted(len(lines) - len(shorter), 'more line')})")
            break
        shorter.append(line)
    return "\n".join(shorter)
