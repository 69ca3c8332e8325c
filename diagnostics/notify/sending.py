"""One attempt to bring a message to one target: HTTP, SMTP, Apprise, a command, the desktop."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import smtplib
import ssl
import subprocess
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from typing import Any

from echoscope.text.network import STATUSES_WORTH_A_RETRY

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
        if target.kind == "apprise":
            return _by_apprise(target, url)
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


def _post(url: str, content: Mapping[str, Any], timeout_s: float) -> None:
    """Redirects are not followed: a redirected POST would become a GET that nobody reads."""
    import httpx  # here: most runs tell nobody

    try:
        with httpx.stream("POST", url, json=content, timeout=timeout_s) as answer:
            first = next(answer.iter_bytes(_MAX_ANSWER), b"").decode("utf-8", "replace")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        # Its text may hold the address.
        reason = "no answer in time" if isinstance(error, httpx.TimeoutException) else _cause(error)
        raise SendError(f"cannot be reached: {reason}") from None
    if not answer.is_success:
        printable = "".join(char if char.isprintable() else " " for char in first)[:120].strip()
        wait = answer.headers.get("Retry-After", "")
        raise SendError(
            f"answered {answer.status_code}" + (f": {printable}" if printable else ""),
            can_retry=answer.status_code in STATUSES_WORTH_A_RETRY or answer.status_code >= 500,
            after_s=float(wait) if wait.isdecimal() and len(wait) < 6 else 0.0,
        )


def _cause(error: BaseException) -> str:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return type(error).__name__


def _by_apprise(target: WebhookTarget, url: str) -> Send:
    """Any other service, by its Apprise address."""
    import apprise

    logging.getLogger("apprise").addHandler(logging.NullHandler())  # it would print the address
    service = apprise.Apprise.instantiate(url)
    if service is None:
        raise NotifyError(
            f"the environment variable {target.url_env} holds no address that Apprise knows, such "
            "as tgram://TOKEN/CHAT; run: apprise --details"
        )

    def send(message: Message) -> None:
        text = message.plain().removeprefix(message.title).strip().replace("@", "@\u200b")
        if not service.notify(title=message.title, body=text, body_format="text"):
            raise SendError(f'not taken; to see why, run: apprise -vv -b test "${target.url_env}"')

    return send


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
