"""Logs of other trainers: every container, every spelling, and what is said of them.

The lines are made up, in the form in which each trainer writes them.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.foreign_names import meaning_of
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.names import MetricNameError, parse_map
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.table import MetricTable

SUCCESS = "rollout/success_rate"
"""Success that was told from a reward between 0 and 1."""
RETURN = "reward/return_mean"
STEPS = range(1, 31)


def written(folder: Path, text: str | bytes, name: str = "train.log") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, text: str, name: str = "train.log") -> MetricTable:
    return read_metrics(written(folder, text, name))


def trl(step: int) -> str:
    return (
        f"  3%|▎         | {step}/400 [00:18<11:16,  3.47s/it]\n"
        f"{{'loss': 0.0002, 'grad_norm': 17.9, 'reward': {step / 100}, 'reward_std': 0.11, "
        f"'completion_length': {100 + step}, 'kl': 0.02, 'epoch': {step / 400}}}\n"
    )


def trl_text_values(step: int) -> str:
    return f"{{'loss': '-0.02836', 'rewards/accuracy_reward/mean': '{step / 100}', 'kl': '0.1'}}\n"


def trl_ppo(step: int) -> str:
    return (
        f"{{'eps': 1, 'objective/kl': 11.2, 'objective/entropy': 99.8, 'objective/scores': "
        f"{step / 100}, 'policy/entropy_avg': 0.98, 'val/ratio': 1.1, 'episode': {16 * step}}}\n"
    )


def verl(step: int) -> str:
    return (
        f"(TaskRunner pid=7, ip=10.0.0.1) epoch 0, step {step}\n"
        f"(TaskRunner pid=7, ip=10.0.0.1) step:{step} - actor/entropy_loss:0.433 - "
        f"critic/score/mean:np.float64({step / 100}) - actor/lr:1e-06\n"
    )


def verl_a_pair_a_line(step: int) -> str:
    return (
        f"(TaskRunner pid=7) step:{step}\n - actor/entropy:0.36\n - training/epoch:0\n"
        f" - critic/score/mean:{step / 100}\n - response_length/mean:424.5\n"
    )


def postfix(step: int) -> str:
    bar = f"train: 5%|▌ | {step}/40 [00:03<01:00, 1.4s/it"
    return f"{bar}, loss=1.90, reward={step / 100}, step={step}]\r"


def minimind(step: int) -> str:
    return (
        f"Epoch:[1/1]({step}/9751), Reward: {step / 100}, KL_ref: 0.0002, Adv Std: 0.9257, "
        "Avg Response Len: 297.00, Learning Rate: 0.00000030\n[DEBUG] gen[0] reward=-1.37\n"
    )


def nemo(step: int) -> str:
    return (
        f"========== Step {step}/400 ==========\n▶ Generating responses for batch of size 512...\n"
        f"  • Loss: 0.0123\n  • Avg Reward: {step / 100}\n  • Mean Generation Length: 400.5\n\n"
        "  • Total step time: 12.34s\n"
    )


def stable_baselines(step: int) -> str:
    return (
        "-----------------------------------\n| rollout/           |            |\n"
        f"|    ep_rew_mean     | {step / 100}      |\n| time/              |            |\n"
        f"|    iterations      | {step}         |\n| train/             |            |\n"
        "|    entropy_loss    | -1.38      |\n-----------------------------------\n"
    )


def colours(step: int) -> str:
    return (
        f"\x1b[32m2026-01-02 03:04:05,678\x1b[0m - INFO - trainer.py:12 - [metrics] step {step}: "
        f"{{'reward': {step / 100}, 'kl': 0.1}}\n"
    )


def episodes(step: int) -> str:
    return f"Episode {step}/400 | Mean score (100 ep): {step / 100} | Epsilon: 0.95\n"


def markdown(step: int) -> str:
    head = "Some words.\n\n| step | loss | reward |\n|---|---|---|\n" if step == 1 else ""
    return f"{head}| {step} | -0.028 | {step / 100} |\n"


def tabs(step: int) -> str:
    head = "Unsloth: 2x faster\nStep\tTraining Loss\treward\tcompletions / mean_length\tkl\n"
    return f"{head if step == 1 else ''}{step}\t0.0\t{step / 100}\t142.5\tNo Log\n"


CONSOLE = (
    trl,
    trl_text_values,
    trl_ppo,
    verl,
    verl_a_pair_a_line,
    postfix,
    minimind,
    nemo,
    stable_baselines,
    colours,
    episodes,
    markdown,
    tabs,
)


@pytest.mark.parametrize("line", CONSOLE, ids=lambda line: line.__name__)
def test_console_logs_are_read_and_judged(tmp_path: Path, line: object) -> None:
    text = "".join(line(step) for step in STEPS)  # type: ignore[operator]
    table = read(tmp_path, "Loading shards: 100% 2/2\n" + text)
    assert table.num_rows == len(STEPS)
    success = table.columns.get(SUCCESS, table.columns.get(RETURN))
    assert success == pytest.approx([step / 100 for step in STEPS])
    verdict = diagnose(table)
    assert verdict.state is not RunState.INSUFFICIENT
    assert not verdict.state.is_collapse
    assert not any("read as success" in note for note in verdict.notes)


def slime(step: int, num_updates: int = 1) -> str:
    """A rollout, the updates of the weights by it, and every fifth time an evaluation."""
    reward = {"rollout/raw_reward": step / 100, "rollout/truncated_ratio": 0.0}
    sets = {"eval/aime": step / 50, "eval/aime-truncated_ratio": 0.0, "eval/runtime": 0.5}
    updates = range(step * num_updates, (step + 1) * num_updates)
    lines = [
        f"perf {step}: {{'rollout/response_len/mean': 100.0, 'perf/rollout_time': 9.0}}",
        f"rollout {step}: {reward}",
        *(f"step {n}: {{'train/entropy_loss': 0.3, 'train/step': {n}}}" for n in updates),
        *([f"eval {step}: {sets}"] if step % 5 == 0 else []),
    ]
    return "".join(f"[2026-01-02 03:04:05] rollout.py:300 - {line}\n" for line in lines)


@pytest.mark.parametrize("num_updates", [1, 4])
def test_numbered_dictionaries_are_one_table(tmp_path: Path, num_updates: int) -> None:
    """The lines with `step` alone were read, so that every reward was lost."""
    text = "".join(slime(step, num_updates) for step in STEPS)
    table = read_metrics(
        written(tmp_path, text), parse_map([f"rollout/raw_reward={RETURN}"], [RETURN])
    )
    assert table.steps.tolist() == list(STEPS)
    assert table.columns[RETURN] == pytest.approx([step / 100 for step in STEPS])
    assert table.columns["policy/entropy"] == pytest.approx([0.3] * 30)
    steps, success = table.measured("eval/aime/success_rate")
    assert steps.tolist() == [5, 10, 15, 20, 25, 30]
    assert success == pytest.approx(steps / 50)
    assert "eval/runtime" in table.columns, "it is of no set of tasks"


def test_evaluations_of_slime_alone_are_read(tmp_path: Path) -> None:
    lines = [line for line in "".join(map(slime, STEPS)).splitlines() if " eval " in line]
    assert read(tmp_path, "\n".join(lines)).steps.tolist() == [5, 10, 15, 20, 25, 30]


def test_a_reward_of_an_evaluation_of_slime_below_0_is_no_success(tmp_path: Path) -> None:
    rows = "".join(
        f"{{'step': {s}, 'eval/aime': {s % 2 - 1}, 'eval/aime-truncated_ratio': 0}}\n"
        for s in STEPS
    )
    assert set(read(tmp_path, rows).columns) == {"eval/aime", "eval/aime-truncated_ratio"}


@pytest.mark.parametrize("is_before", [False, True])
def test_numbers_below_a_heading_of_validation_are_of_an_evaluation(
    tmp_path: Path, is_before: bool
) -> None:
    """Validation's accuracy was taken for training's success, and its length for training's."""
    validation = (
        "\n📊 Validation Results:\n    • Accuracy: 0.6\n"
        "    • Average response length: 900.0 tokens\n\n  ⏱️  Validation Timing:\n"
    )
    training = (
        "\n📊 Training Results:\n  • Loss: 0.1\n  • Avg Reward: {}\n"
        "  • Mean Generation Length: 400\n"
    )
    text = "".join(
        f"===== Step {s}/30 =====\n{validation * is_before}{training.format(s / 100)}"
        f"\n⏱️  Timing:\n  • Total step time: 12.3s\n{validation * (not is_before)}\n"
        for s in STEPS
    )
    table = read(tmp_path, text)
    assert table.columns["eval/all/success_rate"].tolist() == [0.6] * 30
    assert table.columns[RETURN] == pytest.approx([step / 100 for step in STEPS])
    assert table.columns["rollout/response_length_mean"].tolist() == [400.0] * 30
    assert SUCCESS not in table.columns


def test_a_map_of_a_column_that_is_not_there_is_said_of_a_log(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(map(slime, STEPS)))
    with pytest.raises(MetricsFileError, match="--map names the column 'bonus', which is not"):
        diagnose(path, mapping=parse_map([f"bonus={RETURN}"], [RETURN]))


ROWS = [{"step": step, "reward": step / 100, "note": "x"} for step in STEPS]
COLUMNS = {name: [row[name] for row in ROWS] for name in ("step", "reward")}
STATE = {"best_metric": None, "learning_rate": 1e-6, "global_step": 30, "log_history": ROWS}
CELL = "<tr><td>{step}</td><td>{reward}</td></tr>"
TABLE = "<table><thead><tr><th>Step</th><th>reward</th></tr></thead>" + "".join(
    CELL.format(**row) for row in ROWS
)


def notebook(**data: object) -> str:
    cell = {"cell_type": "code", "source": [], "outputs": [data]}
    return json.dumps({"cells": [{"cell_type": "markdown"}, cell], "nbformat": 4})


DOCUMENTS = {
    "lines": "\n".join(map(json.dumps, ROWS)),
    "array": json.dumps(ROWS, indent=1),
    "objects over several lines": "\n".join(json.dumps(row, indent=1) for row in ROWS),
    "trainer_state.json": json.dumps(STATE, indent=1),
    "columns": json.dumps({"config": {"lr": 1e-6}, **COLUMNS}),
    "columns in a group": json.dumps({"name": "a", "train": {"history": COLUMNS}}, indent=1),
    "other columns of another length": json.dumps({**COLUMNS, "eval_rewards": [0.1, 0.2]}),
    "points by name": json.dumps(
        {"metrics": {"reward": [{"step": r["step"], "value": r["reward"]} for r in ROWS]}}
    ),
    "one metric a row": "\n".join(
        json.dumps({"step": r["step"], "key": "reward", "value": r["reward"]}) for r in ROWS
    ),
    "a notebook's table": notebook(output_type="display_data", data={"text/html": [TABLE]}),
    "a notebook's text": notebook(output_type="stream", text=[trl(step) for step in STEPS]),
    "ms-swift": "\n".join(
        json.dumps({"reward": r["reward"], "global_step/max_steps": f"{r['step']}/547"})
        for r in ROWS
    ),
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_json_of_every_shape_is_read(tmp_path: Path, kind: str) -> None:
    table = read(tmp_path, DOCUMENTS[kind], "metrics.json")
    assert table.steps.tolist() == list(STEPS)
    assert table.columns[RETURN] == pytest.approx([row["reward"] for row in ROWS])


@pytest.mark.parametrize(
    "text",
    [
        "# made by a script\n\nstep;reward\n1;0,25\n2;0,5\n",
        "run of today\nstep\treward\n1\t25%\n2\t50%\n",
        "step,reward\n1,0.25\nstep,reward\n2,0.5\n",
        "Wall time,Step,Value\n1.7e9,1,0.25\n1.7e9,2,0.5\n",
        "\ufeff,step,reward\n0,1,0.25\n1,2,0.5\n".encode("utf-16").decode("utf-16"),
    ],
    ids=["decimal commas", "words before", "header again", "TensorBoard", "index"],
)
def test_csv_of_any_dialect(tmp_path: Path, text: str) -> None:
    table = read(tmp_path, text, "run-1-tag-reward.csv")
    assert table.steps.tolist() == [1, 2]
    assert table.columns[RETURN].tolist() == [0.25, 0.5]


def test_utf_16_as_a_windows_shell_writes_it(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(map(trl, STEPS)).encode("utf-16"))
    assert read_metrics(path).columns[RETURN][0] == 0.01


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("critic/score/mean", RETURN),
        ("critic_score_mean", RETURN),
        ("Critic Score Mean", RETURN),
        ("critic.score-mean", RETURN),
        ("criticScoreMean", RETURN),
        ("train/avg_reward_200", RETURN),
        ("episode_rewards", RETURN),
        ("actor_entropy", "policy/entropy"),
        ("actor/entropy_loss", "policy/entropy"),
        ("policy/entropy_avg", "policy/entropy"),
        ("actor_grad_norm", "optim/grad_norm"),
        ("response_length_mean", "rollout/response_length_mean"),
        ("completions / mean_length", "rollout/response_length_mean"),
        ("response_length_clip_ratio", "rollout/length_limited_frac"),
        ("num_turns_mean", "rollout/num_turns_mean"),
        ("val-core/openai/gsm8k/acc/mean@8", "eval/openai_gsm8k/success_rate"),
        ("val_core_openai_gsm8k_acc_mean@8", "eval/openai_gsm8k/success_rate"),
        ("val-aux/aime/score/mean@1", "eval/aime/return_mean"),
        ("val/test_score/openai/gsm8k", "eval/openai_gsm8k/return_mean"),
        ("eval_rewards/accuracy_reward/mean", "eval/all/success_rate"),  # TRL
        ("env/FrozenLake/success", "rollout/FrozenLake/success_rate"),  # ROLL
        ("sampler_results/episode_reward_mean", RETURN),  # RLlib
        ("charts/episodic_return", RETURN),  # CleanRL
        ("eval_gsm8k_accuracy", "eval/gsm8k/success_rate"),
        ("agent_0/accuracy", SUCCESS),
        ("normalized_return", RETURN),
        ("RawAverageReturn", RETURN),
        ("reward_latest", RETURN),
        ("reward_history", RETURN),
        ("R", RETURN),
        ("ep_success", SUCCESS),
        ("win", SUCCESS),
        ("resolved", SUCCESS),
        ("Total reward during evaluation", "eval/all/return_mean"),
    ],
)
def test_names_are_met_in_every_spelling(name: str, key: str) -> None:
    meaning = meaning_of(name)
    assert meaning is not None
    assert meaning.key == key


@pytest.mark.parametrize(
    "name",
    [
        *("critic/grad_norm", "val-core/x/format_score/mean@1", "best_reward", "reward/max"),
        *("timing_s/reward", "buffer/success", "total/reward/of/the/agent"),  # of words alone
    ],
)
def test_names_of_something_else_stay_unknown(name: str) -> None:
    assert meaning_of(name) is None


def test_a_kl_of_whole_sequences_is_no_drift(tmp_path: Path) -> None:
    text = "".join(f'{{"step": {s}, "mean_kl": 170.0, "mean_reward": {s}}}\n' for s in STEPS)
    verdict = diagnose(written(tmp_path, text))
    assert verdict.kinds == ()
    assert any("mean_kl is too large to be per token" in note for note in verdict.notes)


def test_a_plain_collapse_in_verls_console_log_is_critical(tmp_path: Path) -> None:
    """Score 0.67 to 0.05 and entropy 0.46 to 1.9: it was only to be watched."""
    lines = []
    for step in range(1, 121):
        is_lost = step > 80
        score, entropy = (0.05, 1.9) if is_lost else (0.67, 0.46)
        wobble = 0.01 * (step % 3)
        line = f"step:{step} - actor/entropy_loss:{entropy + wobble:.3f} - critic/score/mean:"
        line += f"{score + wobble:.3f} - response_length/mean:300.0"
        if step % 10 == 0:
            line += f" - val-core/openai/gsm8k/acc/mean@1:{score}"
        lines.append(f"(main_task pid=7) {line}\n")
    verdict = diagnose(written(tmp_path, "".join(lines)))
    assert verdict.state is RunState.COLLAPSED
    assert verdict.first_critical_step is not None
    assert verdict.first_critical_step <= 100


def test_rows_of_one_step_are_averaged(tmp_path: Path) -> None:
    """The last won: a step of ones and zeros that ends with a zero was a failure."""
    rows = [{"step": s, "task": t, "success": float(t % 2)} for s in range(40) for t in range(8)]
    table = read(tmp_path, "\n".join(map(json.dumps, rows)))
    assert table.columns[SUCCESS].tolist() == [0.5] * 40
    assert any("the rows of a step were averaged" in note for note in table.notes)
    assert diagnose(table).state is RunState.HEALTHY


def test_rows_of_one_step_count_by_their_samples(tmp_path: Path) -> None:
    rows = [{"step": 1, "n": 30, "success": 1.0}, {"step": 1, "n": 10, "success": 0.0}]
    table = read(tmp_path, "\n".join(map(json.dumps, rows)))
    assert table.columns[SUCCESS].tolist() == [0.75]  # (30 * 1 + 10 * 0) / 40


def test_runs_in_one_file_are_not_mixed(tmp_path: Path) -> None:
    """Where one run ends before the other, their mean would fall."""
    rows = [(seed, s) for seed, end in ((1, 20), (2, 30)) for s in range(end)]
    text = "seed,step,success\n" + "".join(f"{a},{s},{0.9 if a == 1 else 0.2}\n" for a, s in rows)
    table = read(tmp_path, text)
    assert table.columns[SUCCESS].tolist() == [0.2] * 30
    assert any("2 runs (seed=2; seed=1)" in note for note in table.notes)


def test_rows_of_an_evaluation_are_not_mixed_with_training(tmp_path: Path) -> None:
    rows = [
        {"step": s, "split": split, "accuracy": value}
        for s in range(10)
        for split, value in (("train", 0.75), ("val", 0.5))
    ]
    table = read(tmp_path, "\n".join(map(json.dumps, rows)))
    assert table.columns[SUCCESS].tolist() == [0.75] * 10
    assert table.columns["eval/all/success_rate"].tolist() == [0.5] * 10


def test_steps_that_begin_again_with_each_epoch_are_counted_on(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch:[{epoch}/3]({s}/10), Reward: {epoch}.5, KL_ref: 0.1\n"
        for epoch in (1, 2, 3)
        for s in range(1, 11)
    )
    table = read(tmp_path, text)
    assert table.steps.tolist() == list(range(1, 31))
    assert table.columns[RETURN][[0, 10, 20]].tolist() == [1.5, 2.5, 3.5]


def test_a_log_without_steps_counts_its_rows_and_says_so(tmp_path: Path) -> None:
    table = read(tmp_path, "".join(map(trl, STEPS)))
    assert table.steps.tolist() == list(STEPS)
    assert table.notes[0] == "epoch holds fractions: rows are counted as steps, from 1 to 30"


def test_the_length_of_an_episode_is_no_step(tmp_path: Path) -> None:
    table = read(tmp_path, "Episode,Return,Steps\n" + "".join(f"{s},9,400\n" for s in STEPS))
    assert table.steps.tolist() == list(STEPS)


@pytest.mark.parametrize("largest", [1.0, 1.5])
def test_a_reward_is_a_return_whatever_its_range(tmp_path: Path, largest: float) -> None:
    """One that lies between 0 and 1 may be a success rate: only its owner knows."""
    table = read(tmp_path, f"step,reward\n0,0.0\n1,0.5\n2,{largest}\n")
    assert set(table.columns) == {RETURN}
    offer = "if one of these is it, give --map 'reward=rollout/success_rate'"
    assert any(offer in note for note in table.notes) == (largest == 1.0)


@pytest.mark.parametrize("name", ["val-core/x/reward/mean@1", "eval/reward", "val_score"])
def test_a_reward_of_an_evaluation_is_a_return_whatever_its_range(
    tmp_path: Path, name: str
) -> None:
    table = read(tmp_path, f"step,{name}\n0,0.1\n1,0.5\n")
    (key,) = table.columns
    assert re.fullmatch(r"eval/\w+/return_mean", key)


@pytest.mark.parametrize("name", ["it", "iter", "iters", "itr", "t"])
def test_short_names_of_steps_are_known(tmp_path: Path, name: str) -> None:
    table = read(
        tmp_path, f"{name},score_x,ent,bad\n" + "".join(f"{10 * s},0.5,1.5,3\n" for s in STEPS)
    )
    assert table.steps.tolist() == [10 * s for s in STEPS]


def test_an_outcome_of_an_unknown_name_is_offered_once(tmp_path: Path) -> None:
    table = read(tmp_path, "it,score_x\n" + "".join(f"{s},0.5\n" for s in STEPS))
    assert RETURN not in table.columns
    assert sum("score_x" in note for note in table.notes) == 1


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_share_in_percent_is_read_as_such(tmp_path: Path, is_ours: bool) -> None:
    name = SUCCESS if is_ours else "success"
    path = written(tmp_path, f"step,{name}\n" + "".join(f"{s},{2.7 * s}\n" for s in STEPS))
    table = read_metrics(path, None if is_ours else parse_map([f"success={SUCCESS}"], known_keys()))
    assert table.columns[SUCCESS].max() == pytest.approx(0.81)
    assert table.notes == (f"{name} lies between 0 and 100: it is read as percent",)


def test_success_up_to_100_is_offered_as_percent(tmp_path: Path) -> None:
    rows = "".join(f"{s},{2.7 * s}\n" for s in STEPS)
    notes = read(tmp_path, f"step,success\n{rows}").notes
    assert notes[0].endswith(f"if it is a rate in percent, give --map 'success={SUCCESS}'")


@pytest.mark.parametrize("name", [SUCCESS, "val-env/lake/success"])
@pytest.mark.parametrize("last", [1.2, -0.5, 812.0])
def test_a_rate_that_can_be_none_is_not_judged_as_success(
    tmp_path: Path, name: str, last: float
) -> None:
    table = read(tmp_path, f"step,loss,{name}\n0,1,0.5\n1,1,{last}\n")
    assert not any(key.endswith("success_rate") for key in table.columns)
    low, high = sorted((0.5, last))
    assert f"{name} lies between {low:g} and {high:g}: it is no success rate" in table.notes[0]


def test_an_evaluation_in_percent_is_read_as_such(tmp_path: Path) -> None:
    table = read(tmp_path, "step,val-env/lake/success\n0,25\n1,50\n")
    assert table.columns["eval/lake/success_rate"].tolist() == [0.25, 0.5]


@pytest.mark.parametrize("last", [-0.5, 812.0])
def test_a_map_to_a_share_that_the_values_are_not_is_refused(tmp_path: Path, last: float) -> None:
    path = written(tmp_path, f"step,success\n0,0.5\n1,{last}\n")
    with pytest.raises(MetricNameError, match="a share lies between 0 and 1, or in percent"):
        read_metrics(path, parse_map([f"success={SUCCESS}"], known_keys()))


def test_a_reward_is_no_success_where_success_is_logged(tmp_path: Path) -> None:
    table = read(tmp_path, "step,reward,success_rate\n0,0.9,0.25\n1,0.9,0.5\n")
    assert table.columns[SUCCESS].tolist() == [0.25, 0.5]
    assert table.columns[RETURN].tolist() == [0.9, 0.9]


def test_columns_that_look_like_success_are_named_with_the_map_to_give(tmp_path: Path) -> None:
    rows = "".join(f"{s},{0.5 + s / 100},1.5,0.3\n" for s in STEPS)
    path = written(tmp_path, "step,goal_pass_fraction,entropy,temperature\n" + rows)
    option = "goal_pass_fraction=rollout/success_rate"
    assert any(f"--map '{option}'" in note for note in diagnose(path).notes)
    mapped = read_metrics(path, parse_map([option], known_keys()))
    assert mapped.columns[SUCCESS][0] == pytest.approx(0.51)


@pytest.mark.parametrize("name", ["error_rate", "failure_rate", "parse_fail_frac"])
def test_a_rate_of_failures_is_offered_as_its_complement(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, f"step,{name}\n" + "".join(f"{s},{0.9 - s / 40}\n" for s in STEPS))
    option = f"{name}=1-rollout/success_rate"
    assert any(f"--map '{option}'" in note for note in read_metrics(path).notes)
    table = read_metrics(path, parse_map([option], known_keys()))
    assert table.columns[SUCCESS][0] == pytest.approx(1 - 0.9 + 1 / 40)


def test_a_column_that_is_mapped_is_not_offered_again(tmp_path: Path) -> None:
    path = written(tmp_path, "step,acc_x,acc_y\n" + "".join(f"{s},0.5,0.25\n" for s in STEPS))
    table = read_metrics(path, parse_map(["acc_x=rollout/format_valid_frac"], known_keys()))
    (note,) = table.notes
    assert "--map 'acc_y=rollout/success_rate'" in note
    assert "'acc_x=" not in note


def test_a_reward_of_evaluation_alone_is_one_of_evaluation(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"mode": "ppo", "val_reward_mean": s - 9}) + "\n" for s in STEPS)
    table = read(tmp_path, lines)
    assert table.columns["eval/all/return_mean"].tolist() == [s - 9 for s in STEPS]
    assert RETURN not in table.columns


@pytest.mark.parametrize(
    ("line", "key", "first"),
    [
        ("2025-01-01 10:00:00,145 DQN INFO episodic returns: {}\n", RETURN, 1.0),
        ("TIMESTEP {} / STATE explore / EPSILON 0.1 / REWARD 3 / SCORE 0\n", RETURN, 3.0),
        ("Iter {}: SR 50.5%, Q 210.68, Buffer 200000\n", SUCCESS, 0.505),
        ("Episode {} Completed! Total Reward: -60.00\n", RETURN, -60.0),
    ],
)
def test_a_name_behind_other_words_is_met(
    tmp_path: Path, line: str, key: str, first: float
) -> None:
    table = read(tmp_path, "".join(line.format(s) for s in STEPS))
    assert (table.steps.tolist(), table.columns[key][0]) == (list(STEPS), first)


def test_steps_of_an_episode_in_some_rows_count_no_training_steps(tmp_path: Path) -> None:
    lengths = [20 + s % 13 for s in STEPS]
    lines = "".join(
        json.dumps({"type": "game", "episode": s, "steps": n, "win": s % 2})
        + "\n"
        + json.dumps({"type": "net", "episode": s, "entropy": 1.5})
        + "\n"
        for s, n in zip(STEPS, lengths, strict=True)
    )
    assert read(tmp_path, lines).steps.tolist() == list(STEPS)


def test_a_list_of_numbers_is_named_by_its_file(tmp_path: Path) -> None:
    numbers = json.dumps([-5.5 + s for s in STEPS])
    table = read(tmp_path, numbers, "reward_history.json")
    assert table.columns[RETURN].tolist() == [-5.5 + s for s in STEPS]
    with pytest.raises(MetricsFileError, match=r"--map 'jumps=reward/return_mean'"):
        read(tmp_path, numbers, "jumps.json")
    mapping = parse_map([f"jumps={RETURN}"], known_keys())
    assert len(read_metrics(tmp_path / "jumps.json", mapping).columns[RETURN]) == len(STEPS)


def test_a_trainer_state_of_one_row_is_read(tmp_path: Path) -> None:
    state = {"epoch": 3.0, "global_step": 12, "log_history": [{"reward": 0.25, "step": 10}]}
    table = read(tmp_path, json.dumps(state, indent=1), "trainer_state.json")
    assert (table.steps.tolist(), table.columns[RETURN].tolist()) == ([10], [0.25])


def test_lines_about_one_step_are_no_rows_of_a_run(tmp_path: Path) -> None:
    """A game that prints its own steps between the lines of the trainer."""
    text = "".join(
        f"  Step 215: Place tower | Reward: -0.11 | Lives: 19\n"
        f"[Trainer] Step {300 * s}, Loss: 0.002\n"
        f"Episode {s:>3}: Reward={-27 + s / 10:.1f} | Lives:14 | Towers: 2\n"
        for s in STEPS
    )
    table = read(tmp_path, text)
    assert table.steps.tolist() == list(STEPS)
    assert table.columns[RETURN][0] == pytest.approx(-26.9)


def test_a_log_of_unknown_names_is_read_with_a_map(tmp_path: Path) -> None:
    lines = "".join(f"[12:00:00] - epoch {s}: val_cost={900 - s}.5 soc_dev=0.02\n" for s in STEPS)
    with pytest.raises(MetricsFileError, match="no metrics of a run"):
        read(tmp_path, lines)
    table = read_metrics(tmp_path / "train.log", parse_map([f"val_cost={RETURN}"], known_keys()))
    assert table.steps.tolist() == list(STEPS)
    assert table.columns[RETURN][0] == 899.5


def test_a_program_that_returns_numbers_is_no_log(tmp_path: Path) -> None:
    script = "check() {\n    return 1\n}\nif check; then\n    return 0\nfi\nreturn 4\n" * 5
    script += "stop() { return 0; }\ntry || return 1\n" * 5
    with pytest.raises(MetricsFileError, match="no metrics of a run"):
        read(tmp_path, script, "network")


def test_a_ratio_is_not_offered_as_success(tmp_path: Path) -> None:
    rows = "".join(f"{s},-20.5,0.9957,0.5\n" for s in STEPS)
    path = written(tmp_path, "step,reward,ratio,clip_ratio/region_mean\n" + rows)
    assert not any("--map" in note for note in diagnose(path).notes)


@pytest.mark.parametrize(("num_rows", "count_text"), [(1, "is 1"), (7, "are 7")])
def test_too_few_rows_are_said_with_how_many_are_needed(
    tmp_path: Path, num_rows: int, count_text: str
) -> None:
    path = written(tmp_path, "step,reward\n" + "".join(f"{s},{s + 2}\n" for s in range(num_rows)))
    sentence = f"Too early to tell: a verdict needs 8 steps, and there {count_text}."
    assert diagnose(path).text.splitlines()[0] == sentence


def test_a_chart_of_two_runs_judges_one_and_says_which(tmp_path: Path) -> None:
    names = ("Step", "a-1 - acc", "a-1 - acc__MIN", "a-1 - acc__MAX", "b-2 - acc")
    rows = [f'"{s}","0.5","0.4","0.6","{0.1 if s < 10 else ""}"' for s in range(20)]
    table = read(tmp_path, "\n".join([",".join(f'"{n}"' for n in names), *rows]))
    assert table.columns[SUCCESS].tolist() == [0.5] * 20
    assert (
        "the chart holds 2 runs (a-1; b-2): a-1 is read, which has most rows; --run NAME chooses "
        "another"
    ) in table.notes


# --- files that hold something else, and files that mean harm


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MetricsFileError, match="save it to a file first"):
        read_metrics(tmp_path / "pipe")


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(MetricsFileError, match="is a pipe or a device"):
        read_metrics("/dev/zero")


@pytest.mark.parametrize("per_line", [100, 7_000])
def test_thousands_of_different_names_are_refused(tmp_path: Path, per_line: int) -> None:
    """400,000 took six gigabytes."""
    names = [f"x{n}" for n in range(7_000)]
    lines = [
        json.dumps({"step": n, **dict.fromkeys(names[n : n + per_line], 1.0)})
        for n in range(0, len(names), per_line)
    ]
    with pytest.raises(MetricsFileError, match="more than 5,000 different names"):
        read(tmp_path, "\n".join(lines))


def test_numbers_near_the_largest_double_break_nothing(tmp_path: Path) -> None:
    values = [1.7e308, -1.7e308, 1.0]
    rows = "".join(f"{s},{values[s % 3]},{values[s % 3]},{values[s % 3]}\n" for s in range(60))
    with np.errstate(all="raise"):
        verdict = diagnose(written(tmp_path, "step,reward,entropy,loss\n" + rows))
    assert not verdict.state.is_collapse


ODD: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b"  \n\n ",
    "binary": b"\x00\x01\x02" * 99,
    "no text": b"\xff\xfe\xfd\xfc" * 50,
    "Latin-1": "step,reward,état\n1,0.5,très\n".encode("latin-1"),
    "deep lists": b"[" * 100_000,
    "deep groups": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep records": (b'{"step":1,"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n") * 2,
    "huge integers": b'{"step": 1, "reward": ' + b"9" * 6_000 + b"}\n",
    "a huge step": b'{"step": ' + b"9" * 400 + b', "reward": 0.5}\n',
    "a huge text": b"step,reward\n1," + b"9" * 1_000_000 + b"\n",
    "infinities": b'{"step": 1, "reward": Infinity, "loss": NaN}\n',
    "a cell that does not end": b'step,reward\n1,"0.5\n' + b"2,0.5\n" * 1_000,
    "a page": b"<html><body><table><tr><td>1</td></tr></table></body></html>",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "a config": b'{"learning_rate": 1e-6, "model": {"layers": 2}}',
    "text": b"It was a dark and stormy night; the rain fell in torrents.\n",
    "a list of numbers": b"[1, 2, 3]",
    "a number": b"7",
    "null": b"null\n",
    "brackets": b"}{][)(\n",
    "a cut record": b'{"step": 1, "reward": 0.5}\n{"step": 2, "rew',
    "one column": b"reward\n1\n2\n",
    "only separators": b",,,,\n,,,,\n",
    "other steps": b"step,reward\nred,0.5\nblue,0.6\n",
    "negative steps": b"step,reward\n-1,0.5\n-2,0.6\n",
    "the same names": b"step,step,reward,reward\n1,1,0.5,0.6\n",
    "many dictionaries": b"{'a': 1}" * 10_000,
    "a dictionary that does not end": b"{'reward': 0.5,\n" * 2_000,
    "a format string": b"step:1 - {reward.__class__}:0.5 - %s:1\n",
    "control characters": b"step,reward\x1b[2J\n1,0.5\n",
    "a notebook of nothing": b'{"cells": [1, {"outputs": [2, {"data": 3}]}], "nbformat": 4}',
    "a table that does not end": b"<table>" + b"<tr><td>1" * 3_000,
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_files_are_refused_in_one_line_or_read(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, ODD[kind])
    try:
        outcome = diagnose(path).state.value
    except MetricsFileError as error:
        outcome = str(error)
    assert outcome == RunState.INSUFFICIENT.value or outcome.startswith(f"{path}: ")
    assert len(outcome.splitlines()) == 1
    assert len(outcome) < 600
