"""Programs run as they would anywhere, within limits; where no sandbox can be made, it is said."""

from __future__ import annotations

import contextlib
import shutil
import struct
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from echoscope.envs.base import EnvUnavailableError
from echoscope.envs.worlds.code import sandbox as module
from echoscope.envs.worlds.code.sandbox import (
    Sandbox,
    SandboxLimits,
    system_call_filter,
    why_no_filter,
    why_not,
)

from .conftest import Run, needs_sandbox

pytestmark = needs_sandbox()

BUBBLEWRAP = shutil.which("bwrap")


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(SandboxLimits(seconds=2.0))


def test_a_program_reads_its_input_and_writes_its_output(sandbox: Sandbox) -> None:
    first, second = sandbox.run("print(sum(map(int, input().split())))", ["3 4\n", "5 6\n"])
    assert second.output == "11\n"
    outcome = first
    assert (outcome.output, outcome.errors, outcome.exit_code, outcome.timed_out) == (
        "7\n",
        "",
        0,
        False,
    )


def test_an_error_is_told(sandbox: Sandbox) -> None:
    (outcome,) = sandbox.run("1 / 0")
    assert outcome.exit_code == 1
    assert outcome.errors.endswith("ZeroDivisionError: division by zero\n")


def test_programs_that_run_at_once_have_limits_of_their_own(sandbox: Sandbox) -> None:
    program = "import time, threading\n" + (
        "for _ in range(3): threading.Thread(target=time.sleep, args=(0.5,)).start()\nprint(1)"
    )
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(sandbox.run, [program] * 6))
    assert [outcome.output for (outcome,) in outcomes] == ["1\n"] * 6


def test_a_memory_bomb_is_an_error(sandbox: Sandbox) -> None:
    (outcome,) = sandbox.run("bytearray(10**9)")
    assert outcome.errors.endswith("MemoryError\n")


def test_endless_output_is_cut(sandbox: Sandbox) -> None:
    (outcome,) = sandbox.run("while True: print('x' * 1000)")
    assert outcome.exit_code != 0
    assert len(outcome.output) == 20_000


def test_a_big_file_is_refused(sandbox: Sandbox) -> None:
    program = "f = open('/tmp/a', 'wb')\nwhile True: f.write(b'x' * 2**20)"
    assert sandbox.run(program)[0].exit_code != 0


@pytest.mark.parametrize("program", ["", "\x00", "\ud800", "print('\u202e')", "x" * 200_000])
def test_any_text_is_a_program(sandbox: Sandbox, program: str) -> None:
    sandbox.run(program, ["\x00\ud800", "a"])


@pytest.fixture
def forgetful() -> Iterator[None]:
    """What was found out about this machine is found out again, now and after the test."""
    for function in (why_not, module._command, module._bubblewrap):
        function.cache_clear()
    yield
    for function in (why_not, module._command, module._bubblewrap):
        function.cache_clear()


@pytest.mark.usefixtures("forgetful")
def test_without_bubblewrap_it_refuses_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda tool: None)
    with pytest.raises(EnvUnavailableError, match="apt install bubblewrap"):
        Sandbox(SandboxLimits())
    assert Sandbox(SandboxLimits(), unsafe=True).run("print(6 * 7)")[0].output == "42\n"


@pytest.mark.usefixtures("forgetful")
def test_the_bubblewrap_that_was_found_is_the_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text(f'#!/bin/sh\ntouch {tmp_path}/used\nexec {BUBBLEWRAP} "$@"\n')
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not() == ""
    (tmp_path / "used").unlink()
    monkeypatch.delenv("PATH")
    assert Sandbox(SandboxLimits()).run("print(1)")[0].output == "1\n"
    assert (tmp_path / "used").exists()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions to"),
        ("exit 0", "it said nothing"),
        ("echo not JSON", "it said nothing"),
    ],
)
def test_a_bubblewrap_that_does_not_work_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, sentence: str
) -> None:
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sentence in why_not()
    assert "set unsafe to true" in why_not()
    assert "\n" not in why_not()


ALLOW = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (b"", "prctl(22): Invalid argument"),
        (ALLOW, "a program can start another process"),
    ],
)
def test_walls_that_would_not_hold_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, steps: bytes, sentence: str
) -> None:
    """A kernel that takes no filter; one that takes it and does not obey it."""
    monkeypatch.setattr(module, "system_call_filter", lambda: steps)
    assert sentence in why_not()
    with pytest.raises(EnvUnavailableError):
        Sandbox(SandboxLimits())


def test_a_machine_whose_system_calls_are_not_known_is_told() -> None:
    assert why_no_filter("riscv64") == (
        "the filter of system calls knows x86_64 and aarch64, not riscv64"
    )
    for machine in ("x86_64", "aarch64"):
        assert why_no_filter(machine) == ""
        assert len(system_call_filter(machine)) % 8 == 0


def test_the_standard_library_works(run: Run) -> None:
    """Parts of it that need more of the kernel than most, threads among them."""
    program = """
import asyncio, bisect, collections, concurrent.futures, ctypes, decimal, fractions, functools
import heapq, itertools, math, operator, random, re, resource, statistics, string, sys, threading
import datetime, hashlib, io, json, os, secrets, select, selectors, signal, socket, time, typing
sys.setrecursionlimit(10**6)
resource.setrlimit(resource.RLIMIT_STACK, (2**26, 2**26))
sys.stderr = open(os.devnull, "w")
first, second = socket.socketpair()
first.sendall(b"over"); print(second.recv(9))
with concurrent.futures.ThreadPoolExecutor(2) as pool: print(sum(pool.map(abs, range(-3, 3))))
async def later(): await asyncio.sleep(0.001); return await asyncio.to_thread(abs, -7)
print(asyncio.run(later()))
threading.stack_size(2**26)
def deep(n): return 0 if n == 0 else 1 + deep(n - 1)
thread = threading.Thread(target=lambda: print(deep(20000))); thread.start(); thread.join()
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.05)
print(open("/dev/stdin").read(), len(os.urandom(4)), os.cpu_count() > 0)
print(os.listdir("/tmp"), os.path.exists("/etc"), sys.stdin.isatty(), datetime.date(2024, 2, 29))
"""
    (outcome,) = run(program, ["given"], SandboxLimits(seconds=9.0))
    assert outcome.errors == ""
    assert outcome.output.splitlines() == [
        "b'over'",
        "9",
        "7",
        "20000",
        "alarm",
        "given 4 True",
        "[] False False 2024-02-29",
    ]


@pytest.mark.usefixtures("forgetful")
def test_a_package_in_the_base_python_is_not_in_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, where pip installs into the only Python there is: the answers of the
    shipped problems would lie beside its own library."""
    library, base = Path(sysconfig.get_path("stdlib")), tmp_path / "base"
    name = library.name
    shutil.copytree(
        library,
        base / "lib" / name,
        symlinks=True,
        ignore=shutil.ignore_patterns("*-packages", "test", "tests", "idlelib", "config-*"),
    )
    for part in Path(sys.base_prefix, "lib").glob("lib*.so*"):
        shutil.copy(part, base / "lib", follow_symlinks=False)
    (base / "bin").mkdir()
    shutil.copy(Path(sys.base_prefix, "bin", name), base / "bin")
    for folder in (f"lib/{name}/site-packages", f"lib/{name}/dist-packages", "lib/elsewhere"):
        data = base / folder / "echoscope" / "envs" / "data"
        data.mkdir(parents=True)
        (data / "programs.jsonl").write_text("the answer")
    monkeypatch.setattr(sys, "base_prefix", str(base))
    monkeypatch.setattr(module.sysconfig, "get_path", lambda path: str(base / "lib" / name))
    program = """
import os, sys
print([folder for folder, _, names in os.walk("/") if "programs.jsonl" in names])
print([os.listdir(folder) for folder, _, _ in os.walk("/python") if folder.endswith("-packages")])
print(os.listdir(os.path.dirname(os.path.dirname(os.__file__))).count("elsewhere"))
"""
    (outcome,) = Sandbox(SandboxLimits(seconds=9.0)).run(program)
    assert outcome.output == "[]\n[[], []]\n1\n", outcome.errors


@pytest.mark.parametrize("unsafe", [False, True])
def test_a_program_that_takes_its_time_is_cut_and_the_next_runs(*, unsafe: bool) -> None:
    program = "import time; time.sleep(float(input())); print('awake')"
    slow, fast = Sandbox(SandboxLimits(seconds=0.5), unsafe=unsafe).run(program, ["60", "0"])
    assert slow.timed_out
    assert fast.output == "awake\n"


@pytest.mark.parametrize(
    "program",
    [
        "import subprocess; subprocess.Popen(['sleep', '4321'], start_new_session=True)",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execvp('sleep', ['sleep', '4321'])\n    os._exit(0)",
        "import os\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        os.execvp('sleep', ['sleep', '4321'])",
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands over a process's orphans")
def test_no_daemon_outlives_a_run_without_walls(program: str) -> None:
    Sandbox(SandboxLimits(seconds=2.0), unsafe=True).run(program)
    assert b"sleep\x004321\x00" not in _commands()


def _commands() -> set[bytes]:
    commands = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended in between
            commands.add(file.read_bytes())
    return commands


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [("raise SystemExit(3)", 3), ("import sys; sys.exit('no')", 1), ("import os; os.abort()", -6)],
)
def test_exit_codes(sandbox: Sandbox, program: str, exit_code: int) -> None:
    assert sandbox.run(program)[0].exit_code == exit_code
