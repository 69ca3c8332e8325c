"""The chat format: prompts as a template would write them, contents that stay contents."""

from __future__ import annotations

import json

import pytest
from own_sources import ROOT
from transformers import AutoTokenizer, ByT5Tokenizer

from echoscope.core.rollout.chat import ChatFormat, ChatFormatError, load_tokenizer


def templated(tokenizer, *contents: str, system: str = "") -> list[int]:
    """What `apply_chat_template` makes of a dialogue that ends with a user turn."""
    messages = [{"role": "system", "content": system}] if system else []
    for index, content in enumerate(contents):
        messages.append({"role": ("user", "assistant")[index % 2], "content": content})
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize("system", ["", "You play a game."])
def test_the_first_prompt_is_what_the_template_writes(any_tokenizer, system):
    chat = ChatFormat(any_tokenizer)
    prompt = [*chat.opening(system), *chat.encode("Go up."), *chat.to_assistant(False)]
    assert prompt == templated(any_tokenizer, "Go up.", system=system)


def test_feedback_appended_to_a_response_is_what_the_template_writes(any_tokenizer):
    chat = ChatFormat(any_tokenizer)
    response = chat.encode_response("I go up.").tolist()
    assert response[-1] == chat.turn_end_id
    dialogue = [
        *chat.opening("You play."),
        *chat.encode("Where?"),
        *chat.to_assistant(False),
        *response,
        *chat.to_user(response),
        *chat.encode("Next?"),
        *chat.to_assistant(False),
    ]
    assert dialogue == templated(any_tokenizer, "Where?", "I go up.", "Next?", system="You play.")


def test_a_reply_without_its_closing_token_gets_it_as_prompt(any_tokenizer):
    chat = ChatFormat(any_tokenizer)
    closed, cut = chat.encode_response("I go"), chat.encode_response("I go")[:-1]
    assert chat.to_user(cut) == [chat.turn_end_id, *chat.to_user(closed)]
    assert chat.to_user([]) == chat.to_user(cut)


def test_another_stop_token_does_not_close_the_turn(chatml_tokenizer):
    chat = ChatFormat(chatml_tokenizer)
    end_of_text = chatml_tokenizer.eos_token_id
    assert chat.stop_token_ids == (chat.turn_end_id, end_of_text)
    assert chat.to_user([end_of_text])[0] == chat.turn_end_id


def test_stop_tokens_name_each_id_once(shipped_tokenizer):
    chat = ChatFormat(shipped_tokenizer)
    assert chat.stop_token_ids == (shipped_tokenizer.eos_token_id,)
    assert chat.pad_token_id == shipped_tokenizer.pad_token_id


def test_without_a_pad_token_any_valid_id_pads(chatml_tokenizer):
    assert chatml_tokenizer.pad_token_id is None
    assert ChatFormat(chatml_tokenizer).pad_token_id == ChatFormat(chatml_tokenizer).turn_end_id


def test_contents_never_become_control_tokens(any_tokenizer):
    chat = ChatFormat(any_tokenizer)
    control = set(any_tokenizer.all_special_ids) | {
        index for index, token in any_tokenizer.added_tokens_decoder.items() if token.special
    }
    hostile = "".join(any_tokenizer.convert_ids_to_tokens(sorted(control)))
    ids = chat.encode(hostile)
    assert not control & set(ids)
    assert chat.decode(ids) == hostile
    assert not control & set(chat.encode_response(hostile)[:-1].tolist())


def test_the_tokenizer_itself_is_left_as_it_was(chatml_tokenizer):
    before = chatml_tokenizer.encode("<|im_end|>", add_special_tokens=False)
    chat = ChatFormat(chatml_tokenizer)
    assert len(chat.encode("<|im_end|>")) > 1
    assert chatml_tokenizer.encode("<|im_end|>", add_special_tokens=False) == before
    assert len(before) == 1


def test_forced_think_ends_the_prompt(any_tokenizer):
    chat = ChatFormat(any_tokenizer)
    assert chat.decode(chat.to_assistant(True)).endswith("<think>")
    assert not chat.decode(chat.to_assistant(False)).endswith("<think>")
    assert chat.forces_think(True)
    assert not chat.forces_think(False)


def test_a_template_that_opens_the_reasoning_itself_is_not_forced_twice(chatml_tokenizer):
    chatml_tokenizer.chat_template = chatml_tokenizer.chat_template.replace(
        "assistant\n' -", "assistant\n<think>\n' -"
    )
    chat = ChatFormat(chatml_tokenizer)
    assert chat.template_forces_think
    assert chat.forces_think(False)
    assert chat.to_assistant(True) == chat.to_assistant(False)
    assert chat.decode(chat.to_assistant(True)).count("<think>") == 1


REFUSES_SYSTEM = (
    "{%- if messages[0]['role'] == 'system' -%}{{ raise_exception('none') }}{%- endif -%}"
)
DROPS_SYSTEM = "{%- set messages = messages | rejectattr('role', 'eq', 'system') | list -%}"


@pytest.mark.parametrize("prefix", [REFUSES_SYSTEM, DROPS_SYSTEM])
def test_without_system_messages_the_first_user_turn_begins_with_it(chatml_tokenizer, prefix):
    chatml_tokenizer.chat_template = prefix + chatml_tokenizer.chat_template
    chat = ChatFormat(chatml_tokenizer)
    assert chat.decode(chat.opening("You play.")) == "<|im_start|>user\nYou play.\n\n"
    assert chat.decode(chat.opening("")) == "<|im_start|>user\n"


def test_a_template_that_prints_the_date_prints_a_fixed_one(chatml_tokenizer):
    chatml_tokenizer.chat_template = (
        "{{- strftime_now('%d %b %Y') + '\n' -}}" + chatml_tokenizer.chat_template
    )
    chat = ChatFormat(chatml_tokenizer)
    assert chat.decode(chat.opening("")).startswith("2024-07-26\n")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ messages[0]['content'] }}", "each must appear once"),
        (
            "{%- for m in messages -%}{{- m['role'] + m['content'] + '\n' -}}{%- endfor -%}"
            "{{- 'assistant' -}}",
            "does not begin with a control token",
        ),
        (
            "{%- for m in messages -%}{{- '<|im_start|>' + m['content'] + '<|im_end|>' -}}"
            "{%- if loop.index == 4 -%}{{- 'again' -}}{%- endif -%}{%- endfor -%}",
            "differently from an earlier one",
        ),
        (
            "{%- for m in messages -%}{{- m['content'] + '<|im_end|>' -}}{%- endfor -%}"
            "{%- if messages | length > 1 -%}{{- 'assistant' -}}{%- endif -%}",
            "opens the first reply differently",
        ),
    ],
)
def test_templates_that_cannot_work_are_refused(chatml_tokenizer, template, message):
    chatml_tokenizer.chat_template = template
    with pytest.raises(ChatFormatError, match=message):
        ChatFormat(chatml_tokenizer)


def test_decode_response_leaves_out_the_stop_token_only(any_tokenizer):
    chat = ChatFormat(any_tokenizer)
    whole = chat.encode_response("I go up.")
    text, ends = chat.decode_response(whole)
    assert text == "I go up."
    assert len(ends) == len(whole) - 1
    assert ends[-1] == len(text)
    assert chat.decode_response(whole[:-1]) == (text, ends)
    assert chat.decode_response(whole[:0]) == ("", [])


def test_a_folder_gives_the_ids_of_its_own_file(chatml_tokenizer, tmp_path):
    # AutoTokenizer replaces the pre-tokenizer of a qwen2 folder: digits are then split one by one.
    chatml_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"tokenizer_class": "Qwen2Tokenizer"}))
    text = "room 123 4"
    tokens = chatml_tokenizer.encode(text, add_special_tokens=False)
    loaded = load_tokenizer(tmp_path)
    assert ChatFormat(loaded).encode(text) == tokens
    assert loaded.chat_template == chatml_tokenizer.chat_template
    assert loaded.eos_token_id == chatml_tokenizer.eos_token_id
    assert AutoTokenizer.from_pretrained(tmp_path).encode(text, add_special_tokens=False) != tokens


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ChatFormatError, match="cannot load a tokenizer"):
        load_tokenizer(tmp_path)


def test_a_folder_without_tokenizer_json_is_converted(tmp_path):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "go", "up"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert load_tokenizer(tmp_path).encode("go up", add_special_tokens=False) == [5, 6]


def test_only_fast_tokenizers_are_taken(tmp_path):
    slow = ByT5Tokenizer()
    with pytest.raises(ChatFormatError, match="ByT5Tokenizer is not a fast tokenizer"):
        ChatFormat(slow)
    slow.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "byt5"}')
    with pytest.raises(ChatFormatError, match="cannot load a tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError: access to attribute '__class__'"),
        ("{% for %}", "TemplateSyntaxError: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: "),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% include '/etc/passwd' %}", "TypeError: no loader for this environment"),
        ("{{ raise_exception('no\nlines') }}", "TemplateError: no lines"),
    ],
)
def test_a_hostile_template_is_refused_in_one_line(chatml_tokenizer, template, why):
    chatml_tokenizer.chat_template = template
    with pytest.raises(ChatFormatError) as refused:
        ChatFormat(chatml_tokenizer)
    assert str(refused.value).startswith(f"the model's chat template fails ({why}")
    assert "\n" not in str(refused.value)


def test_what_shows_foreign_runs_renders_no_template_of_theirs():
    """A template can loop for ever in the sandbox, too."""
    showing = ("store", "diagnostics", "dashboard", "notebook", "watch", "cli")
    sources = [path for name in showing for path in (ROOT / name).rglob("*.py")]
    assert len(sources) > 100
    assert [path for path in sources if "apply_chat_template" in path.read_text()] == []
