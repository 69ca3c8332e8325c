"""An episode by hand, files of the public shapes, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from echoscope.envs import registry
from echoscope.envs.base import EnvError, Message, StepResult, TextEnv
from echoscope.envs.worlds.search.passages import (
    Passage,
    PassageIndex,
    passage_of,
    read_passages,
)
from echoscope.envs.worlds.search.search_qa import SearchQa
from echoscope.text.pictures import read_frame

pytest.importorskip("bm25s")
PASSAGES = [
    {"id": "a", "contents": '"Ada"\nAda Lovelace wrote about the Analytical Engine.'},
    {"id": "b", "contents": '"Engine"\nThe Analytical Engine was designed by Charles Babbage.'},
    {"id": "c", "contents": '"Rome"\nRome is the capital of Italy.'},
]


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)  # two workers of pytest give a case the same name


QUESTION = {
    "question": "Who designed the machine that Ada wrote about?",
    "golden_answers": ["Charles Babbage", "Babbage"],
}


def written(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return str(file)


def made(folder: Path, *questions: dict[str, Any], env_id: str = "search_qa", **params) -> TextEnv:
    corpus = written(folder / "corpus.jsonl", PASSAGES)
    data = written(folder / "questions.jsonl", list(questions or (QUESTION,)))
    world = registry.make(env_id, data=data, corpus=corpus, **params)
    world.reset(0, 0)
    return world


def _lines(result: StepResult) -> list[str]:
    """What a search showed, without the question below it."""
    *lines, question = result.observation.text.split("\n")
    assert question.startswith("Question: ")
    return lines


def test_an_episode_by_hand(tmp_path: Path) -> None:
    world = made(tmp_path, results=1)
    assert world.reset(0, 0).text == "Question: Who designed the machine that Ada wrote about?"
    search_result = world.step("search[Ada Lovelace]")
    assert search_result.observation.text == (
        "[1] Ada: Ada Lovelace wrote about the Analytical Engine.\n"
        "Question: Who designed the machine that Ada wrote about?"
    )
    assert (search_result.reward, search_result.is_valid, search_result.is_effective) == (
        0.0,
        True,
        True,
    )
    again = world.step(" Search[ ADA ] ")
    assert (again.is_valid, again.is_effective) == (True, False)
    nothing = world.step("search[zebra]")
    assert nothing.observation.text.startswith("The search gave no passage.\nQuestion: ")
    assert (nothing.is_valid, nothing.is_effective) == (True, False)
    card = read_frame(nothing.observation.frame or "")
    assert card["lines"] == ["Question: Who designed the machine that Ada wrote about?",
                             "Search 3: zebra"]  # fmt: skip
    result = world.step("finish[babbage.]")
    assert (result.reward, result.terminated, result.success) == (1.0, True, True)
    assert result.info == {"searches": 3.0, "exact_match": 1.0, "f1": 1.0, "search_failed": 0.0}
    assert not world.step("finish[babbage]").is_valid


@pytest.mark.parametrize(
    ("answer", "reward"),
    # One word of three and one of two in common: 2 * 2 / (3 + 2); then 2 * 1 / (9 + 1) < 0.3.
    [("Mr Charles Babbage", 0.8), ("b c d e f g h i babbage", 0.0), ("Ada", 0.0)],
)
def test_a_partial_answer_earns_its_f1_but_is_no_success(tmp_path: Path, answer, reward) -> None:
    world = made(tmp_path)
    result = world.step(f"finish[{answer}]")
    assert (result.reward, result.success) == (pytest.approx(reward), False)
    assert result.observation.text == "Wrong. The answer is Charles Babbage."
    assert world.solve() is None


@pytest.mark.parametrize(
    "action",
    ["", "Babbage", "search[]", "finish[ ]", "search Ada", "finish[x", "look[x]", "x search[Ada]",
     f"search[{'a' * 401}]", f"finish[{'a' * 1_000_000}]", "search[" * 100_000],
)  # fmt: skip
def test_anything_else_is_invalid_and_changes_nothing(tmp_path: Path, action: str) -> None:
    world = made(tmp_path)
    result = world.step(action)
    assert (result.is_valid, result.is_effective, result.terminated) == (False, False, False)
    assert result.observation.text.startswith(world.invalid_notice(action))
    assert "Write search[words], at most 400 characters, or finish" in result.observation.text
    assert len(result.observation.text) < 250
    assert result.info["searches"] == 0.0


@pytest.mark.parametrize("env_id", ["search_qa", "search_tools"])
def test_brackets_and_odd_characters_are_part_of_a_query(tmp_path: Path, env_id: str) -> None:
    world = made(tmp_path, env_id=env_id)
    for query in ("a[1] Ada]", "\x00Ada\ud800", "\u202eAda", "Ada " * 100):
        action = f"search[{query}]"
        if env_id == "search_tools":
            action = f"search {json.dumps({'query': query})}"
        result = world.step(action)
        result.observation.text.encode("utf-8")
        assert result.observation.frame is not None
        read_frame(result.observation.frame)


def test_the_tool_sibling_asks_the_same_and_answers_by_messages(tmp_path: Path) -> None:
    world, plain = made(tmp_path, env_id="search_tools", results=1), made(tmp_path)
    assert world.task_key() == plain.task_key()
    result = world.step('search {"query": "Ada"}')
    text = "[1] Ada: Ada Lovelace wrote about the Analytical Engine."
    assert result.observation.messages == (Message(role="tool", name="search", content=text),)
    for wrong in ('search {"query": ""}', "search {}", f'search {{"query": "{"a" * 401}"}}'):
        refused = world.step(wrong)
        assert (refused.is_valid, refused.info) == (False, {})
        assert refused.observation.text.startswith("Error: the arguments of search do not fit")
        assert len(refused.observation.text) < 300
    result = world.step("answer Babbage")
    assert (result.reward, result.success, result.observation.text) == (1.0, True, "Right.")


def test_equal_scores_keep_the_order_of_the_corpus() -> None:
    passages = [Passage(str(n), "", "red fox" if n % 2 else "red hen") for n in range(20)]
    index = PassageIndex(passages)
    assert [p.id for p in index.search("hen", 4)] == ["0", "2", "4", "6"]
    assert [p.id for p in index.search("red hen", 12)] == [str(n) for n in range(0, 20, 2)] + [
        "1", "3"
    ]  # fmt: skip
    assert index.search("dog", 3) == index.search("?!", 3) == index.search("", 3) == ()


def test_a_long_passage_is_cut_where_it_is_shown(tmp_path: Path) -> None:
    world = made(tmp_path, results=1, max_chars=20)
    assert _lines(world.step("search[Ada]")) == ["[1] Ada: Ada Lovelace wrote a ..."]


HOTPOT = {
    "_id": "5a8b",
    "question": "Which of the two was first?",
    "answer": "yes",
    "type": "comparison",
    "supporting_facts": [["Alpha", 0], ["Beta", 1], ["Alpha", 2]],
    "context": [["Alpha", ["Alpha is old.", " Very."]], ["Beta", ["Beta is new."]]],
}
HOTPOT_HUB = {
    **HOTPOT,
    "supporting_facts": {"title": ["Alpha", "Beta", "Alpha"], "sent_id": [0, 1, 2]},
    "context": {
        "title": ["Alpha", "Beta"],
        "sentences": [["Alpha is old.", " Very."], ["Beta is new."]],
    },
}


@pytest.mark.parametrize("row", [HOTPOT, HOTPOT_HUB])
@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_hotpotqa_brings_its_passages_along(tmp_path: Path, row: dict, ending: str) -> None:
    file = tmp_path / f"hotpot.{ending}"
    if ending == "json":
        file.write_text(json.dumps([row, row]))
    elif row is HOTPOT:
        pytest.skip("Parquet holds no list of mixed types")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row]), file)
    world = registry.make("search_qa", data=str(file))
    assert world.num_tasks == 1
    world.reset(0, 0)
    assert world.solve() == ["search[Alpha]", "search[Beta]", "finish[yes]"]
    result = world.step("search[alpha]")
    assert _lines(result) == ["[1] Alpha: Alpha is old. Very."]
    assert world.solve() == ["search[Beta]", "finish[yes]"]


def test_musique_brings_its_passages_along(tmp_path: Path) -> None:
    row = {
        "id": "2hop__1",
        "question": "Which is old?",
        "answer": "Alpha",
        "answer_aliases": ["Alfa"],
        "paragraphs": [
            {"idx": 0, "title": "Beta", "paragraph_text": "New.", "is_supporting": False},
            {"idx": 1, "title": "Alpha", "paragraph_text": "Old.", "is_supporting": True},
        ],
    }
    world = registry.make("search_qa", data=written(tmp_path / "musique.jsonl", [row]))
    world.reset(0, 0)
    assert world.solve() == ["search[Alpha]", "finish[Alpha]"]
    assert _lines(world.step("search[old]")) == ["[1] Alpha: Old."]
    assert world.step("finish[alfa]").success


@pytest.mark.parametrize("field", ["context", "supporting_facts", "paragraphs", "evidence"])
@pytest.mark.parametrize("value", [None, 5, "x", {}, [None], [[]], [["x", 1, 2]], [{"title": 5}]])
def test_a_row_with_odd_evidence_is_a_question_without_it(
    tmp_path: Path, field: str, value: object
) -> None:
    world = made(tmp_path, {**QUESTION, field: value})
    assert world.solve() is not None
    assert world.step("finish[Babbage]").success


@pytest.mark.parametrize(
    "answers",
    [
        {"golden_answers": ["Babbage"]},
        {"answer": "Babbage"},
        {"answers": {"text": ["Babbage"], "answer_start": [3]}},
        {"ground_truth": "Babbage"},
        {"reward_model": {"style": "rule", "ground_truth": {"target": ["Babbage"]}}},
        {"answer": "The", "answer_aliases": ["Babbage"]},
    ],
)
def test_answers_of_every_public_shape(tmp_path: Path, answers: dict[str, Any]) -> None:
    world = made(tmp_path, {"question": "Who?", **answers}, {"question": "No answer?"})
    assert world.num_tasks == 1
    assert world.step("finish[Babbage]").success


def test_corpora_of_every_public_shape(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "contents": '"Ada"\nAda wrote.'},
        {"id": "8", "title": "Ada", "text": "Ada wrote."},
        {"contents": "Ada wrote."},
    ]
    expected = [("7", "Ada"), ("8", "Ada"), ("3", "")]
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{**row, "id": str(row.get("id", number))}
                                   for number, row in enumerate(rows, start=1)],
                                  schema=pyarrow.schema([(name, pyarrow.string()) for name in
                                                         ("id", "contents", "title", "text")])),
        tmp_path / "c.parquet",
    )  # fmt: skip
    files = [written(tmp_path / "c.jsonl", rows), str(packed), str(tmp_path / "c.parquet")]
    for file in files:
        passages = read_passages(file)
        assert [(p.id, p.title) for p in passages] == expected
        assert {p.text for p in passages} == {"Ada wrote."}


def test_foreign_text_is_cleaned() -> None:
    passage = passage_of({"contents": "A\x00 \ud800\ntext\x1b[31m\u2029 more"}, "1")
    assert passage == Passage("1", "A ?", "text [31m more")
    assert passage_of({"contents": " \n "}, "1") is None
    assert passage_of({"contents": 5}, "1") is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"results": 0}, "results is 0, but must be at least 1 and at most 50"),
        ({"max_chars": 5}, "max_chars is 5"),
        ({"hops": 7}, "has no question with 7 passages of evidence"),
        ({"retriever": "http"}, "retriever: http needs a url"),
        ({"url": "http://127.0.0.1:1"}, "url is only used with retriever: http"),
        ({"retriever": "http", "url": "http://a", "corpus": "x"}, "corpus is only used with"),
        ({"retriever": "http", "url": "ftp://a"}, "url is 'ftp://a', but must look like"),
        ({"retriever": "http", "url": "http://[::1"}, "must look like"),
        ({"retriever": "http", "url": "http://a:99999"}, "must look like"),
        ({"retriever": "lucene"}, "retriever is 'lucene'"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"min_f1": 0.0}, "min_f1 is 0.0"),
        ({"max_questions": 0}, "max_questions is 0"),
        ({"data": "no_such.jsonl"}, "cannot read no_such.jsonl"),
        ({"corpus": "no_such.jsonl"}, "cannot read no_such.jsonl"),
    ],
)
def test_settings_that_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message.replace("(", r"\(").replace("[", r"\[")):
        registry.make("search_qa", **params)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "?"}\n', "holds no row with a 'question' and an answer"),
        (b'{"question": "?", "answer": "x"}\n', "brings no passages along"),
        (b'{"question": "?", "answer": "x"', "line 1 is not JSON"),
        (b"", "holds no rows"),
        (b"\xff\xfe", "cannot read"),
    ],
)
def test_broken_question_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "q.jsonl").write_bytes(content)
    with pytest.raises(EnvError, match=message):
        registry.make("search_qa", data=str(tmp_path / "q.jsonl"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_packed(b'{"contents": "x"}')[:-9], "cannot"),
        (b"not gzip", "cannot read"),
        (_packed(b'{"body": "x"}'), "row 1 is no passage"),
        (_packed(b'{"contents": "?!"}'), "no passage with a word"),
        (_packed(b"[1]"), "row 1 is not an object"),
    ],
)
def test_broken_corpora(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "c.jsonl.gz").write_bytes(content)
    with pytest.raises(EnvError, match=message):
        registry.make("search_qa", corpus=str(tmp_path / "c.jsonl.gz"))


def test_a_file_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echoscope.envs.worlds.rows.MAX_FILE_BYTES", 10_000)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b" " * 1_000_000))
    with pytest.raises(EnvError, match="unpacks to more than 10000 bytes"):
        read_passages(str(tmp_path / "c.jsonl.gz"))


def test_siblings_share_one_index() -> None:
    assert SearchQa()._retriever is SearchQa()._retriever
