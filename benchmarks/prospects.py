"""How often preflight's prediction of a collapse is right, on the runs of CollapseBench.

    python benchmarks/prospects.py            # both halves; about ten seconds a run
    python benchmarks/prospects.py 0          # one seed, with its signs

A run is predicted from a trial of its recipe and seed, and counted against what the recorded run of
that recipe and seed did (`diagnostics/bench/runs/labels.json`). The limits of
`diagnostics/tools/prospects.py` were set on seed 0; seeds 1 to 5 were not looked at for that.
"""

from __future__ import annotations

import sys

from echoscope.core.config.loading import load_config
from echoscope.core.run.trial import run_trial
from echoscope.diagnostics.bench.harness import SMALL_RUNS, load_curves
from echoscope.diagnostics.tools.prospects import prospects

TUNING, TEST = (0,), (1, 2, 3, 4, 5)
GROUPS = 8


def main(seeds: tuple[int, ...]) -> None:
    runs = [run for run in load_curves(SMALL_RUNS) if run.seed in seeds]
    rows: dict[bool, list[tuple[bool, bool]]] = {True: [], False: []}
    for run in runs:
        recipe = run.name.split("/")[0]
        config = load_config(recipe, overrides=(f"seed={run.seed}",))
        _, _, signs = run_trial(config, num_groups=GROUPS, on_progress=lambda *words: None)
        names = [prospect.text.split(": ")[1][:40] for prospect in prospects(signs)]
        rows[run.seed in TUNING].append((run.is_collapsed, bool(names)))
        sys.stdout.write(
            f"{run.name:32} collapsed {run.is_collapsed!s:5} luck {signs.luck:.2f} "
            f"divides {config.divides_by_spread!s:5} shift {signs.shift:.4f} "
            f"bonus {signs.bonus:.3f} -> {names}\n"
        )
        sys.stdout.flush()
    for is_tuning, pairs in rows.items():
        if pairs:
            hits = sum(collapsed and said for collapsed, said in pairs)
            false = sum(said and not collapsed for collapsed, said in pairs)
            num = sum(collapsed for collapsed, _ in pairs)
            sys.stdout.write(
                f"{'tuning' if is_tuning else 'test'}: {hits} of {num} collapses predicted, "
                f"{false} of {len(pairs) - num} healthy runs\n"
            )


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or (*TUNING, *TEST))
