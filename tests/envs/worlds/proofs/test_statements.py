"""Files in the format of miniF2F, and the theorems that ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echoscope.envs.base import EnvUnavailableError
from echoscope.envs.worlds.proofs.statements import MADE_THEOREMS, read_theorems, theorem_of
from echoscope.envs.worlds.proofs.tactics import refusal

ROW: dict[str, Any] = {
    "name": "mathd_x",
    "split": "valid",
    "informal_prefix": "/-- Show that two\nis two. -/\n",
    "formal_statement": "theorem mathd_x (x : \u211d)\n  (h₀ : x = 2) : x = 2 := by\n",
    "goal": "x : \u211d\n⊢ x = 2",
    "header": "import Mathlib\n\nopen Real\n\n",
}


def test_a_row_of_minif2f() -> None:
    theorem = theorem_of(ROW)
    assert theorem is not None
    assert (theorem.name, theorem.informal) == ("mathd_x", "Show that two is two.")
    assert theorem.statement == "theorem mathd_x (x : \u211d)\n  (h₀ : x = 2) : x = 2"
    assert (theorem.header, theorem.proof) == ("import Mathlib\n\nopen Real", ())


@pytest.mark.parametrize("ending", [":= by", ":= sorry", ":= by sorry", ":=by\n  sorry\n", ":="])
def test_the_ending_is_cut_off(ending: str) -> None:
    theorem = theorem_of({"formal_statement": f"theorem t : 1 = 1 {ending}"})
    assert theorem is not None
    assert theorem.statement == "theorem t : 1 = 1"


def test_what_stands_before_the_theorem_belongs_to_the_header() -> None:
    stated = "def two := 2\nlemma t(h : two = 2) : two = two := sorry"
    theorem = theorem_of({"formal_statement": stated, "header": "import A"})
    assert theorem is not None
    assert theorem.header == "import A\ndef two := 2"
    assert (theorem.name, theorem.statement) == ("t", "theorem t(h : two = 2) : two = two")


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"formal_statement": 7},
        {"formal_statement": "theorem t : 1 = 1 := by rfl"},
        {"formal_statement": "example : 1 = 1 := by"},
        {"formal_statement": f"theorem t : {'x' * 10_000} := by"},
    ],
)
def test_other_rows_are_none(row: dict[str, Any]) -> None:
    assert theorem_of(row) is None


def test_splits(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    rows = [ROW, {**ROW, "split": "test", "formal_statement": "theorem b : 1 = 1 := by"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert [each.name for each in read_theorems(str(file), None)] == ["mathd_x", "b"]
    assert [each.name for each in read_theorems(str(file), "test")] == ["b"]
    with pytest.raises(EnvUnavailableError, match="no row with the split 'train' whose"):
        read_theorems(str(file), "train")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("", "holds no rows"), ('{"formal_', "is not JSON"), ("[1]", "is not an object")],
)
def test_a_broken_file_gives_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(content)
    with pytest.raises(EnvUnavailableError, match=sentence):
        read_theorems(str(file), None)


def test_the_shipped_theorems_have_proofs_whose_steps_are_sent() -> None:
    theorems = read_theorems(MADE_THEOREMS, None)
    assert len({theorem.statement for theorem in theorems}) == len(theorems) == 30
    assert len(read_theorems(MADE_THEOREMS, "valid")) == 6
    for theorem in theorems:
        assert theorem.proof
        assert [refusal(tactic) for tactic in theorem.proof] == [""] * len(theorem.proof)
        assert theorem.header == ""
