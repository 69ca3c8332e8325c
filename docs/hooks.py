"""What the site builds: the page of all worlds, and tables from the code and from records.

A page marks the place of a table by a comment, such as `<!-- table: metrics -->`.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from echoscope.diagnostics.bench.cures import tables as cures
from echoscope.diagnostics.bench.cures.records import Records
from echoscope.diagnostics.catalogue import METRICS, metric
from echoscope.diagnostics.judge.alarms import ALL_RULES
from echoscope.diagnostics.judge.courses.channels import SOURCES, SPECS
from echoscope.diagnostics.judge.rules.metrics_needed import logged_keys
from echoscope.diagnostics.metric_entry import Metric
from echoscope.envs import registry
from echoscope.envs.checks.description import described
from echoscope.store import schema

WORLDS = """# Worlds

After reading this page you know what each shipped world shows, what it takes, what it pays and when
it ends. How to configure, check and write worlds is in [Environments](environments.md).
`echoscope envs show ID` prints one section.

The example episodes are the expert's at seed 0, within the shipped limits. Where random events let
the expert fail at noise seed 0, the episode has the first noise seed at which the expert succeeds.
Values of parameters are YAML: `null` is no value.

![One picture of every world, as the page Replay draws it](pictures/worlds.png)
"""
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
    "system/cpu_frac": "Machine",
}
"""Key of the first metric of a table, and the table's title."""
METRICS_HEAD = (
    "| name | metric | unit | good | what it is | alarms |\n| --- | --- | --- | --- | --- | --- |"
)
MAX_RULES = 4
"""A metric that more alarms read names the first ones only."""
PLACE = re.compile(r"<!-- table: (\w+) -->")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def on_files(files: Files, config: Any) -> Files:
    """Add the page of all worlds."""
    files.append(File.generated(config, "worlds.md", content=worlds_page()))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put each table in its place."""
    return PLACE.sub(lambda place: TABLES[place[1]](), markdown)


def worlds_page() -> str:
    """All worlds that ship; where the benchmarks can stand in for what a world needs, with that."""
    sys.path.insert(0, str(BENCHMARKS))
    from outside_parts import kitchens, real_lean_server

    with kitchens(), real_lean_server():
        return "\n".join([WORLDS, *map(described, registry.BUILTIN)])


def metric_tables() -> str:
    """All metrics of the catalogue, one table a subject."""
    lines: list[str] = []
    for _, same in itertools.groupby(METRICS, key=lambda entry: entry.help):
        entries = list(same)
        if title := FIRST_OF.get(entries[0].key):
            lines += ["", f"### {title}", "", METRICS_HEAD]
        lines.append(_metric_row(entries))
    return "\n".join(lines).strip()


def _metric_row(entries: Sequence[Metric]) -> str:
    """One row for metrics that say the same from different sources."""
    entry = entries[0]
    rules = list(dict.fromkeys(rule for each in entries for rule in rules_reading(each.key)))
    names = ", ".join(f"`{rule}`" for rule in rules[:MAX_RULES])
    more = f" and {len(rules) - MAX_RULES} more" if len(rules) > MAX_RULES else ""
    name = next((each.name for each in entries if each.name), metric(entry.key).name)
    key = ", ".join(f"`{each.key}`" for each in entries)
    cells = [name, key, entry.unit, entry.good, entry.help, names + more]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def rules_reading(key: str) -> list[str]:
    """The alarm rules that judge or confirm by a metric, in their usual order."""
    sources = {
        key,
        *(made for made, stored in SOURCES.items() if {key, f"{key}_high"} & set(stored)),
    }
    channels = {spec.name for spec in SPECS if sources & set(spec.keys)}
    return [rule.name for rule in ALL_RULES if channels & {*rule.needs, *rule.confirms}]


def rule_table() -> str:
    """The alarms: what raises each, what makes it critical, and which metrics it needs."""
    lines = ["| rule | raised by | critical with | needs |", "| --- | --- | --- | --- |"]
    for rule in ALL_RULES:
        needs = in_table(logged_keys(rule.needs))
        lines.append(f"| {rule.name} | {rule.raised_by} | {rule.critical_with} | {needs} |")
    return "\n".join(lines)


def in_table(keys: Sequence[str]) -> str:
    """Keys as a cell: the families of reasoning are one entry."""
    families = (re.sub(r"^info/(?:first_turn|all_turns)/", "info/FAMILY/", key) for key in keys)
    named = (re.sub(r"^gradient/\w+/", "gradient/TERM/", key) for key in families)
    return ", ".join(f"`{key}`" for key in dict.fromkeys(named))


def findings_tables() -> str:
    """All claims and arms of the page Findings, from its record."""
    sys.path.insert(0, str(BENCHMARKS))
    from findings.claims import CLAIMS
    from findings.page import judged, tables
    from findings.training import RECORD, Record

    record = Record(RECORD)
    return tables(record, [judged(claim, record) for claim in CLAIMS])


def memory_table(name: str) -> str:
    """A table of the memory estimate on the page Hardware."""
    sys.path.insert(0, str(BENCHMARKS))
    import hardware

    return hardware.TABLES[name]()


def cures_table(name: str) -> str:
    """A long table of the page Cures, from its records."""
    return cures.tables(Records())[name].markdown()


def columns_of_the_store() -> str:
    """The tables of `docs/store.md`."""
    parts = []
    for table in schema.TABLES.values():
        rows = [f"| `{c.name}` | `{c.type}` | {c.doc} |" for c in table.columns]
        parts.append(
            f"### {table.name}\n\n{table.doc}\n\n| column | type | meaning |\n| --- | --- | --- |\n"
            + "\n".join(rows)
        )
    return "\n\n".join(parts) + "\n"


TABLES: Mapping[str, Callable[[], str]] = {
    "metrics": metric_tables,
    "columns": columns_of_the_store,
    "rules": rule_table,
    "findings": findings_tables,
    **{f"cures_{name}": partial(cures_table, name) for name in cures.BUILT},
    **{f"memory_{name}": partial(memory_table, name) for name in ("shapes", "gpu", "ranks", "cpu")},
}
