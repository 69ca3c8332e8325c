"""Demonstrations: an expert plays, a narrator tells, and they become the rollout's rows."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from echoscope.core.config.context import ContextConfig
from echoscope.core.pretrained.policy_assets import train_tokenizer
from echoscope.core.rollout.chat import ChatFormat
from echoscope.core.rollout.context import Conversation, turn_messages
from echoscope.core.warm_start.demonstrations import (
    DemoMessage,
    Demonstration,
    Lesson,
    SftError,
    demonstrate,
    encode,
    read_jsonl,
    training_text,
    write_jsonl,
)
from echoscope.core.warm_start.narrators import load_narrators
from echoscope.core.warm_start.run import BARE_CONTEXT
from echoscope.envs import registry
from echoscope.envs.base import Message, Observation
from echoscope.envs.reserving import is_reserved
from echoscope.envs.settings import EnvGroup
from echoscope.envs.streams import DEMONSTRATION_CODE
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake
from echoscope.text.replies import parse_response
from echoscope.text.user_code import UserCodeError

LAKE = EnvGroup(
    env="frozen_lake",
    max_turns=6,
    max_actions_per_turn=1,
    params={"size": 4, "holes": 2, "slip": 0.0, "observation": "relative"},
)
SOKOBAN = EnvGroup(
    env="sokoban", max_turns=8, max_actions_per_turn=1, params={"observation": "relative"}
)
BANDIT = EnvGroup(env="bandit")


def lesson(
    group: EnvGroup,
    careful: float,
    episodes: int,
    *,
    context: ContextConfig = BARE_CONTEXT,
    nonsense: float = 0.0,
) -> Lesson:
    return Lesson(
        group=group, context=context, episodes=episodes, careful=careful, nonsense=nonsense
    )


def lessons(group: EnvGroup, careful: float, episodes: int = 40) -> list[Demonstration]:
    return list(demonstrate(lesson(group, careful, episodes), seed=3))


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    demos = [demo for group in (LAKE, SOKOBAN, BANDIT) for demo in lessons(group, 0.5)]
    return ChatFormat(train_tokenizer(training_text(demos), 400))


@pytest.mark.parametrize("group", [LAKE, SOKOBAN], ids=lambda group: group.env)
def test_a_careful_expert_always_succeeds_and_a_careless_one_seldom(group: EnvGroup) -> None:
    careful = np.mean([bool(demo.success) for demo in lessons(group, 1.0)])
    careless = np.mean([bool(demo.success) for demo in lessons(group, 0.0)])
    assert careful == 1.0
    assert careless < 0.5


def test_the_same_seed_gives_the_same_episodes_and_another_gives_others() -> None:
    first, again = lessons(LAKE, 0.5), lessons(LAKE, 0.5)
    other = demonstrate(lesson(LAKE, 0.5, 40), seed=4)
    assert first == again
    assert first != list(other)


def test_seeds_never_meet_those_of_training_and_evaluation() -> None:
    assert {demo.env_seed % 4 for demo in lessons(LAKE, 0.5)} == {DEMONSTRATION_CODE}


def test_replies_the_world_does_not_understand_are_shown_but_not_learned(chat: ChatFormat) -> None:
    demos = list(demonstrate(lesson(LAKE, 1.0, 20, nonsense=0.5), seed=0))
    feedback = [
        demo.messages[i + 1].content
        for demo in demos
        for i, message in enumerate(demo.messages[:-1])
        if not message.train
    ]
    assert feedback
    assert all(text.startswith("Invalid. Goal") for text in feedback)
    demo = next(demo for demo in demos if not demo.messages[1].train)
    row = encode(demo, chat, force_think=True, prompt_weight=0.1)
    response = chat.encode_response(demo.messages[1].content.removeprefix("<think>"))
    start = len(chat.opening("") + chat.encode(demo.messages[0].content) + chat.to_assistant(True))
    assert row.tokens[start : start + len(response)].tolist() == response.tolist()
    assert set(row.weights[start : start + len(response)].tolist()) == {0.0}


def test_a_row_is_token_for_token_what_a_rollout_records(chat: ChatFormat) -> None:
    context = ContextConfig(show_reward=True, max_prompt_tokens=10_000)
    episodes = demonstrate(lesson(LAKE, 0.5, 20, context=context), seed=0)
    demo = next(demo for demo in episodes if len(demo.messages) > 4)
    world = registry.make(LAKE.env, **LAKE.params)
    assert demo.messages[1].content.startswith(f"{demo.instructions}\n\n")
    is_one_action = LAKE.is_one_action
    conversation = Conversation(chat, context, demo.instructions, is_one_action=is_one_action)
    observation, reward, expected = world.reset(demo.env_seed, demo.noise_seed).text, None, []
    for reply in demo.messages[2::2]:
        prompt = conversation.prompt(observation, last_reward=reward).tokens.tolist()
        response = chat.encode_response(reply.content.removeprefix("<think>"))
        conversation.respond(response)
        expected = prompt + response.tolist()
        action = parse_response(reply.content, reasoning=True, forced_think=False).actions[0]
        result = world.step(action)
        observation, reward = result.observation.text, result.reward
    row = encode(demo, chat, force_think=True, prompt_weight=0.25)
    assert row.tokens.tolist() == expected
    assert sorted(set(row.weights.tolist())) == [0.25, 1.0]
    assert row.weights[-1] == 1.0


def gpt2_like() -> ChatFormat:
    """Splits as GPT-2 and SmolLM2: two line ends are one token only where a text ends in them."""
    tokenizer = train_tokenizer(["rules\n\n"] * 9, 320)
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = split
    return ChatFormat(tokenizer)


def test_instructions_are_encoded_apart_as_a_rollout_does_it() -> None:
    chat = gpt2_like()
    context = ContextConfig(max_prompt_tokens=10_000)
    demo = next(demonstrate(lesson(BANDIT, 1.0, 1, context=context), seed=0))
    world = registry.make("bandit")
    assert demo.instructions.startswith(world.instructions())
    observation = world.reset(demo.env_seed, demo.noise_seed)
    conversation = Conversation(chat, context, demo.instructions, is_one_action=True)
    prompt = conversation.prompt(observation).tokens.tolist()
    row = encode(demo, chat, force_think=True, prompt_weight=0.0)
    assert row.tokens.tolist()[: len(prompt)] == prompt
    whole = encode(replace(demo, instructions=""), chat, force_think=True, prompt_weight=0.0)
    assert whole.tokens.tolist()[: len(prompt)] != prompt


def test_instructions_must_open_the_first_user_message() -> None:
    messages = (
        DemoMessage(role="user", content="rules\n\nleft"),
        DemoMessage(role="assistant", content="up"),
    )
    facts: dict[str, Any] = {"env": "x", "params": {}, "env_seed": 0, "noise_seed": 0}
    Demonstration(messages=messages, success=None, instructions="rules", **facts)
    with pytest.raises(SftError, match="must begin with the instructions"):
        Demonstration(messages=messages, success=None, instructions="other", **facts)


def test_weights_are_one_exactly_on_responses(chat: ChatFormat) -> None:
    demo = Demonstration(
        env="x",
        params={},
        env_seed=0,
        noise_seed=0,
        messages=(
            DemoMessage(role="user", content="left"),
            DemoMessage(role="assistant", content="<think>up</think><answer>up</answer>"),
        ),
        success=None,
    )
    row = encode(demo, chat, force_think=True, prompt_weight=0.0)
    learned = [int(token) for token, w in zip(row.tokens, row.weights, strict=True) if w == 1]
    assert chat.decode(learned) == "up</think><answer>up</answer><|end|>"
    unforced = encode(demo, chat, force_think=False, prompt_weight=0.0)
    assert int((unforced.weights == 1).sum()) == len(learned) + 1


def test_the_user_text_shows_what_is_configured() -> None:
    context = ContextConfig(show_reward=True, format_hint=False)
    seen = Observation(text="Here.")
    for reward, text in ((0.5, "Reward: 0.5\nHere."), (None, "Here.")):
        messages = turn_messages(context, seen, reward, has_tools=False, is_one_action=False)
        assert messages == [Message(role="user", content=text)]


def test_without_reasoning_a_reply_is_the_answer_alone() -> None:
    context = ContextConfig(reasoning=False, system="Be brief.")
    taught = lesson(LAKE, 1.0, 1, context=context, nonsense=0.02)
    demo = next(demonstrate(taught, seed=0))
    assert demo.messages[0] == DemoMessage(role="system", content="Be brief.")
    assert demo.messages[2].content.startswith("<answer>")


def test_files_read_back(tmp_path: Path) -> None:
    path = tmp_path / "demos.jsonl"
    demos = [*lessons(LAKE, 0.3, 5), *lessons(BANDIT, 0.3, 5)]
    assert write_jsonl(demos, path) == 10
    assert list(read_jsonl(path)) == demos
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not a demonstration"),
        ("[]", "line 2 is not a demonstration"),
        ('{"env": "x"}', "line 2: the key 'messages' is missing"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "user and assistant in turns"),
        ('{"messages": [{"role": "user", "content": 3}]}', "the texts role and content"),
        ('{"messages": 5}', "line 2 is not a demonstration"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "demos.jsonl"
    write_jsonl(lessons(BANDIT, 0.3, 1), path)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(SftError, match=message):
        list(read_jsonl(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SftError, match="cannot read"):
        list(read_jsonl(tmp_path / "nowhere.jsonl"))


@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["messages", "role", "content", "env"]), inner, max_size=3
            )
        ),
    ).map(json.dumps)
)
def test_any_line_is_read_or_refused_in_one_line(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demos.jsonl"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        refusal = ""
        try:
            assert all(demo.messages for demo in read_jsonl(path))
        except SftError as error:
            refusal = str(error)
    assert "\n" not in refusal


def test_a_world_without_an_expert_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenLake, "solve", lambda self: None)
    with pytest.raises(SftError, match="frozen_lake has no scripted expert"):
        lessons(LAKE, 1.0)


def test_shares_are_probabilities() -> None:
    with pytest.raises(SftError, match=r"careful is 1\.5, but must be at least 0 and at most 1"):
        lesson(LAKE, 1.5, 1)


def test_demonstrations_leave_evaluations_tasks_out() -> None:
    """200 episodes on small lakes; with all tasks, about an eighth of them is evaluation's."""
    params = {"size": 4, "holes": 2, "slip": 0.0, "observation": "relative"}
    group = EnvGroup(env="frozen_lake", params=params)
    lake = registry.make("frozen_lake", **params)

    def num_reserved(*, all_tasks: bool) -> int:
        taught = lesson(group, 1.0, 200, context=ContextConfig(), nonsense=0.02)
        played = demonstrate(taught, seed=0, all_tasks=all_tasks)
        count = 0
        for demo in played:
            lake.reset(demo.env_seed, demo.noise_seed)
            count += is_reserved(lake.task_key() or "")
        return count

    assert num_reserved(all_tasks=False) == 0
    assert 10 < num_reserved(all_tasks=True) < 45


def own_narrators(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> list[Demonstration]:
    """Demonstrations told by a module of the user's own."""
    module = f"told_by_{folder.name}"
    (folder / f"{module}.py").write_text(body, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    narrator_of = load_narrators(f"{module}:narrator_of")
    return list(demonstrate(lesson(BANDIT, 1.0, 2), seed=0, narrator_of=narrator_of))


NARRATOR = """
class Mine:
    def careful(self, observation, plan, rng):
        return {}

    def careless(self, action, rng):
        return "I guess."


def narrator_of(env_id):
    return Mine()
"""


def test_a_narrator_of_the_users_own_writes_the_reasoning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = NARRATOR.format('f"{observation} I take {plan[-1]}.", plan[-1]')
    for demo in own_narrators(tmp_path, monkeypatch, body):
        observation, reply = demo.messages[0].content, demo.messages[1].content
        assert reply.startswith(f"<think>{observation} I take ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def narrator_of(env_id):\n    return 7\n", "returned int for 'bandit', but must return"),
        (NARRATOR.format("'one text'"), "Mine.careful returned 'one text', but must return two"),
        (NARRATOR.format("1 / 0"), "'Mine' failed in line 4 of told_by_"),
        ("", "has no function 'narrator_of'"),
    ],
)
def test_a_narrator_that_is_none_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    with pytest.raises(UserCodeError, match=re.escape(message)):
        own_narrators(tmp_path, monkeypatch, body)
