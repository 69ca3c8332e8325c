"""A report is one file: everything inside, nothing foreign alive, no request possible."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from alarm_events import alarm_event
from made_run import CONFIG, add_steps, make_run, open_writer

from echoscope.dashboard.data import verdict_cache as judging
from echoscope.dashboard.report import verdict_html
from echoscope.dashboard.report.report import POLICY, make_report
from echoscope.store.errors import NotARunError, QueryError
from echoscope.store.records import Alarm, Command, CommandAction
from echoscope.store.steer.commands import new_command

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)> {title} "quoted"'


class Elements(HTMLParser):
    """Names and attributes of all elements, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="session")
def report(recorded_root: Path) -> str:
    return make_report(recorded_root / "tiny")


def test_it_says_the_verdict_and_shows_charts_and_trajectories(report: str) -> None:
    page = Elements(report)
    page_text = " ".join(page.words)
    assert "insufficient evidence" in page_text
    for heading in ("What the verdict rests on", "Typical trajectories", "Curves", "Trajectories"):
        assert heading in page_text
    assert len([attrs for attrs in page.of("svg") if attrs.get("class") == "picture"]) >= 8
    assert [attrs for attrs in page.of("details") if "id" in attrs]


def test_it_is_small_and_has_no_script(report: str) -> None:
    """With plotly in it a report had 2.3 MB; its limit is 2 MB."""
    assert len(report.encode()) < 500_000
    page = Elements(report)
    assert page.of("script") == []
    assert not [name for _, attributes in page.found for name in attributes if name[:2] == "on"]


def test_nothing_in_it_can_ask_a_network(report: str) -> None:
    page = Elements(report)
    assert page.of("meta")[2]["content"] == POLICY
    assert "default-src 'none'" in POLICY
    for _, attributes in page.found:
        for name in ("src", "href", "srcset", "action"):
            assert str(attributes.get(name) or "data:").startswith(("data:", "#"))
    assert not [tag for tag, _ in page.found if tag in ("link", "iframe", "base", "object")]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    make_run(tmp_path / "bad", name=HOSTILE, tags=[HOSTILE], text=HOSTILE)
    page = Elements(make_report(tmp_path / "bad"))
    assert not [attrs for attrs in page.of("img") if attrs.get("src") == "x"]
    assert page.of("script") == []
    assert not [name for _, a in page.found for name in a if name.startswith("on")]
    assert "alert(1)" in " ".join(page.words)


def test_chosen_trajectories_are_shown_and_an_unknown_one_is_refused(recorded_root: Path) -> None:
    run = recorded_root / "tiny"
    page = Elements(make_report(run, chosen=["t00000001-00002"]))
    assert [attrs["id"] for attrs in page.of("details") if "id" in attrs] == ["t00000001-00002"]
    for name in ("t00000001-99999", "../x"):
        with pytest.raises(QueryError, match="no trajectory"):
            make_report(run, chosen=[name])
    with pytest.raises(NotARunError):
        make_report(recorded_root / "nope")


def test_the_verdict_is_said_in_parts() -> None:
    """What, since when, the evidence, what to do, then the cause; several stand below as a list."""
    verdict = replace(
        judging._nothing_yet(),
        onset_step=25,
        onset_interval=(23, 37),
        text="Echo trap, starting between steps 23 and 37. It repeats itself.\n"
        "Evidence: success: 9 % (step 30); reward std: 0 (step 31).\n"
        "Also: too little learning signal.\n"
        "Likely cause: luck.\n"
        "What to do: No setting cures this; go back to checkpoint 20.\n"
        "  echoscope ctl runs/a branch optim.lr=0.0001",
    )
    parts = Elements(verdict_html.box(verdict))
    texts = [text for text in parts.words if text.strip()]
    assert texts[2:] == [  # behind the state and the confidence
        *("What", "Echo trap. It repeats itself."),
        *("Since when", "Between steps 23 and 37"),
        *("Evidence", "Success: 9 % (step 30)", "Reward std: 0 (step 31)."),
        *("What to do", "No setting cures this; go back to checkpoint 20."),
        "echoscope ctl runs/a branch optim.lr=0.0001",
        *("Also", "Too little learning signal."),
        *("Likely cause", "Luck."),
    ]


def test_what_is_typed_in_a_sentence_of_the_verdict_is_code() -> None:
    text = "Echo trap. It repeats.\nWhat to do: Set `optim.lr=1e-4` and <wait>."
    verdict = replace(judging._nothing_yet(), text=text, causes=("the term `length` grew",))
    assert "Set <code>optim.lr=1e-4</code> and &lt;wait&gt;." in verdict_html.box(verdict)
    assert "<li>the term <code>length</code> grew</li>" in verdict_html.grounds(verdict)


def test_no_folder_of_this_machine_is_named(tmp_path: Path) -> None:
    """The name of the root stays: `runs/a` is how its reader calls the run, too."""
    root = tmp_path / "runs"
    make_run(root / "a", text=f"It lies in {root}/a.")
    assert str(tmp_path) not in make_report(root / "a")


@pytest.mark.long
def test_long_texts_do_not_make_it_large(tmp_path: Path) -> None:
    make_run(tmp_path / "a", text="<&> " * 100_000)
    report = make_report(tmp_path / "a", chosen=[f"t00000002-{n:05d}" for n in range(4)] * 12)
    assert len(report.encode()) < 2_000_000
    assert "Its text is too long for this report." in report


def test_a_setting_that_is_a_path_is_shown_by_its_last_part(tmp_path: Path) -> None:
    config = CONFIG | {"model": "/home/ann/models/qwen", "data": ["/home/ann/tasks.jsonl"]}
    make_run(tmp_path / "a", config=config)
    text = make_report(tmp_path / "a")
    assert "<td>.../qwen</td>" in text
    assert "/home/ann" not in text


def test_the_report_of_an_ended_run_has_no_command_for_a_live_one(tmp_path: Path) -> None:
    for action, settings in ((CommandAction.SET, {"optim.lr": 1e-4}), (CommandAction.STOP, {})):
        name = f"a_{action.value}"
        writer = open_writer(tmp_path / name)
        add_steps(writer, name, range(3))
        wish = new_command(name, action, settings=settings)
        writer.record_alarms([alarm(f"Now. echoscope ctl {name} {action.value} x=1", wish)])
        writer.close(status="finished")
        page_text = " ".join(Elements(make_report(tmp_path / name)).words)
        assert "it fell" in page_text
        assert "echoscope ctl" not in page_text


def test_what_is_not_there_is_none(report: str) -> None:
    cells = re.findall(r"<td>(.*?)</td>", report)
    assert not {"-", "None", "nan", "NaN"} & set(cells)


def alarm(advice: str, wish: Command) -> Alarm:
    return alarm_event(
        "a1", 2, "critical", rule="ECHO_TRAP", threshold=0.5, advice=advice, suggested=wish
    )
