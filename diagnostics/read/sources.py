"""Open whatever can be diagnosed: a table, a stored run, or a metrics file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from echoscope.store.records import parse_trajectory_id
from echoscope.text.amounts import listed, percent

from ..judge.advice.actions import trainer_of
from ..judge.advice.situation import Situation, situation_of
from ..judge.record import Shown
from ..measure.text.sample import MAX_TRAJECTORIES
from .foreign_names import Meaning
from .metrics_file import read_metrics
from .names import is_read
from .records import AnswersError, MetricsFileError
from .rollouts import no_rollouts
from .runs import read_runs
from .table import MetricTable, newest_payload, steps_with_groups, table_of_run
from .wandb_address import is_address, read_address

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

MAX_SHOWN = 6

Rescore = Callable[[MetricTable, "RunReader"], MetricTable]
"""Adds to a run's table what a model at hand says of its rollouts (see `rescoring.py`)."""

FINDINGS: Mapping[str, tuple[str, ...]] = {
    "FORMAT_COLLAPSE": ("malformed",),
    "TEMPLATE_COLLAPSE": ("template", "duplicates"),
    "LOW_ENTROPY_COLLAPSE": ("duplicates", "template"),
    "ECHO_TRAP": ("duplicates", "echo", "loop"),
    "DEGENERATE_TEXT": ("loop",),
    "ENTROPY_EXPLOSION": ("malformed",),
    "REWARD_WITHOUT_REASONING": ("disagreement",),
}
"""Which of the text's exemplars show a rule's finding."""


LEAST_SHARED = 0.25
"""A smaller part of the reasonings is no template worth naming."""


def template_words(template: str, share: float) -> str:
    """What part of the reasonings shares one template.

    >>> template_words("No idea. I guess ___.", 0.39)
    '39 % of the reasonings of the first turns share one template: "No idea. I guess ___.".'
    """
    part = f"{percent(share)} of the reasonings of the first turns"
    return f'{part} share one template: "{template}".'


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibits:
    """Places in trajectories, and the template they share if there is one."""

    places: tuple[Shown, ...] = ()
    template: str = ""
    """A sentence with its slots, and how many of the reasonings of the first turns it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A source ready to be judged."""

    table: MetricTable
    run_id: str = ""
    name: str = "RUN"
    reader: RunReader | None = field(default=None, repr=False)
    situation: Situation = field(default_factory=Situation, repr=False)
    """What advice knows of the run."""

    def exemplars(self, rules: Iterable[str], upto: int | None = None) -> Exhibits:
        """Trajectories that show what the rules found, as of a step: one of each prompt.

        They are those that were stored with the run, so that every page names the same template
        with the same share.

        Args:
            rules: Names of alarm rules.
            upto: The last step to look at; None for the last one stored.
        """
        findings = list(dict.fromkeys(f for rule in rules for f in FINDINGS.get(rule, ())))
        if self.reader is None or not findings:
            return Exhibits()
        from ..measure.text.report import read_record

        stored = read_record(newest_payload(self.reader, "text", upto))
        places: dict[str, Shown] = {}
        prompts: dict[str, str] = {}
        for e in (exemplar for name in findings for exemplar in stored.exemplars.get(name, ())):
            if e.trajectory_id not in prompts:
                prompts |= _prompts_beside(self.reader, e.trajectory_id)
            places.setdefault(prompts.get(e.trajectory_id, e.trajectory_id), e)
        pattern, template = stored.template, ""
        if pattern is not None and pattern.match_frac >= LEAST_SHARED:
            template = template_words(pattern.text, pattern.match_frac)
        return Exhibits(
            places=tuple(places.values())[:MAX_SHOWN],
            template=template if "template" in findings else "",
        )


def _prompts_beside(reader: RunReader, trajectory_id: str) -> dict[str, str]:
    """Trajectory -> its prompt, of the step of a trajectory; empty where the id names no step."""
    try:
        rows = reader.listing(parse_trajectory_id(trajectory_id)[1])
    except ValueError:
        return {}
    return {str(row["id"]): str(row["prompt_key"]) for row in rows.to_pylist()}


def _is_stored_run(path: Path) -> bool:
    if not path.is_dir():
        return False
    from echoscope.store.log.layout import Layout  # a single file does without pyarrow

    return Layout(path).is_run


def open_source(
    source: MetricTable | RunReader | str | Path,
    mapping: Mapping[str, Meaning] | None = None,
    rescore: Rescore | None = None,
    run: str = "",
) -> Opened:
    """A table of metrics from any source (see `verdict.diagnose`)."""
    if isinstance(source, MetricTable):
        return _of_table(source)
    if isinstance(source, str | Path):
        path = Path(source)
        if problem := no_rollouts(path, mapping):
            raise MetricsFileError(problem)
        if not _is_stored_run(path):
            if rescore is not None:
                raise MetricsFileError(f"{source}: is no stored run, so it has nothing to score")
            return _of_table(_foreign_table(source, mapping, run))
        from echoscope.store.reader import open_run  # metrics alone do without

        source = open_run(path)
    table = table_of_run(source, mapping)
    for name in mapping or ():
        if name not in table.raw:
            raise MetricsFileError(
                f"{source.path}: --map names the column {name!r}, which the run has not"
            )
    table = replace(table, notes=(*table.notes, *_notes_of_import(source)))
    if rescore is not None:
        table = rescore(table, source)
    return opened_run(source, table)


def opened_run(run: RunReader, table: MetricTable) -> Opened:
    """A stored run whose metrics were read, or means of them."""
    from echoscope.store.log.layout import shown_path

    name = shlex.quote(shown_path(run.path))
    return Opened(
        table=table, run_id=run.run_id, name=name, reader=run, situation=situation_of(run, name)
    )


def _of_table(table: MetricTable) -> Opened:
    trainer = trainer_of(list(table.sources.values()))
    understood = [key for key in table.sources if is_read(key)]
    num_own = sum(table.sources[key] == key for key in understood)
    has_own_keys = 2 * num_own > len(understood)
    return Opened(table=table, situation=Situation(trainer=trainer, has_own_keys=has_own_keys))


def _foreign_table(
    source: str | Path, mapping: Mapping[str, Meaning] | None, run: str
) -> MetricTable:
    """The metrics at an address, of a file, or of a folder's one run or the run that is named."""
    if is_address(source):
        return read_address(str(source), mapping).table
    path = Path(source)
    if path.is_dir():
        return _of_folder(path, mapping, run)
    try:
        return read_metrics(path, mapping, run=run)
    except AnswersError:
        raise
    except MetricsFileError as error:
        from .unread import file_unread  # knows the formats of rollouts, which metrics do without

        raise MetricsFileError(file_unread(path, str(error))) from None


def _of_folder(folder: Path, mapping: Mapping[str, Meaning] | None, run: str) -> MetricTable:
    from echoscope.store.log.layout import Layout

    from .unread import file_sentences, folder_unread, passed_over

    inside = sorted(folder.iterdir())
    runs = [child.name for child in inside if Layout(child).is_run]
    if runs:
        raise MetricsFileError(f"{folder}: holds runs; name one of them: {listed(runs, 3)}")
    if not inside:
        raise MetricsFileError(f"{folder}: is empty")
    metrics = read_runs(folder, mapping)
    passed = passed_over(folder, metrics)
    chosen = metrics.chosen(folder, run) if metrics.runs else None
    if chosen is None:
        raise MetricsFileError(folder_unread(folder, metrics.refused, passed))
    notes = file_sentences((metrics.refused,), passed)
    return replace(chosen.table, notes=(*chosen.table.notes, *notes))


def _notes_of_import(reader: RunReader) -> list[str]:
    """How much of the text an import has measured."""
    if not isinstance(reader.info().config.get("imported"), Mapping):
        return []
    steps = reader.sql("SELECT count(*) AS number FROM diagnostics WHERE kind = 'text'")
    number = int(steps.column("number")[0].as_py())
    share = f"text of {number} of {len(steps_with_groups(reader))} steps was measured"
    return [f"{share}, at most {MAX_TRAJECTORIES} trajectories of each"] if number else []
