"""The tables of all metrics in docs/metrics-guide.md, written from the catalogue.

python benchmarks/metric_tables.py
"""

from __future__ import annotations

from pathlib import Path

from echoscope.diagnostics.catalogue import METRICS, Metric, metric
from echoscope.diagnostics.judge.alarms import rules_reading

GUIDE = Path(__file__).parents[1] / "docs" / "metrics-guide.md"
BEGIN, END = "<!-- metrics: begin -->", "<!-- metrics: end -->"
HEAD = (
    "| metric | name | unit | good | what it is | alarms |\n| --- | --- | --- | --- | --- | --- |"
)


def tables() -> str:
    """All metrics as one Markdown table."""
    return "\n".join([HEAD, *(_row(entry) for entry in METRICS)])


def _row(entry: Metric) -> str:
    rules = ", ".join(f"`{rule}`" for rule in rules_reading(entry.key))
    cells = [f"`{entry.key}`", metric(entry.key).name, entry.unit, entry.good, entry.help, rules]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    GUIDE.write_text(f"{head}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
