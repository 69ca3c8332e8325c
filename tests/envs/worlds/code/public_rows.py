"""Problems written by hand in the shapes of the public data sets, each with programs that are right
and programs that are wrong. Fields and their types are those of the data sets' cards."""

from __future__ import annotations

import json
from typing import Any


def stdin(given: str, output: str) -> dict[str, str]:
    return {"input": given, "output": output, "testtype": "stdin"}


def functional(given: str, output: str) -> dict[str, str]:
    return {"input": given, "output": output, "testtype": "functional"}


SQUARE = "print(int(input()) ** 2)"
BY_HEART = "print({'3': 9, '4': 16}.get(input().strip()))"
ADD = "def add(a, b):\n    return a + b"
MOST = (
    "class Solution:\n    def most(self, numbers: List[int]) -> int:\n        return max(numbers)"
)

WORDS = "def words(texts):\n    return [len(text.split()) for text in texts]"
TIMES_START = "class Solution:\n    def times(self, of: Dict[int, int]) -> str:\n        "
TIMES = f"{TIMES_START}return str(of[1])"
ATMOST = "class Solution:\n    def most(self, numbers: List[int], limit: int) -> int:\n        "

ROWS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "DeepCoder's part of PrimeIntellect, a function": (
        {
            "problem": "Write a function `add` that adds two numbers.",
            "solutions": [f"```python\n{ADD}\n```"],
            "tests": json.dumps(
                [
                    {"fn_name": "add", "input": [1, 2], "output": 3, "type": "function_call"},
                    {"fn_name": "add", "input": [5, -5], "output": 0, "type": "function_call"},
                ]
            ),
        },
        [ADD, "add = lambda a, b: b + a"],
        ["def add(a, b):\n    return 3", "print(3)"],
    ),
    "DeepCoder's part of PrimeIntellect, outputs in lists": (
        {
            "problem": "Write a function `add` that adds two numbers.",
            "solutions": [ADD],
            "tests": json.dumps(
                [
                    {"fn_name": "add", "input": [1, 2], "output": [3], "type": "function_call"},
                    {"fn_name": "add", "input": [5, -5], "output": [0], "type": "function_call"},
                ]
            ),
        },
        [ADD],
        ["def add(a, b):\n    return 3"],
    ),
    "DeepCoder's part of PrimeIntellect, printing": (
        {
            "problem": "Square a number.",
            "solutions": [f"```python\n{SQUARE}\n```"],
            "tests": json.dumps(
                [{"fn_name": None, "input": "3\n", "output": "9\n", "type": "stdin_stdout"}] * 2
                + [{"fn_name": None, "input": "5\n", "output": "25\n", "type": "stdin_stdout"}]
            ),
        },
        [SQUARE],
        [BY_HEART],
    ),
    "DeepCoder's part of TACO, a function": (
        {
            "problem": "Write a function `add` that adds two numbers.",
            "solutions": [ADD],
            "tests": json.dumps(
                {"fn_name": "add", "inputs": [[1, 2], [5, -5]], "outputs": [[3], [0]]}
            ),
        },
        [ADD],
        ["def add(a, b):\n    return 3"],
    ),
    "DeepCoder's part of LiveCodeBench": (
        {
            "problem": "Return the largest of `numbers`.",
            "starter_code": "class Solution:\n    def most(self, numbers: List[int]) -> int:\n",
            "tests": json.dumps([functional("[1, 3, 2]", "3"), functional("[-1]", "-1")]),
            "metadata": {"func_name": "most"},
        },
        [MOST],
        [MOST.replace("max", "len")],
    ),
    "DeepCoder's tests that name their function each": (
        {
            "problem": "Return the largest of `numbers`.",
            "tests": json.dumps(
                [
                    {**functional("[1, 3, 2]", "3"), "metadata": {"func_name": "most"}},
                    {**functional("[-1]", "-1"), "metadata": {"func_name": "most"}},
                ]
            ),
        },
        [MOST],
        [MOST.replace("max", "len")],
    ),
    "PrimeIntellect": (
        {
            "prompt": "Square a number.",
            "gold_standard_solution": f"```python\n{SQUARE}\n```",
            "verification_info": json.dumps(
                {
                    "language": "python",
                    "test_cases": [
                        {"fn_name": None, "input": "3\n", "output": "9\n", "type": "stdin_stdout"},
                        {"fn_name": None, "input": "5\n", "output": "25\n", "type": "stdin_stdout"},
                    ],
                }
            ),
            "metadata": json.dumps({"difficulty": "1"}),
        },
        [SQUARE],
        [BY_HEART],
    ),
    "TACO, a function": (
        {
            "question": "Count the words of each text.",
            "solutions": json.dumps([WORDS]),
            "starter_code": "def words(texts):\n\t",
            "input_output": json.dumps(
                {
                    "fn_name": "words",
                    "inputs": [[["a b", "c"]], [[""]]],
                    "outputs": [[[2, 1]], [[0]]],
                }
            ),
            "difficulty": "EASY",
            "time_limit": None,
        },
        [WORDS],
        ["def words(texts):\n    return len(texts)", "def words(texts):\n    return [2, 1]"],
    ),
    "TACO, printing": (
        {
            "question": "Square each number.",
            "solutions": json.dumps([]),
            "starter_code": "",
            "input_output": json.dumps(
                {"inputs": ["2\n3 4\n", "1\n5\n"], "outputs": ["9\n16\n", "25\n"]}
            ),
        },
        ["input()\nfor n in input().split(): print(int(n) ** 2)"],
        ["print('9\\n16')"],
    ),
    "TACO, printing, by lines": (
        {
            "question": "Square each number.",
            "input_output": json.dumps(
                {"inputs": [["2", "3 4"], ["1", "5"]], "outputs": [["9", "16"], ["25"]]}
            ),
        },
        ["input()\nfor n in input().split(): print(int(n) ** 2)"],
        ["print('9\\n16')"],
    ),
    "APPS, a function of a class": (
        {
            "problem_id": 3,
            "question": "Return the text that says how often each value comes.",
            "solutions": json.dumps([TIMES]),
            "starter_code": TIMES_START,
            "input_output": json.dumps(
                {"fn_name": "times", "inputs": [[{"1": 5}], [{"1": 6}]], "outputs": ["5", "6"]}
            ),
            "difficulty": "introductory",
            "url": "",
        },
        [TIMES],
        [TIMES.replace("str(of[1])", "of[1]")],
    ),
    "LiveCodeBench, printing": (
        {
            "question_title": "Square",
            "question_content": "Square a number. 3 gives 9, 4 gives 16.",
            "platform": "atcoder",
            "question_id": "abc301_a",
            "starter_code": "",
            "difficulty": "easy",
            "public_test_cases": json.dumps([stdin("3\n", "9\n"), stdin("4\n", "16\n")]),
            "private_test_cases": json.dumps([stdin("5\n", "25\n")]),
            "metadata": "{}",
        },
        [SQUARE],
        [BY_HEART],
    ),
    "LiveCodeBench, a function, as JSON": (
        {
            "question_content": "Return the largest of `numbers`, at most `limit`.",
            "starter_code": ATMOST,
            "public_test_cases": json.dumps([functional("[1, 3]\n9", "3")]),
            "private_test_cases": json.dumps([functional("[1, 30]\n9", "9")]),
            "metadata": json.dumps({"func_name": "most"}),
        },
        [f"{ATMOST}return min(limit, max(numbers))"],
        [f"{ATMOST}return 3"],
    ),
}
