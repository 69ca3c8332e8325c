"""The text of tinker-cookbook's episodes, joined with their numbers.

`{base}_rollout_summaries.jsonl` has the numbers of each step, `{base}_logtree.json` beside it what
was logged of the first groups. A section "Group Rollout" of the tree holds the conversations that
the environments of a group logged: a prompt and a reply for each step, in the order in which they
happened, so those of its attempts are mixed. The section ends with "Trajectory Details", the
numbers of each trajectory in the order of the summaries, which tell the group.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..dialogue import is_messages
from ..draft import number, whole
from ..lines import MAX_LINE_BYTES, BadJsonError, json_of, lines_of

MAX_TREE = 32 << 20
_SUMMARIES = "_rollout_summaries.jsonl"
_TREE = "_logtree.json"
_GROUP = "Group Rollout"
_DETAILS = "Trajectory Details"
_TRAJECTORY = re.compile(r"Trajectory \d{1,6} Episode")
_COMPARED = ("ob_len", "ac_len", "step_reward", "final_ob_len", "final_group_reward")
_MAX_DEPTH = 100
_MAX_ATTEMPTS = 256
"""Of a group: each reply is compared with each of them."""
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)

_Message = Mapping[str, Any]
_Numbers = tuple[str, ...]
"""Of a trajectory, as the tree shows them: lengths and reward of each step, and the final ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trajectory:
    """What the summaries say of an attempt."""

    rewards: tuple[float, ...]
    """Of each step."""
    final_reward: float
    numbers: _Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """A reply that the tree shows."""

    before: Sequence[_Message]
    message: _Message
    said: tuple[bytes, ...]
    """Of each message before it, what tells whether it says the same as another."""
    reward: str = ""
    """The one that stands beside it."""


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """The replies of one attempt."""

    messages: list[_Message] = field(default_factory=list)
    """The conversation. Replies that were given, as examples, have the role `given`."""
    logged: list[_Message] = field(default_factory=list)
    """The same as it was logged last: how the next prompt begins."""
    said: tuple[bytes, ...] = ()
    """Of each message in `logged`."""
    rewards: list[str] = field(default_factory=list)

    def add(self, reply: _Reply, begin: int) -> None:
        """Append a reply with the messages before it that are new."""
        self.messages += [_given(message) for message in reply.before[begin:]]
        self.messages.append(reply.message)
        self.logged = [*reply.before, reply.message]
        self.said = (*reply.said, _said(reply.message))
        self.rewards.append(reply.reward)


def text_beside(path: Path) -> Path | None:
    """The file that holds the text of some of the episodes of a file of summaries."""
    if not path.name.endswith(_SUMMARIES):
        return None
    beside = path.with_name(path.name.removesuffix(_SUMMARIES) + _TREE)
    is_there = beside.is_file() and not beside.is_symlink()
    return beside if is_there and beside.stat().st_size <= MAX_TREE else None


def is_text_beside(path: Path) -> bool:
    """Whether a file holds the text of a file of summaries beside it."""
    summaries = path.with_name(path.name.removesuffix(_TREE) + _SUMMARIES)
    return path.name.endswith(_TREE) and summaries.is_file()


def write_summaries(path: Path, beside: Path, target: Path) -> None:
    """Write the summaries, with the text of the attempts that can be told apart in the tree."""
    with path.open("rb") as file:
        groups = _groups(line.data or b"" for line in lines_of(file))
    texts = _texts(beside, groups)
    with path.open("rb") as file, target.open("wb") as out:
        for found in lines_of(file):
            line = found.data or b'"a line of more than 16 MB"\n'
            row = _row(line)
            attempt = texts.get(_place(row)) if row else None
            if row and attempt:
                joined = json.dumps({**row, "logtree": attempt.messages}).encode() + b"\n"
                line = joined if len(joined) < MAX_LINE_BYTES else line
            out.write(line)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        value = json_of(line)[0]
    except BadJsonError:
        return None
    return value if isinstance(value, dict) else None


def _place(row: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Group and number in it of a trajectory."""
    return whole(row.get("group_idx")), whole(row.get("traj_idx"))


def _groups(lines: Iterable[bytes]) -> dict[int, dict[int, _Trajectory]]:
    """Group -> trajectory -> its numbers; trajectories with odd values are left out."""
    out: dict[int, dict[int, _Trajectory]] = {}
    for line in lines:
        row = _row(line) or {}
        group, place = _place(row)
        trajectory = _trajectory(row)
        if group is not None and place is not None and trajectory is not None:
            out.setdefault(group, {})[place] = trajectory
    return out


def _trajectory(row: Mapping[str, Any]) -> _Trajectory | None:
    steps = row.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps):
        return None
    rewards = [number(step.get("reward")) for step in steps]
    final = number(row.get("final_reward"))
    if any(math.isnan(reward) for reward in (*rewards, final)):
        return None
    numbers: list[str] = []
    for step, reward in zip(steps, rewards, strict=True):
        lengths = [str(whole(step.get(name))) for name in ("ob_len", "ac_len")]
        numbers += [*lengths, f"{reward:.3f}"]
    numbers += [str(whole(row.get("final_ob_len"))), f"{final:.3f}"]
    return _Trajectory(rewards=tuple(rewards), final_reward=final, numbers=tuple(numbers))


def _texts(
    beside: Path, groups: Mapping[int, Mapping[int, _Trajectory]]
) -> dict[tuple[int | None, int | None], _Attempt]:
    """(group, trajectory) -> the attempt of the tree that it is."""
    try:
        tree = json_of(beside.read_bytes())[0]
    except BadJsonError:
        return {}
    root = tree.get("root") if isinstance(tree, Mapping) else None
    # A group that failed has no numbers, neither here nor in the summaries.
    sections = [(s, shown) for s in _sections(root, _GROUP) if (shown := _shown_numbers(s))]
    out: dict[tuple[int | None, int | None], _Attempt] = {}
    numbers = [shown for _, shown in sections]
    for (section, _), group in zip(sections, _groups_of(numbers, groups), strict=True):
        if group is None:
            continue
        attempts = _attempts(section, len(groups[group]))
        for place, attempt in _assigned(groups[group], attempts).items():
            out[group, place] = attempt
    return out


# --- which group a section is -------------------------------------------------------------------


def _shown_numbers(section: Mapping[str, Any]) -> tuple[_Numbers, ...]:
    """The numbers of each trajectory of a group, as the tree shows them."""
    details = next(_sections(section, _DETAILS), None)
    return tuple(
        tuple(value for name, value in _table_rows(one) if name in _COMPARED)
        for one in _sections(details, _TRAJECTORY)
    )


def _groups_of(
    shown: Sequence[tuple[_Numbers, ...]], groups: Mapping[int, Mapping[int, _Trajectory]]
) -> list[int | None]:
    """The group of each section; None where the numbers tell none, or several."""
    known = {
        group: tuple(own[place].numbers for place in sorted(own)) for group, own in groups.items()
    }
    order = sorted(known)
    if len(shown) <= len(order) and all(
        numbers == known[group] for numbers, group in zip(shown, order, strict=False)
    ):
        return list(order[: len(shown)])  # the first groups, in their order
    # Groups that are trained on as they come are numbered as they end.
    by_numbers: dict[tuple[_Numbers, ...], list[int]] = defaultdict(list)
    for group, numbers in known.items():
        by_numbers[numbers].append(group)
    times = Counter(shown)
    alike = [by_numbers.get(numbers, []) for numbers in shown]
    return [
        own[0] if len(own) == 1 and times[numbers] == 1 else None
        for numbers, own in zip(shown, alike, strict=True)
    ]


# --- the attempts of a group --------------------------------------------------------------------


def _attempts(section: Mapping[str, Any], num_trajectories: int) -> list[_Attempt]:
    """The attempts of a group in the order in which they began; none where they cannot be told
    apart for sure."""
    replies, logged_whole = _replies(section)
    if logged_whole:
        return [] if replies else logged_whole
    attempts: list[_Attempt] = []
    for reply in replies:
        if num_trajectories == 1 and attempts:
            begin = len(attempts[0].logged) if _continues(reply, attempts[0]) else 0
            attempts[0].add(reply, begin)
            continue
        own = [attempt for attempt in attempts if _continues(reply, attempt)]
        # A prompt that begins with an attempt begins with all that is shorter, too.
        longest = max((len(attempt.logged) for attempt in own), default=0)
        own = [attempt for attempt in own if len(attempt.logged) == longest]
        own = [a for a in own if _begins_with(reply.before, a.logged)] or own
        if any((a.messages, a.rewards) != (own[0].messages, own[0].rewards) for a in own):
            return []
        if not own:
            if len(attempts) == min(num_trajectories, _MAX_ATTEMPTS):
                return []
            own = [_Attempt()]
            attempts += own
        own[0].add(reply, longest)
    return attempts


def _replies(section: Mapping[str, Any]) -> tuple[list[_Reply], list[_Attempt]]:
    """Replies with the prompts before them, and conversations that were logged as a whole; nothing
    where a reply does not follow its prompt at once."""
    replies: list[_Reply] = []
    logged_whole: list[_Attempt] = []
    waiting: list[_Message] | None = None
    for messages, reward in _logged(section):
        if messages is None:
            if waiting is None and replies and not replies[-1].reward:
                replies[-1] = replace(replies[-1], reward=reward)
            continue
        is_reply = len(messages) == 1 and messages[0]["role"] == "assistant"
        if is_reply and waiting is not None:
            said = tuple(map(_said, waiting))
            replies.append(_Reply(before=waiting, message=messages[0], said=said))
            waiting = None
        elif is_reply or not _is_whole(waiting):
            return [], []
        else:
            logged_whole += [] if waiting is None else [_whole(waiting)]
            waiting = messages
    if not _is_whole(waiting):
        return [], []
    return replies, [*logged_whole, *([] if waiting is None else [_whole(waiting)])]


def _logged(section: Mapping[str, Any]) -> Iterator[tuple[list[_Message] | None, str]]:
    """The conversations of a group and the rewards beside them, in their order."""
    for node in _nodes(section, _DETAILS):
        data = node.get("data")
        if isinstance(data, Mapping) and data.get("type") == "conversation":
            messages = data.get("messages")
            if is_messages(messages):
                yield list(messages), ""
        elif node.get("tag") == "tr":
            cells = _cells(node)
            if len(cells) == 2 and cells[0] == "reward":
                yield None, cells[1]


def _is_whole(messages: Sequence[_Message] | None) -> bool:
    """Whether a conversation without a reply after it has replies of its own, or there is none."""
    return messages is None or any(m["role"] == "assistant" for m in messages)


def _whole(messages: list[_Message]) -> _Attempt:
    num_replies = sum(m["role"] == "assistant" for m in messages)
    return _Attempt(messages=messages, rewards=[""] * num_replies)


def _continues(reply: _Reply, attempt: _Attempt) -> bool:
    """Whether the prompt of a reply begins with all that an attempt said so far."""
    return reply.said[: len(attempt.said)] == attempt.said


def _begins_with(messages: Sequence[_Message], others: Sequence[_Message]) -> bool:
    return list(messages[: len(others)]) == list(others)


def _said(message: _Message) -> bytes:
    """A hash of role and content without the reasoning, which later prompts may leave out."""
    content = message.get("content")
    if isinstance(content, list):
        content = [p for p in content if not (isinstance(p, Mapping) and "thinking" in p)]
        if all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
            content = "".join(p["text"] for p in content)
    if isinstance(content, str):
        content = _THOUGHT.sub("", content).strip()
    said = json.dumps([message["role"], content, message.get("tool_calls")], sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=16).digest()


def _given(message: _Message) -> _Message:
    return {**message, "role": "given"} if message["role"] == "assistant" else message


def _assigned(
    trajectories: Mapping[int, _Trajectory], attempts: Sequence[_Attempt]
) -> dict[int, _Attempt]:
    """Which attempt is which trajectory, by the number of steps and the rewards beside the text.

    Attempts that are alike in these are taken in their order where the trajectories have the same
    rewards, so that no text comes to stand with a reward that is not its own.
    """
    if len(attempts) != len(trajectories):
        return {}
    decimals = {len(shown.partition(".")[2]) for a in attempts for shown in a.rewards if shown}
    is_shown = len(decimals) == 1 and all(all(a.rewards) for a in attempts)
    places = decimals.pop() if is_shown else 0
    kinds: dict[_Numbers, tuple[list[int], list[_Attempt]]] = defaultdict(lambda: ([], []))
    for attempt in attempts:
        kind = tuple(shown if is_shown else "" for shown in attempt.rewards)
        kinds[kind][1].append(attempt)
    for place in sorted(trajectories):
        rewards = trajectories[place].rewards
        kind = tuple(f"{reward:.{places}f}" if is_shown else "" for reward in rewards)
        kinds[kind][0].append(place)
    if any(len(numbered) != len(own) for numbered, own in kinds.values()):
        return {}
    out: dict[int, _Attempt] = {}
    for numbered, own in kinds.values():
        alike = {(trajectories[n].rewards, trajectories[n].final_reward) for n in numbered}
        if len(alike) == 1:
            out |= zip(numbered, own, strict=True)
    return out


# --- the tree -----------------------------------------------------------------------------------


def _nodes(node: Any, skipped: str = "", depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """A node and all below it in their order, but for sections of a title."""
    if not isinstance(node, Mapping) or depth > _MAX_DEPTH or (skipped and _title(node) == skipped):
        return
    yield node
    for child in _children(node):
        yield from _nodes(child, skipped, depth + 1)


def _children(node: Any) -> list[Any]:
    children = node.get("children") if isinstance(node, Mapping) else None
    return children if isinstance(children, list) else []


def _title(node: Mapping[str, Any]) -> str:
    """The title of a section; "" of any other node."""
    if node.get("tag") != "section":
        return ""
    return _text(next((c for c in _children(node) if isinstance(c, Mapping)), {}))


def _sections(
    node: Any, title: str | re.Pattern[str], depth: int = 0
) -> Iterator[Mapping[str, Any]]:
    """The sections of a title, in their order; none of them stands in another."""
    if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
        return
    own = _title(node)
    if own and (own == title if isinstance(title, str) else title.fullmatch(own)):
        yield node
        return
    for child in _children(node):
        yield from _sections(child, title, depth + 1)


def _text(node: Mapping[str, Any]) -> str:
    return html.unescape("".join(c for c in _children(node) if isinstance(c, str))).strip()


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [_text(c) for c in _children(row) if isinstance(c, Mapping) and c.get("tag") == "td"]


def _table_rows(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The rows of tables with two columns."""
    for inner in _nodes(node):
        cells = _cells(inner) if inner.get("tag") == "tr" else []
        if len(cells) == 2:
            yield cells[0], cells[1]
