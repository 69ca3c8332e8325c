"""What a benchmark ran on, said the same way everywhere."""

from __future__ import annotations

import os
import platform
from pathlib import Path


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
