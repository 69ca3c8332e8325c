"""A run that collapses within three steps, for a reason that the guard finds, and its trainer.

Rewards of 1e30 make gradients that float32 cannot hold; GRPO divides by the group's spread, so the
recipe's own estimator cures it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig

COLLAPSE = (
    *("steps=5", "eval.every=0", "eval.before=false", "probe.every=0"),
    *("checkpoint.every=2", "checkpoint.keep=2", "context.max_response_tokens=24"),
    *("envs.train.0.groups=2", "envs.group_size=4", "envs.train.0.max_turns=2"),
    *("sampling.temperature=1.3", "advantage.kind=rloo"),
    *(f"diagnostics.{name}.every=0" for name in ("text", "information", "gradient")),
    "reward.shaping=[{name: big, function: format, weight: 1.0e+30}]",
)
"""Words on top of the recipe `demo`."""


def collapsing(*overrides: str) -> RunConfig:
    return load_config("demo", overrides=(*COLLAPSE, *overrides))


def killed(module: Any, name: str, *, after: bool) -> None:
    """From now on this process is killed at the first call of a function of a module or class."""
    call: Callable[..., Any] = getattr(module, name)

    def until(*args: Any, **more: Any) -> Any:
        if after:
            call(*args, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, until)


def guarded(path: Path, instant: str) -> None:
    """`echoscope train`, or `--resume` where there is a run; killed at an instant, "" for never."""
    from echoscope.cli import main
    from echoscope.core.run import branching, guard, step, train
    from echoscope.core.run.keeping import Checkpoints
    from echoscope.store.writer import RunWriter

    kills: dict[str, Callable[[], None]] = {
        "the treatment is chosen": lambda: killed(guard, "new_command", after=False),
        "the order lies in the mailbox": lambda: killed(step, "post", after=True),
        "the order is acknowledged": lambda: killed(train.Trainer, "_checkpoint", after=False),
        "the last checkpoint is written": lambda: killed(Checkpoints, "save", after=True),
        "the run is closed": lambda: killed(branching, "rewind_of", after=True),
        "the branch is planned": lambda: killed(branching, "plan_branch", after=True),
        "the new run has its name": lambda: killed(branching, "created", after=True),
        "the new run has its checkpoint": lambda: killed(branching, "adopt_checkpoint", after=True),
        "its checkpoint is on record": lambda: killed(RunWriter, "record_checkpoint", after=True),
    }
    if instant == "the order is acknowledged":
        boundary = train.Trainer._checkpoint_before_rewind

        def flushed(trainer: Any) -> None:
            trainer.log.writer.flush()
            kills[instant]()
            boundary(trainer)

        train.Trainer._checkpoint_before_rewind = flushed  # type: ignore[method-assign]
    elif instant == "the last checkpoint is written":
        before = train.Trainer._checkpoint_before_rewind

        def watched(trainer: Any) -> None:
            kills[instant]()
            before(trainer)

        train.Trainer._checkpoint_before_rewind = watched  # type: ignore[method-assign]
    elif instant == "its checkpoint is on record":
        start_branch = branching.start_branch

        def armed(*args: Any, **more: Any) -> str:
            kills[instant]()
            return start_branch(*args, **more)

        branching.start_branch = armed
    elif instant:
        kills[instant]()
    arguments = ["--resume", str(path)]
    if not (path / "run.json").exists():
        arguments = ["demo", *COLLAPSE, "guard=auto", "-o", str(path)]
    sys.argv = ["echoscope", "train", *arguments, "--headless"]
    main()


INSTANTS = (
    "the treatment is chosen",
    "the order lies in the mailbox",
    "the order is acknowledged",
    "the last checkpoint is written",
    "the run is closed",
    "the branch is planned",
    "the new run has its name",
    "the new run has its checkpoint",
    "its checkpoint is on record",
)
