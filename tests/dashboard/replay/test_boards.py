"""Stored frames as pictures: what is on them, and what becomes of text that is no frame."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.dashboard.replay.boards import Card, Grid, board_html, describe, read_frame
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake
from echoscope.envs.worlds.grid.sokoban import Sokoban
from echoscope.text.pictures import card_frame, grid_frame

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = {"rect", "g", "path", "circle", "ellipse", "text"}
HARMLESS = {"svg", "title", "desc", "style", "defs", "use", *SHAPES}
LAKE = grid_frame(["_O", "_G"], {"_": "ice", "O": "hole", "G": "goal"}, [("player", (0, 0))])
WAREHOUSE = grid_frame(
    ["##", "_O"], {"#": "wall", "_": "floor", "O": "target"}, [("box", (1, 1)), ("player", (1, 0))]
)
WIDE = {"kind": "grid", "cells": ["a" * 5000], "size": [1, 5000], "legend": {"a": "x"}}
EVIL = '<script>alert(1)</script><img src=x onerror="alert(1)">\u202e\x00'


def board_svg(frame: str, marks: Sequence[tuple[str, tuple[int, int]]] = ()) -> str:
    """The picture inside of the `<img>`."""
    return base64.b64decode(board_html(frame, marks).split("base64,")[1].split('"')[0]).decode()


def parse(svg: str) -> ET.Element:
    """Well-formed, and nothing in it that acts."""
    root = ET.fromstring(svg)
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in HARMLESS
        assert not [name for name in element.attrib if name.startswith("on")]
        assert element.get("href", "#es-").startswith("#es-")
    return root


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in parse(svg).iter(f"{SVG}text")]


def test_a_lake_has_a_tile_per_cell_and_a_letter_per_thing() -> None:
    svg = board_svg(LAKE)
    assert svg.count("<use ") == 5  # four cells and the player
    assert sorted(texts(svg)) == ["0", "0", "1", "1", "G", "O", "P"]  # and the numbers at the edge


def test_a_box_on_its_target_looks_different() -> None:
    ours = board_svg(WAREHOUSE)
    off = board_svg(WAREHOUSE.replace('"at":[1,1]', '"at":[0,1]'))
    tick = "M11 16l4 4 7-8"
    assert tick in ours
    assert tick not in off


def test_marks_are_drawn_on_the_board_and_ignored_beside_it() -> None:
    svg = board_svg(LAKE, marks=[("start", (1, 0)), ("slip", (0, 0)), ("start", (9, 9))])
    assert "S" in texts(svg)
    assert svg.count("<use ") == 7


def test_unknown_things_get_a_tile_with_their_letter() -> None:
    frame = grid_frame(["12", "2_"], {"1": "one", "2": "two", "_": "floor"}, [("ghost", (1, 1))])
    assert {"1", "2", "G"} <= set(texts(board_svg(frame)))


def test_a_board_is_told_in_words() -> None:
    assert describe(read_frame(LAKE)) == (
        "Board of 2 rows and 2 columns, counted from 0: player at row 0, column 0; "
        "hole at (0, 1); goal at (1, 1); 2 cells of ice."
    )
    assert read_frame(LAKE).find("player") == (0, 0)
    assert read_frame("{}").find("player") is None


def test_the_image_of_a_page_carries_the_words_and_no_live_markup() -> None:
    html = board_html(card_frame(EVIL, [EVIL]))
    assert html.count("<") == 1
    payload = re.search(r"base64,([^\"]+)", html)
    assert payload is not None
    parse(base64.b64decode(payload[1]).decode())
    assert 'alt="&lt;script&gt;' in html


@pytest.mark.parametrize("world", [FrozenLake(), Sokoban()], ids=["frozen_lake", "sokoban"])
def test_frames_of_our_worlds_are_boards(world: FrozenLake | Sokoban) -> None:
    frame = world.reset(3, 0).frame
    assert frame is not None
    assert isinstance(read_frame(frame), Grid)
    parse(board_svg(frame))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[1]", "must be a JSON object"),
        ('{"kind":["grid"]}', "of kind 'grid' or 'card'"),
        ('{"kind":"grid","cells":["ab","c"],"size":[2,2],"legend":{}}', "strings of one length"),
        ('{"kind":"grid","cells":["a"],"size":[1,2],"legend":{"a":"x"}}', "'size' must be"),
        ('{"kind":"grid","cells":["a"],"size":[1,1],"legend":{}}', "'legend' must name"),
        ('{"kind":"grid","cells":["a"],"size":[1,1],"legend":{"a":1}}', "'legend' must name"),
        (json.dumps(WIDE), "may have 4,096"),
        ('{"kind":"card","lines":"x"}', "'lines' a list of strings"),
        (LAKE.replace("[0,0]", "[true,0]"), "'overlays' must"),
        (LAKE.replace("[0,0]", "[0,7]"), "on the grid"),
        (LAKE.replace('"player"', "7"), "'overlays' must"),
        ("x" * 300_000, "300,000 characters"),
    ],
)
def test_what_is_no_frame_is_a_card_that_says_why(text: str, problem: str) -> None:
    card = read_frame(text)
    assert isinstance(card, Card)
    assert problem in card.lines[0]
    parse(board_svg(text))


def test_a_card_breaks_its_lines_between_words() -> None:
    picture = board_svg(card_frame("t", ["word " * 12, "x" * 50, "", "    indented"]))
    lines = re.findall(r'es-c"[^>]*>([^<]*)<', picture)
    word_lines, long_word = lines[:2], lines[2:4]
    assert word_lines == ["word word word word word word word", "word word word word word"]
    assert [len(row) for row in long_word] == [38, 12]
    assert lines[4:] == ["", "    indented"]


def test_a_long_card_is_cut_and_says_so() -> None:
    card = read_frame(card_frame("t", [f"line {n}" for n in range(100)]))
    assert isinstance(card, Card)
    assert card.lines[-1] == "[40 more lines are not shown]"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
HOSTILE = st.text(alphabet=st.characters(codec=None), max_size=20) | st.just(EVIL)


@given(st.text(max_size=60) | JSON.map(json.dumps))
def test_any_text_makes_a_picture(text: str) -> None:
    assert parse(board_svg(text)).tag == f"{SVG}svg"
    assert board_html(text).startswith("<")


@given(
    kind=st.sampled_from(["grid", "card"]),
    fields=st.dictionaries(
        st.sampled_from(["size", "cells", "legend", "overlays", "title", "lines"]), JSON
    ),
)
def test_any_fields_make_a_picture(kind: str, fields: dict[str, object]) -> None:
    assert parse(board_svg(json.dumps({"kind": kind, **fields}))).tag == f"{SVG}svg"


@given(name=HOSTILE, char=st.characters(codec=None))
def test_hostile_names_stay_text(name: str, char: str) -> None:
    frame = {"kind": "grid", "size": [1, 1], "cells": [char], "legend": {char: name}}
    overlays = [{"is": name, "at": [0, 0]}]
    assert parse(board_svg(json.dumps(frame | {"overlays": overlays}))).tag == f"{SVG}svg"


def test_numbers_are_drawn_as_they_are_and_stickers_in_their_colour() -> None:
    tiles = grid_frame(["AK"], {"A": "2", "K": "2048"}, [("conflict", (0, 0))])
    assert ">2</text>" in board_svg(tiles)
    assert ">2048</text>" in board_svg(tiles)
    assert 'href="#es-conflict"' in board_svg(tiles)
    net = grid_frame([" W"], {" ": "nothing", "W": "white"}, [])
    assert '#es-white"' in board_svg(net)
    assert ">W</text>" in board_svg(net)


def test_blocks_doors_and_keys_are_drawn() -> None:
    board = {"kind": "grid", "size": [2, 2], "cells": ["__", "__"], "legend": {"_": "floor"}}
    things = [{"is": "red key", "at": [0, 0]}, {"is": "red door", "at": [0, 1]}]
    drawn = board_svg(json.dumps(board | {"overlays": things, "block": 1}))
    assert 'id="es-red-key"' in drawn
    assert 'id="es-red-door"' in drawn
    assert "M48 16v64M16 48h64" in drawn  # one line down, one across, in the middle
    assert "M48" not in board_svg(json.dumps(board))
    assert "Not a frame" in board_svg(json.dumps(board | {"block": 0}))


def test_a_card_breaks_between_words() -> None:
    drawn = board_svg(json.dumps({"kind": "card", "title": "", "lines": ["nine-word " * 9]}))
    assert "nine-word nine-word</text>" in drawn
    assert "nine-wor<" not in drawn
