"""Shared by the environment tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from echoscope.envs import registry


@pytest.fixture(autouse=True)
def _clean_registry() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)
