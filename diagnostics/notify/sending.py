"""One attempt to bring a message to one target: HTTP, SMTP, a command, the desktop."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import smtplib
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from typing import Any

from ..config import (
    CommandTarget,
    DesktopTarget,
    EmailTarget,
    NotifyTarget,
    WebhookTarget,
)
from .message import Message, body, for_desktop

_MAX_ANSWER = 2000
"""Bytes of an answer that are read: its first words explain a refusal."""


class NotifyError(ValueError):
    """A target cannot be told as it is configured. One sentence, with the way out."""


class SendError(Exception):
    """An attempt failed. `can_retry`: a later one may not; `after_s`: not before."""

    def __init__(self, words: str, *, can_retry: bool = True, after_s: float = 0.0) -> None:
        super().__init__(words)
        self.can_retry = can_retry
        self.after_s = after_s


Send = Callable[[Message], None]


def sender(target: NotifyTarget, environ: Mapping[str, str], timeout_s: float) -> Send:
    """What sends a message to `target`, or raises `SendError`.

    Raises:
        NotifyError: a variable is not set, or the machine lacks what the target needs.
    """
    if isinstance(target, WebhookTarget):
        url = _secret(target.url_env, "address", target, environ)
        if not url.startswith(("http://", "https://")):
            raise NotifyError(
                f"the environment variable {target.url_env} must hold the address of the target "
                f"{target.kind}, which begins with https:// or http://"
            )
        return lambda message: _post(url, body(target.kind, message), timeout_s)
    if isinstance(target, EmailTarget):
        login = None
        if target.user_env is not None and target.password_env is not None:
            login = (
                _secret(target.user_env, "user", target, environ),
                _secret(target.password_env, "password", target, environ),
            )
        return lambda message: _mail(target, login, message, timeout_s)
    if isinstance(target, CommandTarget):
        return lambda message: _run(["/bin/sh", "-c", target.command], message, environ, timeout_s)
    path = shutil.which("notify-send", path=environ.get("PATH"))
    if path is None:
        raise NotifyError(
            "the target desktop needs the program notify-send, which is not on the PATH; install "
            "it (Debian: apt install libnotify-bin), or take another target"
        )
    return lambda message: _run(
        [path, "--app-name=Echoscope", "--", *for_desktop(message)], message, environ, timeout_s
    )


def name_of(target: NotifyTarget) -> str:
    """How news about a target name it; never its address, which may be a secret."""
    if isinstance(target, WebhookTarget):
        return f"{target.kind} ({target.url_env})"
    if isinstance(target, EmailTarget):
        return f"email ({', '.join(target.to)})"
    return "desktop" if isinstance(target, DesktopTarget) else "command"


def _secret(name: str, what: str, target: NotifyTarget, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise NotifyError(
            f"the target {target.kind} takes its {what} from the environment variable {name}, "
            f"which is not set; run: export {name}={what.upper()}"
        )
    return value


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET that nobody reads."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(url: str, content: Mapping[str, Any], timeout_s: float) -> None:
    request = urllib.request.Request(
        url,
        data=json.dumps(content).encode("utf-8"),
        headers={"Content-Type": "application/json", "User-Agent": "echoscope"},
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s) as answer:
            answer.read(_MAX_ANSWER)
    except urllib.error.HTTPError as error:
        words = _first_words(error)
        raise SendError(
            f"answered {error.code}" + (f": {words}" if words else ""),
            can_retry=error.code in (408, 425, 429) or error.code >= 500,
            after_s=_retry_after(error.headers.get("Retry-After")),
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        # The reason of a URLError; its own text may hold the address.
        reason = getattr(error, "reason", None) or error
        raise SendError(f"cannot be reached: {type(reason).__name__}") from None


def _first_words(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(_MAX_ANSWER).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
    return "".join(char if char.isprintable() else " " for char in text)[:120].strip()


def _retry_after(value: str | None) -> float:
    """Seconds that a server asks to wait; dates are not read."""
    return float(value) if value is not None and value.isdecimal() and len(value) < 6 else 0.0


def _mail(
    target: EmailTarget, login: tuple[str, str] | None, message: Message, timeout_s: float
) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = message.title, target.sender, ", ".join(target.to)
    link = [message.link] if message.link else []
    mail.set_content("\n\n".join([*message.lines(), *link]) + "\n")
    context = ssl.create_default_context()
    try:
        if target.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                target.host, target.port, timeout=timeout_s, context=context
            )
        else:
            server = smtplib.SMTP(target.host, target.port, timeout=timeout_s)
        with server:
            if target.security == "starttls":
                server.starttls(context=context)
            if login is not None:
                server.login(*login)
            server.send_message(mail)
    except smtplib.SMTPAuthenticationError as error:
        raise SendError(f"refused the login ({error.smtp_code})", can_retry=False) from None
    except smtplib.SMTPRecipientsRefused:
        raise SendError("refused every recipient", can_retry=False) from None
    except (OSError, smtplib.SMTPException) as error:
        raise SendError(f"{type(error).__name__}: {error}") from None


def _run(
    command: list[str], message: Message, environ: Mapping[str, str], timeout_s: float
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
