"""SIGKILL at random instants: what was acknowledged is whole, and nothing is half visible.

Forty kills, at instants that `ECHOSCOPE_SEED` gives; `ECHOSCOPE_KILLS` changes the number.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from harness_seed import draw
from started import started

from echoscope.store.log.packing import pack
from echoscope.store.log.verify import verify
from echoscope.store.reader import RunReader, open_run

KILLS = int(os.environ.get("ECHOSCOPE_KILLS", "40"))
RUNS = 5  # each kill is followed by a look at the whole run, so that several short ones are quicker
SCRIPT = Path(__file__).with_name("killed_writer.py")
PACK = "import sys; from echoscope.store.log.packing import pack; print('ready', flush=True); "
PACK += "pack(sys.argv[1], grace_s=0)"
WHOLE = """
SELECT t.step, t.n, u.turns, k.ids, u.characters, m.metrics
FROM (SELECT step, count(*) n FROM trajectories WHERE kept GROUP BY step) t
JOIN (SELECT step, count(*) turns, sum(length(observation) + length(response)) characters
      FROM turns GROUP BY step) u USING (step)
JOIN (SELECT step, sum(list_sum(response_tokens)) ids FROM tokens GROUP BY step) k USING (step)
JOIN (SELECT step, count(*) metrics FROM metrics GROUP BY step) m USING (step)
JOIN steps s USING (step)
ORDER BY t.step
"""


@pytest.fixture(scope="module")
def target() -> ModuleType:
    spec = importlib.util.spec_from_file_location("killed_writer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class KilledWriter:
    """A process that forks writers on a run, one after the other."""

    def __init__(self) -> None:
        command = [sys.executable, str(SCRIPT), "-"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, path: Path) -> int:
        """The process id of a writer that is about to write its first step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n".encode())
        self._process.stdin.flush()
        word, identity = self._line().split()
        assert word == "ready"
        return int(identity)

    def kill(self, identity: int) -> list[int]:
        """The steps that the writer acknowledged before it died."""
        os.kill(identity, signal.SIGKILL)
        return [int(line) for line in iter(self._line, "dead")]

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().strip()
        assert line, "the writer ended by itself"
        return line


@pytest.fixture
def killed_writer() -> Iterator[KilledWriter]:
    made = KilledWriter()
    yield made
    made.close()


def kill_a_pack(path: Path, after_s: float) -> None:
    command = [sys.executable, "-c", PACK, str(path)]
    process = started(subprocess.Popen(command, stdout=subprocess.PIPE))
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(after_s)
    process.kill()
    process.communicate()


def assert_whole(reader: RunReader, target: ModuleType) -> list[int]:
    """Every visible step has exactly what belongs to it. Returns the visible steps."""
    rows = [tuple(int(value) for value in row.values()) for row in reader.sql(WHOLE).to_pylist()]
    assert rows == [(step, *target.summary_of(step)) for step in range(len(rows))]
    assert reader.warnings == []
    return [row[0] for row in rows]


def check_kills(path: Path, writer: KilledWriter, target: ModuleType, kills: int) -> None:
    rng = random.Random(draw())
    acknowledged: list[int] = []
    reader: RunReader | None = None
    for number in range(kills):
        identity = writer.start(path)
        deadline = time.monotonic() + rng.uniform(0.0, 0.15)
        if reader is None:
            reader = open_run(path)  # one that is there all along, and sees every kill
        while time.monotonic() < deadline:
            if number % 2:
                assert_whole(reader, target)
            else:
                time.sleep(0.001)
        acknowledged += writer.kill(identity)
        for each in (open_run(path), reader):
            assert set(acknowledged) <= set(assert_whole(each, target))
            assert each.info().status == "crashed"
        if number % 7 == 6:
            assert verify(path).problems == ()
            kill_a_pack(path, rng.uniform(0.0, 0.1))
            assert set(acknowledged) <= set(assert_whole(open_run(path), target))
        if number % 10 == 9:
            pack(path)
    assert acknowledged == sorted(set(acknowledged))
    pack(path)
    assert set(acknowledged) <= set(assert_whole(reader, target))
    assert verify(path).problems == ()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", range(RUNS))
def test_a_killed_writer_loses_nothing_acknowledged(
    tmp_path: Path, killed_writer: KilledWriter, target: ModuleType, run: int
) -> None:
    check_kills(tmp_path / f"run-{run}", killed_writer, target, KILLS // RUNS)
