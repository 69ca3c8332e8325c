"""Runs at a W&B server, asked by wandb's own public client; `make test-sinks`."""

from __future__ import annotations

import importlib.util
import os
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wandb_server import WandbServer, wandb_server

if os.environ.get("ECHOSCOPE_SINKS") != "required" and importlib.util.find_spec("wandb") is None:
    pytest.skip("needs wandb: make test-sinks", allow_module_level=True)

from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read import wandb_address
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.wandb_address import PAGE, read_address
from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.reader import open_run
from echoscope.watch import wandb_run
from echoscope.watch.watching import Watch

ADDRESS = "wandb:lab/ragen/lake0001"
KEY = "0" * 40


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WandbServer]:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    with wandb_server() as served:
        monkeypatch.setenv("WANDB_BASE_URL", served.url)
        yield served


def rows(number: int) -> list[dict[str, float]]:
    return [
        {"_step": step, "_runtime": 2.0 * step, "actor/entropy": 1.0 / (1 + step)}
        for step in range(number)
    ]


def test_all_pages_of_a_run_are_read_with_the_key_of_the_environment(server: WandbServer) -> None:
    server.rows = rows(2 * PAGE + 3)
    server.rows[5]["actor/entropy"] = float("nan")
    run = read_address(ADDRESS)
    assert run.name == "lake"
    assert run.table.num_rows == 2 * PAGE + 3
    assert run.table.columns["policy/entropy"][[0, 1, -1]].tolist() == pytest.approx(
        [1.0, 0.5, 1.0 / (2 * PAGE + 3)]
    )
    assert len(server.pages) == 3
    assert server.authorizations == {f"Basic {b64encode(f'api:{KEY}'.encode()).decode()}"}


def test_diagnose_and_import_take_the_address(server: WandbServer, tmp_path: Path) -> None:
    server.rows = rows(12)
    assert diagnose(ADDRESS).last_step == 11
    for _ in range(2):
        import_path(Path(ADDRESS), tmp_path / "run")
    reader = open_run(tmp_path / "run")
    steps, values = reader.metrics("policy/entropy")
    assert steps.tolist() == list(range(12))
    assert values[[0, 1]].tolist() == [1.0, 0.5]
    assert reader.info().attempt == 1


def refused(message: str, address: str = ADDRESS, timeout_s: float = 30.0) -> None:
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wandb_address, "TIMEOUT_S", timeout_s)
        with pytest.raises(MetricsFileError, match=message) as caught:
            read_address(address)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begun < timeout_s + 90.0  # wandb by itself retries for hours


def test_a_run_that_is_not_there_is_said(server: WandbServer) -> None:
    refused("no such run, or .*take ENTITY, PROJECT and RUN", "wandb:lab/ragen/other")


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_refuses_is_said_with_its_words(server: WandbServer, status: int) -> None:
    server.status = status
    refused("refuses the key .*no such key.*: set WANDB_API_KEY, or run `wandb login`")


@pytest.mark.parametrize("status", [429, 500])
def test_a_server_that_fails_is_given_up(server: WandbServer, status: int) -> None:
    server.status = status
    refused("no answer within 8 s|W&B answers", timeout_s=8.0)


def test_a_growing_run_is_watched_to_its_end(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_run, "ASK_S", 0.1)
    monkeypatch.setattr(wandb_run, "SHARE", 0.0)
    messages: list[str] = []
    watch = Watch(Path(ADDRESS), tmp_path / "run", on_message=messages.append)

    def look_until(is_so: Callable[[], bool]) -> None:
        while not is_so():
            watch.look()
            time.sleep(0.05)

    server.state, server.rows = "running", rows(3)
    look_until(lambda: watch.last_step == 2)
    server.rows = rows(5)
    look_until(lambda: watch.last_step == 4)
    server.state, server.rows = "finished", rows(6)
    look_until(lambda: watch.source.is_ended)
    watch.close()
    assert open_run(tmp_path / "run").metrics("policy/entropy")[0].tolist() == list(range(6))
    assert messages[-1] == "W&B says that the run finished"


def test_a_server_that_hangs_is_given_up(server: WandbServer) -> None:
    server.delay_s = 600.0
    refused("no answer within 4 s", timeout_s=4.0)


def test_without_a_key_it_says_how_to_give_one(
    server: WandbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    refused("set WANDB_API_KEY, or run `wandb login`")
