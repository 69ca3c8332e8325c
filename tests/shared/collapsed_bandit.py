"""The smallest run that loses a success that it had: a learning rate a hundred times too high."""

from __future__ import annotations

from pathlib import Path

from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents

WORDS = (
    *("steps=12", "envs.eval=[]", "checkpoint.every=1", "checkpoint.keep=20"),
    *("envs.group_size=8", "envs.train.0.groups=2", "probe.every=1", "probe.tasks=24"),
    *("optim.lr=1e-2", "optim.warmup_steps=24"),
    *(f"diagnostics.{name}.every=0" for name in ("text", "information", "gradient")),
)


def collapsed_bandit(path: Path) -> Path:
    """Train it: success falls from three quarters to a tenth between steps 5 and 8."""
    assert start(load_config("bandit", overrides=WORDS), path, SilentEvents()) == "finished"
    return path
