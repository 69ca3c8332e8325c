"""The real Lean of `make test-lean`: Lean 4.28 in WebAssembly, run by Node as a REPL."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "build" / "lean"
PARAMS: dict[str, Any] = {
    "repl": str(FOLDER),
    "lake": str(Path(__file__).parent / "lean_wasm" / "lake"),
    "memory_mb": 20_000,  # of addresses: WebAssembly reserves many more than the 1 GB it uses
    "timeout_s": 120.0,
}


def lacking() -> str:
    """Why it cannot run here; "" if it can."""
    if not (FOLDER / "lean.wasm").is_file():
        return "no Lean here: `make test-lean` unpacks one into build/lean"
    return "" if shutil.which("node") else "Lean in build/lean needs Node 20 or newer (node)"
