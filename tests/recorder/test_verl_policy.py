"""I(X;Z) by verl's own workers, and its groups filtered: verl's classes, on the CPU.

verl has no platform for a CPU, but lets others register one: here it is CUDA's with what a CPU has.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from echoscope.diagnostics.tools.setting_errors import SettingError
from echoscope.recorder.verl import EchoscopeTracking, VerlPolicy, _set_tokens
from echoscope.store.importers.draft import Draft, DraftTurn
from echoscope.store.reader import open_run
from echoscope.store.steer.commands import new_command, post

torch = pytest.importorskip("torch")
verl = pytest.importorskip("verl", reason="needs verl: make test-peers")
# verl takes a value head from TRL where it is installed, and TRL 1.16 has none any more.
sys.modules["trl"] = None  # type: ignore[assignment]

TASKS, SIBLINGS = 4, 3
ROWS_OF_A_CALL = 3
"""verl's engine refuses a batch that is no multiple of its micro-batch."""


def _cpu() -> Any:
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    def zero(*args: Any) -> int:
        return 0

    module = types.SimpleNamespace(
        **{name: getattr(torch.cpu, name) for name in dir(torch.cpu)},
        max_memory_allocated=zero,
        max_memory_reserved=zero,
        memory_allocated=zero,
        memory_reserved=zero,
        empty_cache=zero,
        mem_get_info=lambda *args: (1, 1),
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
        reset_peak_memory_stats=zero,
        get_device_name=lambda *args: "CPU",
    )

    class PlatformCPU(PlatformCUDA):
        device_name = "cpu"
        vendor_name = "cpu"
        device_module = module

        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return "cpu"

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None: ...

        def synchronize(self, device_index: int | None = None) -> None: ...

        def empty_cache(self) -> None: ...

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def communication_backend_name(self) -> str:
            return "gloo"

    return PlatformCPU()


@pytest.fixture(scope="module")
def trainer(tiny_model: Path) -> Iterator[Any]:
    """What `RayPPOTrainer` is to the hook: its own method, over a worker with FSDP2 in float32."""
    from omegaconf import OmegaConf
    from verl.plugin.platform.platform_manager import set_platform

    with pytest.MonkeyPatch.context() as patch:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0"}
        for name, value in (address | {"WORLD_SIZE": "1", "VERL_ENGINE_DEVICE": "cuda"}).items():
            patch.setenv(name, value)
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        set_platform(_cpu())
        from verl.trainer.config import CheckpointConfig
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer
        from verl.workers.config import (
            FSDPEngineConfig,
            FSDPOptimizerConfig,
            HFModelConfig,
            TrainingWorkerConfig,
        )
        from verl.workers.engine_workers import TrainingWorker

        worker = TrainingWorker(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=HFModelConfig(
                    path=str(tiny_model),
                    load_tokenizer=False,
                    use_remove_padding=False,
                    override_config={"attn_implementation": "sdpa"},
                ),
                engine_config=FSDPEngineConfig(
                    strategy="fsdp2",
                    use_torch_compile=False,
                    fsdp_size=1,
                    model_dtype="fp32",
                    mixed_precision=dict.fromkeys(
                        ("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32"
                    ),
                    use_dynamic_bsz=False,
                    infer_micro_batch_size_per_gpu=ROWS_OF_A_CALL,
                ),
                optimizer_config=FSDPOptimizerConfig(lr=1e-5, total_training_steps=10),
                checkpoint_config=CheckpointConfig(),
            )
        )
        worker.reset()
        rollout = {"temperature": 1.0, "log_prob_micro_batch_size_per_gpu": ROWS_OF_A_CALL}
        made = types.SimpleNamespace(
            config=OmegaConf.create({"actor_rollout_ref": {"actor": {}, "rollout": rollout}}),
            tokenizer=AutoTokenizer.from_pretrained(tiny_model),
            actor_rollout_wg=types.SimpleNamespace(
                world_size=1, compute_log_prob=worker.infer_batch
            ),
        )
        made._compute_old_log_prob = types.MethodType(RayPPOTrainer._compute_old_log_prob, made)
        yield made
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


def batch_of(tokenizer: Any) -> Any:
    """Tasks with siblings, in verl's layout."""
    rows = []
    for task in range(TASKS):
        asked = [{"role": "user", "content": f"the goal lies {'up ' * (task + 1)}"}]
        text = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        for sibling in range(SIBLINGS):
            reply = f"<think>to the goal {'and ' * sibling}{task}</think><answer>up</answer>"
            ids = [tokenizer(t, add_special_tokens=False).input_ids for t in (text, reply)]
            rows.append((*ids, task, float(sibling == task)))
    width, longest = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    ids_BL = np.zeros((len(rows), width + longest), np.int64)
    seen_BL = np.zeros_like(ids_BL)
    scores_BL = np.zeros((len(rows), longest), np.float32)
    for row, (prompt, reply, _, score) in enumerate(rows):
        ids_BL[row, width - len(prompt) : width + len(reply)] = [*prompt, *reply]
        seen_BL[row, width - len(prompt) : width + len(reply)] = 1
        scores_BL[row, len(reply) - 1] = score
    tensors = {
        "prompts": ids_BL[:, :width],
        "responses": ids_BL[:, width:],
        "attention_mask": seen_BL,
        "response_mask": seen_BL[:, width:],
        "token_level_scores": scores_BL,
    }
    return verl.DataProto.from_dict(
        tensors={name: torch.from_numpy(array) for name, array in tensors.items()},
        non_tensors={"uid": np.array([f"task {row[2]}" for row in rows], dtype=object)},
    )


def stored(path: Path) -> dict[str, float]:
    rows = open_run(path).sql("SELECT key, value FROM metrics WHERE step = 1").to_pylist()
    return {row["key"]: row["value"] for row in rows if row["key"].startswith("info/")}


def recorded(path: Path, tokenizer: Any, **settings: Any) -> dict[str, float]:
    messages: list[str] = []
    tracking = EchoscopeTracking(path, on_message=messages.append, **settings)
    tracking.rollouts(batch_of(tokenizer), tokenizer)
    tracking.log(data={"loss": 1.0}, step=1)
    tracking.finish()
    assert not [text for text in messages if "was not measured" in text], messages
    return stored(path)


def test_information_by_verls_workers_is_that_of_the_model(
    trainer: Any, model: Any, tmp_path: Path
) -> None:
    direct = recorded(
        tmp_path / "direct", trainer.tokenizer, policy=model, tokenizer=trainer.tokenizer
    )
    measured = recorded(tmp_path / "verl", trainer.tokenizer, trainer=trainer)
    assert measured.keys() == direct.keys()
    assert len(direct) > 10
    assert np.isfinite(direct["info/first_turn/mutual_information"])
    for key, value in direct.items():
        assert measured[key] == pytest.approx(value, abs=1e-5, nan_ok=True), key


def test_rows_are_filled_up_to_what_the_workers_take(trainer: Any, model: Any) -> None:
    """Five rows become six; log-probs are those of one pass a row."""
    policy = VerlPolicy.of(trainer)
    prompts = [np.array([5, 6, 7], np.int32), np.array([9], np.int32)]
    replies = [[np.array([4, 3], np.int32), np.array([8], np.int32)]] * 2
    replies[1] = [*replies[1], np.array([2, 2, 2], np.int32)]
    for prompt, rows, scores in zip(prompts, replies, policy(prompts, replies), strict=True):
        for row, score in zip(rows, scores, strict=True):
            ids = torch.tensor([[*prompt, *row]])
            with torch.no_grad():
                table = model(ids).logits[0].log_softmax(-1)
            own = [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(row)]
            assert score == pytest.approx(own, abs=1e-5)


def test_groups_without_spread_count_in_no_loss(tmp_path: Path, trainer: Any) -> None:
    """Task 3 has no reward at all; the filter changes while verl trains."""
    path = tmp_path / "run"
    tracking = EchoscopeTracking(path, selection={"strategy": "top_k_abs", "value": 2})
    batch = tracking.selected(batch_of(trainer.tokenizer))
    trains = batch.batch["response_mask"].bool().any(-1).reshape(TASKS, SIBLINGS)
    assert trains.all(1).tolist() == trains.any(1).tolist()
    assert trains.any(1).sum() == 2
    assert not trains[3].any(), "its siblings earned the same"
    settings = {"selection.strategy": "top_p", "selection.value": 1.0}
    post(path, new_command(path.name, "set", settings=settings))
    tracking.rollouts(batch, trainer.tokenizer)
    for step in range(1, 200):
        tracking.log(data={"loss": 1.0}, step=step)
        if tracking._selection.strategy == "top_p":
            break
    else:
        pytest.fail("the command was not obeyed")
    batch = tracking.selected(batch_of(trainer.tokenizer))
    trains = batch.batch["response_mask"].bool().any(-1).reshape(TASKS, SIBLINGS)
    assert trains.any(1).tolist() == [True, True, True, False]
    tracking.finish()


def test_a_filter_that_verl_cannot_apply_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="by reward_std, reward_mean, reward_sum only"):
        EchoscopeTracking(tmp_path / "run", selection={"strategy": "top_p", "metric": "entropy"})


def test_turns_between_observations_have_their_tokens() -> None:
    turns = [DraftTurn(observation="x", response="a"), DraftTurn(observation="y", response="b")]
    sampled = np.array([1, 1, 0, 0, 1], bool)
    draft = Draft(turns=turns)
    _set_tokens(draft, [1, 2], [3, 4, 5, 6, 7], sampled, np.arange(5, dtype=np.float32))
    assert [turn.prompt_tokens.tolist() for turn in turns] == [[1, 2], [1, 2, 3, 4, 5, 6]]
    assert [turn.response_tokens.tolist() for turn in turns] == [[3, 4], [7]]
    assert [turn.logprobs.tolist() for turn in turns] == [[0, 1], [4]]
