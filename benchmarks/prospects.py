"""How often preflight's prediction of a collapse is right, over CollapseBench and CureBench.

    python benchmarks/prospects.py --tuning   # the runs on which the limits were set
    python benchmarks/prospects.py            # all others: two tables; seconds a run

A run is predicted from a trial of its settings and seed, and counted against what the recorded run
of these settings and seed did. The limits of `diagnostics/tools/prospects.py` were set on seed 0 of
the recipes of CollapseBench and on seeds 0 and 1 of CureBench. What the first three signs missed on
seeds 0 to 7 of CureBench was known when the last two were added.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from common import markdown_table, read_options
from cures.training import config_of

from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.trial import run_trial
from echoscope.diagnostics.bench.cures.kinds import kinds, twins
from echoscope.diagnostics.bench.cures.records import RECORDS, Records, has_collapsed
from echoscope.diagnostics.bench.harness import SMALL_RUNS, load_curves
from echoscope.diagnostics.judge.advice.treatments import GUARDED, UNTREATED
from echoscope.diagnostics.tools.prospects import prospects

TUNING = {"recipes": {0}, "kinds": {0, 1}}
"""Seeds on which the limits were set, of CollapseBench's recipes and of CureBench's kinds."""
GROUPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run whose end is known."""

    of: str
    """Its recipe, kind or twin."""
    seed: int
    config: RunConfig
    has_collapsed: bool


def of_collapsebench() -> Iterator[Recorded]:
    for run in load_curves(SMALL_RUNS):
        recipe = run.name.split("/")[0]
        config = load_config(recipe, overrides=(f"seed={run.seed}",))
        yield Recorded(of=recipe, seed=run.seed, config=config, has_collapsed=run.is_collapsed)


def of_curebench() -> Iterator[Recorded]:
    """Untreated runs of all kinds, and healthy twins: also those that a guard left alone."""
    pieces = Records(RECORDS).pieces
    for subject in (*kinds().values(), *twins().values()):
        left_alone = {
            seed: piece
            for (name, seed, arm), piece in sorted(pieces.items())
            if name == subject.name
            and (arm == UNTREATED or (arm == GUARDED and name in twins() and not piece.rewinds))
        }
        for seed, piece in left_alone.items():
            config = config_of(subject, seed, subject.steps)
            yield Recorded(
                of=subject.name, seed=seed, config=config, has_collapsed=has_collapsed(piece)
            )


def _reasons(run: Recorded) -> list[str]:
    _, _, signs = run_trial(run.config, num_groups=GROUPS, on_progress=lambda *progress: None)
    reasons = [prospect.text.split(": ")[1][:40] for prospect in prospects(signs)]
    print(
        f"{run.of} seed {run.seed}: collapsed {run.has_collapsed}, luck {signs.luck:.2f}, "
        f"divides {bool(signs.undivided)}, shift {signs.shift:.4f}, "
        f"bonus {signs.bonus:.3f} -> {reasons}",
        file=sys.stderr,
        flush=True,
    )
    return reasons


def table(runs: list[Recorded]) -> str:
    """Hits and false alarms, a row for each recipe or kind, and all together."""
    rows: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for run in runs:
        rows[run.of].append((run.has_collapsed, bool(_reasons(run))))
    rows["in all"] = [pair for pairs in list(rows.values()) for pair in pairs]
    lines = []
    for name, pairs in rows.items():
        counts = []
        for end in (True, False):
            warned = [is_warned for is_collapsed, is_warned in pairs if is_collapsed == end]
            counts.append(f"{sum(warned)} of {len(warned)}" if warned else "-")
        lines.append([name if name == "in all" else f"`{name}`", *counts])
    head = ("runs", "predicted of those that collapsed", "of those that did not")
    return markdown_table(head, lines)


def main() -> None:
    wants_tuning = read_options(__doc__, tuning=(False, "The runs the limits were set on.")).tuning
    for name, runs in (("recipes", of_collapsebench()), ("kinds", of_curebench())):
        print(table([run for run in runs if (run.seed in TUNING[name]) == wants_tuning]) + "\n")


if __name__ == "__main__":
    main()
