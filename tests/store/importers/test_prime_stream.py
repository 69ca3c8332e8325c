"""prime-rl: what is written of a trace after its episode is joined with the episode."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.importers.importing import import_run

from .conftest import FIXTURES, Imported

STREAM = FIXTURES / "prime_stream" / "monitors" / "file" / "traces" / "stream" / "00001.jsonl"


def line(value: Any) -> str:
    return json.dumps(value) + "\n"


def update(trace: str = "trace-2", **values: Any) -> str:
    return line({"version": 1, "trace_id": trace, "info": {}, "branches": [], **values})


def credit(value: Any) -> list[Any]:
    """The credit of each token of the branch of a fixture's trace: 8 tokens, 3 of them sampled."""
    return [{"index": 0, "advantages": [0, 0, 0, value, value, 0, 0, value]}]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder `traces` with two episodes in its stream, and nothing written of them yet."""
    folder = tmp_path / "traces"
    (folder / "stream").mkdir(parents=True)
    (folder / "annotations" / "orchestrator").mkdir(parents=True)
    shutil.copy(STREAM, folder / "stream" / "00000.jsonl")
    return folder


def annotate(traces: Path, *lines: str, name: str = "orchestrator/00000.jsonl") -> None:
    path = traces / "annotations" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.writelines(lines)


def advantage(traces: Path, run: str = "run") -> tuple[float | None, Any]:
    """The advantage of the trained episode, and that of its sampled tokens."""
    found = Imported(import_run(traces, traces.parent / run))
    assert not found.report.rows.counts
    (trained,) = [t for t in found.trajectories if t.split == "import"]
    outcome = found.reader.outcome(trained.id)
    if outcome is None:
        return None, None
    tokens = outcome.advantages
    return outcome.advantage, tokens and [values.tolist() for values in tokens]


def test_what_was_written_later_is_added_by_another_import(traces: Path) -> None:
    assert advantage(traces) == (None, None)
    annotate(traces, update(info={"advantage": 0.25}, branches=credit(0.25)))
    assert advantage(traces) == (0.25, [[0.25, 0.25], [0.25]])
    found = Imported(import_run(traces, traces.parent / "run"))
    assert found.report.num_kept == 0, "the third import adds nothing"


def test_the_newest_update_counts_and_objects_are_merged(traces: Path) -> None:
    annotate(traces, update(info={"advantage": 1.0, "gar": {"label": "A", "rank": 1}}))
    annotate(traces, update(info={"advantage": 2.0}))
    annotate(traces, update(info={"gar": {"rank": 2}}), name="trainer/00000.jsonl")
    assert advantage(traces) == (2.0, None)
    found = Imported(import_run(traces, traces.parent / "run"))
    infos = [json.loads(t.extra)["fields"]["trace"]["info"] for t in found.trajectories]
    assert {"label": "A", "rank": 2} in [info.get("gar") for info in infos]


def test_the_layout_of_older_versions(tmp_path: Path) -> None:
    """`traces.jsonl` of a step, with the updates of each producer in a file beside it."""
    folder = tmp_path / "traces" / "step_7" / "train"
    (folder / "annotations").mkdir(parents=True)
    shutil.copy(STREAM, folder / "traces.jsonl")
    used = update(info={"train": {"effective": True, "trained_at_step": 8}, "advantage": 0.5})
    (folder / "annotations" / "orchestrator.jsonl").write_text(used)
    assert advantage(tmp_path / "traces") == (0.5, None)


@pytest.mark.parametrize(
    "torn",
    [
        '{"version": 1, "trace_id": "trace-2", "info": {"advan',
        line("trace_id"),
        line([1]) + "\x00\n",
        update("trace-9", info={"advantage": 3.0}),
        update(branches=[{"index": 0, "advantages": [0, 0, 0, 9.0]}]),
        update(branches=[{"index": 0, "advantages": [0, 0, 0, None, 9.0, 0, 0, None]}]),
        update(branches=credit(float("nan"))),
        update(branches=credit("much")),
        update(branches=[{"index": 1, "advantages": [9.0] * 8}]),
        update(branches=[{"index": -1, "advantages": [9.0] * 8}, 5, {"index": "0"}, {}]),
        update(branches={"index": 0}, info=None),
        update(branches=[{"index": 0, "advantages": 9.0}], info=[1]),
        line({"trace_id": "trace-2"}),
        line({"other": "x", "info": {"trace_id": "trace-2", "advantage": 9.0}}),
    ],
)
def test_an_odd_update_changes_nothing(traces: Path, torn: str) -> None:
    """Cut off, of another trace, too short, without numbers, of another branch, of other kinds."""
    annotate(traces, update(info={"advantage": 0.25}, branches=credit(0.25)), torn)
    assert advantage(traces) == (0.25, [[0.25, 0.25], [0.25]])


def test_a_link_among_the_annotations_is_not_followed(traces: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "00000.jsonl").write_text(update(info={"advantage": 9.0}))
    (traces / "annotations" / "trainer").symlink_to(outside)
    (traces / "annotations" / "orchestrator" / "1.jsonl").symlink_to(outside / "00000.jsonl")
    assert advantage(traces) == (None, None)
    shutil.rmtree(traces / "annotations")
    (traces / "annotations").symlink_to(outside)
    assert advantage(traces, "again") == (None, None)


def test_a_damaged_chunk_is_named_and_the_others_count(traces: Path) -> None:
    annotate(traces, update(info={"advantage": 0.25}))
    sealed = FIXTURES / "prime_stream/monitors/file/traces/annotations/orchestrator/00000.jsonl.zst"
    damaged = sealed.read_bytes()[:20]
    (traces / "annotations" / "orchestrator" / "00001.jsonl.zst").write_bytes(damaged)
    assert advantage(traces) == (0.25, None)
    report = import_run(traces, traces.parent / "again")
    assert report.files.names == {
        next(iter(report.files.counts)): ["annotations/orchestrator/00001.jsonl.zst"]
    }
    assert "cannot be unpacked" in next(iter(report.files.counts))


def test_the_last_64_updates_of_a_trace_count(traces: Path) -> None:
    annotate(traces, update(branches=credit(1.0)))
    annotate(traces, *[update(info={"advantage": float(number)}) for number in range(64)])
    assert advantage(traces) == (63.0, None)
