"""SQL that tries to write, to destroy, or to look around. `{run}` is the folder of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORGED = (
    '{{"command_id":"x","run_id":"run-1","issued_at":1,"issued_by":"x","action":"stop",'
    '"settings":{{}},"reason":"forged","expires_at":null}}'
)
CTES = (
    "WITH x AS (COPY (SELECT 'gone') TO '{run}/journal.ndjson') SELECT * FROM x",
    "WITH x AS (COPY (SELECT 'gone') TO '{run}/journal.ndjson') SELECT 1",
    "with x as materialized (copy (select 'gone') to '{run}/run.json') select * from x",
    "WITH x AS NOT MATERIALIZED (COPY (SELECT 'gone') TO '{run}/new.csv') FROM x",
    "WITH x(n) AS (COPY (SELECT 1 AS a) TO '{run}/new.parquet' (FORMAT parquet)) FROM x",
    "WITH x AS (COPY steps TO '{run}/new' (FORMAT csv, PARTITION_BY (step))) FROM x",
    f"WITH x AS (COPY (SELECT '{FORGED}' AS c) TO '{{run}}/commands/x.json' "
    "(FORMAT csv, HEADER false, QUOTE '')) SELECT * FROM x",
    "WITH x AS (DELETE FROM live_steps RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM live_metrics) SELECT 1",
    "WITH x AS (TRUNCATE live_metrics) SELECT * FROM x",
    "WITH x AS (UPDATE live_steps SET return_mean = 1 RETURNING *) SELECT * FROM x",
    "WITH x AS (UPDATE live_metrics SET value = 9) SELECT 1",
    "WITH x AS (INSERT INTO live_steps BY NAME SELECT 9 AS step RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO pending_commands BY NAME SELECT 'c' AS command_id) SELECT 1",
    "WITH a AS (SELECT 1), x AS (COPY (FROM a) TO '{run}/new.csv'), c AS (FROM x) FROM c",
    "WITH RECURSIVE x AS (COPY (SELECT 1) TO '{run}/new.csv') SELECT * FROM x",
    "WITH x AS (WITH y AS (COPY (SELECT 1) TO '{run}/new.csv') FROM y) SELECT * FROM x",
    "WITH x AS (MERGE INTO live_steps USING (SELECT 1 AS s) q ON q.s = live_steps.step "
    "WHEN MATCHED THEN DELETE) SELECT 1",
    "WITH x AS (COPY live_steps FROM '{run}/run.json') SELECT 1",
    "WITH x AS (CREATE TABLE y AS SELECT 1) SELECT 1",
)
NESTED = (
    "SELECT * FROM (WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') SELECT * FROM x)",
    "SELECT (WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') SELECT count(*) FROM x)",
    "SELECT 1 WHERE EXISTS (WITH x AS (DELETE FROM live_steps RETURNING *) FROM x)",
    "SELECT 1 IN (WITH x AS (UPDATE live_steps SET step = 5 RETURNING step) FROM x)",
    "SELECT 1 UNION ALL (WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') SELECT 1 FROM x)",
    "SELECT list_transform([1], y -> (WITH x AS (DELETE FROM live_steps RETURNING 1) FROM x))",
    "FROM steps, LATERAL (WITH x AS (DELETE FROM live_steps RETURNING 1) FROM x)",
    "VALUES ((WITH x AS (DELETE FROM live_steps RETURNING 1) FROM x))",
    "SELECT 1 LIMIT (WITH x AS (DELETE FROM live_steps RETURNING 1) FROM x)",
    "SELECT 1 ORDER BY (WITH x AS (DELETE FROM live_steps RETURNING 1) FROM x)",
    "DESCRIBE WITH x AS (DELETE FROM live_steps RETURNING 1) FROM x",
    "SUMMARIZE WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') FROM x",
    "PIVOT (WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') FROM x) ON Count IN (1)",
    "PIVOT (WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') FROM x) ON Count",
    "UNPIVOT (WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') FROM x) ON Count",
    "PIVOT steps ON step USING sum(return_mean)",
)
DISGUISED = (
    "/* read */ WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') SELECT * FROM x",
    "-- read\nwItH x As (cOpY (SeLeCt 1) tO '{run}/new.csv') sElEcT * FrOm x",
    "WITH/**/x/**/AS/**/(COPY/**/(SELECT/**/1)/**/TO/**/'{run}/new.csv')/**/FROM/**/x",
    "\t\n WITH\u00a0x AS (COPY (SELECT 1) TO '{run}/new.csv') SELECT * FROM x",
    'WITH "x" AS (COPY (SELECT 1) TO E\'{run}/new\\u002ecsv\') SELECT * FROM "x"',
    "WITH x AS (COPY (SELECT 1) TO $${run}/new.csv$$) SELECT * FROM x;;;",
    "; WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') SELECT * FROM x",
    "(WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') SELECT * FROM x)",
    "SELECT 1) t; COPY (SELECT 1) TO '{run}/new.csv'; SELECT * FROM (SELECT 1",
    "SELECT 1) LIMIT 1; DELETE FROM live_steps; --",
)
EXPLAINED = (
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 'gone') TO '{run}/journal.ndjson') FROM x",
    f"EXPLAIN ANALYZE WITH x AS (COPY (SELECT '{FORGED}' AS c) TO '{{run}}/commands/x.json' "
    "(FORMAT csv, HEADER false, QUOTE '')) SELECT * FROM x",
    "EXPLAIN (ANALYZE) WITH x AS (DELETE FROM live_steps) SELECT 1",
    "EXPLAIN (ANALYZE, FORMAT json) WITH x AS (DELETE FROM live_steps) SELECT 1",
    "EXPLAIN (FORMAT json) COPY (SELECT 1) TO '{run}/new.csv'",
    "explain/**/analyze/**/with x as (copy (select 1) to '{run}/new.csv') from x",
    "/**/ EXPLAIN ANALYZE COPY (SELECT 1) TO '{run}/new.csv'",
    "EXPLAIN ANALYZE DELETE FROM live_steps",
    "EXPLAIN ANALYZE (WITH x AS (COPY (SELECT 1) TO '{run}/new.csv') FROM x)",
    "EXPLAIN ANALYZE EXPLAIN ANALYZE DELETE FROM live_steps",
)
STATEMENTS = (
    "SELECT 1; COPY (SELECT 1) TO '{run}/new.csv'",
    "COPY (SELECT 1) TO '{run}/new.csv'",
    "COPY live_steps FROM '{run}/run.json'",
    "COPY FROM DATABASE memory TO other",
    "EXPORT DATABASE '{run}/new'",
    "IMPORT DATABASE '{run}'",
    "ATTACH '{run}/new.duckdb' AS other",
    "ATTACH ':memory:' AS other",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE MACRO f() AS TABLE SELECT 1",
    "CREATE OR REPLACE VIEW steps AS SELECT 1",
    "CREATE TEMP VIEW steps AS SELECT 1",
    "CREATE SECRET s (TYPE s3)",
    "CREATE PERSISTENT SECRET s (TYPE s3)",
    "CREATE SEQUENCE s",
    "ALTER TABLE live_steps RENAME TO x",
    "DROP VIEW steps",
    "DROP TABLE live_steps",
    "INSERT INTO live_steps BY NAME SELECT 9 AS step",
    "UPDATE live_steps SET return_mean = 1",
    "DELETE FROM live_steps",
    "TRUNCATE live_steps",
    "PREPARE p AS DELETE FROM live_steps",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "BEGIN TRANSACTION",
    "COMMIT",
    "ROLLBACK",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "LOAD httpfs",
    "INSTALL httpfs",
    "UPDATE EXTENSIONS",
    "USE memory",
    "CALL pragma_version()",
    "CALL enable_logging(storage_path := '{run}/new', storage := 'file')",
    "CALL enable_profiling(save_location := '{run}/new')",
    "SET temp_directory = '{run}'",
    "SET GLOBAL enable_external_access = true",
    "SET disabled_filesystems = ''",
    "SET profiling_output = '{run}/new'",
    "SET log_query_path = '{run}/new'",
    "SET secret_directory = '{run}'",
    "SET VARIABLE x = 1",
    "RESET lock_configuration",
    "RESET disabled_filesystems",
    "PRAGMA enable_profiling",
    "PRAGMA profile_output = '{run}/new'",
    "PRAGMA add_parquet_key('k', '0123456789112345')",
    "PRAGMA import_database('{run}')",
    "PRAGMA json_execute_serialized_sql('{{}}')",
)
FUNCTIONS = (
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('{run}/run.json')",
    "SELECT * FROM read_blob('{run}/writer.lock')",
    "SELECT * FROM read_json('{run}/run.json')",
    "SELECT * FROM read_ndjson_objects('{run}/journal.ndjson')",
    "SELECT * FROM read_parquet('{run}/seg/turns/*.parquet')",
    "SELECT * FROM read_parquet('run://0/seg/turns/*.parquet')",
    "SELECT * FROM parquet_scan(['/etc/passwd'])",
    "SELECT * FROM main.read_csv('/etc/passwd')",
    "SELECT * FROM \"read_csv\"('/etc/passwd')",
    "SELECT * FROM system.main.read_text('/etc/passwd')",
    "SELECT * FROM READ_CSV_AUTO('/etc/passwd')",
    "SELECT * FROM read_duckdb('{run}/run.duckdb')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM parquet_metadata('{run}/seg/turns/x.parquet')",
    "SELECT * FROM parquet_schema('/etc/passwd')",
    "SELECT * FROM glob('{run}/*')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM query('DELETE FROM live_steps')",
    "SELECT * FROM query('WITH x AS (DELETE FROM live_steps RETURNING 1) FROM x')",
    "SELECT * FROM query_table('/etc/passwd')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM enable_logging(storage_path := '{run}/new', storage := 'file')",
    "SELECT * FROM disable_logging()",
    "SELECT * FROM truncate_duckdb_logs()",
    "SELECT * FROM enable_profiling()",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM force_checkpoint()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM read_text('http://127.0.0.1:1/')",
    "SELECT * FROM seq_scan('live_steps')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT getenv('HOME')",
    "SELECT write_log('x')",
    "SELECT json_serialize_plan('DELETE FROM live_steps')",
    "SELECT nextval('s')",
    "SELECT sleep_ms(100)",
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "{run}/run.json"',
    "FROM '{run}/seg/turns/*.parquet'",
    "FROM 'run://0/seg/turns/x.parquet'",
    "DESCRIBE '/etc/passwd'",
    "SUMMARIZE '{run}/journal.ndjson'",
    'TABLE "/etc/passwd"',
    "FROM __import__",
    "FROM new_rows",
)
EVASIONS = (*CTES, *NESTED, *DISGUISED, *EXPLAINED, *STATEMENTS, *FUNCTIONS)


def written(sql: str, run: Path) -> str:
    """The query with the folder of the run in it."""
    return sql.replace("{run}", str(run)).replace("{{", "{").replace("}}", "}")


@contextmanager
def nothing_changes(*folders: Path) -> Iterator[None]:
    """Whatever happens inside: every file in the folders keeps its bytes, and none comes anew."""
    before = _bytes_of(folders)
    yield
    after = _bytes_of(folders)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not changed, sorted(os.fspath(path) for path in changed)


def _bytes_of(folders: tuple[Path, ...]) -> dict[Path, bytes | None]:
    return {
        path: path.read_bytes() if path.is_file() else None
        for folder in folders
        for path in folder.rglob("*")
    }
