"""Replay in a real browser: one split at a time, one colour for one number, marked hits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from browsing import DashboardProcess, choose, table_rows, text_of, until, visit
from made_run import made_trajectory, open_writer, step_metrics
from PIL import Image

from echoscope.store.records import Split, ToolCall, TrajectoryOutcome
from echoscope.store.steer.episode_notes import read_episode_notes
from echoscope.text.pictures import encode_picture, grid_frame

PLAIN = {"policy/entropy": 1.0}


@pytest.fixture(scope="module")
def splits(dashboard: DashboardProcess) -> str:
    """One step with four training, six evaluation and two probe episodes."""
    writer = open_writer(dashboard.root / "splits")
    trained = [made_trajectory(0, n) for n in range(4)]
    evaluated = [replace(made_trajectory(0, n), split=Split.EVAL) for n in range(6)]
    probed = [replace(made_trajectory(0, n), split=Split.PROBE) for n in range(2)]
    writer.commit_step(
        metrics=[step_metrics("splits", 0, PLAIN)], trajectories=[*evaluated, *probed, *trained]
    )
    writer.close(status="finished")
    return "splits"


def test_the_replay_shows_one_split_at_a_time_and_training_first(
    splits: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/replay?run={splits}")
    cells = page.locator(".es-strip-of-groups .es-episode")
    until(lambda: cells.count() == 4, "training episodes", page=page)
    for split, count in (("Evaluation", 6), ("Probe", 2)):
        choose(page, "Split", split)
        until(lambda count=count: cells.count() == count, f"episodes of {split}", page=page)


def test_evaluation_is_said_to_be_never_trained_on(
    splits: str, dashboard: DashboardProcess, page: Any
) -> None:
    """It was pending for ever."""
    visit(page, f"{dashboard.url}/replay?run={splits}&split=eval")
    page.locator(".st-key-replay_head").get_by_text("never trained on", exact=True).wait_for()
    assert "pending" not in text_of(page)


def test_one_colour_means_one_number_in_every_run(dashboard: DashboardProcess, page: Any) -> None:
    """A healthy and a collapsed reasoning: 0.05 nats are noise in both, 0.9 a finding."""
    legends, colours = {}, {}
    for name, information in (("told", (0.9, 0.05, 0.0)), ("empty", (0.05, 0.03, 0.0))):
        plain = made_trajectory(0, 0)
        turn = replace(
            plain.turns[0],
            prompt_tokens=np.array([1]),
            response_tokens=np.array([1, 2, 3]),
            logprobs=np.array([-1.0, -1.0, -1.0]),
        )
        trajectory = replace(plain, turns=(turn,))
        outcome = TrajectoryOutcome(
            trajectory_id=trajectory.id,
            advantage=0.0,
            kept=True,
            information=(np.array(information, dtype=np.float32),),
        )
        writer = open_writer(dashboard.root / name)
        writer.commit_step(
            metrics=[step_metrics(name, 0, PLAIN)], trajectories=[trajectory], outcomes=[outcome]
        )
        writer.close(status="finished")
        visit(page, f"{dashboard.url}/replay?run={name}&heat=information")
        page.locator(".es-legend").first.wait_for()
        legends[name] = page.locator(".es-legend").first.inner_text()
        cells = page.locator(".es-cell")
        colours[name] = [cells.nth(n).evaluate(BACKGROUND) for n in range(3)]
    assert legends["told"] == legends["empty"]
    strong, small, none = colours["told"]
    assert strong != none
    assert colours["empty"] == [small, none, none] == [none, none, none]


BACKGROUND = "cell => getComputedStyle(cell).backgroundColor"


@pytest.fixture(scope="module")
def searched(dashboard: DashboardProcess) -> str:
    """Three steps of 100 equal episodes; the 77th of the last step is the worst of all."""
    writer = open_writer(dashboard.root / "searched")
    for step in range(3):
        some = [made_trajectory(step, n, "I go UP (really).") for n in range(100)]
        if step == 2:
            turn = replace(some[77].turns[0], reward=-1.0)
            some[77] = replace(some[77], turns=(turn,))
        writer.commit_step(metrics=[step_metrics("searched", step, PLAIN)], trajectories=some)
    writer.close(status="finished")
    return "searched"


def test_worst_first_ranks_all_matches(
    searched: str, dashboard: DashboardProcess, page: Any
) -> None:
    """Finding B12: the first 200 were ranked, and the worst is the 278th."""
    visit(page, f"{dashboard.url}/replay?run={searched}&q=go+up+(REALLY&order=worst")
    page.get_by_role("heading", name="Group 38, sibling 1").wait_for()
    page.get_by_text("200 of 300 matches").wait_for()
    first = until(lambda: table_rows(page)[1:], "table", page=page)[0]
    assert "2, 38, 1" in first


def test_a_search_keeps_its_columns_and_marks_its_hits(
    searched: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/replay?run={searched}&q=go+up+(REALLY")
    hit = page.locator("mark, .es-hit").first
    hit.wait_for()
    assert hit.inner_text() == "go UP (really"
    around = hit.evaluate("hit => getComputedStyle(hit.parentElement).backgroundColor")
    assert hit.evaluate(BACKGROUND) != around
    heads = until(lambda: table_rows(page), "table", page=page)[0]
    assert [head for head in heads if head][:4] == [
        "step, group, sibling",
        "success",
        "return",
        "match",
    ]


@pytest.fixture(scope="module")
def calling(dashboard: DashboardProcess) -> str:
    """One episode whose turn calls a tool with hostile arguments and sends a broken call."""
    plain = made_trajectory(0, 0)
    evil = "<img src=x onerror=alert(1)>"
    calls = (
        ToolCall(name="lookup", arguments=json.dumps({"item": evil}), result=f"no {evil}"),
        ToolCall(name="", arguments="<tool_call>{", result="Error.", problem="it is not JSON"),
    )
    turn = replace(plain.turns[0], calls=calls)
    writer = open_writer(dashboard.root / "calling")
    writer.commit_step(
        metrics=[step_metrics("calling", 0, PLAIN)], trajectories=[replace(plain, turns=(turn,))]
    )
    writer.close(status="finished")
    return "calling"


def test_tool_calls_are_shown_as_calls(
    calling: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/replay?run={calling}")
    cards = page.locator(".es-call")
    cards.first.wait_for()
    assert cards.nth(0).inner_text().split("\n") == [
        'lookup(item="<img src=x onerror=alert(1)>")', "result", "no <img src=x onerror=alert(1)>",
    ]  # fmt: skip
    assert "not a call" in cards.nth(1).inner_text()
    assert "it is not JSON" in cards.nth(1).inner_text()
    assert page.locator(".es-call img").count() == 0


@pytest.fixture(scope="module")
def talk(dashboard: DashboardProcess) -> str:
    """One episode of twelve turns, each longer than it is read at a glance."""
    plain = made_trajectory(0, 0)
    turns = tuple(
        replace(plain.turns[0], index=n, observation=f"Board {n}.", response=f"Reply {n}. " * 60)
        for n in range(12)
    )
    writer = open_writer(dashboard.root / "talk")
    writer.commit_step(
        metrics=[step_metrics("talk", 0, PLAIN)], trajectories=[replace(plain, turns=turns)]
    )
    writer.close(status="finished")
    return "talk"


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)], ids=["desktop", "phone"])
def test_the_newest_response_is_in_sight_and_keys_scroll_to_the_others(
    talk: str, dashboard: DashboardProcess, page: Any, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    visit(page, f"{dashboard.url}/replay?run={talk}")

    def begins_in_sight(turn: int) -> bool:
        box, reply = page.locator(".es-talk"), page.locator(".es-reply").nth(turn)
        frame, reply_box = box.bounding_box(), reply.bounding_box()
        if frame is None or reply_box is None:
            return False  # amid a redraw
        low = max(0.0, frame["y"])
        high = min(size[1], frame["y"] + frame["height"])
        return low <= reply_box["y"] and reply_box["y"] + 60 <= high

    until(lambda: begins_in_sight(11), "newest response", page=page)
    page.locator(".st-key-replay_head h3").click()
    for turn in (10, 9):
        until(lambda: page.locator(".es-turn.es-now").count() == 1, "a turn", page=page)
        page.keyboard.press("p")
        until(lambda turn=turn: begins_in_sight(turn), f"response {turn}", page=page)


def test_the_picture_of_a_turn_stands_beside_its_board(
    dashboard: DashboardProcess, page: Any
) -> None:
    """The browser decodes it; bytes that are no picture are a note instead."""
    frame = grid_frame(["#_", "_G"], {"#": "wall", "_": "floor", "G": "goal"}, ())
    pictures = (encode_picture(Image.new("RGB", (32, 32))), b"<script>alert(1)</script>")
    made = []
    for number, png in enumerate(pictures):
        plain = made_trajectory(0, number)
        turns = [replace(turn, frame=frame, image=png) for turn in plain.turns]
        made.append(replace(plain, turns=tuple(turns)))
    writer = open_writer(dashboard.root / "pictures")
    writer.commit_step(metrics=[step_metrics("pictures", 0, PLAIN)], trajectories=made)
    writer.close(status="finished")
    visit(page, f"{dashboard.url}/replay?run=pictures&trajectory=t00000000-00000")
    page.get_by_text("image, not shown to the policy").first.wait_for()
    size = page.locator("img.es-picture").first.evaluate("i => [i.naturalWidth, i.naturalHeight]")
    assert size == [32, 32]
    visit(page, f"{dashboard.url}/replay?run=pictures&trajectory=t00000000-00001")
    page.get_by_text("a picture is not a PNG file that can be read").first.wait_for()
    assert page.locator("img.es-picture").count() == 0


@pytest.fixture(scope="module")
def grouped(dashboard: DashboardProcess) -> str:
    """Two steps of three groups of two; siblings reply in other words."""
    writer = open_writer(dashboard.root / "grouped")
    for step in range(2):
        made = [made_trajectory(step, n, f"I go {('left', 'right')[n % 2]}.") for n in range(6)]
        metrics = [step_metrics("grouped", step, PLAIN)]
        writer.commit_step(metrics=metrics, trajectories=made)
    writer.close(status="finished")
    return "grouped"


def test_any_episode_opens_from_the_strip_by_mouse_and_by_keys(
    grouped: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/replay?run={grouped}")
    page.get_by_role("button", name="Group 2, sibling 0: solved, return 1").click()
    page.get_by_role("heading", name="Group 2, sibling 0").wait_for()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Group 1, sibling 1").wait_for()
    current = page.locator(".es-episode[aria-current=true]")
    until(lambda: current.count() == 1, "one episode is marked", page=page)
    assert current.get_attribute("aria-label") == "Group 1, sibling 1: failed, return 0"


def test_keys_lead_to_steps_the_search_the_comparison_and_the_labels(
    grouped: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/replay?run={grouped}&trajectory=t00000001-00001")
    page.get_by_role("heading", name="Group 0, sibling 1").wait_for()
    differences = page.locator(".es-reply .es-left, .es-reply .es-right")
    press(page, "d", lambda: differences.all_inner_texts() == ["right", "left"])
    press(page, "d", lambda: differences.count() == 0)
    press(page, "[", lambda: "step=0" in page.url)
    press(page, "]", lambda: "step=0" not in page.url)
    press(page, "l", page.get_by_role("combobox", name="Labels").is_visible)
    page.keyboard.press("Escape")
    press(page, "/", lambda: page.evaluate(FOCUS) == "Search")


FOCUS = "document.activeElement.getAttribute('aria-label')"


def press(page: Any, key: str, is_done: Callable[[], bool]) -> None:
    """Press a key until it has done its work: one that comes amid a redraw is lost."""
    for _ in range(5):
        page.keyboard.press(key)
        for _ in range(80):
            page.wait_for_timeout(100)
            if is_done():
                return
    raise AssertionError(f"the key {key} did nothing: {page.url}")


def test_a_label_that_is_typed_is_kept_and_is_text(
    grouped: str, dashboard: DashboardProcess, page: Any
) -> None:
    label = "<img src=x onerror=alert(1)> **b**"
    visit(page, f"{dashboard.url}/replay?run={grouped}&trajectory=t00000001-00002")
    page.locator(".st-key-replay_notes button").click()
    page.get_by_role("combobox", name="Labels").fill(label)
    page.keyboard.press("Enter")
    page.locator(".st-key-replay_head .es-badge").get_by_text(label, exact=True).wait_for()
    noted = read_episode_notes(dashboard.root / grouped)
    assert list(noted.labels) == [label]
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)], ids=["desktop", "phone"])
def test_the_conversation_begins_high_and_has_the_rest_of_the_screen(
    talk: str, dashboard: DashboardProcess, page: Any, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    visit(page, f"{dashboard.url}/replay?run={talk}")
    box = page.locator(".es-talk").bounding_box()
    assert box["y"] <= (185 if size[0] > 1000 else 400)
    assert box["y"] + box["height"] <= size[1]
    assert box["height"] >= 0.5 * size[1]
    width = page.evaluate("document.scrollingElement.scrollWidth")
    assert width <= size[0]
