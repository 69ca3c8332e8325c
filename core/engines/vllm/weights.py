"""A policy's weights on their way to vLLM: files in shared memory."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from echoscope.text.amounts import memory_size

from ..base import EngineError

SHARED_MEMORY = Path("/dev/shm")
"""Files here never touch a disk; where it does not exist, the folder for temporary files serves."""
_PREFIX, _LOCK = "echoscope-engine-", "lock"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for."""


class SharedFolder:
    """An empty folder in shared memory that only this user can read, until `remove`.

    Folders whose process was killed are removed when the next one is made: a lock tells them.

    Args:
        needed: bytes that it will hold. Where shared memory has no room for them, as in a
            container with Docker's default of 64 MB, the folder for temporary files serves.
    """

    def __init__(self, needed: int = 0) -> None:
        temporary = Path(tempfile.gettempdir())
        usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
        for root in (SHARED_MEMORY, temporary) if usable else (temporary,):
            for old in root.glob(f"{_PREFIX}*/{_LOCK}"):
                _remove_if_left(old)
        has_room = usable and shutil.disk_usage(SHARED_MEMORY).free >= needed
        root = SHARED_MEMORY if has_room else temporary
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        self._lock = (self.path / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

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


def save_weights(model: PreTrainedModel, folder: Path) -> Path:
    """The weights as a model folder, `weights` in `folder`, which is written over.

    Raises:
        EngineError: there is no room for them.
    """
    path = folder / "weights"
    shutil.rmtree(path, ignore_errors=True)
    needed, free = num_bytes(model), shutil.disk_usage(folder).free
    if free < needed:
        raise EngineError(
            f"the weights take {memory_size(needed)} on their way to the engine, but {folder} has "
            f"{memory_size(free)} free: make room there, or in shared memory (a container: docker "
            "run --shm-size), or set engine.kind=hf"
        )
    model.save_pretrained(path)
    return path


def save_adapter(model: PeftModel, folder: Path, number: int) -> Path:
    """The adapters alone, as a folder of peft's."""
    path = folder / f"adapter-{number}"
    model.save_pretrained(str(path))
    return path


def adapter_settings(model: PeftModel) -> dict[str, Any]:
    """What vLLM must make room for.

    Raises:
        ValueError: adapters that vLLM cannot sample with.
    """
    config = model.active_peft_config
    if getattr(config, "r", None) is None:
        raise ValueError(
            f"vLLM samples with LoRA adapters only, not with {config.peft_type}: set engine.kind=hf"
        )
    rank = next((known for known in LORA_RANKS if known >= config.r), None)
    if rank is None:
        raise ValueError(
            f"model.lora.rank is {config.r}, but vLLM takes at most {LORA_RANKS[-1]}: lower it, or "
            "set engine.kind=hf"
        )
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
