"""What a benchmark ran on, said the same way everywhere."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe_machine() -> str:
    """Processor, cores, load and versions, in one line."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    load = os.getloadavg()[0]
    return f"{cpu}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}"
