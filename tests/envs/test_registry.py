"""Ids, parameters and registration: what is found, and how a mistake is answered."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Any, Literal

import numpy as np
import pytest

from echoscope.envs import registry
from echoscope.envs.base import (
    EnvError,
    EnvParamsError,
    EnvSpec,
    EnvUnavailableError,
    UnknownEnvError,
    check_seed,
    shorten,
)
from echoscope.envs.params import build_config
from echoscope.envs.worlds.bandit import Bandit, BanditConfig
from echoscope.text import user_code


def test_an_unknown_id_suggests_close_ones() -> None:
    with pytest.raises(UnknownEnvError, match="did you mean 'frozen_lake'") as caught:
        registry.make("frozenlake")
    assert isinstance(caught.value, KeyError)
    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownEnvError, match=r"known: .*bandit, .*frozen_lake"):
        registry.spec("zzzzzzzz")


def test_specs_of_all_named_environments() -> None:
    assert set(registry.unavailable()) < set(registry.listed_ids())
    spec = registry.spec("bandit")
    assert spec.config_type is BanditConfig
    assert (spec.max_turns, spec.max_actions_per_turn) == (1, 1)


def test_module_and_class_as_an_id() -> None:
    env = registry.make("echoscope.envs.worlds.bandit:Bandit", pairs="test")
    assert isinstance(env, Bandit)
    assert (
        registry.spec("echoscope.envs.worlds.bandit:Bandit").id
        == "echoscope.envs.worlds.bandit:Bandit"
    )


@pytest.mark.parametrize(
    ("env_id", "error", "message"),
    [
        ("no.such.module:World", EnvUnavailableError, "cannot import 'no.such.module'"),
        ("echoscope.envs.worlds.bandit:Bandt", UnknownEnvError, "did you mean 'Bandit'"),
        ("echoscope.envs.worlds.bandit:BanditConfig", EnvParamsError, "must be a TextEnv"),
        (":World", UnknownEnvError, "no environment ':World'"),
        ("verifiers:gsm8k", UnknownEnvError, "read its results with `echoscope import`"),
    ],
)
def test_bad_classes(env_id: str, error: type[EnvError], message: str) -> None:
    with pytest.raises(error, match=message):
        registry.make(env_id)


def test_entry_points_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("their_arms", "echoscope.envs.worlds.bandit:Bandit", "g"),
        importlib.metadata.EntryPoint("broken", "no_such_package:World", "g"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    user_code.entry_points.cache_clear()
    try:
        assert isinstance(registry.make("their_arms"), Bandit)
        assert "their_arms" in registry.known_ids()
        assert "cannot import 'no_such_package'" in registry.unavailable()["broken"]
    finally:
        user_code.entry_points.cache_clear()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    needed: int
    ratio: float = 0.5
    flag: bool = False
    mode: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] | None = None
    free: Any = None
    inner: BanditConfig | None = None
    config: BanditConfig = dataclasses.field(default_factory=BanditConfig)


def test_parameters_are_converted_only_where_nothing_is_lost() -> None:
    config = build_config("w", Wide, {"needed": 1, "ratio": 1, "sizes": [1, 2], "pair": [3, "x"]})
    assert config == Wide(needed=1, ratio=1.0, sizes=(1, 2), pair=(3, "x"))
    assert type(config.ratio) is float
    assert build_config("w", Wide, {"needed": 1, "pair": None, "free": {"a": 1}}).free == {"a": 1}
    inner = BanditConfig(pairs="test")
    assert build_config("w", Wide, {"needed": 1, "inner": inner, "config": inner}).inner is inner


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "w needs the parameter 'needed'"),
        ({"needed": 1, "ratoi": 1}, "no parameter 'ratoi'; did you mean 'ratio'"),
        ({"needed": True}, "needed is True, but must be an integer"),
        ({"needed": 1.0}, "needed is 1.0, but must be an integer"),
        ({"needed": "1"}, "needed is '1', but must be an integer"),
        ({"needed": 1, "ratio": "x"}, "ratio is 'x', but must be a number"),
        ({"needed": 1, "flag": 1}, "flag is 1, but must be true or false"),
        ({"needed": 1, "mode": "c"}, "mode is 'c', but must be one of 'a', 'b'"),
        ({"needed": 1, "sizes": 3}, r"sizes is 3, but must be a list of \(an integer\)"),
        ({"needed": 1, "pair": [1]}, r"must be \[an integer, a string\] or null"),
    ],
)
def test_wrong_parameters(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvParamsError, match=message):
        build_config("w", Wide, params)


def test_an_environment_refuses_another_ones_config() -> None:
    with pytest.raises(EnvParamsError, match="bandit takes a BanditConfig, not a Wide"):
        Bandit(Wide(needed=1))  # type: ignore[arg-type]


def test_a_spec_checks_its_limits() -> None:
    with pytest.raises(EnvParamsError, match="must be at least 1"):
        EnvSpec(
            id="x", config_type=Wide, max_turns=0, max_actions_per_turn=1,
            description="",
        )  # fmt: skip


@pytest.mark.parametrize(
    "seed", [-1, 2**63, 1.0, True, "1", np.float64(1), np.True_, np.int64(-1), np.array([1, 2])]
)
def test_bad_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(EnvParamsError, match="seed is"):
        check_seed("seed", seed)
    with pytest.raises(EnvParamsError, match="noise_seed"):
        Bandit().reset(0, seed)


@pytest.mark.parametrize("seed", [np.int64(5), np.uint64(5), np.array(5)])
def test_numpy_integers_are_seeds(seed: Any) -> None:
    assert type(check_seed("seed", seed)) is int
    assert Bandit().reset(seed, seed) == Bandit().reset(5, 5)


def test_shorten_keeps_messages_on_one_ascii_line() -> None:
    assert shorten("jump") == "jump"
    assert shorten("a\nb\x00") == "a?b?"
    assert shorten("x" * 41) == "x" * 37 + "..."
    assert shorten("\ud800\u2713") == "\\ud800\\u2713"
    assert len(shorten("\u2713" * 40)) == 40
