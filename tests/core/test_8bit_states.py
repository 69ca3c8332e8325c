"""AdamW with moments of 8 bits: an optional package, one sentence without it, resumed exactly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bench import Bench, make_bench

from echoscope.core.config.loading import ConfigError, load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.memory import estimate_memory
from echoscope.core.optim import Optimizer, require_package
from echoscope.core.policy_assets import resolve_model
from echoscope.core.run.checkpoint import list_checkpoints
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.update import update

MakeConfig = Callable[..., RunConfig]
LARGE = f"model.path={resolve_model('tiny')}"
"""The shipped policy: its matrices have more than 4096 weights, so their moments have 8 bits."""


def test_without_the_package_one_sentence_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    config = load_config("demo", overrides=["optim.states=8bit"])
    with pytest.raises(
        ConfigError, match=r"needs the package.*pip install 'bitsandbytes"
    ) as raised:
        require_package(config.optim)
    assert "\n" not in str(raised.value)


def test_it_is_not_combined_with_moments_in_host_memory() -> None:
    with pytest.raises(ConfigError, match=r"optim\.states is 8bit and optim\.offload is true"):
        load_config("demo", overrides=["optim.states=8bit", "optim.offload=true"])


@pytest.mark.parametrize("setting", ["model.dtype=float32", "model.dtype=bfloat16"])
def test_the_estimate_counts_two_bytes_a_weight_and_the_scales(
    make_config: MakeConfig, setting: str
) -> None:
    plain, small = (
        estimate_memory(make_config(setting, f"optim.states={states}"), "cpu")
        for states in ("float32", "8bit")
    )
    num_weights = plain.weights // (4 if "32" in setting else 2)
    assert plain.optimizer - small.optimizer == pytest.approx(
        num_weights * (8 - 2 - 8 / 256), abs=2
    )


def train(bench: Bench, step: int) -> None:
    update(bench.policy, bench.optimizer, bench.batch(step), bench.config, step)


@pytest.fixture
def needs_package() -> None:
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install -e '.[8bit]'")


@pytest.mark.usefixtures("needs_package")
class TestWithThePackage:
    @pytest.mark.parametrize(
        "settings",
        [
            (),
            ("model.dtype=bfloat16",),
            ("model.lora={rank: 16, alpha: 32}",),
            ("critic.kind=model", "advantage.kind=gae"),
            ("optim.minibatches=2", "optim.weight_decay=0.1"),
        ],
        ids=str,
    )
    def test_weights_move_about_as_with_float32_moments(
        self, make_config: MakeConfig, settings: tuple[str, ...]
    ) -> None:
        """Three updates: all weights together go the same way, about as far."""
        moves = []
        for states in ("float32", "8bit"):
            bench = make_bench(
                make_config(LARGE, "optim.lr=1e-3", f"optim.states={states}", *settings)
            )
            before = bench.weights()
            for step in (1, 2, 3):
                train(bench, step)
            after = bench.weights()
            moves.append(
                torch.cat([(after[name] - before[name]).float().flatten() for name in before])
            )
        cosine = torch.nn.functional.cosine_similarity(moves[0], moves[1], dim=0)
        assert float(cosine) > 0.9
        assert float(moves[1].norm() / moves[0].norm()) == pytest.approx(1, abs=0.1)

    def test_moments_of_matrices_have_one_byte(self, make_config: MakeConfig) -> None:
        bench = make_bench(make_config(LARGE, "optim.states=8bit"))
        train(bench, 1)
        tensors = bench.optimizer.state_tensors()
        moments = [t for name, t in tensors.items() if name.endswith(("state1", "state2"))]
        large = [t for t in moments if t.numel() >= 4096]
        assert {t.dtype for t in large} == {torch.uint8}
        assert {t.dtype for t in moments if t.numel() < 4096} == {torch.float32}
        assert sum(t.numel() for t in large) > 0.99 * sum(t.numel() for t in moments)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_state_goes_through_its_tensors_exactly(
        self, make_config: MakeConfig, dtype: str
    ) -> None:
        config = make_config(LARGE, "optim.states=8bit", "optim.lr=1e-3", f"model.dtype={dtype}")
        whole, resumed = make_bench(config), make_bench(config)
        for bench in (whole, resumed):
            train(bench, 1)
        again = Optimizer(resumed.policy.parameter_groups(), config.optim)
        again.load_state_tensors(resumed.optimizer.state_tensors())
        resumed.optimizer = again
        for bench in (whole, resumed):
            train(bench, 2)
        expected = whole.weights()
        assert all(
            torch.equal(weight, expected[name]) for name, weight in resumed.weights().items()
        )

    def test_a_resumed_run_has_the_same_weights(
        self, make_config: MakeConfig, tmp_path: Path
    ) -> None:
        settings = (LARGE, "optim.states=8bit", "optim.lr=1e-3", "checkpoint.every=1")
        start(make_config(*settings, "steps=3"), tmp_path / "whole", SilentEvents())
        start(make_config(*settings, "steps=2"), tmp_path / "resumed", SilentEvents())
        resume(tmp_path / "resumed", SilentEvents(), settings={"steps": 3})
        ends = [list_checkpoints(tmp_path / name)[-1] for name in ("whole", "resumed")]
        files = [file.relative_to(ends[0]) for file in ends[0].rglob("*.safetensors")]
        assert files
        for file in files:
            assert (ends[0] / file).read_bytes() == (ends[1] / file).read_bytes(), file
