"""Pictures as ids beyond the vocabulary: the same numbers as the library's own forward pass."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_vision import PLACES, make_vision_model
from transformers import AutoModelForImageTextToText, AutoProcessor

from echoscope.core.config.context import ContextConfig
from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import ModelConfig
from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.policy import load_model
from echoscope.core.pretrained import vision
from echoscope.core.pretrained.vision import (
    FIRST_IMAGE_ID,
    ImageEmbedding,
    ImageTokens,
    load_images,
    show_images,
)
from echoscope.core.rollout.chat import ChatFormat, ChatFormatError, load_chat, load_tokenizer
from echoscope.core.rollout.context import Conversation
from echoscope.diagnostics.measure.information.scoring import ModelScorer
from echoscope.envs.base import Observation, Tool
from echoscope.store.records import IntArray, vocabulary_ids
from echoscope.text.png import encode_picture, picture_key


def picture(seed: int) -> bytes:
    colours = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return encode_picture(Image.fromarray(colours).resize((32, 32), Image.Resampling.NEAREST))


A, B = picture(1), picture(2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture
def chat(folder: str) -> ChatFormat:
    return load_chat(folder, shows_images=True)


@pytest.fixture
def model(folder: str, chat: ChatFormat) -> Any:
    loaded = load_model(folder, ModelConfig(path=folder, device="cpu"))
    assert chat.images is not None
    show_images(loaded, chat.images)
    return loaded


def images_of(chat: ChatFormat) -> ImageTokens:
    assert chat.images is not None
    return chat.images


def prompt(chat: ChatFormat, *pictures: bytes, text: str = "go up") -> IntArray:
    shown = [token for png in pictures for token in images_of(chat).content(png)]
    ids = [*chat.opening(""), *shown, *chat.encode(text), *chat.to_assistant(False)]
    return np.array(ids, np.int32)


def oracle(folder: str, chat: ChatFormat, ids: IntArray, pictures: list[bytes]) -> torch.Tensor:
    """Logits of the library's own pass over the vocabulary's ids and the pixels."""
    own = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    pixels = {}
    if pictures:
        from echoscope.text.png import open_picture

        made = AutoProcessor.from_pretrained(folder)(
            text=["<image>" * len(pictures)],
            images=[[open_picture(png) for png in pictures]],
            return_tensors="pt",
        )
        pixels = {name: made[name] for name in ("pixel_values", "pixel_attention_mask")}
    known = vocabulary_ids(ids, images_of(chat).shown_in(ids))
    with torch.no_grad():
        return own(input_ids=torch.from_numpy(known.astype(np.int64))[None], **pixels).logits[0]


@pytest.mark.parametrize("pictures", [[], [A], [A, B], [B, A], [A, A]])
def test_the_logits_are_those_of_the_librarys_own_pass(
    folder: str, chat: ChatFormat, model: Any, pictures: list[bytes]
) -> None:
    ids = prompt(chat, *pictures)
    with torch.no_grad():
        found = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    wanted = oracle(folder, chat, ids, pictures)
    assert float((found - wanted).abs().max()) < 1e-4
    assert not pictures or float((found - oracle(folder, chat, ids, [])).abs().max()) > 0.1


def test_sampled_logprobs_are_those_of_the_librarys_own_pass(
    folder: str, chat: ChatFormat, model: Any
) -> None:
    """Prompts that differ in nothing but the picture share no picture's keys and values."""
    engine = HfEngine(model, config=HfEngineConfig())
    shown = [[A], [B], [A, B], [A], []]
    prompts = [prompt(chat, *pictures, text="Goal 2 up 1 right. " * 4) for pictures in shown]
    for _ in range(2):
        samples = engine.generate(prompts, SamplingParams(max_new_tokens=6), seeds=range(5))
        for ids, sample, pictures in zip(prompts, samples, shown, strict=True):
            whole = np.concatenate([ids, sample.tokens])
            logits = oracle(folder, chat, whole, pictures)[len(ids) - 1 : -1]
            wanted = logits.log_softmax(-1)[range(len(sample.tokens)), sample.tokens.tolist()]
            assert np.abs(wanted.numpy() - sample.logprobs).max() < 1e-4
        # The next turn shows one more picture, after what the engine holds already.
        more = np.array([*chat.to_user([]), *images_of(chat).content(B), *chat.encode("go")])
        prompts = [
            np.concatenate([ids, sample.tokens, more]).astype(np.int32)
            for ids, sample in zip(prompts, samples, strict=True)
        ]
        shown = [[*pictures, B] for pictures in shown]
    assert engine.counts.num_reused_tokens > 100


def test_a_reasoning_is_scored_under_the_picture_of_another_task(
    folder: str, chat: ChatFormat, model: Any
) -> None:
    prompts = [prompt(chat, A), prompt(chat, B)]
    reasoning = np.array(chat.encode("Goal 2 up"), np.int32)
    scores = ModelScorer(model).score(prompts, [[reasoning], [reasoning]])
    for ids, [found], png in zip(prompts, scores, [A, B], strict=True):
        logits = oracle(folder, chat, np.concatenate([ids, reasoning]), [png])[len(ids) - 1 : -1]
        wanted = logits.log_softmax(-1)[range(len(reasoning)), reasoning]
        assert np.abs(wanted.numpy() - found).max() < 1e-4
    assert np.abs(scores[0][0] - scores[1][0]).max() > 1e-2


def test_equal_pictures_have_equal_ids_and_others_have_others(chat: ChatFormat) -> None:
    images = images_of(chat)
    places = [token for token in images.content(A) if token >= FIRST_IMAGE_ID]
    assert places == list(range(FIRST_IMAGE_ID, FIRST_IMAGE_ID + PLACES))
    assert images.content(A) == images.content(bytes(A))
    assert not {*places} & {*images.content(B)}


def test_a_prompt_says_which_pictures_stand_where(chat: ChatFormat) -> None:
    ids = prompt(chat, A, B)
    first, second = images_of(chat).shown_in(ids)
    assert (first.key, second.key) == (picture_key(A), picture_key(B))
    for shown in (first, second):
        assert (ids[slice(*shown.span)] >= FIRST_IMAGE_ID).sum() == PLACES
    tokens = load_tokenizer_words(chat, vocabulary_ids(ids, (first, second)))
    assert tokens.count("<image>") == 2 * PLACES
    assert chat.decode(ids).count("go up") == 1


def load_tokenizer_words(chat: ChatFormat, ids: IntArray) -> list[str]:
    words: list[str] = chat.tokenizer.convert_ids_to_tokens(ids.tolist())
    return words


def test_gradients_reach_the_vision_tower(chat: ChatFormat, model: Any) -> None:
    ids = torch.from_numpy(prompt(chat, A).astype(np.int64))[None]
    model(input_ids=ids).logits.log_softmax(-1)[0, -1, 3].backward()
    tower = [p for name, p in model.named_parameters() if "vision_model" in name]
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in tower)


def test_the_weights_keep_their_names_and_ties(folder: str, chat: ChatFormat, model: Any) -> None:
    plain = load_model(folder, ModelConfig(path=folder, device="cpu"))
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert model.get_input_embeddings().weight.data_ptr() != plain.lm_head.weight.data_ptr()
    show_images(model, images_of(chat))  # a second time changes nothing
    assert isinstance(model.get_input_embeddings(), ImageEmbedding)


def test_a_copied_model_sees_by_its_own_tower_what_is_shown_later(
    chat: ChatFormat, model: Any
) -> None:
    copied = copy.deepcopy(model)
    ids = torch.from_numpy(prompt(chat, picture(9)).astype(np.int64))[None]
    with torch.no_grad():
        before = copied(input_ids=ids).logits
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(copied(input_ids=ids).logits, before)


def test_ids_that_no_picture_has_are_refused(chat: ChatFormat, model: Any) -> None:
    engine = HfEngine(model, config=HfEngineConfig())
    bad = np.append(prompt(chat, A), np.int32(FIRST_IMAGE_ID + 10_000))
    with pytest.raises(ValueError, match="the vocabulary has"):
        engine.generate([bad], SamplingParams(max_new_tokens=1), seeds=[0])


def test_a_picture_that_was_forgotten_is_missed_in_one_sentence(
    chat: ChatFormat, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision, "MAX_PICTURES", 1)
    ids = torch.from_numpy(prompt(chat, A).astype(np.int64))[None]
    images_of(chat).content(B)
    with pytest.raises(RuntimeError, match="was forgotten: a step may show at most 1"):
        model(input_ids=ids)
    again = torch.from_numpy(prompt(chat, A).astype(np.int64))[None]  # shown anew, it has new ids
    assert torch.isfinite(model(input_ids=again).logits).all()
    assert (again != ids).any()


def test_pixels_are_made_again_where_they_were_dropped(
    chat: ChatFormat, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.from_numpy(prompt(chat, A).astype(np.int64))[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        monkeypatch.setattr(vision, "_MAX_PIXEL_SETS", 1)
        images_of(chat).content(B)
        assert torch.equal(model(input_ids=ids).logits, before)


# -- conversations --------------------------------------------------------------------------------


def talk(chat: ChatFormat, images: Any, **settings: Any) -> list[list[str]]:
    """The keys of the pictures in the prompts of three turns."""
    config = ContextConfig(images=images, max_prompt_tokens=1500, **settings)
    conversation = Conversation(chat, config, "rules")
    shown = []
    for png in (A, B, A):
        made = conversation.prompt(Observation(text="look", image=png), last_reward=0.0)
        shown.append([{picture_key(A): "A", picture_key(B): "B"}[i.key] for i in made.images])
        conversation.respond(np.array(chat.encode("up"), np.int32))
    return shown


def test_which_turns_pictures_a_prompt_shows(chat: ChatFormat) -> None:
    assert talk(chat, "none") == [[], [], []]
    assert talk(chat, "last") == [["A"], ["B"], ["A"]]
    assert talk(chat, "all") == [["A"], ["A", "B"], ["A", "B", "A"]]
    assert talk(chat, "all", history_turns=2) == [["A"], ["A", "B"], ["B", "A"]]


def test_with_all_pictures_a_prompt_extends_the_one_before_it(chat: ChatFormat) -> None:
    conversation = Conversation(chat, ContextConfig(images="all"))
    first = conversation.prompt(Observation(text="one", image=A)).tokens
    reply = np.array(chat.encode("up"), np.int32)
    conversation.respond(reply)
    second = conversation.prompt(Observation(text="two", image=B)).tokens
    assert second[: len(first) + len(reply)].tolist() == [*first.tolist(), *reply.tolist()]


def test_a_picture_stands_before_the_text_of_its_turn(chat: ChatFormat) -> None:
    config = ContextConfig(images="all", system="", format_hint=False, force_think=False)
    made = Conversation(chat, config, "rules").prompt(Observation(text="look", image=A))
    known = vocabulary_ids(made.tokens, made.images)
    frame = "<fake_token_around_image>"
    pictured = f"{frame}<global-img>{'<image>' * PLACES}{frame}"
    assert chat.decode(known) == f"<|user|>rules\n\n{pictured}look<|end|><|assistant|>"


def test_a_text_that_spells_an_image_token_is_text(chat: ChatFormat) -> None:
    made = Conversation(chat, ContextConfig(images="all")).prompt("an <image> of a lake")
    assert made.images == ()
    assert images_of(chat).token_id not in made.tokens


def test_contents_in_parts_as_smolvlms_template_wants_them(folder: str) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = (
        "<|system|>{% for message in messages %}{{message['role'] | capitalize}}"
        "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
        "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
        "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
        "<end_of_utterance>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    )
    chat = ChatFormat(tokenizer)
    ids = [*chat.opening("be brief"), *chat.encode("hi"), *chat.to_assistant(False)]
    assert chat.decode(ids) == (
        "<|system|>System: be brief<end_of_utterance>\nUser: hi<end_of_utterance>\nAssistant:"
    )


# -- refusals -------------------------------------------------------------------------------------


def test_a_chat_without_image_tokens_shows_no_pictures(folder: str) -> None:
    with pytest.raises(ChatFormatError, match=r"context.images is all, but this chat has no"):
        Conversation(load_chat(folder), ContextConfig(images="all"))


def test_a_world_with_tools_shows_no_pictures(chat: ChatFormat) -> None:
    tool = Tool(name="look", description="", parameters={"type": "object", "properties": {}})
    with pytest.raises(ChatFormatError, match="an environment has tools"):
        Conversation(chat, ContextConfig(images="last"), tools=[tool])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.pop("vision_config"), "has no vision tower"),
        (lambda config: config.update(model_type="qwen2_vl"), "is of the type qwen2_vl"),
        (lambda config: config.pop("image_token_id"), "which cannot be loaded"),
        (lambda config: config.update(image_token_id=3), "belongs to another model"),
    ],
)
def test_a_model_that_cannot_see_is_refused_in_one_sentence(
    folder: str, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    copied = shutil.copytree(folder, tmp_path / "model")
    config = json.loads((copied / "config.json").read_text())
    change(config)
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message) as refusal:
        load_images(str(copied)).content(A)
    assert "\n" not in str(refusal.value)


def test_a_folder_without_a_processor_is_refused(folder: str, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "model")
    (copied / "processor_config.json").unlink()
    with pytest.raises(ConfigError, match="needs the processor of"):
        load_images(str(copied))


def test_a_text_model_reads_no_pictures(tiny_model: Path, chat: ChatFormat) -> None:
    text_only = load_model(str(tiny_model), ModelConfig(path=str(tiny_model), device="cpu"))
    with pytest.raises(ConfigError, match="Qwen2ForCausalLM cannot read them"):
        show_images(text_only, images_of(chat))
