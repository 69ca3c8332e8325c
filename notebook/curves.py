"""Metrics of a run as a table: a row a step and a column a metric, with units."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from echoscope.diagnostics.catalogue import metric
from echoscope.store.errors import QueryError
from echoscope.store.reader import RunReader
from echoscope.text.did_you_mean import did_you_mean

from .frames import As, as_table

MAX_VALUES = 40_000_000
"""Numbers in one table of metrics: 320 MB."""
_PATTERN = frozenset("*?[")
_LONG = """
SELECT step, phase, key, value FROM metrics WHERE key IN (SELECT unnest($1))
ORDER BY step, phase, key
"""


def keys_meant(keys: str | Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The metrics that names and patterns mean, in the order in which they are asked for.

    Raises:
        QueryError: a name that the run has no metric for, or a pattern that matches none.

    >>> keys_meant(["policy/entropy", "eval/*/success_rate"], ["eval/lake/success_rate",
    ...     "policy/entropy"])
    ['policy/entropy', 'eval/lake/success_rate']
    """
    if keys is None:
        return sorted(known)
    meant: dict[str, None] = {}
    for key in [keys] if isinstance(keys, str) else keys:
        is_pattern = bool(_PATTERN & set(key)) and key not in known
        matching = fnmatch.filter(known, key) if is_pattern else [k for k in known if k == key]
        if not matching:
            raise QueryError(
                f"the run has no metric {key[:80]!r}{did_you_mean(key, known)}"
                if not is_pattern
                else f"no metric of the run matches {key[:80]!r}"
            )
        meant |= dict.fromkeys(matching)
    return list(meant)


def wide(run: RunReader, keys: Sequence[str]) -> pa.Table:
    """A column `step`, then one of float64 for each metric; NULL where a step has no value.

    A metric that a step has in training and in evaluation is that of training. The field of a
    column has its unit and its name for people as metadata.

    Raises:
        QueryError: more numbers than one table holds.
    """
    num_steps = int(run.sql("SELECT count(DISTINCT step) FROM metrics").column(0)[0].as_py())
    if num_steps * len(keys) > MAX_VALUES:
        raise QueryError(
            f"{len(keys)} metrics over {num_steps:,} steps are more than {MAX_VALUES:,} numbers; "
            'name some of them, such as metrics(["policy/entropy", "eval/*"])'
        )
    # One filtered aggregate a metric: the table comes out of DuckDB as wide as it is given back.
    columns = "".join(
        f", arg_max(value, phase) FILTER (key = $k{place}) AS c{place}"
        for place in range(len(keys))
    )
    named = {f"k{place}": key for place, key in enumerate(keys)}
    answer = run.sql(
        f"SELECT step{columns} FROM metrics WHERE key IN (SELECT unnest($keys)) "
        "GROUP BY step ORDER BY step",
        {**named, "keys": list(keys)},
    )
    fields = [
        pa.field(key, pa.float64(), metadata={"unit": metric(key).unit, "name": metric(key).name})
        for key in keys
    ]
    return pa.Table.from_arrays(
        answer.columns, schema=pa.schema([pa.field("step", pa.int64()), *fields])
    )


def as_metrics(run: RunReader, keys: Sequence[str], *, is_wide: bool, as_: As) -> Any:
    """Metrics in the form that is asked for; units in `attrs` of a DataFrame."""
    if not is_wide:
        return as_table(run.sql(_LONG, [list(keys)]), as_)
    table = wide(run, keys)
    if as_ == "arrow":
        return table
    frame = as_table(table, as_).set_index("step")
    frame.attrs["units"] = {key: metric(key).unit for key in keys}
    frame.attrs["names"] = {key: metric(key).name for key in keys}
    return frame
