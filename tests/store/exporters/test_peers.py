"""The packages that others wrote read what we export: `make test-exports` installs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_steps import build_outcome, build_trajectory
from trajectories import make_trajectory

from echoscope.store.exporters.exporting import export_run
from echoscope.store.exporters.format import ExportError, Options
from echoscope.store.records import ToolCall, Turn

from .conftest import write_run


def turn(index: int, **values: object) -> Turn:
    plain = {"observation": f"o{index}", "response": f"r{index}", "reward": 0.5}
    return Turn(index=index, **(plain | values))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two groups of two in each of two steps; two more episodes, one with calls, one hostile."""
    plain = [build_trajectory(step, index) for step in range(2) for index in range(4)]
    call = ToolCall(name="lookup", arguments='{"item": "tea"}', result="42")
    calling = make_trajectory(
        turn(0, calls=(call,)), turn(1, observation="42"), index=4, group_index=2
    )
    odd = "\x00 \r\n \x1b[31m \u2028 </script> {{x}} \ufffd"
    hostile = make_trajectory(
        turn(0, observation=odd, response=odd), index=5, group_index=2, sibling_index=1
    )
    outcomes = [build_outcome(trajectory) for trajectory in plain]
    return write_run(tmp_path / "run", [*plain, calling, hostile], outcomes)


def contents(messages: Any) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


def own_contents(run: Path, tmp_path: Path) -> dict[str, list[tuple[str, str]]]:
    """Id -> (role, content) of each message, as the format `messages` has it."""
    export_run(run, "messages", tmp_path / "own.jsonl")
    rows = [
        json.loads(line) for line in (tmp_path / "own.jsonl").read_text("utf-8").split("\n") if line
    ]
    return {row["id"]: [(m["role"], m["content"]) for m in row["messages"]] for row in rows}


def test_inspect_reads_the_log(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="needs Inspect: make test-exports")
    from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries

    target = tmp_path / "out.eval"
    export_run(run, "inspect", target)
    log = read_eval_log(str(target))
    assert (log.status, len(log.samples)) == ("success", 10)
    expected = own_contents(run, tmp_path)
    read = {s.metadata["id"]: contents(s.messages) for s in log.samples}
    assert read == expected
    (calling,) = [s for s in log.samples if any(m.role == "tool" for m in s.messages)]
    (call,) = calling.messages[1].tool_calls
    assert (call.function, call.arguments) == ("lookup", {"item": "tea"})
    assert {s.scores["return"].value for s in log.samples} == {1.25, 1.0, 0.5}
    assert len(read_eval_log_sample_summaries(str(target))) == 10
    assert read_eval_log(str(target), header_only=True).results.total_samples == 10


def _small_model(folder: Path) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    letters = sorted(ByteLevel.alphabet())
    names = ["<pad>", "<eos>", *letters]
    model = Tokenizer(BPE({name: i for i, name in enumerate(names)}, []))
    model.pre_tokenizer, model.decoder = ByteLevel(add_prefix_space=False), ByteDecoder()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    config = Qwen2Config(
        vocab_size=len(names),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        eos_token_id=1,
    )
    # From a folder: DPOTrainer loads the reference policy from where the policy came from.
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    return Qwen2ForCausalLM.from_pretrained(folder / "model"), tokenizer


def test_trl_trains_on_demonstrations(run: Path, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="needs TRL: make test-trl")
    import datasets

    export_run(run, "sft", tmp_path / "out.jsonl", Options(where="id < 't00000001-00004'"))
    rows = datasets.load_dataset(
        "json", data_files=str(tmp_path / "out.jsonl"), cache_dir=str(tmp_path / "cache")
    )["train"]
    model, tokenizer = _small_model(tmp_path)
    _train(trl.SFTTrainer, trl.SFTConfig, model, tokenizer, rows, tmp_path)


def test_trl_trains_on_pairs(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="needs TRL: make test-trl")
    import datasets

    group = [
        make_trajectory(
            turn(0, reward=float(k)),
            turn(1, observation=f"seen {k}"),
            step=0,
            index=k,
            sibling_index=k,
            prompt_key="p",
        )
        for k in range(4)
    ]
    run = write_run(tmp_path / "run", [*group])
    rows_path = tmp_path / "out.jsonl"
    with pytest.raises(ExportError):  # all wrote the same
        export_run(run, "dpo", rows_path, Options(margin=9))
    export_run(run, "dpo", rows_path)
    rows = datasets.load_dataset(
        "json", data_files=str(rows_path), cache_dir=str(tmp_path / "cache")
    )["train"]
    assert len(rows) == 2
    model, tokenizer = _small_model(tmp_path)
    _train(trl.DPOTrainer, trl.DPOConfig, model, tokenizer, rows, tmp_path)


def _train(
    trainer: Callable[..., Any],
    settings: Callable[..., Any],
    model: Any,
    tokenizer: Any,
    rows: Any,
    folder: Path,
) -> None:
    """One step, whose loss is a number."""
    config = settings(
        output_dir=str(folder / "trained"),
        max_steps=1,
        per_device_train_batch_size=2,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        logging_steps=1,
        bf16=False,
    )
    run = trainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer)
    assert run.train().training_loss > 0
