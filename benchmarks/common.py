"""What every benchmark has: options, a folder for its runs, times, tables, and what it ran on."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "shared"))
"""What tests make runs of, benchmarks do, too."""


def read_options(about: str | None, **kinds: Any) -> argparse.Namespace:
    """The options of this command line, each from its name and its default.

    Args:
        about: The script's docstring, for `--help`.
        kinds: False makes a flag, a type an option without a default, a list one of several values,
            a dict has the further arguments of `add_argument`, anything else is the default. A pair
            is one of these and a sentence for `--help`.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, given in kinds.items():
        kind, help_text = given if isinstance(given, tuple) else (given, None)
        if kind is False:
            further: dict[str, Any] = {"action": "store_true"}
        elif isinstance(kind, type):
            further = {"type": kind}
        elif isinstance(kind, dict):
            further = kind
        elif isinstance(kind, list):
            further = {"nargs": "*", "type": type(kind[0]) if kind else str, "default": kind}
        else:
            further = {"type": type(kind), "default": kind}
        sentence = {} if help_text is None else {"help": help_text}
        parser.add_argument(f"--{name.replace('_', '-')}", **further, **sentence)
    return parser.parse_args()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="echoscope-benchmark-") as name:
        yield Path(name)


def folder_bytes(folder: Path) -> int:
    """What all files below a folder, or one file, take."""
    files = [folder] if folder.is_file() else folder.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def seconds_of(work: Callable[[], Any], repeats: int = 1) -> float:
    """Wall clock of a call, the best of several: what else the machine does is not its cost."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a command took."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    """The largest memory of this very process."""
    exit_code: int


def usage_of_command(*arguments: str | Path, may_fail: bool = False, **settings: Any) -> Usage:
    """Run `echoscope` with these words, and measure it.

    Args:
        may_fail: An exit code other than 0 says something; else it ends the benchmark.
        settings: Of `Popen`, such as `stdout`, which is thrown away without one.
    """
    command = [sys.executable, "-m", "echoscope", *map(str, arguments)]
    started = time.perf_counter()
    process = subprocess.Popen(command, **{"stdout": subprocess.DEVNULL, **settings})
    # Of this child alone: `RUSAGE_CHILDREN` keeps the largest memory of all of them.
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and not may_fail:
        raise SystemExit(f"{' '.join(command)} failed")
    return Usage(
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        exit_code=process.returncode,
    )


def alone(script: str, *arguments: object) -> Any:
    """What a script answers in a process of its own, as JSON in its last line."""
    # Freed blocks go back to the system at once, or a peak would count what nobody holds.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, script, *map(str, arguments)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def memory_of(pid: int | str = "self", *, is_peak: bool = True) -> int:
    """Bytes of a process that lie in memory, the most so far or now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:" if is_peak else "VmRSS:")[2].split()[0]) << 10


def forget_peak() -> None:
    """Let the peak of this process begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def between_marks(page: str, begin: str, end: str, text: str) -> str:
    """The page with what stands between two marks exchanged.

    Raises:
        ValueError: the page does not hold each of them once.
    """
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must hold {begin!r} and {end!r} once each")
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def markdown_row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[object]] = ()) -> str:
    """A table; without rows its head, where rows are printed as they come."""
    return "\n".join(map(markdown_row, [head, ["---"] * len(head), *rows]))


def print_json(**values: Any) -> None:
    """One line for a program that reads it, with the machine."""
    print(json.dumps({"machine": describe_machine(), **values}))


def describe_machine() -> str:
    """Processor, its widest vectors, cores, load and versions, in one line."""
    fields = dict(
        line.split(":", 1)
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if ":" in line
    )
    values = {name.strip(): value.strip() for name, value in fields.items()}
    cpu, flags = values.get("model name", platform.processor()), values.get("flags", "").split()
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    load, python = os.getloadavg()[0], platform.python_version()
    return f"{cpu} ({vectors}), {os.cpu_count()} cores, load {load:.1f}, Python {python}"
