"""A small GRPO run of TRL in a process of its own, without a line of Echoscope.

    python tests/shared/trl_process.py FOLDER STEPS [SECONDS_A_STEP [SAME_FROM]] >FOLDER/train.log

From the step SAME_FROM on all replies earn the same, so that there is nothing more to learn.

TRL prints its numbers and writes its completions to FOLDER/completions, as in anyone's training.
"""

from __future__ import annotations

import string
import sys
import time
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
    TrainerState,
)
from trl import GRPOConfig, GRPOTrainer

PROMPTS, GROUP = 2, 4


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a letter."""
    letters = {c: i for i, c in enumerate(["<pad>", "<eos>", *string.ascii_lowercase, " "])}
    model = Tokenizer(WordLevel(letters, unk_token=" "))
    model.pre_tokenizer = Split("", behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="<eos>")


def policy() -> Qwen2ForCausalLM:
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


class ShareOfA(TrainerCallback):
    """The reward: the share of the letter a; the same for all from a step on."""

    __name__ = "share_of_a"

    def __init__(self, same_from: int) -> None:
        self._same_from, self._step = same_from, 0

    def on_step_begin(self, _: Any, state: TrainerState, *__: Any, **___: Any) -> None:
        self._step = state.global_step + 1

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        if self._step >= self._same_from:
            return [0.5] * len(completions)
        return [text.count("a") / max(len(text), 1) for text in completions]


class Slow(TrainerCallback):
    """Steps that take as long as somebody needs to watch them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        time.sleep(self._seconds)


def grpo(
    folder: str, steps: int, same_from: int, callbacks: Sequence[TrainerCallback]
) -> GRPOTrainer:
    """A trainer of four prompts; from a step on all replies earn the same."""
    arguments = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=6,
        logging_steps=1,
        learning_rate=1e-2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        log_completions=True,
    )
    reward = ShareOfA(same_from)
    return GRPOTrainer(
        model=policy(),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["left", "right", "up", "down"]}),
        processing_class=tokenizer(),
        callbacks=[reward, *callbacks],
    )


def main(folder: str, steps: str, seconds: str = "0", same_from: str = "1000000") -> None:
    grpo(folder, int(steps), int(same_from), [Slow(float(seconds))]).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
