"""What `echoscope diagnose` takes on 100,000 stored trajectories: `python benchmarks/diagnose.py`.

Episodes of the shipped policy on the demo's tasks are played once (128 groups of 8), and stored
again and again, eight groups drawn anew at each step, so that text, lengths and rewards are real.
The run has no measurements of its own, as an import has none: text is measured by `diagnose`
itself. A few minutes on two cores, most of them for playing and writing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import describe_machine, folder_bytes, read_options, temporary_folder, usage_of_command

if TYPE_CHECKING:
    from echoscope.store.records import Trajectory

TRAJECTORIES = 100_000
GROUPS_PER_STEP = 8
GROUPS_PLAYED = 128


def played() -> list[tuple[Trajectory, ...]]:
    from echoscope.core.config.loading import load_config
    from echoscope.core.run.trial import run_trial

    batches, _, _ = run_trial(
        load_config("demo"), num_groups=GROUPS_PLAYED, on_progress=lambda name, done, of: None
    )
    return [group for batch in batches for group in batch.groups]


def write(path: Path, groups: Sequence[Sequence[Trajectory]], num_trajectories: int) -> None:
    """A run of that many trajectories; eight groups a step."""
    import numpy as np
    from made_run import step_metrics

    from echoscope.store.records import Split
    from echoscope.store.writer import RunWriter

    size = len(groups[0])
    num_steps = -(-num_trajectories // (GROUPS_PER_STEP * size))
    rng = np.random.default_rng(0)
    writer = RunWriter.create(path, run_id=path.name, config={})
    for step in range(1, num_steps + 1):
        drawn = rng.choice(len(groups), GROUPS_PER_STEP, replace=False)
        episodes = [
            replace(
                episode,
                step=step,
                split=Split.TRAIN,
                index=p * size + g,
                group_index=p,
                sibling_index=g,
            )
            for p, drawn_group in enumerate(drawn)
            for g, episode in enumerate(groups[drawn_group])
        ]
        values = {
            "reward/return_mean": float(np.mean([episode.episode_return for episode in episodes]))
        }
        metrics = step_metrics(path.name, step, values)
        writer.commit_step(metrics=[metrics], trajectories=episodes, outcomes=[])
    writer.close(status="finished")


def measured(path: Path) -> dict[str, Any]:
    """One call of the command line: seconds, and the peak memory of that very process."""
    output = path.with_name("verdict.json")
    with output.open("wb") as file:
        threads = os.environ | {"OMP_NUM_THREADS": "2"}
        used = usage_of_command("diagnose", path, "--json", may_fail=True, stdout=file, env=threads)
    return {
        "seconds": round(used.wall_s, 1),
        "cpu_seconds": round(used.cpu_s, 1),
        "peak_mib": round(used.peak_mib),
        "exit_code": used.exit_code,
        "state": json.loads(output.read_text(encoding="utf-8"))["state"],
    }


def main() -> None:
    arguments = read_options(
        __doc__, trajectories=TRAJECTORIES, json=False, write=(Path, "Only write the run there.")
    )
    if arguments.write is not None:
        write(arguments.write, played(), arguments.trajectories)
        return
    with temporary_folder() as folder:
        path = folder / "large"
        # In a process of its own: a child begins with its parent's peak, which must be small.
        arguments_of_writer = ["--write", str(path), "--trajectories", str(arguments.trajectories)]
        subprocess.run([sys.executable, __file__, *arguments_of_writer], check=True)
        num_bytes = folder_bytes(path)
        result = {
            "trajectories": arguments.trajectories,
            "run_mib": round(num_bytes / 2**20),
            "machine": describe_machine(),
            **measured(path),
        }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"on {result['machine']}")
    print(
        f"diagnose on {result['trajectories']:,} trajectories ({result['run_mib']} MiB): "
        f"{result['seconds']} s ({result['cpu_seconds']} s of processor time), peak "
        f"{result['peak_mib']} MiB, says {result['state']}"
    )


if __name__ == "__main__":
    main()
