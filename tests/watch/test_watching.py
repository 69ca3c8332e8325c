"""Files of a foreign trainer as a run that grows."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from followed_run import NEVER, Followed, add, followed, line, row

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.store.errors import StoreError
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAction
from echoscope.store.steer.steering import SteeringError, prepare
from echoscope.watch import tail as tails
from echoscope.watch import watching
from echoscope.watch.ledger import Waits
from echoscope.watch.watched_run import WatchError


def test_new_lines_become_steps_that_are_judged(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    add(log, line(1) + line(2))
    with followed(log, tmp_path / "run") as watch:
        assert watch.look() == [1, 2]
        add(log, line(3, entropy=0.25))
        assert watch.look() == [1, 2, 3]
        assert watch.values("policy/entropy") == {1: 1.0, 2: 1.0, 3: 0.25}
        assert open_run(watch.run).info().status == "running"
    info = open_run(tmp_path / "run").info()
    assert (info.status, info.tags) == ("finished", ("watched",))
    assert verify(tmp_path / "run").problems == ()


def test_a_pipe_is_refused_and_nothing_waits_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WatchError, match=r"`cat .*pipe \| echoscope watch -` follows it"):
        Followed(tmp_path / "pipe", tmp_path / "run")


def test_a_step_is_complete_when_the_next_one_has_begun(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    add(log, line(1))
    with followed(log, tmp_path / "run", NEVER) as watch:
        assert watch.look() == []
        add(log, line(2))
        assert watch.look() == [1]
    assert watch.was_told("step 2 may not be written to the end: not judged")


def test_the_newest_step_is_complete_when_its_files_are_quiet(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    add(log, line(1))
    old = time.time() - 600.0
    os.utime(log, (old, old))
    with followed(log, tmp_path / "run", Waits(line_quiet_s=300.0, patience_s=1e9)) as watch:
        assert watch.look() == [1]
        add(log, line(2))
        assert watch.look() == [1]


def test_a_step_on_several_lines_is_not_judged_half(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    block = "Step {}\nAvg Reward: 0.5\nEntropy: 0.25\n"
    add(log, "".join(map(block.format, range(1, 10))) + "Step 10\nAvg Reward: 0.5\n")
    with followed(log, tmp_path / "run", NEVER) as watch:
        assert watch.look()[-1] < 10
        add(log, "Entropy: 0.125\nStep 11\nAvg Reward: 0.5\nEntropy: 0.25\nStep 12\n")
        add(log, "Avg Reward: 0.5\nEntropy: 0.25\nStep 13\n")
        assert 10 in watch.look()
        assert watch.values("policy/entropy")[10] == 0.125


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    whole = line(2, entropy=0.75)
    add(log, line(1) + whole[: whole.index("0.75") + 2])
    with followed(log, tmp_path / "run") as watch:
        assert watch.look(3) == [1]
        add(log, whole[whole.index("0.75") + 2 :])
        assert watch.look() == [1, 2]
        assert watch.values("policy/entropy")[2] == 0.75


def test_a_rotated_log_goes_on_and_loses_no_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    add(log, line(1))
    with followed(log, tmp_path / "run") as watch:
        watch.look()
        add(log, line(2))
        log.rename(tmp_path / "train.log.1")
        add(log, line(3))
        assert watch.look(3) == [1, 2, 3]


def test_a_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    add(log, line(1) + line(2))
    with followed(log, tmp_path / "run") as watch:
        watch.look()
        log.write_text(line(3))
        assert watch.look(2) == [1, 2, 3]


def test_a_log_that_was_written_again_longer_is_noticed_by_its_bytes(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    add(log, line(1) + line(2))
    with followed(log, tmp_path / "run") as watch:
        watch.look()
        log.write_text("resumed\n" + line(3) + line(4) + line(5))
        assert watch.look(2) == [1, 2, 3, 4, 5]


def test_a_trainer_that_begins_again_replaces_its_steps(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    add(log, "".join(line(step, entropy=1.0) for step in range(1, 11)))
    with followed(log, tmp_path / "run") as watch:
        assert watch.look() == list(range(1, 11))
        add(log, line(6, entropy=0.5) + line(7, entropy=0.5))
        assert watch.look() == [1, 2, 3, 4, 5, 6, 7]
        assert [watch.values("policy/entropy")[step] for step in (5, 6, 7)] == [1.0, 0.5, 0.5]
        assert watch.was_told("the trainer began again at step 6: steps from there are replaced")


def test_a_late_evaluation_is_added_to_its_step(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "entropy": 1.0} for step in range(1, 6)]
    add(log, "".join(json.dumps(entry) + "\n" for entry in rows))
    with followed(log, tmp_path / "run") as watch:
        assert watch.look() == [1, 2, 3, 4, 5]
        add(log, json.dumps({"step": 4, "eval/success_rate": 0.5}) + "\n")
        assert watch.look() == [1, 2, 3, 4, 5]
        assert watch.was_told("more of step 4 came after it was judged: judged again from there")
        key = next(k for k in open_run(watch.run).metric_keys() if k.endswith("success_rate"))
        assert watch.values(key) == {4: 0.5}


def test_a_file_that_disappears_and_comes_back_is_read_on(tmp_path: Path) -> None:
    log, away = tmp_path / "train.log", tmp_path / "away"
    add(log, line(1))
    with followed(log, tmp_path / "run") as watch:
        watch.look()
        log.rename(away)
        assert watch.look(2) == [1]
        assert watch.was_told("train.log is gone")
        add(away, line(2))
        away.rename(log)
        assert watch.look() == [1, 2]


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    with followed(folder, tmp_path / "run") as watch:
        assert watch.look(2) == []
        assert watch.was_told("is not there yet: waiting for it")
        folder.mkdir()
        watch.look()
        add(folder / "train.log", line(1))
        assert watch.look() == [1]
    assert len([s for s in watch.messages if "not there yet" in s]) == 1


def test_hostile_text_is_a_step_like_any_other(tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    folder.mkdir()
    log = folder / "train.log"
    noise = b"\x1b]0;owned\x07\x1b[2J\xff\xfe<script>step:</script>\n"
    log.write_bytes(noise + b"{" * 5000 + b"\n")
    add(log, line(1))
    (folder / "cmd.jsonl").write_text(row(1, 0).replace("move 0", "<img src=x onerror=alert(1)>"))
    (folder / "x.pkl").write_bytes(b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.")
    (folder / "out").symlink_to("/etc")
    with followed(folder, tmp_path / "run") as watch:
        assert watch.look(3) == [1]
        (trajectory,) = open_run(watch.run).trajectories_of_step(1)
        assert "<img src=x onerror=alert(1)>" in trajectory.turns[0].response
        assert watch.was_told("leads out of the folder")


def test_a_line_without_an_end_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "MAX_LINE_BYTES", 4096)
    monkeypatch.setattr(tails, "BLOCK_BYTES", 1024)
    log = tmp_path / "train.log"
    add(log, line(1) + "x" * 50_000 + "\n" + line(2))
    with followed(log, tmp_path / "run") as watch:
        assert watch.look(2) == [1, 2]
        assert watch.was_told("passed over")


def test_rollouts_and_metrics_of_a_step_are_judged_together(tmp_path: Path) -> None:
    """verl writes the rollouts of a step first and its numbers when the update is done."""
    folder = tmp_path / "outputs"
    (folder / "rollouts").mkdir(parents=True)
    log = folder / "train.log"
    with followed(folder, tmp_path / "run") as watch:
        for step in (1, 2, 3):
            text = "".join(row(step, sample, sample % 2) for sample in range(4))
            (folder / "rollouts" / f"{step}.jsonl").write_text(text)
            before = watch.look()
            if step > 1:
                assert step not in before
            add(log, line(step, entropy=0.5))
            assert step in watch.look()
        assert watch.values("policy/entropy") == {1: 0.5, 2: 0.5, 3: 0.5}
        run = open_run(watch.run)
        for step in (1, 2, 3):
            rows = run.trajectories_of_step(step)
            assert [t.group_index for t in rows] == [0, 0, 1, 1]
        assert run.info().config["trainer"] == "verl"
        # Groups of two, rewarded 0 and 1: divided by n - 1, as the trainer does.
        spread = pytest.approx(1 / 2**0.5)
        assert watch.values("reward/group_std_mean") == {1: spread, 2: spread, 3: spread}


def test_a_parquet_file_that_is_still_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "completions"
    folder.mkdir()

    def completions(step: int) -> bytes:
        names = ("step", "prompt", "completion", "reward", "advantage")
        rows = [(step, "left", "ab", 0.5, 0.0), (step, "left", "aa", 1.0, 0.5)]
        table = pa.table({n: [r[i] for r in rows] for i, n in enumerate(names)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        return bytes(sink.getvalue())

    with followed(folder, tmp_path / "run") as watch:
        file = folder / "completions_00001.parquet"
        file.write_bytes(completions(1)[:200])
        assert watch.look() == []
        file.write_bytes(completions(1))
        assert watch.look() == [1]
        assert len(open_run(watch.run).trajectories_of_step(1)) == 2


def test_steps_of_rollouts_that_are_trained_again_are_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    folder.mkdir()

    def write(step: int, score: float) -> None:
        (folder / f"{step}.jsonl").write_text("".join(row(step, s, score) for s in range(4)))

    for step in range(1, 6):
        write(step, 0.0)
    with followed(folder, tmp_path / "run") as watch:
        assert watch.look(2) == [1, 2, 3, 4, 5]
        write(3, 1.0)
        assert watch.look(2) == [1, 2, 3]
        assert watch.values("reward/return_mean") == {1: 0.0, 2: 0.0, 3: 1.0}
        write(4, 1.0)
        assert watch.look(2) == [1, 2, 3, 4]


def test_a_late_episode_does_not_take_the_run_back(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    add(file, "".join(row(step, sample) for step in (1, 2, 3) for sample in range(8)))
    with followed(file, tmp_path / "run") as watch:
        assert watch.look(2) == [1, 2, 3]
        add(file, row(1, 9))
        assert watch.look(2) == [1, 2, 3]
    assert watch.was_told("1 episode came after their step was judged")


@pytest.mark.parametrize("look_s", [watching.MAX_LOOK_S, 1e-6], ids=["fast", "one step a look"])
def test_the_next_watch_goes_on_where_the_run_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_s: float
) -> None:
    monkeypatch.setattr(watching, "MAX_LOOK_S", look_s)
    log, run = tmp_path / "train.log", tmp_path / "run"
    add(log, "".join(line(step) for step in range(1, 61)))
    with followed(log, run) as watch:
        assert watch.look(2) == list(range(1, 61))
    add(log, line(61))
    with followed(log, run) as watch:
        assert watch.look(2) == list(range(1, 62))
        assert (watch.messages, watch.seen) == ([], [61])
    assert open_run(run).info().attempt == 2


def test_a_short_file_is_compared_with_the_run_after_a_restart(tmp_path: Path) -> None:
    log, run = tmp_path / "train.log", tmp_path / "run"
    add(log, line(1) + line(2))
    with followed(log, run) as watch:
        watch.look()
    add(log, line(3))
    with followed(log, run) as watch:
        assert watch.look(2) == [1, 2, 3]
        assert watch.messages == []
    add(log, line(2, entropy=0.125))
    with followed(log, run) as watch:
        assert watch.look(2) == [1, 2]
        assert watch.values("policy/entropy")[2] == 0.125


def test_rollouts_are_not_converted_again_after_a_restart(tmp_path: Path) -> None:
    folder, run = tmp_path / "rollouts", tmp_path / "run"
    folder.mkdir()
    for step in (1, 2):
        (folder / f"{step}.jsonl").write_text("".join(row(step, s) for s in range(4)))
    with followed(folder, run) as watch:
        assert watch.look(2) == [1, 2]
    (folder / "3.jsonl").write_text("".join(row(3, s) for s in range(4)))
    with followed(folder, run) as watch:
        assert watch.look(2) == [1, 2, 3]
        assert watch.messages == []


def test_alarms_of_the_past_are_told_once_and_new_ones_when_they_come(tmp_path: Path) -> None:
    log, run = tmp_path / "train.log", tmp_path / "run"

    def collapsing(first: int, last: int) -> str:
        return "".join(
            line(s, entropy=1.0 if s < 30 else 0.01, reward=0.9 if s < 30 else 0.0)
            for s in range(first, last)
        )

    add(log, collapsing(1, 25))
    with followed(log, run) as watch:
        watch.look()
        assert watch.alarms == []
        add(log, collapsing(25, 60))
        watch.look()
        rules = {alarm.rule for alarm in watch.alarms}
        assert "LOW_SUCCESS" in rules
        assert watch.watch.verdict().state.is_failure
    with followed(log, run) as watch:
        watch.look(2)
        assert watch.alarms == []


def test_a_full_disk_is_said_and_the_run_goes_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from echoscope.store.log.committer import Committer

    log, run = tmp_path / "train.log", tmp_path / "run"
    add(log, line(1))
    monkeypatch.setattr(watching, "_TRY_AGAIN_S", 0.0)
    with followed(log, run) as watch:
        watch.look()
        write = Committer.commit_step

        def full(self: Committer, content: Any) -> bool:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Committer, "commit_step", full)
        add(log, line(2))
        watch.look()
        assert watch.was_told("No space left on device")
        add(log, line(3))
        watch.look()
        monkeypatch.setattr(Committer, "commit_step", write)
        assert watch.look(2) == [1, 2, 3]
        assert watch.was_told("the run can be written again: it goes on after step 1")


def test_another_run_is_never_written_over(tmp_path: Path) -> None:
    log, run = tmp_path / "train.log", tmp_path / "run"
    add(log, line(1))
    with followed(log, run) as watch:
        watch.look()
    with pytest.raises(WatchError, match=r"was made by watching .*; name another folder with -o"):
        Followed(tmp_path / "other.log", run)
    with pytest.raises(StoreError), followed(log, run):
        Followed(log, run)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "file").touch()
    with pytest.raises(WatchError, match="exists and is no run"):
        Followed(log, plain)


def test_a_watched_run_takes_no_commands(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    add(log, line(1))
    with followed(log, tmp_path / "run") as watch:
        watch.look()
        info = open_run(watch.run).info()
        with pytest.raises(SteeringError, match="cannot send commands to it"):
            prepare(info, CommandAction.STOP)


def test_the_run_inside_the_watched_folder_is_not_watched(tmp_path: Path) -> None:
    add(tmp_path / "train.log", line(1))
    with followed(tmp_path, tmp_path / "runs" / "mine", settings=DiagnosticsConfig()) as watch:
        assert watch.look(3) == [1]
        assert list(watch.watch._ledger.told) == ["train.log"]
