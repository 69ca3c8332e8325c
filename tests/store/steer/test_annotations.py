"""Tags, notes and pins: added up in order, torn lines and all."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echoscope.store.errors import AnnotationError, NotARunError, StoreError
from echoscope.store.log.verify import verify
from echoscope.store.steer import annotation_file as module
from echoscope.store.steer.annotation_file import MAX_FILE_BYTES
from echoscope.store.steer.annotations import (
    MAX_TAGS,
    AddTag,
    Annotations,
    Change,
    Pin,
    RemoveTag,
    SetNote,
    annotate,
    read_annotations,
)

ME: dict[str, Any] = {"author": "me", "at": 100.0}


def file_of(run: Path) -> Path:
    return run / "annotations.ndjson"


def test_nothing_noted(finished_run: Path) -> None:
    assert read_annotations(finished_run) == Annotations()
    assert not file_of(finished_run).exists()


def test_changes_add_up_in_order(finished_run: Path) -> None:
    annotate(finished_run, AddTag(**ME, tag="baseline"), AddTag(**ME, tag="seed 0"))
    annotate(finished_run, AddTag(**ME, tag="baseline"), RemoveTag(**ME, tag="gone"))
    annotate(finished_run, SetNote(**ME, note="first"), Pin(**ME))
    annotate(finished_run, SetNote(**ME, note="the KL\nwas wrong"))
    noted = read_annotations(finished_run)
    assert noted == Annotations(
        tags=("baseline", "seed 0"), note="the KL\nwas wrong", is_pinned=True
    )
    annotate(finished_run, RemoveTag(**ME, tag="baseline"), Pin(**ME, is_pinned=False))
    noted = read_annotations(finished_run)
    assert (noted.tags, noted.is_pinned) == (("seed 0",), False)


_LINE = st.text(st.characters(categories=("L", "N", "P", "S"), include_characters=" "), max_size=20)
_TAG = _LINE.map(str.strip).filter(bool)
_WHO = {"author": _LINE, "at": st.floats(-1e11, 1e11)}
_CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(AddTag, **_WHO, tag=st.sampled_from(["a", "b", "c"]) | _TAG),
    st.builds(RemoveTag, **_WHO, tag=st.sampled_from(["a", "b", "c"])),
    st.builds(SetNote, **_WHO, note=st.text(st.characters(exclude_categories=("Cs",)))),
    st.builds(Pin, **_WHO, is_pinned=st.booleans()),
)
REUSED = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@REUSED
@given(changes=st.lists(_CHANGES, max_size=MAX_TAGS))
def test_what_is_noted_is_read_again(finished_run: Path, changes: list[Change]) -> None:
    """Against the plainest model of what each change means; one call or many are the same."""
    tags: dict[str, None] = {}
    note, is_pinned = "", False
    for change in changes:
        match change:
            case AddTag(tag=tag):
                tags.setdefault(tag)
            case RemoveTag(tag=tag):
                tags.pop(tag, None)
            case SetNote():
                note = change.note
            case Pin():
                is_pinned = change.is_pinned
    file_of(finished_run).unlink(missing_ok=True)
    annotate(finished_run, *changes[:3])
    for later_change in changes[3:]:
        annotate(finished_run, later_change)
    noted = read_annotations(finished_run)
    assert (noted.tags, noted.note, noted.is_pinned) == (tuple(tags), note, is_pinned)


@REUSED
@given(junk=st.binary(max_size=200))
def test_junk_in_the_file_costs_only_its_own_lines(finished_run: Path, junk: bytes) -> None:
    file_of(finished_run).unlink(missing_ok=True)
    annotate(finished_run, AddTag(**ME, tag="before"))
    with file_of(finished_run).open("ab") as file:
        file.write(junk)
    annotate(finished_run, AddTag(**ME, tag="after"))
    assert read_annotations(finished_run).tags == ("before", "after")


@pytest.mark.parametrize(
    "line",
    [
        "[" * 50_000,
        "1" * 5_000,
        "[1]",
        '"pin"',
        "{}",
        '{"kind": ["pin"]}',
        '{"kind": "format_disk", "author": "x", "at": 1}',
        '{"kind": "pin", "author": "x", "at": 1, "is_pinned": "yes"}',
        '{"kind": "pin", "author": "x", "at": 1, "more": 1}',
        '{"kind": "pin", "author": "x", "at": true}',
        '{"kind": "pin", "author": "x", "at": NaN}',
        '{"kind": "pin", "author": "x", "at": 1e400}',
        '{"kind": "pin", "author": "x", "at": 1' + "0" * 400 + "}",
        '{"kind": "pin", "author": "x"}',
        '{"kind": "pin", "author": "\\ud800", "at": 1}',
        '{"kind": "add_tag", "author": "x", "at": 1, "tag": 5}',
        '{"kind": "add_tag", "author": "x", "at": 1, "tag": "\\u202egnp.exe"}',
        '{"kind": "set_note", "author": "x", "at": 1, "note": "' + "n" * 4_001 + '"}',
        '{"kind": "set_note", "author": "x", "at": 1, "note": "' + "n" * 70_000 + '"}',
    ],
)
def test_a_hostile_line_is_skipped(finished_run: Path, line: str) -> None:
    annotate(finished_run, SetNote(**ME, note="mine"))
    with file_of(finished_run).open("a") as file:
        file.write(line + "\n")
    annotate(finished_run, AddTag(**ME, tag="after"))
    assert read_annotations(finished_run) == Annotations(note="mine", tags=("after",))


def test_a_torn_line_does_not_swallow_the_next_one(finished_run: Path) -> None:
    """Every prefix of a last line, as a crash in the middle of the append would leave it."""
    annotate(finished_run, AddTag(**ME, tag="whole"))
    whole = file_of(finished_run).read_bytes()
    annotate(finished_run, SetNote(**ME, note="torn"))
    torn = file_of(finished_run).read_bytes()
    for size in range(len(whole) + 1, len(torn) - 1):
        file_of(finished_run).write_bytes(torn[:size])
        assert read_annotations(finished_run).tags == ("whole",)
        annotate(finished_run, AddTag(**ME, tag="next"))
        assert read_annotations(finished_run) == Annotations(tags=("whole", "next"))


def _tag_many(run: Path, who: str) -> None:
    for number in range(40):
        annotate(run, SetNote(author=who, at=float(number), note=f"{who} {number}" * 100))
        annotate(run, Pin(author=who, at=float(number), is_pinned=number % 2 == 0))


@pytest.mark.long
def test_two_writers_lose_nothing(finished_run: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_tag_many, args=(finished_run, who)) for who in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    lines = [json.loads(line) for line in file_of(finished_run).read_text().splitlines()]
    for who in "ab":
        assert [x["at"] for x in lines if x["author"] == who and x["kind"] == "set_note"] == [
            float(number) for number in range(40)
        ]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AddTag(**ME, tag=""), "must not be empty"),
        (lambda: AddTag(**ME, tag=" padded"), "begin or end with a space"),
        (lambda: AddTag(**ME, tag="two\nlines"), "of one line"),
        (lambda: AddTag(**ME, tag="t" * 65), "65 characters, but may have 64"),
        (lambda: SetNote(**ME, note="\ud800"), "lone surrogate"),
        (lambda: Pin(author="x", at=float("nan")), "at is nan"),
        (lambda: Pin(author="\x1b[2J", at=1.0), "printable"),
    ],
)
def test_a_bad_change_is_refused_when_it_is_built(build: Any, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        build()


def test_too_many_tags_are_refused_all_together(finished_run: Path) -> None:
    full = [AddTag(**ME, tag=f"t{number}") for number in range(MAX_TAGS)]
    with pytest.raises(AnnotationError, match="at most 32 tags"):
        annotate(finished_run, *full, AddTag(**ME, tag="one more"))
    assert read_annotations(finished_run).tags == ()
    annotate(finished_run, *full, RemoveTag(**ME, tag="t0"), AddTag(**ME, tag="one more"))
    assert len(read_annotations(finished_run).tags) == MAX_TAGS


def test_a_file_that_somebody_filled_with_tags_shows_the_first(finished_run: Path) -> None:
    lines = [
        json.dumps({"kind": "add_tag", "author": "x", "at": 1, "tag": f"t{number}"})
        for number in range(100)
    ]
    file_of(finished_run).write_text("\n".join(lines))
    assert read_annotations(finished_run).tags == tuple(f"t{n}" for n in range(MAX_TAGS))


def test_a_file_that_is_too_large_is_refused(finished_run: Path) -> None:
    file_of(finished_run).write_bytes(b"\n" * MAX_FILE_BYTES)
    assert read_annotations(finished_run) == Annotations()
    with pytest.raises(StoreError, match="more than 4194304"):
        annotate(finished_run, Pin(**ME))
    assert file_of(finished_run).stat().st_size == MAX_FILE_BYTES
    with file_of(finished_run).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(StoreError, match="more than 4194304"):
        read_annotations(finished_run)


def test_neither_a_link_nor_a_pipe_is_followed(finished_run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("secret")
    file_of(finished_run).symlink_to(elsewhere)
    for attempt in (lambda: read_annotations(finished_run), lambda: annotate(finished_run)):
        with pytest.raises(StoreError, match=r"annotations\.ndjson"):
            attempt()
    assert elsewhere.read_text() == "secret"
    file_of(finished_run).unlink()
    os.mkfifo(file_of(finished_run))
    with pytest.raises(StoreError, match="is a pipe or a device, and no file"):
        read_annotations(finished_run)
    with pytest.raises(StoreError, match="not a regular file"):
        annotate(finished_run, Pin(**ME))


def test_a_folder_without_a_run_gets_no_annotations(tmp_path: Path) -> None:
    with pytest.raises(NotARunError):
        annotate(tmp_path, Pin(**ME))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_file_as_it_was(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotate(finished_run, AddTag(**ME, tag="safe"))
    before = file_of(finished_run).read_bytes()

    def half(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_all", half)
    with pytest.raises(StoreError, match="No space left on device; nothing was noted"):
        annotate(finished_run, AddTag(**ME, tag="lost"))
    assert file_of(finished_run).read_bytes() == before


def test_a_writer_that_hangs_is_not_waited_for_without_end(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    annotate(finished_run, AddTag(**ME, tag="safe"))
    with file_of(finished_run).open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another process has been writing"):
            annotate(finished_run, Pin(**ME))
        assert read_annotations(finished_run).tags == ("safe",)  # a reader never waits


def test_annotations_are_no_part_of_what_is_verified(finished_run: Path) -> None:
    annotate(finished_run, Pin(**ME))
    assert verify(finished_run).problems == ()
