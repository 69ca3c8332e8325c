"""How busy the machine was: what is read, and NaN for what a machine does not tell."""

from __future__ import annotations

import doctest
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from echoscope.diagnostics.catalogue import LISTED, metric
from echoscope.diagnostics.measure import machine
from echoscope.diagnostics.measure.machine import Gpus, Machine


class NvmlError(Exception):
    pass


def nvml(**answers: Any) -> SimpleNamespace:
    """A driver with GPUs that each tell the same; an exception as an answer is raised."""

    def telling(name: str) -> Any:
        def tell(handle: object) -> Any:
            if isinstance(answers[name], Exception):
                raise answers[name]
            return answers[name]

        return tell

    return SimpleNamespace(NVMLError=NvmlError, **{name: telling(name) for name in answers})


def gpus(**answers: Any) -> Gpus:
    told = {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=75),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=20, total=80),
        "nvmlDeviceGetPowerUsage": 350_000,
    }
    return Gpus(nvml(**(told | answers)), {1: object()})


def test_a_reading_is_of_this_process_and_this_machine(tmp_path: Path) -> None:
    read = Machine(tmp_path, gpus=Gpus())
    sum(n * n for n in range(300_000))
    values = read.take_metrics()
    memory = psutil.Process().memory_info().rss / 1e9
    assert values["system/trainer_memory_gb"] == pytest.approx(memory, rel=0.2)
    assert 0 < values["system/trainer_cores"] < 2
    assert 0 <= values["system/cpu_frac"] <= 1
    assert 0 < values["system/memory_frac"] < 1
    assert values["system/disk_free_gb"] > 0


def test_a_gpu_tells_its_work_its_memory_and_its_power() -> None:
    assert gpus().metrics() == {
        "system/gpu/1/busy_frac": 0.75,
        "system/gpu/1/memory_frac": 0.25,
        "system/gpu/1/power_w": 350.0,
    }


def test_what_a_card_does_not_tell_is_nan() -> None:
    values = gpus(nvmlDeviceGetPowerUsage=NvmlError("not supported")).metrics()
    assert values["system/gpu/1/busy_frac"] == 0.75
    assert math.isnan(values["system/gpu/1/power_w"])


def test_a_machine_without_disks_or_a_folder_that_is_gone_has_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    values = Machine(tmp_path / "gone", gpus=Gpus()).take_metrics()
    assert math.isnan(values["system/disk_mb_per_s"])
    assert math.isnan(values["system/disk_free_gb"])


def test_every_value_is_in_the_catalogue(tmp_path: Path) -> None:
    for key in Machine(tmp_path, gpus=gpus()).take_metrics():
        assert metric(key).help
        assert metric(key).key in LISTED


def test_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(machine)
    assert results.attempted > 0
    assert results.failed == 0
