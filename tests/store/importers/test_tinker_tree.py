"""The text of tinker-cookbook's episodes: which attempt of the tree is which trajectory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.importers.importing import import_run

from .conftest import FIXTURES, Imported, texts

Fixture = Callable[[str], Imported]
Texts = list[list[tuple[str, str]]]


def searched(query: str) -> str:
    arguments = json.dumps({"query": query})
    return f'<tool_call>{{"name": "search", "arguments": {arguments}}}</tool_call>'


def test_the_text_of_one_step_and_of_several(fixture: Fixture) -> None:
    """Written by the cookbook: the second attempt of each group ended or began first. Both attempts
    at the maze went left first, and prompts leave out the reasoning of the replies before.
    """
    found = fixture("tinker_written")
    assert [texts(t.turns) for t in found.trajectories] == [
        [("0 + 1?", "zero <b>")],
        [("0 + 1?", "nought & 1")],
        [
            ("You are at 0, the goal is at 2.", "<think>look</think>\nleft"),
            ("You went left.", "<think>look</think>\nright"),
            ("You went right.", "<think>look</think>\nright"),
        ],
        [
            ("You are at 0, the goal is at 2.", "<think>look</think>\nleft"),
            ("You went left.", "<think>look</think>\nleft"),
        ],
        [("", f"I look.\n{searched('it')}"), ("found it", "There.")],
        [("", f"{searched('a')}\n{searched('b')}"), ("found a\n\nfound b", "Nowhere.")],
        [("", "")],
        [("", "")],
    ]
    assert found.report.reconstructed == {"logtree": 4, "step_logs": 2}


# --- trees as the cookbook writes them ----------------------------------------------------------


def section(title: str, *children: Any) -> dict[str, Any]:
    heading = {"tag": "h2", "attrs": {}, "children": [title]}
    body = {"tag": "div", "attrs": {"class": "lt-section-body"}, "children": list(children)}
    return {"tag": "section", "attrs": {}, "children": [heading, body]}


def table(**values: Any) -> dict[str, Any]:
    rows = [
        {"tag": "tr", "children": [{"tag": "td", "children": [str(v)]} for v in pair]}
        for pair in values.items()
    ]
    return {"tag": "table", "children": [{"tag": "tbody", "children": rows}]}


def conversation(*messages: dict[str, Any]) -> dict[str, Any]:
    data = {"type": "conversation", "messages": list(messages)}
    return {"tag": "div", "attrs": {}, "children": [], "data": data}


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, thought: str = "") -> dict[str, Any]:
    thinking = [{"type": "thinking", "thinking": thought}] if thought else []
    return {"role": "assistant", "content": [*thinking, {"type": "text", "text": text}]}


def step(prompt: Sequence[dict[str, Any]], reply: dict[str, Any], **beside: Any) -> list[Any]:
    """What an environment logs of a step."""
    logged = [section("Prompt", conversation(*prompt)), section("Response", conversation(reply))]
    return [*logged, section("Reward", table(**beside))] if beside else logged


Rewards = Sequence[float]


def details(attempts: Sequence[Rewards], ac_len: int) -> dict[str, Any]:
    episodes = [
        section(
            f"Trajectory {number} Episode",
            *[table(ob_len=10, ac_len=ac_len, step_reward=f"{r:.3f}") for r in rewards],
            table(num_turns=len(rewards), final_ob_len=0, final_group_reward="0.000"),
        )
        for number, rewards in enumerate(attempts)
    ]
    return section("Trajectory Details", *episodes)


def group(logged: Sequence[Any], attempts: Sequence[Rewards], ac_len: int = 3) -> dict[str, Any]:
    return section("Group Rollout", *logged, details(attempts, ac_len))


def summary(group: int, number: int, rewards: Rewards, ac_len: int = 3) -> dict[str, Any]:
    steps = [
        {"step_idx": i, "ob_len": 10, "ac_len": ac_len, "reward": r, "metrics": {}, "logs": {}}
        for i, r in enumerate(rewards)
    ]
    place = {"iteration": 0, "group_idx": group, "traj_idx": number, "tags": []}
    return {
        **place,
        "total_reward": sum(rewards),
        "final_reward": 0.0,
        "steps": steps,
        "final_ob_len": 0,
    }


@pytest.fixture
def joined(tmp_path: Path) -> Callable[..., Texts]:
    """The text of the episodes of a file of summaries with a tree beside it."""

    def imported(rows: Sequence[Any], *sections: Any) -> Texts:
        tree = {"root": {"tag": "body", "children": list(sections)}}
        (tmp_path / "in").mkdir()
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "in" / "train_rollout_summaries.jsonl").write_text(lines)
        (tmp_path / "in" / "train_logtree.json").write_text(json.dumps(tree))
        found = Imported(import_run(tmp_path / "in", tmp_path / "run"))
        return [texts(t.turns) for t in found.trajectories]

    return imported


Q = asked("q")
NONE = [("", ""), ("", "")]


def two_steps(first: str, second: str, **beside: Any) -> tuple[list[Any], list[Any]]:
    """Both steps of an attempt."""
    return (
        step([Q], said(first), **beside),
        step([Q, said(first), asked(f"after {first}")], said(second), **beside),
    )


def test_steps_of_attempts_are_mixed(joined: Callable[..., Texts]) -> None:
    """Each prompt begins with what its own attempt said before."""
    a1, a2 = two_steps("a1", "a2")
    b1, b2 = two_steps("b1", "b2")
    rows = [summary(0, 0, [0.0, 1.0]), summary(0, 1, [0.0, 1.0])]
    assert joined(rows, group([*b1, *a1, *a2, *b2], [[0.0, 1.0], [0.0, 1.0]])) == [
        [("q", "b1"), ("after b1", "b2")],
        [("q", "a1"), ("after a1", "a2")],
    ]


def test_attempts_with_other_rewards_are_left_out_where_no_reward_is_shown(
    joined: Callable[..., Texts],
) -> None:
    a1, a2 = two_steps("a1", "a2")
    b1, b2 = two_steps("b1", "b2")
    attempts = [[0.0, 1.0], [0.0, 0.0]]
    rows = [summary(0, number, rewards) for number, rewards in enumerate(attempts)]
    assert joined(rows, group([*b1, *a1, *a2, *b2], attempts)) == [NONE, NONE]


def test_rewards_that_are_shown_tell_the_attempts(joined: Callable[..., Texts]) -> None:
    """Of any number of decimals; three attempts, two of them alike in their rewards."""
    a1, a2 = two_steps("a1", "a2", reward="0.2")
    b1, b2 = two_steps("b1", "b2", reward="0.5")
    c1, c2 = two_steps("c1", "c2", reward="0.5")
    attempts = [[0.5, 0.5], [0.25, 0.25], [0.5, 0.5]]
    rows = [summary(0, number, rewards) for number, rewards in enumerate(attempts)]
    found = joined(rows, group([*b1, *a1, *c1, *a2, *c2, *b2], attempts))
    assert [replies for (_, replies), _ in found] == ["b1", "a1", "c1"]


def test_a_prompt_that_continues_two_attempts_leaves_the_group_out(
    joined: Callable[..., Texts],
) -> None:
    """Both said the same with another thought, and the prompt leaves thoughts out."""
    logged = [
        *step([Q], said("same", "one")),
        *step([Q], said("same", "two")),
        *step([Q, said("same"), asked("on")], said("x")),
        *step([Q, said("same"), asked("on")], said("y")),
    ]
    rows = [summary(0, 0, [0.0, 1.0]), summary(0, 1, [0.0, 1.0])]
    assert joined(rows, group(logged, [[0.0, 1.0], [0.0, 1.0]])) == [NONE, NONE]


def test_a_reply_that_was_logged_late_leaves_the_group_out(joined: Callable[..., Texts]) -> None:
    """Two prompts, then two replies: which is whose cannot be told."""
    prompts = [section("Prompt", conversation(Q)) for _ in range(2)]
    replies = [section("Response", conversation(said(text))) for text in "ab"]
    rows = [summary(0, 0, [1.0]), summary(0, 1, [1.0])]
    assert joined(rows, group([*prompts, *replies], [[1.0], [1.0]])) == [[("", "")], [("", "")]]


def test_the_only_attempt_needs_no_history_in_its_prompts(joined: Callable[..., Texts]) -> None:
    logged = [*step([Q], said("a")), *step([asked("on")], said("b"))]
    assert joined([summary(0, 0, [0.0, 1.0])], group(logged, [[0.0, 1.0]])) == [
        [("q", "a"), ("on", "b")]
    ]


def test_conversations_that_were_logged_as_a_whole(joined: Callable[..., Texts]) -> None:
    """The number of replies tells which is which."""
    logged = [
        conversation(Q, said("a"), asked("on"), said("b"), asked("end")),
        conversation(Q, said("c")),
    ]
    rows = [summary(0, 0, [1.0]), summary(0, 1, [0.0, 1.0])]
    assert joined(rows, group(logged, [[1.0], [0.0, 1.0]])) == [
        [("q", "c")],
        [("q", "a"), ("on", "b")],
    ]


def test_replies_in_the_first_prompt_are_examples(joined: Callable[..., Texts]) -> None:
    prompt = [asked("1?"), said("one"), Q]
    logged = [*step(prompt, said("a")), *step([*prompt, said("a"), asked("on")], said("b"))]
    assert joined([summary(0, 0, [0.0, 1.0])], group(logged, [[0.0, 1.0]])) == [
        [("1?\n\none\n\nq", "a"), ("on", "b")]
    ]


def test_a_group_that_failed_is_only_in_the_tree(joined: Callable[..., Texts]) -> None:
    failed = section("Group Rollout", *step([Q], said("lost")))
    logged = group(step([Q], said("kept")), [[1.0]])
    assert joined([summary(0, 0, [1.0])], failed, logged) == [[("q", "kept")]]


def test_groups_that_are_numbered_as_they_ended_are_told_by_their_lengths(
    joined: Callable[..., Texts],
) -> None:
    """The tree has the groups as they began. Two groups with equal numbers are left out."""
    sections = [
        group(step([Q], said(text)), [[1.0]], ac_len)
        for text, ac_len in (("long", 9), ("short", 4), ("twin", 5), ("other twin", 5))
    ]
    rows = [summary(number, 0, [1.0], ac_len) for number, ac_len in enumerate((4, 5, 5, 9))]
    assert joined(rows, *sections) == [[("q", "short")], [("", "")], [("", "")], [("q", "long")]]


@pytest.mark.parametrize(
    ("old", "new"),
    [("-0.100", "-0.200"), ('"78"', '"79"'), ("Trajectory Details", "Others"), ("{", "[")],
    ids=["another reward", "another length", "no numbers", "no tree"],
)
def test_text_that_does_not_fit_is_left_out(tmp_path: Path, old: str, new: str) -> None:
    written = FIXTURES / "tinker_written" / "iteration_000004"
    folder = tmp_path / "iteration_000004"
    folder.mkdir()
    lines = (written / "train_rollout_summaries.jsonl").read_text()
    (folder / "train_rollout_summaries.jsonl").write_text(lines)
    tree = (written / "train_logtree.json").read_text()
    assert old in tree
    (folder / "train_logtree.json").write_text(tree.replace(old, new))
    found = Imported(import_run(folder, tmp_path / "run"))
    assert texts(found.trajectories[0].turns) == [("", "")]
    assert found.report.num_kept == 8


def test_a_tree_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    row = json.dumps(summary(0, 0, [1.0]))
    (tmp_path / "in" / "train_rollout_summaries.jsonl").write_text(row + "\n")
    (tmp_path / "in" / "train_logtree.json").write_text('{"root": {"tag": "body", "chil')
    found = Imported(import_run(tmp_path / "in", tmp_path / "run"))
    assert found.report.num_kept == 1
    assert list(found.report.files.names.values()) == [["train_logtree.json"]]


def test_the_logs_of_steps_without_a_tree(rows: Callable[..., Imported]) -> None:
    """As the cookbook's environment for tools logs them. The trainer ended the last step, which has
    no logs; a tool that gives two messages tells not which call they belong to.
    """
    row = summary(0, 0, [0.0, 0.0, 0.0])
    row["steps"][0]["logs"] = {
        "assistant_content": "I try.",
        "tool_call_0": "run(f(x))",
        "tool_result_0": "1",
        "parse_errors": "bad JSON",
    }
    row["steps"][1]["logs"] = {"tool_call_0": "run({})", "tool_result_0": "2", "tool_result_1": "3"}
    found = rows(row)
    (trajectory,) = found.trajectories
    calls = [(c.name, c.arguments, c.result) for turn in trajectory.turns for c in turn.calls]
    assert calls == [("run", "f(x)", "1"), ("run", "{}", "")]
    assert [turn.observation for turn in trajectory.turns] == ["", "1", "2\n\n3"]
    assert trajectory.turns[2].response == ""
    logs = [step["logs"] for step in found.extra(0)["fields"]["steps"]]
    assert logs == [{"parse_errors": "bad JSON"}, {}, {}]
    assert found.extra(0)["reconstructed"] == ["step_logs"]


@pytest.mark.parametrize(
    "logs",
    [
        {"guess": "5", "feedback": "too low"},
        {"tool_call_0": "no call"},
        {"tool_call_0": 5},
        {},
        [],
        None,
    ],
)
def test_logs_of_other_environments_are_no_text(rows: Callable[..., Imported], logs: Any) -> None:
    row = summary(0, 0, [1.0])
    row["steps"][0]["logs"] = logs
    found = rows(row)
    assert texts(found.trajectories[0].turns) == [("", "")]
    (kept,) = found.extra(0)["fields"]["steps"]
    assert kept.get("logs") == logs
