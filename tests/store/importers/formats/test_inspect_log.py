"""Logs of Inspect: as JSON, and archives that are damaged or too large."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from rollout_import import import_run

from echoscope.store.importers.importing import ImportingError
from echoscope.store.importers.spooled import inspect_archive

from ..conftest import FIXTURES, Imported, texts


def sample(reply: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": reply}]
    return {"id": 1, "epoch": 1, "input": "q", "messages": messages, **more}


def archive(path: Path, *samples: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", json.dumps({"eval": {"task": "t"}}))
        for number, data in enumerate(samples):
            file.writestr(f"samples/{number}_epoch_1.json", data)
    return path


def test_a_log_as_json(tmp_path: Path) -> None:
    scored = sample("a", scores={"judge": {"value": 0.25}, "odd": {"value": "?"}})
    log = {"version": 2, "eval": {"task": "t"}, "samples": [scored, sample("b"), 5]}
    (tmp_path / "log.json").write_text(json.dumps(log, indent=1))
    imported = Imported(import_run(tmp_path / "log.json", tmp_path / "run"))
    first, second = imported.trajectories
    assert (texts(first.turns), texts(second.turns)) == ([("q", "a")], [("q", "b")])
    assert (first.env_id, first.episode_return, first.is_success) == ("t", 0.25, None)
    assert second.episode_return != second.episode_return, "a sample without scores has no return"


def test_a_damaged_sample_is_left_out(tmp_path: Path) -> None:
    data = bytearray((FIXTURES / "inspect_written" / "arith.eval").read_bytes())
    data[data.index(b"samples/add_epoch_1.json") + 200] ^= 0xFF
    (tmp_path / "log.eval").write_bytes(bytes(data))
    report = import_run(tmp_path / "log.eval", tmp_path / "run")
    assert (report.num_kept, report.survey.refused_rows.total) == (3, 1)
    assert next(iter(report.survey.refused_rows.counts)).startswith("the archive is damaged: ")


def test_samples_that_are_too_large_or_too_deep_are_left_out(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "log.eval",
        b"\0" * (inspect_archive.MAX_SAMPLE_BYTES + 1),
        b'{"a":' * 100_000,
        json.dumps(sample("good", uuid="echoscope/x", metadata={"step": 7})).encode(),
    )
    report = import_run(path, tmp_path / "run")
    assert [t.step for t in Imported(report).trajectories] == [7]
    assert set(report.survey.refused_rows.counts) == {
        "a sample of more than 32 MB",
        "JSON nested too deeply",
    }


def test_an_archive_of_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_archive, "MAX_BYTES", 500)
    path = archive(tmp_path / "log.eval", *[json.dumps(sample("a" * 400)).encode()] * 2)
    with pytest.raises(ImportingError, match="its samples take more than"):
        import_run(path, tmp_path / "run")


def played(**whole: Any) -> dict[str, Any]:
    """A sample of one of our worlds that was played in Inspect."""
    metadata = {"step": 0, "split": "eval", "env": "lake", "stop_reason": "terminated"}
    return sample("a", metadata={**metadata, "echoscope": whole})


def test_odd_values_of_a_world_that_was_played_are_unknown_or_refused(tmp_path: Path) -> None:
    odd_turn = {"observation": 5, "response": None, "actions": "up", "calls": [3], "info": [1]}
    samples = [
        played(turns=[odd_turn], env_seed="9" * 30, noise_seed=-4, task_key=[1], tag={}),
        played(turns=[{"response": "abc", "reasoning_chars": [2, 9]}]),
        played(turns=[{"response": "abc", "format_penalty": 3}]),
        played(turns="none"),
        played(
            turns=[{"response": "abc", "reasoning_chars": [0, 1], "reward": 0.5}], env_seed="12"
        ),
    ]
    for number, each in enumerate(samples):
        each["id"] = number
    log = {"version": 2, "eval": {"task": "t"}, "samples": samples}
    (tmp_path / "log.json").write_text(json.dumps(log))
    report = import_run(tmp_path / "log.json", tmp_path / "run")
    first, last = Imported(report).trajectories
    assert (first.env_seed, first.noise_seed, first.turns[0].actions) == (None, None, ())
    assert (last.env_seed, last.turns[0].reasoning, last.episode_return) == (12, "a", 0.5)
    assert report.survey.refused_rows.total == 3
    assert any(
        "was not played to its end" in reason for reason in report.survey.refused_rows.counts
    )


def test_a_sample_without_messages_leaves_the_rest_of_its_log(tmp_path: Path) -> None:
    log = {"version": 2, "eval": {"task": "t"}, "samples": [{"id": 0}, sample("a")]}
    (tmp_path / "log.json").write_text(json.dumps(log))
    report = import_run(tmp_path / "log.json", tmp_path / "run")
    assert (report.num_kept, dict(report.survey.refused_rows.counts)) == (
        1,
        {"the sample has no messages": 1},
    )
