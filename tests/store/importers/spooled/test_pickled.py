"""Pickles: tensors, arrays and containers are read; nothing in them is ever run.

The unpickler itself is tested here in this process, its limits in the child that imports use."""

from __future__ import annotations

import collections
import contextlib
import copyreg
import io
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollout_import import import_run

from echoscope.store.importers.importing import ImportingError
from echoscope.store.importers.lines import BadJsonError
from echoscope.store.importers.sources import SourceError, source_of
from echoscope.store.importers.spooled import pickled
from echoscope.store.importers.spooled.pickled import PickleError, plain, read

from ..conftest import slime_sample

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def values(data: bytes) -> Any:
    """What is read of a pickle, as it crosses from the child."""
    return plain(read(io.BytesIO(data)))


# --- What is read -------------------------------------------------------------------------------

VALUES: list[Any] = [
    None, True, 256, -(2**63), 2**200, 1.5, "é\n\\ \ud800", "x" * 300, [], [[], [1, [2]]],
    {"a": 1, "b": {"c": [None]}}, list(range(2000)), collections.OrderedDict(a=1),
    collections.defaultdict(list, a=[1]),
]  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_those_that_pickle_reads(protocol: int) -> None:
    assert values(pickle.dumps(VALUES, protocol)) == VALUES


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_json_has_no_form_for(protocol: int) -> None:
    odd = [(1, 2), {3}, frozenset("a"), b"four", bytearray(b"seven"), float("nan"), {1: 2}]
    plain_form = [[1, 2], [3], ["a"], "[4 bytes]", "[5 bytes]", None, {"1": 2}]
    assert values(pickle.dumps(odd, protocol)) == plain_form


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_and_scalars_of_numpy(protocol: int) -> None:
    objects = np.empty((2, 1), dtype=object)
    objects[0, 0], objects[1, 0] = {"a": 1}, [np.float32(0.5), np.int64(3), np.bool_(True)]
    arrays = [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([True, False]),
        np.array([1.5, float("nan")], dtype=">f4"),
        np.array(["a", "bcd"]),
        np.array(7),
        np.empty((0, 4)),
        objects,
    ]
    assert values(pickle.dumps(arrays, protocol)) == [
        *([[0, 1, 2], [3, 4, 5]], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [True, False], [1.5, None]),
        *(["a", "bcd"], 7, [], [[{"a": 1}], [[0.5, 3, True]]]),
    ]


TENSORS = {
    "part": torch.arange(20)[5:15:2],
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "half": torch.tensor([0.5, -2.0], dtype=torch.float16),
    "bfloat16": torch.tensor([[1.0, -0.15625]], dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(3.5),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "array": np.arange(3),
}


@pytest.mark.parametrize("is_zip", [True, False])
def test_tensors_of_torch_save(is_zip: bool) -> None:
    # torch cannot read its own older form of the youngest types.
    tensors = {name: t for name, t in TENSORS.items() if is_zip or name != "uint16"}
    file = io.BytesIO()
    torch.save(tensors, file, _use_new_zipfile_serialization=is_zip)
    assert values(file.getvalue()) == {name: tensor.tolist() for name, tensor in tensors.items()}


def test_tensors_of_pickle_itself() -> None:
    assert values(pickle.dumps([torch.arange(3), torch.ones(2)])) == [[0, 1, 2], [1.0, 1.0]]


def test_weights_are_no_rollouts(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.ones(2, 2)}, tmp_path / "model.pt")
    with pytest.raises(ImportingError, match="neither a batch of RAGEN nor samples of slime"):
        import_run(tmp_path / "model.pt", tmp_path / "run")


# --- What is refused ----------------------------------------------------------------------------


class Run:
    """Calls a function with arguments when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Bare:
    """An object of a class of its own."""


class WithState:
    def __setstate__(self, state: Any) -> None:
        raise AssertionError

    def __getstate__(self) -> Any:
        return {"a": 1}


def malicious(marker: Path) -> dict[str, bytes]:
    """Pickles that would make the file `marker`, each with a name that it uses."""
    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w').close()"
    quoted = code.encode()
    return {
        "posix.system": pickle.dumps(Run(os.system, touch)),
        "builtins.eval": pickle.dumps(Run(eval, code)),
        "builtins.exec": pickle.dumps(Run(exec, code)),
        "builtins.getattr": pickle.dumps(Run(getattr, Run(__import__, "os"), "system")),
        "builtins.__import__": pickle.dumps({"a": [Run(__import__, "antigravity")]}),
        "pathlib.Path.touch": pickle.dumps(Run(Path.touch, Path(marker))),
        "os.system": b"cos\nsystem\n(S'" + touch.encode() + b"'\ntR.",
        "os.popen": b"(S'" + touch.encode() + b"'\nios\npopen\n.",
        "subprocess.Popen": b"(csubprocess\nPopen\nS'" + touch.encode() + b"'\no.",
        "operator.attrgetter": pickle.dumps(Run(__import__("operator").attrgetter, "system")),
        "functools.partial": b"cfunctools\npartial\n(cos\nsystem\ntR.",
        "numpy.load": b"cnumpy\nload\n(S'" + str(marker).encode() + b"'\ntR.",
        "torch.load": b"ctorch\nload\n(S'" + str(marker).encode() + b"'\ntR.",
        "numpy.f2py": b"cnumpy.f2py.crackfortran\nmyeval\n(S'" + quoted + b"'\ntR.",
        "numpy.core.multiarray.os": b"cnumpy.core.multiarray\nos\n.",
        "collections.OrderedDict.__init__": b"\x80\x04\x8c\x0bcollections\x8c\x16OrderedDict.__"
        b"init__.x\x93.",
        "builtins.list.append": b"\x80\x04\x8c\x08builtins\x8c\x0blist.append\x93.",
        "a persistent id": b"P0\n.",
        "a persistent id ": b"\x80\x02K\x01Q.",
        "the codec": b"c_codecs\nencode\n(S'a'\nS'unicode_escape'\ntR.",
        "copy_reg._reconstructor": pickle.dumps(Bare(), 0),
        Bare.__module__: pickle.dumps(Bare()),
        "WithState": pickle.dumps(WithState()),
    }


def _zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


def _batch(tensors: bytes) -> bytes:
    """A batch of verl with these bytes as its tensors."""
    state = pickle.dumps((tensors, {"messages_list": [[]]}, {}), 2)[2:-1]
    return b"\x80\x02cverl.protocol\nDataProto\n)\x81" + state + b"b."


def shapes_of(bad: bytes) -> dict[str, bytes]:
    """The same pickle in every place where one is read."""
    legacy = b"".join(pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, {}))
    return {
        "pickle": bad,
        "list": b"(" + bad.removesuffix(b".").removeprefix(b"\x80\x04") + b"l.",
        "torch": _zipped(bad),
        "legacy torch": legacy + bad,
        "batch": _batch(_zipped(bad)),
        "disguised": b"\x80\x04" + bad,
    }


@pytest.mark.parametrize("attack", list(malicious(Path("marker"))))
def test_code_is_never_run(tmp_path: Path, attack: str) -> None:
    marker = tmp_path / "sprung"
    for shape, data in shapes_of(malicious(marker)[attack]).items():
        with pytest.raises(PickleError) as caught:
            list(pickled.rows_of(read(io.BytesIO(data))))
        assert not marker.exists(), shape
        if shape == "pickle":
            assert attack.strip() in str(caught.value)
            assert "Nothing of it was run" in str(caught.value)
            assert "output.format=jsonl" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"\x80\x02]}b.", b"\x80\x02\x82\x01.", b"\x80\x02\x84\x01\x00\x00\x00.", b"\x80\x02K\x01)R."],
)
def test_a_state_for_a_list_and_calls_by_number_are_damage(data: bytes) -> None:
    with pytest.raises(PickleError, match="damaged"):
        read(io.BytesIO(data))


def test_an_extension_code_that_is_registered_is_not_looked_up() -> None:
    copyreg.add_extension("posix", "system", 1234)
    try:
        data = pickle.dumps(Run(os.system, "true"), 2)
        assert b"posix" not in data, "the code stands for the name"
        with pytest.raises(PickleError, match=r"posix\.system"):
            read(io.BytesIO(data))
    finally:
        copyreg.remove_extension("posix", "system", 1234)


def test_the_rest_of_the_folder_is_imported(tmp_path: Path) -> None:
    marker = tmp_path / "sprung"
    (tmp_path / "in").mkdir()
    torch.save({"rollout_id": 1, "samples": [slime_sample()]}, tmp_path / "in" / "1.pt")
    bad = shapes_of(malicious(marker)["posix.system"])
    for number, data in enumerate((bad["pickle"], bad["torch"], bad["disguised"])):
        (tmp_path / "in" / f"bad{number}.pkl").write_bytes(data)
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert report.num_kept == 1
    assert report.survey.refused_files.total == 3
    assert not marker.exists()


def _laughs(levels: int) -> bytes:
    """A list of ten times the same list, of ten times the same list, and so on."""
    value: Any = "ha" * 50
    for _ in range(levels):
        value = [value] * 10
    return pickle.dumps({"rollout_id": 0, "samples": [{"response": value}]})


"""How a pickle with samples of slime begins."""
BOMBS = {
    "a text of 4 EB": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
    "bytes of 4 GB": b"\x80\x04B" + struct.pack("<I", 0xFFFFFFFF) + b"x.",
    "a bytearray of 4 EB": b"\x80\x05\x96" + struct.pack("<Q", 1 << 62) + b"x.",
    "a bytearray of a number": b"cbuiltins\nbytearray\n(I99000000000\ntR.",
    "an integer of 2 GB": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"\x01.",
    "an integer of 100,000 digits": b"I" + b"9" * 100_000 + b"\n.",
    "a float of 100,000 digits": b"F" + b"9" * 100_000 + b"\n.",
    "a frame of 4 EB": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
    "nothing": b"\x80\x04.",
    "no end": b"\x80\x04N",
    "no stack": b"\x80\x04a.",
    "a mark": b"\x80\x04(.",
    "a memo that is not there": b"\x80\x02h\x09.",
    "a memo of a high number": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "an array of a trillion objects": b"cnumpy\ndtype\n(S'O8'\nI00\nI01\ntRp0\n0cnumpy._core.multia"
    b"rray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1000000000000\ntg0\nI00\n(ltb.",
    "an array of a trillion numbers": b"cnumpy\ndtype\n(S'f8'\nI00\nI01\ntRp0\n0cnumpy._core.multia"
    b"rray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1000000000000\ntg0\nI00\nS''\ntb.",
    "lists 20,000 deep": b"\x80\x02}X\x07\x00\x00\x00samples]"
    + b"]" * 20_000
    + b"a" * 20_000
    + b"s.",
    "a list in itself": b"\x80\x02}X\x07\x00\x00\x00samples]q\x00h\x00as.",
    "a dict with a tuple as key": pickle.dumps({(1, 2): 3}),
    "a billion laughs": _laughs(9),
}


@pytest.mark.long
def test_bombs_end_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_MEMORY_BYTES", 64 << 20)
    for name, data in BOMBS.items():
        path = tmp_path / "12.pkl"
        path.write_bytes(data)
        with pytest.raises(BadJsonError) as caught:
            pickled.write_rollouts(path, tmp_path / name.replace(" ", "_"), 64 << 20)
        assert "\n" not in str(caught.value), name
    assert "as a bomb does" in str(caught.value)


def test_a_reading_that_takes_too_long_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is a tuple of tuples of tuples takes for ever to hash."""
    monkeypatch.setattr(pickled, "MAX_CPU_S", 1)
    data = b"\x80\x02}" + b")" + b"2\x86" * 60 + b"K\x01s."
    (tmp_path / "12.pkl").write_bytes(data)
    with pytest.raises(SourceError, match="takes more than 1 s"):
        source_of(tmp_path / "12.pkl", tmp_path)


def test_a_tensor_larger_than_its_storage() -> None:
    file = io.BytesIO()
    torch.save({"samples": [torch.zeros(1).expand(1 << 33)]}, file)
    with pytest.raises(PickleError, match="larger than its storage"):
        list(pickled.rows_of(read(io.BytesIO(file.getvalue()))))


def test_a_file_without_torch_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    torch.save([1], file)
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(PickleError, match="pip install torch"):
        read(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("is_zip", [True, False])
def test_files_that_are_cut_off_or_damaged(is_zip: bool) -> None:
    file = io.BytesIO()
    value = {"rollout_id": 1, "samples": [slime_sample(tokens=torch.arange(4))]}
    torch.save(value, file, _use_new_zipfile_serialization=is_zip)
    data = file.getvalue()
    rng = np.random.default_rng(0)
    for cut in range(0, len(data), max(1, len(data) // 20)):
        with pytest.raises(PickleError):
            read(io.BytesIO(data[:cut]))
    for _ in range(60):
        changed = bytearray(data)
        for index in rng.integers(0, len(data), 3):
            changed[index] = rng.integers(0, 256)
        with contextlib.suppress(PickleError):
            read(io.BytesIO(bytes(changed)))
