"""The columns are a promise: every change of them must be seen here, and in the docs."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from echoscope.store import schema
from echoscope.store.log.durable import parquet_options
from echoscope.store.schema import DATA_TABLES, EVENT_TABLES, TABLES

GOLDEN = Path(__file__).with_name("schema_1_0.json")


def current() -> dict[str, dict[str, str]]:
    return {t.name: {column.name: column.type for column in t.columns} for t in TABLES.values()}


def test_no_column_of_version_1_0_ever_changes() -> None:
    """Later minor versions may add columns at the end, and nothing else."""
    golden = json.loads(GOLDEN.read_text())
    assert list(golden) == list(current())[: len(golden)]
    for table, columns in golden.items():
        found = list(current()[table].items())
        assert found[: len(columns)] == list(columns.items())


def test_every_column_beyond_1_0_says_since_when() -> None:
    golden = json.loads(GOLDEN.read_text())
    for table in TABLES.values():
        for column in table.columns:
            is_new = column.name not in golden.get(table.name, {})
            assert (column.since > 0) == is_new, f"{table.name}.{column.name}"
            assert column.since <= schema.SCHEMA_MINOR


def test_names_that_other_parts_rely_on() -> None:
    wanted = {
        "trajectories": "run_id step attempt split id group_index sibling_index env_id tag "
        "env_seed noise_seed prompt_key policy_version env_return episode_return reward_terms "
        "advantage kept drop_reason is_success stop_reason num_turns num_sampled_tokens "
        "duration_s final_observation final_frame source extra",
        "turns": "run_id step trajectory_id turn observation frame response reasoning_start "
        "reasoning_end answer_start answer_end actions reward format_penalty is_valid "
        "is_effective finish_reason info shaping",
        "tokens": "run_id step trajectory_id turn prompt_tokens response_tokens logprobs entropies "
        "trainer_logprobs ref_logprobs advantages information",
        "metrics": "run_id step phase key value",
        "diagnostics": "run_id step kind payload arrays",
    }
    for table, names in wanted.items():
        assert set(names.split()) <= set(TABLES[table].column_names)


def test_arrow_and_duckdb_agree() -> None:
    connection = duckdb.connect()
    for name in TABLES:
        connection.execute(schema.create_table_sql(name, name))
        empty = schema.arrow_schema(name).empty_table()
        connection.register("rows", empty)
        connection.execute(f"INSERT INTO {name} SELECT * FROM rows")
        described = connection.sql(f"DESCRIBE {name}").fetchall()
        assert {row[0]: row[1] for row in described} == current()[name]


def test_every_table_is_stored_somewhere() -> None:
    assert {*DATA_TABLES, *EVENT_TABLES, "runs"} == set(TABLES)


def test_parquet_options_name_columns_that_exist() -> None:
    for name in (*DATA_TABLES, *EVENT_TABLES):
        options = parquet_options(name, packed=True)
        for path in (*options["use_dictionary"], *options["column_encoding"]):
            assert path.split(".")[0] in TABLES[name].column_names


def test_arrow_types() -> None:
    assert schema.arrow_type("FLOAT[]") == pa.list_(pa.float32())
    assert schema.arrow_type("MAP(VARCHAR, DOUBLE[])") == pa.map_(
        pa.string(), pa.list_(pa.float64())
    )
    with pytest.raises(KeyError):
        schema.arrow_type("UUID")
