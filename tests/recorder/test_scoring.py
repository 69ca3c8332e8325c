"""I(X;Z) and H(Z|X) inside another trainer's loop: right, within a budget, and without a trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.measure.information.scoring import ModelScorer, unwrapped
from echoscope.diagnostics.monitor import Instruments, Monitor
from echoscope.recorder.episodes import GivenEpisode
from echoscope.recorder.recorder import Recorder
from echoscope.recorder.scoring import Scoring, ScoringConfig
from echoscope.store.models import Detokenizer, token_span
from echoscope.store.reader import open_run
from echoscope.store.records import (
    FinishReason,
    RolloutBatch,
    Split,
    StopReason,
    Trajectory,
    Turn,
    prompt_key,
)
from echoscope.text.replies import parse_response

TASKS, SIBLINGS = 3, 2


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.3).train()


def task(number: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "You play."},
        {"role": "user", "content": f"the goal lies {'up' * number}"},
    ]


def reply(number: int, sibling: int) -> str:
    return f"<think>to the goal {number} {'and ' * sibling}</think><answer>up</answer>"


def episodes() -> Iterator[tuple[int, int, list[dict[str, str]]]]:
    for number in range(TASKS):
        for sibling in range(SIBLINGS):
            answer = {"role": "assistant", "content": reply(number, sibling)}
            yield number, sibling, [*task(number), answer]


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def prompt_ids(tokenizer: Any, number: int) -> list[int]:
    text = tokenizer.apply_chat_template(task(number), add_generation_prompt=True, tokenize=False)
    return ids(tokenizer, text)


def logprobs(model: Any, prompt: list[int], continuation: list[int]) -> np.ndarray:
    """One row through the model, and nothing shared."""
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *continuation]])).logits[0].double()
    model.train()
    table = torch.log_softmax(logits, dim=-1)
    places = range(len(prompt) - 1, len(prompt) + len(continuation) - 1)
    return np.array(
        [
            float(table[position, token])
            for position, token in zip(places, continuation, strict=True)
        ]
    )


def stored(path: Path, step: int = 1) -> dict[str, float]:
    rows = open_run(path).sql("SELECT key, value FROM metrics WHERE step = $1", [step]).to_pylist()
    return {row["key"]: row["value"] for row in rows}


def record(path: Path, policy: Any, tokenizer: Any, **more: Any) -> None:
    with Recorder(path, policy=policy, tokenizer=tokenizer, **more) as recorder:
        for number, sibling, messages in episodes():
            recorder.episode(messages, reward=float(sibling), group=number)
        recorder.measure(1)
        recorder.step(1, {"loss": 0.5})


def naive(model: Any, tokenizer: Any) -> tuple[float, float]:
    """I(X;Z) and H(Z|X) in nats, from one pass per pair of prompt and reasoning."""
    prompts = [prompt_ids(tokenizer, number) for number in range(TASKS)]
    own, mixture = [], []
    for number in range(TASKS):
        for sibling in range(SIBLINGS):
            reply_ids = ids(tokenizer, reply(number, sibling))
            size = next(
                n
                for n in range(len(reply_ids))
                if "</think>" in str(tokenizer.decode(reply_ids[:n]))
            )
            sums = np.array([logprobs(model, prompt, reply_ids[:size]).sum() for prompt in prompts])
            own.append(sums[number])
            mixture.append(np.log(np.mean(np.exp(sums))))
    return float(np.mean(own) - np.mean(mixture)), float(-np.mean(own))


def test_both_numbers_are_those_of_a_naive_computation(
    tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    record(tmp_path / "run", model, tokenizer)
    values = stored(tmp_path / "run")
    information, entropy = naive(model, tokenizer)
    assert values["info/first_turn/mutual_information"] == pytest.approx(information, abs=1e-4)
    assert values["info/first_turn/conditional_entropy"] == pytest.approx(entropy, abs=1e-3)
    assert values["loss"] == 0.5


def trajectory(tokenizer: Any, index: int, number: int, sibling: int) -> Trajectory:
    """As a rollout of Echoscope's own trainer would have it."""
    text, tokens = reply(number, sibling), np.array(ids(tokenizer, reply(number, sibling)))
    parsed = parse_response(text, reasoning=True, forced_think=False)
    _, ends = Detokenizer(tokenizer.backend_tokenizer).decode(tokens)
    prompt = prompt_ids(tokenizer, number)
    turn = Turn(
        index=0,
        observation=task(number)[1]["content"],
        response=text,
        reasoning_chars=parsed.reasoning_chars,
        answer_chars=parsed.answer_chars,
        prompt_tokens=np.array(prompt),
        response_tokens=tokens,
        reasoning_span=token_span(parsed.reasoning_chars, ends),
        actions=("up",),
        finish_reason=FinishReason.STOP,
    )
    return Trajectory(
        step=1,
        split=Split.TRAIN,
        index=index,
        group_index=number,
        sibling_index=sibling,
        env_id="",
        tag="",
        env_seed=None,
        noise_seed=None,
        prompt_key=prompt_key(f"You play.\n\n{task(number)[1]['content']}"),
        turns=(turn,),
        stop_reason=StopReason.TERMINATED,
    )


def test_every_number_is_that_of_our_own_monitor(
    tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    """Same model, same episodes: what a run of Echoscope itself would have stored."""
    rows = [
        tuple(trajectory(tokenizer, n * SIBLINGS + k, n, k) for k in range(SIBLINGS))
        for n in range(TASKS)
    ]
    detokenizer = Detokenizer(tokenizer.backend_tokenizer)
    instruments = Instruments(
        scorer=lambda: ModelScorer(model), decode=lambda tokens: detokenizer.decode(tokens)[0]
    )
    ours = Monitor(DiagnosticsConfig(), run_id="ours", on_message=lambda text: None)
    expected = ours.measure(1, RolloutBatch(groups=tuple(rows)), DiagnosticsConfig(), instruments)
    record(tmp_path / "run", model, tokenizer)
    trajectories = stored(tmp_path / "run")
    keys = {k for k in expected.values if k.startswith("info/")}
    assert len(keys) > 30
    for key in sorted(keys):
        want = expected.values[key]
        have = np.nan if trajectories[key] is None else trajectories[key]
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6, err_msg=key)
    kinds = {record.kind for record in open_run(tmp_path / "run").diagnostics(1)}
    assert "information" in kinds


def test_the_training_finds_everything_as_it_was(
    tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    model.train()
    model.get_input_embeddings().eval()
    modes = [module.training for module in model.modules()]
    gradients = [p.requires_grad for p in model.parameters()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    with torch.autocast("cpu", dtype=torch.bfloat16):
        record(tmp_path / "run", model, tokenizer)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == gradients
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]
    information, _ = naive(model, tokenizer)  # in full precision: no autocast inside
    values = stored(tmp_path / "run")
    assert values["info/first_turn/mutual_information"] == pytest.approx(information, abs=1e-4)


def test_a_function_scores_as_well(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    def score(prompts: Any, continuations: Any) -> list[list[np.ndarray]]:
        return [
            [logprobs(model, prompt.tolist(), row.tolist()) for row in rows]
            for prompt, rows in zip(prompts, continuations, strict=True)
        ]

    record(tmp_path / "run", score, tokenizer)
    information, _ = naive(model, tokenizer)
    values = stored(tmp_path / "run")
    assert values["info/first_turn/mutual_information"] == pytest.approx(information, abs=1e-4)


def test_replies_without_tags_are_measured_whole(
    tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    told: list[str] = []
    recorder = Recorder(tmp_path / "run", policy=model, tokenizer=tokenizer, on_message=told.append)
    for number in range(TASKS):
        answer = {"role": "assistant", "content": f"goal {number}"}
        recorder.episode([*task(number), answer], reward=1.0, group=number)
    recorder.measure(1)
    recorder.step(1)
    recorder.close()
    assert "recorder: no reply has <think>: the whole reply is measured as Z" in told
    own = [
        logprobs(model, prompt_ids(tokenizer, n), ids(tokenizer, f"goal {n}")).sum()
        for n in range(TASKS)
    ]
    values = stored(tmp_path / "run")
    assert values["info/first_turn/conditional_entropy"] == pytest.approx(-np.mean(own), abs=1e-3)


def test_a_policy_that_nobody_has_measured_is_said_once(
    tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    told: list[str] = []
    with Recorder(
        tmp_path / "run", policy=model, tokenizer=tokenizer, on_message=told.append
    ) as recorder:
        for step in (1, 2):
            for number, _, messages in episodes():
                recorder.episode(messages, reward=1.0, group=number)
            recorder.step(step)
    (warning,) = [line for line in told if "the policy was not measured" in line]
    assert "call Recorder.measure(step) before the update" in warning


# -- the budget ----------------------------------------------------------------------------------


class Clock:
    """Seconds that pass where the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_share_of_the_time_holds(tokenizer: Any) -> None:
    """A measurement takes 4 s and a step 10 s: with a share of 0.1 every fourth step is measured,
    the first one aside; never one more often than `every`."""
    clock = Clock()

    def costly(prompts: Any, continuations: Any) -> list[list[np.ndarray]]:
        clock.now += 4.0 / calls_per_measurement
        return [[np.full(len(row), -1.0) for row in rows] for rows in continuations]

    calls_per_measurement = 2  # first turns, and answers; all_turns is not asked for
    config = ScoringConfig.model_validate({"budget_frac": 0.1, "information": {"every": 2}})
    scoring = Scoring(costly, tokenizer, config, run_id="r", say=lambda text: None, clock=clock)
    measured, spent = [], 0.0
    for step in range(1, 41):
        for number, _, messages in episodes():
            scoring.add(_episode(messages, number))
        before = clock.now
        scoring.measure(step)
        if scoring.take() is not None:
            measured.append(step)
        spent += clock.now - before
        assert spent <= 0.1 * clock.now + 4.0 or step == 1
        clock.now += 10.0
    assert measured[0] == 1
    assert 6 <= len(measured) <= 11
    assert spent <= 0.1 * clock.now
    assert min(np.diff(measured)) >= 2


def _episode(messages: list[dict[str, str]], number: int) -> GivenEpisode:
    return GivenEpisode(
        messages=messages,
        reward=1.0,
        turn_rewards=None,
        group=str(number),
        success=None,
        env="",
        is_eval=False,
        fields={},
    )


# -- what goes wrong -----------------------------------------------------------------------------


def test_a_model_that_fails_costs_the_numbers_and_nothing_else(
    tmp_path: Path, tokenizer: Any
) -> None:
    def fail(prompts: Any, continuations: Any) -> Any:
        raise MemoryError("no room on the device")

    told: list[str] = []
    record(tmp_path / "run", fail, tokenizer, on_message=told.append)
    assert stored(tmp_path / "run")["loss"] == 0.5
    assert "MemoryError: no room on the device" in " ".join(told)


class Sharded(torch.nn.Module):
    """Stands for a model whose weights lie in several processes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.weight.ds_id = 0  # as DeepSpeed marks them

    def forward(self) -> None: ...


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (lambda t: {"policy": Sharded(), "tokenizer": t}, "lie in several processes"),
        (lambda t: {"policy": torch.nn.Linear(1, 1), "tokenizer": t}, "policy is a Linear, but"),
        (lambda t: {"policy": 3, "tokenizer": t}, "policy is a int, but must be"),
        (lambda t: {"policy": print}, "policy needs tokenizer="),
        (lambda t: {"scoring": {"budget": 0.1}}, r"unknown key 'scoring\.budget'; did you mean"),
    ],
)
def test_what_cannot_score_is_refused_in_a_sentence(
    tmp_path: Path, tokenizer: Any, more: Callable[[Any], dict[str, Any]], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Recorder(tmp_path / "run", **more(tokenizer))
    assert not (tmp_path / "run").exists()


def test_wrappers_are_taken_off(model: Any) -> None:
    assert unwrapped(torch.nn.DataParallel(model)) is model
    assert unwrapped(model) is model


def test_pictures_need_tokens(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    told: list[str] = []
    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]
    recorder = Recorder(tmp_path / "run", policy=model, tokenizer=tokenizer, on_message=told.append)
    recorder.episode([{"role": "user", "content": content}, {"role": "assistant", "content": "x"}])
    recorder.measure(1)
    recorder.step(1)
    recorder.close()
    assert (
        "recorder: an episode was not measured: its messages have pictures; give tokens= to episode"
    ) in told
    assert len(open_run(tmp_path / "run").trajectories_of_step(1)) == 1
