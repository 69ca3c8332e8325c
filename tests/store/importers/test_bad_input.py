"""Hostile and broken files: what can be read is imported, the rest is refused with a reason."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rollout_import import import_run

from echoscope.store.importers import packed_file, sources
from echoscope.store.importers.importing import ImportingError
from echoscope.store.importers.lines import wide_encoding
from echoscope.store.importers.sources import ParquetRows, SourceError
from echoscope.store.importers.survey import look, survey

from .conftest import FIXTURES, Imported

Rows = Callable[..., Imported]


def chat(text: str = "a", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
    return {"messages": messages, "step": 0, **more}


def replies(imported: Imported) -> list[str]:
    return [trajectory.turns[0].response for trajectory in imported.trajectories]


def test_a_torn_last_line(rows: Rows) -> None:
    imported = rows(chat("a"), json.dumps(chat("b")).encode()[:30].rstrip(b"\n"))
    assert replies(imported) == ["a"]
    assert sum(imported.report.survey.refused_rows.counts.values()) == 1


@pytest.mark.parametrize("name", ["pipe", "pipe.jsonl"])
def test_a_pipe_is_refused_and_nothing_waits_for_a_writer(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    refused = "is a pipe or a device, and no file; write its content to a file first"
    with pytest.raises(ImportingError, match=refused):
        import_run(pipe, tmp_path / "run")
    assert look(pipe).problem == "is a pipe or a device, and no file"
    with pytest.raises(ImportingError, match=refused):
        import_run(Path("/dev/zero"), tmp_path / "run")


def test_a_pipe_beside_files_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "0.jsonl")
    (tmp_path / "in" / "1.jsonl").write_text(json.dumps(chat("a")) + "\n")
    assert replies(Imported(import_run(tmp_path / "in", tmp_path / "run"))) == ["a"]


def test_lines_that_are_no_json(rows: Rows) -> None:
    imported = rows(chat("a"), b"{oops}", b"\x00\x01", b"17", chat("b"))
    assert replies(imported) == ["a", "b"]
    assert imported.report.survey.refused_rows.counts == {
        "not a JSON value": 2,
        "a row of no known format": 1,
    }
    assert imported.report.survey.refused_rows.places["not a JSON value"].startswith(
        "rows.jsonl, byte "
    )


def test_a_first_line_that_is_no_json(rows: Rows) -> None:
    assert replies(rows(b'{"messages": [', chat("b"))) == ["b"]


def test_a_document_that_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.jsonl").write_text(json.dumps(chat("a")) + "\n")
    whole = json.dumps(chat("b"), indent=1)
    (tmp_path / "in" / "whole.json").write_text(whole)
    (tmp_path / "in" / "cut.json").write_text(whole[: len(whole) // 2])
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert replies(Imported(report)) == ["a", "b"]
    assert report.survey.refused_files.places == {
        "no row can be read: not a JSON value": "cut.json"
    }


def test_bytes_that_are_not_utf8(rows: Rows) -> None:
    imported = rows(json.dumps(chat("caf_")).encode().replace(b"_", b"\xe9"))
    assert replies(imported) == ["caf\ufffd"]
    assert imported.report.survey.num_unclean == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_other_encodings(rows: Rows, encoding: str) -> None:
    text = json.dumps(chat("é"), ensure_ascii=False) + "\n" + json.dumps(chat("b")) + "\n"
    assert replies(rows(text.encode(encoding))) == ["é", "b"]


def test_lone_surrogates(rows: Rows) -> None:
    assert replies(rows(b'{"messages":[{"role":"assistant","content":"\\ud800x"}],"step":0}')) == [
        "\ufffdx"
    ]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '"nan"', "1" * 400])
def test_numbers_that_are_not_finite(rows: Rows, value: str) -> None:
    imported = rows(json.dumps(chat("a")).replace("}]", '}], "reward": ' + value, 1).encode())
    (trajectory,) = imported.trajectories
    assert trajectory.episode_return != trajectory.episode_return
    assert "reward" in imported.extra(0)["fields"], "the value stays where it cannot be a number"


def test_deep_nesting(rows: Rows) -> None:
    deep = b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    half = json.dumps(chat("b")).encode()[:-1] + b', "x": ' + b"[" * 800 + b"]" * 800 + b"}"
    imported = rows(deep, half, chat("a"))
    assert "a" in replies(imported)
    assert imported.report.survey.refused_rows.counts["JSON nested too deeply"] == 1


def test_a_line_of_64_mb_takes_no_memory_of_that_size(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps(chat("a")).encode() + b"\n" + b'{"messages": "')
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n' + json.dumps(chat("b")).encode() + b"\n")
    tracemalloc.start()
    surveyed = survey(path, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert surveyed.num_rows == 2
    assert surveyed.refused_rows.counts == {"a line of more than 16 MB": 1}
    assert peak < 40 << 20


def test_trainers_mixed_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name in ("ragen", "verl_v1"):
        for file in (FIXTURES / name).iterdir():
            (folder / f"{name}-{file.name}").write_bytes(file.read_bytes())
    more = (FIXTURES / "verl_v1" / "7.jsonl").read_bytes().replace(b'"step": 7', b'"step": 8')
    (folder / "extra.jsonl").write_bytes(more)
    (folder / "config.json").write_text('{"lr": 1}')
    (folder / "notes.txt").write_text("nothing")
    report = import_run(folder, tmp_path / "run")
    assert (report.trainer, report.num_kept) == ("verl", 6)
    assert report.survey.others == {"RAGEN evaluation JSONL": (3, "ragen-sokoban_20260414.jsonl")}
    assert report.survey.refused_rows.total == 0, "files without rollouts are no loss"


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.jsonl").write_text(json.dumps(chat("secret")) + "\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "own.jsonl").write_text(json.dumps(chat("own")) + "\n")
    (folder / "file.jsonl").symlink_to(outside / "secret.jsonl")
    (folder / "folder").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    (folder / "same.jsonl").symlink_to(folder / "own.jsonl")
    report = import_run(folder, tmp_path / "run")
    assert replies(Imported(report)) == ["own"]
    assert report.survey.refused_files.counts == {"a link that leads out of the folder": 2}


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "MAX_BYTES", 32 << 20)
    monkeypatch.setattr(sources, "MAX_BYTES", 32 << 20)
    folder = tmp_path / "bombs"
    folder.mkdir()
    (folder / "own.jsonl").write_text(json.dumps(chat("own")) + "\n")
    zeros = b"\0" * (1 << 20)
    with pa.output_stream(str(folder / "bomb.jsonl.zst"), compression="zstd") as out:
        for _ in range(40):
            out.write(zeros)
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.jsonl", zeros * 40)
    report = import_run(folder, tmp_path / "run")
    assert replies(Imported(report)) == ["own"]
    assert sorted(report.survey.refused_files.places.values()) == ["bomb.jsonl.zst"]
    assert set(report.survey.refused_files.counts) == {
        "it unpacks to more than 0 GB; unpack it first"
    }


@pytest.mark.parametrize("data", [b"PAR1 and nothing", b"PK\x03\x04 broken", b"\x1f\x8b\x08 no"])
def test_damaged_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad").write_bytes(data)
    (tmp_path / "in" / "good.jsonl").write_text(json.dumps(chat("a")) + "\n")
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert (report.num_kept, report.survey.refused_files.total) == (1, 1)


def test_a_zip_file_with_a_damaged_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ä.jsonl", json.dumps(chat()))
    path.write_bytes(path.read_bytes().replace("ä".encode(), b"\xff\xff"))
    with pytest.raises(ImportingError, match="the zip file is damaged"):
        import_run(path, tmp_path / "run")


def test_a_parquet_file_that_is_damaged_in_its_middle_is_refused_whole(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "prompt": f"p{i}", "completion": f"c{i}" * 9, "right": 1.0, "advantage": 0.0}
        for i in range(600)
    ]
    folder = tmp_path / "in"
    folder.mkdir()
    damaged = folder / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), damaged, row_group_size=300)
    packed = bytearray(damaged.read_bytes())
    start = pq.read_metadata(damaged).row_group(1).column(1).data_page_offset
    packed[start : start + 400] = b"\xff" * 400
    damaged.write_bytes(packed)
    (folder / "b.jsonl").write_text(json.dumps(chat("own")) + "\n")
    report = import_run(folder, tmp_path / "run")
    assert replies(Imported(report)) == ["own"]
    assert report.survey.refused_files.total == 1
    assert next(iter(report.survey.refused_files.counts)).startswith("the Parquet file is damaged")


def test_packed_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(chat("a")) + "\n").encode()))
    assert replies(Imported(import_run(path, tmp_path / "run"))) == ["a"]


@pytest.mark.parametrize("name", ["gz", "zst", "xz"])
def test_a_cut_packed_file_is_read_up_to_the_cut(tmp_path: Path, name: str) -> None:
    """Less than 1 MB unpacked, of which nothing was read before."""
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefgh", k=400)) for _ in range(1200)]
    lines = "".join(json.dumps(chat(text)) + "\n" for text in texts).encode()
    packed = {
        "gz": gzip.compress,
        "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
        "xz": lzma.compress,
    }[name](lines)
    path = tmp_path / f"rows.jsonl.{name}"
    path.write_bytes(packed[: int(0.95 * len(packed))])
    report = import_run(path, tmp_path / "run")
    assert report.num_kept >= (0.85 if name == "zst" else 0.94) * len(texts)  # zstd packs by blocks
    assert replies(Imported(report)) == texts[: report.num_kept]


def test_a_tar_archive_is_to_be_unpacked_first(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(chat()) + "\n")
    path = tmp_path / "all.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "rows.jsonl", "rows.jsonl")
    with pytest.raises(ImportingError, match=r"unpack it first: tar xzf all\.tar\.gz"):
        import_run(path, tmp_path / "run")


def test_a_file_of_several_zstandard_frames(tmp_path: Path) -> None:
    """A stream that is written in chunks is several frames, one after the other."""
    path = tmp_path / "00000.jsonl.zst"
    codec = pa.Codec("zstd")
    lines = [(json.dumps(chat(text)) + "\n").encode() for text in "abc"]
    path.write_bytes(b"".join(codec.compress(line, asbytes=True) for line in lines))
    assert replies(Imported(import_run(path, tmp_path / "run"))) == ["a", "b", "c"]


def test_a_zip_file_of_several_files_is_to_be_unpacked_first(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        for name in ("a", "b"):
            archive.writestr(f"samples/{name}.json", json.dumps(chat(name)))
    with pytest.raises(ImportingError, match="several files of rows; unpack it first"):
        import_run(tmp_path / "log.eval", tmp_path / "run")


def test_steps_that_cannot_be(rows: Rows) -> None:
    imported = rows(
        chat("a", step=2), chat("b", step=-1), chat("c", step=10**12), chat("d", step="x")
    )
    assert replies(imported) == ["a"]
    assert imported.report.survey.refused_rows.total == 3


ODD = (None, True, 0, -1.5, float("nan"), "", "text", [], [None], [[]], {}, {"role": 5}, [{}])


def _variants(value: Any) -> list[Any]:
    """The value with each of its parts, two levels deep, replaced by odd ones or taken away."""
    out: list[Any] = []
    for key in value:
        out += [{**value, key: odd} for odd in ODD]
        out.append({k: v for k, v in value.items() if k != key})
        inner = value[key][0] if isinstance(value[key], list) and value[key] else value[key]
        if isinstance(inner, dict):
            for name in inner:
                changed = [{**inner, name: odd} for odd in ODD]
                is_list = isinstance(value[key], list)
                out += [{**value, key: [c, *value[key][1:]] if is_list else c} for c in changed]
    return out


@pytest.mark.parametrize("folder", sorted(p.name for p in FIXTURES.iterdir() if p.is_dir()))
def test_odd_values_in_every_format(folder: str, tmp_path: Path) -> None:
    texts = [*(FIXTURES / folder).rglob("*.jsonl"), *(FIXTURES / folder).rglob("episode_*.json")]
    if not texts:
        pytest.skip("the format is not JSON")
    largest = max(texts, key=lambda path: path.stat().st_size)
    text = largest.read_text()
    value = json.loads(text.split("\n")[0] if largest.suffix == ".jsonl" else text)
    target = tmp_path / "in" / largest.relative_to(FIXTURES / folder)
    target.parent.mkdir(parents=True)
    variants = [value, *_variants(value)]
    target.with_suffix(".jsonl").write_text("".join(json.dumps(v) + "\n" for v in variants))
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert report.num_kept > 0
    # Events of one attempt are one row.
    least = 25 if folder == "agent_lightning" else 50
    assert (
        report.survey.refused_rows.total
        + report.num_kept
        + sum(n for n, _ in report.survey.others.values())
        > least
    )


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
def test_text_in_a_wide_encoding_is_refused_by_its_name(tmp_path: Path, encoding: str) -> None:
    text = json.dumps({"messages": [{"role": "assistant", "content": "für"}]}, ensure_ascii=False)
    (tmp_path / "rows.jsonl").write_bytes(text.encode(encoding))
    sentence = (
        rf"seems to be text in {encoding}: save the file as UTF-8 \(iconv -f {encoding} -t UTF-8"
    )
    with pytest.raises(ImportingError, match=sentence):
        import_run(tmp_path, tmp_path / "run")


def test_numbers_of_two_bytes_are_no_text_in_a_wide_encoding() -> None:
    assert wide_encoding(bytes([200, 0, 3, 0] * 50)) == ""
    assert wide_encoding(b"step,reward\n1,0.5\n2,0.75\n") == ""


def test_text_in_parquet_that_is_no_utf8_is_damage(tmp_path: Path) -> None:
    """Arrow reads such a column without a word; Python cannot make a string of it."""
    raw = pa.array([b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, raw.buffers())
    path = tmp_path / "rollouts.parquet"
    pq.write_table(pa.table({"prompt": text}), path)
    with pytest.raises(SourceError, match="the Parquet file is damaged: 'utf-8' codec"):
        list(ParquetRows(path).scan())
