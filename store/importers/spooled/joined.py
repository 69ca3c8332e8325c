"""Episodes that stand in several places of a file, or in two files: joined, one a line.

Three trainers need this. agent-lightning writes an event a line, so an episode is many lines, mixed
with those of others. tinker-cookbook writes the rewards and the text of an episode into two files.
ART wrote its groups as YAML at first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from ..lines import BadJsonError, json_of, lines_of

MAX_DOCUMENT = 32 << 20
_MAX_DEPTH = 100
_SUMMARIES = "_rollout_summaries.jsonl"
_TREE = "_logtree.json"
_TAG = re.compile(r"<[^>]{0,200}>")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Rows(Protocol):
    """A source of rows, as `sources.py` makes them."""

    def scan(self) -> Iterator[Any]: ...
    def row(self, place: int, size: int) -> Any: ...


def is_event(row: Any) -> bool:
    """Whether a row is an event of agent-lightning."""
    names = ("event_type", "rollout_id", "attempt_id", "data")
    return isinstance(row, Mapping) and all(name in row for name in names)


def write_events(source: _Rows, target: Path) -> None:
    """Write the events of each attempt at a rollout as one line, in their order.

    Only the places of the events are kept in memory, and the events of one attempt.
    """
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with target.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for found in source.scan():
            if is_event(found.value):
                key = (str(found.value["rollout_id"]), str(found.value["attempt_id"]))
                places.setdefault(key, []).append((found.place, found.size))
            else:
                # Counted as a row that is none of the format's.
                file.write(json.dumps(found.problem or "not an event") + "\n")
        for (rollout, attempt), own in places.items():
            events = [source.row(place, size) for place, size in own]
            row = {"lightning_rollout": rollout, "attempt_id": attempt, "events": events}
            file.write(json.dumps(row) + "\n")


class _Documents(_Loader):  # type: ignore[misc]
    """Plain values alone. Merge keys are left out: a few of them stand for billions of values."""

    def flatten_mapping(self, node: Any) -> None:
        return


def is_groups_yaml(path: Path, head: bytes) -> bool:
    """Whether a file is one of ART's older ones, by its name and its first bytes."""
    return path.suffix.lower() in (".yaml", ".yml") and bool(
        re.match(rb"\s*-\s+trajectories:", head)
    )


def write_groups(path: Path, target: Path) -> None:
    """Write the groups of a YAML file of ART as JSON lines.

    Raises:
        BadJsonError: it is no such file, or damaged, or a bomb.
    """
    if path.stat().st_size > MAX_DOCUMENT:
        raise BadJsonError("a YAML document of more than 32 MB; JSON lines have no limit")
    try:
        groups = yaml.load(path.read_bytes(), Loader=_Documents)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise BadJsonError(f"not a YAML document: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise BadJsonError("YAML nested too deeply") from None
    # References are not copied by the loader, so that what comes out may be far larger.
    budget = [64 << 20]
    with target.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for group in groups if isinstance(groups, list) else ():
            file.write(json.dumps(_plain(group, budget)) + "\n")


def _plain(value: Any, budget: list[int], depth: int = 0) -> Any:
    budget[0] -= 16 + (len(value) if isinstance(value, str) else 0)
    if budget[0] < 0:
        raise BadJsonError("its references unpack to more than 64 MB, as a bomb does")
    if depth > _MAX_DEPTH:
        raise BadJsonError("YAML nested too deeply")
    if isinstance(value, dict):
        return {str(key): _plain(entry, budget, depth + 1) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry, budget, depth + 1) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# --- tinker-cookbook ----------------------------------------------------------------------------


def text_beside(path: Path) -> Path | None:
    """The file that holds the text of some of the episodes of a file of summaries."""
    if not path.name.endswith(_SUMMARIES):
        return None
    beside = path.with_name(path.name.removesuffix(_SUMMARIES) + _TREE)
    is_there = beside.is_file() and not beside.is_symlink()
    return beside if is_there and beside.stat().st_size <= MAX_DOCUMENT else None


def is_text_beside(path: Path) -> bool:
    """Whether a file holds the text of a file of summaries beside it."""
    summaries = path.with_name(path.name.removesuffix(_TREE) + _SUMMARIES)
    return path.name.endswith(_TREE) and summaries.is_file()


def write_summaries(path: Path, beside: Path, target: Path) -> None:
    """Write the summaries with the text of the groups whose text can be told apart."""
    try:
        tree = json_of(beside.read_bytes())[0]
        texts = [_attempts(section) for section in _sections(tree.get("root"), "Group Rollout")]
    except (BadJsonError, AttributeError):
        texts = []
    with path.open("rb") as file:
        wanted = _rewards_by_group(line.data or b"" for line in lines_of(file))
    assigned: dict[tuple[int, int], Any] = {}
    for (group, rewards), attempts in zip(sorted(wanted.items()), texts, strict=False):
        for trajectory, attempt in _assigned(rewards, attempts).items():
            assigned[group, trajectory] = attempt
    with path.open("rb") as file, target.open("wb") as out:
        for found in lines_of(file):
            line = found.data or b'"a line of more than 16 MB"\n'
            row = _row(line)
            key = (row.get("group_idx"), row.get("traj_idx")) if row else None
            if row is not None and key in assigned:
                prompt, reply, _ = assigned[key]
                row = {**row, "logtree": {"prompt": prompt, "reply": reply}}
                out.write(json.dumps(row).encode() + b"\n")
            else:
                out.write(line)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        value = json_of(line)[0]
    except BadJsonError:
        return None
    return value if isinstance(value, dict) else None


def _rewards_by_group(lines: Iterable[bytes]) -> dict[int, dict[int, float | None]]:
    """Group -> trajectory -> the reward of its only step; None where it has several."""
    out: dict[int, dict[int, float | None]] = {}
    for line in lines:
        row = _row(line) or {}
        group, trajectory, steps = (row.get(n) for n in ("group_idx", "traj_idx", "steps"))
        if isinstance(group, int) and isinstance(trajectory, int) and isinstance(steps, list):
            only = steps[0] if len(steps) == 1 and isinstance(steps[0], dict) else {}
            reward = only.get("reward")
            is_number = isinstance(reward, int | float)
            out.setdefault(group, {})[trajectory] = reward if is_number else None
    return out


def _assigned(
    rewards: Mapping[int, float | None], attempts: list[tuple[Any, Any, str]]
) -> dict[int, tuple[Any, Any, str]]:
    """Which attempt is which trajectory. The tree has them in the order in which they ended, so
    they are told apart by the reward that stands beside the text; nothing where that fails."""
    if len(attempts) != len(rewards):
        return {}
    left = list(attempts)
    out = {}
    for trajectory, reward in sorted(rewards.items()):
        shown = "" if reward is None else f"{reward:.3f}"
        match = next((a for a in left if reward is not None and a[2] == shown), None)
        if match is None:
            return {}
        left.remove(match)
        out[trajectory] = match
    return out


def _nodes(node: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """A node and all below it, in their order."""
    if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
        return
    yield node
    children = node.get("children")
    for child in children if isinstance(children, list) else ():
        yield from _nodes(child, depth + 1)


def _text(node: Mapping[str, Any]) -> str:
    children = node.get("children")
    parts = [c for c in children if isinstance(c, str)] if isinstance(children, list) else []
    return _TAG.sub("", "".join(parts)).strip()


def _sections(root: Any, title: str) -> Iterator[Mapping[str, Any]]:
    for node in _nodes(root):
        if node.get("tag") != "section" or not isinstance(node.get("children"), list):
            continue
        first = next((c for c in node["children"] if isinstance(c, Mapping)), {})
        if _text(first) == title:
            yield node


def _attempts(section: Mapping[str, Any]) -> list[tuple[Any, Any, str]]:
    """(messages before the reply, the reply, the reward that is shown) of each attempt."""
    out: list[tuple[Any, Any, str]] = []
    prompt: Any = None
    cells: list[str] = []
    for node in _nodes(section):
        data = node.get("data")
        if isinstance(data, Mapping) and data.get("type") == "conversation":
            messages = data.get("messages")
            if not isinstance(messages, list) or not messages:
                continue
            if prompt is None:
                prompt = messages
            else:
                out.append((prompt, messages[-1], ""))
                prompt, cells = None, []
        elif node.get("tag") in ("td", "th") and out and not out[-1][2]:
            cells.append(_text(node))
            if len(cells) > 1 and cells[-2] == "reward":
                out[-1] = (*out[-1][:2], cells[-1])
    return out
