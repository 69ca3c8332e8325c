"""A scripted Lean server for every test that wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scripted_lean


@pytest.fixture
def kimina(monkeypatch: pytest.MonkeyPatch) -> Iterator[scripted_lean.Kimina]:
    """A server on loopback that knows the shipped proofs."""
    monkeypatch.delenv("LEAN_SERVER_API_URL", raising=False)
    monkeypatch.delenv("LEAN_SERVER_API_KEY", raising=False)
    with scripted_lean.kimina() as server:
        yield server
