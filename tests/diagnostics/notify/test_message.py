"""A message holds the verdict, the evidence and a link; nothing in it mentions or links."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.diagnostics.notify.message import MAX_CHARS, Notification, body, of_verdict, run_link

HOSTILE = "@everyone <!channel> [click](http://evil.example) *bold* `code` </a>"
MESSAGE = Notification(
    occasion="alarm",
    run="run-1",
    title="Echoscope: run-1: collapsed at step 28",
    text=HOSTILE,
    state="collapsed",
    step=28,
    evidence=("entropy: 0.1 (step 2) -> 5.9 (step 28)",),
    advice="Go back.",
    alarms=("critical A at step 27: a", "critical B at step 28: b"),
    link="http://127.0.0.1:8501/diagnosis?run=run-1",
)


def test_of_a_collapse() -> None:
    diagnosis, raised = Diagnosis(run_id="run-1"), []
    for step, values in make("entropy_explosion", 0).table.rows():
        raised += diagnosis.observe(step, values)
    verdict = diagnosis.verdict()
    message = of_verdict(verdict, raised, run="run-1", dashboard_url="http://localhost:8501")
    assert message.title == f"Echoscope: run-1: collapsed at step {verdict.last_step}"
    assert verdict.text.startswith(message.text)
    assert message.evidence == tuple(e.words for e in verdict.evidence)[:5]
    assert message.advice == verdict.actions[0].text
    assert message.link == "http://localhost:8501/diagnosis?run=run-1"
    assert len(message.alarms) == len(raised)
    assert all(" at step " in alarm for alarm in message.alarms)


def test_of_many_alarms_ten_are_named_and_the_others_counted() -> None:
    diagnosis, raised = Diagnosis(run_id="r"), []
    for step, values in make("entropy_explosion", 0).table.rows():
        raised += diagnosis.observe(step, values)
    many = [raised[0]] * 25
    message = of_verdict(diagnosis.verdict(), many, run="r")
    assert len(message.alarms) == 11
    assert message.alarms[0] == "15 earlier alarms"


def test_a_title_is_one_line() -> None:
    verdict = Diagnosis().verdict()
    assert "\n" not in of_verdict(verdict, run="a\r\nBcc: everyone@example.com").title


def test_a_webhook_takes_plain_json() -> None:
    plain = json.loads(json.dumps(body("webhook", MESSAGE)))
    assert plain["text"] == HOSTILE
    assert (plain["source"], plain["run"], plain["state"], plain["step"]) == (
        "echoscope", "run-1", "collapsed", 28,
    )  # fmt: skip
    assert plain["evidence"] == ["entropy: 0.1 (step 2) -> 5.9 (step 28)"]


def test_slack_mentions_nobody() -> None:
    text = body("slack", MESSAGE)["text"]
    assert "&lt;!channel&gt;" in text
    assert "<" not in text
    assert text.endswith(MESSAGE.link)


def test_discord_mentions_nobody_and_shows_what_was_written() -> None:
    content = body("discord", MESSAGE)
    assert content["allowed_mentions"] == {"parse": []}
    assert r"\[click\]" in content["content"]
    assert content["content"].endswith(MESSAGE.link)


@pytest.mark.parametrize("kind", ["slack", "discord"])
def test_a_long_message_is_cut_and_keeps_its_link(kind: str) -> None:
    long = replace(MESSAGE, text="word_" * 10_000)
    key = "text" if kind == "slack" else "content"
    text = body(kind, long)[key]
    assert len(text) <= 2000
    assert text.endswith(MESSAGE.link)
    assert len(long.plain()) == MAX_CHARS


def test_teams_takes_a_card_with_a_button() -> None:
    card = body("teams", MESSAGE)["attachments"][0]["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    assert card["actions"][0]["url"] == MESSAGE.link
    assert r"\[click\]\(http" in card["body"][1]["text"]


def test_without_a_dashboard_there_is_no_link() -> None:
    assert run_link("", "r") == ""
    assert "actions" not in body("teams", replace(MESSAGE, link=""))["attachments"][0]["content"]
