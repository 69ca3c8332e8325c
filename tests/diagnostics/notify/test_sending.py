"""One attempt: what reaches a target, and in which words a failure is told."""

from __future__ import annotations

import email
import email.policy
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mailboxes import Mailbox, mail_server, webhook

from echoscope.diagnostics.config import NotifyConfig
from echoscope.diagnostics.notify.message import trial
from echoscope.diagnostics.notify.sending import NotifyError, SendError, name_of, sender

MESSAGE = trial("run-1", "http://127.0.0.1:8501")
HOOK = "webhook:HOOK"


@pytest.fixture
def box() -> Iterator[Mailbox]:
    with webhook() as served:
        yield served


def send(box: Mailbox, timeout_s: float = 5.0) -> None:
    sender(HOOK, {"HOOK": box.url}, timeout_s)(MESSAGE)


def test_a_webhook_is_posted_once(box: Mailbox) -> None:
    send(box)
    assert box.bodies == [MESSAGE.to_json()]


@pytest.mark.parametrize(
    ("status", "can_retry"), [(500, True), (503, True), (429, True), (404, False), (400, False)]
)
def test_a_refusal_is_told_with_its_first_words(box: Mailbox, status: int, can_retry: bool) -> None:
    box.statuses = [status]
    with pytest.raises(SendError) as failed:
        send(box)
    assert str(failed.value) == f"answered {status}: no [31m such <hook>"
    assert failed.value.can_retry is can_retry


def test_a_server_may_ask_to_wait(box: Mailbox) -> None:
    box.statuses, box.headers = [429], {"Retry-After": "7"}
    with pytest.raises(SendError) as failed:
        send(box)
    assert failed.value.after_s == 7


def test_a_redirect_is_not_followed(box: Mailbox) -> None:
    box.statuses, box.headers = [302], {"Location": f"{box.url}/elsewhere"}
    with pytest.raises(SendError, match="answered 302"):
        send(box)
    assert "GET" not in box.bodies


def test_a_server_that_hangs_costs_the_time_limit(box: Mailbox) -> None:
    box.is_open.clear()
    with pytest.raises(SendError, match=r"^cannot be reached: no answer in time$"):
        send(box, timeout_s=0.1)
    assert box.bodies == []  # it has not answered yet


def test_an_address_is_never_told(box: Mailbox) -> None:
    with pytest.raises(SendError) as failed:
        sender(HOOK, {"HOOK": "http://127.0.0.1:9/secret"}, 1.0)(MESSAGE)
    assert "secret" not in str(failed.value)
    assert name_of(HOOK) == "webhook:HOOK"


@pytest.fixture
def apprise_box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    """A webhook at an Apprise address, and no network besides."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with webhook() as served:
        yield served


ANY = "apprise:ANYWHERE"


def test_any_service_that_apprise_knows_gets_the_words_and_mentions_nobody(
    apprise_box: Mailbox,
) -> None:
    message = replace(MESSAGE, text="@everyone look")
    address = f"json://127.0.0.1:{apprise_box.port}/secret"
    sender(ANY, {"ANYWHERE": address}, 5.0)(message)
    (body,) = apprise_box.bodies
    assert body["title"] == MESSAGE.title
    assert body["message"] == f"@\u200beveryone look\n{MESSAGE.link}"


def test_what_apprise_cannot_send_is_said_without_the_address(apprise_box: Mailbox) -> None:
    apprise_box.statuses = [403]
    address = f"json://127.0.0.1:{apprise_box.port}/secret"
    with pytest.raises(SendError, match=r'^not taken; .*apprise -vv -b test "\$ANYWHERE"$'):
        sender(ANY, {"ANYWHERE": address}, 5.0)(MESSAGE)


def test_an_address_that_apprise_does_not_know_is_refused_at_the_start(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(NotifyError, match="ANYWHERE holds no address that Apprise knows"):
        sender(ANY, {"ANYWHERE": "pigeon://secret"}, 1.0)
    assert "secret" not in "".join(capfd.readouterr())


NOT_SET = (
    "the target webhook takes its address from the environment variable HOOK, which is not set; "
    "run: export HOOK=ADDRESS"
)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, NOT_SET),
        ({"HOOK": " "}, NOT_SET),
        (
            {"HOOK": "file:///etc/passwd"},
            "the environment variable HOOK must hold the address of the target webhook, which "
            "begins with https:// or http://",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_at_the_start(environ: dict[str, str], message: str) -> None:
    with pytest.raises(NotifyError, match=f"^{re.escape(message)}$"):
        sender(HOOK, environ, 1.0)


def test_a_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    with mail_server() as box:
        people = "from=echo@example.com&to=a@example.com,b@example.com"
        address = f"mailto://127.0.0.1:{box.port}?{people}"
        sender("apprise:MAIL", {"MAIL": address})(MESSAGE)
        mails = [email.message_from_string(mail, policy=email.policy.default) for mail in box.mails]
    assert {mail["Subject"] for mail in mails} == {MESSAGE.title}
    assert {"a@example.com", "b@example.com"} <= set(" ".join(m["To"] for m in mails).split())
    assert MESSAGE.link in mails[0].get_body(("plain", "html")).get_content()


@pytest.mark.parametrize("target", ["slack:https://h/secret", "slack:se-cret", "https://secret"])
def test_an_address_in_a_configuration_is_refused_and_not_told(target: str) -> None:
    with pytest.raises(ValueError, match="a target of notify is an address, but must be") as error:
        NotifyConfig(targets=(target,))
    assert "secret" not in error.value.errors()[0]["msg"]
    with pytest.raises(ValueError, match="a target of notify is 'fax'"):
        NotifyConfig(targets=("fax",))


def test_a_command_reads_the_message(tmp_path: Path) -> None:
    out = tmp_path / "out"
    target = f'command:cat > "{out}"; echo "$ECHOSCOPE_RUN" >> "{out}"'
    sender(target, os.environ, 5.0)(MESSAGE)
    written, _, run = out.read_text(encoding="utf-8").rpartition("}")
    assert json.loads(written + "}") == MESSAGE.to_json()
    assert run.strip() == "run-1"


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(SendError, match=r"^ended with code 3: no printer$"):
        sender("command:echo no printer >&2; exit 3", {})(MESSAGE)


def test_a_command_that_hangs_ends_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    target = f'command:(sleep 1; touch "{mark}") & sleep 60'
    with pytest.raises(SendError, match=r"did not end within 0\.2 s"):
        sender(target, os.environ, 0.2)(MESSAGE)
    time.sleep(1.1)
    assert not mark.exists()


DESKTOP = "desktop"


@pytest.fixture
def desktop(tmp_path: Path) -> dict[str, str]:
    """An environment with a `notify-send` that writes its arguments, one a NUL, to `out`."""
    tool = tmp_path / "notify-send"
    tool.write_text('#!/bin/sh\nprintf "%s\\0" "$@" > "${0%/*}/out"\n', encoding="utf-8")
    tool.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def arguments(folder: Path) -> list[str]:
    return (folder / "out").read_text(encoding="utf-8").split("\0")[:-1]


def test_the_desktop(tmp_path: Path, desktop: dict[str, str]) -> None:
    sender(DESKTOP, desktop, 5.0)(MESSAGE)
    body = f"{MESSAGE.text}\n{MESSAGE.link}"
    assert arguments(tmp_path) == ["--app-name=Echoscope", "--", MESSAGE.title, body]


def test_words_of_the_policy_are_no_options_and_no_markup(
    tmp_path: Path, desktop: dict[str, str]
) -> None:
    """The title is plain text. The body is markup, and its backslashes are read before that."""
    message = replace(
        MESSAGE,
        title="--urgency=critical <b>",
        text='<a href="x">a</a> & "b" \\n \0 \x1b[31m',
        link="http://h/diagnosis?run=a&b",
    )
    sender(DESKTOP, desktop, 5.0)(message)
    assert arguments(tmp_path)[1:] == [
        "--",
        "--urgency=critical <b>",
        '&lt;a href="x"&gt;a&lt;/a&gt; &amp; "b" \\\\n    [31m\nhttp://h/diagnosis?run=a&amp;b',
    ]


def test_a_desktop_that_refuses_says_why(tmp_path: Path, desktop: dict[str, str]) -> None:
    tool = tmp_path / "notify-send"
    tool.write_text("#!/bin/sh\necho no display >&2\nexit 1\n", encoding="utf-8")
    with pytest.raises(SendError, match=r"^ended with code 1: no display$"):
        sender(DESKTOP, desktop, 5.0)(MESSAGE)


def test_a_machine_without_notify_send(tmp_path: Path) -> None:
    sentence = (
        "the target desktop needs the program notify-send, which is not on the PATH; install it "
        "(Debian: apt install libnotify-bin), or take another target"
    )
    with pytest.raises(NotifyError, match=f"^{re.escape(sentence)}$"):
        sender(DESKTOP, {"PATH": str(tmp_path)}, 5.0)
