"""Frames as pictures: what a vision-language policy and the replay are shown."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from echoscope.envs import registry
from echoscope.envs.frames import MAX_PNG_SIDE, card_frame, grid_frame, to_png, to_rgb
from echoscope.text.png import open_picture, picture_key, picture_size

BOARD = grid_frame(["#_", "_G"], {"#": "wall", "_": "floor", "G": "goal"}, [("player", (0, 1))])


def test_a_board_has_one_tile_for_each_cell_in_the_colours_of_to_rgb() -> None:
    picture = open_picture(to_png(BOARD))
    assert picture.size == (64, 64)
    assert (np.asarray(picture) == to_rgb(BOARD, tile=32)).all()
    colours = [picture.getpixel(at) for at in ((2, 2), (34, 2), (48, 16), (48, 48))]
    assert colours == [(84, 84, 92), (235, 232, 225), (52, 101, 220), (46, 160, 67)]


def test_numbers_are_written_and_so_differ() -> None:
    two, four = (grid_frame(["a"], {"a": number}, ()) for number in ("2", "4"))
    assert to_png(two) != to_png(four)


def test_a_mark_leaves_its_cell_in_sight() -> None:
    plain, marked = (grid_frame(["3"], {"3": "3"}, marks) for marks in ((), [("conflict", (0, 0))]))
    inner = slice(8, 24)
    assert (to_rgb(plain, 32)[inner, inner] == to_rgb(marked, 32)[inner, inner]).all()
    assert to_png(plain) != to_png(marked)


def test_a_thing_with_a_colour_has_it() -> None:
    things = ("red key", "blue key", "blue door")
    frames = [grid_frame(["_"], {"_": "floor"}, [(thing, (0, 0))]) for thing in things]
    assert [tuple(to_rgb(frame, 32)[8, 8]) for frame in frames] == [
        (232, 104, 95), (127, 165, 245), (127, 165, 245),
    ]  # fmt: skip
    assert len({to_png(frame) for frame in frames}) == 3


def test_blocks_are_parted_by_thicker_lines() -> None:
    cells, legend = ["1234"] * 4, {number: number for number in "1234"}
    plain, parted = (grid_frame(cells, legend, (), block=block) for block in (None, 2))
    assert "block" not in plain
    differs = (to_rgb(plain, 32) != to_rgb(parted, 32)).any(axis=2)
    inside = [n for n in range(128) if n not in (63, 64)]
    assert not differs[np.ix_(inside, inside)].any()
    assert differs[:, 64].all()
    assert differs[64].all()
    with pytest.raises(ValueError, match="'block' is 0, but must be a positive integer"):
        to_png(plain.replace('{"cells"', '{"block":0,"cells"'))


def test_a_large_board_has_smaller_tiles() -> None:
    frame = grid_frame(["_" * 64] * 64, {"_": "floor"}, ())
    assert picture_size(to_png(frame)) == (MAX_PNG_SIDE, MAX_PNG_SIDE)


@pytest.mark.parametrize(
    "lines", [[], ["x" * 100_000], ["y"] * 10_000, ["\x00\u202e\u4e16 \U0001f600"]]
)
def test_any_card_is_a_picture_of_limited_size(lines: list[str]) -> None:
    width, height = picture_size(to_png(card_frame("Title", lines)))
    assert width == 400
    assert height <= 48 * 14 + 16


def test_a_text_beyond_the_card_is_cut_not_shrunk() -> None:
    long, longer = (card_frame("", ["x" * size]) for size in (48 * 64, 60 * 64))
    assert to_png(long) == to_png(longer)


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a JSON object"):
        to_png("[]")


@pytest.mark.parametrize("env", ["frozen_lake", "sokoban", "sudoku", "game_2048", "rubiks"])
def test_every_board_has_a_picture_of_its_own(env: str) -> None:
    world = registry.make(env)
    frames = {world.reset(seed, seed).frame or "" for seed in range(4)}
    assert len({to_png(frame) for frame in frames}) == len(frames)


def test_other_processes_draw_the_same_bytes() -> None:
    code = (
        "import sys; from echoscope.envs.frames import to_png; from echoscope.text.png import "
        "picture_key; print(picture_key(to_png(sys.argv[1])))"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code, BOARD],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert keys == {picture_key(to_png(BOARD))}
