"""Shared memory holds nothing of a process that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from started import started

from echoscope.core.engines.vllm.weights import SharedFolder

HOLD = (
    "from echoscope.core.engines.vllm.weights import SharedFolder\n"
    "folder = SharedFolder()\n"
    "print(folder.path, flush=True)\n"
    "import time; time.sleep(600)"
)


def test_a_folder_of_a_killed_process_goes_and_one_of_a_living_process_stays() -> None:
    process = started(
        subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    )
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    first = SharedFolder()
    assert path.is_dir()
    process.kill()
    process.wait()
    second = SharedFolder()
    assert not path.exists()
    assert first.path.is_dir()
    for folder in (first, second):
        folder.remove()
        assert not folder.path.exists()
