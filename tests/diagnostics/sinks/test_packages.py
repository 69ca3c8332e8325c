"""Runs written by wandb, tensorboardX and trackio themselves, and read back; `make test-sinks`."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from made_run import make_run

if os.environ.get("ECHOSCOPE_SINKS") != "required":
    for package in ("wandb", "tensorboardX", "trackio", "tensorboard"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: make test-sinks", allow_module_level=True)

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()  # read when trackio is first imported

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from echoscope.cli import app
from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import Diagnosis, diagnose
from echoscope.diagnostics.read.forms.wandb_file import WandbFile, rows_of
from echoscope.diagnostics.sinks import mirror as mirrors
from echoscope.diagnostics.sinks.mirror import Mirror, SinkStatus, read_status
from echoscope.diagnostics.sinks.settings import SinksConfig
from echoscope.store.records import AlarmState, StepMetrics

COLLAPSE = make("template_collapse", 0).table


def metrics(step: int, values: dict[str, float]) -> StepMetrics:
    return StepMetrics(
        run_id="run-1", step=step, phase="train", policy_version=0, wall_time=0.0, values=values
    )


def copy(path: Path, config: dict[str, Any], last: int = 10**9) -> tuple[Verdict, list[str], int]:
    """Copy the collapse up to a step; its verdict, what was said, and how many alarms came."""
    news: list[str] = []
    path.mkdir(exist_ok=True)
    settings = SinksConfig.model_validate(config)
    mirror = Mirror(settings, run_path=path, run_config={"steps": 60}, on_message=news.append)
    diagnosis, num_raised = Diagnosis(run_id="run-1"), 0
    for step, values in COLLAPSE.rows():
        if step > last:
            break
        alarms = diagnosis.observe(step, values)
        num_raised += sum(alarm.state is AlarmState.RAISED for alarm in alarms)
        mirror.step([metrics(step, values)], alarms=alarms, verdict=diagnosis.verdict)
    mirror.close("finished")
    return diagnosis.verdict(), news, num_raised


def copied_online(path: Path, timeout_s: float) -> tuple[list[str], float]:
    """As `copy` to W&B's server, in a process of its own: wandb reads its variables once.

    Returns:
        What was said, and how long the process took, in seconds, its end included.
    """
    begun = time.monotonic()
    command = [sys.executable, __file__, str(path), str(timeout_s)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "ECHOSCOPE_SINKS": "required"}
    out = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, timeout=100).stdout
    news: list[str] = json.loads(out)
    return news, time.monotonic() - begun


def status_of(path: Path, sink: Any) -> SinkStatus:
    status = read_status(path, sink)
    assert status is not None
    return status


def test_a_wandb_folder_read_again_holds_the_verdict_the_keys_and_the_alarms(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run-1"
    verdict, news, _ = copy(path, {"wandb": "offline", "project": "lake"})
    assert verdict.state.is_collapse
    assert news == []
    status = status_of(path, "wandb")
    assert (status.state, status.last_step) == ("finished", int(COLLAPSE.steps[-1]))
    (file,) = Path(status.where).glob("*.wandb")
    run = WandbFile()
    rows: dict[int, dict[str, float]] = {}
    with file.open("rb") as opened:
        for row in rows_of(opened, run):
            rows.setdefault(int(row["step"]), {}).update(row)
    assert run.num_damaged == 0
    assert run.identity == status.identity
    for step, values in COLLAPSE.rows():
        kept = {key: value for key, value in values.items() if value == value}
        assert kept.items() <= rows[step].items()
        if "policy/entropy" in kept:
            assert rows[step]["actor/entropy"] == kept["policy/entropy"]
    again = diagnose(Path(status.where))
    assert (again.state, again.kinds) == (verdict.state, verdict.kinds)


def test_a_run_that_goes_on_is_one_run_at_wandb(tmp_path: Path) -> None:
    config = {"wandb": "offline"}
    copy(tmp_path / "run-1", config, last=5)
    first = status_of(tmp_path / "run-1", "wandb")
    copy(tmp_path / "run-1", config)
    second = status_of(tmp_path / "run-1", "wandb")
    assert first.identity == second.identity
    assert first.where != second.where


def test_tensorboards_own_reader_finds_every_number_and_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "run-1"
    verdict, news, _ = copy(path, {"tensorboard": True})
    assert news == []
    events = EventAccumulator(status_of(path, "tensorboard").where)
    events.Reload()
    for key, tag in (
        ("policy/entropy", "policy/entropy"),
        ("policy/entropy", "actor/entropy"),
        ("info/first_turn/retrieval_accuracy@1", "info/first_turn/retrieval_accuracy_1"),
    ):
        if key not in COLLAPSE.columns:
            continue
        expected = {s: v[key] for s, v in COLLAPSE.rows() if v.get(key, float("nan")) == v.get(key)}
        written = {event.step: event.value for event in events.Scalars(tag)}
        assert written == pytest.approx(expected)
    text = events.Tensors("echoscope/verdict/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.replace("\\", "").startswith(verdict.text.splitlines()[0][:30])


def test_steps_that_are_repeated_replace_those_before_in_tensorboard(tmp_path: Path) -> None:
    config = {"tensorboard": True}
    for _ in range(2):
        copy(tmp_path / "run-1", config, last=5)
    events = EventAccumulator(str(tmp_path / "run-1" / "sinks" / "tensorboard"))
    events.Reload()
    steps = [event.step for event in events.Scalars("echoscope/level")]
    assert steps == [s for s, _ in COLLAPSE.rows() if s <= 5]


def trackio_says(folder: Path, *arguments: str) -> Any:
    script = [sys.executable, "-c", "from trackio.cli import main; main()"]
    env = os.environ | {"TRACKIO_DIR": str(folder)}
    out = subprocess.run([*script, *arguments, "--json"], env=env, capture_output=True, check=True)
    return json.loads(out.stdout)


def test_trackios_own_commands_show_the_run_its_numbers_and_alerts(tmp_path: Path) -> None:
    import trackio.utils

    path, folder = tmp_path / "run-1", Path(trackio.utils.TRACKIO_DIR)
    _, news, num_raised = copy(path, {"trackio": True, "project": "lake"})
    assert news == []
    name = status_of(path, "trackio").identity
    where = ("--project", "lake")
    assert name in json.dumps(trackio_says(folder, "list", "runs", *where))
    values = trackio_says(
        folder, "get", "metric", *where, "--run", name, "--metric", "policy/entropy"
    )
    expected = [values["policy/entropy"] for _, values in COLLAPSE.rows()]
    assert [row["value"] for row in values["values"]] == pytest.approx(expected)
    assert len(trackio_says(folder, "get", "alerts", *where)["alerts"]) == num_raised


def test_a_stored_run_is_copied_once_and_then_only_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path / "run-1", num_steps=3)
    mirror(path, "--to", "tensorboard")
    assert "copied 3 steps to tensorboard" in capsys.readouterr().out
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    mirror(path, "--to", "tensorboard")
    assert "Nothing to add: tensorboard has this run up to step" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    mirror(path, "--to", "wandb")
    status = status_of(path, "wandb")
    (table,) = list(Path(status.where).glob("files/media/table/episodes_*"))[:1]
    assert json.loads(table.read_text())["data"]


def mirror(*arguments: Any) -> None:
    app([str(word) for word in ("mirror", *arguments)], standalone_mode=False)


class Server:
    """A W&B server that answers every request alike; `delay_s` seconds late."""

    def __init__(self, status: int, delay_s: float = 0.0) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                time.sleep(delay_s)
                try:
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(b'{"errors": [{"message": "no"}]}')
                except OSError:
                    return

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    servers: list[Server] = []

    def begin(status: int, delay_s: float = 0.0) -> None:
        servers.append(Server(status, delay_s))
        monkeypatch.setenv("WANDB_BASE_URL", servers[-1].url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)

    yield begin
    for server in servers:
        server.server.shutdown()
        server.server.server_close()


def assert_the_run_went_on(path: Path, news: list[str], *phrases: str) -> None:
    status = status_of(path, "wandb")
    assert status.state == "failed"
    assert all(word in status.problem for word in phrases), status.problem
    assert len([line for line in news if "the run goes on" in line]) == 1


@pytest.mark.parametrize("status", [401, 404])
def test_a_server_that_refuses_is_said_and_the_run_goes_on(
    status: int, online: Any, tmp_path: Path
) -> None:
    online(status)
    news, _ = copied_online(tmp_path / "run-1", timeout_s=20.0)
    assert_the_run_went_on(tmp_path / "run-1", news)


def test_a_server_that_hangs_is_given_up(online: Any, tmp_path: Path) -> None:
    online(200, delay_s=3600.0)
    news, seconds = copied_online(tmp_path / "run-1", timeout_s=3.0)
    assert seconds < 60.0
    assert_the_run_went_on(tmp_path / "run-1", news, "no answer within 3 s")


def test_a_server_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    news, _ = copied_online(tmp_path / "run-1", timeout_s=5.0)
    assert_the_run_went_on(tmp_path / "run-1", news)


def test_without_a_key_wandbs_own_words_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    news, _ = copied_online(tmp_path / "run-1", timeout_s=20.0)
    assert_the_run_went_on(tmp_path / "run-1", news, "API key")


@pytest.mark.parametrize("sink", ["wandb", "tensorboard"])
def test_a_full_disk_is_said_and_the_run_goes_on(sink: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        (disk / "ballast").write_bytes(b"x" * 2_900_000)
        path = disk / "run-1"
        _, news, _ = copy(path, {sink: "offline" if sink == "wandb" else True})
        assert len(news) == 1
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


if __name__ == "__main__":
    mirrors.TIMEOUT_S = float(sys.argv[2])
    config = {"wandb": "online"}
    sys.stdout.write(json.dumps(copy(Path(sys.argv[1]), config)[1]))
