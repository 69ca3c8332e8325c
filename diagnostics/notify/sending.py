"""One attempt to bring a message to one target: HTTP, Apprise, a command, the desktop.

A target is `desktop`, `command:COMMAND`, or a kind with the name of the environment variable that
holds its address, such as `slack:SLACK_HOOK`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from echoscope.text.network import STATUSES_WORTH_A_RETRY

from .message import Notification, body, for_desktop

TIMEOUT_S = 10.0
_MAX_ANSWER = 2000
"""Bytes of an answer that are read: its first words explain a refusal."""


class NotifyError(ValueError):
    """A target cannot be told as it is configured. One sentence, with the way out."""


class SendError(Exception):
    """An attempt failed. `can_retry`: a later one may not; `after_s`: not before."""

    def __init__(self, reason: str, *, can_retry: bool = True, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.can_retry = can_retry
        self.after_s = after_s


Send = Callable[[Notification], None]


def sender(target: str, environ: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Send:
    """What sends a message to `target`, or raises `SendError`.

    Raises:
        NotifyError: a variable is not set, or the machine lacks what the target needs.
    """
    kind, _, value = target.partition(":")
    if kind == "command":
        return lambda message: _run(["/bin/sh", "-c", value], message, environ, timeout_s)
    if kind == "desktop":
        path = shutil.which("notify-send", path=environ.get("PATH"))
        if path is None:
            raise NotifyError(
                "the target desktop needs the program notify-send, which is not on the PATH; "
                "install it (Debian: apt install libnotify-bin), or take another target"
            )
        head = [path, "--app-name=Echoscope", "--"]
        return lambda message: _run([*head, *for_desktop(message)], message, environ, timeout_s)
    url = environ.get(value, "").strip()
    if not url:
        raise NotifyError(
            f"the target {kind} takes its address from the environment variable {value}, which is "
            f"not set; run: export {value}=ADDRESS"
        )
    if kind == "apprise":
        return _by_apprise(value, url)
    if not url.startswith(("http://", "https://")):
        raise NotifyError(
            f"the environment variable {value} must hold the address of the target {kind}, which "
            "begins with https:// or http://"
        )
    return lambda message: _post(url, body(kind, message), timeout_s)


def name_of(target: str) -> str:
    """How news about a target name it; never its address, which may be a secret."""
    return "command" if target.startswith("command:") else target


def _post(url: str, content: Mapping[str, Any], timeout_s: float) -> None:
    """Redirects are not followed: a redirected POST would become a GET that nobody reads."""
    import httpx  # here: most runs tell nobody

    try:
        with httpx.stream("POST", url, json=content, timeout=timeout_s) as answer:
            first = next(answer.iter_bytes(_MAX_ANSWER), b"").decode("utf-8", "replace")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        # Its text may hold the address.
        is_late = isinstance(error, httpx.TimeoutException)
        reason = "no answer in time" if is_late else type(error).__name__
        raise SendError(f"cannot be reached: {reason}") from None
    if not answer.is_success:
        printable = "".join(char if char.isprintable() else " " for char in first)[:120].strip()
        wait = answer.headers.get("Retry-After", "")
        raise SendError(
            f"answered {answer.status_code}" + (f": {printable}" if printable else ""),
            can_retry=answer.status_code in STATUSES_WORTH_A_RETRY,
            after_s=float(wait) if wait.isdecimal() and len(wait) < 6 else 0.0,
        )


def _by_apprise(variable: str, url: str) -> Send:
    """A mail, and any other service, by its Apprise address."""
    import apprise

    logging.getLogger("apprise").addHandler(logging.NullHandler())  # it would print the address
    service = apprise.Apprise.instantiate(url)
    if service is None:
        raise NotifyError(
            f"the environment variable {variable} holds no address that Apprise knows, such as "
            "mailtos://USER:PASSWORD@smtp.example.com?to=me@example.com or tgram://TOKEN/CHAT; "
            "run: apprise --details"
        )

    def send(message: Notification) -> None:
        text = message.plain().removeprefix(message.title).strip().replace("@", "@\u200b")
        if not service.notify(title=message.title, body=text, body_format="text"):
            raise SendError(f'not taken; to see why, run: apprise -vv -b test "${variable}"')

    return send


def _run(
    command: list[str], message: Notification, environ: Mapping[str, str], timeout_s: float
) -> None:
    """Run a command in a group of its own, so that what it started ends with it."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**environ, "ECHOSCOPE_RUN": message.run, "ECHOSCOPE_TITLE": message.title},
        )
    except (OSError, ValueError) as error:
        raise SendError(f"cannot start: {error}", can_retry=False) from None
    try:
        _, errors = process.communicate(json.dumps(message.to_json()).encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise SendError(f"did not end within {timeout_s:g} s", can_retry=False) from None
    if process.returncode:
        lines = errors[-_MAX_ANSWER:].decode("utf-8", "replace").strip().splitlines()
        last = f": {lines[-1][:120]}" if lines else ""
        raise SendError(f"ended with code {process.returncode}{last}")
