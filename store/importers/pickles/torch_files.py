"""Files of `torch.save`, and tensors in pickles, as numpy arrays; torch is not needed.

A file of `torch.save` is a zip with a pickle and one member per storage, or (before torch 1.6, and
for a tensor inside another pickle) five pickles followed by the storages. Storages are bytes; a
tensor is a place, a shape and strides in one of them. All three are checked against the bytes that
are there before an array is made.
"""

from __future__ import annotations

import io
import math
import mmap
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from .machine import Buffer, Machine, Name, PickleError, load, refusal, unwrapped

MAX_FILE = 1 << 30
_MAX_DEPTH = 4
"""Of files of `torch.save` in pickles in files of `torch.save`."""
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_MAX_MEMBERS = 200_000
_BFLOAT16 = "bfloat16"
_DTYPES = {
    "float64": "f8", "double": "f8", "float32": "f4", "float": "f4", "float16": "f2", "half": "f2",
    "int64": "i8", "long": "i8", "int32": "i4", "int": "i4", "int16": "i2", "short": "i2",
    "int8": "i1", "uint8": "u1", "bool": "?", "uint16": "u2", "uint32": "u4", "uint64": "u8",
    _BFLOAT16: "u2",
}  # fmt: skip
_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "BFloat16Storage": _BFLOAT16,
    "UntypedStorage": "uint8",
}  # fmt: skip


@dataclass(slots=True)
class _Storage:
    """The bytes of tensors, and of which type they are."""

    data: Buffer
    dtype: str
    order: str = "<"


class _ViewFile(io.RawIOBase):
    """A part of a file as a file, without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, len(self._data))[whence]
        if base + offset < 0:
            raise OSError("before the start")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._at + size
        block = bytes(self._data[self._at : end])
        self._at += len(block)
        return block


def machine_for_tensors(machine: Machine | None = None, depth: int = 0) -> Machine:
    """A machine that knows tensors as well.

    Args:
        machine: One whose bounds it shares.
        depth: How many files of `torch.save` are around this one.
    """
    made = Machine() if machine is None else Machine(left=machine.left, steps=machine.steps)
    made.calls = {**_CALLS, "torch.storage._load_from_bytes": _from_bytes(depth)}
    made.names = _NAMES
    return made


def read_pickled(path: Path) -> Any:
    """The values of a pickle or of a file of `torch.save`.

    Raises:
        PickleError: it asks for code, it is damaged, or it is too large.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if size > MAX_FILE:
        raise PickleError(f"a pickle of {size >> 20:,} MB; at most {MAX_FILE >> 20:,} MB are read")
    if not size:
        raise PickleError("the pickle is empty")
    with path.open("rb") as file:
        # Unmapped with the last array that shows a part of it.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return of_bytes(memoryview(mapped), Machine())


def of_bytes(data: memoryview, machine: Machine, depth: int = 0) -> Any:
    """The values of the bytes of a pickle or of a file of `torch.save`."""
    if depth > _MAX_DEPTH:
        raise PickleError(f"it holds more than {_MAX_DEPTH} pickles inside each other")
    own = machine_for_tensors(machine, depth)
    try:
        if bytes(data[:4]) == b"PK\x03\x04":
            return _of_zip(data, own)
        return _of_stream(data, own)
    finally:
        machine.left, machine.steps = own.left, own.steps


def _of_zip(data: memoryview, machine: Machine) -> Any:
    try:
        with zipfile.ZipFile(cast(BinaryIO, _ViewFile(data))) as archive:
            members = {info.filename: info for info in archive.infolist()[:_MAX_MEMBERS]}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise PickleError(f"the file of torch.save is damaged: {error}") from None
    main = next((name for name in members if name.endswith("/data.pkl")), None)
    if main is None:
        raise PickleError("it is a zip without data.pkl: no file of torch.save")
    root = main.removesuffix("data.pkl")
    order = ">" if bytes(_member(data, members.get(f"{root}byteorder"))) == b"big" else "<"

    def storage(identity: Any) -> _Storage:
        kind, key, dtype = _identity(identity)
        del kind
        info = members.get(f"{root}data/{key}")
        if info is None:
            raise PickleError(f"the storage {key[:20]} of a tensor is missing")
        return _Storage(_member(data, info), dtype, order)

    machine.storage = storage
    return load(_member(data, members[main]), machine)[0]


def _identity(identity: Any) -> tuple[str, str, str]:
    """(kind, key, type) of a storage."""
    kind, name, key = identity[0], identity[1], identity[2]
    if kind != "storage" or not isinstance(name, Name) or not isinstance(key, str):
        raise PickleError(refusal("a persistent id"))
    dtype = _STORAGES.get(name.name)
    if dtype is None:
        raise PickleError(f"it holds a tensor of type {name.name[:30]}")
    return kind, key, dtype


def _member(data: memoryview, info: zipfile.ZipInfo | None) -> memoryview:
    """The bytes of a member, which `torch.save` never packs: so there is nothing to blow up."""
    if info is None:
        return memoryview(b"")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise PickleError("a member is packed, as torch.save never does")
    header = bytes(data[info.header_offset : info.header_offset + _LOCAL_HEADER.size])
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise PickleError("the file of torch.save is damaged")
    *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    if start + info.file_size > len(data):
        raise PickleError("the file of torch.save is cut off")
    return data[start : start + info.file_size]


@dataclass(slots=True)
class _Promise:
    """Storages of the older form, whose bytes follow the pickle that names them."""

    storages: dict[str, _Storage] = field(default_factory=dict)

    def storage(self, identity: Any) -> _Storage:
        _, key, dtype = _identity(identity)
        return self.storages.setdefault(key, _Storage(b"", dtype))


def _of_stream(data: memoryview, machine: Machine) -> Any:
    """A pickle; or the five pickles and the storages of an older `torch.save`."""
    promise = _Promise()
    first, at = load(data, machine)
    if first != _LEGACY_MAGIC or type(first) is not int:
        return first
    _, at = load(data, machine, at)
    about, at = load(data, machine, at)
    order = "<" if not isinstance(about, dict) or about.get("little_endian") is not False else ">"
    machine.storage = promise.storage
    start, calls = at, machine.calls
    # The first time only to learn which storages there are, and where the pickle ends.
    machine.calls = dict.fromkeys(calls, _nothing)
    _, at = load(data, machine, start)
    machine.calls = calls
    keys, at = load(data, machine, at)
    for key in keys if isinstance(keys, list) else ():
        storage = promise.storages.get(key)
        if storage is None:
            raise PickleError("the older file of torch.save is damaged")
        count = int.from_bytes(data[at : at + 8], "little" if order == "<" else "big")
        size = count * np.dtype(_DTYPES[storage.dtype]).itemsize
        at += 8
        if size > len(data) - at:
            raise PickleError("the file of torch.save is cut off")
        storage.data, storage.order = data[at : at + size], order
        at += size
    return load(data, machine, start)[0]


def _nothing(machine: Machine, arguments: tuple[Any, ...]) -> None:
    return None


def _from_bytes(depth: int) -> Callable[[Machine, tuple[Any, ...]], Any]:
    def read(machine: Machine, arguments: tuple[Any, ...]) -> Any:
        return of_bytes(memoryview(arguments[0]), machine, depth + 1)

    return read


def _typed(storage: Any, dtype: str | None = None) -> np.ndarray[Any, Any]:
    """All elements of a storage, without a copy."""
    if not isinstance(storage, _Storage):
        raise TypeError
    kind = np.dtype(storage.order + _DTYPES[dtype or storage.dtype])
    usable = len(storage.data) // kind.itemsize * kind.itemsize
    return np.frombuffer(storage.data[:usable], dtype=kind)


def _tensor(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    """A tensor as an array: `(storage, offset, shape, strides, ...)`."""
    storage, offset, shape, strides = arguments[:4]
    return _strided(machine, _typed(storage), storage.dtype, offset, shape, strides)


def _tensor_v3(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    storage, offset, shape, strides, _, _, dtype = arguments[:7]
    if not isinstance(dtype, Name) or dtype.name not in _DTYPES:
        raise PickleError(f"it holds a tensor of type {str(dtype)[:30]}")
    return _strided(machine, _typed(storage, dtype.name), dtype.name, offset, shape, strides)


def _strided(
    machine: Machine,
    flat: np.ndarray[Any, Any],
    dtype: str,
    offset: Any,
    shape: Any,
    strides: Any,
) -> np.ndarray[Any, Any]:
    numbers = [offset, *shape, *strides]
    if len(shape) != len(strides) or len(shape) > 32:
        raise ValueError
    if not all(type(n) is int and 0 <= n < 2**40 for n in numbers):
        raise PickleError("the shape of a tensor is not possible")
    total = math.prod(shape)
    if not total:
        return np.empty(0, dtype=np.float64)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if last >= len(flat) or total > max(len(flat), 1 << 16):
        raise PickleError("a tensor is larger than its storage")
    item = flat.itemsize
    view = np.lib.stride_tricks.as_strided(
        flat[offset:], shape, [stride * item for stride in strides], writeable=False
    )
    if dtype == _BFLOAT16:
        machine.spend(8 * total)
        return (view.astype(np.uint32) << 16).view(np.float32)
    return view


def _size(machine: Machine, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arguments[0]) if arguments else ()


def _device(machine: Machine, arguments: tuple[Any, ...]) -> str:
    return ":".join(str(part)[:20] for part in arguments)


def _parameter(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    return arguments[0]


def _tensor_dict(machine: Machine, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The tensors of a TensorDict by name."""
    state = arguments[1]
    return dict(state["_tensordict"])


def _consolidated(machine: Machine, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The tensors of a TensorDict that was packed into one storage.

    Each leaf is `(dtype, shape, start, stop, padding)`, in bytes of the storage.
    """
    metadata, storage = arguments[0], arguments[1]
    if not isinstance(storage, np.ndarray) or storage.dtype != np.uint8 or storage.ndim != 1:
        raise TypeError
    out = {}
    raw = np.ascontiguousarray(storage)
    for name, leaf in metadata["leaves"].items():
        dtype = str(leaf[0]).removeprefix("torch.")
        shape, start, stop = leaf[1], leaf[2], leaf[3]
        if name.startswith("<NJT"):
            continue  # tensors of unequal rows: no trainer of these files writes them
        kind = np.dtype(_DTYPES[dtype])
        size = math.prod(shape) * kind.itemsize
        if not 0 <= start <= stop <= len(raw) or size > stop - start:
            raise PickleError("a tensor is larger than its storage")
        machine.spend(200)
        flat = raw[start : start + size].view(kind)
        strides = _contiguous(tuple(shape))
        out[str(name)] = _strided(machine, flat, dtype, 0, tuple(shape), strides)
    return out


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def packed_tensors(state: Any) -> dict[str, Any]:
    """The tensors of a batch as verl writes it where it serialises with numpy.

    Args:
        state: `(batch size, device, {name: (type, shape, bytes)})`.

    Raises:
        PickleError: it is nothing of the kind.
    """
    try:
        out = {}
        machine = Machine()
        for name, (dtype, shape, content) in state[2].items():
            raw = unwrapped(content)
            flat = np.frombuffer(raw, dtype=_DTYPES[dtype])
            size, strides = tuple(shape), _contiguous(tuple(shape))
            out[str(name)] = _strided(machine, flat, dtype, 0, size, strides)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise PickleError(f"the batch is damaged ({type(error).__name__})") from None
    return out


_CALLS: Mapping[str, Callable[[Machine, tuple[Any, ...]], Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": _size,
    "torch.device": _device,
    "tensordict._reductions._make_td": _tensor_dict,
    "tensordict._reductions._rebuild_tensordict_files_consolidated": _consolidated,
}
_NAMES = (
    frozenset(f"{module}.{name}" for module in ("torch", "torch.storage") for name in _STORAGES)
    | frozenset(f"torch.{name}" for name in _DTYPES)
    | {"tensordict._td.TensorDict", "torch.nn.parameter.Parameter"}
)
