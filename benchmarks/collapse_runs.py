"""Train the recipes that collapse and their healthy twins, and keep their curves with labels.

    python benchmarks/collapse_runs.py [--recipes collapse-format,...] [--seeds 0,1,2,3,4,5]
        [--root DIR] [--out diagnostics/bench/runs] [--label-only]

Writes one CSV per run and `labels.json`, as `diagnostics.bench.harness.load_curves` reads them.
Alarms do not act here, so that every run goes on to its end. What is recorded is skipped, and an
interrupted run goes on from its last checkpoint. Labels say what became of a run and are read from
its outcome alone, by the rules in `benchmarks/labelling.py`; no alarm is asked.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import markdown_table, read_options

os.environ.setdefault("OMP_NUM_THREADS", "1")

from labelling import outcome_of
from rich.progress import Progress

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.bench import harness
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.table import MetricTable, table_of_run

TWINS: Mapping[str, str] = {
    "collapse-template": "healthy-frozen-lake",
    "collapse-format": "healthy-frozen-lake",
    "collapse-entropy": "healthy-frozen-lake",
    "collapse-echo-trap": "healthy-bandit",
}
RECIPES = tuple(dict.fromkeys([*TWINS, *TWINS.values()]))
OUT = Path(__file__).parents[1] / "diagnostics" / "bench" / "runs"
NOTE = (
    "Runs of the shipped policy, one recipe and seed each. Labels follow from these curves by the "
    "rules in benchmarks/labelling.py."
)

KEPT = (
    "eval/*/success_rate",
    "eval/*/success_rate_low",
    "eval/*/success_rate_high",
    "eval/*/num_tasks",
    "rollout/success_rate",
    "rollout/*_frac",
    "rollout/num_episodes",
    "rollout/num_groups",
    "rollout/response_length_mean",
    "rollout/num_turns_mean",
    "reward/return_mean",
    "reward/group_std_mean",
    "reward/group_std_std",
    "reward/*_frac",
    "policy/entropy",
    "policy/success_logprob",
    "policy/mismatch_kl",
    "policy/approx_kl",
    "policy/clip_*_frac",
    "optim/grad_norm",
    "optim/num_skipped",
    "loss/*",
    "selection/is_empty",
    "info/first_turn/mutual_information",
    "info/first_turn/mutual_information_low",
    "info/first_turn/mutual_information_high",
    "info/first_turn/dependence",
    "info/first_turn/marginal_entropy",
    "info/first_turn/conditional_entropy",
    "info/first_turn/conditional_entropy_per_token",
    "info/first_turn/conditional_entropy_per_token_low",
    "info/first_turn/conditional_entropy_per_token_high",
    "info/first_turn/num_prompts",
    "info/first_turn/retrieval_accuracy@1",
    "info/first_turn/retrieval_chance@1",
    "info/first_turn/retrieval_p_value",
    "text/retrieval_accuracy",
    "text/retrieval_chance",
    "text/retrieval_p_value",
    "text/dependence",
    "text/conditional_entropy",
    "text/template_frac",
    "text/template_match_frac",
    "text/sibling_distance",
    "text/near_duplicate_frac",
    "text/loop_frac",
    "text/echo_frac",
    "text/agreement_frac",
    "text/closed_reasoning_frac",
    "text/valid_frac",
    "text/truncated_frac",
    "text/num_chars_p50",
)
"""What rules and pictures read."""
LEFT_OUT = ("rollout/stop_*", "eval/all/*")


def is_kept(key: str) -> bool:
    """Whether a metric goes into the CSV."""
    kept = any(fnmatch.fnmatchcase(key, pattern) for pattern in KEPT)
    return kept and not any(fnmatch.fnmatchcase(key, pattern) for pattern in LEFT_OUT)


def write_csv(table: MetricTable, path: Path) -> None:
    """Write the kept metrics of a run."""
    kept = {key: values for key, values in table.columns.items() if is_kept(key)}
    harness.write_csv(replace(table, columns=kept), path)


def train(recipe: str, seed: int, path: Path, steps: SilentEvents) -> None:
    """Train to the end, or go on, unless the run is finished."""
    if (path / "run.json").exists():
        if open_run(path).info().status == "finished":
            return
        if any(path.glob("checkpoints/*")):
            resume(path, steps)
            return
        shutil.rmtree(path)
    start(without_actions(load_config(recipe, overrides=[f"seed={seed}"])), path, steps)


def without_actions(config: RunConfig) -> RunConfig:
    """The same run, whose alarms only tell: it goes on to its end."""
    alarms = config.diagnostics.alarms.model_copy(update={"actions": {}})
    diagnostics = config.diagnostics.model_copy(update={"alarms": alarms})
    return config.model_copy(update={"diagnostics": diagnostics})


class Steps(SilentEvents):
    """Moves the progress bar."""

    def __init__(self, bar: Progress, title: str, of: int) -> None:
        self.bar = bar
        self.task = bar.add_task(title, total=of)

    def metrics(self, metrics: Any) -> None:
        self.bar.update(self.task, completed=metrics.step)


def label(table: MetricTable, recipe: str, seed: int) -> dict[str, Any]:
    """The entry of a run in `labels.json`."""
    return {
        "recipe": recipe,
        "twin": TWINS.get(recipe),
        "seed": seed,
        "steps": int(table.steps[-1]),
        **outcome_of(table).to_json(),
    }


def write_labels(out: Path) -> dict[str, Any]:
    """Label every CSV of the folder anew."""
    runs = {}
    for path in sorted(out.glob("*/seed*.csv")):
        recipe, seed = path.parent.name, int(path.stem.removeprefix("seed"))
        runs[f"{recipe}/{path.stem}"] = label(read_metrics(path), recipe, seed)
    harness.write_labels(out, NOTE, runs)
    return runs


def table_of_labels(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: what became of the runs of every recipe (a table in docs/collapsebench.md).

    Ranges are over seeds; `labels.json` has every run.
    """
    head = ("recipe", "became", "success: start, peak, end", "lost by step", "entropy", "I(X;Z)")
    rows = []
    for recipe in dict.fromkeys(entry["recipe"] for entry in runs.values()):
        entries = [entry for entry in runs.values() if entry["recipe"] == recipe]
        facts = [entry["facts"] for entry in entries]
        labels = Counter(entry["label"] for entry in entries)
        lost = [e["onset_performance"]["interval"][1] for e in entries if e["onset_performance"]]
        row = (
            f"`{recipe}`",
            ", ".join(f"{count} {label}" for label, count in labels.most_common()),
            ", ".join(_percent(facts, f"success_{key}") for key in ("first", "peak", "last")),
            f"{min(lost)} to {max(lost)}" if lost else "",
            f"{_median(facts, 'entropy_start')} -> {_median(facts, 'entropy_late')}",
            f"{_median(facts, 'information_best')} -> {_median(facts, 'information_late')}",
            f"{_median(facts, 'spread_start')} -> {_median(facts, 'spread_late')}",
            _percent(facts, "format_worst"),
        )
        rows.append(row)
    return markdown_table((*head, "reward std", "format, worst"), rows)


def _percent(facts: Sequence[Mapping[str, float]], key: str) -> str:
    return f"{100 * statistics.median(each[key] for each in facts):.0f} %"


def _median(facts: Sequence[Mapping[str, float]], key: str) -> str:
    return f"{statistics.median(each[key] for each in facts):.2f}"


def main() -> None:
    arguments = read_options(
        __doc__,
        recipes=",".join(RECIPES),
        seeds="0,1,2,3,4,5",
        root=Path("runs/collapse"),
        out=OUT,
        label_only=(False, "Label anew, train nothing."),
    )
    chosen = [
        (recipe, seed)
        for seed in map(int, arguments.seeds.split(","))
        for recipe in arguments.recipes.split(",")
    ]
    with Progress() as bar:
        for recipe, seed in [] if arguments.label_only else chosen:
            path = arguments.out / recipe / f"seed{seed}.csv"
            if path.exists():
                continue
            run = arguments.root / f"{recipe}-{seed}"
            title, steps = f"{recipe} seed {seed}", load_config(recipe).steps
            train(recipe, seed, run, Steps(bar, title, steps))
            status = open_run(run).info().status
            if status != "finished":
                raise SystemExit(f"{title}: {status}; start again to go on from its checkpoint")
            write_csv(table_of_run(open_run(run)), path)
            write_labels(arguments.out)
    print(table_of_labels(write_labels(arguments.out)))


if __name__ == "__main__":
    main()
