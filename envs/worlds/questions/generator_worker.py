"""Scores answers to reasoning-gym's questions, in processes of its own, which may be killed.

Some of its scorers hand the answer to `eval` or to sympy's parser, which is `eval`, too. So answers
to these must look like data before they get there, and every answer is scored in a child that can
open nothing any more, under limits of time and memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from echoscope.text.limited_child import limit, serve, shared_children

MAX_ANSWER_CHARS = 4_000
"""Longer ones are no answers."""
CPU_S = 4
"""Seconds of a core for one answer."""
ANSWER_TIMEOUT_S = 60.0
MAX_MEMORY_BYTES = 1 << 30

LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Their scorers evaluate an answer that looks like a list: none of it may be a call."""
FORMULAS = frozenset({"countdown", "intermediate_integration", "puzzle24", "simple_integration"})
"""Their scorers evaluate a formula: it has no texts, and no attributes of anything."""
_NO_LIST = re.compile(r"[(@:]|__")
_NO_FORMULA = re.compile(r"""['"`\\:;=\[\]{}]|__|\.\s*[^\W\d]|\blambda\b""")


def looks_like_data(name: str, answer: str) -> bool:
    """Whether the scorer of a generator may be given an answer."""
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    if name in LISTS:
        return _NO_LIST.search(answer) is None
    return name not in FORMULAS or _NO_FORMULA.search(answer) is None


def made_entry(name: str, params: Mapping[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """A generator, and the question that it draws from a seed."""
    return _made_entry(name, json.dumps(dict(params)), seed)


@lru_cache(maxsize=256)  # siblings have one question, and some generators read files first
def _made_entry(name: str, params: str, seed: int) -> tuple[Any, dict[str, Any]]:
    from reasoning_gym import create_dataset

    generator = create_dataset(name, size=1, seed=seed, **json.loads(params))
    return generator, generator[0]


def score(name: str, params: Mapping[str, Any], seed: int, answer: str) -> float | None:
    """Between 0 and 1; None where the answer is none, or the scorer fails on it."""
    if not looks_like_data(name, answer):
        return None
    question = {"name": name, "params": dict(params), "seed": seed, "answer": answer}
    value = shared_children(__name__).ask(question, ANSWER_TIMEOUT_S)
    return None if value is None else min(max(float(value), 0.0), 1.0)


def work() -> None:
    serve(_score, _prepare)


def _prepare(question: Mapping[str, Any]) -> None:
    generator, entry = made_entry(question["name"], question["params"], question["seed"])
    # Now, since the fork cannot import what a scorer imports when it is first used.
    generator.score_answer(None if entry["answer"] is None else str(entry["answer"]), entry)


def _score(question: Mapping[str, Any]) -> float:
    generator, entry = made_entry(question["name"], question["params"], question["seed"])
    limit(memory_bytes=MAX_MEMORY_BYTES, cpu_s=CPU_S, is_closed=True)
    return float(generator.score_answer(question["answer"], entry))
