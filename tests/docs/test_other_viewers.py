"""The table of docs/dashboard.md beside other viewers: a yes of ours is a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTION = "\n## Beside other viewers\n"


def own_claims() -> list[str]:
    """The second column: what the table says of Echoscope."""
    text = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")
    section = text.split(SECTION, 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [row.strip("|").split("|")[1].strip() for row in rows]


def test_every_yes_names_a_test_that_exists() -> None:
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    named = [re.fullmatch(r"yes: `(test_\w+)`", claim) for claim in own_claims()]
    assert len(named) > 10
    wrong = [
        claim
        for claim, match in zip(own_claims(), named, strict=True)
        if not claim.startswith("no") and (match is None or match[1] not in tests)
    ]
    assert wrong == []


def test_the_table_says_what_others_have_and_we_do_not() -> None:
    assert sum(claim.startswith("no") for claim in own_claims()) >= 3
