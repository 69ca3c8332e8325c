"""DAPO's dynamic sampling: a step plays further tasks until enough of its groups are mixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from listening import Listener
from recorded import assert_same_recording, metric

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.diagnostics.tools.whatif import simulate
from echoscope.store.reader import open_run

MakeConfig = Callable[..., RunConfig]
ROUNDS = ("selection.mixed=success", "dynamic_sampling.max_rounds=3")


@pytest.mark.long
def test_a_step_plays_on_until_enough_groups_are_mixed(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path, again = tmp_path / "run", tmp_path / "again"
    config = make_config(*ROUNDS, "selection.max_groups=2")
    start(config, path, Listener())
    reader = open_run(path)
    groups = config.envs.train[0].groups
    rounds, mixed = metric(path, "rollout/num_rounds"), metric(path, "selection/num_mixed")
    assert set(rounds.values()) <= {1, 2, 3}
    for step, played in rounds.items():
        assert played == 3 or mixed[step] >= 2
        listing = reader.sql(
            "SELECT id, group_index, kept FROM trajectories WHERE split = 'train' AND step = $1 "
            "ORDER BY id",
            [step],
        ).to_pylist()
        size = config.envs.group_size
        assert len(listing) == played * groups * size
        assert [row["group_index"] for row in listing] == [i // size for i in range(len(listing))]
        trained = {row["group_index"] for row in listing if row["kept"]}
        assert len(trained) == min(2, mixed[step])
    assert simulate(reader).num_changed == 0  # whatif knows these filters
    start(config, again, Listener())
    assert_same_recording(path, again)


def test_a_task_that_is_never_mixed_ends_after_the_last_round(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    listener = Listener()
    config = make_config(*ROUNDS, "steps=1", "envs.train=[{env: frozen_lake, max_turns: 1}]")
    assert start(config, tmp_path / "run", listener) == "finished"
    assert metric(tmp_path / "run", "rollout/num_rounds") == {1: 3}
    (line,) = [text for text in listener.messages if "no update" in text]
    assert "the siblings' success is the same in each of the" in line
    assert "dynamic_sampling.max_rounds" in line


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("dynamic_sampling.max_rounds=2",), "set selection.mixed=return or success"),
        ((*ROUNDS, "from_run=runs/a"), "from_run has its groups already"),
        ((*ROUNDS, "envs.train.0.groups=20000"), "lower the groups, the group size or dynamic_"),
        (("reward.kl={coef: 0.1}", "selection.overlong=drop"), "set selection.overlong=keep"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    make_config: MakeConfig, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(*settings)
