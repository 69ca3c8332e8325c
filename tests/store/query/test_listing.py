"""The list of runs: read from run.json and the end of the journal, again only after a change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alarm_events import alarm_event
from made_run import add_steps, make_run, open_writer

from echoscope.store.errors import NotARunError, StoreError
from echoscope.store.log.durable import read_checked_json, with_checksum
from echoscope.store.log.packing import pack
from echoscope.store.query import listing
from echoscope.store.query.listing import (
    RunList,
    RunRow,
    algorithm_of,
    details_of,
    row_status,
    run_path,
)
from echoscope.store.query.patterns import matches
from echoscope.store.records import (
    CommandAck,
    CommandAction,
    CommandOutcome,
)
from echoscope.store.steer.annotations import AddTag, Pin, SetNote, annotate
from echoscope.store.steer.commands import new_command
from echoscope.store.writer import RunWriter


def row_of(root: Path, name: str) -> RunRow:
    return next(row for row in RunList(root).rows() if row.run_id == name)


def test_a_finished_run(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 3, tags=["one"])
    row = row_of(tmp_path, "a")
    assert (row.status, row.last_step, row.num_steps) == ("finished", 2, 100)
    assert (row.environments, row.algorithm, row.tags) == (("frozen_lake",), "grpo", ("one",))
    assert row.success_rate == 0.5  # every second trajectory succeeds
    assert row.problem == ""


def test_a_live_run_and_one_that_crashed(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    add_steps(writer, "a", range(2))
    listed = RunList(tmp_path)
    assert [(row.status, row.last_step) for row in listed.rows()] == [("running", 1)]
    add_steps(writer, "a", range(2, 4))
    assert [row.last_step for row in listed.rows()] == [3]
    writer._lock.release()  # what the end of a process does
    assert [row.status for row in listed.rows()] == ["crashed"]
    writer.close(status="finished")
    assert [row.status for row in listed.rows()] == ["finished"]


def test_who_cannot_wait_gets_the_newest_runs_first(tmp_path: Path) -> None:
    for age, name in enumerate(("a", "b", "c")):
        make_run(tmp_path / name, 3)
        os.utime(tmp_path / name / "run.json", (1_000 - age, 1_000 - age))
    listed = RunList(tmp_path)

    def read(most: int) -> list[tuple[str, bool]]:
        return [(row.run_id, row.is_read) for row in listed.rows(most)]

    assert dict(read(0)) == {"a": False, "b": False, "c": False}
    assert dict(read(1)) == {"a": True, "b": False, "c": False}
    assert dict(read(1)) == {"a": True, "b": True, "c": False}
    unread = next(row for row in listed.rows(0) if row.run_id == "c")
    assert (unread.path, unread.created_at, unread.status) == (tmp_path / "c", 998.0, "")
    assert all(row.is_read and row.status == "finished" for row in listed.rows())


def test_a_run_that_moved_is_as_it_was_until_it_is_read_again(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer:
        add_steps(writer, "a", range(2))
        listed = RunList(tmp_path)
        listed.rows()
        add_steps(writer, "a", range(2, 4))
        assert [row.last_step for row in listed.rows(0)] == [1]
        assert [row.last_step for row in listed.rows(1)] == [3]


def test_threads_that_read_the_list_together_get_all_of_it(tmp_path: Path) -> None:
    for number in range(12):
        make_run(tmp_path / f"run-{number}", 1)
    listed = RunList(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        answers = [*pool.map(lambda _: listed.rows(), range(8))]
    assert all(len(rows) == 12 and all(row.is_read for row in rows) for rows in answers)


def test_a_rewind_is_followed(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 5, status="stopped")
    with RunWriter.resume(tmp_path / "a", from_step=1, is_packing=False):
        row = row_of(tmp_path, "a")
    assert (row.status, row.last_step) == ("running", 1)


def test_a_packed_run_is_read_from_the_header_of_its_last_piece(tmp_path: Path) -> None:
    pack(make_run(tmp_path / "a", 5))
    row = row_of(tmp_path, "a")
    assert (row.status, row.last_step) == ("finished", 4)


def test_a_step_longer_than_the_first_look_is_found(tmp_path: Path) -> None:
    """5,000 metrics make a line of more than 64 kB."""
    many = {f"made/metric_{i:05d}": float(i) for i in range(5_000)}
    make_run(tmp_path / "a", 3, values=lambda step: many)
    assert row_of(tmp_path, "a").last_step == 2


def test_what_people_noted_is_shown_and_pinned_runs_come_first(tmp_path: Path) -> None:
    make_run(tmp_path / "old", 1)
    make_run(tmp_path / "new", 1)
    listed = RunList(tmp_path)
    assert [row.run_id for row in listed.rows()] == ["new", "old"]
    who = {"author": "me", "at": 1.0}
    annotate(tmp_path / "old", Pin(**who), AddTag(tag="good", **who), SetNote(note="look", **who))
    first = listed.rows()[0]
    assert (first.run_id, first.is_pinned, first.tags, first.note) == (
        "old",
        True,
        ("good",),
        "look",
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "run.json: not JSON"),
        ("[]", "holds no JSON object"),
        (json.dumps(with_checksum({"schema_version": "9"})), "written with store version '9'"),
        (json.dumps({"schema_version": "1"}), "its content changed after it was written"),
    ],
)
def test_a_broken_description_is_a_row_that_says_so(content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").write_text(content)
    assert why in row_of(tmp_path, "a").problem


def test_a_journal_without_its_header_is_a_row_that_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    lines = (run / "journal.ndjson").read_bytes().split(b"\n")
    (run / "journal.ndjson").write_bytes(b"\n".join(lines[1:]))
    assert "lost its first record" in row_of(tmp_path, "a").problem


def test_damaged_records_at_the_end_are_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 3)
    with (run / "journal.ndjson").open("ab") as file:
        file.write(b'{"crc": "00000000", "kind":"step","step":99}\nhalf a li')
    assert row_of(tmp_path, "a").last_step == 2


@pytest.mark.parametrize(
    ("name", "value"), [("config", "[1"), ("config", "[1]"), ("created_at", "x"), ("tags", 3)]
)
def test_odd_values_in_run_json_are_a_row_that_says_so(
    tmp_path: Path, name: str, value: object
) -> None:
    path = make_run(tmp_path / "a") / "run.json"
    odd = read_checked_json(path) | {name: value}
    path.write_text(json.dumps(with_checksum(odd)))
    assert row_of(tmp_path, "a").problem.startswith("it is damaged (")


def test_folders_that_are_no_runs_are_named(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "file").touch()
    listed = RunList(tmp_path)
    assert (listed.rows(), listed.others) == ([], ["file", "rollouts"])


def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    outside = make_run(tmp_path / "elsewhere" / "secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    assert "leads out of" in row_of(root, "link").problem
    with pytest.raises(NotARunError, match="leads out of"):
        run_path(root, "link")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "..\\a", "a\0", "x" * 256, "a\u202eb", "a\n"]
)
def test_what_is_no_name_of_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotARunError, match="is not the name of a run"):
        run_path(tmp_path, name)


def test_a_missing_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        RunList(tmp_path / "none").rows()


def test_rows_of_a_large_root_are_used_again_until_something_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "a", 1)
    monkeypatch.setattr(listing, "LARGE", 1)
    monkeypatch.setattr(listing, "KEPT_S", 1e6)
    listed = RunList(tmp_path)
    assert not listed.rows()[0].is_pinned
    annotate(tmp_path / "a", Pin(author="kim", at=1.0, is_pinned=True))
    assert not listed.rows()[0].is_pinned
    listed.look_again()
    assert listed.rows()[0].is_pinned


def test_a_filter_looks_at_names_environments_tags_and_notes() -> None:
    row = RunRow(run_id="a1", path=Path(), environments=("sokoban",), tags=("best",), note="see me")
    patterns = {"a1": True, "soko": True, "^best$": True, "see": True, "lake": False}
    assert {p: any(matches(p, row.texts)) for p in patterns} == patterns


@pytest.mark.parametrize(
    ("advantage", "loss", "name"),
    [
        ("grpo", "clip", "grpo"),
        ("grpo", "gspo", "grpo + gspo"),
        ("", "clip", ""),
        ("gae", "", "gae"),
    ],
)
def test_names_of_algorithms(advantage: str, loss: str, name: str) -> None:
    assert algorithm_of({"advantage": {"kind": advantage}, "loss": {"kind": loss}}) == name


def test_an_algorithm_of_ones_own_goes_by_its_function() -> None:
    own = {"kind": "custom", "function": "my_parts:ranks"}
    assert algorithm_of({"advantage": own, "loss": {"kind": "clip"}}) == "my_parts:ranks"
    assert algorithm_of({"advantage": {"kind": "gae"}, "loss": own}) == "gae + my_parts:ranks"
    assert algorithm_of({"advantage": {"kind": "custom"}}) == "custom"


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _digits(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"created_at": 10**400}))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BAD: dict[str, tuple[str, Callable[[Path], object]]] = {
    "half": ("run.json", lambda path: path.write_text('{"schema_version": "1')),
    "digits": ("run.json", _digits),
    "nested": ("run.json", lambda path: path.write_text("[" * 50_000)),
    "pipe": ("run.json", _pipe),
    "journal pipe": ("journal.ndjson", _pipe),
    "journal": ("journal.ndjson", _folder),
    "journal of text": ("journal.ndjson", lambda path: path.write_text("no record\n")),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_run_is_a_row_with_its_problem_and_the_others_stay(kind: str, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        make_run(tmp_path / name, 3)
    file, spoil = BAD[kind]
    spoil(tmp_path / "bad" / file)
    rows = {row.run_id: row for row in RunList(tmp_path).rows()}
    assert (rows["good"].status, rows["good"].last_step, rows["good"].problem) == (
        "finished",
        2,
        "",
    )
    bad = rows.get("bad")
    if bad is not None and bad.problem:
        assert "\n" not in bad.problem
    else:
        # run.json is no file; or its broken value is left out.
        assert bad is None or bad.created_at < 1e12


# -- details ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("is_packed", [False, True])
def test_success_over_the_run_is_thinned_to_means(is_packed: bool, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 120)
    if is_packed:
        pack(run)
    details = details_of(row_of(tmp_path, "a"))
    assert details.success == (0.5,) * 60  # two steps each
    assert not details.has_text


def test_the_worst_alarm_that_is_open(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    add_steps(writer, "a", range(3), lambda step: {"text/echo_frac": 0.0})
    writer.record_alarms(
        [
            alarm_event("over", 0, "critical"),
            alarm_event("over", 1, "critical", is_raised=False),
            alarm_event("worst", 1),
            alarm_event("latest", 2, "info"),
        ]
    )
    writer.close(status="finished")
    details = details_of(row_of(tmp_path, "a"))
    assert details.alarm_rule == "WORST"
    assert details.has_text


def test_who_stopped_it_and_why(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    add_steps(writer, "a", range(2))
    stop = new_command("a", CommandAction.STOP, issued_by="ann", reason="enough")
    ack = CommandAck(command_id=stop.command_id, step=1, outcome=CommandOutcome.APPLIED)
    writer.record_acks([ack], [stop])
    writer.close(status="stopped")
    row = row_of(tmp_path, "a")
    details = details_of(row)
    stands = row_status(row, details, 0.0)
    assert (stands.by, stands.reason) == ("ann", "enough")


def test_a_command_of_401_digits_changes_neither_row_nor_status(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", 3)
    before = row_of(tmp_path, "a")
    command = {"command_id": "c", "run_id": "a", "action": "pause", "issued_at": 10**400}
    (path / "commands").mkdir(exist_ok=True)
    (path / "commands" / "0.json").write_text(json.dumps(command))
    row = row_of(tmp_path, "a")
    assert (row.status, row.last_step, row.problem) == (before.status, before.last_step, "")
    assert row_status(row, details_of(row), 0.0).status.value == "finished"
