"""What the site builds: the page of all worlds, and tables from the code and from records.

A page marks the place of a table by a comment, such as `<!-- table: metrics -->`.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from echoscope.core.config.settings import RunConfig
from echoscope.diagnostics.bench.cures import tables as cures
from echoscope.diagnostics.bench.cures.records import Records
from echoscope.diagnostics.catalogue import METRICS, metric
from echoscope.diagnostics.judge.alarms import ALL_RULES
from echoscope.diagnostics.judge.courses.channels import SOURCES, SPECS
from echoscope.diagnostics.judge.rules.metrics_needed import logged_keys
from echoscope.diagnostics.metric_entry import Metric
from echoscope.diagnostics.tools.setting_errors import models_in
from echoscope.envs import registry
from echoscope.envs.checks.description import described
from echoscope.store import schema
from echoscope.text.amounts import BOUNDS

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
SETTINGS_HEAD = "| setting | type | default | live | meaning |\n| --- | --- | --- | --- | --- |"
WRITTEN_BY_RUNS = ("branched_from", "recipe")
"""Settings that nobody gives; the page leaves out what they hold."""
TYPES = {"string": "text", "boolean": "true or false", "array": "list", "object": "mapping"}
"""Types of a JSON schema, as the page of settings calls them."""
PLACE = re.compile(r"<!-- table: (\w+) -->")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def on_files(files: Files, config: Any) -> Files:
    """Add the page of all worlds."""
    files.append(File.generated(config, "worlds.md", content=worlds_page()))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put each table in its place."""
    return PLACE.sub(lambda marker: TABLES[marker[1]](), markdown)


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
    return table_row(cells)


def rules_reading(key: str) -> list[str]:
    """The alarm rules that judge or confirm by a metric, in their usual order."""
    sources = {
        key,
        *(made for made, stored in SOURCES.items() if {key, f"{key}_high"} & set(stored)),
    }
    channels = {spec.name for spec in SPECS if sources & set(spec.keys)}
    return [rule.name for rule in ALL_RULES if channels & {*rule.needs, *rule.confirms}]


def settings_tables() -> str:
    """All settings of a run, one table for each section of the configuration."""
    paths: dict[type[BaseModel], str] = {}
    fields = RunConfig.model_fields
    sections = [name for name in fields if models_in(fields[name].annotation)]
    sections = [name for name in sections if name not in WRITTEN_BY_RUNS]
    rows = setting_rows([RunConfig], "", paths, [name for name in fields if name not in sections])
    parts = ["### The run", "\n".join([SETTINGS_HEAD, *rows])]
    for name in sections:
        kinds = models_in(fields[name].annotation)
        parts.append(f"### {name}")
        if len(kinds) == 1:
            parts.append(re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", docstring(kinds[0])))
        paths |= {model: f"{name}.kind={kind}" for model in kinds for kind in kinds_of(model)}
        rows = setting_rows(kinds, f"{name}.", paths, field_names(kinds))
        parts.append("\n".join([SETTINGS_HEAD, *rows]))
    return "\n\n".join(filter(None, parts))


def field_names(kinds: Sequence[type[BaseModel]]) -> list[str]:
    """Names of the settings of a section, `kind` before the others."""
    names = dict.fromkeys(name for model in kinds for name in model.model_fields)
    return sorted(names, key=lambda name: name != "kind")


def docstring(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def setting_rows(
    kinds: Sequence[type[BaseModel]],
    prefix: str,
    paths: dict[type[BaseModel], str],
    names: Sequence[str],
) -> Iterator[str]:
    """A row for each named field of a section, after it the rows of the settings that it holds.

    Args:
        kinds: the model of the section, or one model for each `kind` that it may have.
        prefix: what stands before the name in a setting's path.
        paths: where each model has its rows; a model without an entry gets its rows here.
    """
    for name in names:
        path = prefix + name
        if name == "kind":
            choices = ", ".join(f"`{kind}`" for model in kinds for kind in kinds_of(model))
            meaning = " ".join(
                f"{' or '.join(kinds_of(model))}: {docstring(model)}" for model in kinds
            )
            default = RunConfig.model_fields[prefix[:-1]].get_default(call_default_factory=True)
            yield table_row([f"`{path}`", choices, f"`{default.kind}`", "", meaning])
            continue
        having: dict[tuple[str, ...], list[str]] = {}
        for model in kinds:
            if name in model.model_fields:
                having.setdefault(setting_cells(model, name, paths), []).extend(kinds_of(model))
        for (*cells, meaning), with_kinds in having.items():
            is_for_all = len(having) == 1 and all(name in model.model_fields for model in kinds)
            only = "" if is_for_all else f" Only with kind {' or '.join(with_kinds)}."
            yield table_row([f"`{path}`", *cells, meaning + only])
        annotation = next(m.model_fields[name].annotation for m in kinds if name in m.model_fields)
        held, entry = models_held(annotation)
        if held and held[0] not in paths and name not in WRITTEN_BY_RUNS:
            paths |= dict.fromkeys(held, path)
            yield from setting_rows(held, f"{path}.{entry}", paths, field_names(held))


def models_held(annotation: Any) -> tuple[list[type[BaseModel]], str]:
    """The models of a setting or of a list's entries, and how the path goes on to their fields."""
    if models := models_in(annotation):
        return models, ""
    of_entries = [model for part in get_args(annotation) for model in models_in(part)]
    return of_entries, "0."


def kinds_of(model: type[BaseModel]) -> list[str]:
    """Values of `kind` that stand for a model."""
    kind = model.model_fields.get("kind")
    return [] if kind is None else list(get_args(kind.annotation))


def setting_cells(
    model: type[BaseModel], name: str, paths: Mapping[type[BaseModel], str]
) -> tuple[str, ...]:
    """Type, default, whether the setting is live, and its meaning."""
    field = model.model_fields[name]
    schema_of_field = model.model_json_schema()["properties"][name]
    held, _ = models_held(field.annotation)
    default = "" if field.is_required() else field.get_default(call_default_factory=True)
    text = default if isinstance(default, str) and default else json.dumps(default, default=list)
    meaning = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", field.description or docstring(held[0]))
    if held and held[0] in paths:
        meaning += f" Its settings are those of `{paths[held[0]]}`."
    return (
        type_words(schema_of_field),
        "required" if field.is_required() else f"`{text}`" * (not isinstance(default, BaseModel)),
        "yes" * bool(schema_of_field.get("live")),
        meaning,
    )


def type_words(values: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows, in words."""
    if options := values.get("anyOf"):
        return "; or ".join(map(type_words, options))
    if choices := values.get("enum", [values["const"]] if "const" in values else []):
        return ", ".join(f"`{choice}`" for choice in choices)
    name = values.get("type", "object")
    limits = [
        f"{text} {json.dumps(values[rule]).removesuffix('.0')}"
        for rule, text in BOUNDS.items()
        if rule in values
    ]
    return ", ".join([TYPES.get(name, name), *limits])


def table_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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
    "settings": settings_tables,
    "rules": rule_table,
    "findings": findings_tables,
    **{f"cures_{name}": partial(cures_table, name) for name in cures.BUILT},
    **{f"memory_{name}": partial(memory_table, name) for name in ("shapes", "gpu", "ranks", "cpu")},
}
