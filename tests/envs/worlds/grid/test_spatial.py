"""Spatial: what is seen and which answer is right, against angles; rooms worked by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from echoscope.envs.base import EnvParamsError
from echoscope.envs.registry import make
from echoscope.envs.worlds.grid import spatial as module
from echoscope.envs.worlds.grid.geometry import Position
from echoscope.envs.worlds.grid.spatial import Question, Room, Spatial, SpatialConfig

SIDES = (
    "ahead", "ahead-right", "right", "behind-right", "behind", "behind-left", "left", "ahead-left",
)  # fmt: skip


def bearing(start: Position, end: Position) -> float:
    """Degrees clockwise from north."""
    return math.degrees(math.atan2(end[1] - start[1], start[0] - end[0])) % 360


def side(degrees: float) -> str:
    """The names of 0, 90, 180 and 270 degrees are exact; the others lie between."""
    quarter, rest = divmod(round(degrees % 360, 6) % 360, 90)
    return SIDES[int(quarter) * 2 + (rest > 1e-6)]


def a_room(monkeypatch: pytest.MonkeyPatch, question: Question, *asked: str) -> Spatial:
    """The chair is two steps east of the lamp, the table three steps south of the lamp."""
    room = Room(
        things=(("chair", (2, 4)), ("lamp", (2, 2)), ("table", (5, 2))),
        start=(4, 4),
        heading=0,
        question=question,
        asked=asked,
        offered=((2, 2), (3, 3)),
    )
    monkeypatch.setattr(module, "draw_room", lambda config, seed: room)
    world = Spatial(SpatialConfig(size=6))
    world.reset(0, 0)
    return world


@pytest.mark.parametrize(
    ("question", "asked", "answer"),
    [
        ("direction", ("chair", "lamp"), "east"),
        ("direction", ("lamp", "table"), "north"),
        ("direction", ("table", "chair"), "south-west"),
        ("distance", ("table", "chair"), "5"),
        ("position", ("lamp",), "(2, 2)"),
        ("egocentric", ("chair",), "ahead"),
        ("egocentric", ("table",), "behind-left"),
        ("perspective", ("lamp", "chair", "table"), "right"),
        ("perspective", ("chair", "lamp", "table"), "ahead-left"),
        ("perspective", ("table", "lamp", "chair"), "ahead-right"),
    ],
)
def test_right_answers_of_one_room(
    monkeypatch: pytest.MonkeyPatch, question: Question, asked: tuple[str, ...], answer: str
) -> None:
    for reply in ("answer ahead", "answer north", "answer 1", "answer (3, 3)", f"answer {answer}"):
        world = a_room(monkeypatch, question, *asked)
        result = world.step(reply)
        if result.is_valid:
            is_right = reply == f"answer {answer}"
            assert (result.reward, result.success) == ((10.0, True) if is_right else (-1.0, False))
            assert result.terminated
    assert result.success


def test_a_look_shows_the_quarter_ahead_with_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_room(monkeypatch, "direction", "lamp", "table")
    seen = world.step("look").observation.text.splitlines()[1]
    assert seen == "You see the chair 2 ahead; the lamp 2 ahead and 2 left."
    world.step("turn left")
    seen = world.step("look").observation.text.splitlines()[1]
    # Facing west the lamp is two ahead and two right; the table two ahead and one left.
    assert seen == "You see the lamp 2 ahead and 2 right; the table 2 ahead and 1 left."


def test_walls_and_things_stop_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_room(monkeypatch, "direction", "lamp", "table")
    assert world.step("forward").is_effective
    blocked = world.step("forward")  # the chair
    assert (blocked.is_valid, blocked.is_effective, blocked.reward) == (True, False, -0.1)
    for _ in range(2):
        world.step("Turn  Right")
    steps = [world.step("forward").is_effective for _ in range(4)]
    assert steps == [True, True, False, False]  # from row 3 to the wall behind row 5


def test_answers_agree_with_angles() -> None:
    compass = dict(zip(SIDES, module._COMPASS, strict=True))
    for seed in range(300):
        world = Spatial()
        world.reset(seed, 0)
        room = world._room
        asked = [dict(room.things)[thing] for thing in room.asked]
        expected = {
            "direction": lambda cells: compass[side(bearing(cells[1], cells[0]))],
            "distance": lambda cells: str(
                sum(abs(a - b) for a, b in zip(cells[0], cells[1], strict=True))
            ),
            "position": lambda cells: f"({cells[0][0]}, {cells[0][1]})",
            "egocentric": lambda cells: side(bearing(room.start, cells[0]) - 90 * room.heading),  # noqa: B023
            "perspective": lambda cells: side(
                bearing(cells[0], cells[2]) - bearing(cells[0], cells[1])
            ),
        }[room.question](asked)
        assert world.step(f"answer {expected}").success, (seed, room)


def test_the_expert_sees_what_it_answers_about_and_keeps_the_limits() -> None:
    world = Spatial()
    for seed in range(200):
        world.reset(seed, 0)
        plan = world.solve() or []
        assert len(plan) <= 8 <= Spatial.spec.max_turns
        view = ""
        for number, action in enumerate(plan):
            assert world.solve() == plan[number:]
            if action.startswith("answer"):
                assert all(f"the {thing} " in view for thing in world._room.asked)
            result = world.step(action)
            view += result.observation.text.split("You see ")[-1].split("\n")[0]
        assert result.success


def test_an_answer_that_is_not_offered_is_no_answer() -> None:
    world = Spatial(SpatialConfig(questions=("direction",)))
    world.reset(0, 0)
    for action in ("answer", "answer up", "north", "answer north\nanswer south", "answer " * 99):
        result = world.step(action)
        assert (result.is_valid, result.reward, result.terminated) == (False, 0.0, False)


def test_the_frame_shows_where_the_player_looks() -> None:
    world = Spatial()
    frame = world.reset(4, 0).frame or ""
    heading = world._room.heading
    facing = [o for o in json.loads(frame)["overlays"] if o["is"].startswith("facing")]
    assert facing == [
        {"is": f"facing {('north', 'east', 'south', 'west')[heading]}", "at": list(world._place)}
    ]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"size": 3}, "size is 3"),
        ({"things": 9}, "things is 9"),
        ({"things": 2}, "questions of perspective need 3"),
        ({"questions": []}, "must name at least one kind"),
        ({"questions": ["distance", "distance"]}, "must name each kind once"),
        ({"questions": ["colour"]}, "but must be"),
    ],
)
def test_wrong_parameters(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EnvParamsError, match=sentence):
        make("spatial", **params)
