"""A real GRPO run of TRL with our callback: its text, its numbers, its alarms, and a stop."""

from __future__ import annotations

import string
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs TRL: make test-trl")

import torch
from datasets import Dataset
from page_blocks import python_block
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from echoscope.recorder.trl import EchoscopeCallback
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import CommandOutcome
from echoscope.store.steer.commands import new_command, post

PROMPTS, GROUP = 2, 4
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a letter."""
    letters = {c: i for i, c in enumerate(["<pad>", "<eos>", *string.ascii_lowercase, " "])}
    model = Tokenizer(WordLevel(letters, unk_token=" "))
    model.pre_tokenizer = Split("", behavior="isolated")
    model.decoder = Fuse()  # without spaces between the letters: text and tokens are the same
    made = PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = TEMPLATE
    return made


def policy() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=29,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )
    )


def share_of_a(completions: list[Any], **_: Any) -> list[float]:
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [text.count("a") / max(len(text), 1) for text in texts]


def always_the_same(completions: list[Any], **_: Any) -> list[float]:
    return [0.5] * len(completions)


def train(
    folder: Path,
    steps: int,
    callback: Any,
    *,
    is_chat: bool,
    reward: Callable[..., list[float]] = share_of_a,
    **more: Any,
) -> GRPOTrainer:
    words = ["left", "right", "up", "down"]
    rows = [[{"role": "user", "content": word}] if is_chat else word for word in words]
    arguments = GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=6,
        logging_steps=1,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        **{"log_completions": True} | more,
    )
    trainer = GRPOTrainer(
        model=policy(),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer(),
        callbacks=[callback],
    )
    trainer.train()
    return trainer


def test_the_lines_of_the_page(tmp_path: Path) -> None:
    """docs/recorder.md as printed; `...` stands there for what the reader's own script has."""
    block = python_block("recorder.md", "GRPOTrainer(")
    block = block.replace("    ...,\n", "    **mine,\n").replace("(..., log", "(**arguments, log")
    arguments = {"max_steps": 2, "per_device_train_batch_size": PROMPTS * GROUP}
    arguments |= {"num_generations": GROUP, "max_completion_length": 6, "use_cpu": True}
    names: dict[str, Any] = {
        "GRPOConfig": GRPOConfig,
        "GRPOTrainer": GRPOTrainer,
        "arguments": {**arguments, "output_dir": str(tmp_path), "report_to": []},
        "mine": {
            "model": policy(),
            "reward_funcs": share_of_a,
            "train_dataset": Dataset.from_dict({"prompt": ["left", "right", "up", "down"]}),
            "processing_class": tokenizer(),
        },
    }
    exec(block, names)
    names["trainer"].train()
    run = open_run(tmp_path / "echoscope")
    assert (run.info().status, run.info().last_step) == ("finished", 2)
    assert len(run.trajectories_of_step(2)) == PROMPTS * GROUP


@pytest.mark.parametrize("words", ['"runs/grpo-2")', '"dashboard_url"'])
def test_the_callbacks_of_the_page(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACK_HOOK", "https://hooks.slack.com/services/T/B/x")
    block = python_block("recorder.md", words)
    callback = eval(block, {"EchoscopeCallback": EchoscopeCallback})
    train(tmp_path / "out", 1, callback, is_chat=False)
    assert open_run(tmp_path / "runs" / "grpo-2").info().last_step == 1


@pytest.mark.parametrize("is_chat", [False, True])
def test_text_rewards_advantages_and_numbers(tmp_path: Path, is_chat: bool) -> None:
    trainer = train(tmp_path, 3, EchoscopeCallback(), is_chat=is_chat)
    path = tmp_path / "echoscope"
    run = open_run(path)
    info = run.info()
    assert (info.status, info.last_step) == ("finished", 3)
    assert info.config["arguments"]["learning_rate"] == 1e-3
    assert verify(path).problems == ()
    logged = {row["step"]: row for row in trainer.state.log_history if "reward" in row}
    for step in (1, 2, 3):
        rows = run.trajectories_of_step(step)
        assert len(rows) == PROMPTS * GROUP
        assert {t.group_index for t in rows} == {0, 1}
        for trajectory in rows:
            (turn,) = trajectory.turns
            assert turn.reward == pytest.approx(share_of_a([turn.response])[0])
        keys, values = run.metrics("reward/return_mean")
        mean = dict(zip(keys.tolist(), values.tolist(), strict=True))[step]
        assert mean == pytest.approx(logged[step]["reward"], abs=1e-6)
        outcome = run.outcome(rows[0].id)
        assert outcome is not None
        assert outcome.advantage is not None
    assert "policy/entropy" in run.metric_keys()


def test_a_stop_from_the_page_ends_the_run_at_a_step_boundary(tmp_path: Path) -> None:
    path = tmp_path / "echoscope"

    def stop_after_two_steps() -> None:
        wait(lambda: (path / "run.json").is_file() and open_run(path).info().last_step >= 2)
        post(path, new_command(path.name, "stop", issued_by="anna"))

    person = threading.Thread(target=stop_after_two_steps)
    person.start()
    trainer = train(tmp_path, 2000, EchoscopeCallback(), is_chat=False)
    person.join()
    last = trainer.state.global_step
    run = open_run(path)
    assert 2 < last < 2000
    assert (run.info().status, run.info().last_step) == ("stopped", last)
    (state,) = run.commands()
    assert state.ack is not None
    assert state.ack.outcome is CommandOutcome.APPLIED


def test_an_alarm_stops_the_run(tmp_path: Path) -> None:
    """All replies earn the same, so nothing can be learned."""
    callback = EchoscopeCallback(alarms={"actions": {"STARVED_SIGNAL": "stop"}})
    trainer = train(tmp_path, 2000, callback, is_chat=False, reward=always_the_same)
    assert trainer.state.global_step < 2000
    run = open_run(tmp_path / "echoscope")
    assert run.info().status == "stopped"
    assert "STARVED_SIGNAL" in {alarm.rule for alarm in run.alarms()}


def test_without_text_it_says_so_and_keeps_the_numbers(tmp_path: Path) -> None:
    said: list[str] = []
    callback = EchoscopeCallback(on_message=said.append)
    train(tmp_path, 2, callback, is_chat=False, log_completions=False)
    assert any("set log_completions=True" in line for line in said)
    run = open_run(tmp_path / "echoscope")
    assert run.info().last_step == 2
    assert run.trajectories_of_step(1) == []
    assert "policy/entropy" in run.metric_keys()


def wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
