"""echoscope notify test: does every target get a message?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mailboxes import webhook

TARGET = "diagnostics.notify.targets=[{kind: slack, url_env: ECHOSCOPE_TEST_HOOK}]"
Typed = Callable[..., Any]


def test_each_target_gets_one_message(type_command: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as box:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        answer = type_command("notify", "test", "demo", TARGET)
    assert (answer.code, answer.out) == (0, "slack (ECHOSCOPE_TEST_HOOK): sent\n")
    assert box.bodies[0]["text"].startswith("Echoscope: test of the messages of demo")


def test_a_target_that_fails_is_exit_code_1(
    type_command: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as box:
        box.statuses = [404]
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        answer = type_command("notify", "test", "demo", TARGET)
    assert answer.code == 1
    assert answer.out.startswith("slack (ECHOSCOPE_TEST_HOOK): not sent: answered 404")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["notify", "test", "demo"], "diagnostics.notify.targets is empty"),
        (["train", "demo", TARGET], "names ECHOSCOPE_TEST_HOOK, but no such variable is set"),
        (
            ["train", "demo", "diagnostics.notify.targets=[{kind: pigeon}]"],
            "diagnostics.notify.targets",
        ),
    ],
)
def test_what_cannot_be_told_is_one_sentence_before_anything_starts(
    words: list[str],
    expected: str,
    type_command: Typed,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("ECHOSCOPE_TEST_HOOK", raising=False)
    monkeypatch.chdir(tmp_path)
    answer = type_command(*words)
    assert answer.code != 0
    assert expected in answer.err
    assert "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []
