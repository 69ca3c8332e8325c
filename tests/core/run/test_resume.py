"""A resumed run is bit for bit the run that was never interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import assert_same_recording, metric, recorded

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.checkpoint import list_checkpoints, read_state
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.checkpoints import checkpoint_path
from echoscope.store.errors import RunBusyError
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import REQUESTED, StepMetrics
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

MakeConfig = Callable[..., RunConfig]
STEPS = 4
EVERY_STEP = ("checkpoint.every=1", "checkpoint.keep=9")
VARIANTS = {
    "full": (),
    "lora": ("model.lora={rank: 4, alpha: 8}",),
    "value_head": ("critic.kind=head", "advantage.kind=gae", "optim.minibatches=2"),
    "own_model_critic": ("critic.kind=model", "advantage.kind=bi_level_gae"),
    "schedule": ("optim.warmup_steps=2", "optim.schedule=cosine", "optim.weight_decay=0.1"),
    "bfloat16": ("model.dtype=bfloat16", "optim.lr=1e-5"),
    "kl_and_epochs": ("loss.kl_coef=0.05", "optim.epochs=2"),
    "kl_in_reward": ("reward.kl={coef: 0.05}", "advantage.kind=reinforce_pp"),
}


class Steering(SilentEvents):
    """Posts commands when a step's numbers are told, that is, before the next boundary."""

    def __init__(self, path: Path, plan: dict[int, list[tuple[str, dict[str, object]]]]) -> None:
        self.path, self.plan = path, plan

    def metrics(self, metrics: StepMetrics) -> None:
        if metrics.phase == "train":
            for action, settings in self.plan.pop(metrics.step, []):
                run_id = open_run(self.path).run_id
                post(self.path, new_command(run_id, action, settings=settings))


def cut(path: Path, to: Path, step: int) -> Path:
    """A copy of a run that has no checkpoint after `step`: what a crash there leaves to resume."""
    shutil.copytree(path, to)
    for checkpoint in list_checkpoints(to):
        if read_state(checkpoint).step > step:
            shutil.rmtree(checkpoint)
    return to


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_from_any_checkpoint_the_run_repeats_itself(
    make_config: MakeConfig, tmp_path: Path, variant: str
) -> None:
    whole = tmp_path / "whole"
    start(make_config(*EVERY_STEP, *VARIANTS[variant]), whole, SilentEvents())
    for step in range(STEPS) if variant == "full" else (1, 3):  # 0: no checkpoint at all
        again = cut(whole, tmp_path / f"from_{step}", step)
        assert resume(again, SilentEvents()) == "finished"
        assert_same_recording(whole, again)
        names = [path.name for path in list_checkpoints(whole)]
        assert [path.name for path in list_checkpoints(again)] == names
        for name in names:
            for file in (whole / "checkpoints" / name).rglob("*.safetensors"):
                other = again / file.relative_to(whole)
                assert other.read_bytes() == file.read_bytes(), (step, other)


@pytest.mark.long
def test_interrupted_again_and_again(make_config: MakeConfig, tmp_path: Path) -> None:
    """Stopped after every step and resumed, as opposed to run through."""
    config = make_config("checkpoint.every=0")
    start(config, tmp_path / "whole", SilentEvents())
    path = tmp_path / "parts"
    status = start(config, path, Steering(path, {1: [("stop", {})]}))
    for step in (2, 3, 4):
        assert status == "stopped"
        status = resume(path, Steering(path, {step: [("stop", {})]}))
    assert status == "finished"
    assert open_run(path).info().attempt == 4
    assert_same_recording(tmp_path / "whole", path)


class Listening(SilentEvents):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.mark.long
def test_a_run_goes_on_with_another_engine_and_says_so(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    start(make_config("checkpoint.every=1", "steps=2"), run, SilentEvents())
    before = open_run(run).info().config
    other = {"engine": {"kind": "hf", "reuse_cache": False}, "engine.max_batch_rows": 3, "steps": 3}
    assert resume(run, SilentEvents(), settings=other) == "finished"
    after = open_run(run).info()
    assert after.last_step == 3
    engine = {"kind": "hf", "reuse_cache": False, "max_batch_rows": 3}
    assert after.config == before | {"engine": engine}
    for checkpoint in list_checkpoints(run)[1:]:
        shutil.rmtree(checkpoint)  # the one that is left was written by the first engine
    resume(run, SilentEvents(), settings={"steps": 4})
    assert read_state(list_checkpoints(run)[-1]).config.engine.max_batch_rows == 3
    with pytest.raises(ConfigError, match=r"engine\.replicas"):
        resume(run, SilentEvents(), settings={"engine.replicas": 2})


@pytest.mark.long
def test_newcomer_h4_resuming_says_which_finished_steps_are_played_again(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    start(make_config("checkpoint.every=0", "steps=2"), tmp_path / "run", SilentEvents())
    again, events = cut(tmp_path / "run", tmp_path / "again", 0), Listening()
    resume(again, events)
    sentence = (
        "after step 0, attempt 2: steps 1 to 2 will be played again, because they were finished"
    )
    assert any(sentence in message for message in events.messages)


@pytest.mark.long
def test_hidden_steps_of_an_earlier_attempt_stay_on_the_disk(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    start(make_config(*EVERY_STEP), tmp_path / "run", SilentEvents())
    again = cut(tmp_path / "run", tmp_path / "again", 2)
    resume(again, SilentEvents())
    rows = open_run(again, all_attempts=True).sql(
        "SELECT attempt, step FROM trajectories WHERE split = 'train' GROUP BY ALL ORDER BY ALL"
    )
    assert [(row["attempt"], row["step"]) for row in rows.to_pylist()] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (1, 4),
        (2, 3),
        (2, 4),
    ]
    assert verify(again).problems == ()


# -- what was steered comes back -----------------------------------------------------------------


@pytest.mark.long
def test_settings_changed_after_the_checkpoint_change_again(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    plan = {
        1: [("set", {"optim.lr": 0.01})],
        2: [("set", {"selection.strategy": "top_k_abs", "selection.value": 1}), ("evaluate", {})],
        3: [("pause", {}), ("resume", {}), ("set", {"loss.entropy_coef": 0.01})],
    }
    config = make_config(*EVERY_STEP, "steps=6", "eval.every=0")
    whole = tmp_path / "whole"
    start(config, whole, Steering(whole, plan))
    assert set(metric(whole, "eval/frozen_lake/success_rate", phase="eval")) == {0, 3}
    assert metric(whole, "optim/lr")[2] == 0.01
    for step in range(5):
        again = cut(whole, tmp_path / f"from_{step}", step)
        assert resume(again, SilentEvents()) == "finished"
        assert_same_recording(whole, again)
        assert len(open_run(again).commands()) == 6  # each once, with its answer
        assert all(state.ack is not None for state in open_run(again).commands())


@pytest.mark.long
def test_a_checkpoint_asked_for_before_the_first_step_has_the_starting_weights(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    class AsksAtTheStart(SilentEvents):
        def metrics(self, metrics: StepMetrics) -> None:
            if metrics.step == 0:
                post(path, new_command(open_run(path).run_id, "checkpoint"))

    path = tmp_path / "run"
    config = make_config("checkpoint.every=0", "eval.every=2", "steps=2")
    start(config, path, AsksAtTheStart())
    records = [(record.step, record.reason) for record in open_run(path).checkpoints()]
    assert records == [(0, REQUESTED), (2, "final")]
    again = cut(path, tmp_path / "again", 0)
    assert resume(again, SilentEvents()) == "finished"
    assert_same_recording(path, again)


def test_pause_and_stop_do_not_come_back(make_config: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "run"
    plan = {2: [("pause", {}), ("stop", {})]}
    assert start(make_config("checkpoint.every=1"), path, Steering(path, plan)) == "stopped"
    for checkpoint in list_checkpoints(path):
        if read_state(checkpoint).step > 1:
            shutil.rmtree(checkpoint)
    assert resume(path, SilentEvents()) == "finished"
    acks = [(s.command.action.value, s.ack and s.ack.step) for s in open_run(path).commands()]
    assert acks == [("pause", 3), ("stop", 3)]  # answered once, by the first attempt


@pytest.mark.long
def test_a_newer_setting_outlives_what_it_replaced(make_config: MakeConfig, tmp_path: Path) -> None:
    """Attempt 1 sets lr at step 4. Attempt 2 resumes after step 1 and sets it at step 3."""
    path = tmp_path / "run"
    config = make_config(*EVERY_STEP, "steps=5")
    start(config, path, Steering(path, {3: [("set", {"optim.lr": 0.5})]}))
    assert metric(path, "optim/lr") == {1: 0.001, 2: 0.001, 3: 0.001, 4: 0.5, 5: 0.5}
    second = cut(path, tmp_path / "second", 1)
    resume(second, Steering(second, {2: [("set", {"optim.lr": 0.25})]}))
    assert metric(second, "optim/lr") == {1: 0.001, 2: 0.001, 3: 0.25, 4: 0.25, 5: 0.25}
    third = cut(second, tmp_path / "third", 1)
    resume(third, SilentEvents())
    assert_same_recording(second, third)


# -- settings given with resume ------------------------------------------------------------------


@pytest.mark.long
def test_a_finished_run_goes_on_with_more_steps(make_config: MakeConfig, tmp_path: Path) -> None:
    start(make_config("steps=2"), tmp_path / "run", SilentEvents())
    assert resume(tmp_path / "run", SilentEvents(), settings={"steps": 4}) == "finished"
    start(make_config("steps=4"), tmp_path / "whole", SilentEvents())
    assert_same_recording(tmp_path / "whole", tmp_path / "run")


@pytest.mark.long
def test_settings_given_with_resume_are_recorded_and_come_back(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    start(make_config(*EVERY_STEP, "steps=2"), path, SilentEvents())
    resume(path, SilentEvents(), settings={"steps": 4, "optim.lr": 0.01})
    (state,) = open_run(path).commands()
    assert state.ack is not None
    assert (state.ack.step, state.ack.outcome.value) == (3, "applied")
    assert state.ack.detail == "steps 2 -> 4, optim.lr 0.001 -> 0.01"
    again = cut(path, tmp_path / "again", 2)
    assert resume(again, SilentEvents()) == "finished"  # the words need not be repeated
    assert_same_recording(path, again)


def test_resuming_a_finished_run_changes_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "run"
    start(make_config(), path, SilentEvents())
    before = recorded(path)
    assert resume(path, SilentEvents()) == "finished"
    assert recorded(path) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 3}, "seed cannot change while the run is going"),
        ({"optim.lrr": 3}, "unknown key 'optim.lrr'; did you mean 'optim.lr'"),
        ({"steps": 0}, "steps is 0, but"),
    ],
)
def test_a_bad_setting_leaves_the_run_as_it_was(
    make_config: MakeConfig, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    path = tmp_path / "run"
    start(make_config("steps=1"), path, SilentEvents())
    before = (path / "journal.ndjson").read_bytes()
    with pytest.raises(ConfigError, match=message):
        resume(path, SilentEvents(), settings=settings)
    assert (path / "journal.ndjson").read_bytes() == before


# -- odd ends ------------------------------------------------------------------------------------


def test_a_run_without_a_finished_step_starts_over(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("steps=2")
    start(config, tmp_path / "whole", SilentEvents())
    path = tmp_path / "run"
    RunWriter.create(
        path, run_id="run", config=config.model_dump(mode="json"), base_model=config.model.path
    ).close(status="failed")
    assert resume(path, SilentEvents()) == "finished"
    assert_same_recording(tmp_path / "whole", path)


@pytest.mark.long
def test_without_evaluation_before_the_first_step(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(*EVERY_STEP, "eval.before=false")
    start(config, tmp_path / "whole", SilentEvents())
    again = cut(tmp_path / "whole", tmp_path / "again", 0)
    resume(again, SilentEvents())
    assert_same_recording(tmp_path / "whole", again)
    assert 0 not in metric(again, "eval/frozen_lake/success_rate", phase="eval")


@pytest.mark.long
def test_a_damaged_checkpoint_is_one_line_and_the_one_before_serves(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    start(make_config(*EVERY_STEP), tmp_path / "whole", SilentEvents())
    shutil.copytree(tmp_path / "whole", path)
    (checkpoint_path(path, 4) / "optimizer.safetensors").write_bytes(b"rotten")
    with pytest.raises(ConfigError, match=r"step_000004 is damaged: .* --checkpoint 3`"):
        resume(path, SilentEvents())
    shutil.rmtree(checkpoint_path(path, 4))
    assert resume(path, SilentEvents()) == "finished"
    assert_same_recording(tmp_path / "whole", path)


def test_a_torn_journal_and_stray_files_do_not_matter(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    start(make_config(), tmp_path / "whole", SilentEvents())
    shutil.copytree(tmp_path / "whole", path)
    with (path / "journal.ndjson").open("ab") as file:
        file.write(b'{"crc": "0000')
    (path / "seg" / "turns" / "00000009-ffffffff.parquet").write_bytes(b"half")
    shutil.rmtree(checkpoint_path(path, 4))
    assert resume(path, SilentEvents()) == "finished"
    assert_same_recording(tmp_path / "whole", path)


def test_two_cannot_resume_at_once(make_config: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "run"
    start(make_config("steps=1"), path, SilentEvents())
    with RunWriter.resume(path, from_step=1), pytest.raises(RunBusyError):
        resume(path, SilentEvents())


# -- damaged checkpoints ---------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_not_resumed_and_the_one_before_it_can_be_named(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    start(make_config(*EVERY_STEP), path, SilentEvents())
    weights = checkpoint_path(path, STEPS) / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    (problem,) = verify(path).problems
    assert (problem.path, problem.what, problem.lost) == (
        weights.parents[1],
        "model/model.safetensors changed after it was written",
        f"the checkpoint of step {STEPS}",
    )
    with pytest.raises(ConfigError, match=rf"--resume {path} --checkpoint {STEPS - 1}`"):
        resume(path, SilentEvents())
    assert open_run(path).info().attempt == 1  # nothing was started
    with pytest.raises(ConfigError, match="has no checkpoint of step 9 to resume from"):
        resume(path, SilentEvents(), checkpoint=9)
    assert resume(path, SilentEvents(), checkpoint=STEPS - 1) == "finished"
    assert open_run(path).info().attempt == 2
    assert verify(path).problems == ()
