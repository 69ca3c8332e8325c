"""Writes `fixtures/art_parquet`.

The file is written by ART's own `write_trajectory_groups_parquet` (`pip install --no-deps
openpipe-art openai`, and pydantic).
Run: `python tests/store/importers/writers/art_groups.py OUTPUT_FOLDER`.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import Choice
from stand_ins import stand_in

stand_in("litellm")


def module(name: str) -> Any:
    """A file of ART alone: its package starts servers when it is imported."""
    root = next(Path(p) / "art" for p in sys.path if (Path(p) / "art" / "trajectories.py").exists())
    path = root.joinpath(*name.split(".")[1:]).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


class Trajectory(types.SimpleNamespace):
    """The fields that the writer reads."""


class Group(types.SimpleNamespace):
    pass


def choice(content: str | None, reason: str, calls: Any = None) -> Choice:
    message: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": calls}
    return Choice.model_validate({"index": 0, "finish_reason": reason, "message": message})


CALL = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}]


def groups() -> list[Group]:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
    first = Trajectory(
        messages_and_choices=[
            *asked,
            choice(None, "tool_calls", CALL),
            {"role": "tool", "content": "5", "tool_call_id": "c1"},
            choice("It is 5.", "stop"),
        ],
        reward=1.0,
        metrics={"win": 1, "turns": 2.0},
        metadata={"task": "add", "n": 7},
        tools=[{"type": "function", "function": {"name": "add"}}],
        logs=["started"],
        additional_histories=[],
    )
    second = Trajectory(
        messages_and_choices=[*asked, choice("6", "length")],
        reward=-0.25,
        metrics={},
        metadata={},
        tools=None,
        logs=[],
        additional_histories=[],
    )
    other = Trajectory(**{**vars(second), "reward": 0.5})
    first_group = Group(trajectories=[first, second], metadata={"g": 1}, metrics={}, logs=[])
    two = Group(trajectories=[other], metadata={}, metrics={}, logs=[])
    return [first_group, two]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in ("art", "art.trajectories"):
        sys.modules.setdefault(name, types.ModuleType(name))
    trajectories: Any = sys.modules["art.trajectories"]
    trajectories.Trajectory, trajectories.TrajectoryGroup = Trajectory, Group
    writer = module("art.utils.trajectory_logging")
    target = folder / "art_parquet" / "trajectories" / "train"
    target.mkdir(parents=True, exist_ok=True)
    writer.write_trajectory_groups_parquet(groups(), target / "0007.parquet")
