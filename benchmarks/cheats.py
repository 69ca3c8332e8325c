"""What players earn who do not do the task: the echo, the empty reply, the staller and others.

    python benchmarks/cheats.py [--only sudoku,webshop] [--tasks 200]

Prints a Markdown table: for each world the expert, random legal actions, and the cheat that earns
most. docs/environments.md has the worlds where a cheat earns more than half of the expert's return.
`tests/benchmarks/test_cheats.py` bounds every cheat.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from common import describe_machine, markdown_row, markdown_table, read_options

from echoscope.envs import registry
from echoscope.envs.base import TextEnv
from echoscope.envs.checks.players import has_expert
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.runner import TurnRunner
from echoscope.envs.turns.turn import TurnResult
from echoscope.envs.worlds.puzzles.game_2048 import MOVES, Game2048, best_move, largest, slide
from echoscope.envs.worlds.puzzles.sudoku import Sudoku
from echoscope.text.tool_calls import call_action

TASKS = 200
MORE_TASKS: Mapping[str, int] = {"bandit": 4000}
"""Where the payout is mostly luck."""
CHOICES = 64
"""Actions that a cheat chooses from, where a world lists more."""


@dataclass(slots=True)
class Game:
    """What a player knows: the texts, the own actions and what each of them did."""

    env: TextEnv
    rng: np.random.Generator
    texts: list[str]
    actions: list[str] = field(default_factory=list)
    results: list[TurnResult] = field(default_factory=list)

    @property
    def legal(self) -> tuple[str, ...]:
        """What can be done now; something to say where nothing is listed."""
        if isinstance(self.env, Sudoku):  # its guesses begin with a cell that is known to be wrong
            return tuple(f"{cell},{number}" for cell in self.open_cells for number in "1234")
        return (self.env.legal_actions() or self.env.guesses() or ("wait",))[:CHOICES]

    @property
    def open_cells(self) -> list[str]:
        """Row and column of the cells of a Sudoku that were empty at first."""
        rows = [re.findall(r"\[\d\]| \. ", row) for row in self.texts[0].splitlines()]
        return [
            f"{number},{col}"
            for number, row in enumerate(filter(None, rows), start=1)
            for col, cell in enumerate(row, start=1)
            if cell == " . "
        ]


Player = Callable[[Game], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Means over tasks. `success` is None where the world cannot tell."""

    mean_return: float
    success: float | None


def randomly(game: Game) -> str:
    return game.legal[int(game.rng.integers(len(game.legal)))]


def by_reward(game: Game) -> str:
    """Tries one action after another, and begins anew after a reward."""
    tried = 0
    for result in reversed(game.results):
        if result.reward > 0:
            break
        tried += 1
    return game.legal[tried % len(game.legal)]


def cell_by_cell(game: Game) -> str:
    """Sudoku: one number after another in a cell, until the reward says right."""
    played = zip(game.actions, game.results, strict=True)
    right = {action.rpartition(",")[0] for action, result in played if result.reward > 0}
    cell = next(cell for cell in game.open_cells if cell not in right)
    return f"{cell},{sum(action.startswith(cell) for action in game.actions) + 1}"


def idly(game: Game) -> str:
    """Repeats what was valid and did nothing; until there is such an action, tries one by one."""
    for action, result in zip(game.actions, game.results, strict=True):
        if result.is_valid and not result.is_effective:
            return action
    return game.legal[len(game.actions) % len(game.legal)]


GENERIC: Mapping[str, Player] = {
    "echo of the observation": lambda game: game.texts[-1],
    "echo of the first line": lambda game: game.texts[0].splitlines()[0],
    "empty reply": lambda game: "",
    "0": lambda game: "0",
    "always the first action": lambda game: game.legal[0],
    "always the last action": lambda game: game.legal[-1],
    "the same action again": lambda game: game.actions[-1] if game.actions else randomly(game),
    "every action until the reward says right": by_reward,
    "valid actions that do nothing": idly,
}


def numbers_of(game: Game) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", game.texts[0])]


def largest_but_smallest(game: Game) -> str:
    """Of the numbers in rising order: all added, but the smallest taken away."""
    *numbers, _ = numbers_of(game)
    return "+".join(map(str, numbers[1:])) + f"-{numbers[0]}"


def putting_off(game: Game) -> str:
    """Plays 2048 well, but merges into the goal only where nothing else is possible."""
    world = game.env
    assert isinstance(world, Game2048)
    tiles = world._tiles
    after = {move: slide(tiles, move)[0] for move in MOVES}
    others = [
        move
        for move, moved in after.items()
        if moved != tiles and largest(moved) < world._config.goal
    ]
    best = best_move(tiles)
    return best if best in others or not others else others[0]


def without_conflict(game: Game) -> str:
    """Sudoku: the next number where a cell conflicts; what does not conflict stays."""
    rows = [re.findall(r"\[\d\]|\*\d\*| \d | \. ", row) for row in game.texts[-1].splitlines()]
    for number, row in enumerate(filter(None, rows), start=1):
        for col, cell in enumerate(row, start=1):
            if cell == " . ":
                return f"{number},{col},1"
            if cell[0] == "*":
                return f"{number},{col},{int(cell[1]) % 4 + 1}"
    return game.actions[-1]  # a board without conflicts that is not the solution


def wish_of(game: Game) -> str:
    return game.texts[0].removeprefix("Instruction: ").splitlines()[0]


def says(wish: str, value: str) -> bool:
    return re.search(rf"\b{re.escape(value.casefold())}\b", wish.casefold()) is not None


def first_hit(game: Game, *, with_options: bool) -> str:
    """Searches for the instruction, opens the first result, clicks what it names, buys."""
    labels = [action.removeprefix("click[").removesuffix("]") for action in game.legal]
    if not game.actions:
        return f"search[{wish_of(game)}]"
    if "buy now" not in labels:
        hits = [label for label in labels if re.fullmatch(r"p\d+", label)]
        return f"click[{hits[0]}]" if hits else "click[back to search]"
    for label in labels if with_options else ():
        click = f"click[{label}]"
        if says(wish_of(game), label.partition(": ")[2] or label) and click not in game.actions:
            return click
    return "click[buy now]"


def first_hit_well_chosen(game: Game) -> str:
    """The same, and reads in the instruction which options are wanted and which are not."""
    wish = wish_of(game)
    refused = " ".join(re.findall(r": not ([^:]+?)(?:, and|$)", wish))
    labels = [action.removeprefix("click[").removesuffix("]") for action in game.legal]
    if not game.actions or "buy now" not in labels:
        return first_hit(game, with_options=True)
    for line in game.texts[-1].splitlines()[2:]:
        name, _, values = line.partition(": ")
        if name == "Chosen":
            break
        asked = wish.partition(f"{name}: ")[2].partition(", and")[0]
        for value in values.split(", "):
            is_wanted = says(asked, value) != asked.startswith("not ")
            if is_wanted and not says(refused, value) and f"click[{value}]" not in game.actions:
                return f"click[{value}]"
    return "click[buy now]"


def first_hit_by_tools(game: Game) -> str:
    """The same by tool calls."""
    wish = wish_of(game)
    if not game.actions:
        return call_action("search", {"query": wish})
    hits = re.findall(r"^(P\d+):", game.texts[1], re.MULTILINE)
    if not hits:
        return call_action("buy", {})
    if len(game.actions) == 1:
        return call_action("open", {"product": hits[0]})
    for line in game.texts[2].splitlines()[1:]:
        name, _, values = line.partition(": ")
        for value in values.split(", ") if name != "Features" else ():
            choice = call_action("choose", {"option": name, "value": value})
            if says(wish, value) and choice not in game.actions:
                return choice
    return call_action("buy", {})


OWN: Mapping[str, Mapping[str, Player]] = {
    "countdown": {
        "the sum of all numbers": lambda game: "+".join(map(str, numbers_of(game)[:-1])),
        "the sum, the smallest taken away": largest_but_smallest,
    },
    "game_2048": {"puts the goal off": putting_off},
    "sudoku": {
        "every number until the reward says right": cell_by_cell,
        "the next number where there is a conflict": without_conflict,
    },
    "webshop": {
        "first hit, options that the instruction names": functools.partial(
            first_hit, with_options=True
        ),
        "first hit, the right options": first_hit_well_chosen,
        "first hit, no options": functools.partial(first_hit, with_options=False),
    },
    "shop_tools": {"first hit, options that the instruction names": first_hit_by_tools},
    "static_qa": {
        "the last number of the question": lambda game: str(numbers_of(game)[-1]),
        "the sum of its numbers": lambda game: str(sum(numbers_of(game))),
    },
    "metamathqa": {
        "the last number of the question": lambda game: str(numbers_of(game)[-1]),
        "the sum of its numbers": lambda game: str(sum(numbers_of(game))),
    },
    "price_list": {"an answer without a look": lambda game: "answer 20"},
    "spatial": {"an answer without a look": lambda game: game.legal[4]},
    "lean": {
        "steps that prove nothing": lambda game: f"have h{len(game.actions)} : True := trivial"
    },
}
"""World to what one would try there."""


def cheats_of(env_id: str) -> dict[str, Player]:
    """Every cheat of a world by its name."""
    return {**GENERIC, **OWN.get(env_id, {})}


def play(env_id: str, player: Player | None, tasks: int = TASKS) -> Outcome:
    """A player's outcome in the default configuration; None is the expert."""
    tasks = MORE_TASKS.get(env_id, tasks)
    group = EnvGroup(env=env_id)
    settings = group.settings()
    stack = TurnRunner(functools.partial(registry.make, env_id, **group.params), settings)
    returns, successes = [], []
    try:
        for seed in range(tasks):
            first = stack.reset(seed, tasks + seed)  # an equal seed would draw equal numbers
            env = stack.env
            game = Game(env, np.random.default_rng(seed), [first.observation.text])
            while not game.results or game.results[-1].stop_reason is None:
                plan = (env.solve() or [""]) if player is None else [player(game)]
                game.actions += plan[:1]
                game.results.append(stack.step_turn(plan[: settings.max_actions_per_turn], True))
                game.texts.append(game.results[-1].observation.text)
            returns.append(sum(each.reward + each.format_penalty for each in game.results))
            successes.append(game.results[-1].success)
    finally:
        stack.close()
    outcomes = [success for success in successes if success is not None]
    return Outcome(
        mean_return=sum(returns) / tasks,
        success=sum(outcomes) / len(outcomes) if outcomes else None,
    )


def best_cheat(env_id: str, tasks: int) -> tuple[str, Outcome]:
    """The cheat with the highest return, among equals with the highest success."""
    outcomes = {name: play(env_id, cheat, tasks) for name, cheat in cheats_of(env_id).items()}
    return max(outcomes.items(), key=lambda each: (each[1].mean_return, each[1].success or 0.0))


def shown(outcome: Outcome) -> str:
    success = "unknown" if outcome.success is None else f"{100 * outcome.success:.1f} %"
    return f"{outcome.mean_return:.2f}, {success}"


def main() -> None:
    arguments = read_options(
        __doc__, only=(str, "Comma-separated ids; all by default."), tasks=TASKS
    )
    missing = registry.unavailable()
    ids = arguments.only.split(",") if arguments.only else registry.known_ids()
    print(f"{arguments.tasks} tasks each; {describe_machine()}\n")
    print(markdown_table(("world", "expert", "random", "best cheat", "it earns")))
    for env_id in ids:
        if env_id in missing or not has_expert(EnvGroup(env=env_id)):
            continue
        name, cheat = best_cheat(env_id, arguments.tasks)
        expert, by_chance = (play(env_id, player, arguments.tasks) for player in (None, randomly))
        cells = (f"`{env_id}`", shown(expert), shown(by_chance), name, shown(cheat))
        print(markdown_row(cells), flush=True)


if __name__ == "__main__":
    main()
