"""Packages that only a part of Echoscope needs, and the sentence where one is missing."""

from __future__ import annotations

from collections.abc import Mapping

EXTRA_OF: Mapping[str, str] = {
    **dict.fromkeys(("torch", "transformers", "peft", "safetensors"), "train"),
    **dict.fromkeys(("gymnasium", "jinja2"), "train"),
    "inspect_ai": "eval",
    **dict.fromkeys(("streamlit", "plotly", "pandas", "starlette", "uvicorn"), "dashboard"),
}
"""The extra in pyproject.toml that brings a package, by the name under which it is imported."""


def missing_package(error: ImportError) -> str | None:
    """What to type where a package of an extra is missing; None where it is anything else.

    >>> missing_package(ModuleNotFoundError("No module named 'torch'", name="torch"))
    "this needs torch, which is not installed: pip install -e '.[train]' in the folder of Echoscope"
    """
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in EXTRA_OF:
        return None
    # Echoscope is on no package index: its extras are installed from its folder.
    return (
        f"this needs {package}, which is not installed: "
        f"pip install -e '.[{EXTRA_OF[package]}]' in the folder of Echoscope"
    )
