"""Whether an episode was solved and whether an update has seen it, in words. Also for notebooks."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

SPLITS: Mapping[str, str] = {
    "train": "Training",
    "import": "Imported",
    "eval": "Evaluation",
    "probe": "Probe",
}
"""Split -> its label, in the order in which the replay prefers them."""
NEVER_TRAINED = ("eval", "probe")
"""Splits that no update ever sees."""
UNKNOWN = "unknown"


def success_word(value: object) -> str:
    """solved, failed, or unknown where neither the task nor the file says."""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return UNKNOWN
    return "solved" if value else "failed"


def kept_word(value: object, split: object = "train") -> str:
    """kept, dropped, never trained on; of our trainer pending until the update has seen it."""
    if split in NEVER_TRAINED:
        return "never trained on"
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return UNKNOWN if split == "import" else "pending"
    return "kept" if value else "dropped"
