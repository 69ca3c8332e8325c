"""SIGKILL at random instants: what was acknowledged is whole, and nothing is half visible.

`ECHOSCOPE_KILLS` sets how often (a handful by default; `make test-kill` asks for 100).
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from echoscope.store.packing import pack
from echoscope.store.reader import RunReader, open_run
from echoscope.store.verify import verify

KILLS = int(os.environ.get("ECHOSCOPE_KILLS", "4"))
SCRIPT = Path(__file__).with_name("killed_writer.py")
PACK = "import sys; from echoscope.store.packing import pack; print('ready', flush=True); "
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


def start(*command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> list[int]:
    """The steps that the process acknowledged."""
    process.kill()
    output, _ = process.communicate()
    assert process.returncode in (-9, 0)
    return [int(line) for line in output.split(b"\n")[:-1]]


def assert_whole(reader: RunReader, target: ModuleType) -> list[int]:
    """Every visible step has exactly what belongs to it. Returns the visible steps."""
    rows = [tuple(int(value) for value in row.values()) for row in reader.sql(WHOLE).to_pylist()]
    assert rows == [(step, *target.summary_of(step)) for step in range(len(rows))]
    assert reader.warnings == []
    return [row[0] for row in rows]


@pytest.mark.timeout(3600)
def test_a_killed_writer_loses_nothing_acknowledged(tmp_path: Path, target: ModuleType) -> None:
    path = tmp_path / "run"
    rng = random.Random(time.time_ns())
    acknowledged: list[int] = []
    reader: RunReader | None = None
    for number in range(KILLS):
        process = start(str(SCRIPT), str(path))
        deadline = time.monotonic() + rng.uniform(0.0, 0.4)
        while time.monotonic() < deadline:
            # One that was there all along, and sees the kill.
            reader = open_run(path) if reader is None else reader
            assert_whole(reader, target)
        acknowledged += kill(process)
        for each in (open_run(path), reader or open_run(path)):
            visible = assert_whole(each, target)
            assert set(acknowledged) <= set(visible)
            assert each.info().status == "crashed"
        assert verify(path).problems == ()
        if number % 10 == 9:
            pack(path, grace_s=0)
        elif number % 3 == 2:
            packer = start("-c", PACK, str(path))
            time.sleep(rng.uniform(0.0, 0.15))
            kill(packer)
            assert set(acknowledged) <= set(assert_whole(open_run(path), target))
    assert acknowledged == sorted(set(acknowledged))
    pack(path)
    assert set(acknowledged) <= set(assert_whole(open_run(path), target))
    assert verify(path).problems == ()
