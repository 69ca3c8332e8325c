"""Every planted fault of `benchmarks/mutations.toml` still fits the code, or it would be none."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from mutations import ROOT, load


def test_every_mutation_changes_one_place_of_the_code() -> None:
    mutations = load(ROOT / "benchmarks" / "mutations.toml")
    assert [problem for each in mutations if (problem := each.problem(ROOT))] == []
    assert len({each.name for each in mutations}) == len(mutations) >= 30
