"""Programs that try to get out of the sandbox, to take everything or to stay. None does.

Each runs as whoever runs the tests and as a user without rights.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from echoscope.envs.worlds.code import sandbox as module
from echoscope.envs.worlds.code.sandbox import ProgramRun, SandboxLimits

from .conftest import Run, needs_sandbox
from .escapes import ATTACKS, HOARDS, PRELUDE, REACHES

pytestmark = needs_sandbox()

LIMITS = SandboxLimits(seconds=2.0, memory_mb=128, file_mb=4)
MOST_MB = 128 + 3 * 4 + 16
"""The limits, and at most 64 pipes of 64 KiB or 64 ends of sockets of 208 KiB, which are the
kernel's."""
MACHINE_CODE = """
import ctypes, mmap
# mov eax, 2 (fork, of 32 bits); int 0x80; ret
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes([0xB8, 2, 0, 0, 0, 0xCD, 0x80, 0xC3]))
made = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("reached" if made >= 0 else "refused")
"""


@pytest.fixture(scope="module")
def listener() -> socket.socket:
    """A server on this machine that must hear nothing."""
    return socket.create_server(("127.0.0.1", 0))


@pytest.fixture(scope="module")
def reached(run: Run, listener: socket.socket) -> dict[str, ProgramRun]:
    """What came of every program that must reach nothing. One sandbox runs them all."""
    port = listener.getsockname()[1]
    program = f"{PRELUDE}\nPORT = {port}\nexec(sys.stdin.read())\nprint('reached')"
    return dict(zip(REACHES, run(program, list(REACHES.values()), LIMITS), strict=True))


@pytest.mark.parametrize("what", REACHES)
def test_a_program_reaches_nothing(reached: dict[str, ProgramRun], what: str) -> None:
    outcome = reached[what]
    assert "reached" not in outcome.output
    assert outcome.exit_code != 0
    assert not outcome.timed_out
    assert "NameError" not in outcome.errors
    assert "SyntaxError" not in outcome.errors


def test_the_page_says_how_many_were_tried() -> None:
    page = (Path(__file__).parents[4] / "docs" / "environments.md").read_text(encoding="utf-8")
    page = " ".join(page.split())
    assert f"{len(REACHES)} ways out, {len(HOARDS)} ways to hoard memory" in page
    assert f"{len(ATTACKS)} attacks on the process" in page


def test_nobody_outside_hears_of_it(
    reached: dict[str, ProgramRun], listener: socket.socket
) -> None:
    assert "a connection" in reached
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize("what", HOARDS)
def test_all_memory_has_one_limit(run: Run, what: str) -> None:
    (outcome,) = run(PRELUDE + HOARDS[what], [""], LIMITS)
    held = [int(line) for line in outcome.output.split()]
    assert max(held, default=0) <= MOST_MB
    assert "NameError" not in outcome.errors


@pytest.mark.parametrize("what", ATTACKS)
def test_the_runner_serves_the_next_input_whatever_the_last_program_did(
    run: Run, what: str
) -> None:
    program = f"{PRELUDE}\nattack = sys.stdin.read()\nexec(attack)\nprint('right')"
    outcomes = run(program, [ATTACKS[what], "pass"], LIMITS)
    assert (outcomes[1].output, outcomes[1].exit_code) == ("right\n", 0)


def test_calls_of_another_architecture_end_the_program(run: Run) -> None:
    (outcome,) = run(MACHINE_CODE, [""], LIMITS)
    assert "reached" not in outcome.output


def test_threads_are_bounded(run: Run) -> None:
    program = """
import threading, time
threading.stack_size(1 << 18)
for number in range(100):
    threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()
    print(number + 1, flush=True)
"""
    (outcome,) = run(program, [""], LIMITS)
    assert 1 <= int(outcome.output.split()[-1]) <= LIMITS.threads
    assert "can't start new thread" in outcome.errors


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60)"])
def test_time_is_bounded(run: Run, program: str) -> None:
    assert run(program, [""], SandboxLimits(seconds=0.3))[0].timed_out


def test_nothing_is_left_running(run: Run) -> None:
    """Also of a program that ignores every signal it can."""
    program = """
import os, signal, threading, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU):
    signal.signal(number, signal.SIG_IGN)
for _ in range(4): threading.Thread(target=time.sleep, args=(60,)).start()
while True:
    try: os.fork()
    except OSError: pass
"""
    before = _strangers()
    assert run(program, [""], SandboxLimits(seconds=0.5))[0].timed_out
    _wait_until_gone(before)


def test_nothing_is_left_running_where_the_sandbox_itself_takes_too_long() -> None:
    """bwrap is killed from outside, and with it all that is inside."""
    before = _strangers()
    request = module._request(
        "import time; time.sleep(60)", [""], SandboxLimits(seconds=50), unsafe=False
    )
    assert module._last_words(module._command(), request, 0.5) == ("", "")
    _wait_until_gone(before)


def _wait_until_gone(before: set[int]) -> None:
    left = _strangers() - before  # those of other tests may be among them, and end as well
    for _ in range(100):  # the kernel ends the processes of a namespace one after the other
        if not left & _strangers():
            return
        time.sleep(0.1)
    raise AssertionError(left & _strangers())


def _strangers() -> set[int]:
    """Processes of users that nobody is, or of the user without rights."""
    pids = set()
    for folder in Path("/proc").iterdir():
        try:
            uid = folder.stat().st_uid if folder.name.isdigit() else 0
            command = (folder / "cmdline").read_bytes() if uid else b""
        except OSError:  # it ended in between
            continue
        if uid >= 1_000_000 or b"/runner.py" in command:
            pids.add(int(folder.name))
    return pids
