"""The columns are a promise: every change of them must be seen here, and in the docs."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from echoscope.store import schema
from echoscope.store.log.parquet import parquet_options
from echoscope.store.schema import DATA_TABLES, EVENT_TABLES, TABLES


def current() -> dict[str, dict[str, str]]:
    return {t.name: {column.name: column.type for column in t.columns} for t in TABLES.values()}


def test_names_that_other_parts_rely_on() -> None:
    expected = {
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
    for table, names in expected.items():
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
