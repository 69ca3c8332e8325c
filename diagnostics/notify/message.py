"""What people are told, and the bodies in which services take it.

A message is made of a verdict. Words of the policy may stand in it, so every body is escaped for
its service: nobody is mentioned, nothing becomes a link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal
from urllib.parse import quote_plus

from echoscope.store.records import Alarm
from echoscope.text.strict_json import json_value

from ..judge.record import Verdict

Occasion = Literal["alarm", "end", "guard", "test"]

MAX_ALARMS = 10
"""Alarms that a message names; the others are counted."""
MAX_CHARS = 1900
"""Discord takes 2,000 characters."""
MAX_EVIDENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message, before it has the form of a service."""

    occasion: Occasion
    run: str
    title: str
    """One line: the run, its state and the step."""
    text: str
    """The verdict's first paragraph: what happened, and since when."""
    state: str
    step: int | None
    evidence: tuple[str, ...] = ()
    advice: str = ""
    alarms: tuple[str, ...] = ()
    """`severity RULE at step N: words`, the most recent last."""
    link: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: the body of a webhook, and what a command reads."""
        return {"source": "echoscope", **json_value(asdict(self))}

    def lines(self) -> list[str]:
        """The message as people read it, without its title and its link."""
        evidence = f"Evidence: {'; '.join(self.evidence)}." if self.evidence else ""
        advice = f"What to do: {self.advice}" if self.advice else ""
        alarms = f"Alarms: {'; '.join(self.alarms)}" if len(self.alarms) > 1 else ""
        return [line for line in (self.text, evidence, advice, alarms) if line]

    def plain(self) -> str:
        """Title, lines and link, at most `MAX_CHARS` characters."""
        body = "\n".join([self.title, *self.lines()])
        link = f"\n{self.link}" if self.link else ""
        room = MAX_CHARS - len(link)
        return (body if len(body) <= room else body[: room - 3] + "...") + link


def of_verdict(
    verdict: Verdict,
    alarms: Sequence[Alarm] = (),
    *,
    run: str,
    occasion: Occasion = "alarm",
    status: str = "",
    dashboard_url: str = "",
) -> Notification:
    """A message about a run as it is judged now.

    Args:
        alarms: what has been raised since the last message.
        status: how the run ended, for the occasion "end".
        dashboard_url: "" where no dashboard is known.
    """
    state = verdict.state.value
    where = "" if verdict.last_step is None else f" at step {verdict.last_step}"
    ended = f"{status}, " if status else ""
    first, _, _ = verdict.text.partition("\n")
    named = [
        f"{alarm.severity.value} {alarm.rule} at step {alarm.step}: {alarm.message}"
        for alarm in alarms[-MAX_ALARMS:]
    ]
    more = len(alarms) - len(named)
    return Notification(
        occasion=occasion,
        run=run,
        title=_line(f"Echoscope: {run}: {ended}{state}{where}"),
        text=first,
        state=state,
        step=verdict.last_step,
        evidence=tuple(e.words for e in verdict.evidence if e.words)[:MAX_EVIDENCE],
        advice=verdict.actions[0].text if verdict.actions else "",
        alarms=tuple([f"{more} earlier alarms", *named] if more else named),
        link=run_link(dashboard_url, run),
    )


def trial(run: str, dashboard_url: str) -> Notification:
    """What `echoscope notify test` sends."""
    return Notification(
        occasion="test",
        run=run,
        title=_line(f"Echoscope: test of the messages of {run}"),
        text="This is a test. A message about a collapse has the verdict, the evidence and a link.",
        state="",
        step=None,
        link=run_link(dashboard_url, run),
    )


def run_link(dashboard_url: str, run: str) -> str:
    """The page Diagnosis of a run.

    >>> run_link("http://10.0.0.5:8501/", "my run")
    'http://10.0.0.5:8501/diagnosis?run=my+run'
    """
    return f"{dashboard_url.rstrip('/')}/diagnosis?run={quote_plus(run)}" if dashboard_url else ""


def body(kind: str, message: Notification) -> Mapping[str, Any]:
    """The JSON that a service takes.

    Args:
        kind: webhook, slack (incoming webhooks), discord (webhooks) or teams (workflows that take
            an Adaptive Card).
    """
    if kind == "slack":
        # Slack reads `&`, `<` and `>`; mentions and links are written with them.
        text = escape(message.plain(), quote=False)
        return {"text": text, "unfurl_links": False, "unfurl_media": False}
    if kind == "discord":
        return {"content": _for_discord(message), "allowed_mentions": {"parse": []}}
    if kind == "teams":
        return _card(message)
    return message.to_json()


def _for_discord(message: Notification) -> str:
    """Markdown as it stands, so that underscores of names and stars of the policy stay."""
    link = f"\n{message.link}" if message.link else ""
    text = re.sub(r"([\\*_~`|<>\[\]#@:-])", r"\\\1", message.plain().removesuffix(link))
    return text[: 2000 - len(link)] + link


def for_desktop(message: Notification) -> tuple[str, str]:
    """Title and body of a notice, as `notify-send` takes them.

    The body is markup for the desktop, and before that `notify-send` reads backslashes as C does.
    """
    link = [message.link] if message.link else []
    text = "".join(
        char if char.isprintable() or char == "\n" else " "
        for char in "\n".join([*message.lines(), *link])
    )
    return message.title, escape(text[:MAX_CHARS], quote=False).replace("\\", "\\\\")


def _card(message: Notification) -> dict[str, Any]:
    """Text blocks read a part of Markdown: what could be read as such is escaped."""

    def block(text: str, **style: Any) -> dict[str, Any]:
        safe = re.sub(r"([\\*_\[\]()#`>-])", r"\\\1", text)
        return {"type": "TextBlock", "text": safe, "wrap": True, **style}

    blocks = [block(message.title, weight="Bolder"), *map(block, message.lines())]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    if message.link:
        card["actions"] = [
            {"type": "Action.OpenUrl", "title": "Open the diagnosis", "url": message.link}
        ]
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def _line(text: str) -> str:
    """One printable line: a subject or a title."""
    return "".join(char if char.isprintable() else " " for char in text)[:200]
