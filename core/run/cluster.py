"""A run whose ranks a Ray cluster places, and places again after a node was lost.

This process is the driver: it trains nothing. Ray Train reserves a place for each rank; there a
worker starts `echoscope train` as torchrun would, and rank 0 is the run. When a rank or a node is
lost, all ranks end, and the driver asks for new places: rank 0 resumes the run from its last
checkpoint. The run's folder must lie on a disk that all nodes see, under the same path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from echoscope.store.errors import StoreError
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAction
from echoscope.store.steer.commands import new_command, post

from ..config.settings import RunConfig
from ..engines.ray.session import connected, first_sentence
from ..update.learners.launched import PARENT

FOLDER = ".ray"
"""Beside the run: what rank 0 has printed, and Ray Train's own files."""
MOST_IN_VAIN = 3
"""Attempts in a row without a new step; then the run is given up."""
_PAUSE_S = 3.0
_LOOK_EVERY_S = 0.25
_ENDED = "finished", "stopped"


class ClusterError(RuntimeError):
    """The run cannot go on on the cluster; one sentence."""


def train_on_cluster(
    config: RunConfig,
    path: Path,
    begin: Sequence[str],
    go_on: Sequence[str],
    say: Callable[[str], None],
) -> str:
    """Train the run at `path` on ranks that Ray places; returns its final status.

    Args:
        begin: words of the command that starts the run.
        go_on: words of the command that resumes it.
        say: told in one sentence what happens to the ranks.

    Raises:
        ConfigError: Ray is missing, or no cluster answers.
        ClusterError: attempt after attempt ended without a new step.
    """
    trainer = config.trainer
    ray, is_own = connected(None, num_cpus=trainer.ranks * trainer.cpus_per_rank + 1)
    try:
        num_in_vain, (last_step, _) = 0, _stands(path)
        while True:
            command = begin if last_step is None else go_on
            reason = _attempt(ray, config, command, path, say)
            step, status = _stands(path)
            if not reason or status in _ENDED:
                return status
            num_in_vain = num_in_vain + 1 if step == last_step else 0
            last_step = step
            if num_in_vain == MOST_IN_VAIN:
                raise ClusterError(
                    f"{MOST_IN_VAIN} attempts in a row ended without a new step; the last: {reason}"
                )
            say(
                f"the ranks were lost ({reason}); the last stored step is "
                f"{'none' if step is None else step}; they are placed again"
            )
            time.sleep(_PAUSE_S)
    finally:
        if is_own:
            ray.shutdown()


def _attempt(
    ray: Any, config: RunConfig, command: Sequence[str], path: Path, say: Callable[[str], None]
) -> str:
    """Place the ranks and wait for their end; why they ended, or "" if the run came to its end."""
    from ray.train import RunConfig as RayRunConfig
    from ray.train import ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    trainer = config.trainer
    storage = path.absolute().parent / FOLDER
    log = storage / path.name / "rank0.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    on_gpu = ray.cluster_resources().get("GPU", 0) > 0
    placing = DataParallelTrainer(
        run_rank,
        train_loop_config={"words": list(command), "folder": str(Path.cwd()), "log": str(log)},
        scaling_config=ScalingConfig(
            num_workers=trainer.ranks,
            use_gpu=on_gpu,
            resources_per_worker={"CPU": trainer.cpus_per_rank, **({"GPU": 1} if on_gpu else {})},
        ),
        run_config=RayRunConfig(name=path.name, storage_path=str(storage)),
    )
    errors: list[BaseException] = []

    def fit() -> None:
        try:
            placing.fit()
        except BaseException as error:  # noqa: BLE001 - it becomes the reason
            errors.append(error)

    # In a thread of its own: Ray Train would end all ranks at Ctrl-C, in the middle of a step.
    thread = threading.Thread(target=fit, name="echoscope-ray-train", daemon=True)
    lines = _Lines(log)
    with _ctrl_c_stops(path, say):
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_EVERY_S)
            for line in lines.new():
                say(line)
    return _reason(errors[0]) if errors else ""


def run_rank(order: dict[str, Any]) -> None:
    """What a worker of Ray Train runs: one rank, in a process of its own that ends with it.

    Raises:
        RuntimeError: the rank ended before the run did.
    """
    import ray
    import ray.train
    from ray.train import collective

    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    here = (ray.util.get_node_ip_address(), _free_port()) if rank == 0 else None
    host, port = collective.broadcast_from_rank_zero(here)
    folder = Path(order["folder"])
    output = open(order["log"], "ab") if rank == 0 else None  # noqa: SIM115 - the process's own
    process = subprocess.Popen(
        [sys.executable, "-m", "echoscope", "train", *order["words"]],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=folder if folder.is_dir() else None,
        env=os.environ
        | {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(context.get_local_rank()),
            "MASTER_ADDR": str(host),
            "MASTER_PORT": str(port),
            "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
            PARENT: str(os.getpid()),
        },
    )
    if output is not None:
        output.close()
    if code := process.wait():
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise RuntimeError(f"rank {rank} ended {how}")


class _Lines:
    """What was added to a file of text since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size if path.exists() else 0

    def new(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._size)
            whole, end, _ = file.read().rpartition(b"\n")
        self._size += len(whole) + len(end)
        return whole.decode("utf-8", "replace").splitlines()


@contextlib.contextmanager
def _ctrl_c_stops(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C asks the run to stop, as in one process: after this step, then at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[CommandAction] = []

    def ask(*_: object) -> None:
        if len(asked) == 2:
            raise KeyboardInterrupt
        action = CommandAction.STOP_NOW if asked else CommandAction.STOP
        asked.append(action)
        if _stands(path)[0] is None:
            raise KeyboardInterrupt
        post(path, new_command(path.name, action, issued_by="terminal"))
        say(f"asked the run for: {action.value}; press Ctrl-C again to be quicker")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stands(path: Path) -> tuple[int | None, str]:
    """The last step that is stored, None where the run has not begun, and the status."""
    try:
        info = open_run(path).info()
    except StoreError:
        return None, "failed"
    return info.last_step, info.status


def _reason(error: BaseException) -> str:
    """What Ray Train says of the first worker that failed."""
    failures = getattr(error, "worker_failures", None) or {}
    told = [first_sentence(getattr(f, "cause", None) or f) for f in failures.values()]
    return told[0] if told else first_sentence(error)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
