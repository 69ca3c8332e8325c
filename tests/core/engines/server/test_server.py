"""An engine over HTTP against a server that is slow, broken, or wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from costs import HANG_S, without_hanging
from generating import generate
from scripted_server import (
    VOCAB_SIZE,
    Body,
    Script,
    hang,
    honest,
    reloaded,
    serving,
    status,
    tokens_of,
)
from transformers import Qwen2Config, Qwen2ForCausalLM

from echoscope.core.config.engine import OpenAiEngineConfig
from echoscope.core.config.loading import ConfigError
from echoscope.core.engines.base import EngineError, SamplingParams
from echoscope.core.engines.server import http
from echoscope.core.engines.server.engine import ServerEngine
from echoscope.store.records import FinishReason
from echoscope.text.user_code import load

Make = Callable[..., ServerEngine]
FIVE = SamplingParams(max_new_tokens=5)


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def make(
    model: Qwen2ForCausalLM, script: Script, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    monkeypatch.setattr(http, "_PAUSE_S", 0.001)
    monkeypatch.setattr(http, "ANSWER_S", 5.0)
    made: list[ServerEngine] = []
    with serving(script) as url:

        def build(**settings: Any) -> ServerEngine:
            config = OpenAiEngineConfig(url=url, **settings)
            made.append(ServerEngine(model, config=config))
            return made[-1]

        yield build
        for engine in made:
            engine.close()


def changed(**parts: Any) -> Callable[[Body], Any]:
    """The honest answer with parts of its choice changed; None takes a part away."""

    def answer(body: Body) -> Any:
        completion = honest(body)
        choice = completion["choices"][0] | parts
        completion["choices"] = [{key: value for key, value in choice.items() if value is not None}]
        return completion

    return answer


def test_ids_go_there_and_ids_and_log_probs_come_back(make: Make, script: Script) -> None:
    engine = make()
    prompts = [np.array([1, 2, 3]), np.array([4])]
    params = SamplingParams(max_new_tokens=5, temperature=0.7, top_k=3, stop_token_ids=(96,))
    samples = generate(engine, prompts, params, seeds=[10, 11])
    for sample, prompt, seed in zip(samples, prompts, (10, 11), strict=True):
        assert sample.tokens.tolist() == tokens_of(prompt.tolist(), seed, 5)
        assert sample.logprobs.tolist() == [-0.5] * 5
        assert sample.entropies is None
        assert (sample.finish_reason, sample.policy_version) == (FinishReason.LENGTH, 0)
    [body] = [body for path, body in script.asked if body.get("seed") == 10]
    assert body == {
        "model": "served",
        "prompt": [1, 2, 3],
        "max_tokens": 5,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 3,
        "seed": 10,
        "logprobs": 0,
        "stop_token_ids": [96],
        "ignore_eos": True,
        "add_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def test_what_truncation_left_in_is_recorded(make: Make) -> None:
    params = SamplingParams(max_new_tokens=2, top_p=0.9, records_support=True)
    [sample] = generate(make(), [np.array([1])], params, seeds=[0])
    [first, second] = tokens_of([1], 0, 2)
    assert sample.support is not None
    assert sample.support.sizes.tolist() == [2, 2], "a log-prob of -9999 is a token left out"
    assert sample.support.tokens.tolist() == [*sorted([first, 96]), *sorted([second, 96])]


def test_a_failed_request_is_made_again_a_bounded_number_of_times(
    make: Make, script: Script
) -> None:
    engine = make()
    script.answers = [status(500), lambda body: "hang up", honest]
    [sample] = generate(engine, [np.array([1])], FIVE, seeds=[0])
    assert sample.tokens.tolist() == tokens_of([1], 0, 5)
    script.answers, script.asked = [status(503, "overloaded\x1b[31m")], []
    with pytest.raises(EngineError, match=r"answered 503: overloaded \[31m \(3 attempts\)$"):
        generate(engine, [np.array([1])], FIVE, seeds=[0])
    assert (len(script.asked), engine.num_pending) == (3, 0)


def test_a_request_that_the_server_refuses_is_not_made_again(make: Make, script: Script) -> None:
    engine, script.answers = make(), [status(400, '{"error": "no such model"}')]
    script.asked.clear()
    with pytest.raises(EngineError, match=r"answered 400: .*no such model"):
        generate(engine, [np.array([1])], FIVE, seeds=[0])
    assert len(script.asked) == 1


def test_a_server_that_hangs_is_left_after_the_timeout(
    make: Make, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    monkeypatch.setattr(http, "ANSWER_S", 0.1)
    script.answers = [hang(1.0)]
    with pytest.raises(
        EngineError, match=r"did not answer within 0.1 s: look at the server.*\(3 attempts\)"
    ):
        generate(engine, [np.array([1])], FIVE, seeds=[0])


def test_a_server_that_is_not_there_is_one_sentence(model: Qwen2ForCausalLM) -> None:
    config = OpenAiEngineConfig(url="http://127.0.0.1:9")
    with pytest.raises(EngineError, match=r"127.0.0.1:9/v1/models cannot be reached: .*refused"):
        ServerEngine(model, config=config)
    with pytest.raises(ConfigError, match=r"engine.url is 'ftp://x', but must look like"):
        ServerEngine(model, config=OpenAiEngineConfig(url="ftp://x"))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (changed(token_ids=[1, 2]), r"gave 2 tokens and 5 log-probs"),
        (
            changed(token_ids=[1], logprobs={"token_logprobs": [-1.0]}),
            r"stopped after 1 tokens, but was asked for 5",
        ),
        (
            changed(token_ids=[1] * 6, logprobs={"token_logprobs": [-1.0] * 6}),
            r"sampled 6 tokens, but was asked for 5",
        ),
        (changed(token_ids=[1, 2, 3, 4, 97]), r"token id 97, but the policy's vocabulary has 97"),
        (changed(prompt_token_ids=[0, 1]), r"prompt of 2 ids that is not the one of 1 ids"),
        (changed(token_ids=None), r"no token ids in choices\[0\].token_ids.*return_token_ids"),
        (changed(token_ids=[1, 2, 3, 4, True]), r"no token ids"),
        (changed(logprobs=None), r"no log-probs in choices\[0\].logprobs: training needs"),
        (changed(logprobs={"token_logprobs": [None] * 5}), r"no log-probs in .*token_logprobs"),
        (changed(logprobs={"token_logprobs": [0.7] * 5}), r"NaN, infinite or above 0"),
        (changed(finish_reason="stop"), r"ended a reply with token \d+, which ends none here"),
        (changed(finish_reason="content_filter"), r"with 'content_filter', not stop or length"),
        (lambda body: {}, r"answer has no choices: does it speak"),
        (lambda body: {"choices": []}, r"answer has no choices"),
        (lambda body: [1], r"answer has no choices"),
        (lambda body: "<html>", r"answered what is no JSON: <html>"),
    ],
)
def test_a_wrong_answer_is_one_sentence(
    make: Make, script: Script, answer: Callable[[Body], Any], sentence: str
) -> None:
    engine, script.answers = make(), [answer]
    with pytest.raises(EngineError, match=sentence) as caught:
        generate(engine, [np.array([1])], FIVE, seeds=[0])
    assert "\n" not in str(caught.value)
    assert engine.num_pending == 0


def test_requests_come_back_as_they_finish(make: Make, script: Script) -> None:
    engine, release = make(), threading.Event()

    def slow(body: Body) -> Any:
        if body["seed"] == 0:
            release.wait(5)
        return honest(body)

    script.answers = [slow]
    engine.submit(7, np.array([1]), FIVE, seed=0)
    engine.submit(8, np.array([1]), FIVE, seed=1)
    [(key, _)] = engine.advance(max_wait_s=5)
    assert (key, engine.num_pending) == (8, 1)
    assert engine.advance(max_wait_s=0.01) == []
    with pytest.raises(RuntimeError, match="sync_weights was called while 1 requests"):
        engine.sync_weights(SimpleNamespace(model=None, version=1))
    release.set()
    [(key, sample)] = engine.advance(max_wait_s=5)
    assert (key, sample.tokens.tolist()) == (7, tokens_of([1], 0, 5))


def test_closing_does_not_wait_for_a_server_that_hangs(make: Make, script: Script) -> None:
    engine, script.answers = make(), [hang(HANG_S)]
    engine.submit(1, np.array([1]), FIVE, seed=0)
    time.sleep(0.05)
    with without_hanging():
        engine.close()
    with pytest.raises(RuntimeError, match="the engine is closed"):
        engine.submit(1, np.array([1]), FIVE, seed=0)


def test_fixed_weights_keep_their_version(make: Make, model: Qwen2ForCausalLM) -> None:
    """The run's staleness then rises, and the alarm STALE_ENGINE with it."""
    engine = make()
    engine.sync_weights(SimpleNamespace(model=model, version=4))
    [sample] = generate(engine, [np.array([1])], FIVE, seeds=[0])
    assert sample.policy_version == 0


def test_vllm_gets_a_folder_and_forgets_its_prefixes(
    make: Make, script: Script, model: Qwen2ForCausalLM
) -> None:
    script.other |= {
        "/collective_rpc": reloaded,
        "/reset_prefix_cache": {"success": True},
    }
    engine = make(weights="vllm")
    script.asked.clear()
    engine.sync_weights(SimpleNamespace(model=model, version=4))
    assert [path for path, _ in script.asked] == ["/collective_rpc", "/reset_prefix_cache"]
    body = script.asked[0][1]
    assert body["method"] == "echoscope_reload"
    assert not Path(body["args"][0]).exists(), "the weights are in shared memory only while read"
    [sample] = generate(engine, [np.array([1])], FIVE, seeds=[0])
    assert sample.policy_version == 4
    script.other["/collective_rpc"] = {"results": [5, 4]}
    with pytest.raises(EngineError, match=r"was sent version 5 .* says that it holds \[5, 4\]"):
        engine.sync_weights(SimpleNamespace(model=model, version=5))
    script.other["/collective_rpc"] = reloaded
    script.other["/reset_prefix_cache"] = {"success": False}
    with pytest.raises(EngineError, match="could not empty its prefix cache"):
        engine.sync_weights(SimpleNamespace(model=model, version=5))


def test_a_server_of_another_machine_reads_from_a_shared_disk(
    make: Make, script: Script, model: Qwen2ForCausalLM, tmp_path: Path
) -> None:
    script.other |= {"/collective_rpc": reloaded, "/reset_prefix_cache": {"success": True}}
    engine = make(weights="vllm", weights_folder=str(tmp_path))
    [load] = [body for path, body in script.asked if path == "/collective_rpc"]
    assert tmp_path in Path(load["args"][0]).parents
    engine.close()
    assert list(tmp_path.iterdir()) == []


def weight_hook(model: Any, version: int, server: Any) -> None:
    server.post("/mine", {"version": version})


def test_a_hook_of_the_users_own_carries_the_weights(
    make: Make, script: Script, model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "my_hook", SimpleNamespace(hook=weight_hook))
    load("weight_sync", "my_hook:hook")
    script.other["/mine"] = {}
    engine = make(weights="hook", sync_hook="my_hook:hook")
    engine.sync_weights(SimpleNamespace(model=model, version=3))
    assert ("/mine", {"version": 3}) in script.asked
    assert generate(engine, [np.array([1])], FIVE, seeds=[0])[0].policy_version == 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weights": "hook"}, "engine.weights=hook and engine.sync_hook together"),
        ({"sync_hook": "a:b"}, "engine.weights=hook and engine.sync_hook together"),
    ],
)
def test_settings_that_do_not_fit_each_other(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        OpenAiEngineConfig(**settings)


def test_a_key_that_is_not_set_is_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="names NO_SUCH_KEY, but no such variable is set"):
        make(api_key_env="NO_SUCH_KEY")


@pytest.mark.parametrize("model_name", [None, "mine"])
def test_a_wrong_key_is_one_sentence_with_the_setting(
    make: Make, script: Script, model_name: str | None
) -> None:
    script.other["/v1/models"] = status(401, "Unauthorized")
    with pytest.raises(EngineError, match=r"answered 401: Unauthorized; set engine.api_key_env"):
        make(model=model_name)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (status(404), r"cannot take new weights: start vLLM with VLLM_SERVER_DEV_MODE=1"),
        (
            status(500, "'Worker' object has no attribute 'echoscope_reload'"),
            r"start vLLM with core/engines/vllm/worker on its PYTHONPATH .*--worker-extension-cls",
        ),
        (status(500, "out of memory"), r"collective_rpc answered 500: out of memory"),
    ],
)
def test_a_server_started_without_its_part_for_weights_is_told(
    make: Make, script: Script, answer: Callable[[Body], Any], sentence: str
) -> None:
    script.other["/collective_rpc"] = answer
    with pytest.raises(EngineError, match=sentence):
        make(weights="vllm")


def test_a_server_with_too_little_room_is_refused_before_it_samples(
    make: Make, script: Script
) -> None:
    """The model of these tests has 64 positions."""
    script.other["/v1/models"] = {"data": [{"id": "served", "max_model_len": 63}]}
    with pytest.raises(EngineError, match=r"has room for 63 tokens.* --max-model-len 64, or lower"):
        make()
    with pytest.raises(EngineError, match=r"has room for 63 tokens"):
        make(model="served")
    make(model="an adapter of it")
    script.other["/v1/models"] = {"data": [{"id": "served", "max_model_len": 64}]}
    make()


def test_a_server_may_keep_its_models_to_itself_if_one_is_named(make: Make, script: Script) -> None:
    script.other["/v1/models"] = {"data": []}
    with pytest.raises(EngineError, match=r"/v1/models names no model: set engine.model"):
        make()
    make(model="mine")
    script.other["/v1/models"] = status(404)
    make(model="mine")


def test_truncation_of_a_large_vocabulary_needs_top_k(make: Make) -> None:
    """A server cannot tell training which of very many tokens were left in."""
    engine = make()
    engine._limits = replace(engine._limits, vocab_size=50_000)
    params = SamplingParams(max_new_tokens=2, top_p=0.9, records_support=True)
    with pytest.raises(ConfigError, match=r"set sampling.top_k to at most 1008 beside sampling"):
        generate(engine, [np.array([1])], params, seeds=[0])
