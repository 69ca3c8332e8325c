"""Write a whole copy of a damaged run: what can be proven is taken over, what cannot is named.

The damaged run stays as it is. A record is taken where its own checksum is right and it is this
run's; a data file where it is what a record or the manifest says of it. Where a record is lost but
the segments that it named are still there, whole and without contradictions, the step's
trajectories come back without its metrics.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..checkpoints import STATE_NAME, checkpoint_damage, checkpoint_folders
from ..errors import NotARunError, RunBusyError, RunExistsError, StoreError
from ..query.lookup import conform
from ..schema import DATA_TABLES, SCHEMA_VERSION, TABLES
from .durable import (
    CHECKED_FORMAT,
    is_locked,
    new_id,
    read_json_object,
    replace_file,
    sha256_of,
    sync_folder,
    to_checked_json_bytes,
    write_new_file,
)
from .index import describe_run
from .integrity import damage_of
from .journal import (
    Piece,
    Record,
    check_ends,
    encode_piece,
    encode_tail,
    parse_chunk,
    piece_proof,
    read_live_piece,
    read_piece,
)
from .layout import FileEntry, Layout, Pack, Segment
from .packs.manifest import Manifest, load_manifest, write_manifest
from .packs.pack_file import footer_proof, write_pack_file
from .packs.salvage import Salvage, salvage_by_pages
from .state import RunState
from .verify import inconsistencies, lost_rows, proven_rest, verify

_SEGMENT = re.compile(r"([0-9]{8})-([0-9a-f]{8})\.parquet")
_PACK = re.compile(r"([0-9]{8})-([0-9]{8})-([0-9a-f]{8})\.parquet")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair did."""

    path: Path
    """The new run."""
    num_files: int
    num_trajectories: int
    rebuilt: tuple[str, ...]
    """What was made again from something else, in words."""
    lost: tuple[str, ...]
    """What could not be proven and was left out, in words."""


@dataclass(slots=True)
class _Work:
    """A repair on its way."""

    source: Layout
    target: Layout
    run_id: str
    progress: Progress
    rebuilt: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    replaced: frozenset[str] = frozenset()
    """Segments of early trajectories whose step was written since: their files are gone."""

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.source.root))


def repair(
    path: str | Path, to: str | Path | None = None, *, progress: Progress = lambda _: None
) -> RepairReport:
    """Write what can be proven of a run to a new folder, by default `RUN.repaired`.

    Args:
        progress: is told, in words, what is being done.

    Raises:
        NotARunError: neither `run.json` nor a journal is there.
        RunBusyError: a trainer writes the run.
        RunExistsError: the new folder is there already.
        StoreError: nothing of the run can be read, or the disk refuses.
    """
    source = Layout(Path(path).resolve())
    final = Path(to).resolve() if to else source.root.with_name(f"{source.root.name}.repaired")
    if not source.root.is_dir():
        raise NotARunError(f"{source.root}: no such folder")
    if is_locked(source.writer_lock):
        raise RunBusyError(f"{source.root}: the run is running; repair it when it has ended")
    if final.exists():
        raise RunExistsError(f"{final} is there already; give another folder with --to")
    partial = final.with_name(f".{final.name}.{new_id()}.partial")
    try:
        report = _repair(source, Layout(partial), progress)
        partial.rename(final)
        sync_folder(final.parent)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{final}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return replace(report, path=final)


def _repair(source: Layout, target: Layout, progress: Progress) -> RepairReport:
    description, rebuilt = _description(source)
    run_id = str(description["run_id"])
    work = _Work(source, target, run_id, progress, rebuilt=rebuilt)
    for folder in (*target.data_folders(), target.pieces, target.commands):
        folder.mkdir(parents=True, exist_ok=True)
    manifest = _manifest(work)
    progress("reading the journal")
    pieces = _pieces(work, manifest)
    records = [record for piece in pieces for record in piece.records]
    work.replaced = frozenset(name for record in records for name in record.get("replaces", ()))
    packs = _packs(work, manifest)
    _adopt_segments(work, manifest, pieces)
    loose = [kept for s in manifest.loose if (kept := _kept_segment(work, s)) is not None]
    for piece in pieces:
        piece.records = [_kept_record(work, record) for record in piece.records]
    _write_journal(work, description, pieces, manifest)
    write_manifest(target, Manifest(run_id=run_id, packs=tuple(packs), loose=tuple(loose)))
    _copy_checkpoints(work)
    _copy_rest(work)
    replace_file(target.run_json, to_checked_json_bytes(description))
    progress("checking the new run")
    report = verify(target.root)
    if report.problems:
        raise StoreError(f"the repaired run is not whole: {report.problems[0]}")
    return RepairReport(
        path=target.root,
        num_files=report.num_files,
        num_trajectories=report.num_trajectories,
        rebuilt=tuple(work.rebuilt),
        lost=tuple(dict.fromkeys(work.lost)),
    )


def _description(source: Layout) -> tuple[dict[str, Any], list[str]]:
    """What `run.json` should say, and how it was found where that file does not say it."""
    numbers = reversed(source.piece_numbers())
    headers = [
        chunk.records[0]
        for path in (source.journal, *(source.piece(number) for number in numbers))
        if path.is_file() and (chunk := parse_chunk(path.read_bytes())).records
    ]
    owners = {header["run_id"] for header in headers if isinstance(header.get("run_id"), str)}
    try:
        description, problem = describe_run(source)
    except StoreError:
        pass
    else:
        if not owners or description["run_id"] in owners:
            rebuilt = [] if problem is None else ["run.json, from the journal"]
            return {k: v for k, v in description.items() if k != "format"}, rebuilt
    for header in headers:
        if isinstance(header.get("description"), dict):
            return dict(header["description"]), ["run.json, from the journal"]
    for header in headers:
        if isinstance(header.get("run_id"), str):
            return _plain_description(source, header), [
                "run.json, as far as journal and checkpoints tell; its name and tags are lost"
            ]
    raise NotARunError(f"{source.root}: neither run.json nor the journal can be read")


def _plain_description(source: Layout, header: Mapping[str, Any]) -> dict[str, Any]:
    config = "{}"
    for folder in reversed(checkpoint_folders(source.checkpoints)):
        if not checkpoint_damage(folder):
            config = json.dumps(read_json_object(folder / STATE_NAME).get("config", {}))
            break
    return dict.fromkeys(TABLES["runs"].column_names) | {
        "run_id": header["run_id"],
        "schema_version": SCHEMA_VERSION,
        "config": config,
        "live_knobs": "{}",
        "created_at": float(header.get("wall_time", 0.0)),
        "tags": [],
    }


def _manifest(work: _Work) -> Manifest:
    manifest, problem = load_manifest(work.source, work.run_id)
    packs_by_name = _packs_by_name(work.source)
    if manifest is None or (not manifest.packs and not manifest.piece and packs_by_name):
        first = min(work.source.piece_numbers(), default=None)
        if first == 1:  # no piece was packed away: what lies there is left over
            return Manifest(run_id=work.run_id)
        packs, damaged = _rebuilt_packs(work, packs_by_name)
        work.rebuilt.append(f"the manifest, from {len(packs)} packs")
        work.lost += damaged
        return Manifest(run_id=work.run_id, piece=(first or 1) - 1, packs=tuple(packs))
    if problem:
        work.rebuilt.append("MANIFEST.json, from its copy")
    return manifest


def _packs_by_name(source: Layout) -> dict[str, list[tuple[str, Path]]]:
    """Files of each pack, by its id."""
    by_id: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for path in sorted(source.root.glob("pack/*/*.parquet")):
        match = _PACK.fullmatch(path.name)
        if match and path.parent.name in TABLES:
            by_id[match[3]].append((path.parent.name, path))
    return by_id


def _rebuilt_packs(
    work: _Work, found: Mapping[str, list[tuple[str, Path]]]
) -> tuple[list[Pack], list[str]]:
    packs, damaged = [], []
    for identity, files in found.items():
        entries, attempts = [], set()
        for table, path in files:
            try:
                rows = pq.read_table(path, page_checksum_verification=True)
                entry = _entry_of(work.source, table, path, rows)
                if "attempt" in rows.column_names:
                    attempts |= set(rows["attempt"].to_pylist())
            except (OSError, pa.ArrowException, KeyError) as error:
                damaged.append(f"{work.name(path)}: it cannot be read ({_one_line(error)})")
                continue
            entries.append(entry)
        match = _PACK.fullmatch(files[0][1].name)
        attempts.discard(None)
        if entries and match and len(attempts) == 1:
            packs.append(
                Pack(
                    id=identity,
                    attempt=attempts.pop(),
                    first_step=int(match[1]),
                    last_step=int(match[2]),
                    files=tuple(entries),
                )
            )
    return sorted(packs, key=lambda p: (p.attempt, p.first_step)), damaged


def _entry_of(source: Layout, table: str, path: Path, rows: pa.Table) -> FileEntry:
    """The entry of a file whose page checksums are right."""
    version = (rows.schema.metadata or {}).get(b"echoscope.schema_version", b"")
    return FileEntry(
        table=table,
        path=str(path.relative_to(source.root)),
        num_rows=rows.num_rows,
        num_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        schema_version=version.decode() or SCHEMA_VERSION,
        footer=footer_proof(path),
    )


def _pieces(work: _Work, manifest: Manifest) -> list[Piece]:
    """All pieces that are not in packs, missing ones included; the last is the live one."""
    source = work.source
    live = read_live_piece(source, work.run_id)
    last = max([manifest.piece, *source.piece_numbers()])
    if live is not None and live.header is not None:
        last = max(last, int(live.header["piece"]) - 1)
    pieces: dict[int, Piece] = {}
    for number in (*manifest.kept, *range(manifest.piece + 1, last + 1)):
        path = source.piece(number)
        piece = read_piece(path, work.run_id)
        pieces[number] = piece or Piece(path=path, faults=["it is missing"])
    # A live piece is missing after a crash between two renames, too.
    pieces[last + 1] = live or Piece(path=source.journal)
    check_ends({number: piece for number, piece in pieces.items() if piece.data})
    for piece in pieces.values():
        work.lost += [f"{work.name(piece.path)}: {what}" for what in piece.faults]
    return list(pieces.values())


def _packs(work: _Work, manifest: Manifest) -> list[Pack]:
    packs = []
    for number, pack in enumerate(manifest.packs, 1):
        work.progress(f"pack {number} of {len(manifest.packs)}")
        files = _kept_files(work, pack, pack.files)
        if files:
            packs.append(replace(pack, files=files))
    return packs


def _kept_files(
    work: _Work, unit: Pack | Segment, files: Iterable[FileEntry]
) -> tuple[FileEntry, ...]:
    """Those of some files that are what was promised, linked or copied to the new run."""
    kept = []
    for entry in files:
        why = damage_of(work.source.root, entry)
        if why and isinstance(unit, Segment) and unit.id in work.replaced:
            continue
        if not why:
            _copy(work.source.root / entry.path, work.target.root / entry.path)
            kept.append(entry)
            continue
        left = _rest_of(work, unit, entry)
        if left is not None and left.num_rows == entry.num_rows:
            work.rebuilt.append(f"{entry.path}, from its row groups, which are whole")
        else:
            work.lost.append(f"{lost_rows(unit, entry, left)}: {entry.path}: {why}")
        if left is not None:
            rows = left.rows(work.source.root / entry.path)
            groups = (conform(group, entry.table) for group in rows)
            written = write_pack_file(work.target, entry.path, entry.table, groups)
            kept.append(replace(written, lost_steps=(*entry.lost_steps, *left.lost_steps)))
    return tuple(kept)


def _rest_of(work: _Work, unit: Pack | Segment, entry: FileEntry) -> Salvage | None:
    """What is proven of a damaged file of a pack; of an older pack, what its pages prove."""
    root = work.source.root
    left = proven_rest(root, entry)
    if left is not None or not isinstance(unit, Pack) or entry.footer is not None:
        return left
    try:
        left = salvage_by_pages(root, entry)
        is_ours = left is not None and all(
            set(rows["run_id"].to_pylist()) == {work.run_id}
            and set(rows["attempt"].to_pylist()) == {unit.attempt}
            for rows in left.rows(root / entry.path)
            if "attempt" in rows.column_names
        )
    except (OSError, pa.ArrowException):
        return None
    return left if is_ours else None


def _kept_segment(work: _Work, segment: Segment) -> Segment | None:
    files = _kept_files(work, segment, segment.files)
    return replace(segment, files=files) if files else None


def _kept_record(work: _Work, record: Record) -> Record:
    value = record.get("segment")
    if value is None:
        return record
    segment = _kept_segment(work, Segment.from_json(value))
    if segment is None and record["kind"] == "micro":
        return {"kind": "event", "step": record["step"], "attempt": record["attempt"]}
    return record | {"segment": None if segment is None else segment.to_json()}


def _adopt_segments(work: _Work, manifest: Manifest, pieces: list[Piece]) -> None:
    """Give steps whose record is lost the segments that it named, where these are whole."""
    if not any(piece.faults for piece in pieces):
        return
    records = [record for piece in pieces for record in piece.records]
    named = {Segment.from_json(record["segment"]).id for record in records if record.get("segment")}
    dropped = {entry.path for entry in manifest.dropped}
    loose = {segment.id for segment in manifest.loose}
    known = {(r["attempt"], r["step"]) for r in records if r["kind"] == "step"}
    known |= {
        (pack.attempt, step)
        for pack in manifest.packs
        for step in range(pack.first_step, pack.last_step + 1)
    }
    found: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for path in sorted(work.source.root.glob("seg/*/*.parquet")):
        match = _SEGMENT.fullmatch(path.name)
        is_named = match and match[2] in named | work.replaced | loose
        if match and not is_named and str(path.relative_to(work.source.root)) not in dropped:
            found[match[2]].append((path.parent.name, path))
    best: dict[tuple[int, int], tuple[int, Segment, Record]] = {}
    for identity, files in found.items():
        segment, row = _segment_of(work, identity, files)
        if segment is None or (segment.attempt, segment.step) in known:
            continue
        place = (segment.attempt, segment.step)
        if place not in best or best[place][0] < row["num_trajectories"]:
            best[place] = (row["num_trajectories"], segment, row)
    for (attempt, step), (_, segment, row) in sorted(best.items()):
        record: Record = {"step": step, "attempt": attempt, "segment": segment.to_json()}
        if row["num_kept"] is None:  # no update has seen it: perhaps the step was not over
            record |= {"kind": "micro"}
        else:
            record |= {"kind": "step", "replaces": [], "steps": [row], "metrics": []}
        if _insert(pieces, record | {"wall_time": time.time()}):
            work.rebuilt.append(f"step {step} of attempt {attempt}, from its segments")
            work.lost.append(f"metrics, alarms and checkpoints of step {step}, attempt {attempt}")


def _segment_of(
    work: _Work, identity: str, files: list[tuple[str, Path]]
) -> tuple[Segment | None, Record]:
    """A segment from files that no record names, and the row of its step."""
    entries, tables = [], {}
    for table, path in files:
        try:
            tables[table] = pq.read_table(path, page_checksum_verification=True)
            entries.append(_entry_of(work.source, table, path, tables[table]))
        except (OSError, pa.ArrowException, KeyError):
            return None, {}
    rows = tables.get("trajectories")
    if rows is None or not rows.num_rows or not set(tables) <= set(DATA_TABLES):
        return None, {}
    steps, attempts = (set(rows.column(name).to_pylist()) for name in ("step", "attempt"))
    if len(steps) != 1 or len(attempts) != 1 or set(rows["run_id"].to_pylist()) != {work.run_id}:
        return None, {}
    step = steps.pop()
    segment = Segment(id=identity, step=step, attempt=attempts.pop(), files=tuple(entries))
    if list(inconsistencies(work.source.root, segment)):
        return None, {}
    train = rows.filter(pc.equal(rows["split"], "train"))
    return segment, {
        "step": step,
        "num_trajectories": train.num_rows,
        "num_kept": pc.sum(train["kept"]).as_py(),
        "return_mean": pc.mean(train["episode_return"]).as_py(),
        "success_rate": pc.mean(pc.cast(train["is_success"], pa.float64())).as_py(),
        "num_turns_mean": pc.mean(train["num_turns"]).as_py(),
        "num_sampled_tokens": pc.sum(train["num_sampled_tokens"]).as_py(),
    }


def _insert(pieces: list[Piece], record: Record) -> bool:
    """Put a rebuilt step into the damaged piece that covers it; False where none does."""
    for position, piece in enumerate(pieces):
        later = pieces[position + 1].header if position + 1 < len(pieces) else None
        first = -1 if piece.header is None else piece.header["last_step"]
        is_before_next = later is None or record["step"] <= later["last_step"]
        is_attempt = piece.header is None or piece.header["attempt"] <= record["attempt"]
        if piece.faults and record["step"] > first and is_before_next and is_attempt:
            place = next(
                (
                    number
                    for number, other in enumerate(piece.records)
                    if other["attempt"] > record["attempt"]
                    or other["kind"] == "close"
                    or (other["kind"] in ("step", "micro") and other["step"] > record["step"])
                ),
                len(piece.records),
            )
            piece.records.insert(place, record)
            return True
    return False


def _write_journal(
    work: _Work, description: Mapping[str, Any], pieces: list[Piece], manifest: Manifest
) -> None:
    """The pieces of the new run: renumbered from 1, each bound to the one before."""
    target = work.target
    state = RunState(work.run_id)
    if manifest.state is not None:
        state.apply({"kind": "journal", **manifest.state, "run_id": work.run_id})
    previous: dict[str, Any] | None = None
    crc = None
    for number, piece in enumerate(pieces, 1):
        if piece.header is not None:
            before = state.unfinished
            state.apply(piece.header)
            kept = [before.get(s.id) or _kept_segment(work, s) for s in state.unfinished.values()]
            state.unfinished = {segment.id: segment for segment in kept if segment is not None}
        state.description = description
        header = {
            "kind": "journal",
            "format": CHECKED_FORMAT,
            "piece": number,
            "previous": previous,
            **state.header(time.time()),
        }
        for record in piece.records:
            state.apply(record)
        data = encode_piece([header, *piece.records], work.run_id, *([crc] if crc else []))
        is_live = number == len(pieces)
        path = target.journal if is_live else target.piece(number)
        write_new_file(path, data)
        previous, crc = piece_proof(path, number)
        if is_live:
            write_new_file(target.tail, encode_tail(number, len(data), crc))


def _copy_checkpoints(work: _Work) -> None:
    for folder in checkpoint_folders(work.source.checkpoints):
        work.progress(f"checkpoint {folder.name}")
        why = checkpoint_damage(folder, run_id=work.run_id)
        if why:
            work.lost.append(f"{work.name(folder)}: {why}")
        else:
            shutil.copytree(folder, work.target.checkpoints / folder.name, copy_function=_copy_text)


def _copy_rest(work: _Work) -> None:
    if work.source.annotations.is_file():
        shutil.copy2(work.source.annotations, work.target.annotations)
    if work.source.commands.is_dir():
        for path in work.source.commands.glob("*.json"):
            if path.is_file() and not path.is_symlink():
                shutil.copy2(path, work.target.commands / path.name)


def _copy(source: Path, target: Path) -> None:
    """Share a file that nobody changes in place, or copy it where the disk cannot share."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:
        shutil.copy2(source, target)


def _copy_text(source: str, target: str) -> None:
    _copy(Path(source), Path(target))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
