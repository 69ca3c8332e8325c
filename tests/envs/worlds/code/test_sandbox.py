"""Programs that try to get out, to take everything or to stay. None does."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from echoscope.envs.base import EnvUnavailableError
from echoscope.envs.worlds.code import sandbox as module
from echoscope.envs.worlds.code.sandbox import Limits, Sandbox, why_not

pytestmark = pytest.mark.skipif(
    bool(why_not()) and os.environ.get("ECHOSCOPE_SANDBOX") != "required", reason=why_not()
)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(Limits(seconds=2.0))


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


ESCAPES = {
    "the home folder": "import os; os.listdir(os.path.expanduser('~root'))",
    "the password file": "open('/etc/shadow').read()",
    "a socket": "import socket; socket.create_connection(('127.0.0.1', 80), 1)",
    "a write to /usr": "open('/usr/x', 'w')",
    "a write to the root": "open('/x', 'w')",
    "a write over the program": "open('/code/program.py', 'w')",
    "a signal to the first process": "import os; os.kill(1, 9)",
    "the first process's environment": "open('/proc/1/environ').read()",
    "another user": "import os; os.setuid(0)",
    "a mount": "import ctypes; libc = ctypes.CDLL(None, use_errno=True);\n"
    "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
}


@pytest.mark.parametrize("what", ESCAPES)
def test_it_reaches_nothing(sandbox: Sandbox, what: str) -> None:
    (outcome,) = sandbox.run(f"{ESCAPES[what]}\nprint('reached')")
    assert outcome.exit_code == 1, what
    assert outcome.output == ""


def test_it_sees_no_process_but_its_own(sandbox: Sandbox) -> None:
    (outcome,) = sandbox.run(
        "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
    )
    assert int(outcome.output) <= 3


def test_a_fork_bomb_is_bounded_and_leaves_nothing(sandbox: Sandbox) -> None:
    program = """
import os, sys
for _ in range(1000):
    try:
        if os.fork() == 0:
            break
    except OSError:
        print("no more", flush=True)
        break
while True:
    pass
"""
    before = _strangers()
    (outcome,) = sandbox.run(program)
    assert outcome.timed_out
    assert "no more" in outcome.output
    for _ in range(100):  # the kernel ends the processes of a namespace one after the other
        if not _strangers() - before:
            return
        time.sleep(0.1)
    raise AssertionError(_strangers() - before)


def _strangers() -> set[int]:
    """Processes of users that nobody is."""
    pids = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and folder.stat().st_uid >= 1_000_000:
                pids.add(int(folder.name))
        except OSError:  # it ended in between
            continue
    return pids


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


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60)"])
def test_time_is_bounded(sandbox: Sandbox, program: str) -> None:
    started = time.monotonic()
    assert sandbox.run(program)[0].timed_out
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("program", ["", "\x00", "\ud800", "print('\u202e')", "x" * 200_000])
def test_any_text_is_a_program(sandbox: Sandbox, program: str) -> None:
    sandbox.run(program, ["\x00\ud800", "a"])


def test_without_bubblewrap_it_refuses_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda tool: None)
    why_not.cache_clear()
    try:
        with pytest.raises(EnvUnavailableError, match="apt install bubblewrap"):
            Sandbox(Limits())
        assert Sandbox(Limits(), unsafe=True).run("print(6 * 7)")[0].output == "42\n"
    finally:
        why_not.cache_clear()


def test_one_program_cannot_speak_for_the_others(sandbox: Sandbox) -> None:
    """What it writes in the runner's place is at most its own output: it knows no test's answer."""
    program = """
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
"""
    outcomes = sandbox.run(program, ["1", "2"])
    assert [(outcome.output, outcome.timed_out) for outcome in outcomes] == [("", True)] * 2


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [("raise SystemExit(3)", 3), ("import sys; sys.exit('no')", 1), ("import os; os.abort()", -6)],
)
def test_exit_codes(sandbox: Sandbox, program: str, exit_code: int) -> None:
    assert sandbox.run(program)[0].exit_code == exit_code
