"""The policy's numbers against a slow reading of the model's own logits; adapters and critics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench import Bench, make_bench
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import ModelConfig, RunConfig
from echoscope.core.policy import (
    ModelCritic,
    ValueHead,
    build_policy,
    causal_model,
    load_model,
    resolve_device,
)
from echoscope.core.update import vocabulary
from echoscope.core.update.batch import TokenBatch, select_rows

MakeConfig = Callable[..., RunConfig]
LORA = "model.lora={rank: 4, alpha: 8}"
HEAD = ("critic.kind=head", "advantage.kind=gae")
OWN_MODEL = ("critic.kind=model", "advantage.kind=gae")


@pytest.fixture(scope="module")
def bench(make_config: MakeConfig) -> Bench:
    return make_bench(make_config())


@pytest.fixture(scope="module")
def batch(bench: Bench) -> TokenBatch:
    return bench.batch()


def slow_logprobs(
    model: torch.nn.Module, batch: TokenBatch, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row by row without padding, token by token, from the whole model's logits."""
    logprobs, entropies = (torch.zeros(batch.input_ids.shape) for _ in range(2))
    for row in range(batch.num_rows):
        length = int(batch.attention_mask[row].sum())
        with torch.no_grad():
            logits = model(input_ids=batch.input_ids[row : row + 1, :length]).logits[0]
        for t in range(1, length):
            if batch.loss_mask[row, t]:
                scores = torch.log_softmax(logits[t - 1].double() / temperature, -1)
                logprobs[row, t] = scores[batch.input_ids[row, t]]
                entropies[row, t] = -(scores.exp() * scores).sum()
    return logprobs, entropies


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_and_entropies_are_those_of_the_models_logits(
    bench: Bench, batch: TokenBatch, temperature: float
) -> None:
    warm = replace(batch, temperatures=torch.full(batch.loss_mask.shape, temperature))
    with torch.no_grad():
        outputs = bench.policy.outputs(warm)
    logprobs, entropies = slow_logprobs(bench.policy.model, batch, temperature)
    torch.testing.assert_close(outputs.logprobs, logprobs, atol=2e-5, rtol=0)
    torch.testing.assert_close(outputs.entropies, entropies, atol=2e-5, rtol=0)
    assert outputs.values is None


def test_the_trainer_repeats_what_the_sampler_recorded(bench: Bench, batch: TokenBatch) -> None:
    with torch.no_grad():
        outputs = bench.policy.outputs(batch)
    gap = (outputs.logprobs - batch.behaviour_logprobs)[batch.loss_mask].abs()
    assert float(gap.max()) < 1e-5


def test_padding_does_not_reach_the_numbers(bench: Bench, batch: TokenBatch) -> None:
    """A row alone, a row beside longer ones, and a row padded with another token agree."""
    with torch.no_grad():
        together = bench.policy.outputs(batch).logprobs
        other = torch.where(batch.attention_mask, batch.input_ids, 7)
        repadded = bench.policy.outputs(replace(batch, input_ids=other)).logprobs
        for row in range(batch.num_rows):
            alone = select_rows(batch, [row])
            logprobs = bench.policy.outputs(alone).logprobs[0]
            torch.testing.assert_close(logprobs, together[row, : alone.width], atol=1e-5, rtol=0)
    assert torch.equal(together, repadded)


def test_logits_in_pieces_give_the_same_numbers_and_gradients(
    bench: Bench, batch: TokenBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        outputs = bench.policy.outputs(batch)
        (outputs.logprobs.sum() + outputs.entropies.sum()).backward()
        return outputs.logprobs.detach(), bench.gradients()

    logprobs, gradients = run()
    monkeypatch.setattr(vocabulary, "LOGITS_AT_ONCE", 300 * 7)  # seven tokens at once
    logprobs_in_pieces, gradients_in_pieces = run()
    torch.testing.assert_close(logprobs_in_pieces, logprobs, atol=1e-5, rtol=0)
    assert gradients.keys() == gradients_in_pieces.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradients_in_pieces[name], gradient, atol=1e-4, rtol=1e-4)


def test_activation_checkpointing_changes_nothing(make_config: MakeConfig) -> None:
    plain, saving = (
        make_bench(make_config(f"model.gradient_checkpointing={flag}")) for flag in (False, True)
    )
    batch = plain.batch()
    for bench in (plain, saving):
        bench.policy.outputs(batch).logprobs.sum().backward()
    expected, gradients = plain.gradients(), saving.gradients()
    assert expected.keys() == gradients.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        gap = saving.policy.outputs(batch).logprobs - batch.behaviour_logprobs
    assert float(gap[batch.loss_mask].abs().max()) < 1e-5


@pytest.mark.parametrize("critic", [(), ("critic.kind=model", "advantage.kind=gae")], ids=str)
def test_activation_checkpointing_switches_no_dropout_on(
    make_config: MakeConfig, tiny_model: str, tmp_path: Path, critic: tuple[str, ...]
) -> None:
    """Layers checkpoint in training mode only, in which attention drops weights at random."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    settings = (f"model.path={folder}", "model.gradient_checkpointing=true", *critic)
    bench = make_bench(make_config(*settings))
    batch = bench.batch()
    for weight in bench.policy.critic_parameters()[-2:]:
        torch.nn.init.normal_(weight)
    first, second = bench.policy.outputs(batch), bench.policy.outputs(batch)
    assert torch.equal(first.logprobs, second.logprobs)
    gap = first.logprobs.detach() - batch.behaviour_logprobs
    assert float(gap[batch.loss_mask].abs().max()) < 1e-5
    if critic:
        assert first.values is not None
        assert second.values is not None
        assert first.values.abs().max() > 0
        assert torch.equal(first.values, second.values)


def count_layer_forwards(model: torch.nn.Module) -> list[int]:
    calls: list[int] = []
    layer = causal_model(model).base_model.layers[0]
    layer.mlp.register_forward_pre_hook(lambda module, args: calls.append(1))  # in the layer
    return calls


@pytest.mark.parametrize(("setting", "passes"), [("true", 2), ("false", 1), ("null", 1)])
def test_activations_are_checkpointed_by_default_on_cuda_only(
    make_config: MakeConfig, setting: str, passes: int
) -> None:
    config = make_config(f"model.gradient_checkpointing={setting}", "critic.kind=model")
    assert config.model.checkpoints_activations("cuda") == (setting != "false")
    bench = make_bench(config)
    batch = bench.batch()
    calls = count_layer_forwards(bench.policy.model)
    critic_calls = count_layer_forwards(bench.policy.critic.trunk)
    outputs = bench.policy.outputs(batch)
    (outputs.logprobs.sum() + outputs.values.sum()).backward()
    assert len(calls) == passes
    assert len(critic_calls) == passes


def test_a_batch_without_sampled_tokens_gives_zeros(bench: Bench, batch: TokenBatch) -> None:
    nothing = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    outputs = bench.policy.outputs(nothing)
    assert not outputs.logprobs.any()
    outputs.logprobs.sum().backward()  # still part of the graph
    assert not any(gradient.any() for gradient in bench.gradients().values())


# -- adapters and the reference ------------------------------------------------------------------


def test_with_adapters_the_reference_is_the_base(make_config: MakeConfig) -> None:
    bench = make_bench(make_config(LORA))
    batch = bench.batch()
    base = load_model(bench.config.model.path, ModelConfig(device="cpu"))
    expected, _ = slow_logprobs(base, batch, 1.0)
    for name, parameter in bench.policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.constant_(parameter, 0.1)  # adapters start as zero: make them count
    reference = bench.policy.reference_logprobs(batch)
    torch.testing.assert_close(reference, expected, atol=1e-5, rtol=0)
    with torch.no_grad():
        adapted = bench.policy.outputs(batch).logprobs
    assert float((adapted - reference).abs().max()) > 0.01


def test_with_adapters_only_they_train(make_config: MakeConfig) -> None:
    policy = build_policy(make_config(LORA).model, make_config().critic, seed=0)
    trained = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert sum(p.numel() for p in policy.policy_parameters()) == sum(
        p.numel() for name, p in policy.model.named_parameters() if "lora_" in name
    )


def test_adapters_come_from_the_seed_and_leave_the_global_generator_alone(
    make_config: MakeConfig,
) -> None:
    config = make_config(LORA)

    def first_adapter(seed: int) -> torch.Tensor:
        policy = build_policy(config.model, config.critic, seed=seed)
        return next(p for n, p in policy.model.named_parameters() if "lora_A" in n).detach()

    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(first_adapter(0), first_adapter(0))
    assert not torch.equal(first_adapter(0), first_adapter(1))
    assert torch.equal(torch.rand(4), expected)


def test_without_adapters_the_reference_stays_where_training_began(
    make_config: MakeConfig,
) -> None:
    bench = make_bench(make_config())
    batch = bench.batch()
    before = bench.policy.reference_logprobs(batch)
    with torch.no_grad():
        for parameter in bench.policy.policy_parameters():
            parameter.mul_(1.1)
    assert torch.equal(bench.policy.reference_logprobs(batch), before)
    with torch.no_grad():
        moved = bench.policy.outputs(batch).logprobs
    torch.testing.assert_close(before[batch.loss_mask], batch.behaviour_logprobs[batch.loss_mask])
    assert float((moved - before).abs().max()) > 0.01


# -- critics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", [HEAD, OWN_MODEL])
def test_a_new_critic_says_zero(make_config: MakeConfig, critic: tuple[str, ...]) -> None:
    bench = make_bench(make_config(*critic))
    values = bench.policy.outputs(bench.batch()).values
    assert values is not None
    assert not values.any()


@pytest.mark.parametrize("critic", [HEAD, OWN_MODEL])
def test_a_value_reads_the_state_its_token_was_sampled_in(
    make_config: MakeConfig, critic: tuple[str, ...]
) -> None:
    bench = make_bench(make_config(*critic))
    batch = bench.batch()
    made = bench.policy.critic
    head = made.head if isinstance(made, ModelCritic) else made
    trunk = made.trunk if isinstance(made, ModelCritic) else bench.policy.model.base_model
    assert isinstance(head, ValueHead)
    torch.nn.init.constant_(head.linear.weight, 0.1)
    with torch.no_grad():
        values = bench.policy.outputs(batch).values
        assert values is not None
        for row in range(batch.num_rows):
            length = int(batch.attention_mask[row].sum())
            hidden = trunk(input_ids=batch.input_ids[row : row + 1, :length]).last_hidden_state[0]
            expected = torch.zeros(batch.width)
            expected[1:length] = head(hidden[:-1])
            expected *= batch.loss_mask[row]
            torch.testing.assert_close(values[row], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("detach", "reaches_trunk"), [("false", True), ("true", False)])
def test_the_value_loss_reaches_the_trunk_unless_detached(
    make_config: MakeConfig, detach: str, reaches_trunk: bool
) -> None:
    bench = make_bench(make_config(*HEAD, f"critic.detach={detach}"))
    assert isinstance(bench.policy.critic, ValueHead)
    torch.nn.init.constant_(bench.policy.critic.linear.weight, 0.1)
    values = bench.policy.outputs(bench.batch()).values
    assert values is not None
    values.sum().backward()
    assert bench.policy.critic.linear.weight.grad is not None
    assert bool(bench.gradients()) == reaches_trunk


def test_a_model_critic_is_another_model(make_config: MakeConfig) -> None:
    bench = make_bench(make_config(*OWN_MODEL))
    values = bench.policy.outputs(bench.batch()).values
    assert values is not None
    values.sum().backward()
    assert not bench.gradients()
    assert len(bench.policy.critic_parameters()) > 2


# -- loading -------------------------------------------------------------------------------------


def test_loading_gives_the_folders_weights(tiny_model: Path) -> None:
    loaded = load_model(str(tiny_model), ModelConfig(device="cpu"))
    expected = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    for (name, weight), (_, other) in zip(
        loaded.named_parameters(), expected.named_parameters(), strict=True
    ):
        assert torch.equal(weight, other), name
    assert not loaded.training


def test_dtypes(tiny_model: Path) -> None:
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        config = ModelConfig.model_validate({"dtype": name, "device": "cpu"})
        assert load_model(str(tiny_model), config).dtype is dtype
    assert load_model(str(tiny_model), ModelConfig(device="cpu")).dtype is torch.float32


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all"])
def test_a_missing_folder_is_one_line(path: str) -> None:
    with pytest.raises(ConfigError, match=f"no model folder '{path}'"):
        load_model(path, ModelConfig(device="cpu"))


def test_a_folder_without_weights_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    with pytest.raises(ConfigError, match=r"there is no \.safetensors file in it") as caught:
        load_model(str(tmp_path), ModelConfig(device="cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"not safetensors at all", b"\xff" * 64], ids=["empty", "text", "ones"]
)
def test_damaged_weights_are_one_line(tiny_model: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match="which cannot be loaded: ") as caught:
        load_model(str(tmp_path), ModelConfig(device="cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "has no weights for model.norm.weight"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}),
            "whose weights do not fit its config.json: model.norm.weight is 3",
        ),
    ],
)
def test_weights_that_do_not_fit_are_one_line(
    tiny_model: Path,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], object],
    message: str,
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    tensors = load_file(tiny_model / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=message) as caught:
        load_model(str(tmp_path), ModelConfig(device="cpu"))
    assert "\n" not in str(caught.value)


def test_a_missing_device_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"model\.device is cuda, but torch sees no CUDA device"):
        resolve_device("cuda")


def test_models_that_scale_their_logits_are_refused(bench: Bench, batch: TokenBatch) -> None:
    bench.policy.model.config.final_logit_softcapping = 30.0
    try:
        with pytest.raises(ConfigError, match="scales its logits by final_logit_softcapping"):
            bench.policy.outputs(batch)
    finally:
        del bench.policy.model.config.final_logit_softcapping


def test_the_models_positions_are_known(bench: Bench) -> None:
    assert bench.policy.max_positions == 2048
