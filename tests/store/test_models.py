"""Models as a run knows them: its tokenizer, ids to text with offsets, spans of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from echoscope.store.models import (
    Detokenizer,
    load_detokenizer,
    shipped_folder,
    token_span,
    tokenizer_folders,
)
from echoscope.store.records import CheckpointRecord


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """Ids 0..255 are single bytes, then `go`, ` up`, `></` and an added token that is not ASCII."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: index for index, char in enumerate(alphabet)}
    merges = [("g", "o"), ("\u0120", "u"), ("\u0120u", "p"), (">", "<"), ("><", "/")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<\uff5cend\u2581of\u2581turn\uff5c>"])
    return tokenizer


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text).ids)


def test_a_token_ends_after_its_characters(byte_level):
    tokens = ids(byte_level, "go up><")
    assert [byte_level.id_to_token(token) for token in tokens] == ["go", "\u0120up", "><"]
    assert Detokenizer(byte_level).decode(tokens) == ("go up><", [2, 5, 7])


def test_a_character_belongs_to_the_token_that_completes_it(byte_level):
    # U+2744 is three bytes, and no merge joins them.
    tokens = ids(byte_level, "a\u2744b")
    assert len(tokens) == 5
    assert Detokenizer(byte_level).decode(tokens) == ("a\u2744b", [1, 1, 1, 2, 3])


def test_an_incomplete_character_is_replaced_and_stays_with_its_last_token(byte_level):
    tokens = ids(byte_level, "a\u2744")[:3]
    assert Detokenizer(byte_level).decode(tokens) == ("a\ufffd", [1, 1, 2])


def test_ids_outside_the_vocabulary_decode_to_nothing(byte_level):
    go = ids(byte_level, "go")
    assert Detokenizer(byte_level).decode([*go, 100_000, *go]) == ("gogo", [2, 2, 4])


@settings(deadline=None)
@given(st.lists(st.integers(0, 261), max_size=40))
def test_any_ids_decode_as_the_library_decodes_them(byte_level, tokens):
    text, ends = Detokenizer(byte_level).decode(tokens)
    assert text == byte_level.decode(tokens, skip_special_tokens=False)
    assert len(ends) == len(tokens)
    assert ends == sorted(ends)
    assert not tokens or ends[-1] == len(text)


@pytest.fixture(scope="module")
def sentencepiece_like() -> Tokenizer:
    """Words with a leading blank, and bytes to fall back on, as in Llama 2."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for word in ("\u2581", "\u2581go", "\u2581up", "a"):
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def test_other_tokenizers_decode_in_windows(sentencepiece_like):
    vocab = sentencepiece_like.get_vocab()
    tokens = [vocab["\u2581go"], vocab["\u2581up"]]
    tokens += [vocab[f"<0x{byte:02X}>"] for byte in "\u2744".encode()] + [vocab["a"]]
    text, ends = Detokenizer(sentencepiece_like).decode(tokens)
    assert text == "go up\u2744a" == sentencepiece_like.decode(tokens)
    assert ends == [2, 5, 5, 5, 6, 7]


@settings(deadline=None)
@given(st.lists(st.integers(0, 260), max_size=40))
def test_windows_give_an_end_per_token_on_any_ids(sentencepiece_like, tokens):
    text, ends = Detokenizer(sentencepiece_like).decode(tokens)
    assert len(ends) == len(tokens)
    assert ends == sorted(ends)
    assert not tokens or ends[-1] == len(text)


@pytest.mark.parametrize(
    ("chars", "ends", "span"),
    [
        # tokens:  "I" " go" "</" "think" ">"      reasoning "I go"
        ((0, 4), [1, 4, 6, 11, 12], (0, 2)),
        # "go." and "</" were sampled as "go" ".</": the straddling token belongs to the tag.
        ((0, 3), [2, 5, 10, 11], (0, 1)),
        # "<think>" "go": the opening tag is not forced.
        ((7, 9), [7, 9, 16], (1, 2)),
        # ">g" straddles the opening tag, "o" lies inside.
        ((7, 9), [6, 8, 9, 16], (2, 3)),
        # A single token holds the end of one tag, the reasoning and the start of the next.
        ((7, 8), [6, 10, 16], (2, 2)),
        # Nothing between the tags, and nothing at all.
        ((0, 0), [8, 16], (0, 0)),
        ((0, 0), [], (0, 0)),
        # Parts of a character count with the character: the first two tokens are its first bytes.
        ((0, 1), [0, 0, 1, 9], (0, 3)),
        # Cut off inside the reasoning: every token counts.
        ((0, 5), [2, 5], (0, 2)),
        (None, [2, 5], None),
    ],
)
def test_tokens_inside_a_character_span(chars, ends, span):
    assert token_span(chars, ends) == span


def test_pieces_are_the_text_of_each_token(byte_level):
    tokens = ids(byte_level, "go\u2744")
    assert Detokenizer(byte_level).pieces(tokens) == ["go", "", "", "\u2744"]
    assert Detokenizer(byte_level).pieces([]) == []


def test_a_run_without_a_checkpoint_has_the_tokenizer_of_the_shipped_policy(tmp_path):
    assert tokenizer_folders(tmp_path, "tiny", []) == [shipped_folder("tiny")]
    assert tokenizer_folders(tmp_path, "../../secret", []) == []
    checkpoint = CheckpointRecord(
        step=3, path="checkpoints/step_000003", policy_version=3, num_bytes=1, wall_time=0.0
    )
    own = tmp_path / "checkpoints" / "step_000003" / "model"
    assert tokenizer_folders(tmp_path, "tiny", [checkpoint]) == [own, shipped_folder("tiny")]


def test_a_tokenizer_that_is_damaged_or_a_link_counts_as_absent(byte_level, tmp_path):
    folders = [tmp_path / name for name in ("damaged", "link", "good")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "tokenizer.json").write_text("{")
    byte_level.save(str(folders[2] / "tokenizer.json"))
    (folders[1] / "tokenizer.json").symlink_to(folders[2] / "tokenizer.json")
    assert load_detokenizer(folders[:2]) is None
    loaded = load_detokenizer(folders)
    assert loaded is not None
    assert loaded.pieces(ids(byte_level, "go")) == ["go"]
