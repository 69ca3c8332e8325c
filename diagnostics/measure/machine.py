"""How busy the machine of a run is: processor, memory, disk and GPUs, read at the end of each step.

A reading takes a fraction of a millisecond, and each GPU some more. What cannot be read is NaN.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

GIGABYTE, MEGABYTE = 1e9, 1e6


@dataclass(slots=True)
class Gpus:
    """The GPUs that this process may use, as NVIDIA's management library reports them."""

    nvml: Any = None
    """The module `pynvml`, initialised; None where there is none, or no GPU."""
    handles: Mapping[int, Any] = field(default_factory=dict)
    """Number of a GPU on this machine -> its handle."""

    @classmethod
    def here(cls) -> Gpus:
        """Those of this machine that `CUDA_VISIBLE_DEVICES` names; none is no error."""
        try:
            import pynvml
        except ModuleNotFoundError:
            return cls()
        try:
            pynvml.nvmlInit()
            numbers = visible_numbers(
                os.environ.get("CUDA_VISIBLE_DEVICES"), pynvml.nvmlDeviceGetCount()
            )
            return cls(pynvml, {n: pynvml.nvmlDeviceGetHandleByIndex(n) for n in numbers})
        except pynvml.NVMLError:  # no driver
            return cls()

    def metrics(self) -> dict[str, float]:
        """What each GPU says of itself now."""
        out: dict[str, float] = {}
        for number, handle in self.handles.items():
            told = dict.fromkeys(("busy_frac", "memory_frac", "power_w"), math.nan)
            with suppress(self.nvml.NVMLError):  # some cards do not tell all of it
                told["busy_frac"] = self.nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                usage = self.nvml.nvmlDeviceGetMemoryInfo(handle)
                told["memory_frac"] = usage.used / usage.total
                told["power_w"] = self.nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            out |= {f"system/gpu/{number}/{name}": value for name, value in told.items()}
        return out


def visible_numbers(variable: str | None, count: int) -> Sequence[int]:
    """The numbers of GPUs that `CUDA_VISIBLE_DEVICES` leaves; names that are no numbers leave all.

    >>> visible_numbers(None, 2), visible_numbers("1,0", 2), visible_numbers("", 2)
    ([0, 1], [0, 1], [])
    >>> visible_numbers("GPU-5ebe9f43", 2), visible_numbers("0,7", 2)
    ([0, 1], [0])
    """
    everything = list(range(count))
    if variable is None:
        return everything
    names = [name.strip() for name in variable.split(",") if name.strip()]
    if not all(name.isdecimal() for name in names):
        return everything
    return sorted({int(name) for name in names} & set(everything))


@dataclass(slots=True)
class Machine:
    """The machine that a process trains on."""

    folder: Path
    """Where the run is stored: of its disk."""
    gpus: Gpus = field(default_factory=Gpus.here)
    _process: psutil.Process = field(default_factory=psutil.Process)
    _before: tuple[float, float, float] = field(init=False)
    """Clock, processor seconds of this process, bytes that all disks moved: at the last reading."""

    def __post_init__(self) -> None:
        psutil.cpu_percent(interval=None)  # the first answer is about nothing
        self._before = self._counted()

    def take_metrics(self) -> dict[str, float]:
        """How busy it was since the last call, and how full it is now."""
        now, before = self._counted(), self._before
        self._before = now
        seconds, processor_s, moved = (b - a for a, b in zip(before, now, strict=True))
        per_second = 1 / seconds if seconds > 0 else math.nan
        return {
            "system/cpu_frac": psutil.cpu_percent(interval=None) / 100,
            "system/trainer_cores": processor_s * per_second,
            "system/memory_frac": psutil.virtual_memory().percent / 100,
            "system/trainer_memory_gb": self._process.memory_info().rss / GIGABYTE,
            "system/disk_mb_per_s": moved * per_second / MEGABYTE,
            "system/disk_free_gb": self._free(),
        } | self.gpus.metrics()

    def _counted(self) -> tuple[float, float, float]:
        times, disks = self._process.cpu_times(), psutil.disk_io_counters()
        moved = math.nan if disks is None else float(disks.read_bytes + disks.write_bytes)
        return time.monotonic(), times.user + times.system, moved

    def _free(self) -> float:
        try:
            return float(psutil.disk_usage(str(self.folder)).free) / GIGABYTE
        except OSError:
            return math.nan
