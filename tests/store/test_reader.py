"""Reading: SQL over views, several runs, a reader beside a writer, damaged files."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alarm_events import alarm_event
from made_run import add_steps, open_writer

from echoscope.store.errors import NotARunError, QueryError, StoreError, StoreVersionError
from echoscope.store.log.durable import read_checked_json, to_checked_json_bytes
from echoscope.store.log.index import RunIndex
from echoscope.store.log.packing import pack
from echoscope.store.reader import open_run, open_runs
from echoscope.store.records import (
    CheckpointRecord,
    CommandAck,
    CommandAction,
    CommandOutcome,
    SettingsRecord,
)
from echoscope.store.schema import TABLES
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]


def test_info_tells_how_a_run_stands(run_path: Path, steps: Build) -> None:
    writer = RunWriter.create(
        run_path,
        run_id="run-1",
        config={"lr": 0.001},
        live_knobs={"optim.lr": {"type": "number"}},
        name="first",
        base_model="tiny",
        parent_run_id="run-0",
        tags=["a"],
        is_packing=False,
    )
    steps(writer, [0])
    reader = open_run(run_path)
    info = reader.info()
    assert (info.status, info.last_step, info.attempt, info.ended_at) == ("running", 0, 1, None)
    assert (info.name, info.base_model) == ("first", "tiny")
    assert (info.parent_run_id, info.tags) == ("run-0", ("a",))
    assert info.config == {"lr": 0.001}
    assert info.live_knobs == {"optim.lr": {"type": "number"}}
    writer.close(status="stopped")
    assert reader.info().status == "stopped"
    assert reader.info().ended_at is not None
    assert reader.sql("SELECT status, last_step FROM runs").to_pylist() == [
        {"status": "stopped", "last_step": 0}
    ]


def test_a_run_that_ended_without_a_word_crashed(finished_run: Path) -> None:
    path = finished_run / "journal.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert open_run(finished_run).info().status == "crashed"


def test_every_view_has_its_columns_even_when_empty(run_path: Path) -> None:
    with RunWriter.create(run_path, run_id="r", config={}, is_packing=False):
        reader = open_run(run_path)
        for table in TABLES.values():
            assert tuple(reader.sql(f"SELECT * FROM {table.name}").column_names) == (
                table.column_names
            )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM trajectory", "Did you mean"),
        ("SELECT nope FROM turns", "nope"),
        ("SELECT 'x'::INTEGER", "Could not convert"),
        ("SELECT 1; SELECT 2", "one statement, got 2"),
        ("", "one statement, got 0"),
        ("COPY runs TO '{run}/run.json'", "COPY is not allowed"),
        ("EXPLAIN SELECT 1", "EXPLAIN is not allowed, SELECT is"),
        ("ATTACH '{run}/other.duckdb'", "ATTACH is not allowed"),
        ("CREATE TABLE x AS SELECT 1", "CREATE is not allowed"),
        ("SET threads = 1", "SET is not allowed"),
        ("DROP VIEW turns", "DROP is not allowed"),
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv.. is not allowed"),
        ("SELECT * FROM read_text('{run}/../other')", "read_text.. is not allowed"),
    ],
)
def test_a_query_reads_the_run_and_does_nothing_else(
    finished_run: Path, query: str, message: str
) -> None:
    files = {path: path.read_bytes() for path in finished_run.rglob("*") if path.is_file()}
    with pytest.raises(QueryError, match=message) as caught:
        open_run(finished_run).sql(query.replace("{run}", str(finished_run)))
    assert "\n" not in str(caught.value)
    assert {p: p.read_bytes() for p in finished_run.rglob("*") if p.is_file()} == files


def test_harmless_statements_are_welcome(finished_run: Path) -> None:
    reader = open_run(finished_run)
    for query in ("FROM steps", "DESCRIBE turns", "SUMMARIZE steps"):
        assert reader.sql(query).num_rows > 0
    assert reader.sql("SELECT $a + 1 AS b", {"a": 1}).to_pylist() == [{"b": 2}]


def test_typed_queries(finished_run: Path) -> None:
    reader = open_run(finished_run)
    assert reader.steps().column("step").to_pylist() == [0, 1, 2]
    assert reader.metric_keys() == ["policy/entropy", "time/step_s"]
    steps, values = reader.metrics("policy/entropy")
    assert (steps.tolist(), values.tolist()) == ([0, 1, 2], [1.0, 0.5, 1 / 3])
    assert reader.metrics("policy/entropy", phase="eval")[0].tolist() == []
    assert reader.listing(1).column("id").to_pylist() == [f"t00000001-0000{i}" for i in range(4)]
    assert reader.listing(9).num_rows == 0
    assert [t.id for t in reader.trajectories_of_step(1)] == reader.listing(1).column(
        "id"
    ).to_pylist()
    outcome = reader.outcome("t00000001-00002")
    assert outcome is not None
    assert outcome.advantages is not None
    assert [a.tolist() for a in outcome.advantages] == [[0.5, 0.5, 0.5]] * 2
    with pytest.raises(KeyError, match="no trajectory"):
        reader.trajectory("t00000001-00009")
    with pytest.raises(ValueError, match="not a trajectory id"):
        reader.outcome("nonsense")


def test_prompts_are_stored_once_and_rebuilt(finished_run: Path) -> None:
    reader = open_run(finished_run)
    rows = reader.sql(
        "SELECT prompt_prefix, prompt_tokens FROM tokens "
        "WHERE trajectory_id = 't00000000-00001' ORDER BY turn"
    ).to_pylist()
    # The first prompt is 1 2 3 4, its response 0 1 1, and one token of feedback is new.
    assert rows == [
        {"prompt_prefix": 0, "prompt_tokens": [1, 2, 3, 4]},
        {"prompt_prefix": 7, "prompt_tokens": [7]},
    ]
    turn = reader.trajectory("t00000000-00001").turns[1]
    assert turn.prompt_tokens is not None
    assert turn.prompt_tokens.tolist() == [1, 2, 3, 4, 0, 1, 1, 7]


def test_a_lost_turn_is_an_error_and_not_a_wrong_prompt() -> None:
    from echoscope.store.query.rows import trajectory_from_rows

    turn = {"trajectory_id": "t00000000-00000", "turn": 0}
    token = {"turn": 0, "prompt_prefix": 3, "prompt_tokens": [1]}
    with pytest.raises(ValueError, match="the turn before is missing"):
        trajectory_from_rows({"id": "t00000000-00000"}, [turn], [token])


def test_several_runs_are_one(run_path: Path, finished_run: Path, steps: Build) -> None:
    root = run_path.parent
    (root / "notes").mkdir()
    reader = open_runs(root)
    other = RunWriter.create(root / "run-2", run_id="run-2", config={}, is_packing=False)
    assert [info.run_id for info in reader.infos()] == ["run-1", "run-2"]
    other.close(status="finished")
    assert reader.sql("SELECT run_id, count(*) n FROM turns GROUP BY 1").to_pylist() == [
        {"run_id": "run-1", "n": 24}
    ]
    assert reader.run("run-1").listing(0).num_rows == 4
    assert reader.cursor().sql("FROM runs").num_rows == 2
    with pytest.raises(NotARunError, match="no run with id 'run-9'"):
        reader.run("run-9")
    (root / "run-2" / "run.json").unlink()
    assert [info.run_id for info in reader.infos()] == ["run-1"]


def test_a_root_with_a_broken_run_shows_the_others(finished_run: Path) -> None:
    root = finished_run.parent
    for name, content in (("broken", "{"), ("list", "[]"), ("no-id", '{"schema_version": "1.0"}')):
        (root / name).mkdir()
        (root / name / "run.json").write_text(content)
    reader = open_runs(root)
    assert [info.run_id for info in reader.infos()] == ["run-1"]
    assert {path.name for path in reader.unreadable} == {"broken", "list", "no-id"}
    assert open_runs(root).sql("FROM runs").num_rows == 1


def test_the_folder_named_like_its_run_id_is_the_original_and_the_other_a_copy(
    finished_run: Path,
) -> None:
    import shutil

    copy = finished_run.parent / "copy"  # sorts before run-1
    shutil.copytree(finished_run, copy)
    reader = open_runs(finished_run.parent)
    assert [info.path.name for info in reader.infos()] == ["run-1"]
    assert list(reader.unreadable) == [copy.resolve()]
    assert f"a copy of {finished_run.resolve()}, with the same run id" in reader.unreadable[copy]
    shutil.rmtree(finished_run)
    assert [info.path.name for info in reader.infos()] == ["copy"], "it is the only one now"
    assert not reader.unreadable


@pytest.mark.parametrize("what", ["folder", "file", "empty"])
def test_what_is_not_a_run(tmp_path: Path, what: str) -> None:
    path = tmp_path / "thing"
    if what == "file":
        path.write_text("x")
    elif what == "empty":
        path.mkdir()
    with pytest.raises(NotARunError):
        open_run(path)
    if what == "folder":
        with pytest.raises(NotARunError):
            open_runs(path)


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage", "scrambled"])
@pytest.mark.parametrize("table", ["trajectories", "turns", "tokens"])
def test_a_damaged_segment_is_left_out_and_named(
    finished_run: Path, damage: str, table: str
) -> None:
    # The first file of a view is opened when the view is made, the others when it is read.
    for step, pattern in ((0, "00000000-*"), (1, "00000001-*")):
        path = next((finished_run / "seg" / table).glob(pattern))
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "truncated":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "garbage":
            path.write_bytes(b"x" * len(data))
        else:
            # The end, which describes the columns, is whole; the columns are not.
            half = len(data) // 2
            path.write_bytes(data[:4] + bytes(b ^ 255 for b in data[4:half]) + data[half:])
        reader = open_run(finished_run)
        rows = reader.sql(f"SELECT * FROM {table} ORDER BY step").to_pylist()
        assert sorted({row["step"] for row in rows}) == [s for s in range(3) if s > step]
        assert any(path.name in text and "left out" in text for text in reader.warnings)


def test_a_journal_cannot_name_files_elsewhere(finished_run: Path) -> None:
    from echoscope.store.log.layout import FileEntry

    for path in ("/etc/passwd", "seg/turns/../../x.parquet", "pack/tokens/x.parquet", "seg/x"):
        with pytest.raises(StoreError, match="is not the path of a data file"):
            FileEntry.from_json("turns", {"path": path, "rows": 1, "bytes": 1, "sha256": ""})


def test_readers_beside_a_writer_see_whole_steps_only(
    writer: RunWriter, run_path: Path, steps: Build
) -> None:
    """Each answer holds a prefix of the steps, every one with all its turns."""
    reader = open_run(run_path)
    stop = threading.Event()
    problems: list[Any] = []

    def poll() -> None:
        mine = reader.cursor()
        seen = 0
        while not stop.is_set():
            try:
                rows = mine.sql(
                    "SELECT step, count(*) n FROM turns GROUP BY step ORDER BY step"
                ).to_pylist()
            except (StoreError, QueryError) as error:
                problems.append(error)
                return
            if [(r["step"], r["n"]) for r in rows] != [(s, 8) for s in range(len(rows))]:
                problems.append(rows)
            if len(rows) < seen:
                problems.append((seen, rows))
            seen = len(rows)

    threads = [threading.Thread(target=poll) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(8):
        steps(writer, [step])
        if step == 4:
            writer._committer.rotate()
            pack(run_path, grace_s=0)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("created_at", 10**400),
        ("created_at", "soon"),
        ("config", "{"),
        ("config", 3),
        ("live_knobs", "[" * 100_000),
        ("tags", 3),
        ("name", {"a": 1}),
        ("pid", 10**30),
    ],
)
def test_one_bad_run_is_left_out_by_itself(
    tmp_path: Path, steps: Build, name: str, value: Any
) -> None:
    root = tmp_path / "runs"
    for folder in ("good", "bad"):
        RunWriter.create(root / folder, run_id=folder, config={}, is_packing=False).close(
            status="finished"
        )
    file = root / "bad" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    reader = open_runs(root)
    infos = {info.run_id: info for info in reader.infos()}
    assert "good" in infos
    # The other one is refused in one line, or read from what the journal repeats of its file.
    for reason in reader.unreadable.values():
        assert "\n" not in reason
        assert len(reason) < 600
    assert ("bad" in infos) is not bool(reader.unreadable)
    if "bad" in infos:
        assert (infos["bad"].config, infos["bad"].live_knobs, infos["bad"].tags) == ({}, {}, ())


def test_a_run_that_goes_bad_later_is_left_out_by_itself(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for folder in ("good", "bad"):
        RunWriter.create(root / folder, run_id=folder, config={}, is_packing=False).close(
            status="finished"
        )
    reader = open_runs(root)
    assert len(reader.infos()) == 2
    (root / "bad" / "journal.ndjson").unlink()
    (root / "bad" / "journal.ndjson").mkdir()
    assert [info.run_id for info in reader.infos()] == ["good"]
    assert len(reader.unreadable) == 1


def test_a_run_of_another_version_is_refused(finished_run: Path) -> None:
    path = finished_run / "run.json"
    value = read_checked_json(path)
    path.write_bytes(to_checked_json_bytes(value | {"schema_version": "2"}))
    with pytest.raises(StoreVersionError, match=r"version '2', but this Echoscope reads '1'"):
        open_run(finished_run)


@pytest.mark.parametrize("is_packed", [False, True])
def test_events_are_the_same_with_and_without_duckdb(tmp_path: Path, is_packed: bool) -> None:
    """Packs, the live journal, a rewind that hides steps, a command answered and one that waits."""
    run = tmp_path / "run"
    answered, waiting = (
        new_command("run", CommandAction.SET, settings={"optim.lr": rate}) for rate in (1e-4, 1e-5)
    )
    writer = open_writer(run, rotate_every=2)
    add_steps(writer, "run", range(5))
    post(run, answered)
    writer.record_acks(
        [CommandAck(command_id=answered.command_id, step=4, outcome=CommandOutcome.APPLIED)],
        settings=SettingsRecord(step=5, values={"optim.lr": 1e-4}),
    )
    alarm = alarm_event(
        "a",
        4,
        rule="ENTROPY_LOW",
        onset_step=3,
        metric="policy/entropy",
        value=math.nan,
        threshold=0.3,
        window=5,
        message="Entropy is low.",
        evidence=("t00000004-00001",),
    )
    writer.record_alarms([alarm])
    for step, is_deleted in ((1, False), (3, False), (1, True)):
        writer.record_checkpoint(
            CheckpointRecord(
                step=step,
                path=f"checkpoints/step_{step:06d}",
                policy_version=step,
                num_bytes=10,
                wall_time=1.0,
                is_deleted=is_deleted,
            )
        )
    writer.close(status="stopped")
    writer = RunWriter.resume(run, from_step=3, is_packing=False)
    add_steps(writer, "run", range(4, 6), lambda step: {"policy/entropy": 9.0, "new": 1.0})
    writer.close(status="stopped")
    post(run, waiting)
    if is_packed:
        pack(run, grace_s=0)
    without, with_one = open_run(run), open_run(run)
    with_one.sql("SELECT 1")
    assert (without.has_duckdb, with_one.has_duckdb) == (False, True)
    for ask in (
        lambda reader: reader.steps().to_pylist(),
        lambda reader: reader.metric_keys(),
        lambda reader: [column.tolist() for column in reader.metrics("policy/entropy")],
        lambda reader: sorted(map(str, reader.points().to_pylist())),
        lambda reader: reader.commands(),
        lambda reader: reader.settings(),
        lambda reader: list(map(repr, reader.alarms())),  # their value is NaN
        lambda reader: reader.checkpoints(),
        lambda reader: reader.status(),
    ):
        assert ask(without) == ask(with_one)
    assert not without.has_duckdb
    assert without.metrics("policy/entropy")[1].tolist()[-2:] == [9.0, 9.0]
    assert [state.ack is None for state in without.commands()] == [False, True]
    assert [checkpoint.step for checkpoint in without.checkpoints()] == [3]


def test_a_reader_follows_a_run_without_duckdb_and_keeps_what_it_read_when_one_opens(
    tmp_path: Path,
) -> None:
    writer = open_writer(tmp_path / "run")
    add_steps(writer, "run", range(2))
    reader = open_run(tmp_path / "run")
    assert reader.steps().column("step").to_pylist() == [0, 1]
    add_steps(writer, "run", range(2, 4))
    assert reader.steps().column("step").to_pylist() == [0, 1, 2, 3]
    assert reader.sql("SELECT max(step) AS last FROM steps").to_pylist() == [{"last": 3}]
    add_steps(writer, "run", range(4, 6))
    assert reader.steps().column("step").to_pylist() == [0, 1, 2, 3, 4, 5]
    writer.close(status="stopped")


def test_a_damaged_file_gives_no_points(tmp_path: Path) -> None:
    run = tmp_path / "run"
    writer = open_writer(run, rotate_every=4)
    add_steps(writer, "run", range(10), num_trajectories=1)
    writer.close(status="stopped")
    pack(run, grace_s=0)
    damaged_path = run / RunIndex(run).files("metrics")[0].entry.path
    damaged = bytearray(damaged_path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    damaged_path.write_bytes(damaged)
    reader = open_run(run)
    assert sorted(reader.points().column("step").to_pylist()) == [4, 5, 6, 7, 8, 9]
    assert not reader.has_duckdb
    assert "left out" in reader.warnings[0]
