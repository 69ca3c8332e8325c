"""A real GRPO run of TRL with our callback: its text, its numbers, its alarms, and a stop."""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs TRL: make test-trl")

import torch
import trl_process
from datasets import Dataset
from page_blocks import python_block
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch.optim.lr_scheduler import CosineAnnealingLR
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from echoscope.recorder.trl import EchoscopeCallback
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAck, CommandAction, CommandOutcome
from echoscope.store.steer.commands import new_command, post, wait_for_ack
from echoscope.store.steer.settings import live_settings
from echoscope.store.steer.steering import WrongSettingError, prepare

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
    return trl_process.policy()


def share_of_a(completions: list[Any], **_: Any) -> list[float]:
    texts = [
        completion if isinstance(completion, str) else completion[-1]["content"]
        for completion in completions
    ]
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
    beside: Sequence[TrainerCallback] = (),
    kind: Any = GRPOTrainer,
    given: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    """A trainer that has trained.

    Args:
        beside: callbacks before ours.
        given: further arguments of the trainer; `more` are of its configuration.
    """
    directions = ["left", "right", "up", "down"]
    rows = [[{"role": "user", "content": word}] if is_chat else word for word in directions]
    arguments = (GRPOConfig if kind is GRPOTrainer else RLOOConfig)(
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
    trainer = kind(
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer(),
        callbacks=[*beside, callback],
        **{"model": policy()} | dict(given or {}),
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


@pytest.mark.parametrize("phrase", ['"runs/grpo-2")', '"dashboard_url"'])
def test_the_callbacks_of_the_page(
    phrase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACK_HOOK", "https://hooks.slack.com/services/T/B/x")
    block = python_block("recorder.md", phrase)
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
    messages: list[str] = []
    callback = EchoscopeCallback(on_message=messages.append)
    train(tmp_path, 2, callback, is_chat=False, log_completions=False)
    assert any("set log_completions=True" in line for line in messages)
    run = open_run(tmp_path / "echoscope")
    assert run.info().last_step == 2
    assert run.trajectories_of_step(1) == []
    assert "policy/entropy" in run.metric_keys()


# -- settings of a live training ------------------------------------------------------------------


class Person(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Sends settings after a step, and notes the learning rate that each step is taken at."""

    def __init__(
        self, callback: EchoscopeCallback, orders: Mapping[int, Mapping[str, Any]]
    ) -> None:
        self._callback, self._orders = callback, orders
        self.rates: dict[int, float] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, *_: Any, **of_trainer: Any) -> None:
        self.rates[state.global_step + 1] = of_trainer["optimizer"].param_groups[0]["lr"]

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        recorder = self._callback._recorder
        if recorder is None or state.global_step not in self._orders:
            return
        order = self._orders[state.global_step]
        info, waiting = open_run(recorder.path).info(), recorder._steps.commands
        num_before = len(waiting)
        post(recorder.path, prepare(info, CommandAction.SET, settings=order, issued_by="anna"))
        wait(lambda: len(waiting) > num_before)


def set_live(
    folder: Path, steps: int, orders: Mapping[int, Mapping[str, Any]], **more: Any
) -> tuple[Any, Person, list[CommandAck]]:
    """A training with settings that somebody sends after a step, and the answers."""
    callback = EchoscopeCallback()
    person = Person(callback, orders)
    trainer = train(folder, steps, callback, beside=[person], is_chat=False, **more)
    answers = [state.ack for state in open_run(folder / "echoscope").commands()]
    assert all(answers)
    return trainer, person, [answer for answer in answers if answer is not None]


def logged(trainer: Any, key: str) -> dict[int, float]:
    return {row["step"]: row[key] for row in trainer.state.log_history if key in row}


def test_a_learning_rate_holds_from_the_next_step_and_its_schedule_goes_on(tmp_path: Path) -> None:
    trainer, person, (answer,) = set_live(tmp_path, 6, {2: {"learning_rate": 1e-4}})
    falling = [1e-3, 1e-3 * 5 / 6, 1e-4, 1e-4 * 3 / 4, 1e-4 * 2 / 4, 1e-4 * 1 / 4]
    assert [person.rates[step] for step in range(1, 7)] == pytest.approx(falling)
    assert [*logged(trainer, "learning_rate").values()] == pytest.approx(falling)
    assert (answer.outcome, answer.step) == (CommandOutcome.APPLIED, 3)
    assert answer.detail == (
        "optim.lr 0.001 -> 0.0001; the rate was 0.000667; the schedule (linear) goes on from "
        "the new one"
    )
    held = live_settings(open_run(tmp_path / "echoscope"))
    assert (held.at(2)["optim.lr"], held.at(3)["optim.lr"]) == (1e-3, 1e-4)


@pytest.mark.parametrize("kind", [GRPOTrainer, RLOOTrainer])
@pytest.mark.parametrize("bf16", [False, True])
def test_replies_and_their_loss_share_a_new_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, bf16: bool
) -> None:
    sampled: list[float] = []
    generate = Qwen2ForCausalLM.generate

    def noting(self: Any, *args: Any, generation_config: Any, **more: Any) -> Any:
        sampled.append(generation_config.temperature)
        return generate(self, *args, generation_config=generation_config, **more)

    monkeypatch.setattr(Qwen2ForCausalLM, "generate", noting)
    trainer, _, (answer,) = set_live(
        tmp_path, 3, {1: {"temperature": 0.5}}, kind=kind, bf16=bf16, beta=0.0
    )
    assert sampled == [1.0, 0.5, 0.5]
    assert (answer.outcome, answer.step) == (CommandOutcome.APPLIED, 2)
    assert answer.detail == "sampling.temperature 1.0 -> 0.5"
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        told = trainer.model(ids, labels=ids, fused_lm_head=True).log_probs
        logits = trainer.model(ids).logits[:, :-1].float() / 0.5
    exact = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    assert torch.allclose(told.float().squeeze(), exact.squeeze(), atol=2e-2 if bf16 else 1e-5)


def test_a_temperature_waits_for_replies_of_its_own(tmp_path: Path) -> None:
    """Each batch of replies trains two steps: both by the temperature that it was sampled at."""
    _, _, (first, second) = set_live(
        tmp_path,
        4,
        {1: {"sampling.temperature": 0.5, "optim.lr": 1e-4}, 2: {"epsilon": 0.1}},
        num_iterations=2,
    )
    assert (first.step, first.outcome) == (3, CommandOutcome.APPLIED)
    assert (second.step, second.detail) == (
        3,
        "loss.clip_low 0.2 -> 0.1, loss.clip_high 0.2 -> 0.1",
    )


def saved_policy(folder: Path) -> dict[str, Any]:
    """TRL loads the reference policy from a path."""
    policy().save_pretrained(folder)
    return {"model": str(folder)}


def test_a_new_beta_counts_in_the_loss(tmp_path: Path) -> None:
    given = saved_policy(tmp_path / "policy")
    trainer, _, answers = set_live(
        tmp_path / "out", 5, {2: {"beta": 1e6}, 3: {"loss.kl_coef": 0}}, given=given, beta=1e-3
    )
    assert [answer.step for answer in answers] == [3, 4]
    assert {answer.outcome for answer in answers} == {CommandOutcome.APPLIED}
    loss, kl = logged(trainer, "loss"), logged(trainer, "kl")
    assert loss[3] == pytest.approx(1e6 * kl[3], rel=0.05)
    assert abs(loss[2]) < 1 > abs(loss[4])
    assert set(kl) == {1, 2, 3}, "without a penalty TRL measures none"


def test_a_new_clip_counts_in_the_loss(tmp_path: Path) -> None:
    """With limits of 0 every ratio that moved is clipped: those of the second pass over a batch."""
    trainer, _, (answer,) = set_live(tmp_path, 6, {2: {"epsilon": 0.0}}, num_iterations=2)
    assert (answer.outcome, answer.step) == (CommandOutcome.APPLIED, 3)
    clipped = logged(trainer, "clip_ratio/region_mean")
    assert (clipped[2], clipped[4] > 0, clipped[6] > 0) == (0.0, True, True)


def test_what_the_trainer_does_not_allow_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = policy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = CosineAnnealingLR(optimizer, 10)
    orders = {1: {"learning_rate": 1e-4}, 2: {"temperature": 0.5}, 3: {"beta": 0.1}}
    orders |= {4: {"epsilon_high": 0.1}}
    trainer, person, answers = set_live(
        tmp_path,
        5,
        orders,
        loss_type="sapo",
        generation_kwargs={"temperature": 0.9},
        given={"model": model, "optimizers": (optimizer, schedule)},
    )
    assert {answer.outcome for answer in answers} == {CommandOutcome.REJECTED}
    assert [answer.detail for answer in answers] == [
        "optim.lr cannot change: the schedule CosineAnnealingLR would overwrite it. Train with an "
        "lr_scheduler_type that scales the learning rate, such as linear, cosine or constant.",
        "sampling.temperature cannot change: generation_kwargs has a temperature that replies are "
        "sampled with. Start the training without it.",
        "loss.kl_coef cannot change: beta was 0 when the training began, so TRL loaded no "
        "reference policy. Start the training with a beta above 0.",
        "loss.clip_high cannot change: loss_type=sapo does not clip. Start the training with "
        "another loss.",
    ]
    assert (trainer.temperature, trainer.beta, trainer.epsilon_high) == (1.0, 0.0, 0.2)
    assert person.rates[2] == pytest.approx(schedule.base_lrs[0], rel=0.05)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"learning_rate": -1.0}, "learning_rate is -1.0, but must be more than 0"),
        ({"optim.lr": float("nan")}, "optim.lr is nan, but must be finite"),
        ({"temperature": 0}, "temperature is 0, but must be more than 0"),
        ({"beta": "much"}, "beta is 'much', but must be a number"),
        ({"epsilon": 2}, "epsilon is 2, but must be at most 1"),
        ({"learning_rat": 1}, "'learning_rat' is not a setting that can change during the run; did "
         "you mean 'learning_rate'?"),
        ({"beta": 1, "loss.kl_coef": 2}, "beta and loss.kl_coef are one setting; give one of them"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_before_it_is_sent(
    settings: dict[str, Any], sentence: str, running: Path
) -> None:
    with pytest.raises(WrongSettingError, match=f"^{re.escape(sentence)}$"):
        prepare(open_run(running).info(), CommandAction.SET, settings=settings)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a training that waits in a pause."""
    path = tmp_path_factory.mktemp("live") / "run"
    training = threading.Thread(
        target=lambda: train(path.parent, 1000, EchoscopeCallback(path), is_chat=False)
    )
    training.start()
    wait(lambda: (path / "run.json").is_file())
    post(path, new_command(path.name, "pause"))
    yield path
    post(path, new_command(path.name, "stop"))
    training.join()


def test_names_that_set_both_limits_give_way_to_one_of_them(running: Path) -> None:
    info = open_run(running).info()
    command = prepare(info, CommandAction.SET, settings={"epsilon_high": 0.3, "epsilon": 0.1})
    assert command.settings == {"loss.clip_low": 0.1, "loss.clip_high": 0.3}


@pytest.mark.ranks
def test_all_processes_of_a_training_obey_alike(tmp_path: Path) -> None:
    """Two processes: a set, a pause that both wait in, and a stop."""
    path, here = tmp_path / "run", Path(__file__).parent
    package = here.parents[1] / ".package"
    folders = os.pathsep.join(map(str, (package, here, here.parent / "shared")))
    torchrun = (str(Path(sys.executable).with_name("torchrun")), "--standalone")
    command = [*torchrun, "--nproc-per-node", "2", str(here / "trl_rank.py"), str(tmp_path)]
    training = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait(lambda: (path / "run.json").is_file() and open_run(path).info().last_step >= 2)
        settings = {"learning_rate": 1e-4, "temperature": 0.5, "epsilon": 0.1}
        info = open_run(path).info()
        for order in (
            prepare(info, CommandAction.SET, settings=settings),
            new_command(path.name, "pause"),
        ):
            post(path, order)
            answer = wait_for_ack(path, order.command_id, 60)
            assert answer is not None
            assert answer.outcome is CommandOutcome.APPLIED
        time.sleep(2)
        post(path, new_command(path.name, "resume"))
        post(path, new_command(path.name, "stop"))
        assert training.wait(60) == 0
    finally:
        training.kill()
    first, second = (
        json.loads((tmp_path / f"rank-{rank}-of-2.json").read_text()) for rank in range(2)
    )
    assert first == second
    assert (first["temperature"], first["clip"]) == (0.5, [0.1, 0.1])
    assert first["lr"][0] < 1.01e-4
    assert open_run(path).info().status == "stopped"


def wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
