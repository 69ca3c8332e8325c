"""Numbers that pages show in a browser, each beside what SQL says. It knows docs/store.md alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from browsing import draw_chart, table_rows, text_of, until, visit

import echoscope

if TYPE_CHECKING:
    from playwright.sync_api import Page

_PART = re.compile(r"(\d+(?:\.\d+)?)(?: %)? to (\d+(?:\.\d+)?)")
"""Both ends of an interval of a share."""
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number of a page."""

    page: str
    what: str
    text: str
    true: float

    @property
    def is_equal(self) -> bool:
        """As far as it is shown: half a unit of its last digit is rounding, away from zero."""
        number = _NUMBER.search(self.text)
        if number is None:
            return False
        digits = number[0].replace(",", "").lower().partition("e")
        decimals = len(digits[0].partition(".")[2])
        unit = 10.0 ** (int(digits[2] or 0) - decimals)
        # What is cut after three digits, such as 1200 of 1234, has no decimals.
        coarse = max(unit, 10.0 ** (len(digits[0].lstrip("+-").partition(".")[0]) - 3))
        tolerance = coarse if float(digits[0]) and not decimals else unit
        number_shown = float(number[0].replace(",", ""))
        farther = (abs(number_shown) - abs(self.true)) / tolerance
        return -0.499 <= farther <= 0.501 and number_shown * self.true >= 0


def wilson(share: float, num: float) -> tuple[float, float]:
    """The 95 % interval of a share of so many, in percent (Wilson 1927)."""
    z = 1.96
    middle = (share + z * z / (2 * num)) / (1 + z * z / num)
    half = z / (1 + z * z / num) * math.sqrt(share * (1 - share) / num + (z / num) ** 2 / 4)
    return 100 * (middle - half), 100 * (middle + half)


class Pages:
    """What the pages of a dashboard say of trained runs and evaluations under a root."""

    def __init__(self, page: Page, url: str, root: Path) -> None:
        self._page, self._url, self._root = page, url, root

    def sql(self, run: str, query: str) -> Any:
        """The one number that a query answers with."""
        (row,) = echoscope.open_run(self._root / run).sql(query).to_pylist()
        (value,) = row.values()
        return value

    def keys(self, run: str) -> list[str]:
        return [str(key) for key in echoscope.open_run(self._root / run).metric_keys()]

    def metric(self, run: str, key: str, which: str = "last") -> float:
        order = "DESC" if which == "last" else "ASC"
        return float(
            self.sql(
                run,
                f"SELECT value FROM metrics WHERE key = '{key}' AND isfinite(value) "
                f"ORDER BY step {order} LIMIT 1",
            )
        )

    def _visit(self, path: str) -> None:
        visit(self._page, f"{self._url}/{path}")

    def _curves(self, chart: str) -> Mapping[str, list[tuple[float, float]]]:
        """Name of a curve to its points (step, value), as plotly drew them."""
        plot = draw_chart(self._page, chart)
        curves: Mapping[str, list[tuple[float, float]]] = self._page.evaluate(
            """selector => Object.fromEntries(document.querySelector(selector).calcdata
              .filter((points) => points[0].trace)
              .map((points) => [points[0].trace.name ?? "", points.map((at) => [at.x, at.y])]))""",
            plot,
        )
        return curves

    def live(self, run: str, tag: str) -> Iterator[Number]:
        self._visit(f"live?run={run}")
        tiles = self._page.locator(".es-tile")
        until(lambda: tiles.count() == 6, "six tiles", page=self._page)
        # The verdict draws the page anew when it comes.
        until(lambda: "being judged" not in text_of(self._page), "a verdict", page=self._page)
        tile_texts = {
            tile.locator(".es-name").inner_text(): tile.locator(".es-value").inner_text()
            for tile in tiles.all()
        }
        last = self.sql(run, "SELECT max(step) FROM steps")
        rate = (
            "SELECT 100 * avg(is_success::INT) FROM trajectories WHERE split = '{}' AND step = {}"
        )
        evaluated = self.sql(run, "SELECT max(step) FROM trajectories WHERE split = 'eval'")
        mixed = (
            "SELECT 100 * avg((spread > 0)::INT) FROM (SELECT stddev_pop(episode_return) spread "
            f"FROM trajectories WHERE split = 'train' AND step = {last} GROUP BY group_index)"
        )
        truth = {
            "Evaluation success": self.sql(run, rate.format("eval", evaluated)),
            "Training success": self.sql(run, rate.format("train", last)),
            "Policy entropy": self.metric(run, "policy/entropy"),
            "Groups with signal": self.sql(run, mixed),
            "Reply tokens": self.sql(
                run,
                "SELECT sum(num_sampled_tokens) / sum(num_turns) FROM trajectories "
                f"WHERE split = 'train' AND step = {last}",
            ),
            "Step": last,
        }
        for what, true in truth.items():
            yield Number(page="Live", what=what, text=tile_texts.get(what, "none"), true=true)
        yield from self._interval(
            "Live",
            "Evaluation success",
            tile_texts["Evaluation success"],
            share=truth["Evaluation success"] / 100,
            num=self._num_tasks(run, evaluated),
        )
        for chart, curve, key in (
            ("success", "training", "rollout/success_rate"),
            ("success", "evaluation", f"eval/{tag}/success_rate"),
            ("entropy", "Policy entropy", "policy/entropy"),
            ("groups", "all failed", "reward/hopeless_frac"),
        ):
            curves = self._curves(f"[class*='st-key-chart_{chart}']")
            points = curves[curve]
            for index, which in ((0, "first"), (-1, "last")):
                yield Number(
                    page="Live",
                    what=f"{which} of {key}",
                    text=f"{points[index][1]:.6g}",
                    true=self.metric(run, key, which),
                )

    def _num_tasks(self, run: str, step: int) -> float:
        """How many fixed tasks an evaluation played; siblings share one."""
        tasks = "SELECT DISTINCT group_index FROM trajectories WHERE split = 'eval' AND step = "
        return float(self.sql(run, f"SELECT count(*) FROM ({tasks}{step})"))

    def _interval(
        self, page: str, what: str, text: str, *, share: float, num: float
    ) -> Iterator[Number]:
        ends = _PART.search(text)
        for n, true in enumerate(wilson(share, num), start=1):
            end = ends[n] if ends else "none"
            yield Number(page=page, what=f"{what}, end {n}", text=end, true=true)

    def diagnosis(self, run: str) -> Iterator[Number]:
        """The table of claims: means of the steps that each names."""
        self._visit(f"diagnosis?run={run}")
        table = self._page.locator(
            "table", has=self._page.get_by_role("columnheader", name="95 % interval")
        )
        until(lambda: table.count() == 1, "table of claims", page=self._page)
        for row in table.locator("tbody tr").all():
            what, before, now, interval, steps, key = row.locator("td").all_inner_texts()
            ranges = re.findall(r"steps? (\d+)(?: to (\d+))?", steps)
            rows = re.search(r"(mean|median) of (\d+) rows", steps)
            for text, (first, last) in zip((before, now)[-len(ranges) :], ranges, strict=True):
                where = f"step BETWEEN {first} AND {last or first}"
                values = f"SELECT value FROM metrics WHERE key = '{key}' AND isfinite(value)"
                true = f"SELECT avg(value) FROM ({values} AND {where})"
                if rows:
                    limit = f"{values} AND step <= {first} ORDER BY step DESC LIMIT {rows[2]}"
                    mean = {"mean": "avg", "median": "median"}[rows[1]]
                    true = f"SELECT {mean}(value) FROM ({limit})"
                stored = self.sql(run, true)
                if stored is None:
                    continue  # made of several stored metrics
                scale = 100 if "%" in text or "points" in text else 1
                where = f"{what}, {first} to {last or first}"
                yield Number(page="Diagnosis", what=where, text=text, true=scale * stored)
            if first_rows := re.search(r"median of the first (\d+) rows", steps):
                start = f"{values} ORDER BY step LIMIT {first_rows[1]}"
                median = self.sql(run, f"SELECT median(value) FROM ({start})")
                scale = 100 if "%" in before else 1
                yield Number(
                    page="Diagnosis", what=f"{what}, start", text=before, true=scale * median
                )
            if key.startswith("eval/") and key.endswith("/success_rate"):
                # Of the same tasks each time: there are no more of them in many evaluations.
                num = self._num_tasks(run, int(ranges[-1][1] or ranges[-1][0]))
                yield from self._interval("Diagnosis", what, interval, share=stored, num=num)
            if tasks := re.search(r"\(([\d,]+) (episodes|tasks)\)", steps):
                split = {"episodes": "train", "tasks": "eval"}[tasks[2]]
                first, last = ranges[-1]
                count = (
                    f"SELECT count(*) FROM trajectories WHERE split = '{split}' "
                    f"AND step BETWEEN {first} AND {last or first}"
                )
                yield Number(
                    page="Diagnosis",
                    what=f"{what}, count",
                    text=tasks[1],
                    true=self.sql(run, count),
                )
        yield from self._alarms(run)

    def _alarms(self, run: str) -> Iterator[Number]:
        """The history of alarms, which stands on the page Diagnosis."""
        raised = echoscope.open_run(self._root / run).sql(
            "SELECT alarm_id, min(step) raised, count(*) events FROM alarms WHERE state = 'raised' "
            "GROUP BY alarm_id"
        )
        table = self._page.locator(
            "table", has=self._page.get_by_role("columnheader", name="severity")
        )
        table_cells = [
            row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()
        ]
        yield Number(
            page="Alarms", what="alarms", text=str(len(table_cells)), true=float(raised.num_rows)
        )
        true = sorted(raised.column("raised").to_pylist())
        for cell, step in zip(sorted(int(row[2]) for row in table_cells), true, strict=False):
            yield Number(page="Alarms", what="raised", text=str(cell), true=step)

    def runs(self, run: str) -> Iterator[Number]:
        self._visit("")

        columns = ("Training success", "Evaluation success")

        def read() -> list[list[str]]:
            """The table once its numbers are read: they come after the names."""
            rows = table_rows(self._page)
            return rows if rows and set(columns) <= set(rows[0]) else []

        head, *rows = until(read, "runs", page=self._page)
        row = dict(zip(head, next(r for r in rows if r[head.index("Run")] == run), strict=True))
        for split, what in zip(("train", "eval"), columns, strict=True):
            of_split = f"FROM trajectories WHERE split = '{split}'"
            last = self.sql(run, f"SELECT max(step) {of_split}")
            rate = f"SELECT 100 * avg(is_success::INT) {of_split} AND step = {last}"
            yield Number(page="Runs", what=what, text=row[what], true=self.sql(run, rate))

    def replay(self, run: str, step: int) -> Iterator[Number]:
        """What the legend above the groups of a step counts."""
        self._visit(f"replay?run={run}&step={step}")
        counted = re.compile(r"(\d+) (solved|failed|cut off|not trained on)")
        counted_texts = until(
            lambda: counted.findall(text_of(self._page)), "counts", page=self._page
        )
        counts = {what: int(number) for number, what in reversed(counted_texts)}
        of_step = f"FROM trajectories WHERE split = 'train' AND step = {step}"
        left_out = counts.pop("not trained on", 0)
        for what, count, value in (
            ("trajectories", sum(counts.values()), "count(*)"),
            ("solved", counts.get("solved", 0), "sum(is_success::INT)"),
            ("not trained on", left_out, "sum((NOT kept)::INT)"),
        ):
            true = float(self.sql(run, f"SELECT {value} {of_step}"))
            yield Number(page="Replay", what=f"{what}, step {step}", text=str(count), true=true)

    def compare(self, first: str, second: str) -> Iterator[Number]:
        self._visit(f"compare?runs={first},{second}")

        def evaluation_rows() -> list[list[str]]:
            tables = [table_rows(self._page, index) for index in range(6)]
            return next((rows for rows in tables if rows and "number of tasks" in rows[0]), [])

        head, *rows = until(evaluation_rows, "evaluations", page=self._page)
        for row in rows:
            cells = dict(zip(head, row, strict=True))
            run = cells["run"]
            last = self.sql(run, "SELECT max(step) FROM trajectories WHERE split = 'eval'")
            of_step = f"FROM trajectories WHERE split = 'eval' AND step = {last}"
            truth = {
                "step": last,
                "success": self.sql(run, f"SELECT 100 * avg(is_success::INT) {of_step}"),
                "number of tasks": self.sql(run, f"SELECT count(*) {of_step}"),
            }
            for what, true in truth.items():
                text = cells[what]
                yield Number(page="Compare", what=f"{what} of {run}", text=text, true=true)

    def evaluations(self, run: str) -> Iterator[Number]:
        """Means over tasks; each task counts once, however often it was tried."""
        self._visit(f"evaluations?run={run}")
        head, *rows = until(lambda: table_rows(self._page), "ranking", page=self._page)
        name_column = head.index("Evaluation")
        row = dict(zip(head, next(r for r in rows if r[name_column] == run), strict=True))
        for column, value in (
            ("Success (95 %)", "100 * avg(is_success::INT)"),
            ("Return", "avg(episode_return)"),
            ("Turns", "avg(num_turns)"),
        ):
            query = (
                f"SELECT avg(value) FROM (SELECT {value} AS value FROM trajectories "
                "WHERE split = 'eval' GROUP BY env_seed, task_key)"
            )
            text = row[column]
            if column != "Success (95 %)":
                text = f"{float(text):.4g}"
            yield Number(page="Evaluations", what=column, text=text, true=self.sql(run, query))
        count = self.sql(run, "SELECT count(*) FROM trajectories")
        yield Number(page="Evaluations", what="episodes", text=row["Episodes"], true=count)

    def asked(self, run: str) -> Iterator[Number]:
        """The page SQL: an answer to a question of one's own."""
        query = "SELECT count(*) AS n, avg(episode_return) AS mean FROM trajectories"
        self._visit(f"sql?run={run}")
        area = self._page.get_by_label("Query", exact=True)
        area.fill(query)
        area.press("Control+Enter")
        head, row = until(lambda: table_rows(self._page, 1), "answer", page=self._page)
        for name, text in zip(head, row, strict=True):
            true = self.sql(run, f"SELECT {name} FROM ({query})")
            yield Number(page="SQL", what=name, text=f"{float(text):.6g}", true=true)
