"""A run at a W&B server by its address: what is asked, and what happens where nobody answers."""

from __future__ import annotations

import time

import pytest

from echoscope.diagnostics.read import wandb_address
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.wandb_address import is_address, path_of, read_address

ADDRESS = "wandb:lab/ragen/3f8a2c1d"
SAY = "import json, time; say = lambda **a: print(json.dumps(a), flush=True); "


@pytest.mark.parametrize(
    "address",
    ["wandb:", "wandb:run", "wandb:lab/ragen", "wandb:a/b/c/d", "wandb:a//c"],
)
def test_an_address_without_its_three_parts_is_refused_in_one_line(address: str) -> None:
    assert is_address(address)
    with pytest.raises(MetricsFileError, match="write wandb:ENTITY/PROJECT/RUN"):
        path_of(address)


def asks(monkeypatch: pytest.MonkeyPatch, program: str, timeout_s: float = 20.0) -> None:
    """The server is asked by another program, which needs no wandb."""
    monkeypatch.setattr(wandb_address, "_PROGRAM", SAY + program)
    monkeypatch.setattr(wandb_address, "_require_wandb", lambda address: None)
    monkeypatch.setattr(wandb_address, "TIMEOUT_S", timeout_s)


def test_pages_of_rows_become_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asks(
        monkeypatch,
        "say(rows=[{'_step': 0, '_runtime': 9, 'actor/entropy': 0.5}, {'_step': 1, "
        "'actor/entropy': 'NaN', 'table': {'_type': 'table-file', 'nrows': 7}}]); "
        "say(rows=[{'_step': 2, 'actor/entropy': 0.25, 'n': {'a': True}}]); "
        "say(name='lake', state='running')",
    )
    run = read_address(ADDRESS)
    assert (run.name, run.files) == ("lake", (ADDRESS,))
    assert run.table.steps.tolist() == [0, 1, 2]
    assert run.table.columns["policy/entropy"][[0, 2]].tolist() == [0.5, 0.25]
    assert set(run.table.raw) == {"actor/entropy", "n.a"}


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("say(error='could not find it', kind='ValueError')", "W&B has no such run"),
        ("say(rows=[]); say(name='x', state='')", "the run has no row of metrics"),
        ("pass", "the process that asks W&B ended early"),
        ("time.sleep(600)", "no answer within 0.5 s"),
    ],
)
def test_a_run_that_does_not_come_is_one_line_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    asks(monkeypatch, program, timeout_s=0.5 if "sleep" in program else 20.0)
    begun = time.monotonic()
    with pytest.raises(MetricsFileError, match=message):
        read_address(ADDRESS)
    assert time.monotonic() - begun < 60.0
