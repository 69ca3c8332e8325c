"""echoscope notify test: does every target get a message?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mailboxes import webhook

TARGET = "diagnostics.notify.targets=[slack:ECHOSCOPE_TEST_HOOK]"
Typed = Callable[..., Any]


def test_each_target_gets_one_message(type_command: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as box:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        answer = type_command("notify", "test", "demo", TARGET)
    assert (answer.code, answer.out) == (0, "slack:ECHOSCOPE_TEST_HOOK: sent\n")
    assert box.bodies[0]["text"].startswith("Echoscope: test of the messages of demo")


def test_a_target_that_fails_is_exit_code_1(
    type_command: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as box:
        box.statuses = [404]
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        answer = type_command("notify", "test", "demo", TARGET)
    assert answer.code == 1
    assert answer.out.startswith("slack:ECHOSCOPE_TEST_HOOK: not sent: answered 404")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["notify", "test", "demo"], "diagnostics.notify.targets is empty"),
        (["train", "demo", TARGET], "environment variable ECHOSCOPE_TEST_HOOK, which is not set"),
        (
            ["train", "demo", "diagnostics.notify.targets=[pigeon]"],
            "a target of notify is 'pigeon', but must be desktop",
        ),
    ],
)
def test_what_cannot_be_told_is_one_sentence_before_anything_starts(
    arguments: list[str],
    expected: str,
    type_command: Typed,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("ECHOSCOPE_TEST_HOOK", raising=False)
    monkeypatch.chdir(tmp_path)
    answer = type_command(*arguments)
    assert answer.code != 0
    assert expected in answer.err
    assert "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []


HOOK = "https://hooks.example.com/services/T0/secret"


def test_a_file_with_nothing_but_the_messages_is_enough(
    type_command: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The block of docs/alarms.md, without environments."""
    file = tmp_path / "slack.yaml"
    file.write_text(
        "diagnostics:\n  notify:\n    targets: [slack:ECHOSCOPE_TEST_HOOK]\n",
        encoding="utf-8",
    )
    with webhook() as box:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        answer = type_command("notify", "test", "--config", str(file))
    assert (answer.code, answer.out) == (0, "slack:ECHOSCOPE_TEST_HOOK: sent\n")


@pytest.mark.parametrize(
    "word", ["diagnostics.notfy.every_s=1", "diagnstics.notify.every_s=1", "diagnostics.notify=3"]
)
def test_a_wrong_key_is_named_without_environments(word: str, type_command: Typed) -> None:
    answer = type_command("notify", "test", word, "--config", "/dev/null")
    assert answer.code != 0
    assert "envs" not in answer.err


@pytest.mark.parametrize("target", [f"'slack:{HOOK}'", f"{{kind: slack, url: '{HOOK}'}}"])
def test_an_address_is_never_repeated(target: str, type_command: Typed) -> None:
    answer = type_command("notify", "test", "demo", f"diagnostics.notify.targets=[{target}]")
    assert answer.code == 1
    assert "secret" not in answer.err
