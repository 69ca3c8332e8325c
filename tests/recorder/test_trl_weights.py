"""The return of a TRL run is what TRL trains on: its own number, or the terms by their weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from echoscope.diagnostics.tools.importing import import_path
from echoscope.recorder.trl import EchoscopeCallback
from echoscope.store.exporters.exporting import export_run
from echoscope.store.exporters.format import ExportError, Options
from echoscope.store.importers.format import Where
from echoscope.store.importers.formats.trl import COMPLETIONS, episode
from echoscope.store.reader import open_run

RETURN, MADE_UP = "reward/return_mean", "reward/is_reconstructed"
SHARES, LENGTHS = (0.25, 0.5, 0.75, 0.5), (-10.0, -20.0, -30.0, -40.0)


def completions(folder: Path, step: int) -> None:
    """Four replies to one prompt: the longer, the better."""
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "step": [step] * 4,
            "prompt": ["go"] * 4,
            "completion": [letter * 4 for letter in "abcd"],
            "share_of_a": list(SHARES),
            "minus_length": list(LENGTHS),
            "advantage": [0.0] * 4,
        }
    )
    pq.write_table(table, folder / "completions" / f"completions_{step:05d}.parquet")


def logs(weights: Sequence[float], *, has_return: bool = True) -> dict[str, float]:
    share, length = sum(SHARES) / 4, sum(LENGTHS) / 4
    own = {"reward": weights[0] * share + weights[1] * length} if has_return else {}
    return {**own, "rewards/share_of_a/mean": share, "rewards/minus_length/mean": length}


def recorded(
    folder: Path, weights: Sequence[float] | None, numbers: dict[str, float], steps: int = 2
) -> Path:
    """A run of TRL as the callback sees it."""
    args: Any = SimpleNamespace(
        output_dir=str(folder), log_completions=True, reward_weights=weights, to_dict=lambda: {}
    )
    state: Any = SimpleNamespace(is_world_process_zero=True, max_steps=steps, global_step=0)
    control: Any = SimpleNamespace(should_training_stop=False)
    callback = EchoscopeCallback(folder / "run")
    callback.on_train_begin(args, state, control)
    for step in range(1, steps + 1):
        callback.on_step_begin(args, state, control)
        state.global_step = step
        callback.on_log(args, state, control, logs=numbers)
        completions(folder, step)
    callback.on_train_end(args, state, control)
    return folder / "run"


def values(run: Path, step: int = 1) -> dict[str, float]:
    rows = open_run(run).sql("SELECT key, value FROM metrics WHERE step = $1", [step]).to_pylist()
    return {row["key"]: row["value"] for row in rows}


def returns(run: Path) -> list[float]:
    rows = open_run(run).sql(
        "SELECT episode_return AS r FROM trajectories WHERE step = 1 ORDER BY id"
    )
    return [float(value) for value in rows.column("r").to_pylist()]


@pytest.mark.parametrize("weights", [(1.0, 0.0), (1.0, 0.5), (0.0, 0.0), (2.0, -1.0)])
@pytest.mark.parametrize("has_return", [True, False])
def test_the_terms_are_weighted(
    tmp_path: Path, weights: tuple[float, float], has_return: bool
) -> None:
    run = recorded(tmp_path, weights, logs(weights, has_return=has_return))
    expected = [weights[0] * s + weights[1] * n for s, n in zip(SHARES, LENGTHS, strict=True)]
    assert returns(run) == pytest.approx(expected)
    logged = values(run)
    assert logged[RETURN] == pytest.approx(sum(expected) / 4)
    assert logged["reward/term/minus_length"] == pytest.approx(weights[1] * -25.0)
    assert logged["reward/term/share_of_a"] == pytest.approx(weights[0] * 0.5)
    assert MADE_UP not in logged


def test_without_weights_all_are_1(tmp_path: Path) -> None:
    run = recorded(tmp_path, None, logs((1.0, 1.0)))
    assert values(run)[RETURN] == pytest.approx(-24.5)
    assert MADE_UP not in values(run)


def test_weights_that_do_not_fit_the_functions_make_no_return(tmp_path: Path) -> None:
    run = recorded(tmp_path, [1.0, 0.0, 0.5], logs((1.0, 0.0), has_return=False))
    assert values(run)[MADE_UP] == 1.0
    assert "reward/group_std_mean" not in values(run)


def test_an_import_takes_the_trainers_number_beside_terms_of_unknown_weight(tmp_path: Path) -> None:
    source = tmp_path / "output"
    for step in range(1, 6):
        completions(source, step)
    import_path(source, tmp_path / "alone")
    assert (values(tmp_path / "alone")[RETURN], values(tmp_path / "alone")[MADE_UP]) == (-24.5, 1.0)
    history = [{"step": step, "reward": 0.5, "loss": 0.1} for step in range(1, 5)]
    state = {"global_step": 4, "log_history": history}
    (source / "checkpoint-4").mkdir()
    (source / "checkpoint-4" / "trainer_state.json").write_text(json.dumps(state))
    import_path(source, tmp_path / "both")
    assert values(tmp_path / "both")[RETURN] == 0.5
    assert not {MADE_UP, "reward/return_max"} & values(tmp_path / "both").keys()
    assert RETURN not in values(tmp_path / "both", 5), "one curve has one source"


def test_one_function_is_its_own_return() -> None:
    row = {"step": 1, "prompt": "go", "completion": "a", "r": 0.5, "advantage": 0.0}
    (draft,) = COMPLETIONS.drafts(row, Where(path=Path("x")))
    assert draft.turns[0].reward == 0.5
    assert draft.reconstructed == set()
    row["other"] = 0.25
    assert episode(row).reconstructed == {"reward_terms"}
    assert episode(row, [1.0, -1.0]).turns[0].reward == 0.25


@pytest.mark.parametrize(("to", "best"), [("dpo", None), ("sft", 1)])
def test_an_export_by_return_refuses_returns_of_unknown_weights(
    tmp_path: Path, to: str, best: int | None
) -> None:
    completions(tmp_path / "output", 1)
    import_path(tmp_path / "output", tmp_path / "run")
    with pytest.raises(ExportError, match="which reply is better is not known: the returns of 4 "):
        export_run(tmp_path / "run", to, tmp_path / "out.jsonl", Options(best=best))
    assert export_run(tmp_path / "run", "sft", tmp_path / "out.jsonl").num_rows == 4
    run = recorded(tmp_path / "again", (1.0, 0.0), logs((1.0, 0.0)))
    assert export_run(run, to, tmp_path / "o.jsonl", Options(best=best)).num_rows
