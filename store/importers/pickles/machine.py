"""Reads pickles without running them: numbers, texts, containers, numpy arrays and tensors.

A pickle is a program for a small stack machine, and two of its instructions call functions by name.
This file is a machine of its own for that program. It has no way to import or call anything: a name
is looked up in `CALLS` and `CLASSES`, whose entries are functions of this package that build plain
values, and every other name ends the reading. What the machine builds is bounded in memory and
steps, because a few bytes of a pickle may ask for gigabytes.

Tensors become numpy arrays (`torch_files.py` adds them): torch is not needed.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_MEMORY = 768 << 20
"""Estimated bytes of the values of one pickle."""
MAX_STEPS = 50_000_000
_MAX_DIGITS = 400
"""Of a number that is written as text."""
_MAX_LONG = 32
"""Bytes of an integer: `torch.save` marks its older files with one of 10."""
_MAX_NUMBER_KEYS = 10_000
"""Of a dict. Texts are hashed with a secret; numbers can be chosen so that all of them collide."""
_VIEW_BYTES = 64 << 10
"""Longer bytes are not copied."""
WHAT_TO_DO = (
    "set the trainer's output to JSON lines (RAGEN: output.format=jsonl; slime: write the samples "
    "as JSON lines), or convert the file in the trainer's own environment"
)

Buffer = bytes | bytearray | memoryview


class PickleError(ValueError):
    """A pickle that is not read, with the reason in words."""


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a function or class. Nothing is imported: it stays a name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True)
class Stranger:
    """An object of a class of `CLASSES`: its state, and nothing that the class could do."""

    kind: Name
    state: Any = None


@dataclass(slots=True)
class _Dtype:
    """The type of a numpy array while it is described."""

    dtype: np.dtype[Any]


@dataclass(slots=True)
class _Array:
    """A numpy array before its state is known."""

    value: Any = None


@dataclass(slots=True)
class Machine:
    """One reading. All pickles of a file share its bounds."""

    left: int = MAX_MEMORY
    steps: int = MAX_STEPS
    storage: Callable[[Any], Any] | None = None
    """What a persistent id stands for, in files of `torch.save`; None where ids are refused."""
    calls: Mapping[str, Callable[[Machine, tuple[Any, ...]], Any]] = field(default_factory=dict)
    """Further functions, by name."""
    names: frozenset[str] = frozenset()
    """Further names that are only arguments."""

    def spend(self, size: int) -> None:
        """Count the memory of a value.

        Raises:
            PickleError: the values together take too much.
        """
        self.left -= size
        if self.left < 0:
            raise PickleError(
                f"its values would take more than {MAX_MEMORY >> 20} MB of memory; {WHAT_TO_DO}"
            )

    def call(self, name: Any, arguments: Any) -> Any:
        """The plain value that a call of that name stands for."""
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise PickleError(refusal("a call of something that is no name"))
        function = self.calls.get(str(name)) or CALLS.get(str(name))
        if function is None:
            raise PickleError(refusal(str(name)))
        return function(self, arguments)


def refusal(wanted: str) -> str:
    """The sentence about a name that is not allowed."""
    shown = "".join(c if c.isprintable() else "?" for c in wanted)[:80]
    return (
        f"this pickle asks for {shown}. Nothing of it was run: only tensors, numpy arrays and "
        f"plain containers are read, because any other name can run code; {WHAT_TO_DO}"
    )


def load(data: Buffer, machine: Machine, start: int = 0) -> tuple[Any, int]:
    """The value of a pickle, and where the pickle ends.

    Args:
        data: The bytes.
        start: Where the pickle begins in them.

    Raises:
        PickleError: it asks for code, it is damaged, or it is too large.
    """
    try:
        return _run(data, machine, start)
    except PickleError:
        raise
    except (IndexError, KeyError, ValueError, TypeError, OverflowError, AttributeError) as error:
        raise PickleError(f"the pickle is damaged ({type(error).__name__})") from None
    except (struct.error, MemoryError, RecursionError) as error:
        raise PickleError(f"the pickle is damaged ({type(error).__name__})") from None


# --- The instructions ---------------------------------------------------------------------------

_BYTE_RUN = re.compile(rb"(?:K.){8,4096}", re.DOTALL)
_FLOAT_RUN = re.compile(rb"(?:G.{8}){8,4096}", re.DOTALL)
_FLOATS = np.dtype([("opcode", "u1"), ("value", ">f8")])
_SIZES = {
    ord("X"): "<I", 0x8C: "<B", 0x8D: "<Q",  # text
    ord("T"): "<I", ord("U"): "<B",  # text of Python 2
    ord("B"): "<I", ord("C"): "<B", 0x8E: "<Q", 0x96: "<Q",  # bytes
}  # fmt: skip
_TEXTS = frozenset((ord("X"), 0x8C, 0x8D))
_CONSTANTS: dict[int, Any] = {ord("N"): None, 0x88: True, 0x89: False, ord(")"): ()}
_FIXED = {ord("K"): "<B", ord("M"): "<H", ord("J"): "<i", ord("G"): ">d"}
_PUTS = {ord("q"): "<B", ord("r"): "<I"}
_GETS = {ord("h"): "<B", ord("j"): "<I"}
_SKIPPED = {0x80: 1, 0x95: 8}
"""Protocol and frame: how many bytes follow."""
_READERS = {
    code: struct.Struct(form)
    for table in (_SIZES, _FIXED, _PUTS, _GETS)
    for code, form in table.items()
}
_MARK = object()


def _run(data: Buffer, machine: Machine, start: int) -> tuple[Any, int]:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    at, end = start, len(data)
    while at < end:
        code = data[at]
        at += 1
        machine.steps -= 1
        if machine.steps < 0:
            raise PickleError(f"it has more than {MAX_STEPS:,} instructions; {WHAT_TO_DO}")
        if code in _FIXED:
            run = _run_of(code, data, at - 1)
            if run is not None:
                values, at = run
                machine.spend(40 * len(values))
                machine.steps -= len(values) // 8
                stack.extend(values)
                continue
            reader = _READERS[code]
            stack.append(reader.unpack_from(data, at)[0])
            at += reader.size
            machine.spend(40)
        elif code == 0x94:  # MEMOIZE
            machine.spend(64)
            memo[len(memo)] = _top(stack)
        elif code in _GETS:
            reader = _READERS[code]
            stack.append(memo[reader.unpack_from(data, at)[0]])
            at += reader.size
            machine.spend(8)
        elif code in _PUTS:
            reader = _READERS[code]
            machine.spend(64)
            memo[reader.unpack_from(data, at)[0]] = _top(stack)
            at += reader.size
        elif code in _SIZES:
            reader = _READERS[code]
            size = reader.unpack_from(data, at)[0]
            at += reader.size
            stack.append(_string(code, data, at, size, machine))
            at += size
        elif code in _CONSTANTS:
            machine.spend(8)
            stack.append(_CONSTANTS[code])
        elif code == ord("("):
            machine.spend(8)
            stack.append(_MARK)
        elif code == ord("."):
            return _top(stack), at
        elif code in _SKIPPED:
            at += _SKIPPED[code]
        elif code in _TEXT_LINES:
            at = _text_line(code, data, at, stack, memo, machine)
        elif code in (0x8A, 0x8B):
            at = _long(code, data, at, stack, machine)
        else:
            _REST.get(code, _unknown)(stack, machine)
    raise PickleError("the pickle is cut off")


def _top(stack: list[Any]) -> Any:
    if stack[-1] is _MARK:
        raise ValueError
    return stack[-1]


def _pop(stack: list[Any]) -> Any:
    if stack[-1] is _MARK:
        raise ValueError
    return stack.pop()


def _run_of(code: int, data: Buffer, at: int) -> tuple[list[Any], int] | None:
    """Many small integers, or many floats, that follow each other, as in masks and log-probs."""
    pattern, size = (_BYTE_RUN, 2) if code == ord("K") else (_FLOAT_RUN, 9)
    if code not in (ord("K"), ord("G")) or data[at + size : at + size + 1] != bytes((code,)):
        return None
    found = pattern.match(data, at)
    if found is None:
        return None
    if code == ord("K"):
        return list(found[0][1::2]), found.end()
    return np.frombuffer(found[0], dtype=_FLOATS)["value"].tolist(), found.end()


def _string(code: int, data: Buffer, at: int, size: int, machine: Machine) -> Any:
    if size > len(data) - at:
        raise PickleError("the pickle is cut off")
    if code in _TEXTS:
        machine.spend(56 + 4 * size)
        return str(data[at : at + size], "utf-8", "surrogatepass")
    if code in (ord("T"), ord("U")):
        machine.spend(56 + 4 * size)
        return str(data[at : at + size], "latin-1")
    if size > _VIEW_BYTES:
        machine.spend(200)
        return memoryview(data)[at : at + size]
    machine.spend(40 + size)
    return bytes(data[at : at + size])


def _long(code: int, data: Buffer, at: int, stack: list[Any], machine: Machine) -> int:
    width = 1 if code == 0x8A else 4
    size = int.from_bytes(data[at : at + width], "little")
    at += width
    if size > _MAX_LONG or size > len(data) - at:
        raise PickleError(f"it holds an integer of {size:,} bytes; at most {_MAX_LONG} are read")
    machine.spend(80)
    stack.append(int.from_bytes(data[at : at + size], "little", signed=True))
    return at + size


_TEXT_LINES = frozenset(map(ord, "IFLSVcgipP"))


def _text_line(
    code: int,
    data: Buffer,
    at: int,
    stack: list[Any],
    memo: dict[int, Any],
    machine: Machine,
) -> int:
    """The instructions whose argument is a line of text: the oldest ones, and GLOBAL."""
    line, at = _line(data, at)
    machine.spend(64 + 4 * len(line))
    letter = chr(code)
    if letter in ("c", "i"):
        name, at = _line(data, at)
        stack.append(_name(str(line, "utf-8"), str(name, "utf-8"), machine))
        if letter == "i":
            raise PickleError(refusal(f"an object of {stack[-1]}"))
    elif letter == "p":
        memo[int(line)] = _top(stack)
    elif letter == "g":
        stack.append(memo[int(line)])
    elif letter == "P":
        stack.append(_stored(machine, str(line, "ascii")))
    elif letter == "V":
        stack.append(str(line, "raw-unicode-escape"))
    elif letter == "S":
        stack.append(str(line[1:-1], "latin-1"))
    elif len(line) > _MAX_DIGITS:
        raise PickleError(f"it holds a number of {len(line):,} digits")
    elif letter == "F":
        stack.append(float(line))
    elif line in (b"00", b"01"):
        stack.append(line == b"01")
    else:
        stack.append(int(line.rstrip(b"L")))
    return at


def _line(data: Buffer, at: int) -> tuple[bytes, int]:
    # A view has no find: a line is read in pieces.
    stop = at
    while stop < len(data):
        piece = bytes(data[stop : stop + 4096])
        place = piece.find(b"\n")
        if place >= 0:
            return bytes(data[at : stop + place]), stop + place + 1
        stop += len(piece)
    raise PickleError("the pickle is cut off")


def _name(module: str, name: str, machine: Machine) -> Name:
    """A name that is allowed.

    Raises:
        PickleError: any other name.
    """
    full = f"{module}.{name}"
    if any(full in table for table in (CALLS, CLASSES, NAMES, machine.calls, machine.names)):
        return Name(module, name)
    raise PickleError(refusal(full))


def _stored(machine: Machine, identity: Any) -> Any:
    if machine.storage is None:
        raise PickleError(refusal("a persistent id"))
    return machine.storage(identity)


def _unknown(stack: list[Any], machine: Machine) -> None:
    raise PickleError("the pickle is damaged, or of a kind that is not read")


def _to_mark(stack: list[Any]) -> list[Any]:
    """The values above the last mark."""
    place = len(stack) - 1
    while stack[place] is not _MARK:
        place -= 1
        if place < 0:
            raise ValueError
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _container(stack: list[Any], kind: type) -> Any:
    """The container on top, or the plain one in an object that was called."""
    if not isinstance(_top(stack), kind):
        raise TypeError
    return stack[-1]


def _set(target: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    for key, value in zip(keys, values, strict=True):
        # Any other key may take for ever to hash.
        if not (key is None or type(key) in (str, int, float, bool, bytes)):
            raise PickleError(f"it has a dict with a key of type {type(key).__name__}")
        if type(key) in (int, float) and len(target) >= _MAX_NUMBER_KEYS:
            raise PickleError(f"it has a dict with more than {_MAX_NUMBER_KEYS:,} numbers as keys")
        target[key] = value


def _empty_dict(stack: list[Any], machine: Machine) -> None:
    machine.spend(240)
    stack.append({})


def _empty_list(stack: list[Any], machine: Machine) -> None:
    machine.spend(96)
    stack.append([])


def _append(stack: list[Any], machine: Machine) -> None:
    value = _pop(stack)
    machine.spend(8)
    _container(stack, list).append(value)


def _appends(stack: list[Any], machine: Machine) -> None:
    values = _to_mark(stack)
    machine.spend(8 * len(values))
    _container(stack, list).extend(values)


def _set_item(stack: list[Any], machine: Machine) -> None:
    value, key = _pop(stack), _pop(stack)
    machine.spend(100)
    _set(_container(stack, dict), [key], [value])


def _set_items(stack: list[Any], machine: Machine) -> None:
    values = _to_mark(stack)
    machine.spend(50 * len(values))
    _set(_container(stack, dict), values[::2], values[1::2])


def _tuple(stack: list[Any], machine: Machine) -> None:
    values = _to_mark(stack)
    machine.spend(56 + 8 * len(values))
    stack.append(tuple(values))


def _tuple_of(size: int) -> Callable[[list[Any], Machine], None]:
    def make(stack: list[Any], machine: Machine) -> None:
        machine.spend(80)
        values = [_pop(stack) for _ in range(size)]
        stack.append(tuple(reversed(values)))

    return make


def _list(stack: list[Any], machine: Machine) -> None:
    values = _to_mark(stack)
    machine.spend(56 + 8 * len(values))
    stack.append(values)


def _dict(stack: list[Any], machine: Machine) -> None:
    values = _to_mark(stack)
    machine.spend(240 + 50 * len(values))
    made: dict[Any, Any] = {}
    _set(made, values[::2], values[1::2])
    stack.append(made)


def _stack_global(stack: list[Any], machine: Machine) -> None:
    name, module = _pop(stack), _pop(stack)
    if not isinstance(name, str) or not isinstance(module, str):
        raise PickleError(refusal("a name that is no text"))
    machine.spend(64)
    stack.append(_name(module, name, machine))


def _reduce(stack: list[Any], machine: Machine) -> None:
    arguments, name = _pop(stack), _pop(stack)
    machine.spend(100)
    stack.append(machine.call(name, arguments))


def _new(stack: list[Any], machine: Machine) -> None:
    arguments, name = _pop(stack), _pop(stack)
    machine.spend(100)
    if not isinstance(name, Name) or str(name) not in CLASSES or arguments != ():
        raise PickleError(refusal(f"an object of {name}"))
    stack.append(Stranger(name))


def _build(stack: list[Any], machine: Machine) -> None:
    state = _pop(stack)
    target = _top(stack)
    if isinstance(target, Stranger):
        target.state = state
    elif isinstance(target, _Dtype):
        if state[1] in (">", "<"):
            target.dtype = target.dtype.newbyteorder(state[1])
    elif isinstance(target, _Array):
        _, shape, kind, is_fortran, content = state
        target.value = _array(content, kind, shape, "F" if is_fortran else "C", machine)
    else:
        raise PickleError(refusal(f"the state of a {type(target).__name__}"))


def _persistent(stack: list[Any], machine: Machine) -> None:
    stack.append(_stored(machine, _pop(stack)))


def _drop(stack: list[Any], machine: Machine) -> None:
    stack.pop()


def _drop_to_mark(stack: list[Any], machine: Machine) -> None:
    _to_mark(stack)


def _twice(stack: list[Any], machine: Machine) -> None:
    machine.spend(8)
    stack.append(_top(stack))


def _extension(stack: list[Any], machine: Machine) -> None:
    raise PickleError(refusal("a class by a number of copyreg"))


def _called(stack: list[Any], machine: Machine) -> None:
    name = next((v for v in reversed(stack) if isinstance(v, Name)), "an object by its class")
    raise PickleError(refusal(str(name)))


_REST: dict[int, Callable[[list[Any], Machine], None]] = {
    ord("}"): _empty_dict,
    ord("]"): _empty_list,
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
    ord("t"): _tuple,
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("l"): _list,
    ord("d"): _dict,
    0x8F: _empty_list,  # a set, as a list
    0x90: _appends,
    0x91: _list,
    0x93: _stack_global,
    ord("R"): _reduce,
    0x81: _new,
    ord("b"): _build,
    ord("Q"): _persistent,
    ord("0"): _drop,
    ord("1"): _drop_to_mark,
    ord("2"): _twice,
    0x82: _extension,
    0x83: _extension,
    0x84: _extension,
    ord("o"): _called,
    0x92: _called,
}

# --- The names that are allowed, and what each stands for ---------------------------------------


def _dtype(machine: Machine, arguments: tuple[Any, ...]) -> _Dtype:
    text = arguments[0]
    if not isinstance(text, str) or not re.fullmatch(r"[?biufOSU]\d{0,6}", text):
        raise PickleError(f"it holds a numpy array of type {str(text)[:20]!r}")
    return _Dtype(np.dtype(text))


def _array(content: Any, kind: Any, shape: Any, order: Any, machine: Machine) -> Any:
    """A numpy array of numbers or texts; one of objects as lists."""
    if not isinstance(kind, _Dtype) or not isinstance(shape, tuple) or len(shape) > 32:
        raise TypeError
    if not all(type(size) is int and 0 <= size < 2**40 for size in shape):
        raise TypeError
    total = math.prod(shape)
    if not total:
        return np.empty(0, dtype=np.float64)
    if kind.dtype.hasobject:
        if not isinstance(content, list) or len(content) != total:
            raise ValueError
        machine.spend(16 * total)
        return _nested(content, shape if order == "C" else (total,))
    raw = bytes(content) if isinstance(content, bytearray) else content
    if not kind.dtype.itemsize or not isinstance(raw, bytes | memoryview):
        raise TypeError
    if total * kind.dtype.itemsize != len(raw):
        raise ValueError
    return np.frombuffer(raw, dtype=kind.dtype).reshape(shape, order="F" if order == "F" else "C")


def _nested(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """A flat list in its shape; every size is at least 1."""
    for size in reversed(shape[1:]):
        values = [values[start : start + size] for start in range(0, len(values), size)]
    return values


def _scalar(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    kind, content = arguments
    if kind.dtype.hasobject:
        return content
    return _array(content, kind, (1,), "C", machine).tolist()[0]


def _from_buffer(machine: Machine, arguments: tuple[Any, ...]) -> _Array:
    content, kind, shape, order = arguments
    return _Array(_array(content, kind, shape, order, machine))


def _encoded(machine: Machine, arguments: tuple[Any, ...]) -> bytes:
    """Bytes, as protocols before 3 write them."""
    text, codec = arguments
    if codec not in ("latin1", "latin-1"):
        raise PickleError(refusal(f"the codec {codec}"))
    machine.spend(len(text))
    return bytes(text, "latin-1")


def _listed(machine: Machine, arguments: tuple[Any, ...]) -> list[Any]:
    values = arguments[0] if arguments else []
    if not isinstance(values, list):
        raise TypeError
    return values


def _ordered(machine: Machine, arguments: tuple[Any, ...]) -> dict[Any, Any]:
    machine.spend(240)
    made: dict[Any, Any] = {}
    pairs = arguments[0] if arguments else []
    machine.spend(100 * len(pairs))
    _set(made, [key for key, _ in pairs], [value for _, value in pairs])
    return made


def _default(machine: Machine, arguments: tuple[Any, ...]) -> dict[Any, Any]:
    machine.spend(240)
    return {}


def _bytes(machine: Machine, arguments: tuple[Any, ...]) -> bytes:
    content = arguments[0] if arguments else b""
    if not isinstance(content, bytes | memoryview):
        raise TypeError
    machine.spend(len(content))
    return bytes(content)


CALLS: dict[str, Callable[[Machine, tuple[Any, ...]], Any]] = {
    "numpy.dtype": _dtype,
    "_codecs.encode": _encoded,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
}
for _module in ("builtins", "__builtin__"):
    CALLS[f"{_module}.set"] = CALLS[f"{_module}.frozenset"] = _listed
    CALLS[f"{_module}.bytearray"] = CALLS[f"{_module}.bytes"] = _bytes
for _module in ("numpy.core", "numpy._core"):
    CALLS[f"{_module}.multiarray._reconstruct"] = lambda machine, arguments: _Array()
    CALLS[f"{_module}.multiarray.scalar"] = _scalar
    CALLS[f"{_module}.numeric._frombuffer"] = _from_buffer

CLASSES = frozenset(
    {"verl.protocol.DataProto", "PIL.Image.Image", "PIL.PngImagePlugin.PngImageFile"}
)
"""Objects whose state is kept, as data."""
NAMES = frozenset(
    {"numpy.ndarray"}
    | {f"{m}.{n}" for m in ("builtins", "__builtin__") for n in ("list", "dict", "int", "float")}
)
"""Names that others are given as an argument. They are never called."""


def unwrapped(value: Any) -> Any:
    """A numpy array that was described and then filled, as the array."""
    return value.value if isinstance(value, _Array) else value
