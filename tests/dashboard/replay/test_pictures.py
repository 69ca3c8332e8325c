"""Stored pictures in the replay: shown beside the board once they are known to be pictures."""

from __future__ import annotations

import base64
import re
from dataclasses import replace

import pytest
from trajectories import make_trajectory

from echoscope.dashboard.replay.boards import picture_html
from echoscope.dashboard.replay.html import turn_boards
from echoscope.dashboard.replay.panels import trajectory_json
from echoscope.store.records import Trajectory, Turn
from echoscope.text.pictures import encode_picture

Image = pytest.importorskip("PIL.Image")
RED = encode_picture(Image.new("RGB", (8, 8), (255, 0, 0)))
BLUE = encode_picture(Image.new("RGB", (8, 8), (0, 0, 255)))


def pictures_of(html: str) -> list[bytes]:
    return [
        base64.b64decode(text) for text in re.findall(r'src="data:image/png;base64,(.*?)"', html)
    ]


def episode(**changes: object) -> Trajectory:
    turn = Turn(index=0, observation="x", response="y", image=RED, **changes)  # type: ignore[arg-type]
    return make_trajectory(turns=(turn,), final_image=BLUE)


def test_the_picture_of_a_turn_and_the_last_one_are_shown() -> None:
    trajectory = episode()
    first, last = turn_boards(trajectory, 0), turn_boards(trajectory, 1)
    assert (pictures_of(first), pictures_of(last)) == ([RED], [BLUE])
    assert "image, not shown to the policy" in first


def test_of_an_imported_turn_nobody_says_what_the_policy_saw() -> None:
    trajectory = replace(episode(), source="rows.jsonl:0")
    assert "image of the observation" in turn_boards(trajectory, 0)


@pytest.mark.parametrize("png", [b"", b"<script>alert(1)</script>", RED[:30], RED + b"x" * 10**6])
def test_bytes_that_are_no_picture_are_not_shown(png: bytes) -> None:
    html = picture_html(png, "a picture")
    assert "<img" not in html
    assert "<script" not in html
    assert "a picture" in html
    trajectory = replace(episode(), final_image=png)
    assert pictures_of(turn_boards(trajectory, 1)) == []


def test_words_around_a_picture_are_escaped() -> None:
    assert 'alt="&quot;&gt;&lt;b&gt;, 8 x 8 pixels"' in picture_html(RED, '"><b>')


def test_a_trajectory_as_json_holds_its_pictures_as_base64() -> None:
    assert base64.b64encode(RED).decode() in trajectory_json(episode(), None)
