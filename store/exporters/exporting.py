"""A run, or a part of it, as a file or folder of another tool.

What is written appears when it is complete, or not at all: it is written beside its place and then
renamed. Nothing is ever written into the folder of a run.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from echoscope.text.amounts import counted, step_words
from echoscope.text.did_you_mean import did_you_mean

from ..errors import StoreError
from ..log.durable import new_id, sync_path
from ..log.layout import Layout, shown_path
from ..reader import RunReader, open_run
from .format import ABOUT, SPLITS, ExportError, ExportFormat, Options
from .formats import duckdb_file, inspect_log, lessons, messages, tables
from .source import Progress, RunSource

FORMATS: tuple[ExportFormat, ...] = (
    messages.MESSAGES,
    lessons.SFT,
    lessons.DPO,
    inspect_log.INSPECT,
    duckdb_file.DUCKDB,
    tables.CSV,
)


def format_named(name: str) -> ExportFormat:
    """The format with this name.

    Raises:
        ExportError: there is none.
    """
    if form := next((each for each in FORMATS if each.name == name), None):
        return form
    hint = did_you_mean(name, ABOUT)
    more = "" if hint.endswith("?") else " (`echoscope export --help` says what each is)"
    raise ExportError(f"--to {name!r} is no format{hint}{more}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export wrote, and what it could not."""

    run: Path
    """The run's folder."""
    path: Path
    format: str
    num_rows: int
    noun: str
    """What a row is called."""
    num_all: int
    """Episodes that can be read, up to `cut`."""
    taken: Mapping[str, int]
    """Split of the store -> episodes of it that were written."""
    first_step: int
    last_step: int
    """Of the episodes that were written."""
    is_live: bool
    """The run was running: the export ends at `cut`."""
    cut: int
    """The last step that was finished when the export began; -1 before the first."""
    skipped: Mapping[str, int]
    """Why episodes that were asked for were left out, a clause -> how many."""
    missing: tuple[str, ...]
    """What is missing, because a file of the run is damaged or gone: a sentence for each file."""
    leaves_out: str
    """What a run may hold and the format does not, in words."""
    notes: tuple[str, ...]


def export_run(
    run: str | Path | RunReader,
    to: str,
    output: str | Path,
    options: Options | None = None,
    *,
    is_overwriting: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the episodes of a run in another tool's format.

    Args:
        run: The run's folder, or a reader of it. It may be live.
        to: Name of a format: `registry.FORMATS`.
        output: A file, or a folder where the format says so. Its parent must exist.
        is_overwriting: Replace a file that is there. A folder is never replaced.
        progress: Called with (episodes, of episodes).

    Raises:
        ExportError: the output is refused, a condition is wrong, or nothing matches it.
        StoreError: no run there, or it cannot be read.
        OSError: the disk refuses; nothing is left behind.
    """
    chosen = format_named(to)
    settings = Options() if options is None else options
    reader = run if isinstance(run, RunReader) else open_run(run)
    target = Path(output)
    _check_target(target, chosen, is_overwriting=is_overwriting)
    _check_options(settings, chosen)
    source = RunSource(
        reader=reader,
        options=settings,
        split=settings.split or chosen.split,
        progress=progress,
    )
    _check_labels(source)
    if not source.chosen.num_rows:
        raise ExportError(_nothing(source))
    is_ranked = settings.best is not None or (chosen.name == "dpo" and not settings.over)
    if is_ranked and (times := source.num_summed()):
        raise ExportError(
            f"{reader.path}: which reply is better is not known: the returns of "
            f"{counted(times, 'episode')} were added up from several reward functions whose "
            "weights the files do not give. Record the run with the trainer's callback, which "
            "knows them, or export all episodes: --to messages"
        )
    temporary = target.with_name(f".{target.name}.{new_id()}.tmp")
    try:
        written = chosen.write(source, temporary)
        if reader.info().attempt != source.info.attempt:
            raise ExportError(
                f"{reader.path}: the run was resumed from a checkpoint while it was exported, so "
                "its steps changed; export it again"
            )
        if not written.num_rows:
            raise ExportError(f"{target}: {_all_left_out(source)}")
        _put(temporary, target)
    except StoreError:
        raise
    except OSError as error:
        raise ExportError(
            f"{target}: cannot be written ({error.strerror or error}); nothing was left behind"
        ) from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)
    counts = source.written()
    steps = [step for step, _ in counts]
    taken = Counter(split for step, split in counts.elements())
    return ExportReport(
        run=reader.path,
        path=target,
        format=chosen.name,
        num_rows=written.num_rows,
        noun=chosen.noun,
        num_all=source.num_all(),
        taken={split: taken[split] for split in SPLITS[source.split] if split in taken},
        first_step=min(steps),
        last_step=max(steps),
        is_live=source.info.status == "running",
        cut=source.cut,
        skipped=dict(source.skipped),
        missing=_missing(source),
        leaves_out=chosen.leaves_out,
        notes=tuple(written.notes),
    )


def _check_target(target: Path, chosen: ExportFormat, *, is_overwriting: bool) -> None:
    parent = target.absolute().parent
    if not parent.is_dir():
        raise ExportError(f"there is no folder {parent}; make it first")
    if target.name in ("", ".", ".."):
        raise ExportError(f"{target} is no name of a file or folder to write; name one with -o")
    if not target.name.endswith(chosen.suffix):
        raise ExportError(
            f"{target} does not end with {chosen.suffix}, and readers of {chosen.name} look for "
            f"that ending: name it {target.with_suffix(chosen.suffix)}"
        )
    resolved = parent.resolve() / target.name
    for folder in (resolved, *resolved.parents):
        if Layout(folder).is_run:
            raise ExportError(
                f"{target} lies inside the run {folder}; nothing but the run itself is written "
                "there: choose a place outside"
            )
    if not os.path.lexists(resolved):
        return
    if resolved.is_symlink() or not resolved.is_file():
        raise ExportError(f"{target} exists and is no regular file; choose another name")
    if chosen.is_folder:
        raise ExportError(f"{target} is a file; {chosen.name} writes a folder: choose another name")
    if not is_overwriting:
        raise ExportError(f"{target} exists; choose another name, or add --overwrite")


def _check_options(options: Options, chosen: ExportFormat) -> None:
    if options.best is not None and options.best < 1:
        raise ExportError(f"--best is {options.best}, but must be 1 or more")
    if not options.margin >= 0:
        raise ExportError(f"--margin is {options.margin}, but must be 0 or more")
    if options.margin and chosen.name != "dpo":
        raise ExportError(f"--margin belongs to --to dpo, not to --to {chosen.name}")
    if options.best is not None and chosen.name == "dpo":
        raise ExportError("--best leaves no worse sibling to pair with; leave it out for --to dpo")
    if options.over and (chosen.name != "dpo" or not options.labels):
        raise ExportError(
            "--over belongs to --to dpo together with --label: --label good --over bad prefers "
            "episodes labelled good to siblings labelled bad"
        )
    first, last = options.first_step, options.last_step
    if first is not None and last is not None and first > last:
        raise ExportError(f"--steps is {first}:{last}, but must not end before it begins")


def _check_labels(source: RunSource) -> None:
    for label in filter(None, (*source.options.labels, source.options.over)):
        if label not in source.notes.labels:
            labels = ", ".join(source.notes.labels) or "none; the page Replay gives labels"
            raise ExportError(
                f"{source.reader.path}: no episode has the label {label!r}. Labels there: {labels}"
            )


def _nothing(source: RunSource) -> str:
    """Why no episode can be exported, and what to do."""
    where = source.reader.path
    if source.cut < 0:
        return (
            f"{where}: the run has not finished a step yet, so there is nothing to export; run the "
            "command again after its first step"
        )
    others = source.select("all").num_rows
    if others:
        return (
            f"{where}: no episode of {source.split} matches, but {others} others do; --split all "
            "exports them"
        )
    if missing := _missing(source):
        return (
            f"{where}: no episode that matches can be read. {' '.join(missing)} "
            f"{way_out_of_damage(where)}"
        )
    if not source.num_all():
        run = shlex.quote(shown_path(where))
        return (
            f"{where}: the run holds metrics but no episodes, so there is nothing to export. To "
            f"copy the metrics use `echoscope mirror {run} --to tensorboard` (or wandb, "
            "trackio); in Python, Run(PATH).metrics() is their table"
        )
    if source.steps[0] > source.cut:
        return f"{where}: there is no step {source.steps[0]}; the run has steps 0 to {source.cut}"
    condition = source.options.where
    does = f"fulfils --where {condition!r}" if condition else "is there"
    asked = step_words(source.steps)
    return f"{where}: no episode of {asked} {does}; the run has steps 0 to {source.cut}"


def _all_left_out(source: RunSource) -> str:
    reasons = "; ".join(
        f"{counted(count, 'episode')}: {reason}" for reason, count in source.skipped.items()
    )
    return (
        f"nothing to write, because every episode was left out ({reasons}). Choose other episodes "
        "with --steps, --split or --where"
    )


def way_out_of_damage(run: Path) -> str:
    """What to do about damaged files of a run."""
    name = shlex.quote(shown_path(run))
    return (
        f"`echoscope runs verify {name}` lists all damage, and `echoscope runs repair {name}` "
        "copies what is intact"
    )


def _missing(source: RunSource) -> tuple[str, ...]:
    """A sentence for each file of the run that had to be left out, or is not as it was written."""
    return tuple(f"{text}." for text in source.reader.warnings)


def _put(temporary: Path, target: Path) -> None:
    """Give what was written its name, once everything is on the disk."""
    for file in temporary.iterdir() if temporary.is_dir() else [temporary]:
        sync_path(file)
    os.replace(temporary, target)
    sync_path(target.absolute().parent)
