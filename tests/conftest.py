"""A tiny untrained model and a configuration around it that trains in a fraction of a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from echoscope.core.config.settings import RunConfig

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHARED = str(Path(__file__).parent / "shared")
"""Modules that several tests import, and that runs name as `module:function`."""
sys.path.insert(0, SHARED)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SHARED, os.environ.get("PYTHONPATH")]))

import harness_seed  # noqa: E402 - lies in the folder that was just named

harness_seed.draw()  # before workers are started: all of them have the same seed

# A busy machine makes examples slow; that says nothing about the code.
settings.register_profile("echoscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("echoscope")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say the seed where tests ran that draw at random."""
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    if any("long" in report.keywords for report in reports):
        terminalreporter.write_line(f"damages, kills and odd input {harness_seed.told()}")


@pytest.fixture(autouse=True)
def _own_processes() -> Iterator[None]:
    """A test that fails half way leaves no process behind."""
    from started import ended_afterwards

    with ended_afterwards():
        yield


LAKE = {
    "env": "frozen_lake",
    "params": {"size": 3, "holes": 1, "slip": 0.0},
    "max_turns": 2,
    "max_actions_per_turn": 1,
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an untrained policy of two layers and its byte-level tokenizer."""
    from transformers.utils import logging

    from echoscope.core.pretrained.policy_assets import (
        PolicyShape,
        create_policy,
        save_tokenizer,
        train_tokenizer,
    )

    logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("models") / "random"
    tokenizer = train_tokenizer(["the goal lies up and to the right of you"], vocab_size=300)
    shape = PolicyShape(
        vocab_size=300, hidden_size=64, intermediate_size=96, num_layers=2, num_kv_heads=1
    )
    create_policy(tokenizer, shape, seed=1).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def config_file(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps: two groups of four, two turns of at most ten tokens.

    The reward is the share of lower-case letters in each reply, so that every group has a spread.
    """
    settings = {
        "name": "test",
        "steps": 4,
        "threads": 1,
        "model": {"path": str(tiny_model), "device": "cpu"},
        "context": {
            "system": "",
            "instructions": False,
            "format_hint": False,
            "max_response_tokens": 10,
            "max_prompt_tokens": 400,
        },
        "envs": {
            "group_size": 4,
            "train": [{**LAKE, "groups": 2}],
            "eval": [{**LAKE, "groups": 3}],
        },
        "reward": {"shaping": [{"name": "letters", "function": "letters:lower_case_share"}]},
        "optim": {"lr": 1.0e-3},
        "eval": {"every": 2},
        "probe": {"every": 0, "tasks": 3},
        "checkpoint": {"every": 2},
    }
    path = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def make_config(config_file: Path) -> Callable[..., RunConfig]:
    """`make_config("optim.lr=1e-2", ...)`: the tiny run with overrides."""
    from echoscope.core.config.loading import load_config

    def make(*overrides: str) -> RunConfig:
        return load_config(file=config_file, overrides=overrides)

    return make


@pytest.fixture(scope="session")
def recorded_root(
    make_config: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A root with one run, `tiny`, that a trainer recorded. Tests only read it."""
    from echoscope.core.run.launch import start
    from echoscope.core.run.observers import SilentEvents

    root = tmp_path_factory.mktemp("recorded")
    assert start(make_config(), root / "tiny", SilentEvents()) == "finished"
    return root
