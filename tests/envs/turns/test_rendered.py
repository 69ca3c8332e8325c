"""`render: rgb` gives every observation a picture, and changes nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from echoscope.envs import registry
from echoscope.envs.base import (
    EnvValueError,
    ImagePart,
    Observation,
    TextPart,
    checked_observation,
)
from echoscope.envs.frames import card_frame, to_png
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.turn import TurnEnv, TurnSettings
from echoscope.envs.turns.wrappers import rendered, wrap


def lake(render: Any) -> TurnEnv:
    settings = TurnSettings(max_turns=5, max_actions_per_turn=1, render=render)
    return wrap(partial(registry.make, "frozen_lake"), settings)


def test_a_picture_of_each_view_and_the_same_episode() -> None:
    plain, drawn = lake("none"), lake("rgb")
    first, seen = plain.reset(3, 4), drawn.reset(3, 4)
    assert (first.image, first.view) == (None, first.frame)
    assert seen == replace(first, image=to_png(first.view or ""))
    for action in ("down", "jump", "right"):
        bare, shown = plain.step_turn([action], True), drawn.step_turn([action], True)
        picture = to_png(bare.observation.view or "")
        assert shown == replace(bare, observation=replace(bare.observation, image=picture))


def test_a_world_without_a_readable_view_is_drawn_as_its_text() -> None:
    picture = to_png(card_frame("", ["one", "two"]))
    for view in (None, '{"kind":"film"}', "no JSON"):
        assert rendered(Observation(text="one\ntwo", view=view)).image == picture


def test_the_frame_for_people_is_not_drawn() -> None:
    secret = Observation(text="one", frame=card_frame("", ["the answer is 7"]))
    assert rendered(secret).image == to_png(card_frame("", ["one"]))


BOARDS = ("frozen_lake", "sokoban", "sudoku", "game_2048", "treasure")


@pytest.mark.parametrize("world", BOARDS)
@pytest.mark.parametrize("form", ["grid", "coord", "both", "relative"])
def test_a_board_is_drawn_where_the_text_says_all_of_it(world: str, form: str) -> None:
    first = registry.make(world, observation=form).reset(0, 0)
    assert first.frame is not None
    assert first.view == (None if form == "relative" else first.frame)


def test_a_picture_of_the_worlds_own_is_kept() -> None:
    own = to_png(card_frame("own", []))
    assert rendered(Observation(text="x", image=own)).image == own


def test_a_policy_is_shown_the_picture_and_then_the_text() -> None:
    png = to_png(card_frame("own", []))
    assert Observation(text="x", image=png).parts == (ImagePart(png), TextPart("x"))
    assert Observation(text="x").parts == (TextPart("x"),)


@pytest.mark.parametrize("image", [b"", b"GIF89a", "text", 7])
def test_a_world_whose_picture_is_none_breaks_the_contract(image: Any) -> None:
    with pytest.raises(EnvValueError, match="the image of an observation: a picture is"):
        checked_observation(Observation(text="x", image=image))


def test_siblings_share_the_first_picture() -> None:
    group = EnvGroup(env="frozen_lake", groups=1, render="rgb")
    with_pictures = EnvPool([group], group_size=2, seed=1, split="train")
    first, second = with_pictures.reset(0)
    assert first.observation.image == second.observation.image is not None
