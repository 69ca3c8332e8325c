"""The first suggestion for each collapse, followed exactly: it cures, or says that it cannot.

Each collapse recipe is trained to its end, `diagnose` judges the run as a person would find it, and
the command that it gives is run as it stands. `make test-cure` runs this; two seeds of each recipe.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.checkpoints import evaluation_success
from echoscope.store.reader import open_run

SEEDS = tuple(int(seed) for seed in os.environ.get("ECHOSCOPE_CURE_SEEDS", "0,1").split(","))
CURED = 0.8
"""Share of the best evaluation success before the collapse that counts as cured."""
CAUSES = {
    "collapse-format": "optim.lr",
    "collapse-entropy": "loss.entropy_coef",
    "collapse-template": "envs.train.0.params.slip",
}


def echoscope(*arguments: str) -> str:
    """What a person gets who types it."""
    done = subprocess.run(
        [sys.executable, "-m", "echoscope", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("recipe", CAUSES)
def test_the_first_suggestion_cures(recipe: str, seed: int, tmp_path: Path) -> None:
    run = tmp_path / "collapsed"
    notify = "diagnostics.alarms.actions={TEMPLATE_COLLAPSE: notify}"
    echoscope("train", recipe, "--headless", "-o", str(run), f"seed={seed}", notify)
    verdict: dict[str, Any] = json.loads(echoscope("diagnose", str(run), "--json"))
    assert verdict["state"] in ("collapsed", "collapsing")
    action = verdict["actions"][0]
    assert list(action["settings"]) == [CAUSES[recipe]]
    assert action["can_cure"] == (recipe != "collapse-template")
    assert action["can_cure"] or "the task must change" in action["text"]

    arguments = shlex.split(action["command"])
    assert arguments[:4] == ["echoscope", "ctl", str(run), "branch"]
    echoscope(*arguments[1:], "--headless", "--root", str(tmp_path / "cured"))

    (branch,) = (tmp_path / "cured").iterdir()
    before = evaluation_success(open_run(run))
    after = evaluation_success(open_run(branch))
    best, end = max(before.values()), after[max(after)]
    sys.stdout.write(  # the figures of docs/alarms.md
        f"\n{recipe} | {seed} | {best:.0%} | {before[max(before)]:.0%} | "
        f"{' '.join(arguments[3:])} | {end:.0%}\n"
    )
    assert end >= CURED * best
