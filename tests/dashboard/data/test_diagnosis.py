"""What the Diagnosis page draws: hand-worked tables from metrics and records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, cast

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.dashboard.data.diagnosis import (
    gradient_table,
    group_grid,
    information_curves,
    regime_path,
)
from echoscope.diagnostics.measure.text.report import read_record
from echoscope.diagnostics.measure.text.templates import Template
from echoscope.store.reader import RunReader
from echoscope.store.records import DiagnosticRecord


def long(rows: dict[int, dict[str, float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [(step, key, value) for step, values in rows.items() for key, value in values.items()],
        columns=["step", "key", "value"],
    )


def scored(entropy: float, dependence: float) -> dict[str, float]:
    prefix = "info/first_turn"
    return {
        f"{prefix}/conditional_entropy_per_token": entropy,
        f"{prefix}/dependence": dependence,
        f"{prefix}/num_prompts": 8.0,
        f"{prefix}/mutual_information_low": (dependence - 0.1) * math.log(8),
        f"{prefix}/mutual_information_high": (dependence + 0.1) * math.log(8),
    }


def test_the_path_holds_every_measurement_with_its_interval_and_regime() -> None:
    """Start 2.0 nats and best 0.8: the borders are a quarter of each."""
    path = regime_path(long({1: scored(2.0, 0.8), 5: scored(2.0, 0.8), 9: {"loss/total": 1.0}}))
    assert path is not None
    points, borders = path
    assert points["step"].tolist() == [1, 5]
    assert points["regime"].tolist() == ["undetermined", "diverse"]
    assert points["dependence_low"].tolist() == pytest.approx([0.7, 0.7])
    assert borders == (0.5, 0.2)


def test_text_and_cross_scores_are_never_on_one_path() -> None:
    text = {"text/conditional_entropy": 5.0, "text/dependence": 0.3}
    path = regime_path(long({1: text, 2: scored(2.0, 0.8) | text, 3: text}))
    assert path is not None
    assert path[0]["step"].tolist() == [2]
    assert regime_path(long({1: text, 2: text})) is not None


def test_without_a_measurement_there_is_no_path() -> None:
    assert regime_path(long({1: {"loss/total": 1.0}})) is None
    assert regime_path(long({})) is None


def record(payload: object, **arrays: np.ndarray) -> DiagnosticRecord:
    return DiagnosticRecord(step=1, kind="information", arrays=arrays, payload=json.dumps(payload))


def test_a_family_has_its_curve_and_one_that_does_not_fit_is_left_out() -> None:
    curves = information_curves(
        record(
            [],
            first_turn_curve_k=np.array([1.0, 2.0]),
            first_turn_curve=np.array([0.1, 0.5]),
            all_turns_curve_k=np.array([1.0]),
            all_turns_curve=np.array([0.1, 0.5]),
            alone_curve=np.array([0.1]),
            empty_curve_k=np.zeros(0),
            empty_curve=np.zeros(0),
        )
    )
    assert {name: curve.tolist() for name, (_, curve) in curves.items()} == {
        "first_turn": [0.1, 0.5]
    }
    assert information_curves(record([])) == {}


@given(st.text(max_size=40))
def test_any_payload_is_read_without_an_exception(text: str) -> None:
    broken = DiagnosticRecord(step=1, kind="text", payload=text)
    assert read_record(broken.payload).template is None


def test_the_template_comes_with_slots_and_places() -> None:
    template = {"text": "Go ___.", "fillers": [["up", "left"]], "coverage": 0.5, "match_frac": 1.0}
    exemplar = {"trajectory_id": "t00000001-00004", "turn": 2, "spans": [[0, 3]], "note": "n"}
    measured = read_record(
        record({"template": template, "exemplars": {"template": [exemplar]}}).payload
    )
    assert measured.template == Template(
        text="Go ___.", coverage=0.5, match_frac=1.0, fillers=(("up", "left"),)
    )
    assert [(e.trajectory_id, e.turn, e.spans, e.note) for e in measured.exemplars["template"]] == [
        ("t00000001-00004", 2, ((0, 3),), "n")
    ]
    assert read_record(record({"template": None}).payload).template is None


class Episodes:
    """Of one step, in place of a run: (group, return, success) of each."""

    def __init__(self, *rows: tuple[int, float | None, bool | None]) -> None:
        self.rows = pd.DataFrame(rows, columns=["group_index", "episode_return", "is_success"])
        self.rows = self.rows.astype({"episode_return": float, "is_success": "boolean"})

    def sql(self, query: str, params: Sequence[Any]) -> pa.Table:
        with duckdb.connect() as connection:
            connection.register("trajectories", self.rows.assign(step=1, split="train"))
            return connection.sql(query, params=list(params)).to_arrow_table()


def grid_of(*rows: tuple[int, float | None, bool | None]) -> pd.DataFrame:
    return group_grid(cast("RunReader", Episodes(*rows)), [1])


def test_groups_stand_in_a_stack_by_what_became_of_them() -> None:
    grid = grid_of(
        *((0, 1.0, True), (0, 1.0, True)),
        *((1, 0.0, False), (1, 1.0, True)),
        *((2, 0.0, False), (2, 0.0, False)),
        *((3, 0.3, None), (3, 0.3, None)),
        (4, 1.0, True),
    )
    assert grid["kind"].tolist() == ["hopeless", "constant", "mixed", "solved"]
    assert grid["group_index"].tolist() == [2, 3, 1, 0]
    assert grid["rank"].tolist() == [0, 1, 2, 3], "a trajectory alone is no group"


@pytest.mark.parametrize("unknown", [None, np.nan])
def test_groups_without_rewards_stand_by_their_success(unknown: float | None) -> None:
    grid = grid_of(
        *((0, unknown, False), (0, unknown, True)),
        *((1, unknown, False), (1, unknown, False)),
        *((2, unknown, None), (2, unknown, None)),
    )
    assert grid[["group_index", "kind"]].to_numpy().tolist() == [[1, "hopeless"], [0, "mixed"]]
    assert grid_of().empty, "a run without trajectories"


def test_gradients_are_a_row_per_term_and_bucket() -> None:
    table = gradient_table(
        {
            "gradient/policy/all/norm": 2.0,
            "gradient/policy/zero/norm": 0.0,
            "gradient/policy/zero/cosine_rest": -0.5,
            "gradient/zero/num_groups": 3.0,
            "gradient/policy/all/layers_0_0/norm": 9.0,
            "optim/grad_norm": 1.0,
        }
    )
    assert table[["term", "bucket", "norm"]].to_numpy().tolist() == [
        ["policy", "all", 2.0],
        ["policy", "zero", 0.0],
    ]
    assert table["num_groups"].iloc[1] == 3.0
    assert gradient_table({}).empty
