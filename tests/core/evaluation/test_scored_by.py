"""A stored run scored again: as the run itself would have, or under other weights, and said so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.evaluation.scored_by import by_checkpoint, by_model
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.config import InformationConfig
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.table import MetricTable, table_of_run
from echoscope.diagnostics.tools.rescoring import (
    RescoringError,
    sample_for_scoring,
    with_information,
)
from echoscope.store.reader import RunReader, open_run

MakeConfig = Callable[..., RunConfig]
KEY = "info/first_turn/mutual_information"
ENTROPY = "info/first_turn/conditional_entropy_per_token"


@pytest.fixture(scope="module")
def reader(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    """Six steps with large updates, each measured by the run itself; checkpoints at 3 and 6."""
    path = tmp_path_factory.mktemp("runs") / "run"
    config = make_config(
        "steps=6",
        "optim.lr=1e-2",
        "eval.before=false",
        "eval.every=0",
        "checkpoint.every=3",
        "diagnostics.information.every=1",
        "diagnostics.budget_frac=1",
        "diagnostics.gradient.every=0",
    )
    assert start(config, path, SilentEvents()) == "finished"
    return open_run(path)


@pytest.fixture(scope="module")
def table(reader: RunReader) -> MetricTable:
    return table_of_run(reader)


def value_at(table: MetricTable, key: str, step: int) -> float:
    return float(table.columns[key][table.steps.tolist().index(step)])


def note(table: MetricTable, phrase: str) -> str:
    (noted,) = [note for note in table.notes if phrase in note]
    return noted


def test_what_a_checkpoint_sampled_is_measured_as_the_run_did(
    reader: RunReader, table: MetricTable
) -> None:
    """The weights after step 3 sampled step 4, and no other step."""
    scored = with_information(table, reader, by_checkpoint(reader, 3), every=1)
    assert value_at(scored, KEY, 4) == pytest.approx(value_at(table, KEY, 4), abs=1e-4)
    assert value_at(scored, ENTROPY, 4) == pytest.approx(value_at(table, ENTROPY, 4), abs=1e-4)
    assert value_at(scored, KEY, 1) != pytest.approx(value_at(table, KEY, 1), abs=1e-4)
    assert np.isnan(value_at(scored, ENTROPY, 1))
    assert value_at(scored, "info/first_turn/cross_entropy_per_token", 1) > 0


def test_the_notes_say_which_weights(reader: RunReader, table: MetricTable) -> None:
    scored = with_information(table, reader, by_checkpoint(reader, 3), every=1)
    assert note(scored, "was scored under") == (
        "I(X;Z) of 6 steps (1, 2, 3, 4, 5, 6) was scored under the checkpoint of step 3"
    )
    assert "those weights sampled 1 of them (4)" in note(scored, "not unbiased")
    assert list(scored.caveats) == ["info/"]


def test_other_metrics_stay(reader: RunReader, table: MetricTable) -> None:
    seen: list[tuple[int, int]] = []
    scored = with_information(
        table,
        reader,
        by_checkpoint(reader, 3),
        every=3,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert seen == [(1, 2), (2, 2)]
    kept = "reward/group_std_mean"
    assert scored.columns[kept].tolist() == table.columns[kept].tolist()
    assert np.isnan(value_at(scored, KEY, 2))  # measured by the run, not scored now


def test_a_model_from_elsewhere(reader: RunReader, table: MetricTable, tiny_model: Path) -> None:
    """The run's own starting weights sampled step 1."""
    scored = with_information(table, reader, by_model(reader, str(tiny_model)))
    assert str(tiny_model) in note(scored, "was scored under the model")
    assert "those weights sampled 1 of them (1)" in note(scored, "not unbiased")


def test_a_verdict_with_it(reader: RunReader) -> None:
    weights = by_checkpoint(reader, 3)
    verdict = diagnose(reader, rescore=lambda t, r: with_information(t, r, weights))
    assert "information" in verdict.had
    assert any("the checkpoint of step 3" in note for note in verdict.notes)


def test_missing_checkpoints_are_named(reader: RunReader) -> None:
    with pytest.raises(ConfigError, match="no checkpoint of step 5; it has 0, 3, 6"):
        by_checkpoint(reader, 5)


def test_another_tokenizer_is_refused(reader: RunReader) -> None:
    with pytest.raises(ConfigError, match="another tokenizer"):
        by_model(reader, "tiny")


def test_ids_out_of_range_are_refused(reader: RunReader, table: MetricTable) -> None:
    small = replace(by_checkpoint(reader, 3), vocabulary=10)
    with pytest.raises(RescoringError, match="knows ids below 10"):
        with_information(table, reader, small)


def test_adapters(make_config: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = make_config(
        "steps=2",
        "eval.before=false",
        "eval.every=0",
        "checkpoint.every=1",
        "optim.lr=1e-2",
        "model.lora.rank=4",
        "diagnostics.enabled=false",
    )
    start(config, path, SilentEvents())
    reader = open_run(path)
    scored = with_information(table_of_run(reader), reader, by_checkpoint(reader, 1), every=1)
    assert "those weights sampled 1 of them (2)" in note(scored, "not unbiased")


def test_the_sample_is_whole_groups_first(reader: RunReader) -> None:
    few = InformationConfig(prompts=2, reasonings=2)
    chosen = sample_for_scoring(reader, 1, few)
    assert [(t.group_index, t.sibling_index) for t in chosen] == [(0, 0), (0, 1), (1, 0), (1, 1)]
