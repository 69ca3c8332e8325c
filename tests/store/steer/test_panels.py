"""Own panels on the disk: short YAML, several writers, and files that nobody of ours wrote."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from echoscope.store.errors import AnnotationError, StoreError
from echoscope.store.steer.panels import (
    FILE,
    MAX_PANELS,
    Panel,
    add,
    made,
    move,
    read_pages,
    remove,
    replace,
)

ENTROPY = Panel(metric="policy/entropy")
QUERY = Panel(sql="SELECT step FROM steps", title="Steps", width="full", log=True, smooth=0.5)


def test_a_panel_is_a_few_lines_that_say_what_is_not_usual(tmp_path: Path) -> None:
    add(tmp_path, "main", ENTROPY)
    add(tmp_path, "main", QUERY)
    assert (tmp_path / FILE).read_text() == (
        "pages:\n"
        "  main:\n"
        "  - metric: policy/entropy\n"
        "  - sql: SELECT step FROM steps\n"
        "    title: Steps\n"
        "    width: full\n"
        "    log: true\n"
        "    smooth: 0.5\n"
    )
    assert read_pages(tmp_path) == {"main": [ENTROPY, QUERY]}


def test_a_root_without_the_file_has_no_pages(tmp_path: Path) -> None:
    assert read_pages(tmp_path) == {}


def test_panels_are_moved_changed_and_removed_and_an_empty_page_is_gone(tmp_path: Path) -> None:
    add(tmp_path, "main", ENTROPY)
    add(tmp_path, "main", QUERY)
    move(tmp_path, "main", QUERY, -1)
    move(tmp_path, "main", QUERY, -1)  # it stands first already
    assert read_pages(tmp_path)["main"] == [QUERY, ENTROPY]
    wide = made(metric="policy/entropy", width="half")
    replace(tmp_path, "main", ENTROPY, wide)
    remove(tmp_path, "main", QUERY)
    assert read_pages(tmp_path) == {"main": [wide]}
    remove(tmp_path, "main", wide)
    assert read_pages(tmp_path) == {}


def test_two_writers_lose_nothing_of_each_other(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for n in range(8):
            add(tmp_path, name, Panel(metric=f"{name}/{n}"))

    writers = [threading.Thread(target=write, args=(name,)) for name in ("left", "right")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    pages = read_pages(tmp_path)
    for name in ("left", "right"):
        assert [panel.metric for panel in pages[name]] == [f"{name}/{n}" for n in range(8)]


def test_who_changes_what_somebody_else_has_changed_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "main", ENTROPY)
    replace(tmp_path, "main", ENTROPY, made(metric="policy/entropy", log=True))
    for act in (lambda: remove(tmp_path, "main", ENTROPY), lambda: move(tmp_path, "x", ENTROPY, 1)):
        with pytest.raises(StoreError, match=r"^somebody changed or removed this panel meanwhile"):
            act()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pages: {main: [{metric: a, sql: SELECT 1}]}", "a panel shows one thing"),
        ("pages: {main: [{width: third}]}", "a panel shows one thing"),
        ("pages: {main: [{metric: a, height: 99999}]}", "less than or equal to 900"),
        ("pages: {main: [{metric: a, color: red}]}", "main.0.color: extra inputs"),
        ("pages: {main: [{metric: 7}]}", "main.0.metric: input should be a valid string"),
        ('pages: {main: [{metric: "a\\x1b[0m"}]}', "must be printable and of one line"),
        ("pages: {'../x': []}", "string should match pattern"),
        ("pages: !!python/object/apply:os.system [true]", "is not valid YAML"),
        (
            "a: &a [1, 1]\nb: &b [*a, *a]\nc: &c [*b, *b]\npages: [*c, *c]",
            "input should be a valid",
        ),
        ("[1, 2]", "the file: input should be"),
        ("pages: {main: [" + "{metric: a}, " * (MAX_PANELS + 1) + "]}", "at most 24 items"),
        ("x" * 300_000, "has more than 262144 bytes"),
    ],
)
def test_a_file_that_says_what_no_page_may_say_is_refused_in_a_sentence_and_kept(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / FILE).write_text(text)
    for act in (lambda: read_pages(tmp_path), lambda: add(tmp_path, "main", ENTROPY)):
        with pytest.raises(StoreError) as refused:
            act()
        assert sentence in str(refused.value)
        assert "\n" not in str(refused.value)
    assert (tmp_path / FILE).read_text() == text


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(StoreError, match="is not a regular file"):
        read_pages(tmp_path)


def test_a_full_page_and_an_odd_name_are_refused(tmp_path: Path) -> None:
    for n in range(MAX_PANELS):
        add(tmp_path, "main", Panel(metric=f"m{n}"))
    with pytest.raises(AnnotationError, match="at most 24 items"):
        add(tmp_path, "main", ENTROPY)
    with pytest.raises(AnnotationError, match="nothing was changed"):
        add(tmp_path, "<b>", ENTROPY)
    assert list(read_pages(tmp_path)) == ["main"]


def test_a_panel_that_no_page_may_have_is_refused_in_a_sentence() -> None:
    with pytest.raises(AnnotationError, match="this panel cannot be kept: smooth: input should be"):
        made(metric="a", smooth=2.0)
