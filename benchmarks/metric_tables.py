"""The tables of all metrics in docs/metrics-guide.md, written from the catalogue.

python benchmarks/metric_tables.py
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from echoscope.diagnostics.catalogue import METRICS, metric
from echoscope.diagnostics.judge.alarms import rules_reading
from echoscope.diagnostics.metric_entry import Metric

GUIDE = Path(__file__).parents[1] / "docs" / "metrics-guide.md"
BEGIN, END = "<!-- metrics: begin -->", "<!-- metrics: end -->"
HEAD = (
    "| name | metric | unit | good | what it is | alarms |\n| --- | --- | --- | --- | --- | --- |"
)
FIRST_OF = {
    "rollout/success_rate": "Success",
    "reward/return_mean": "Rewards",
    "rollout/reasoning_closed_frac": "Replies",
    "policy/entropy": "Entropy",
    "info/first_turn/mutual_information": "Link between prompt and reasoning",
    "text/sibling_distance": "Repetition",
    "selection/kept_frac": "Selection",
    "optim/grad_norm": "Update",
    "off_policy/weight_mean": "Samples of another policy",
    "time/step_s": "Time",
}
"""Key of the first metric of a table, and the table's title."""
MAX_RULES = 4
"""A metric that more alarms read names the first ones only."""


def tables() -> str:
    """All metrics in Markdown, one table a subject."""
    lines: list[str] = []
    for _, same in itertools.groupby(METRICS, key=lambda entry: entry.help):
        entries = list(same)
        if title := FIRST_OF.get(entries[0].key):
            lines += [f"### {title}", "", HEAD]
        lines.append(_row(entries))
    return "\n".join(lines).replace("\n###", "\n\n###")


def _row(entries: Sequence[Metric]) -> str:
    """One row for metrics that say the same from different sources."""
    entry = entries[0]
    rules = list(dict.fromkeys(rule for each in entries for rule in rules_reading(each.key)))
    names = ", ".join(f"`{rule}`" for rule in rules[:MAX_RULES])
    more = f" and {len(rules) - MAX_RULES} more" if len(rules) > MAX_RULES else ""
    name = next((each.name for each in entries if each.name), metric(entry.key).name)
    key = ", ".join(f"`{each.key}`" for each in entries)
    cells = [name, key, entry.unit, entry.good, entry.help, names + more]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    GUIDE.write_text(f"{head}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
