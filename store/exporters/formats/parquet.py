"""Conversations as Parquet, a file for training and one for evaluation, and as a `datasets` folder.

A row is what the format `messages` writes as a line; the entry `echoscope` is JSON text.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..dialogue import dialogue_of
from ..format import ENTRY, ExportError, Format, Options, Written
from ..source import RunSource
from .messages import row_of

_BATCH_ROWS = 512
_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
_MESSAGE = [("role", pa.string()), ("content", pa.string())]
_TOOL_MESSAGE = [
    *_MESSAGE,
    ("tool_calls", pa.list_(_CALL)),
    ("tool_call_id", pa.string()),
    ("name", pa.string()),
]


def messages_type(*, has_calls: bool) -> pa.DataType:
    """Of a column of messages; without tool calls no field for them, which templates would see."""
    return pa.list_(pa.struct(_TOOL_MESSAGE if has_calls else _MESSAGE))


def has_calls(source: RunSource) -> bool:
    """Whether a turn of the run calls a tool."""
    rows = source.reader.sql("SELECT 1 FROM turns WHERE calls IS NOT NULL LIMIT 1")
    return bool(rows.num_rows)


class ParquetRows:
    """A Parquet file that is written in batches of rows. It appears with its first row."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.num_rows = 0
        self._path = path
        self._schema = schema
        self._rows: list[Mapping[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> ParquetRows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._flush()
        finally:
            if self._writer is not None:
                self._writer.close()

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        self.num_rows += 1
        if len(self._rows) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, self._schema, compression="zstd")
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows.clear()


def _schema(source: RunSource) -> pa.Schema:
    return pa.schema(
        [
            ("messages", messages_type(has_calls=has_calls(source))),
            ("id", pa.string()),
            ("step", pa.int64()),
            ("split", pa.string()),
            ("env", pa.string()),
            ("group_id", pa.string()),
            ("reward", pa.float64()),
            ("turn_rewards", pa.list_(pa.float64())),
            ("success", pa.bool_()),
            ("advantage", pa.float64()),
            ("kept", pa.bool_()),
            ("echoscope", pa.string()),
        ]
    )


def _write(source: RunSource, path: Path, options: Options) -> Written:
    path.mkdir()
    schema = _schema(source)
    with (
        ParquetRows(path / "train.parquet", schema) as train,
        ParquetRows(path / "eval.parquet", schema) as evaluation,
    ):
        for episode in source.episodes():
            dialogue = dialogue_of(episode)
            row = row_of(episode, dialogue) | {
                "advantage": episode.row["advantage"],
                "kept": episode.row["kept"],
                "echoscope": json.dumps(dialogue.entry, allow_nan=False),
            }
            (evaluation if episode.is_evaluation else train).add(row)
    return Written(num_rows=train.num_rows + evaluation.num_rows)


def _write_dataset(source: RunSource, path: Path, options: Options) -> Written:
    try:
        import datasets
    except ImportError:
        raise ExportError(
            "--to datasets needs the package datasets: pip install -e '.[datasets]'. "
            "--to parquet needs nothing, and datasets.load_dataset reads its folder"
        ) from None
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        parts = Path(folder) / "parts"
        written = _write(source, parts, options)
        files = {part.stem: str(part) for part in sorted(parts.glob("*.parquet"))}
        cache = str(Path(folder) / "cache")
        try:
            loaded = {
                name: datasets.Dataset.from_parquet(file, cache_dir=cache)
                for name, file in files.items()
            }
        except datasets.exceptions.DatasetsError as error:
            raise ExportError(
                f"the package datasets cannot write ({error.__cause__ or error}); nothing was left "
                "behind"
            ) from error
        datasets.DatasetDict(loaded).save_to_disk(str(path))
    return written


PARQUET = Format(
    name="parquet",
    noun="conversation",
    holds=ENTRY,
    write=_write,
    is_folder=True,
)
DATASETS = Format(
    name="datasets",
    noun="conversation",
    holds=ENTRY,
    write=_write_dataset,
    is_folder=True,
)
