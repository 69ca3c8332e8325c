"""Pickles: tensors, arrays and containers are read; nothing in them is ever run."""

from __future__ import annotations

import collections
import contextlib
import copyreg
import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from echoscope.store.importers.importing import ImportingError, import_run
from echoscope.store.importers.pickles.machine import Machine, PickleError, load, unwrapped
from echoscope.store.importers.pickles.rollouts import Plain
from echoscope.store.importers.pickles.torch_files import read_pickled
from echoscope.store.importers.sources import SourceError, source_of
from echoscope.store.records import FinishReason, Split, StopReason

from .conftest import Imported, texts

Fixture = Callable[[str], Imported]
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def read(data: bytes) -> Any:
    return load(data, Machine())[0]


def plain(value: Any) -> Any:
    return Plain(left=1 << 20).of(value)


# --- What is read -------------------------------------------------------------------------------

VALUES: list[Any] = [
    None, True, False, 0, 255, 256, 65535, 65536, -1, 2**40, -(2**63), 2**200, 1.5, -0.0,
    "", "text", "é\n\\ \ud800", "x" * 300, b"", b"bytes" * 80, (), (1,), (1, 2), (1, 2, 3),
    (1,) * 9, [], [[], [1, [2]]], {}, {"a": 1, "b": {"c": [None]}}, {1: 2, None: 3, 0.5: 4},
    list(range(2000)), [0.25 * i for i in range(2000)], [1] * 50 + ["x"] + [0] * 50,
    collections.OrderedDict(a=1), bytearray(b"array"),
]  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_plain_values_are_those_that_pickle_reads(value: Any, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sets_are_lists(protocol: int) -> None:
    assert sorted(read(pickle.dumps({3, 1, 2}, protocol))) == [1, 2, 3]
    assert read(pickle.dumps(frozenset("a"), protocol)) == ["a"]


def test_values_that_are_met_twice_are_one() -> None:
    shared = ["one"]
    first, second = read(pickle.dumps([shared, shared]))
    assert first is second


ARRAYS = [
    np.arange(6).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([True, False]),
    np.array([1.5, 2.5], dtype=">f4"),
    np.array(["a", "bcd"]),
    np.array(7),
    np.empty((0, 4)),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_numpy_arrays(array: Any, protocol: int) -> None:
    found = unwrapped(read(pickle.dumps(array, protocol)))
    assert np.array_equal(found.reshape(array.shape), array)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_of_objects_and_scalars(protocol: int) -> None:
    objects = np.empty((2, 1), dtype=object)
    objects[0, 0], objects[1, 0] = {"a": 1}, [np.float32(0.5), np.int64(3), np.bool_(True)]
    assert plain(read(pickle.dumps(objects, protocol))) == [[{"a": 1}], [[0.5, 3, True]]]


TENSORS = {
    "int64": torch.arange(6).reshape(2, 3),
    "part": torch.arange(20)[5:15:2],
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "half": torch.tensor([0.5, -2.0], dtype=torch.float16),
    "bfloat16": torch.tensor([[1.0, -0.15625]], dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(3.5),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "empty": torch.empty(0, 3),
}


@pytest.mark.parametrize("is_zip", [True, False])
def test_tensors_of_torch_save(tmp_path: Path, is_zip: bool) -> None:
    path = tmp_path / "tensors.pt"
    torch.save({"tensors": TENSORS, "list": [1, "a"]}, path, _use_new_zipfile_serialization=is_zip)
    found = read_pickled(path)
    assert found["list"] == [1, "a"]
    for name, tensor in TENSORS.items():
        assert np.array_equal(
            found["tensors"][name].reshape(tensor.shape), tensor.detach().float().numpy()
        ), name


def test_tensors_of_pickle_itself(tmp_path: Path) -> None:
    path = tmp_path / "tensors.pkl"
    path.write_bytes(pickle.dumps([torch.arange(3), torch.ones(2)]))
    assert plain(read_pickled(path)) == [[0, 1, 2], [1.0, 1.0]]


def test_a_batch_of_ragen(fixture: Fixture) -> None:
    """Written by verl's own DataProto (writers/ragen_pickle.py), once in each of its two forms."""
    found = fixture("ragen_pickle")
    first, second, third = found.trajectories[:3]
    assert {t.step for t in found.trajectories[:3]} == {3}
    assert [(t.group_index, t.sibling_index) for t in found.trajectories[:3]] == [
        *[(0, 0), (0, 1), (1, 0)]
    ]
    assert texts(first.turns) == [
        ("Push all boxes. \nTurn 1:\nState:\nS00", "<think>t0</think> <answer>a0</answer>"),
        ("Reward:\n-0.1\n\nTurn 2:\nState:\nS01", "<think>t1</think> <answer>a1</answer>"),
    ]
    assert [turn.reward for turn in first.turns] == [-0.1, 10.9], "each at its own reply"
    assert [turn.actions for turn in first.turns] == [("2",), ("4", "1")]
    assert [turn.is_valid for turn in first.turns] == [True, True]
    assert [turn.is_effective for turn in first.turns] == [True, False]
    assert first.final_observation == "end0"
    assert [t.is_success for t in (first, second, third)] == [True, False, True]
    assert {t.tag for t in (first, second, third)} == {"CoordSokoban"}
    assert first.turns[-1].info["num_actions"] == 3
    assert first.turns[-1].info["rm_scores"] == pytest.approx(10.3), "with penalties"
    assert first.turns[-1].info["original_rm_scores"] == pytest.approx(10.8)
    fields = found.extra(0)["fields"]
    assert fields["env_ids"] == 0
    assert fields["system"] == "You're a helpful assistant. "
    assert fields["tensors"]["input_ids"] == [3, 6]
    assert found.extra(0)["reconstructed"] == ["step"]


def test_a_batch_of_ragen_in_training_has_no_history(fixture: Fixture) -> None:
    first, second, third = fixture("ragen_pickle").trajectories[3:]
    assert {t.step for t in (first, second, third)} == {4}
    assert [turn.reward for turn in first.turns] == [0.0, pytest.approx(10.8)]
    assert [t.is_success for t in (first, second, third)] == [None, None, None]
    assert third.episode_return == pytest.approx(1.5)


def slime_sample(**more: Any) -> dict[str, Any]:
    """The fields of slime's `Sample.to_dict` (slime/utils/types.py)."""
    return {
        "group_index": 4,
        "index": 9,
        "prompt": [{"role": "user", "content": "2 + 3?"}],
        "tokens": [1, 2, 3, 4, 5, 6, 7, 8],
        "response": "a1<|im_end|>\n<|im_start|>user\nobs<|im_end|>\n<|im_start|>assistant\na2",
        "response_length": 5,
        "label": "5",
        "reward": 0.75,
        "loss_mask": [1, 1, 0, 1, 1],
        "weight_versions": ["7"],
        "rollout_log_probs": [-0.5, -0.25, 0.0, -1.0, -2.0],
        "status": "completed",
        "metadata": {"k": 1},
        "remove_sample": False,
        **more,
    }


def test_samples_of_slime(tmp_path: Path) -> None:
    folder = tmp_path / "debug"
    folder.mkdir()
    other = slime_sample(index=10, reward={"acc": 1.0, "format": 0.5}, status="truncated")
    pack = {"rollout_id": 12, "samples": [slime_sample(), other]}
    torch.save(pack, folder / "12.pt")
    late = slime_sample(prompt="<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n")
    late |= {"remove_sample": True, "response": "only", "loss_mask": None, "response_length": 3}
    torch.save({"rollout_id": 13, "samples": [late]}, folder / "eval_13.pt")
    found = Imported(import_run(folder, tmp_path / "run"))
    first, second, third = found.trajectories
    assert (first.step, third.step) == (12, 13)
    assert texts(first.turns) == [("2 + 3?", "a1"), ("obs", "a2")]
    assert [turn.reward for turn in first.turns] == [0.0, 0.75]
    assert [turn.prompt_tokens.tolist() for turn in first.turns] == [[1, 2, 3], [*range(1, 7)]]
    assert [turn.response_tokens.tolist() for turn in first.turns] == [[4, 5], [7, 8]]
    assert [turn.logprobs.tolist() for turn in first.turns] == [[-0.5, -0.25], [-1.0, -2.0]]
    assert first.policy_version == 7
    assert first.stop_reason is StopReason.TERMINATED
    assert first.turns[-1].finish_reason is FinishReason.STOP
    assert (first.group_index, second.sibling_index) == (0, 1)
    assert second.episode_return == 1.0
    assert second.turns[-1].info == {"reward/acc": 1.0, "reward/format": 0.5}
    assert second.stop_reason is StopReason.MAX_TOKENS
    assert found.extra(0)["fields"]["label"] == "5"
    assert found.extra(0)["fields"]["metadata"] == {"k": 1}
    assert third.split is Split.EVAL
    assert texts(third.turns) == [("Q", "only")]
    assert third.turns[0].response_tokens.tolist() == [6, 7, 8]


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


SPRUNG: list[str] = []


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
        "an object of": b"\x80\x02cbuiltins\nlist\n)\x81.",
        "the state of a list": b"\x80\x02]}b.",
        "of copyreg": b"\x80\x02\x82\x01.",
        "of copyreg ": b"\x80\x02\x84\x01\x00\x00\x00.",
        "a persistent id": b"P0\n.",
        "a persistent id ": b"\x80\x02K\x01Q.",
        "a call of something": b"\x80\x02K\x01)R.",
        "builtins.list": b"\x80\x02cbuiltins\nlist\n)R.",
        "the codec": b"c_codecs\nencode\n(S'a'\nS'unicode_escape'\ntR.",
        "copy_reg._reconstructor": pickle.dumps(Bare(), 0),
        Bare.__module__: pickle.dumps(Bare()),
        "WithState": pickle.dumps(WithState()),
    }


@pytest.mark.parametrize("wanted", list(malicious(Path("marker"))))
@pytest.mark.parametrize("shape", ["pickle", "list", "torch", "legacy torch", "batch", "disguised"])
def test_code_is_never_run(tmp_path: Path, wanted: str, shape: str) -> None:
    marker = tmp_path / "sprung"
    bad = malicious(marker)[wanted]
    name = "rows.pkl"
    if shape == "list":
        bad = b"(" + bad.removesuffix(b".").removeprefix(b"\x80\x04") + b"l."
    elif shape == "torch":
        name, bad = "12.pt", _zipped(bad)
    elif shape == "legacy torch":
        name = "12.pt"
        bad = b"".join(pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, {})) + bad
    elif shape == "batch":
        bad = _batch(_zipped(bad))
    elif shape == "disguised":
        name, bad = "rows.jsonl", b"\x80\x04" + bad
    (tmp_path / name).write_bytes(bad)
    with pytest.raises(SourceError) as caught:
        source_of(tmp_path / name, tmp_path)
    assert not marker.exists()
    # In a file of torch.save a persistent id is a storage, and here there is none.
    if shape == "pickle" or (shape in ("torch", "batch") and "persistent" not in wanted):
        assert wanted.strip() in str(caught.value)
        assert "Nothing of it was run" in str(caught.value)
        assert "output.format=jsonl" in str(caught.value)


def _zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    return out.getvalue()


def _batch(tensors: bytes) -> bytes:
    """A batch of verl with these bytes as its tensors."""
    state = pickle.dumps((tensors, {"messages_list": [[]]}, {}), 2)[2:-1]
    return b"\x80\x02cverl.protocol\nDataProto\n)\x81" + state + b"b."


def test_an_extension_code_that_is_registered_is_not_looked_up(tmp_path: Path) -> None:
    copyreg.add_extension("os", "system", 1234)
    try:
        data = pickle.dumps(Run(os.system, "true"), 2)
        copyreg.remove_extension("os", "system", 1234)
        with pytest.raises(PickleError, match=r"posix\.system|of copyreg"):
            read(data)
    finally:
        if ("os", "system") in copyreg._extension_registry:  # type: ignore[attr-defined]
            copyreg.remove_extension("os", "system", 1234)


def test_the_rest_of_the_folder_is_imported(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    torch.save({"rollout_id": 1, "samples": [slime_sample()]}, tmp_path / "in" / "1.pt")
    (tmp_path / "in" / "2.pt").write_bytes(pickle.dumps(Run(os.system, "true")))
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert report.num_kept == 1
    assert list(report.files.places.values()) == ["2.pt"]


def lists(depth: int) -> bytes:
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


def _laughs(levels: int) -> bytes:
    """A list of ten times the same list, of ten times the same list, and so on."""
    value: Any = "ha" * 50
    for _ in range(levels):
        value = [value] * 10
    return pickle.dumps({"rollout_id": 0, "samples": [{"response": value}]})


BOMBS = {
    "a text of 4 EB": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
    "bytes of 4 GB": b"\x80\x04B" + struct.pack("<I", 0xFFFFFFFF) + b"x.",
    "a bytearray of 4 EB": b"\x80\x05\x96" + struct.pack("<Q", 1 << 62) + b"x.",
    "an integer of 2 GB": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"\x01.",
    "an integer of 255 bytes": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    "an integer of 100,000 digits": b"I" + b"9" * 100_000 + b"\n.",
    "a float of 100,000 digits": b"F" + b"9" * 100_000 + b"\n.",
    "a frame of 4 EB": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
    "nothing": b"",
    "no end": b"\x80\x04N",
    "no stack": b"\x80\x04a.",
    "a mark": b"\x80\x04(.",
    "a memo that is not there": b"\x80\x02h\x09.",
    "an array of a trillion objects": b"cnumpy\ndtype\n(S'O8'\nI00\nI01\ntRp0\n0cnumpy._core.multia"
    b"rray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1000000000000\ntg0\nI00\n(ltb.",
    "an array of a trillion numbers": b"cnumpy\ndtype\n(S'f8'\nI00\nI01\ntRp0\n0cnumpy._core.multia"
    b"rray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1000000000000\ntg0\nI00\nS''\ntb.",
    "lists 20,000 deep": lists(20_000),
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "a dict with a tuple as key": pickle.dumps({(1, 2): 3}),
    "20,000 numbers as keys": pickle.dumps(dict.fromkeys(range(20_000))),
}


@pytest.mark.parametrize("name", list(BOMBS))
def test_bombs_end_in_a_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / "12.pkl"
    path.write_bytes(BOMBS[name] or b"\x80\x04.")
    tracemalloc.start()
    with pytest.raises(SourceError):
        source_of(path, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 << 20


def test_a_memo_of_a_high_number_takes_no_room() -> None:
    assert read(b"\x80\x02Nr\xff\xff\xff\x7f.") is None


def test_a_billion_laughs(tmp_path: Path) -> None:
    path = tmp_path / "12.pkl"
    path.write_bytes(_laughs(8))
    with pytest.raises(ImportingError, match="as a bomb does"):
        import_run(path, tmp_path / "run")


def test_values_are_counted_before_they_are_made() -> None:
    machine = Machine(left=10_000)
    with pytest.raises(PickleError, match="more than 768 MB of memory"):
        load(b"\x80\x02" + b"}" * 1000 + b".", machine)


def test_steps_are_counted() -> None:
    with pytest.raises(PickleError, match="instructions"):
        load(b"\x80\x02N" + b"20" * 1000 + b".", Machine(steps=1000))


def test_a_tensor_larger_than_its_storage(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    torch.save({"samples": torch.zeros(1).expand(1 << 33)}, path)
    with pytest.raises(PickleError, match="larger than its storage"):
        read_pickled(path)


def test_a_packed_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"samples": []}))
    with pytest.raises(PickleError, match="is packed"):
        read_pickled(path)


@pytest.mark.parametrize("is_zip", [True, False])
def test_files_that_are_cut_off_or_damaged(tmp_path: Path, is_zip: bool) -> None:
    path = tmp_path / "t.pt"
    value = {"rollout_id": 1, "samples": [slime_sample(tokens=torch.arange(4))]}
    torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for cut in range(0, len(data), max(1, len(data) // 20)):
        path.write_bytes(data[:cut])
        with pytest.raises((PickleError, ValueError)):
            read_pickled(path)
    for _ in range(60):
        changed = bytearray(data)
        for place in rng.integers(0, len(data), 3):
            changed[place] = rng.integers(0, 256)
        path.write_bytes(changed)
        with contextlib.suppress(PickleError):
            read_pickled(path)
