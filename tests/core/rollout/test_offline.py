"""Learning from the trajectories that a run stored, without any environment."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from recorded import assert_same_recording, metric

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.pretrained.policy_assets import (
    PolicyShape,
    create_policy,
    save_tokenizer,
    train_tokenizer,
)
from echoscope.core.rollout.sources import StoredSource
from echoscope.core.run.checkpoint import list_checkpoints
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.reader import open_run
from echoscope.store.records import Split, Trajectory
from echoscope.store.writer import RunWriter

MakeConfig = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def stored(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps at weights that hardly moved."""
    path = tmp_path_factory.mktemp("runs") / "stored"
    start(make_config("steps=3", "optim.lr=1e-12"), path, SilentEvents())
    return path


def content(trajectory: Trajectory) -> list[tuple[object, ...]]:
    out = []
    for turn in trajectory.turns:
        assert turn.prompt_tokens is not None
        assert turn.response_tokens is not None
        assert turn.logprobs is not None
        out.append(
            (
                turn.prompt_tokens.tolist(),
                turn.response_tokens.tolist(),
                turn.logprobs.tolist(),
                turn.total_reward,
                turn.policy_version,
            )
        )
    return out


def test_stored_steps_come_in_order_and_start_again(stored: Path, make_config: MakeConfig) -> None:
    source, reader = StoredSource(stored, make_config()), open_run(stored)
    assert source.steps == [1, 2, 3]
    for step, original in ((1, 1), (2, 2), (3, 3), (4, 1), (8, 2)):
        rollouts = source.collect(step, make_config())
        assert (rollouts.num_groups, rollouts.group_size) == (2, 4)
        before = [t for t in reader.trajectories_of_step(original) if t.split is Split.TRAIN]
        for now, old in zip(rollouts.trajectories, before, strict=True):
            assert now.step == step
            assert now.id == f"t{step:08d}-{now.index:05d}"
            assert now.source == f"stored/{old.id}"
            assert (now.group_index, now.sibling_index) == (old.group_index, old.sibling_index)
            assert content(now) == content(old)


def test_on_the_same_weights_the_stored_ratio_is_one(
    make_config: MakeConfig, stored: Path, tmp_path: Path
) -> None:
    config = make_config(f"from_run={stored}", "steps=1", "envs.eval=[]")
    assert start(config, tmp_path / "offline", SilentEvents()) == "finished"
    assert metric(tmp_path / "offline", "policy/ratio_mean")[1] == pytest.approx(1, abs=1e-5)
    assert metric(tmp_path / "offline", "policy/mismatch_kl")[1] < 1e-10


def test_stored_steps_can_be_weighted_as_samples_of_another_policy(
    make_config: MakeConfig, stored: Path, tmp_path: Path
) -> None:
    """Other weights than those that sampled: the ratio starts at 1, the weights do not."""
    config = make_config(
        f"from_run={stored}",
        "steps=2",
        "optim.lr=1e-2",
        "envs.eval=[]",
        "off_policy={old_logprobs: trainer, correction: tis}",
    )
    assert start(config, tmp_path / "offline", SilentEvents()) == "finished"
    assert set(metric(tmp_path / "offline", "policy/ratio_max").values()) == {1.0}
    weights = metric(tmp_path / "offline", "off_policy/weight_max")
    assert weights[1] == pytest.approx(1, abs=1e-5)
    assert 1.01 < weights[2] <= 2


def test_stored_samples_keep_the_distribution_they_were_sampled_from(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Temperature and truncation come from the store, not from the new configuration."""
    sampling = "sampling={temperature: 0.7, top_p: 0.8, top_k: 30, min_p: 0.01}"
    stored = tmp_path / "stored"
    start(make_config("steps=1", "optim.lr=1e-12", sampling), stored, SilentEvents())
    config = make_config(f"from_run={stored}", "steps=1", "envs.eval=[]")
    assert start(config, tmp_path / "offline", SilentEvents()) == "finished"
    assert metric(tmp_path / "offline", "policy/ratio_mean")[1] == pytest.approx(1, abs=1e-5)
    assert metric(tmp_path / "offline", "policy/ratio_max")[1] == pytest.approx(1, abs=1e-5)
    turn = open_run(stored).trajectory("t00000001-00000").turns[0]
    assert turn.temperature == 0.7
    assert turn.support is not None
    assert 1 <= turn.support.sizes.min() <= turn.support.sizes.max() <= 30


class Lines(SilentEvents):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.long
def test_shaping_is_that_of_the_run_that_learns(make_config: MakeConfig, tmp_path: Path) -> None:
    """Terms are computed anew on stored turns; those of the source run do not stay."""
    stored, path = tmp_path / "stored", tmp_path / "offline"
    shaped = "reward.shaping=[{name: old, function: format, weight: 5.0}]"
    start(make_config("steps=1", shaped), stored, SilentEvents())
    length = "{name: short, function: length, weight: 2.0, params: {soft: 0, hard: 20}}"
    config = make_config(
        f"from_run={stored}", "steps=1", "envs.eval=[]", f"reward.shaping=[{length}]"
    )
    start(config, path, SilentEvents())
    for trajectory in open_run(path).trajectories_of_step(1):
        for turn in trajectory.turns:
            assert turn.response_tokens is not None
            expected = -2.0 * min(len(turn.response_tokens) / 20, 1.0)
            assert dict(turn.shaping) == {"short": pytest.approx(expected)}
    config = make_config(f"from_run={stored}", "steps=1", "envs.eval=[]", "reward.shaping=[]")
    start(config, tmp_path / "plain", SilentEvents())
    plain = open_run(tmp_path / "plain").trajectories_of_step(1)
    assert not any(turn.shaping for t in plain for turn in t.turns)


def test_sampling_settings_are_those_of_the_run_that_sampled(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    stored, path, events = tmp_path / "stored", tmp_path / "offline", Lines()
    start(make_config("steps=1", "sampling.temperature=0.7"), stored, SilentEvents())
    config = make_config(f"from_run={stored}", "steps=1", "sampling.temperature=2.0")
    start(config, path, events)
    assert open_run(path).info().config["sampling"]["temperature"] == 0.7
    assert any("sampling settings are those of stored" in line for line in events.lines)
    assert metric(path, "policy/ratio_mean")[1] == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of the same shape whose tokenizer has seen another text."""
    folder = tmp_path_factory.mktemp("models") / "other"
    tokenizer = train_tokenizer(["boxes and walls stand between you and a target"], vocab_size=300)
    shape = PolicyShape(
        vocab_size=300, hidden_size=64, intermediate_size=96, num_layers=2, num_kv_heads=1
    )
    create_policy(tokenizer, shape, seed=1).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


def test_token_ids_of_another_tokenizer_are_refused(
    make_config: MakeConfig, stored: Path, other_model: Path, tmp_path: Path
) -> None:
    config = make_config(f"from_run={stored}", f"model.path={other_model}")
    with pytest.raises(ConfigError, match="token ids of another tokenizer than this model's"):
        start(config, tmp_path / "run", SilentEvents())
    assert not (tmp_path / "run").exists()


def test_it_learns_from_what_was_stored(
    make_config: MakeConfig, stored: Path, tmp_path: Path
) -> None:
    """Nine passes over the same steps: replies with a good reward become likelier."""
    path = tmp_path / "offline"
    config = make_config(
        f"from_run={stored}", "steps=9", "optim.lr=3e-3", "checkpoint.every=0", "envs.eval=[]"
    )
    assert start(config, path, SilentEvents()) == "finished"
    first, last = metric(path, "policy/ratio_mean")[1], metric(path, "policy/ratio_max")[9]
    assert first == pytest.approx(1, abs=1e-5)
    assert last > 1.1  # the behaviour policy stays the one that sampled
    gains = []
    reader = open_run(path)
    for trajectory in reader.trajectories_of_step(9):
        outcome = reader.outcome(trajectory.id)
        assert outcome is not None
        assert outcome.trainer_logprobs is not None
        assert outcome.advantage is not None
        change = [
            float((new - turn.logprobs).sum())
            for new, turn in zip(outcome.trainer_logprobs, trajectory.turns, strict=True)
        ]
        gains.append((outcome.advantage, sum(change)))
    advantages, changes = np.array(gains).T
    assert np.corrcoef(advantages, changes)[0, 1] > 0.5


def test_evaluation_still_plays(make_config: MakeConfig, stored: Path, tmp_path: Path) -> None:
    start(make_config(f"from_run={stored}"), tmp_path / "offline", SilentEvents())
    counts = open_run(tmp_path / "offline").sql(
        "SELECT split, count(*) AS n FROM trajectories GROUP BY split ORDER BY split"
    )
    assert [tuple(row.values()) for row in counts.to_pylist()] == [("eval", 9), ("train", 32)]


def test_the_source_run_is_only_read(make_config: MakeConfig, stored: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in stored.rglob("*") if p.is_file()}
    start(make_config(f"from_run={stored}", "steps=2"), tmp_path / "offline", SilentEvents())
    assert {p: p.stat().st_mtime_ns for p in stored.rglob("*") if p.is_file()} == before


@pytest.mark.long
def test_an_offline_run_resumes_bit_for_bit(
    make_config: MakeConfig, stored: Path, tmp_path: Path
) -> None:
    config = make_config(f"from_run={stored}", "checkpoint.every=1", "optim.minibatches=2")
    start(config, tmp_path / "whole", SilentEvents())
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    for checkpoint in list_checkpoints(tmp_path / "again")[-2:]:
        shutil.rmtree(checkpoint)
    assert resume(tmp_path / "again", SilentEvents()) == "finished"
    assert_same_recording(tmp_path / "whole", tmp_path / "again")


def test_a_run_without_training_trajectories_cannot_teach(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config().model_dump(mode="json")
    RunWriter.create(tmp_path / "empty", run_id="empty", config=config).close(status="finished")
    with pytest.raises(ConfigError, match="has no training trajectories to learn from"):
        start(make_config(f"from_run={tmp_path / 'empty'}"), tmp_path / "run", SilentEvents())
    RunWriter.create(tmp_path / "other", run_id="other", config={}).close(status="finished")
    with pytest.raises(ConfigError, match="other has no sampling settings"):
        start(make_config(f"from_run={tmp_path / 'other'}"), tmp_path / "run", SilentEvents())
