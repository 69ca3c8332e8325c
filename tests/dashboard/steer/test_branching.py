"""Branches from a page: what it may ask, what the process then does, and what the page says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from app_text import app_text
from made_run import make_run
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.data import queries
from echoscope.dashboard.steer import branch_form, branching
from echoscope.dashboard.steer.branching import (
    BranchOrder,
    Launch,
    check_setting,
    command,
    launch,
    launches,
    settings_at,
)
from echoscope.store.query.listing import RunList
from echoscope.store.reader import open_run
from echoscope.store.steer.steering import SteeringError, override_words

OpenPage = Callable[..., AppTest]
PATIENCE_S = 200.0
HOSTILE = "<img src=x onerror=alert(1)> **b** [a](http://evil.example) --root=/"


@pytest.fixture
def root(recorded_root: Path, tmp_path: Path) -> Path:
    """A root of one's own with the recorded run `tiny`: 4 steps, checkpoints of 2 and 4."""
    shutil.copytree(recorded_root / "tiny", tmp_path / "root" / "tiny")
    return tmp_path / "root"


@pytest.fixture(autouse=True)
def _no_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "_launches", [])


def order(root: Path, **changes: Any) -> BranchOrder:
    return replace(BranchOrder(parent=root / "tiny", checkpoint=2), **changes)


def settled(started: Launch) -> branching.BranchReport:
    """The report once there is a run, or a refusal."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        report = started.report()
        if not report.is_starting:
            return report
        assert time.monotonic() < deadline, started.log.read_text()
        time.sleep(0.05)


def follow(page: AppTest, label: str) -> str:
    """Press a button that opens another run; the run that is then shown."""
    (button,) = [button for button in page.button if button.label == label]
    button.click().run()
    assert not page.exception
    run_id: Any = page.query_params["run"]
    return str(run_id if isinstance(run_id, str) else run_id[0])


# What a page may ask


@pytest.mark.parametrize(
    "word",
    ["optim.lr=1e-4", "envs.group_size=8", "enabled=true", "envs.train.0.groups=2", "a=[1, b,-2]"],
)
def test_words_and_numbers_may_be_set(word: str) -> None:
    check_setting(word)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--root=/", "is not a dotted key"),
        ("-x=1", "is not a dotted key"),
        ("steps", "not KEY=VALUE"),
        ("optim..lr=1", "is not a dotted key"),
        ("optim.lr=1\n", ""),  # one line is stripped, as a terminal's would be
        ("a=1\nb=2", "a word, a number"),
        ("name=x", "a field of its own"),
        ("branched_from.step=1", "names a file, code or an address"),
        ("from_run=x", "names a file, code or an address"),
        ("model.path=evil", "names a file, code or an address"),
        ("reward.shaping.0.function=evil", "names a file, code or an address"),
        ("envs.train.0.env=os:system", "a word, a number"),
        ("envs.train=[{env: 'os:system'}]", "a word, a number"),
        ("envs.train.0=env: os", "a word, a number"),  # YAML would read a mapping
        ("a=!!python/object x", "a word, a number"),
        ("a=*b", "a word, a number"),
        ("a=../../x", "a word, a number"),
        ("a=$(id)", "a word, a number"),
        ("a=", "a word, a number"),
        ("a=[1, [2]]", "a word, a number"),
    ],
)
def test_what_names_code_files_or_options_is_refused(word: str, message: str) -> None:
    if not message:
        check_setting(word)
        return
    with pytest.raises(SteeringError) as caught:
        check_setting(word)
    assert message in str(caught.value)


def test_settings_become_words_those_of_a_mapping_one_by_one() -> None:
    changes = {"lr": 1e-05, "actions": {"KL": "stop"}, "on": False, "k": 3, "s": "top_p"}
    override_list = ("lr=1e-05", "actions.KL=stop", "on=false", "k=3", "s=top_p")
    assert override_words(changes) == override_list
    for word in override_list:
        check_setting(word)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "-rf"}, "must begin with a letter"),
        ({"name": "../up"}, "must begin with a letter"),
        ({"name": "a b"}, "must begin with a letter"),
        ({"name": "x" * 101}, "at most 100"),
        ({"name": HOSTILE}, "must begin with a letter"),
        ({"settings": ("--dry-run",)}, "not KEY=VALUE"),
        ({"settings": ("a=1", " a =2")}, "a is given twice"),
        ({"settings": tuple(f"a{i}=1" for i in range(65))}, "65 settings"),
        ({"reason": "a\0b"}, "the reason must be one line"),
        ({"reason": "a\nb"}, "the reason must be one line"),
        ({"author": "x" * 101}, "the author has 101 characters, at most 100"),
        ({"checkpoint": -1}, "not the step of a checkpoint"),
    ],
)
def test_an_order_that_is_not_fit_becomes_no_command(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SteeringError) as caught:
        command(order(tmp_path, **change), tmp_path)
    assert message in str(caught.value)


def test_an_order_is_checked_by_what_the_run_has_set(tmp_path: Path) -> None:
    config = {"net": {"width": 64, "bias": True}, "envs": [{"params": {"slip": 0.5}}]}

    def checked(*overrides: str) -> None:
        branching.check(order(tmp_path, settings=overrides), tmp_path, config, {})

    checked("net.width=32", "net.bias=no", "envs.0.params.slips=1", "other.thing=x")
    checked("envs=[]")  # as a verdict takes all terms out of a reward
    with pytest.raises(SteeringError, match=r"net\.width is 'wide', but must be a number"):
        checked("net.width=wide")
    with pytest.raises(SteeringError, match=r"net\.widht is not a setting .*mean 'net\.width'"):
        checked("net.widht=32")


def test_free_text_is_part_of_one_word_and_settings_come_after_the_options(tmp_path: Path) -> None:
    branch = order(
        tmp_path, name="a-b", reason="--dry-run", author="-x", settings=("optim.lr=1e-4",)
    )
    arguments = command(replace(branch, parent=tmp_path / "-run"), tmp_path)
    assert arguments == [
        *("ctl", str(tmp_path / "-run"), "branch", "--json", f"--root={tmp_path}"),
        *("--checkpoint=2", "--name=a-b", "--reason=--dry-run", "--by=-x", "--", "optim.lr=1e-4"),
    ]


def test_the_settings_are_those_of_the_checkpoint(root: Path) -> None:
    config = settings_at(root / "tiny", 2)
    assert config["optim"]["lr"] == 1e-3
    with pytest.raises(SteeringError, match="the checkpoint of step 3 cannot be read"):
        settings_at(root / "tiny", 3)
    state = root / "tiny" / "checkpoints" / "step_000002" / "state.json"
    state.write_text("[]")
    with pytest.raises(SteeringError, match="cannot be read"):
        settings_at(root / "tiny", 2)


# The process


@pytest.mark.long
def test_a_branch_outlives_the_process_that_started_it(root: Path) -> None:
    """Started by a process that is killed at once, it trains to its end, without our password."""
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from echoscope.dashboard.steer.branching import BranchOrder, launch;"
        "assert not {'torch', 'echoscope.core'} & set(sys.modules);"
        "root = Path(sys.argv[1]);"
        "order = BranchOrder(parent=root / 'tiny', checkpoint=2, settings=('optim.lr=1e-4',),"
        " name='hot', reason='--dry-run', author='ann');"
        "one = launch(order, root);"
        "print(one.process.pid, os.getsid(one.process.pid), one.log, flush=True);"
        "os.kill(0, signal.SIGKILL)"
    )
    starter = subprocess.run(
        [sys.executable, "-c", code, str(root)],
        capture_output=True,
        text=True,
        env=os.environ | {"ECHOSCOPE_PASSWORD": "secret"},
        start_new_session=True,
        check=False,
    )
    assert starter.returncode == -signal.SIGKILL, starter.stderr
    pid, session, log = starter.stdout.split()
    assert pid == session  # neither Ctrl-C nor a closed terminal reaches it
    deadline = time.monotonic() + PATIENCE_S
    while '"status"' not in Path(log).read_text():
        environment = Path("/proc", pid, "environ")
        if environment.exists():
            assert b"secret" not in environment.read_bytes()
        assert time.monotonic() < deadline, Path(log).read_text()
        time.sleep(0.05)
    start, *_, last = [
        json.loads(line) for line in Path(log).read_text().splitlines() if line.startswith("{")
    ]
    assert start["changed"] == {"optim.lr": [0.001, 0.0001]}
    assert last["status"] == "finished"
    info = open_run(root / start["run_id"]).info()
    assert (info.parent_run_id, info.name, info.last_step) == ("tiny", "hot", 4)
    assert info.config["branched_from"] == {
        "run_id": "tiny",
        "step": 2,
        "reason": "--dry-run",  # a text, not an option
        "issued_by": "ann",
        "command_id": "",
        "treatments": [],
    }
    assert Path(log).stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_what_the_command_refuses_is_one_line_and_leaves_no_run(root: Path) -> None:
    started = launch(order(root, checkpoint=4, settings=("optim.lrr=1",)), root)
    report = settled(started)
    assert report.problem == "unknown key 'optim.lrr'; did you mean 'lr'?"
    assert sorted(path.name for path in root.iterdir()) == [".branches", "tiny"]
    listed = RunList(root)
    assert [row.run_id for row in listed.rows()] == ["tiny"]
    assert listed.others == []


class Ended:
    """A process as `Launch` sees one."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code


def launched(root: Path, log: str, code: int | None) -> Launch:
    path = root / "a.log"
    path.write_text(log)
    process: Any = Ended(code)
    return Launch(order=order(root), root=root, log=path, started=0.0, process=process)


START = '{"outcome": "starting", "run_id": "new", "changed": {"steps": [4, 8]}}\n'


@pytest.mark.parametrize(
    ("log", "code", "is_starting", "problem"),
    [
        ("", None, True, ""),
        (START[:-1], None, True, ""),  # the line is not whole yet
        ("warning: x\n" + START, None, True, ""),
        (START + "error: no memory\n", 1, False, "no memory"),
        ("error: no such\n\n", 1, False, "no such"),
        ("", -9, False, "it ended silently"),
        ("[" * 60_000 + "\n", None, True, ""),
        (START.replace("new", "../up"), None, True, ""),
        (START.replace('"new"', "7e400"), None, True, ""),
    ],
)
def test_a_log_tells_how_far_it_is(
    tmp_path: Path, log: str, code: int | None, is_starting: bool, problem: str
) -> None:
    report = launched(tmp_path, log, code).report()
    assert (report.is_starting, report.problem) == (is_starting, problem)


def test_a_branch_runs_once_its_run_is_on_the_disk(tmp_path: Path) -> None:
    make_run(tmp_path / "new")
    report = launched(tmp_path, START, 0).report()
    assert report.run_id == "new"


def test_a_log_that_is_gone_is_said(tmp_path: Path) -> None:
    ended = launched(tmp_path, "", 1)
    ended.log.unlink()
    assert "No such file" in ended.report().problem


def test_logs_go_nowhere_else_through_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / ".branches").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SteeringError, match="is a link; remove it"):
        launch(order(root), root)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_only_so_many_train_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [launched(root, "", None) for _ in range(branching.MAX_LIVE)]
    monkeypatch.setattr(branching, "_launches", busy)
    with pytest.raises(SteeringError, match="4 branches of this dashboard are training"):
        launch(order(root), root)
    assert launches(root / "tiny") == busy[::-1]
    assert launches(root / "other") == []


# The page


def open_form(open_page: OpenPage, root: Path, **options: Any) -> AppTest:
    page = open_page("live", root, options=options, run="tiny")
    page.session_state["branch_form"] = True
    return page.run()


def press(page: AppTest, key: str) -> AppTest:
    return page.button(key=key).click().run()


@pytest.mark.long
def test_from_the_form_to_a_run_that_knows_its_parent(root: Path, open_page: OpenPage) -> None:
    page = open_form(open_page, root)
    page.selectbox(key="branch_at:tiny").set_value(2).run()
    page.text_input(key="branch_name:tiny").set_value("colder").run()
    page.text_area(key="branch_lines:tiny").set_value("optim.lr=1e-4\n\n eval.every=0").run()
    assert "tiny after step 2\nname: test -> colder\noptim.lr: 0.001 -> 1e-4" in app_text(page)
    press(page, "branch_review")
    assert launches(root / "tiny") == []
    page.text_input(key="draft_author").set_value("ann")
    page.text_input(key="draft_reason").set_value(HOSTILE)
    press(page, "draft_confirm")
    (started,) = launches(root / "tiny")
    assert settled(started).run_id
    assert started.process.wait(PATIENCE_S) == 0
    run_id = started.report().run_id
    assert run_id in app_text(page.run())
    assert follow(page, "Open the new run") == run_id
    queries.forget()
    child = open_page("live", root, run=run_id)
    assert f"Branched from tiny after step 2 by ann: {HOSTILE}" in app_text(child)
    assert open_run(root / run_id).info().config["eval"]["every"] == 0
    assert follow(child, "Open that run") == "tiny"
    assert "Branch of this run:" in app_text(child)


@pytest.mark.long
def test_wrong_values_are_said_before_anything_starts(root: Path, open_page: OpenPage) -> None:
    page = open_form(open_page, root)
    lines = page.text_area(key="branch_lines:tiny")
    lines.set_value("reward.shaping.0.function=os:system").run()
    assert "names a file, code or an address" in app_text(page)
    assert not [b for b in page.button if b.key == "branch_review"]
    page.text_area(key="branch_lines:tiny").set_value("eval.every=1\neval.every=2").run()
    assert "eval.every is given twice" in app_text(page)
    page.text_area(key="branch_lines:tiny").set_value("").run()
    page.text_input(key="branch_name:tiny").set_value("--root=x").run()
    assert "must begin with a letter" in app_text(page)
    page.text_input(key="branch_name:tiny").set_value("").run()
    # 4 steps are done from checkpoint 4, so as many again are offered.
    assert "steps: 4 -> 8" in app_text(page)
    press(page, "branch_review")
    press(page, "draft_cancel")
    assert launches(root / "tiny") == []


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("eval.every=banana", "eval.every is 'banana', but must be a whole number"),
        ("optim.lr=-1", "optim.lr is -1, but must be more than 0"),
        ("optim.lrr=1e-4", "optim.lrr is not a setting of this run; did you mean 'optim.lr'?"),
    ],
)
def test_a_wrong_value_is_said_while_it_is_typed(
    root: Path, open_page: OpenPage, word: str, why: str
) -> None:
    page = open_form(open_page, root)
    page.text_area(key="branch_lines:tiny").set_value(word).run()
    assert why in app_text(page)
    assert "branch_review" not in [button.key for button in page.button]


@pytest.mark.long
def test_what_only_the_trainer_can_check_is_refused_in_a_sentence(
    root: Path, open_page: OpenPage
) -> None:
    page = open_form(open_page, root)
    page.text_area(key="branch_lines:tiny").set_value("optim.betas=[2,2]").run()
    press(page, "branch_review")
    press(page, "draft_confirm")
    (started,) = launches(root / "tiny")
    report = settled(started)
    assert report.problem.startswith("optim.betas")
    assert "\n" not in report.problem
    assert {run.name for run in root.iterdir()} == {"tiny", branching.FOLDER}


def test_no_process_is_asked_before_a_suggestion_is_confirmed(
    root: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing the trainer takes seconds; the form must be there at once."""
    monkeypatch.setattr(subprocess, "Popen", None)  # calling it would fail
    page = open_form(open_page, root)
    page.text_area(key="branch_lines:tiny").set_value("optim.lr=1e-4").run()
    press(page, "branch_review")
    assert "draft_confirm" in [button.key for button in page.button]


def test_the_form_begins_with_the_last_good_checkpoint(root: Path, open_page: OpenPage) -> None:
    """Without an alarm that is the newest; the list names it."""
    page = open_form(open_page, root)
    box = page.selectbox(key="branch_at:tiny")
    assert (box.value, box.options) == (4, ["4 (last good)", "2", "0"])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"is_read_only": True}, "is read-only"), ({"may_branch": False}, "--no-branch")],
)
def test_a_dashboard_that_may_not_branch_says_so(
    root: Path, open_page: OpenPage, options: dict[str, bool], message: str
) -> None:
    page = open_form(open_page, root, **options)
    assert message in app_text(page).replace("\\", "")
    assert not [box for box in page.text_area if box.key == "branch_lines:tiny"]
    with pytest.raises(SteeringError, match=message):  # whatever a browser sends
        branch_form.start(order(root), "ann", "")


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "tiny")
    assert "The run has no checkpoint yet." in app_text(open_form(open_page, tmp_path))


def test_the_form_may_be_filled_in_from_another_page(root: Path, open_page: OpenPage) -> None:
    page = open_page("live", root, run="tiny")
    page.session_state["branch_lines:tiny"] = "\n".join(override_words({"selection.value": 0.5}))
    page.session_state["branch_form"] = True
    assert "selection.value: " in app_text(page.run())
