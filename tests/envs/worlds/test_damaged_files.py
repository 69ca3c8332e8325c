"""Data files that are cut off or damaged: one sentence or fewer tasks, and nothing else.

Every loader of every world, with files cut at each byte (of a long file, at 40 places) and with
single bytes changed.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from echoscope.envs import registry
from echoscope.envs.base import EnvError

Rows = list[dict[str, Any]]
MOST_CUTS, CHANGES = 40, 15


def json_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def json_list(rows: Any) -> bytes:
    return json.dumps(rows, ensure_ascii=False).encode()


def zipped(rows: Rows) -> bytes:
    return gzip.compress(json_lines(rows), mtime=0)


def parquet(rows: Rows) -> bytes:
    held = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), held)
    return held.getvalue()


KINDS: Mapping[str, Callable[[Rows], bytes]] = {
    ".jsonl": json_lines,
    ".json": json_list,
    ".jsonl.gz": zipped,
    ".parquet": parquet,
}
GSM8K = [{"question": f"Zoë has {n} eggs. How many?", "answer": f"So #### {n}"} for n in (1, 2, 3)]
MMLU = [{"question": "Größe?", "choices": ["groß", "klein"], "answer": n} for n in (0, 1)]
META = [{"query": f"Was ist {n}²?", "response": f"The answer is: {n * n}"} for n in (1, 2, 3)]
NUMBERS = [{"nums": [1, 2, 7], "target": 9}, {"nums": [3, 5], "target": 8}]
PROGRAMS = [
    {
        "problem": "Verdopple die Zahl. é",
        "tests": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
        "starter_code": "",
    }
] * 2
QUESTIONS = [
    {"question": "Wo liegt Köln?", "golden_answers": ["Rhein"]},
    {"question": "Wo liegt Bern?", "golden_answers": ["Aare"]},
]
PASSAGES = [
    {"id": "1", "title": "Köln", "text": "Köln liegt am Rhein."},
    {"id": "2", "title": "Bern", "text": "Bern liegt an der Aare."},
]
THEOREMS = [
    {
        "name": name,
        "split": "test",
        "header": "",
        "formal_statement": f"theorem {name} : 1 = 1 := by",
    }
    for name in ("eins", "zwölf")
]
PRODUCTS = [
    {
        "asin": f"B0TEST000{n}",
        "name": f"Lampe {n} é",
        "query": "desk lamp",
        "category": "home",
        "product_category": "Home \u203a Lighting",
        "full_description": "A lamp.",
        "small_description": ["Oak"],
        "pricing": "$10.50",
        "customization_options": {"Color": [{"value": "Red", "image": None}]},
    }
    for n in (1, 2)
]
ATTRIBUTES = {
    f"B0TEST000{n}": {
        "attributes": ["oak"],
        "instruction": "Find me an oak lamp",
        "instruction_attributes": ["oak"],
    }
    for n in (1, 2)
}
HUMAN_GOALS = {
    asin: [
        {"instruction": "i want oak.", "instruction_attributes": ["oak"], "instruction_options": []}
    ]
    for asin in ATTRIBUTES
}
LEVELS = b"; 1\n#####\n#@$.#\n#####\n\n; 2\n######\n#@ $.#\n######\n"

Case = tuple[str, dict[str, Any], str, str, bytes, dict[str, tuple[str, bytes]]]


def cases() -> Iterator[tuple[str, Case]]:
    """(name, (world, parameters, parameter of the file, its suffix, its bytes, other files))."""
    by_rows: list[tuple[str, dict[str, Any], str, Rows, dict[str, tuple[str, bytes]]]] = [
        ("static_qa", {}, "data", GSM8K, {}),
        ("static_qa", {"format": "mmlu"}, "data", MMLU, {}),
        ("metamathqa", {"equality": "text"}, "data", META, {}),
        ("countdown", {}, "data", NUMBERS, {}),
        ("deepcoder", {"unsafe": True}, "data", PROGRAMS, {}),
        ("lean", {}, "data", THEOREMS, {}),
        ("search_qa", {}, "data", QUESTIONS, {"corpus": (".jsonl", json_lines(PASSAGES))}),
        ("search_qa", {}, "corpus", PASSAGES, {"data": (".jsonl", json_lines(QUESTIONS))}),
    ]
    for world, params, name, rows, others in by_rows:
        for suffix, write in KINDS.items():
            label = f"{world} {' '.join(params)} {name}{suffix}"
            yield label, (world, params, name, suffix, write(rows), others)
    shop = {
        "products": (".json", json_list(PRODUCTS)),
        "attributes": (".json", json_list(ATTRIBUTES)),
        "human_goals": (".json", json_list(HUMAN_GOALS)),
    }
    for name, (suffix, data) in shop.items():
        others = {key: value for key, value in shop.items() if key != name}
        yield f"webshop {name}{suffix}", ("webshop", {}, name, suffix, data, others)
    yield "sokoban levels.txt", ("sokoban", {}, "levels", ".txt", LEVELS, {})


CASES = dict(cases())


def begin(world: str, params: Mapping[str, Any]) -> str:
    """What a player sees first."""
    env = registry.make(world, **params)
    first = env.reset(3, 0).text
    env.close()
    return first


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_cut_or_damaged_file_is_one_sentence_or_fewer_tasks(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAN_SERVER_API_URL", "http://127.0.0.1:9")  # nobody is asked
    world, params, name, suffix, data, others = case
    if world in (missing := registry.unavailable()):
        pytest.skip(missing[world])
    for key, (ending, content) in others.items():
        path = tmp_path / f"{key}{ending}"
        path.write_bytes(content)
        params = {**params, key: str(path)}
    file = tmp_path / f"damaged{suffix}"
    file.write_bytes(data)
    assert begin(world, {**params, name: str(file)})
    rng = np.random.default_rng(len(data))
    step = max(1, len(data) // MOST_CUTS)
    damaged = [data[:end] for end in range(0, len(data), step)]
    for offset in rng.integers(len(data), size=CHANGES).tolist():
        damaged.append(
            data[:offset] + bytes([data[offset] ^ int(rng.integers(1, 256))]) + data[offset + 1 :]
        )
    sentences = []
    for number, content in enumerate(damaged):
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(content)
        try:
            assert begin(world, {**params, name: str(path)})
        except EnvError as error:
            sentences.append((path.name, str(error)))
    assert sentences
    for file_name, sentence in sentences:
        assert file_name in sentence
        assert "\n" not in sentence
        assert len(sentence) < 1_000
