"""Where an unfinished warm start stands: saved whole, never unpickled."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor
from transformers import PreTrainedModel

from .rows import Row, SftError

STATE_FILE = "sft_state.pt"
"""Removed when the training ends."""


def fingerprint_of(rows: Sequence[Row], settings: str) -> str:
    """What a state must agree with to be resumed: every row and every setting."""
    digest = hashlib.blake2b(settings.encode(), digest_size=16)
    for row in rows:
        digest.update(np.int64(len(row.tokens)).tobytes())
        digest.update(row.tokens.tobytes())
        digest.update(row.weights.tobytes())
    return digest.hexdigest()


def _trainable_state(model: PreTrainedModel | PeftModel) -> dict[str, Tensor]:
    if isinstance(model, PeftModel):
        return dict(get_peft_model_state_dict(model))
    return dict(model.state_dict())


def save_state(
    folder: Path | None,
    fingerprint: str,
    model: PreTrainedModel | PeftModel,
    optimizer: torch.optim.Optimizer,
    losses: list[float],
) -> None:
    """Write where a training stands; the file is replaced whole. Nothing without a folder."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "fingerprint": fingerprint,
        "losses": losses,
        "model": _trainable_state(model),
        "optimizer": optimizer.state_dict(),
    }
    partial = folder / f"{STATE_FILE}.partial"
    torch.save(state, partial)
    os.replace(partial, folder / STATE_FILE)


def load_state(
    folder: Path,
    fingerprint: str,
    model: PreTrainedModel | PeftModel,
    optimizer: torch.optim.Optimizer,
) -> list[float]:
    """Put model and optimizer where they stood; the losses of the iterations done.

    Raises:
        SftError: there is no state, it cannot be read, or it belongs to another training.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise SftError(f"nothing to resume: {path} is not there")
    try:
        state = torch.load(path, weights_only=True)
        saved = state["fingerprint"]
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, KeyError, TypeError):
        raise SftError(f"{path} cannot be read as a saved training; remove it") from None
    if saved != fingerprint:
        raise SftError(f"{path} belongs to a training with other data or settings")
    if isinstance(model, PeftModel):
        set_peft_model_state_dict(model, state["model"])
    else:
        model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return list(state["losses"])
