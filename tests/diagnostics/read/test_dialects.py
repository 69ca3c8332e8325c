"""One table of metrics, written in every dialect, is read back to the same steps and values."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echoscope.diagnostics.read.foreign_names import meaning_of
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.store.importers import packed_file
from tests.diagnostics.read.dialects import (
    DIALECTS,
    LENGTH,
    NAMES,
    NOISE,
    PREFIXES,
    RETURN,
    Table,
    line_table,
)

ALSO = {RETURN: "reward/success_rate", LENGTH: "rollout/num_sampled_tokens_mean"}
"""Where else a metric may land: a reward within 0..1; RAGEN's `train/response_length`."""
SUFFIXES = {"json_documents": ".json", "notebooks": ".ipynb", "delimited": ".csv"}


def must_be_read(table: Table, path: Path) -> None:
    got = read_metrics(path)
    assert got.steps.tolist() == list(table.steps)
    for name, key in table.keys.items():
        values = got.columns.get(key)
        values = got.columns[ALSO[key]] if values is None and key in ALSO else values
        assert values is not None, f"{name} is not {key} but {got.sources}"
        np.testing.assert_allclose(values, table.columns[name], atol=2e-3, rtol=1e-3, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_read_back(dialect: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("dialect") / f"train{SUFFIXES.get(dialect, '.log')}"

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(DIALECTS[dialect]())
    def check(written: tuple[Table, str]) -> None:
        table, text = written
        path.write_text(text, encoding="utf-8")
        must_be_read(table, path)

    check()


TABLE = Table(
    steps=tuple(range(1, 13)),
    columns={"mean_reward": tuple(float(s) - 4 for s in range(12))},
    keys={"mean_reward": RETURN},
)
LINES = line_table(
    TABLE,
    prefix="",
    step=lambda s: f"Step {s}",
    after_step=" | ",
    equals=": ",
    between=" | ",
    number=repr,
)


def zipped(text: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "a")
        archive.writestr("train.log", text)


PACKERS: dict[str, Callable[[bytes, Path], object]] = {
    "gz": lambda text, path: path.write_bytes(gzip.compress(text)),
    "bz2": lambda text, path: path.write_bytes(bz2.compress(text)),
    "xz": lambda text, path: path.write_bytes(lzma.compress(text)),
    "zst": lambda text, path: path.write_bytes(pa.Codec("zstd").compress(text, asbytes=True)),
    "zip": zipped,
}


@pytest.mark.parametrize("packing", PACKERS)
def test_a_packed_log_is_read(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"train.log.{packing}"
    PACKERS[packing](LINES.encode(), path)
    must_be_read(TABLE, path)


@pytest.mark.parametrize("packing", PACKERS)
def test_a_damaged_packed_log_is_refused_in_one_line(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"train.log.{packing}"
    PACKERS[packing](LINES.encode() * 50, path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(MetricsFileError) as refused:
        read_metrics(path)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.long
@pytest.mark.no_cover  # measuring it takes three times as long as the test
def test_a_packed_log_that_unpacks_without_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_file, "MAX_BYTES", 1 << 20)
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(LINES.encode() + b"\n" * (4 << 20)))
    must_be_read(TABLE, path)


@pytest.mark.long
@pytest.mark.parametrize(("key", "name"), [(key, name) for key in NAMES for name in NAMES[key]])
@given(st.sampled_from(["{}", "train/{}", "rollout.{}", "{} mean", "avg_{}"]))
def test_names_are_met_behind_and_before_other_words(key: str, name: str, form: str) -> None:
    if name.startswith(("train", "Environment", "mean100")) or "mean" in name.lower():
        form = "{}"
    meaning = meaning_of(form.format(name))
    assert meaning is not None
    assert meaning.key in (key, ALSO.get(key))


@pytest.mark.parametrize("name", [*NOISE, "fps", "step_time", "advantages/mean", "explained"])
def test_noise_is_no_outcome(name: str) -> None:
    meaning = meaning_of(name)
    assert meaning is None or not meaning.key.endswith(("success_rate", "return_mean"))


@pytest.mark.parametrize(
    "name",
    [
        *("max_reward", "reward_std", "rewards/chosen", "rewards/rejected", "reward_threshold"),
        *("min_return", "best_score", "num_successes", "success_count", "target_reward"),
        *("entropy_coef", "target_entropy", "cross_entropy", "kl_coef", "kl_target", "kl_max"),
        *("clip_grad_norm", "max_grad_norm", "critic_grad_norm", "reward_model_loss"),
        *("mean_token_accuracy", "token_accuracy", "discriminator_accuracy", "value_baseline"),
        *("max_response_length", "response_length_std", "reward_weight", "length_penalty_reward"),
        *("score_variance", "accuracy_threshold", "reward_percentile_90", "prev_reward"),
    ],
)
def test_aggregates_and_settings_are_never_taken_for_the_mean(name: str) -> None:
    meaning = meaning_of(name)
    roles = (RETURN, *NAMES)
    assert meaning is None or meaning.key not in roles


def test_a_list_in_a_line_is_its_mean(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {s} rewards: [{s}, {s + 2}.0] loss: 0.1\n" for s in range(9)))
    assert read_metrics(path).columns[RETURN].tolist() == [s + 1.0 for s in range(9)]


def test_a_reward_of_a_strange_name_is_offered_with_the_map_to_give(tmp_path: Path) -> None:
    rows = [{"step": s, "cartpole_reward": s - 3.5, "loss": 0.1} for s in range(9)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    got = read_metrics(path)
    assert RETURN not in got.columns
    assert any("--map 'cartpole_reward=reward/return_mean'" in note for note in got.notes)


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_table_is_read_behind_every_prefix(prefix: str, tmp_path: Path) -> None:
    rows = "".join(f"{prefix}| {s} | {s}.5 |\n" for s in range(9))
    path = tmp_path / "train.log"
    path.write_text(f"{prefix}| step | reward |\n{prefix}|------|--------|\n{rows}")
    assert read_metrics(path).columns[RETURN].tolist() == [s + 0.5 for s in range(9)]
