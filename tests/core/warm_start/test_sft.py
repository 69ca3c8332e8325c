"""The warm start's loss, schedule, batches, resumption, adapters, and errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import LoraConfig, ModelConfig
from echoscope.core.policy import load_model, with_adapters
from echoscope.core.pretrained.policy_assets import PolicyShape, create_policy, train_tokenizer
from echoscope.core.rollout.chat import load_tokenizer
from echoscope.core.warm_start.adapters import merge_adapters
from echoscope.core.warm_start.demonstrations import (
    Lesson,
    Row,
    SftError,
    demonstrate,
    training_text,
    write_jsonl,
)
from echoscope.core.warm_start.run import (
    BARE_CONTEXT,
    SUMMARY_FILE,
    SftConfig,
    batch_indices,
    batch_loss,
    learning_rate,
    microbatches,
    plan_lessons,
    train,
    warm_start,
)
from echoscope.envs.settings import EnvGroup

SHAPE = PolicyShape(
    vocab_size=300, hidden_size=32, intermediate_size=32, num_layers=2, num_kv_heads=1
)
LAKE = EnvGroup(env="frozen_lake", max_turns=3, params={"size": 2, "observation": "relative"})
LESSON = Lesson(group=LAKE, context=BARE_CONTEXT, episodes=12, careful=0.5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "demos.jsonl"
    write_jsonl(demonstrate(LESSON, seed=0), path)
    return path


def small_model(seed: int = 0) -> Qwen2ForCausalLM:
    demos = demonstrate(LESSON, seed=0)
    return create_policy(train_tokenizer(training_text(demos), 300), SHAPE, seed=seed)


def some_rows(lengths: tuple[int, ...] = (5, 9, 3, 7, 6)) -> list[Row]:
    rng = np.random.default_rng(0)
    drawn = [(rng.integers(1, 250, n), rng.choice([0.1, 1.0], n)) for n in lengths]
    return [
        Row(tokens=tokens.astype(np.int32), weights=weights.astype(np.float32))
        for tokens, weights in drawn
    ]


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def is_equal(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return first.keys() == other.keys() and all(torch.equal(first[k], other[k]) for k in first)


def run(data: Path, out: Path, **settings: object) -> None:
    lora = settings.pop("lora", None)
    model = str(settings.pop("model", "fresh"))
    dtype = settings.pop("dtype", "float32")
    save_dtype = settings.pop("save_dtype", "float32")
    warm_start(
        [data],
        model,
        out,
        SftConfig(iterations=6, batch_episodes=4, lora=lora, dtype=dtype),  # type: ignore[arg-type]
        shape=SHAPE,
        force_think=True,
        save_dtype=save_dtype,  # type: ignore[arg-type]
    )
    assert not settings


def test_the_loss_is_the_weighted_sum_of_negative_log_probs() -> None:
    model = small_model()
    rows = some_rows((4, 6))
    expected = 0.0
    for row in rows:
        ids = torch.tensor(row.tokens.astype(np.int64))[None]
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0].double(), -1).detach()
        for t in range(1, len(row.tokens)):
            expected -= float(row.weights[t]) * float(logprobs[t - 1, row.tokens[t]])
    loss, weight = batch_loss(model, rows)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    # The first token of a row is given, never predicted.
    assert weight == pytest.approx(sum(float(row.weights[1:].sum()) for row in rows))


def test_microbatches_do_not_change_the_gradient() -> None:
    rows = some_rows()
    gradients = []
    for limit in (8, 10_000):
        model = small_model()
        for part in microbatches(rows, limit):
            batch_loss(model, part)[0].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_microbatches_hold_every_row_once_within_the_limit() -> None:
    rows = some_rows()
    parts = list(microbatches(rows, 14))
    assert sorted(len(row.tokens) for part in parts for row in part) == [3, 5, 6, 7, 9]
    # Padded: 2 x 5, 2 x 7, then 9 alone.
    assert [[len(row.tokens) for row in part] for part in parts] == [[3, 5], [6, 7], [9]]


def test_every_pass_visits_each_row_once() -> None:
    config = SftConfig(batch_episodes=4, seed=1)
    picked = [i for iteration in range(5) for i in batch_indices(iteration, 10, config)]
    assert sorted(picked[:10]) == list(range(10))
    assert sorted(picked[10:]) == list(range(10))
    assert picked[:10] != picked[10:]
    assert batch_indices(3, 10, config) == batch_indices(3, 10, config)


def test_the_learning_rate_warms_up_and_follows_a_cosine() -> None:
    config = SftConfig(iterations=100, lr=1.0, warmup_frac=0.1, final_lr_frac=0.0)
    assert learning_rate(0, config) == pytest.approx(1 / 11)
    assert learning_rate(9, config) == pytest.approx(10 / 11)
    assert learning_rate(10, config) == pytest.approx(1.0)
    # Half way through the cosine: iteration 10 + 45.
    assert learning_rate(55, config) == pytest.approx(0.5)
    assert learning_rate(99, config) < 0.01


def test_training_lowers_the_loss_and_repeats_exactly() -> None:
    config = SftConfig(iterations=30, batch_episodes=5, lr=1e-2)
    models = [small_model(), small_model()]
    results = [train(model, some_rows(), config) for model in models]
    assert results[0] == results[1]
    assert is_equal(weights_of(models[0]), weights_of(models[1]))
    assert results[0][-1] < 0.7 * results[0][0]
    assert not models[0].training


def test_what_cannot_train_is_refused() -> None:
    with pytest.raises(SftError, match="no demonstration"):
        train(small_model(), [], SftConfig())
    with pytest.raises(SftError, match="9 tokens, but max_row_tokens is 8"):
        train(small_model(), some_rows(), SftConfig(max_row_tokens=8))
    silent = Row(tokens=np.arange(4, dtype=np.int32), weights=np.zeros(4, np.float32))
    with pytest.raises(SftError, match="no demonstration has a response"):
        train(small_model(), [silent], SftConfig())
    model = small_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(SftError, match="loss is nan at iteration 1"):
        train(model, some_rows(), SftConfig(iterations=1))


def test_only_adapters_train_with_lora() -> None:
    lora = LoraConfig(rank=4, alpha=4.0)
    model = with_adapters(small_model(), lora, 0)
    before = weights_of(model)
    train(model, some_rows(), SftConfig(iterations=2, batch_episodes=2, lora=lora))
    changed = {name for name, value in weights_of(model).items() if not value.equal(before[name])}
    assert changed
    assert all("lora_" in name for name in changed)


def test_a_fresh_policy_and_its_adapters_become_one_model(tmp_path: Path, data: Path) -> None:
    base, adapted, merged = tmp_path / "base", tmp_path / "adapted", tmp_path / "merged"
    run(data, base)
    assert (base / SUMMARY_FILE).is_file()
    run(data, adapted, model=str(base), lora=LoraConfig(rank=4, alpha=8.0))
    merge_adapters(adapted, merged)
    whole = Qwen2ForCausalLM.from_pretrained(merged)
    parts = PeftModel.from_pretrained(Qwen2ForCausalLM.from_pretrained(base), str(adapted))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, parts(ids).logits, rtol=1e-4, atol=1e-5)
        plain = Qwen2ForCausalLM.from_pretrained(base)(ids).logits
    assert not torch.allclose(plain, whole(ids).logits, atol=1e-5)
    assert load_tokenizer(merged).get_vocab() == load_tokenizer(base).get_vocab()


def test_frozen_weights_may_be_bfloat16_and_trained_ones_may_not(
    tmp_path: Path, data: Path
) -> None:
    run(data, tmp_path / "base")
    base = str(tmp_path / "base")
    run(data, tmp_path / "a", model=base, lora=LoraConfig(rank=2), dtype="bfloat16")
    adapters = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert {weight.dtype for weight in adapters.values()} == {torch.float32}
    merge_adapters(tmp_path / "a", tmp_path / "merged")
    with pytest.raises(SftError, match=r"dtype is bfloat16, .* add --lora"):
        run(data, tmp_path / "b", model=base, dtype="bfloat16")
    assert not (tmp_path / "b").exists()


def test_weights_are_saved_in_half_the_size_and_load_as_before(tmp_path: Path, data: Path) -> None:
    run(data, tmp_path / "full")
    run(data, tmp_path / "half", save_dtype="bfloat16")
    full, half = (load_file(tmp_path / name / "model.safetensors") for name in ("full", "half"))
    assert {weight.dtype for weight in half.values()} == {torch.bfloat16}
    assert all(torch.equal(full[name].to(torch.bfloat16), half[name]) for name in full)
    loaded = load_model(str(tmp_path / "half"), ModelConfig(device="cpu"))
    assert loaded.dtype == torch.float32


def test_nothing_is_overwritten(tmp_path: Path, data: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SftError, match="is not empty"):
        run(data, tmp_path)
    with pytest.raises(SftError, match="is a file"):
        run(data, tmp_path / "mine.txt")


def test_wrong_models_are_named(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model folder '\./nowhere'"):
        run(data, tmp_path / "a", model="./nowhere")
    with pytest.raises(ConfigError, match=r"did you mean 'tiny'\?"):
        run(data, tmp_path / "a", model="tinny")
    with pytest.raises(SftError, match="nothing to adapt"):
        run(data, tmp_path / "a", lora=LoraConfig())
    with pytest.raises(SftError, match="holds no adapters"):
        merge_adapters(tmp_path, tmp_path / "b")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(SftError, match="no demonstration in"):
        run(empty, tmp_path / "a")


def test_episodes_are_shared_in_proportion_to_groups() -> None:
    lessons = plan_lessons(
        ["frozen_lake", "bandit"],
        episodes=9,
        careful=0.4,
        careful_by_tag={"bandit": 0.9},
        nonsense=0.0,
    )
    assert sum(lesson.episodes for lesson in lessons) == 9
    assert {lesson.group.env: lesson.careful for lesson in lessons} == {
        "frozen_lake": 0.4,
        "bandit": 0.9,
    }
    assert sum(len(list(demonstrate(lesson, seed=0))) for lesson in lessons) == 9


def test_wrong_targets_are_named() -> None:
    def plan(target: str, **by_tag: float) -> None:
        plan_lessons([target], episodes=1, careful=0.4, careful_by_tag=by_tag, nonsense=0.0)

    with pytest.raises(ConfigError, match="did you mean 'sokoban'"):
        plan("sokobann")
    with pytest.raises(ConfigError, match="--careful names 'lake'"):
        plan("frozen_lake", lake=0.5)
    with pytest.raises(ConfigError):
        plan("missing.yaml")


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"iterations": 0}, {"unknown": 1}])
def test_settings_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SftConfig(**settings)  # type: ignore[arg-type]
