"""The program in a reply is found however the reply writes it."""

from __future__ import annotations

import pytest

from echoscope.envs.worlds.code.fences import program_of

CODE = "a, b = map(int, input().split())\nprint(a + b)\n"


@pytest.mark.parametrize(
    "reply",
    [
        CODE,
        f"So:\n```python\n{CODE}```\nThat is it.",
        f"```\n{CODE}```",
        f"```python3\n{CODE}```",
        f"```py3\n{CODE}```",
        f"```py\n{CODE}```",
        f"```Python\n{CODE}```",
        f"```Python 3.11\n{CODE}```",
        f"``` python\n{CODE}```",
        f"```{{.python}}\n{CODE}```",
        f'```python title="sum.py"\n{CODE}```',
        f"~~~python\n{CODE}~~~",
        f"~~~\n{CODE}~~~\n",
        f"````python\n{CODE}````",
        f"```python\n{CODE}",
        f"```python\n{CODE}``` This works because it adds.",
        f"Here it is: ```python\n{CODE}```",
        f"```python\n{CODE.rstrip()}```\nIt adds.",
        f"```python\n{CODE}```\nExample run:\n```\n7\n```",
        f"```python\n{CODE}```\nExample run:\n```text\nIt will print 7\n```",
        f"```python\n{CODE}```\nRun it:\n```bash\necho 3 4 | python sum.py\n```",
        f"```\n{CODE}```\nInput:\n```\n3 4\n```\nOutput:\n```\n7\n```",
        f"First try:\n```python\nprint(0)\n```\nBetter:\n```python\n{CODE}```",
        f"```text\nThe plan: print the sum.\n```\n```python\n{CODE}```",
        "- It adds:\n  ```python\n"
        + "".join(f"  {line}\n" for line in CODE.splitlines())
        + "  ```",
        "\t```python\n" + "".join(f"\t{line}\n" for line in CODE.splitlines()) + "\t```",
        f"```python\n{CODE}```\nDone.".replace("\n", "\r\n"),
        f"~~~python\n{CODE}~~~".replace("\n", "\r"),
    ],
)
def test_a_program_that_prints(reply: str) -> None:
    assert program_of(reply).strip() == CODE.strip()


@pytest.mark.parametrize(
    "reply",
    [
        "```python\ndef add(a, b):\n    return a + b\n```\nUse:\n```python\nprint(add(1, 2))\n```",
        "```\ndef add(a, b):\n    return a + b\n```\nIt gives:\n```\nadd(1, 2) -> 3\n```",
        "def add(a, b):\n    return a + b",
    ],
)
def test_a_program_that_defines_a_function(reply: str) -> None:
    assert program_of(reply, "add").strip() == "def add(a, b):\n    return a + b"


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("`print(1)`", "print(1)"),
        ("```python print(1)```", "print(1)"),
        ("", ""),
        ("```", "```"),
        ("```\n", ""),
        ("a `word` in a sentence", "a `word` in a sentence"),
        ("print('```')", "print('```')"),
    ],
)
def test_what_is_no_block(reply: str, program: str) -> None:
    assert program_of(reply) == program


@pytest.mark.parametrize("piece", ["`", "```", "~~~ ", "```\n", "~", "\t```x\n", "``` `", "def "])
def test_a_hostile_reply_takes_no_longer_than_its_length(piece: str) -> None:
    """A search that looked at every piece from every piece would not come back."""
    program_of(piece * 200_000, "f")
