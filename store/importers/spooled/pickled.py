"""Rollouts in pickles as JSON lines: RAGEN's batches (`.pkl`) and slime's debug files (`.pt`).

A pickle is a program that calls functions by their names. A child process runs it with an unpickler
that looks names up in `_NAMES` and nowhere else: the functions there build plain values and do
nothing besides. Tensors are read by torch, which is as strict (`weights_only=True`). numpy's own
functions are not among the names, since they trust the shapes and types that a pickle gives them.
The child has limits of memory and time, and can open neither a file nor a connection.
"""

from __future__ import annotations

import importlib.util
import io
import json
import math
import mmap
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from echoscope.text.limited_child import limit, serve, shared_children
from echoscope.text.strict_json import json_value

from ..lines import BadJsonError

MAX_FILE_BYTES = 1 << 30
MAX_MEMORY_BYTES = 2 << 30
MAX_CPU_S = 300
MAX_WALL_S = 900.0
_MAX_ROWS = 1_000_000
_WAY_OUT = (
    "set the trainer's output to JSON lines (RAGEN: output.format=jsonl; slime: write the samples "
    "as JSON lines), or convert the file in the trainer's own environment"
)
_SUMMED = ("rm_scores", "original_rm_scores", "token_level_scores", "token_level_rewards")
"""Rewards of each token. They are added up to one of the episode."""


class PickleError(ValueError):
    """A pickle that is not read, with the reason in words."""


def write_rollouts(path: Path, target: Path, most_bytes: int) -> None:
    """Write the episodes of a pickled file as JSON lines.

    Args:
        most_bytes: The largest size of what is written.

    Raises:
        BadJsonError: the file asks for code, it is damaged, too large, or holds no rollouts.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise BadJsonError(
            f"a pickle of {size >> 20:,} MB; at most {MAX_FILE_BYTES >> 20:,} MB are read"
        )
    question = {
        "path": str(path.absolute()),
        "target": str(target.absolute()),
        "most_bytes": most_bytes,
        "memory_bytes": MAX_MEMORY_BYTES,
        "cpu_s": MAX_CPU_S,
    }
    problem = shared_children(__name__).ask(question, MAX_WALL_S)
    if problem is None:
        problem = f"the pickle is damaged, or reading it takes more than {MAX_CPU_S} s; {_WAY_OUT}"
    if problem:
        raise BadJsonError(problem)


def work() -> None:
    """What the child does."""
    serve(_answer, _prepare)


def _prepare(question: Mapping[str, Any]) -> None:
    """Import torch where a file needs it, with all that it imports while it reads."""
    with open(question["path"], "rb") as file:
        if not _is_of_torch(file.read(16)):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"torch") < 0:
                    return
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    for is_zip in (True, False):
        buffer = io.BytesIO()
        torch.save([torch.zeros(1)], buffer, _use_new_zipfile_serialization=is_zip)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def _answer(question: Mapping[str, Any]) -> str:
    """Write the rows of a file; why that is not possible, or an empty text."""
    memory_bytes, most_bytes = question["memory_bytes"], question["most_bytes"]
    with open(question["path"], "rb") as file, open(question["target"], "x") as target:
        limit(
            memory_bytes=memory_bytes,
            cpu_s=question["cpu_s"],
            file_bytes=most_bytes,
            is_closed=True,
        )
        try:
            for row in rows_of(read(file)):
                target.write(json.dumps(row) + "\n")
            target.flush()
        except PickleError as error:
            return str(error)
        except RecursionError:
            return "its values are nested too deeply, or refer to themselves"
        except (MemoryError, OSError):
            return (
                f"it unpacks to more than {memory_bytes >> 20:,} MB in memory or "
                f"{most_bytes >> 20:,} MB of rows, as a bomb does; {_WAY_OUT}"
            )
    return ""


# --- The unpickler ------------------------------------------------------------------------------


def read(file: BinaryIO) -> Any:
    """The values of a pickle, or of a file that `torch.save` wrote.

    Raises:
        PickleError: it asks for a name that is not allowed, or it is damaged.
        MemoryError, RecursionError: it is too large.
    """
    start = file.tell()
    is_of_torch = _is_of_torch(file.read(16))
    file.seek(start)
    try:
        return _of_torch(file) if is_of_torch else _Unpickler(file).load()
    except (PickleError, MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 -- a hostile pickle may raise what it likes
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = refusal(asked[1]) if asked else f"the pickle is damaged ({type(error).__name__})"
        raise PickleError(reason) from None


def refusal(name: str) -> str:
    """The sentence about a name that is not allowed."""
    printable = "".join(c if c.isprintable() else "?" for c in name)[:80]
    return (
        f"this pickle asks for {printable}. Nothing of it was run: only tensors, numpy arrays and "
        f"plain containers are read, because any other name can run code; {_WAY_OUT}"
    )


class _Unpickler(pickle.Unpickler):
    """Knows the names of `_NAMES`."""

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in _NAMES:
            raise PickleError(refusal(full))
        return _NAMES[full]

    def persistent_load(self, identity: Any) -> Any:
        raise PickleError(refusal("a persistent id"))


class _Record:
    """An object of a class of somebody else's: its state, and nothing that the class could do."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Batch(_Record):
    """verl's DataProto."""


class _Dtype:
    """The type of a numpy array: numbers, texts or objects."""

    def __init__(self, text: str, *_: Any) -> None:
        if not re.fullmatch(r"[?biufOSU]\d{0,6}", text):
            raise PickleError(f"it holds a numpy array of type {text[:20]!r}")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        if state[1] in (">", "<"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """A numpy array, which is described first and filled then; one of objects becomes lists."""

    def __init__(self, *_: Any) -> None:
        self.value: Any = []

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        self.value = _array(content, kind, shape, "F" if is_fortran else "C")


def _array(content: Any, kind: _Dtype, shape: tuple[int, ...], order: str) -> Any:
    count = math.prod(shape)
    if not kind.dtype.hasobject:
        values = np.frombuffer(content, dtype=kind.dtype) if count else np.empty(0, kind.dtype)
        return values.reshape(shape, order="F" if order == "F" else "C")
    if not isinstance(content, list) or len(content) != count:
        raise ValueError(shape)
    for size in reversed(shape[1:] if count and order == "C" else ()):
        content = [content[start : start + size] for start in range(0, len(content), size)]
    return content


def _from_buffer(content: Any, kind: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.value = _array(content, kind, shape, order)
    return array


def _scalar(kind: _Dtype, content: Any) -> Any:
    return content if kind.dtype.hasobject else _array(content, kind, (1,), "C").tolist()[0]


def _encoded(text: str, codec: str) -> bytes:
    """Bytes, as protocols before 3 write them."""
    if codec not in ("latin1", "latin-1"):
        raise PickleError(refusal(f"the codec {codec}"))
    return text.encode("latin-1")


# --- Tensors ------------------------------------------------------------------------------------

_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How files of `torch.save` before torch 1.6 begin, and tensors in pickles: a number as a mark."""


def _is_of_torch(head: bytes) -> bool:
    return head.startswith(b"PK\x03\x04") or head[2:].startswith(_LEGACY)


def _of_torch(file: BinaryIO) -> Any:
    if "torch" not in sys.modules:
        raise PickleError("it holds tensors, which torch reads: pip install torch")
    import torch

    names: list[Any] = [(value, name) for name, value in _NAMES.items()]
    with torch.serialization.safe_globals(names):
        return torch.load(file, map_location="cpu", weights_only=True)


def _tensor(storage: Any, offset: int, shape: Any, strides: Any, *_: Any) -> _Array:
    import torch

    array = _Array()
    array.value = torch._utils._rebuild_tensor(storage, offset, shape, strides)
    return array


def _consolidated(metadata: Mapping[str, Any], storage: Any) -> dict[str, Any]:
    """The tensors of a TensorDict that was packed into one storage.

    Each leaf is `(dtype, shape, start, stop, padding)`, in bytes of the storage.
    """
    import torch

    tensors = {}
    for name, (dtype, shape, start, stop, *_) in metadata["leaves"].items():
        if name.startswith("<NJT"):
            continue  # tensors of unequal rows: no trainer of these files writes them
        kind = getattr(torch, str(dtype).removeprefix("torch."))
        size = math.prod(shape) * kind.itemsize
        if not 0 <= start <= start + size <= min(stop, len(storage)):
            raise PickleError("a tensor is larger than its storage")
        tensors[str(name)] = storage[start : start + size].clone().view(kind).reshape(tuple(shape))
    return tensors


_NAMES: Mapping[str, Any] = {
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _Array,
    **{
        f"numpy.{core}.{name}": value
        for core in ("core", "_core")
        for name, value in {
            "multiarray._reconstruct": _Array,
            "multiarray.scalar": _scalar,
            "numeric._frombuffer": _from_buffer,
        }.items()
    },
    "_codecs.encode": _encoded,
    "collections.OrderedDict": dict,
    "collections.defaultdict": lambda *_: {},
    **{
        f"{module}.{kind.__name__}": kind
        for module in ("builtins", "__builtin__")
        for kind in (set, frozenset, bytes, bytearray, list, dict, int, float)
    },
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch.storage._load_from_bytes": lambda content: _of_torch(io.BytesIO(content)),
    "torch.Size": tuple,
    "tensordict._td.TensorDict": _Record,
    "tensordict._reductions._make_td": lambda _, state: dict(state["_tensordict"]),
    "tensordict._reductions._rebuild_tensordict_files_consolidated": _consolidated,
    "verl.protocol.DataProto": _Batch,
    "PIL.Image.Image": _Record,
    "PIL.PngImagePlugin.PngImageFile": _Record,
}
"""Every name that a pickle may use, and what stands for it here."""


# --- The rows -----------------------------------------------------------------------------------


def rows_of(value: Any) -> Iterator[dict[str, Any]]:
    """The episodes of what a pickle holds.

    Raises:
        PickleError: it holds something else.
    """
    if isinstance(value, _Batch):
        yield from _batch_rows(value.state)
    elif isinstance(value, dict) and isinstance(value.get("samples"), list):
        for sample in value["samples"]:
            yield {"slime_rollout": plain(value.get("rollout_id")), "sample": plain(sample)}
    else:
        raise PickleError(
            "a pickle that holds neither a batch of RAGEN nor samples of slime. No other pickle is "
            "read: write its content as JSON lines or CSV"
        )


def plain(value: Any) -> Any:
    """A value that was read as JSON has it; NaN as None."""
    value = _unwrapped(value)
    if isinstance(value, dict):
        return {str(key)[:200]: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, bytes | bytearray):
        return f"[{len(value)} bytes]"
    return f"[{type(value).__name__}]" if isinstance(value, _Record) else json_value(value)


def _unwrapped(value: Any) -> Any:
    """An array as the array of numpy or the lists that it is; any other value as it is."""
    if isinstance(value, _Array):
        value = value.value
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    if value.numel() > max(value.untyped_storage().nbytes(), 1 << 16):
        raise PickleError("a tensor is larger than its storage")
    value = value.detach()
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy()


def _batch_rows(state: Any) -> Iterator[dict[str, Any]]:
    """One row for each entry of a batch of verl, with its part of every column."""
    if not isinstance(state, tuple) or len(state) != 3 or not isinstance(state[1], dict):
        raise PickleError("the batch is damaged: it has no columns")
    columns = {str(name): _unwrapped(column) for name, column in state[1].items()}
    tensors = _tensors(state[0])
    size = max((len(c) for c in columns.values() if isinstance(c, list | np.ndarray)), default=0)
    if "messages_list" not in columns and "history" not in columns:
        raise PickleError(
            "a batch of verl without the columns messages_list and history, which RAGEN writes: "
            "it has tokens, but no text"
        )
    if size > _MAX_ROWS:
        raise PickleError(f"a batch of {size:,} rows; at most {_MAX_ROWS:,} are read")
    shapes = {n: list(t.shape) for n, t in tensors.items() if n not in _SUMMED and t.ndim != 1}
    numbers = {
        name: t.reshape(size, -1).sum(axis=1, dtype="f8") if name in _SUMMED else t
        for name, t in tensors.items()
        if name not in shapes and len(t) == size
    }
    for index in range(size):
        yield {
            "dataproto_row": index,
            "columns": {
                name: plain(column[index])
                if isinstance(column, list | np.ndarray) and len(column) == size
                else None
                for name, column in columns.items()
            },
            "batch": {name: plain(tensor[index]) for name, tensor in numbers.items()},
            "tensors": shapes,
        }


def _tensors(batch: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a batch: a file of `torch.save`, or, where verl serialises with numpy,
    `(batch size, device, {name: (type, shape, bytes)})`."""
    tensors: Any = {}
    try:
        if isinstance(batch, bytes):
            tensors = read(io.BytesIO(batch))
        elif isinstance(batch, tuple):
            tensors = {
                name: _numbers(_unwrapped(content), dtype).reshape(tuple(shape))
                for name, (dtype, shape, content) in batch[2].items()
            }
        arrays = {str(name): _unwrapped(tensor) for name, tensor in tensors.items()}
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, PickleError):
            raise
        raise PickleError(f"the batch is damaged ({type(error).__name__})") from None
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _numbers(content: Any, dtype: str) -> np.ndarray[Any, Any]:
    """The values of a tensor from its bytes."""
    if dtype == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(content, dtype="u2").astype("u4") << 16).view("f4")
    if not re.fullmatch(r"u?int\d{1,2}|float\d{2}|bool", dtype):
        raise ValueError(dtype)
    return np.frombuffer(content, dtype=dtype)
