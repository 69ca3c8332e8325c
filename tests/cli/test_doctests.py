"""Every documented example of the command line runs."""

from __future__ import annotations

import pytest
from documented import modules_with_examples, run_examples


@pytest.mark.parametrize("module", modules_with_examples("cli"))
def test_examples_run(module: str) -> None:
    run_examples(module)
