"""A policy's weights on their way to vLLM: files in shared memory, or on a shared disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from echoscope.text.amounts import memory_size

from ...config.loading import ConfigError
from ..base import EngineError

SHARED_MEMORY = Path("/dev/shm")
"""Files here never touch a disk; where it does not exist, the folder for temporary files serves."""
_PREFIX, _LOCK = "echoscope-engine-", "lock"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for."""


class SharedFolder:
    """An empty folder in shared memory that only this user can read, until `remove`.

    Folders whose process was killed are removed when the next one is made: a lock tells them. On a
    disk of several machines they stay, as a lock of another machine may not be seen.

    Args:
        needed: bytes that it will hold. Where shared memory has no room for them, as in a
            container with Docker's default of 64 MB, the folder for temporary files serves.
        root: where it lies instead.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, needed: int = 0, root: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root or self._own_root(needed)))
        self._lock = (self.path / _LOCK).open("wb")
        if root is None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    @staticmethod
    def _own_root(needed: int) -> Path:
        temporary = Path(tempfile.gettempdir())
        usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
        for root in (SHARED_MEMORY, temporary) if usable else (temporary,):
            for old in root.glob(f"{_PREFIX}*/{_LOCK}"):
                _remove_if_left(old)
        has_room = usable and shutil.disk_usage(SHARED_MEMORY).free >= needed
        return SHARED_MEMORY if has_room else temporary

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_left(lock: Path) -> None:
    try:
        with lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # its process lives, or another user's
    shutil.rmtree(lock.parent, ignore_errors=True)


def num_bytes(model: PreTrainedModel | PeftModel) -> int:
    """Bytes that the weights take on their way, the adapters alone where there are some.

    Two adapters lie in the folder for a moment.
    """
    parameters: list[Tensor] = list(model.parameters())
    if isinstance(model, PeftModel):
        return 2 * sum(p.nbytes for p in parameters if p.requires_grad)
    return sum(p.nbytes for p in parameters)


class WeightFiles:
    """The weights of a policy as files, written once for all servers that read them.

    Whole weights are gone as soon as all servers have them. Adapters stay until the next ones are
    loaded: a server may read them again.

    Args:
        model: the policy; its size decides where the files lie.
        folder: where they lie instead: on a disk that servers of other machines see.

    Raises:
        ConfigError: there is no such folder, or it cannot be written.
    """

    def __init__(self, model: PreTrainedModel | PeftModel, folder: str | None = None) -> None:
        try:
            root = None if folder is None else Path(folder).absolute()
            self._folder = SharedFolder(num_bytes(model), root)
        except OSError as error:
            raise ConfigError(
                f"engine.weights_folder is {folder}, where nothing can be written "
                f"({error.strerror}): make that folder on a disk that the servers see"
            ) from None
        self._num_kept = 1 if isinstance(model, PeftModel) else 0
        self._lock = threading.Lock()
        self._written: list[_Written] = []
        self._is_current = False
        self._number = 0

    @contextlib.contextmanager
    def reading(self, model: PreTrainedModel | PeftModel) -> Iterator[Path]:
        """A model folder with the present weights, or adapters; it stays while it is read.

        Raises:
            EngineError: there is no room for them.
        """
        with self._lock:
            if not self._is_current:
                self._number += 1
                path = self._folder.path / f"weights-{self._number}"
                _save(model, path)
                self._written.append(_Written(path))
                self._is_current = True
            files = self._written[-1]
            files.num_readers += 1
        try:
            yield files.path
        finally:
            with self._lock:
                files.num_readers -= 1
                self._clear()

    def are_loaded(self) -> None:
        """All servers have them: the next that asks gets the weights of then."""
        with self._lock:
            self._is_current = False
            self._clear()

    def remove(self) -> None:
        self._folder.remove()

    def _clear(self) -> None:
        num_needed = max(self._num_kept, int(self._is_current))
        for files in self._written[: len(self._written) - num_needed]:
            if not files.num_readers:
                shutil.rmtree(files.path, ignore_errors=True)
                self._written.remove(files)


@dataclass(slots=True, eq=False)
class _Written:
    path: Path
    num_readers: int = 0


def _save(model: PreTrainedModel | PeftModel, path: Path) -> None:
    needed, free = num_bytes(model), shutil.disk_usage(path.parent).free
    if free < needed:
        raise EngineError(
            f"the weights take {memory_size(needed)} on their way to the engine, but {path.parent} "
            f"has {memory_size(free)} free: make room there, or in shared memory (a container: "
            "docker run --shm-size), or set engine.kind=hf"
        )
    model.save_pretrained(str(path))


def adapter_settings(model: PeftModel) -> dict[str, Any]:
    """What vLLM must make room for.

    Raises:
        ValueError: adapters that vLLM cannot sample with.
    """
    config = model.active_peft_config
    rank = next((supported for supported in LORA_RANKS if supported >= config.r), None)
    if rank is None:
        raise ValueError(
            f"model.lora.rank is {config.r}, but vLLM takes at most {LORA_RANKS[-1]}: lower it, or "
            "set engine.kind=hf"
        )
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
