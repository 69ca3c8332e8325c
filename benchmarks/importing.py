"""What `echoscope import` takes: `python benchmarks/importing.py --megabytes 200`.

One file of JSON lines is made in each of three formats (verl with 1,024 episodes a step, RAGEN's
evaluation and plain messages without steps), of made-up episodes of three turns and about 3 KB.
Each is imported in a process of its own, whose time and largest memory are reported.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import describe_machine, read_options, temporary_folder, usage_of_command

SENTENCE = (
    "the goal lies two cells right of the player so the next move must avoid this hole and then "
    "go down because ice slips one row box target wall free left up count add check again"
)
WORDS = SENTENCE.split()
PER_STEP = 1024
GROUP = 8


def text(rng: random.Random, size: int) -> str:
    return " ".join(rng.choices(WORDS, k=size))


def turns(rng: random.Random) -> list[tuple[str, str]]:
    return [
        (text(rng, 60), f"<think>{text(rng, 120)}</think><answer>{rng.choice(WORDS)}</answer>")
        for _ in range(3)
    ]


def verl(rng: random.Random, index: int) -> dict[str, Any]:
    (first, reply), *rest = turns(rng)
    later = "".join(f"\nuser\n{ask}\nassistant\n{answer}" for ask, answer in rest)
    return {
        "input": f"system\nYou act.\nuser\nTask {index // GROUP}: {first}\nassistant\n",
        "output": reply + later,
        "gts": "5",
        "score": float(rng.random() < 0.5),
        "step": index // PER_STEP,
        "acc": 1.0,
    }


def _messages(rng: random.Random) -> list[dict[str, str]]:
    return [
        {"role": role, "content": content}
        for ask, answer in turns(rng)
        for role, content in (("user", ask), ("assistant", answer))
    ]


def ragen(rng: random.Random, index: int) -> dict[str, Any]:
    return {
        "custom_id": f"traj_{index}",
        "messages": [*_messages(rng), {"role": "user", "content": "end"}],
        "metadata": {
            "env_id": index,
            "group_id": index // GROUP,
            "num_turns": 3,
            "total_reward": 0.0,
            "success": False,
            "Sokoban/success": float(rng.random() < 0.5),
        },
    }


def messages(rng: random.Random, index: int) -> dict[str, Any]:
    return {"messages": _messages(rng), "reward": rng.random(), "group_id": index // GROUP}


FORMATS: dict[str, Callable[[random.Random, int], dict[str, Any]]] = {
    "verl": verl,
    "ragen": ragen,
    "messages": messages,
}


def write(path: Path, name: str, num_bytes: int) -> int:
    """A file of that size; the number of its rows."""
    rng, size, rows = random.Random(0), 0, 0
    with path.open("w", encoding="utf-8") as file:
        while size < num_bytes:
            size += file.write(json.dumps(FORMATS[name](rng, rows)) + "\n")
            rows += 1
    return rows


def long_line(gigabytes: int) -> None:
    """Import two good lines with one of that size between them, and print the largest memory."""
    with temporary_folder() as folder:
        path = folder / "long.jsonl"
        good = json.dumps(messages(random.Random(0), 0)).encode() + b"\n"
        with path.open("wb") as file:
            file.write(good + b'{"messages": "')
            file.seek(gigabytes << 30, os.SEEK_CUR)  # zeros that take no room on the disk
            file.write(b'"}\n' + good)
        used = usage_of_command("import", path, "-o", folder / "run")
    print(
        f"a line of {gigabytes} GB: {used.wall_s:.1f} s, "
        f"largest memory of a process {used.peak_mib:.0f} MiB"
    )


def main() -> None:
    args = read_options(
        __doc__,
        megabytes=200,
        formats={"nargs": "*", "default": list(FORMATS), "choices": list(FORMATS)},
        long_line=({"type": int, "metavar": "GB"}, "only a line of this size"),
    )
    print(describe_machine())
    print(f"load {os.getloadavg()[0]:.1f}")
    if args.long_line:
        long_line(args.long_line)
        return
    for name in args.formats:
        with temporary_folder() as folder:
            path = folder / f"{name}.jsonl"
            rows = write(path, name, args.megabytes * 1_000_000)
            used = usage_of_command("import", path, "-o", folder / "run")
            stored = sum(p.stat().st_size for p in (folder / "run").rglob("*.parquet"))
        print(
            f"{name}: {rows:,} episodes, {args.megabytes} MB: {used.wall_s:.1f} s "
            f"({rows / used.wall_s:,.0f} episodes/s), processor {used.cpu_s:.1f} s "
            f"({rows / used.cpu_s:,.0f} episodes/s of it), peak "
            f"{used.peak_mib:.0f} MiB, {stored / 1e6:.0f} MB on the disk"
        )


if __name__ == "__main__":
    main()
