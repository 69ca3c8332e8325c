"""The columns that a table of runs can have, by the names that filters, addresses and people use.

A column is one of three things: something that every run has (`status`), a setting by its dotted
name (`optim.lr`), or a number of a metric: `policy/entropy` is its last value and
`max(policy/entropy)` its highest. A short name that only one of them ends in means that one (`lr`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import SHARE
from echoscope.store.query.metric_keys import SUCCESS_RATE

from ...page.problems import Problem

Kind = Literal["text", "number", "flag", "moment"]
Source = Literal["run", "setting", "metric"]
EVALUATED = "eval/success_rate"
"""Stands for the success of a run's evaluation over all of its tasks, whatever those are called."""
STATS: Mapping[str, str] = {
    "last": "last value",
    "recent": "mean of the last 10 values",
    "best": "best value",
    "max": "highest value",
    "min": "lowest value",
}
"""What a filter calls a number of a metric -> what it is."""
_CALL = re.compile(r"(?P<stat>[a-z]+)\((?P<of>.+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsColumn:
    """One column. Names of settings and metrics come from files: hostile."""

    name: str
    label: str
    """The heading."""
    source: Source
    kind: Kind = "text"
    """Of a setting it is not known before its values are."""
    help: str = ""
    unit: str = ""
    key: str = ""
    """Of a metric."""
    stat: str = "last"

    @property
    def is_share(self) -> bool:
        return self.unit == SHARE


def _run(name: str, label: str, help: str, kind: Kind = "text") -> RunsColumn:
    return RunsColumn(name=name, label=label, source="run", kind=kind, help=help)


_success = partial(RunsColumn, source="metric", kind="number", unit=SHARE)

OF_EVERY_RUN: Mapping[str, RunsColumn] = {
    column.name: column
    for column in (
        _run("run", "Run", "Name of the run's folder. A click opens the run."),
        _run("status", "Status", "Whether the trainer goes on, and if not, how it ended."),
        _run("verdict", "Verdict", "What the run's metrics say so far: healthy, collapsed, ..."),
        _run(
            "since", "Since step", "The step at which the problem of the verdict began.", "number"
        ),
        _run("problem", "Problem", "The most serious problem that the verdict names."),
        _run("step", "Step", "The last step that is stored.", "number"),
        _run("steps", "of", "Planned number of steps.", "number"),
        _success(
            name="success",
            label="Training success",
            key=SUCCESS_RATE,
            help="Share of the training episodes that succeed, at the last step. It is noisy: "
            "recent(success) is the mean of the last 10 steps.",
        ),
        _success(
            name="eval_success",
            label="Evaluation success",
            key=EVALUATED,
            help="Share of the fixed evaluation tasks that are solved, at the last evaluation.",
        ),
        _run("history", "History", "Training success over all steps."),
        _run("alarm", "Worst open alarm", "The most serious alarm that is open."),
        _run("env", "Environment", "The environments that the run trains on or plays."),
        _run("algo", "Algorithm", "Kind of the advantage, and of the loss unless it clips."),
        _run("origin", "Written by", "Who wrote the run: our trainer, a recorder, an import, ..."),
        _run("trainer", "Trainer", "Another trainer that made the run."),
        _run("branched", "Branched from", "The run and the step that the run goes on from."),
        _run("base_model", "Base model", "The model that the training began from."),
        _run("started", "Started", "When the run began, by the clock of this machine.", "moment"),
        _run("age_h", "Age (h)", "Hours since the run began.", "number"),
        _run("duration_h", "Duration (h)", "Hours from the start to the last step.", "number"),
        _run("tags", "Tags", "Of the configuration, and those that people gave."),
        _run("note", "Note", "What somebody noted."),
        _run("pinned", "Pinned", "Pinned runs come first.", "flag"),
    )
}
NOT_SORTED = ("history",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnCatalogue:
    """The columns that the runs of a root can have."""

    settings: tuple[str, ...]
    """Sorted."""
    metrics: tuple[str, ...]
    """Keys, sorted."""
    differing: tuple[str, ...]
    """Settings that have several values among the runs, those with the fewest values first."""

    @property
    def other_settings(self) -> list[str]:
        """Those that do not differ."""
        differing = set(self.differing)
        return [name for name in self.settings if name not in differing]

    def column(self, name: str) -> RunsColumn:
        """The column of a name, which may be short.

        Raises:
            Problem: there is none of the name, or several; it lists near ones.
        """
        call = _CALL.fullmatch(name)
        if call is not None and call["stat"] in STATS:
            return self._number(call["stat"], call["of"])
        if call is not None:
            raise Problem(
                f"{call['stat'][:40]}() is no number of a metric; there are "
                f"{', '.join(f'{stat}()' for stat in STATS)}"
            )
        full = self._full_name(name)
        if full in OF_EVERY_RUN:
            return OF_EVERY_RUN[full]
        if full in self.settings:
            return RunsColumn(name=full, label=full, source="setting", help=f"The setting {full}.")
        return self._number("last", full)

    def names(self) -> list[str]:
        """Of every column, in the order of a menu: of runs, settings that differ, metrics, all."""
        bests = [f"best({key})" for key in self.metrics if metric(key).good in ("up", "down")]
        recents = [f"recent({'success' if key == SUCCESS_RATE else key})" for key in self.metrics]
        numbers = [*self.metrics, *bests, *recents]
        return [*OF_EVERY_RUN, *self.differing, *numbers, *self.other_settings]

    def near(self, name: str) -> list[str]:
        """Names that may be meant by one that does not exist, three at most."""
        every = [*OF_EVERY_RUN, *self.settings, *self.metrics]
        by_end: dict[str, list[str]] = {}
        for full in every:
            by_end.setdefault(_end(full).lower(), []).append(full)
        close = difflib.get_close_matches(name.lower(), [*by_end], n=3, cutoff=0.6)
        whole = difflib.get_close_matches(name, every, n=3, cutoff=0.6)
        near = [*whole, *(full for end in close for full in by_end[end])]
        return list(dict.fromkeys(near))[:3]

    def _number(self, stat: str, of: str) -> RunsColumn:
        key = of if of in self.metrics else self._full_name(of, only_metrics=True)
        fixed = OF_EVERY_RUN.get(key)
        entry = metric(fixed.key if fixed else key)
        label = fixed.label if fixed else entry.name
        return RunsColumn(
            name=f"{stat}({fixed.name if fixed else key})" if stat != "last" or fixed else key,
            label=label if stat == "last" else f"{label}, {_HEADINGS[stat]}",
            source="metric",
            kind="number",
            unit=fixed.unit if fixed else entry.unit,
            key=fixed.key if fixed else key,
            stat=stat,
            help=f"{fixed.help if fixed else entry.help} [{STATS[stat]} of {key}]".strip(),
        )

    def _full_name(self, name: str, *, only_metrics: bool = False) -> str:
        """The full name that a name, short or whole, stands for."""
        fixed = {n for n, c in OF_EVERY_RUN.items() if not only_metrics or c.source == "metric"}
        settings = () if only_metrics else self.settings
        for whole in (fixed, settings, self.metrics):
            if name in whole:
                return name
        lower = name.lower()
        for some in (fixed, settings, self.metrics):
            ends = [full for full in some if full.lower() == lower or _ends_in(full, lower)]
            if len(ends) == 1:
                return ends[0]
            if ends:
                candidates = ", ".join(sorted(ends)[:6])
                raise Problem(
                    f"{name[:80]!r} may be any of these: {candidates}. Write the whole name."
                )
        near = self.near(name)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        what = "metric" if only_metrics else "column"
        raise Problem(f"there is no {what} {name[:80]!r}{hint}")


_HEADINGS: Mapping[str, str] = {"recent": "mean of 10", "best": "best", "max": "max", "min": "min"}


def _end(name: str) -> str:
    return re.split(r"[./]", name)[-1]


def _ends_in(full: str, end: str) -> bool:
    return full.lower().endswith((f".{end}", f"/{end}"))
