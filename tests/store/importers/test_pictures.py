"""Pictures that VAGEN writes beside its rows: whose they are, and which are refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from echoscope.store.importers.beside import pictures
from echoscope.store.importers.importing import import_run
from echoscope.store.records import StopReason

from .conftest import Imported


def png(shade: int, size: tuple[int, int] = (4, 3)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(out, format="PNG")
    return out.getvalue()


def chat(*messages: tuple[str, str]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)


SEEN = "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"
ROW = {
    "input": chat(("system", "Drive."), ("user", f"Look: {SEEN}")) + "<|im_start|>assistant\n",
    "output": "<answer>Up</answer><|im_end|>\n"
    + chat(("user", f"Then: {SEEN}{SEEN}"), ("assistant", "<answer>Down</answer>")),
    "gts": None,
    "score": 2.0,
    "step": 3,
}


class Folder:
    """What a trainer wrote, and the run that an import of it makes."""

    def __init__(self, path: Path) -> None:
        self.path = path / "written"

    def write(self, name: str, data: bytes | str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return file

    def write_rows(self, *rows: dict[str, Any]) -> None:
        self.write("3.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def write_episode(self, folder: str, num_replies: int, **metrics: Any) -> None:
        messages = [{"role": "user", "content": [{"type": "image_url"}]}]
        for _ in range(num_replies):
            messages += [{"role": "assistant", "content": "go"}, {"role": "user", "content": "o"}]
        self.write(f"{folder}/messages.json", json.dumps(messages, indent=1))
        self.write(f"{folder}/metrics.json", json.dumps(metrics))

    def imported(self) -> Imported:
        return Imported(import_run(self.path, self.path.with_name("run")))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_marks_in_the_text_say_which_turn_saw_which(folder: Folder) -> None:
    folder.write_rows(ROW, ROW)
    for number in range(3):
        folder.write(f"image_3/images_1/{number}.png", png(number))
    found = folder.imported()
    first, second = found.trajectories
    assert [turn.image for turn in first.turns] == [None, None]
    assert [turn.image for turn in second.turns] == [png(0), png(2)]
    assert "pictures" not in found.extra(1).get("reconstructed", [])
    assert found.report.num_pictures == 2
    assert found.report.pictures.counts == {"an observation shows several; the last one is kept": 1}


def test_the_number_of_a_row_counts_lines_that_were_refused(folder: Folder) -> None:
    folder.write("3.jsonl", "{torn\n\n" + json.dumps(ROW) + "\n")
    for number in range(3):
        folder.write(f"image_3/images_2/{number}.png", png(number))
    (trajectory,) = folder.imported().trajectories
    assert trajectory.turns[0].image == png(0)


def test_a_text_without_marks_has_one_picture_an_observation(folder: Folder) -> None:
    row = {**ROW, "input": "user\nLook\nassistant\n", "output": "Up\nuser\nThen\nassistant\nDown"}
    folder.write_rows(row, row)
    for number in range(2):
        folder.write(f"image_3/images_0/{number}.png", png(number))
    for number in range(5):
        folder.write(f"image_3/images_1/{number}.png", png(number))
    found = folder.imported()
    first, second = found.trajectories
    assert [turn.image for turn in first.turns] == [png(0), png(1)]
    assert "pictures" in found.extra(0)["reconstructed"]
    assert [turn.image for turn in second.turns] == [None, None]
    assert found.report.pictures.counts == {
        "the text does not mark as many pictures as the row has": 5
    }


def test_pictures_of_an_evaluation_are_named_after_turns(folder: Folder) -> None:
    episode = "tag_base/20260723-1a2b3c4d"
    folder.write_episode(
        episode,
        2,
        env_name="sokoban",
        seed=5,
        finish_reason="max_turns",
        rewards=[0.25, 1.0],
        infos=[{}, {"boxes": 1}, {"boxes": 0}],
        num_turns=2,
    )
    for turn in (1, 2, 3):
        folder.write(f"{episode}/images/turn_{turn:02d}_01.png", png(turn))
    folder.write(f"{episode}/images/turn_09_01.png", png(9))
    found = folder.imported()
    (trajectory,) = found.trajectories
    assert [turn.image for turn in trajectory.turns] == [png(1), png(2)]
    assert trajectory.final_image == png(3)
    assert [turn.reward for turn in trajectory.turns] == [0.25, 1.0]
    assert [turn.info.get("boxes") for turn in trajectory.turns] == [1.0, 0.0]
    assert (trajectory.env_id, trajectory.stop_reason) == ("sokoban", StopReason.MAX_TURNS)
    assert "turn_rewards" not in found.extra(0).get("reconstructed", [])
    assert found.report.pictures.counts == {"no turn has its number": 1}


def test_replies_that_are_no_steps_get_neither_rewards_nor_pictures(folder: Folder) -> None:
    folder.write_episode("tag_a/x", 3, rewards=[0.5, 0.5], cumulative_reward=1.0)
    folder.write("tag_a/x/images/turn_01_01.png", png(1))
    (trajectory,) = folder.imported().trajectories
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 1.0]
    assert [turn.image for turn in trajectory.turns] == [None, None, None]


def test_a_link_a_bomb_and_what_is_no_picture_are_left_out(folder: Folder, tmp_path: Path) -> None:
    folder.write_rows(ROW, ROW, ROW)
    for number in range(3):
        folder.write(f"image_3/images_0/{number}.png", png(number))
    outside = tmp_path / "secret.png"
    outside.write_bytes(png(7))
    linked = folder.write("image_3/images_0/0.png", b"")
    linked.unlink()
    linked.symlink_to(outside)
    folder.write("image_3/images_0/2.png", png(1, size=(5000, 1)))
    (tmp_path / "elsewhere").mkdir()
    for number in range(3):
        (tmp_path / f"elsewhere/{number}.png").write_bytes(png(number))
        folder.write(f"image_3/images_2/{number}.png", b"<script>" * 3)
    (folder.path / "image_3/images_1").symlink_to(tmp_path / "elsewhere")
    found = folder.imported()
    assert [turn.image for t in found.trajectories for turn in t.turns] == [None] * 6
    reasons = set(found.report.pictures.counts)
    assert "it is a link or no regular file" in reasons
    assert "a picture has 5000 x 1 pixels, but a side may have 2048" in reasons
    assert any(reason.startswith("a picture is not a PNG file that can") for reason in reasons)


def test_pictures_of_a_step_have_a_limit_and_equal_ones_count_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MAX_STEP_BYTES", max(len(png(0)), len(png(1))))
    one = {**ROW, "output": "<answer>Up</answer>"}
    folder.write_rows(one, one, one, {**one, "step": 4})
    for row, shade in enumerate((0, 0, 1)):
        folder.write(f"image_3/images_{row}/0.png", png(shade))
    folder.write("image_4/images_3/0.png", png(1))
    found = folder.imported()
    images = [trajectory.turns[0].image for trajectory in found.trajectories]
    assert images == [png(0), png(0), None, png(1)]
    assert list(found.report.pictures.counts) == ["the pictures of a step may have 0 MB"]
