"""A run at a Python prompt: `echoscope.Run("runs/demo")`.

`Run` is for people, and `open_run` for programs: `Run` adds pandas, figures, the verdict and files
of other trainers to what a reader answers. `.reader` is that reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import diagnose as judge
from echoscope.diagnostics.read.sources import open_source as judged_source
from echoscope.store.errors import QueryError
from echoscope.store.query.alarms import histories
from echoscope.store.query.sql_process import SqlLimits
from echoscope.store.reader import RunReader
from echoscope.store.steer.settings import flat, live_settings

from . import tables
from .card import Episode, RunCard, RunVerdict, card_of
from .opening import open_source

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from echoscope.dashboard.charts.run_figures import RunFigures
    from echoscope.dashboard.data.curves import AxisKind

MOST_TO_READ = 4_000
"""Turns that a card has judged by itself where their text was not measured yet: about 3 s."""
_HAS_TEXT = """
SELECT count(*) > 0 FROM metrics WHERE starts_with(key, 'text/') OR starts_with(key, 'info/')
"""
_ALARM_COLUMNS = (
    *("rule", "severity", "is_open", "raised_step", "onset_step", "cleared_step"),
    *("metric", "value", "baseline", "message", "advice", "alarm_id"),
)


class Run:
    """One run, live or finished: what it is, its numbers, its episodes and its verdict.

    A cell that ends with a run shows a card. Every answer is as new as the last acknowledged step;
    nothing here changes the run or disturbs its trainer.

    Args:
        path: A run's folder; or a file or folder that another trainer wrote: rollouts, or metrics.
            Those are imported into a folder that is deleted with this object. Or
            `wandb:ENTITY/PROJECT/RUN` (docs/sinks.md).
        run: Which run's metrics to take, where such files hold those of several.
        names: Column of a metrics file -> the metric that it is, where its name does not say so:
            `{"ent": "policy/entropy"}`.

    Raises:
        NotARunError: nothing is there, or a folder of several runs.
        ImportingError: files that nothing here reads.
        StoreError: the run cannot be read.

    Examples:
        >>> run = Run("runs/demo")
        >>> run.name, run.status, run.last_step
        ('demo', 'finished', 29)
    """

    def __init__(
        self, path: str | Path, *, run: str = "", names: Mapping[str, str] | None = None
    ) -> None:
        self._source = open_source(path, run, names)
        self._judged: tuple[Any, Verdict] | None = None

    # --- what it is

    @property
    def reader(self) -> RunReader:
        """The reader behind it: SQL as Arrow tables, full records, tokens (see docs/store.md)."""
        return self._source.reader

    @property
    def path(self) -> Path:
        """The run's folder; of an import, one that is deleted with this object."""
        return self.reader.path

    @property
    def name(self) -> str:
        """Of the run's folder, or of the file or folder that was imported."""
        source = self._source
        return (source.path.resolve() if source.folder else source.reader.path).name

    @property
    def status(self) -> str:
        """live, waiting, paused, stale, finished, stopped, failed, interrupted or crashed."""
        return self.reader.status().status.value

    @property
    def last_step(self) -> int:
        """-1 before the first acknowledged step."""
        return self.reader.info().last_step

    @property
    def warnings(self) -> list[str]:
        """What could not be read, what an import skipped, and what it had to guess."""
        return [*self.reader.warnings, *self._source.notes]

    def refresh(self) -> Run:
        """Catch up with the trainer; `run.refresh()` at the end of a cell shows the new card.

        Other answers catch up by themselves. Of another trainer's files, those rows are imported
        that were added since.
        """
        self._source.refresh()
        return self

    # --- numbers

    def metrics(self, keys: str | Sequence[str] | None = None) -> pd.DataFrame:
        """The metrics of the run: a row a step (index `step`), a column a metric.

        `.attrs["units"]` and `.attrs["names"]` say what the columns are.

        Args:
            keys: Names or patterns (`"eval/*"`); None for all. docs/metrics-guide.md explains them.

        Raises:
            QueryError: a metric that the run does not have, or too many numbers at once.

        Examples:
            >>> Run("runs/demo").metrics("policy/*")["policy/entropy"].tolist()[:2]
            [1.0, 0.5]
            >>> Run("runs/demo").metrics("policy/entropy").attrs["units"]
            {'policy/entropy': 'nats per token'}
        """
        return tables.metrics_of(self.reader, tables.keys_meant(keys, self.reader.metric_keys()))

    def trajectories(
        self,
        where: str | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pd.DataFrame:
        """The episodes that match a condition, by step: one row each.

        Args:
            where: An SQL condition over the columns of `trajectories` (docs/store.md). `is_` may be
                left out: `success` is `is_success`.
            columns: Names; "all" for all; None for those without long texts.
            limit: Rows at most. Without it: 100,000, and a warning where there are more.

        Raises:
            QueryError: not a condition that only reads, or a column that does not exist.

        Examples:
            >>> found = Run("runs/demo").trajectories("success and step > 27", columns="id, step")
            >>> found["id"].tolist()
            ['t00000028-00000', 't00000028-00002', 't00000029-00000', 't00000029-00002']
            >>> Run("runs/demo").turns("stepp > 27")
            Traceback (most recent call last):
            echoscope.store.errors.QueryError: turns have no column 'stepp'; did you mean 'step'?
        """
        rows = tables.TRAJECTORIES
        return tables.rows_of(self.reader, rows, where, columns, limit, named=self.name)

    def turns(
        self,
        where: str | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pd.DataFrame:
        """The turns that match a condition, by step and episode: one row each.

        As `trajectories`. A turn has the columns of `turns` (docs/store.md); `reasoning` and
        `answer`, cut out of the response; and of its episode `split`, `env_id`, `tag`,
        `group_index`, `sibling_index`, `is_success` and `episode_return`.

        Examples:
            >>> run = Run("runs/demo")
            >>> run.turns("success and turn = 0", columns=["reasoning"], limit=1)["reasoning"][0]
            'I go up.'
        """
        return tables.rows_of(self.reader, tables.TURNS, where, columns, limit, named=self.name)

    def query(
        self, sql: str, params: Sequence[Any] | None = None, *, limits: SqlLimits = tables.LIMITS
    ) -> pd.DataFrame:
        """The answer to one SELECT over the tables of the run (docs/store.md).

        The query can only read, and reaches no other file. A process of its own answers it, so
        that it ends with its time and its memory, and with an interrupt of the cell.

        Args:
            limits: 300 s and 4 GB; more with `SqlLimits(seconds=3600, memory="16GB")`.

        Raises:
            QueryError: not one SELECT that only reads, DuckDB refuses it, or it takes too much.

        Examples:
            >>> Run("runs/demo").query("SELECT count(*) AS num FROM turns")["num"][0]
            np.int64(120)
        """
        return tables.frame_of(self.reader.sql(sql, params, limits=limits))

    def episode(self, trajectory_id: str) -> Episode:
        """One episode with its dialogue, rewards and boards.

        Raises:
            QueryError: the run has no such episode; one line that names ids that it has.

        Examples:
            >>> Run("runs/demo").episode("t00000029-00001").trajectory.episode_return
            0.0
        """
        if not isinstance(trajectory_id, str):
            raise TypeError(f"an episode is named by its id, not by {trajectory_id!r}")
        try:
            trajectory = self.reader.trajectory(trajectory_id)
            return Episode(trajectory, self.reader.outcome(trajectory_id))
        except (KeyError, ValueError) as error:
            rows = self.reader.sql(
                "SELECT min(id) AS first, max(id) AS last FROM trajectories "
                "GROUP BY left(id, 1) ORDER BY first"
            ).to_pylist()
            there = ", ".join(f"{row['first']} to {row['last']}" for row in rows)
            rest = f"there are {there}. trajectories() lists them" if there else "the run has none"
            raise QueryError(f"{self.name}: no episode {trajectory_id[:80]!r}; {rest}") from error

    def alarms(self) -> pd.DataFrame:
        """The alarms of the run, one row each: open ones first, then by severity.

        Columns: rule, severity, is_open, raised_step, onset_step (where the change began),
        cleared_step, metric, value, baseline, message, advice, alarm_id.
        """
        rows = [
            {
                **asdict(alarm.latest),
                "severity": alarm.severity,
                "is_open": alarm.is_open,
                "raised_step": alarm.raised.step,
                "onset_step": alarm.raised.onset_step,
                "cleared_step": alarm.cleared_step,
            }
            for alarm in histories(self.reader.alarms(), self.reader.commands())
        ]
        frame = pd.DataFrame(rows, columns=list(_ALARM_COLUMNS))
        whole = dict.fromkeys(("raised_step", "onset_step", "cleared_step"), "Int64")
        return frame.astype(whole)

    def settings(self, step: int | None = None) -> pd.Series[Any]:
        """The configuration by dotted key, as it held at a step; None for the next one.

        Raises:
            QueryError: the run has no such step.

        Examples:
            >>> Run("runs/demo").settings()["advantage.kind"]
            'grpo'
        """
        if step is not None and not 0 <= step <= self.last_step:
            raise QueryError(f"{self.name}: has no step {step}; its last one is {self.last_step}")
        live = live_settings(self.reader)
        held = live.now if step is None else live.at(step)
        values = {**flat(self.reader.info().config), **held}
        index = pd.Index(sorted(values), name="setting")
        return pd.Series([values[key] for key in index], index=index, name="value", dtype=object)

    # --- what is happening

    def diagnose(self) -> RunVerdict:
        """The verdict: what is happening, since when, the evidence, and what to do.

        As `echoscope diagnose`. Where the run did not measure its text, the text of up to 60 steps
        is measured first, which takes seconds. The verdict is kept until there is a new step.

        Examples:
            >>> Run("runs/demo").diagnose().evidence.columns[:4].tolist()
            ['metric', 'name', 'unit', 'before']
        """
        return RunVerdict(run=self._source.typed, verdict=self._verdict())

    def _verdict(self) -> Verdict:
        info = self.reader.info()
        position = (info.attempt, info.last_step, info.heard_at, info.status)
        if self._judged is None or self._judged[0] != position:
            opened = judged_source(self.reader)
            if self._source.folder is not None:
                named = self._source.typed
                opened = replace(
                    opened,
                    name=named,
                    situation=replace(opened.situation, run=named),
                    table=replace(opened.table, notes=(*self._source.notes, *opened.table.notes)),
                )
            self._judged = (position, judge(opened))
        return self._judged[1]

    def _quick_verdict(self) -> Verdict | None:
        """The verdict where it takes a moment only; None where thousands of turns must be read."""
        if self.last_step < 0:
            return None
        is_measured = self.reader.sql(_HAS_TEXT).column(0)[0].as_py()
        count = self.reader.sql("SELECT count(*) FROM turns").column(0)[0].as_py()
        if is_measured or count <= MOST_TO_READ or self._judged is not None:
            return self._verdict()
        return None

    def plots(self) -> list[str]:
        """Names of the figures that the run has data for; `plot` draws one, and any metric."""
        return self._figures().names()

    def plot(
        self,
        name: str | None = None,
        *,
        smooth: float = 0.0,
        log_y: bool = False,
        axis: AxisKind = "step",
    ) -> go.Figure:
        """A figure of the dashboard as a plotly object, for light and dark notebooks.

        Args:
            name: One of `plots()`, or the key of a metric; None for what the verdict rests on, or
                for success where nothing is wrong.
            smooth: Weight of the moving average over the raw curve, 0 to 0.99.
            log_y: A logarithmic scale.
            axis: "step", "time" or "tokens".

        Raises:
            QueryError: there is no such figure, or the run has no data for it.

        Examples:
            >>> Run("runs/demo").plot("policy/entropy").data[0].name
            'Policy entropy'
        """
        if axis not in ("step", "time", "tokens"):
            raise ValueError(f"axis is {axis!r}, but must be 'step', 'time' or 'tokens'")
        figures = self._figures(axis=axis, smooth=smooth, log_y=log_y)
        names = [name] if name is not None else figures.names()
        if not names:
            raise QueryError(f"{self.name}: no figure yet, because nothing was measured")
        return themed(figures.figure(names[0]))

    def _figures(self, **options: Any) -> RunFigures:
        from echoscope.dashboard.charts.run_figures import figures_of  # plotly takes a moment

        return figures_of(self.reader, self._quick_verdict(), **options)

    # --- how it is shown

    def _card(self) -> RunCard:
        source, verdict = self._source, self._quick_verdict()
        return card_of(self.reader, verdict, name=self.name, typed=source.typed, notes=source.notes)

    def __repr__(self) -> str:
        return self._card().to_text()

    def _repr_html_(self) -> str:
        return self._card().to_html()


def themed(figure: go.Figure) -> go.Figure:
    """Colours that can be read in light and dark notebooks alike."""
    grid = "rgba(128,128,128,0.22)"
    axis = {"gridcolor": grid, "zerolinecolor": grid, "linecolor": grid, "automargin": True}
    layout = {
        "font": {"color": "#7d7d7d"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": axis,
        "yaxis": axis,
        "colorscale": {"sequential": "Cividis"},
    }
    return figure.update_layout(template={"layout": layout})
