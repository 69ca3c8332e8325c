"""Files that cannot be read: `import` and `diagnose` say the same of the same file."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Typed = Callable[..., Any]


class Malicious:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def csv(header: str) -> bytes:
    return "\n".join([header, *(f"{0.3 * n},{n % 3}" for n in range(30))]).encode()


UNKNOWN = [{"question": "q", "points": n} for n in range(9)]
FILES: dict[str, tuple[bytes, str]] = {
    "empty.jsonl": (b"", "empty.jsonl: is empty"),
    "blank.csv": (b"\n\n", "blank.csv: is empty"),
    "prose.txt": (
        b"nothing here\n" * 5,
        "holds neither rollouts nor metrics of a known form. What",
    ),
    "bytes.dat": (bytes(range(256)), "holds neither rollouts nor metrics of a known form. What"),
    "picture.png": (b"\x89PNG\r\n\x1a\n\x00", "holds neither rollouts nor metrics of a known form"),
    "code.pkl": (
        pickle.dumps({"a": Malicious()}),
        "this pickle asks for posix.system. Nothing of it was run: only tensors, numpy arrays and "
        "plain containers are read, because any other name can run code; set the trainer's output "
        "to JSON lines",
    ),
    "list.pkl": (pickle.dumps([1, 2]), "No other pickle is read: write its content as JSON lines"),
    "cut.json": (b'{"a": [1, 2,', "no row can be read: the last line is cut off"),
    "cut.jsonl.gz": (gzip.compress(b'{"step": 1}\n' * 99)[:25], "cannot be unpacked"),
    "cut.parquet": (b"PAR1" + bytes(50), "the Parquet file is damaged"),
    "no.parquet": (bytes(range(200)), "its name ends in .parquet, but it is not a Parquet file"),
    "columns.csv": (csv("foo,bar"), "--map 'foo=rollout/success_rate'"),
    "rows.jsonl": (
        "\n".join(map(json.dumps, UNKNOWN)).encode(),
        "--map 'points=rollout/success_rate' or --map 'points=reward/return_mean'. If its rows are "
        "rollouts: no format that is read has the keys question, points; docs/importing.md",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_both_commands_give_the_same_reason_and_the_same_way_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_command: Typed
) -> None:
    monkeypatch.chdir(tmp_path)
    content, sentence = FILES[name]
    (tmp_path / name).write_bytes(content)
    judged = type_command("diagnose", name)
    imported = type_command("import", name)
    assert (judged.code, imported.code) == (4, 1)
    assert judged.err == imported.err
    assert sentence in judged.err
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "runs").exists()


def test_a_folder_without_anything_names_its_files_in_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_command: Typed
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("empty.jsonl", "prose.txt", "code.pkl", "cut.parquet", "picture.png"):
        (folder / name).write_bytes(FILES[name][0])
    judged, imported = type_command("diagnose", "in"), type_command("import", "in")
    assert judged.err == imported.err
    start = "error: in: holds neither rollouts nor metrics of a known form, and no run ("
    assert judged.err.startswith(start + "code.pkl: this pickle asks for posix.system.")
    assert "; empty.jsonl: is empty; and 1 more). What is read: metrics" in judged.err


@pytest.mark.parametrize("has_rollouts", [True, False])
def test_files_that_are_not_taken_are_counted_and_named(
    has_rollouts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_command: Typed
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [{"step": s, "critic/score/mean": 0.5 + 0.01 * s} for s in range(9)]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if has_rollouts:
        row = {"input": "q", "output": "a", "gts": "", "score": 1.0, "step": 1}
        (folder / "1.jsonl").write_text(json.dumps(row))
    for name in ("code.pkl", "empty.jsonl", "prose.txt", "picture.png"):
        (folder / name).write_bytes(FILES[name][0])
    for number in range(5):
        (folder / f"part{number}.py").write_text("x = 1")
    (folder / "config.json").write_text('{"lr": 1e-5}')
    lines = type_command("import", "in").out.splitlines()
    assert any(line.startswith("Refused code.pkl: this pickle asks for posix") for line in lines)
    assert lines.count("Passed over empty.jsonl: is empty.") == 1
    assert "Passed over prose.txt: neither rollouts nor metrics of a known form." in lines
    assert (
        "Passed over 6 files (part0.py, part1.py, part2.py, part3.py ...): code, pictures, weights "
        "or documents, by their ending."
    ) in lines
    assert "Passed over config.json: a single row without a step." in lines
    judged = " ".join(type_command("diagnose", "in").out.split())
    for line in lines:
        if line.startswith(("Refused", "Passed")):
            assert f"note: {line[0].lower()}{line[1:].rstrip('.')}" in judged
    report = json.loads(type_command("import", "in", "-o", "again", "--json").out)
    assert sum(report["passed_over_files"].values()) == 9


def test_a_trainers_notes_on_its_rollouts_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_command: Typed
) -> None:
    monkeypatch.chdir(tmp_path)
    fixtures = Path(__file__).parents[1] / "store" / "importers" / "fixtures"
    shutil.copytree(fixtures / "prime_stream", "in")
    (tmp_path / "in" / "train_logtree.json").write_text('{"root": {"children": []}}')
    (tmp_path / "in" / "train_rollout_summaries.jsonl").write_text("")
    out = type_command("import", "in").out
    left = [line for line in out.splitlines() if line.startswith(("Passed over", "Refused"))]
    assert not any(name in line for line in left for name in ("logtree", "annotations", ".index."))


def test_the_exit_codes_of_import_are_those_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_command: Typed
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"step": s, "reward": 0.1 * s, "run": f"r{s % 2}"}) for s in range(8)]
    (tmp_path / "two.jsonl").write_text("\n".join(rows))
    (tmp_path / "one.jsonl").write_text("\n".join(rows[::2]))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    codes = {
        ("one.jsonl",): 0,
        ("one.jsonl", "--run", "r0"): 0,
        ("missing",): 1,
        ("two.jsonl", "-o", "other"): 1,
        ("one.jsonl", "-o", "taken"): 1,
        ("one.jsonl", "--map", "reward"): 2,
        ("one.jsonl", "--nosuch"): 2,
    }
    assert {arguments: type_command("import", *arguments).code for arguments in codes} == codes
    docs = (Path(__file__).parents[2] / "docs" / "importing.md").read_text()
    for code in sorted(set(codes.values())):
        assert f"\n| {code} | " in docs
