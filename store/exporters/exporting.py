"""A run, or a part of it, as a file or folder of another tool.

What is written appears when it is complete, or not at all: it is written beside its place and then
renamed. Nothing is ever written into the folder of a run.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from echoscope.text.amounts import counted

from ..errors import StoreError
from ..log.durable import new_id, sync_folder
from ..log.layout import Layout, shown_path
from ..reader import RunReader, open_run
from .format import (
    FACETS,
    SPLITS,
    ExportError,
    Format,
    Options,
    OutputExistsError,
    Reason,
    SplitChoice,
)
from .registry import format_named
from .source import Choice, Progress, RunSource

MARK = ".echoscope-export.json"
"""In every folder that an export wrote: only such a folder is ever replaced."""


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
    whole: str
    """What the rows are epochs of, counted, for example `152 samples`; empty where they are of
    nothing."""
    taken: Mapping[str, int]
    """Split of the store -> episodes of it that were written."""
    first_step: int
    last_step: int
    """Of the episodes that were written."""
    is_live: bool
    """The run was running: the export ends at `cut`."""
    cut: int
    """The last step that was finished when the export began; -1 before the first."""
    choice: Choice
    """How many episodes there are, and which options left some of them out."""
    split: SplitChoice
    skipped: Mapping[Reason, int]
    """Why episodes that were asked for were left out -> how many."""
    missing: tuple[str, ...]
    """What is missing, because a file of the run is damaged or gone: a sentence for each file."""
    lost: tuple[str, ...]
    """What the run holds and the format does not, in words."""
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
        is_overwriting: Replace the file, or a folder that an export wrote.
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
    _check_target(target, reader.path, chosen, is_overwriting=is_overwriting)
    _check_options(settings, chosen)
    source = RunSource(
        reader=reader,
        options=settings,
        split=settings.split or chosen.split,
        progress=progress,
    )
    if not source.chosen.num_rows:
        raise ExportError(_nothing(source))
    if (settings.best is not None or chosen.name == "dpo") and source.num_summed():
        raise ExportError(_summed(source))
    temporary = target.with_name(f".{target.name}.{new_id()}.tmp")
    try:
        written = chosen.write(source, temporary, settings)
        _check_same_attempt(source)
        if not written.num_rows:
            raise ExportError(f"{target}: {_all_left_out(source)}")
        lost = _lost(source, chosen)
        if chosen.is_folder:
            _mark(temporary, chosen, source)
        _sync(temporary)
        _put(temporary, target)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise ExportError(
            f"{target}: cannot be written ({error.strerror or error}); nothing was left behind"
        ) from error
    finally:
        _remove(temporary)
    counts = source.written()
    steps = [step for step, _ in counts]
    taken = Counter(split for step, split in counts.elements())
    return ExportReport(
        run=reader.path,
        path=target,
        format=chosen.name,
        num_rows=written.num_rows,
        noun=chosen.noun,
        whole=written.whole,
        taken={split: taken[split] for split in SPLITS[source.split] if split in taken},
        first_step=min(steps),
        last_step=max(steps),
        is_live=source.info.status == "running",
        cut=source.cut,
        choice=source.choice,
        split=source.split,
        skipped=dict(source.skipped),
        missing=_missing(source),
        lost=(*lost, *chosen.loses),
        notes=tuple(written.notes),
    )


def _check_target(target: Path, run: Path, chosen: Format, *, is_overwriting: bool) -> None:
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
    place = parent.resolve() / target.name
    for folder in (place, *place.parents):
        if Layout(folder).run_json.is_file():
            raise ExportError(
                f"{target} lies inside the run {folder}; nothing but the run itself is written "
                "there: choose a place outside"
            )
    if not os.path.lexists(place):
        return
    if place.is_symlink():
        raise ExportError(f"{target} is a link; remove it, or choose another name")
    if run.resolve().is_relative_to(place.resolve()):
        raise ExportError(f"{target} holds the run itself; choose another name")
    if chosen.is_folder and not place.is_dir():
        raise ExportError(
            f"{target} is no folder; {chosen.name} writes a folder: choose another name"
        )
    if chosen.is_folder and not (place / MARK).is_file():
        raise ExportError(
            f"{target} is a folder that no export wrote, so an export never replaces it; choose "
            "another name"
        )
    if not chosen.is_folder and place.is_dir():
        raise ExportError(f"{target} is a folder; {chosen.name} writes a file: choose another name")
    if not chosen.is_folder and not place.is_file():
        raise ExportError(f"{target} is no regular file; choose another name")
    if not is_overwriting:
        raise OutputExistsError(target)


def _check_options(options: Options, chosen: Format) -> None:
    if options.best is not None and options.best < 1:
        raise ExportError(f"--best is {options.best}, but must be 1 or more")
    if not options.margin >= 0:
        raise ExportError(f"--margin is {options.margin}, but must be 0 or more")
    if options.margin and chosen.name != "dpo":
        raise ExportError(f"--margin belongs to --to dpo, not to --to {chosen.name}")
    if options.is_keeping_same_actions and chosen.name != "dpo":
        raise ExportError(f"--keep-same-actions belongs to --to dpo, not to --to {chosen.name}")
    if options.form != "messages" and chosen.name != "sft":
        raise ExportError(f"--form belongs to --to sft, not to --to {chosen.name}")
    if options.best is not None and chosen.name == "dpo":
        raise ExportError("--best leaves no worse sibling to pair with; leave it out for --to dpo")
    first, last = options.first_step, options.last_step
    if first is not None and last is not None and first > last:
        raise ExportError(f"--steps is {first}:{last}, but must not end before it begins")


def _summed(source: RunSource) -> str:
    return (
        f"{source.reader.path}: which reply is better is not known: the returns of "
        f"{counted(source.num_summed(), 'episode')} were added up from several reward functions "
        "whose weights the files do not give. Record the run with the trainer's callback, which "
        "knows them, or export all episodes: --to parquet"
    )


def _nothing(source: RunSource) -> str:
    where = source.reader.path
    if source.cut < 0:
        return (
            f"{where}: the run has not finished a step yet, so there is nothing to export; run the "
            "command again after its first step"
        )
    if source.num_other_split:
        other = "eval" if source.split == "train" else "train"
        return (
            f"{where}: no episode of {source.split} matches, but {source.num_other_split} of "
            f"{other} do; --split {other} exports them"
        )
    missing = _missing(source)
    if missing:
        return (
            f"{where}: no episode that matches can be read. {' '.join(missing)} "
            f"{way_out_of_damage(where)}"
        )
    first, last = source.steps
    if first > source.cut:
        return f"{where}: there is no step {first}; the run has steps 0 to {source.cut}"
    if not source.reader.sql("SELECT 1 FROM trajectories LIMIT 1").num_rows:
        run = shlex.quote(shown_path(where))
        return (
            f"{where}: the run holds metrics but no episodes, so there is nothing to export. To "
            f"copy the metrics use `echoscope mirror {run} --to tensorboard` (or wandb, "
            "trackio); in Python, Run(PATH).metrics() is their table"
        )
    kind = {"train": "training ", "eval": "evaluation ", "all": ""}[source.split]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    condition = source.options.where
    does = f"fulfils --where {condition!r}" if condition else "is there"
    return f"{where}: no {kind}episode of {steps} {does}; the run has steps 0 to {source.cut}"


def _all_left_out(source: RunSource) -> str:
    reasons = "; ".join(
        f"{counted(count, 'episode')}: {reason.why}" for reason, count in source.skipped.items()
    )
    options = "".join(f", or change {reason.option}" for reason in source.skipped if reason.option)
    return (
        f"nothing to write, because every episode was left out ({reasons}). Choose other episodes "
        f"with --steps, --split or --where{options}"
    )


def way_out_of_damage(run: Path) -> str:
    """What to do about damaged files of a run."""
    name = shlex.quote(shown_path(run))
    return (
        f"`echoscope runs verify {name}` lists all damage, and `echoscope runs repair {name}` "
        "copies what is intact"
    )


def _check_same_attempt(source: RunSource) -> None:
    """A run that went back to a checkpoint meanwhile has other episodes under the same names."""
    now = source.reader.info()
    if now.attempt != source.info.attempt:
        raise ExportError(
            f"{source.reader.path}: the run was resumed from a checkpoint while it was exported, "
            "so its steps changed; export it again"
        )


def _lost(source: RunSource, chosen: Format) -> tuple[str, ...]:
    """What the run holds and the format has no place for, in words."""
    if chosen.is_lesson:
        return ()
    lacking = [name for name in FACETS if name not in chosen.holds]
    words = []
    for name in lacking:
        sentence, query = FACETS[name]
        if source.reader.sql(f"SELECT 1 FROM ({query}) LIMIT 1").num_rows:
            words.append(sentence)
    return tuple(words)


_ROWS_OF = {
    "trajectories": "{count} episode{s} of {steps} {are} missing",
    "turns": "{count} turn{s} of {steps} {are} missing",
    "tokens": "The tokens of {count} turn{s} of {steps} are missing",
}
"""What is missing where a file of a table is, in words."""
_ROWS = "{count} row{s} of {table} of {steps} {are} missing"


def _missing(source: RunSource) -> tuple[str, ...]:
    """A sentence for each file of the run that had to be left out, or is not as it was written."""
    files = source.missing_files()
    sentences = []
    for file in files:
        first, last = file.first_step, file.last_step
        what = _ROWS_OF.get(file.table, _ROWS).format(
            count=file.num_rows,
            s="" if file.num_rows == 1 else "s",
            are="is" if file.num_rows == 1 else "are",
            table=file.table,
            steps=f"step {first}" if first == last else f"steps {first} to {last}",
        )
        sentences.append(f"{what} ({file.path}: {file.why}).")
    warnings = source.reader.warnings  # first: asking for them may find more damage
    left_out = {f"{file.path}: " for file in source.reader.missing_files()}
    others = [text for text in warnings if not text.startswith(tuple(left_out))]
    return (*sentences, *(f"{text}." for text in others))


def _mark(folder: Path, chosen: Format, source: RunSource) -> None:
    content = {
        "format": chosen.name,
        "run": source.info.run_id,
        "last_step": source.cut,
        "exported_at": time.time(),
    }
    (folder / MARK).write_text(json.dumps(content) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    """Everything is on the disk before it gets its name."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _put(temporary: Path, target: Path) -> None:
    """Give what was written its name; a folder that was there goes only then."""
    old = None
    if target.is_dir():
        old = target.with_name(f".{target.name}.{new_id()}.old")
        os.rename(target, old)
    try:
        os.replace(temporary, target)
    except OSError:
        if old is not None:
            os.rename(old, target)
        raise
    sync_folder(target.absolute().parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
