"""The processes of a run that trains on several ranks: started here, or by torchrun.

Rank 0 is the run. It sends each call to the other ranks and joins in it; they wait for the next. A
rank that ends takes the run with it: what it was doing cannot be done without it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ...config.loading import ConfigError
from .launched import PARENT, launched_rank, launched_size
from .world import World

STALLED = datetime.timedelta(minutes=10)
"""A rank that does not join a collective within this time has failed."""
_WAITS = datetime.timedelta(days=30)
"""Of the other ranks for the next call: rollouts and evaluations may take long."""
_JOIN = datetime.timedelta(minutes=10)
_END_WITHIN_S = 10.0
_LOOK_S = 2.0
_LOOK_EVERY_S = 0.2
_REASON = "failed/{}"
_DEVICE = "device"
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Variable by which torchrun says that it serves the store, and not rank 0."""


class RankError(RuntimeError):
    """Another rank ended or failed; one sentence."""


def is_of_another_rank(error: Exception) -> bool:
    """A collective failed because a rank that should have joined it is gone or silent."""
    if isinstance(error, (dist.DistError, pickle.UnpicklingError)):  # half a call came
        return True
    signs = ("gloo", "NCCL", "Connection", "Timed out")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


@dataclass(slots=True, kw_only=True)
class Ranks:
    """The process groups of this rank, and on rank 0 the processes that it has started."""

    world: World
    store: dist.Store
    calls: dist.ProcessGroup
    """Over the network that any machine has; the tensors of training go over the default group."""
    processes: tuple[subprocess.Popen[bytes], ...] = ()

    def send(self, name: str, arguments: Any) -> None:
        """Tell the other ranks what to do next.

        Raises:
            RankError: one of them is gone.
        """
        with self.failing():
            dist.broadcast_object_list([(name, arguments)], src=0, group=self.calls)

    def receive(self) -> tuple[str, Any]:
        """What rank 0 wants done next."""
        held: list[Any] = [None]
        dist.broadcast_object_list(held, src=0, group=self.calls)
        name, arguments = held[0]
        return name, arguments

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Turn the failure of a collective into the reason of the rank that caused it."""
        try:
            yield
        except RuntimeError as error:
            if not is_of_another_rank(error):
                raise
            raise RankError(self._why()) from error

    def report(self, error: BaseException) -> None:
        """Leave the reason of this rank's end to rank 0."""
        text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        self.store.set(_REASON.format(self.world.rank), text)

    def reported(self) -> str | None:
        """What the first rank that failed by itself has said of it."""
        for rank in range(self.world.size):
            key = _REASON.format(rank)
            if self.store.check([key]):
                return f"rank {rank} failed: {self.store.get(key).decode()}"
        return None

    def close(self) -> None:
        """End the other ranks, gently first."""
        with contextlib.suppress(RankError, RuntimeError):
            self.send("close", None)
        deadline = time.monotonic() + _END_WITHIN_S
        for process in self.processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.leave()

    def leave(self) -> None:
        """End this rank's part of the process groups; their threads must not outlive them."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _why(self) -> str:
        """Which rank failed first, and why."""
        way_out = "resume the run from its last checkpoint"
        deadline = time.monotonic() + _LOOK_S  # a process that is killed takes a moment to be gone
        while time.monotonic() < deadline:
            for rank, process in enumerate(self.processes, 1):
                code = process.poll()
                if code is not None and code < 0:
                    return f"rank {rank} was ended by signal {-code}: {way_out}"
            if (reason := self.reported()) is not None:
                return reason
            time.sleep(0.05)
        return f"a rank does not answer: {way_out}"


def check_ranks(size: int, device: str) -> None:
    """Refuse more ranks than there are devices for.

    Raises:
        ConfigError: it names the way out.
    """
    num_devices = torch.cuda.device_count()
    if device == "cuda" and not launched_size() and size > num_devices:
        raise ConfigError(
            f"trainer.ranks is {size}, but torch sees {num_devices} CUDA devices here: set "
            f"trainer.ranks={num_devices}, or start ranks on several machines with torchrun"
        )


def start_ranks(size: int, device: str) -> Ranks:
    """Start `size - 1` processes beside this one, or join those that torchrun has started.

    Raises:
        RankError: one of them did not come up.
    """
    if launched_size():
        return join(device)
    store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    store.set(_DEVICE, device)
    threads = max(1, (os.cpu_count() or 1) // size)
    processes = tuple(
        subprocess.Popen(
            [sys.executable, "-m", "echoscope.core.update.learners.worker"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                PARENT: str(os.getpid()),
                _AGENT_STORE: "True",
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
            },
        )
        for rank in range(1, size)
    )
    try:
        return _joined_by_all(store, World(rank=0, size=size), device, processes)
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise


def _joined_by_all(
    store: dist.Store, world: World, device: str, processes: tuple[subprocess.Popen[bytes], ...]
) -> Ranks:
    """As `_joined`, but for a rank that ends on the way: nothing else would notice for minutes."""
    results: list[Ranks] = []
    thread = threading.Thread(
        target=lambda: results.append(_joined(store, world, device, processes)), daemon=True
    )
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_EVERY_S)
        for rank, process in enumerate(processes, 1):
            if process.poll() is not None:
                raise RankError(f"rank {rank} ended while it started: {_how(process)}")
    if not results:
        raise RankError("the ranks could not be brought together; the reason stands above")
    _use_device(device)  # CUDA's is a thread's own
    return results[0]


def _how(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _use_device(device: str) -> None:
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))


def end_with_parent() -> None:
    """End this process when the one that has started it ends, whatever it waits for."""
    parent = int(os.environ.get(PARENT, os.getppid()))  # it may have ended since it started us

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def join(device: str | None = None) -> Ranks:
    """Join the ranks that the environment names: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

    Args:
        device: of rank 0, which tells the others.
    """
    world = World(rank=launched_rank(), size=launched_size())
    has_store = os.environ.get(_AGENT_STORE) == "True"
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world.size,
        is_master=world.rank == 0 and not has_store,
        timeout=_JOIN,
        wait_for_workers=False,
    )
    if device is not None:
        store.set(_DEVICE, device)
    return _joined(store, world, store.get(_DEVICE).decode(), ())


def _joined(
    store: dist.Store, world: World, device: str, processes: tuple[subprocess.Popen[bytes], ...]
) -> Ranks:
    _use_device(device)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("echoscope", store),
        rank=world.rank,
        world_size=world.size,
        timeout=STALLED,
    )
    waits = _WAITS if world.rank else STALLED  # rank 0 waits for nobody's next call
    calls = dist.new_group(backend="gloo", timeout=waits)
    return Ranks(world=world, store=store, calls=calls, processes=processes)
