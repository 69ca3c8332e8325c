"""Frames: what is written reads back, and what is no frame is refused."""

from __future__ import annotations

import pytest

from echoscope.envs.frames import card_frame, grid_frame, read_frame


def test_frames_read_back() -> None:
    grid = grid_frame(["#_"], {"#": "wall", "_": "floor"}, [("player", (0, 1))])
    assert read_frame(grid)["overlays"] == [{"is": "player", "at": [0, 1]}]
    assert read_frame(card_frame("Title", ["a", "b"]))["lines"] == ["a", "b"]


@pytest.mark.parametrize(
    "frame",
    [
        "[]",
        '{"kind":"film"}',
        '{"kind":"card","lines":[1]}',
        '{"kind":"grid","cells":[]}',
        '{"kind":"grid","size":[1,1],"cells":["##"],"legend":{"#":"wall"}}',
        '{"kind":"grid","size":[1,2],"cells":["#x"],"legend":{"#":"wall"}}',
        '{"kind":"grid","size":[1,1],"cells":["#"],"legend":{"#":"wall"},'
        '"overlays":[{"is":"player","at":[0,1]}]}',
        '{"kind":"grid","size":[1,5000],"cells":["' + "#" * 5000 + '"],"legend":{"#":"wall"}}',
    ],
)
def test_bad_frames_are_refused(frame: str) -> None:
    with pytest.raises(ValueError, match=r"grid|card"):
        read_frame(frame)
