"""Every documented example of the dashboard runs."""

from __future__ import annotations

import pytest
from documented import modules_with_examples, run_examples


@pytest.mark.parametrize("module", modules_with_examples("dashboard"))
def test_examples_run(module: str) -> None:
    run_examples(module)
