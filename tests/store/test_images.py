"""Pictures in the store: each one once, and with every turn that shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_steps import RUN_ID, build_metrics, build_trajectory

from echoscope.store.log import committer
from echoscope.store.log.packing import pack
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import Trajectory
from echoscope.store.writer import RunWriter
from echoscope.text.pictures import picture_key

A, B, C = b"picture a", b"picture b", b"picture c"
"""The store never looks into them."""


def with_images(step: int, index: int, images: list[bytes], final: bytes) -> Trajectory:
    plain = build_trajectory(step, index, num_turns=len(images))
    turns = [replace(turn, image=png) for turn, png in zip(plain.turns, images, strict=True)]
    return replace(plain, turns=tuple(turns), final_image=final)


def commit(writer: RunWriter, step: int, *trajectories: Trajectory) -> None:
    writer.commit_step(metrics=[build_metrics(step)], trajectories=trajectories, outcomes=[])
    writer.flush()


def stored(path: Path, **options: Any) -> list[tuple[int, bytes]]:
    rows = open_run(path, **options).sql("SELECT step, png FROM images ORDER BY step, png")
    return [(row["step"], row["png"]) for row in rows.to_pylist()]


def test_each_picture_is_stored_once_and_read_with_its_turns(
    writer: RunWriter, run_path: Path
) -> None:
    commit(writer, 0, with_images(0, 0, [A, A], B), with_images(0, 1, [A, B], A))
    commit(writer, 1, with_images(1, 0, [B, A], C), build_trajectory(1, 1))
    assert stored(run_path) == [(0, A), (0, B), (1, C)]
    reader = open_run(run_path)
    [pictured, plain] = reader.trajectories_of_step(1)
    assert [turn.image for turn in pictured.turns] == [B, A]
    assert pictured.final_image == C
    assert [turn.image for turn in plain.turns] == [None, None]
    assert reader.trajectory(pictured.id).turns[1].image == A
    assert reader.images([picture_key(C), "f" * 32]) == {picture_key(C): C}


def test_a_run_without_pictures_has_no_file_for_them(finished_run: Path) -> None:
    assert list(finished_run.rglob("*/images/*")) == []
    assert stored(finished_run) == []


def test_a_step_that_is_not_over_shows_its_pictures_too(writer: RunWriter, run_path: Path) -> None:
    early = with_images(0, 0, [A], B)
    writer.add_trajectories([early])
    writer.flush()
    assert open_run(run_path).trajectory(early.id).turns[0].image == A
    commit(writer, 0, early, with_images(0, 1, [A], A))
    assert stored(run_path) == [(0, A), (0, B)]


def test_a_resumed_run_never_leans_on_a_step_that_is_hidden(
    writer: RunWriter, run_path: Path
) -> None:
    commit(writer, 0, with_images(0, 0, [A], A))
    commit(writer, 1, with_images(1, 0, [B], B))
    writer.close(status="interrupted")
    with RunWriter.resume(run_path, from_step=0, is_packing=False) as again:
        commit(again, 1, with_images(1, 0, [A, B], B))
    assert stored(run_path) == [(0, A), (1, A), (1, B)]
    assert [t.image for t in open_run(run_path).trajectory("t00000001-00000").turns] == [A, B]


def test_a_lost_file_of_pictures_costs_the_pictures_alone(
    writer: RunWriter, run_path: Path
) -> None:
    commit(writer, 0, with_images(0, 0, [A], B))
    writer.close(status="finished")
    [file] = (run_path / "seg" / "images").iterdir()
    file.unlink()
    [problem] = verify(run_path).problems
    assert problem.lost == "images of step 0, attempt 1 (2 rows)"
    turn = open_run(run_path).trajectory("t00000000-00000").turns[0]
    assert (turn.image, turn.response) == (None, build_trajectory(0, 0).turns[0].response)


def test_a_picture_under_a_false_key_is_left_out(
    writer: RunWriter, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "images_of", lambda trajectories: {picture_key(A): B})
    commit(writer, 0, with_images(0, 0, [A], A))
    assert open_run(run_path).trajectory("t00000000-00000").turns[0].image is None


def test_more_pictures_than_are_remembered_are_stored_again(
    writer: RunWriter, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "MAX_KNOWN_IMAGES", 1)
    for step in range(3):
        commit(writer, step, with_images(step, 0, [A], B))
    assert [step for step, _ in stored(run_path)] == [0, 0, 1, 1, 2, 2]


def test_the_columns_are_those_of_a_picture(writer: RunWriter, run_path: Path) -> None:
    commit(writer, 0, with_images(0, 0, [A], A))
    [file] = (run_path / "seg" / "images").iterdir()
    assert pq.read_schema(file).field("png").type == pa.binary()
    assert RUN_ID in pq.read_table(file).column("run_id").to_pylist()


def test_packed_runs_hold_them(writer: RunWriter, run_path: Path) -> None:
    for step in range(3):
        commit(writer, step, with_images(step, 0, [A, B], C if step else A))
    writer.close(status="finished")
    before = stored(run_path)
    pack(run_path)
    assert stored(run_path) == before == [(0, A), (0, B), (1, C)]
    assert verify(run_path).problems == ()
