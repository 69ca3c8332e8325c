"""Values as strict JSON can hold them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echoscope.text.strict_json import finite_or_none, json_value


class Word(StrEnum):
    YES = "yes"


@dataclass
class Point:
    x: float
    at: tuple[int, ...]


@pytest.mark.parametrize(
    ("value", "out"),
    [
        (math.nan, None),
        (-math.inf, None),
        (True, True),
        (Word.YES, "yes"),
        (Decimal(3), 3),
        (Decimal("3.5"), 3.5),
        (Path("a/b"), "a/b"),
        (Point(x=math.nan, at=(1, 2)), {"x": None, "at": [1, 2]}),
        (np.array([[1.0, np.nan]], np.float32), [[1.0, None]]),
        (np.int64(7), 7),
        ({1: [math.inf]}, {"1": [None]}),
    ],
)
def test_every_value_is_strict_json(value: Any, out: Any) -> None:
    assert json_value(value) == out
    assert json.loads(json.dumps(json_value(value), allow_nan=False)) == out


def test_a_number_that_is_not_finite_is_none() -> None:
    assert [finite_or_none(v) for v in (1, 2.5, math.nan, math.inf, None)] == [1, 2.5] + 3 * [None]
