"""Small games in ALFWorld's own format, made from the domain and grammar that its package ships.

A folder like that of `alfworld-download`: `json_2.1.1/<split>/<trial>/{game.tw-pddl,
traj_data.json}`. The kitchens are our own.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

SPLITS = ("train", "valid_seen", "valid_unseen")
_TYPES = "CounterTopType CabinetType DrawerType SinkBasinType MicrowaveType FridgeType"
_THINGS = ("Mug", "Plate", "Spoon")


def write_games(folder: Path, games: int = 3) -> Path:
    """`games` kitchens in each split; the thing and where it lies differ."""
    (package,) = importlib.util.find_spec("alfworld").submodule_search_locations or ()  # type: ignore[union-attr]
    domain = (Path(package) / "data" / "alfred.pddl").read_text(encoding="utf-8")
    grammar = (Path(package) / "data" / "alfred.twl2").read_text(encoding="utf-8")
    for offset, split in enumerate(SPLITS):
        for number in range(games):
            thing = _THINGS[(number + offset) % len(_THINGS)]
            trial = folder / "json_2.1.1" / split / f"{thing}-{number}" / "trial_1"
            trial.mkdir(parents=True)
            game = {
                "pddl_domain": domain,
                "grammar": grammar.replace("UNKNOWN GOAL", f"put a {thing.lower()} in cabinet"),
                "pddl_problem": _problem(
                    thing, receptacle="CounterTop" if number % 2 else "Drawer"
                ),
                "solvable": True,
                "walkthrough": [],
            }
            (trial / "game.tw-pddl").write_text(json.dumps(game))
            task = {"task_type": "pick_and_place_simple"}
            (trial / "traj_data.json").write_text(json.dumps(task))
    return folder


def _problem(thing: str, receptacle: str) -> str:
    """One thing lies on the counter or in a closed drawer; it belongs into the closed cabinet."""
    things = "\n".join(f"{name}Type - otype" for name in (*_THINGS, "Knife", "ButterKnife"))
    receptacles = [("CounterTop", 1), ("Cabinet", 2), ("Drawer", 3)]
    facts = [
        f"(receptacleType {name}_bar_1 {name}Type) (receptacleAtLocation {name}_bar_1 loc_bar_{n})"
        for name, n in receptacles
    ]
    facts += [f"(canContain {name}Type {each}Type)" for name, _ in receptacles for each in _THINGS]
    facts += [f"(openable {name}_bar_1)" for name in ("Cabinet", "Drawer")]
    n = dict(receptacles)[receptacle]
    facts += [
        "(atLocation agent1 loc_bar_0)",
        f"(objectType {thing}_bar_1 {thing}Type) (pickupable {thing}_bar_1)",
        f"(inReceptacle {thing}_bar_1 {receptacle}_bar_1)",
        f"(objectAtLocation {thing}_bar_1 loc_bar_{n})",
    ]
    lines = "\n".join(facts)
    return f"""(define (problem kitchen)
(:domain alfred)
(:objects
agent1 - agent
{things}
{_TYPES} - rtype
{thing}_bar_1 - object
CounterTop_bar_1 Cabinet_bar_1 Drawer_bar_1 - receptacle
loc_bar_0 loc_bar_1 loc_bar_2 loc_bar_3 - location
)
(:init
{lines}
(= (total-cost) 0)
)
(:goal (and (exists (?r - receptacle ?o - object)
  (and (inReceptacle ?o ?r) (objectType ?o {thing}Type) (receptacleType ?r CabinetType)))))
(:metric minimize (total-cost))
)
"""
