"""What the dashboard promises, measured with a real Chromium on generated runs of full size.

    python benchmarks/dashboard.py [--only start,million,...] [--folder DIR] [--json]

Needs Playwright and a Chromium. The generated runs take a few minutes and 2.3 GB the first time,
and are used again where they are; `--scale 0.01` is for trying it out. Times of pages are the
browser's own, from the start of the navigation to the first frame in which a curve, the list or
the text is there. Each visit is of somebody with an empty cache; `warm` means a dashboard that
has answered the same question before, `first` one that was just started.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import (
    describe_machine,
    markdown_row,
    markdown_table,
    memory_of,
    read_options,
    temporary_folder,
)

import sys  # isort: skip

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

from browsing import DashboardProcess
from dashboard_pages import (
    CHART,
    Action,
    address,
    chromium,
    count_steps,
    drawn,
    seen,
    settle,
    shows,
    steps_seen,
    visitor,
    whole,
)
from dashboard_runs import (
    SIBLINGS,
    make_evaluations,
    make_many,
    make_million,
    make_wide,
    once,
    write_steps,
)
from dashboard_viewers import OVERRIDES, Training, compare

from echoscope.store.reader import open_run
from echoscope.store.records import Split, Trajectory, trajectory_id
from store import TRAJECTORIES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VISITS = 5
LIVE_STEPS = 20
CHARTS_OF_PAGE = 12
TALL = {"width": 1440, "height": 2400}
"""All charts of a section are in sight: others are not drawn."""
TITLE_S, CURVE_S, LIST_S, TURN_S = 1.0, 2.5, 2.0, 0.2
"""Limits: title and verdict, first curve, list of runs, another trajectory on an open page."""
_VIEW_STEPS, _VIEW_ROUNDS = 6, 6
COMPARED = 120
"""Runs of the page Compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. Times in seconds, shares as they are, memory in MiB."""

    what: str
    median: float
    worst: float
    runs: int
    unit: str = "s"
    limit: float | None = None
    note: str = ""

    @property
    def holds(self) -> str:
        if self.limit is None:
            return ""
        return "yes" if self.median <= self.limit else "no"


def row(what: str, values: Sequence[float], limit: float | None = None, note: str = "") -> Row:
    return Row(
        what=what,
        median=statistics.median(values),
        worst=max(values),
        runs=len(values),
        limit=limit,
        note=note,
    )


class Bench:
    """The generated runs, a browser, and what was measured so far."""

    def __init__(self, browser: Browser, folder: Path, work: Path, scale: float) -> None:
        self._browser = browser
        self._folder = folder
        self._work = work
        self._scale = scale
        self.rows: list[Row] = []

    def start(self) -> None:
        """From the command to the first page, and what is loaded by then."""
        (self._work / "none").mkdir()
        times, loaded = [], 0
        for _ in range(VISITS):
            began = time.monotonic()
            with self._serve(self._work / "none") as server:
                with urllib.request.urlopen(server.url) as answer:
                    assert answer.status == 200
                times.append(time.monotonic() - began)
                loaded += _has_torch(server.pid)
        assert not loaded, "torch is loaded"
        self._add(row("command to the first HTTP 200 (no torch in the process)", times, 4.0))

    def million(self) -> None:
        """A run with a million trajectories."""
        steps = max(512, round(7813 * self._scale))
        run = once(self._large / "million", lambda path: make_million(path, steps))
        size = f"{steps * TRAJECTORIES:,} trajectories"
        self._first(f"Live, {size}", "live", "million", "chart")
        self._first(f"Replay, {size}", "replay", "million", "list")
        with self._serve(self._large) as server:
            self._warm(server, f"Live, {size}", "live", "million", "chart", limit=CURVE_S)
            self._warm(server, f"Replay, {size}", "replay", "million", "list")
            self._trajectories(server, run, steps)
            self._memory(server, f"Live and Replay, {size}")

    def wide(self) -> None:
        """A run with a thousand metrics and a hundred thousand steps."""
        steps = max(512, round(100_000 * self._scale))
        once(self._large / "wide", lambda path: make_wide(path, steps, 1_000))
        size = f"1,000 metrics x {steps:,} steps"
        self._first(f"Live, {size}", "live", "wide", "chart")
        with self._serve(self._large) as server:
            self._warm(server, f"Live, {size}", "live", "wide", "chart", limit=CURVE_S)
            times = [self._section(server, number) for number in range(VISITS)]
            self._add(row(f"Live, {size}: a section opens, {CHARTS_OF_PAGE} charts", times))
            self._memory(server, f"Live, {size}")

    def visible(self) -> None:
        """A step of a live run: acknowledged, then seen in the browser."""
        root = self._work / "visible"
        root.mkdir()
        context = multiprocessing.get_context("spawn")
        out = context.Queue()
        arguments = (root / "live", LIVE_STEPS + 4, 2.3, out)
        writer = context.Process(target=write_steps, args=arguments)
        writer.start()
        acknowledged = dict([out.get()])
        with self._serve(root) as server, self._page() as page:
            drawn(page, address(server, "live", run="live"), "chart")
            count_steps(page)
            while (entry := out.get()) is not None:
                acknowledged.update([entry])
            page.wait_for_timeout(5_000)
            first_seen = steps_seen(page)
        writer.join()
        last = sorted(acknowledged)[-LIVE_STEPS:]
        assert first_seen.keys() >= set(last), (
            f"steps {set(last) - first_seen.keys()} were never shown"
        )
        delays = [first_seen[step] - acknowledged[step] for step in last]
        self._add(row(f"an acknowledged step is on the page, {LIVE_STEPS} steps", delays, 2.0))

    def many(self) -> None:
        """Ten thousand runs under one root."""
        count = max(50, round(10_000 * self._scale))
        once(self._folder / "many", lambda path: make_many(path, count))
        size = f"{count:,} runs"
        self._first(f"Runs, {size}", "", "", "list", root=self._folder / "many", limit=LIST_S)
        with self._serve(self._folder / "many") as server:
            self._all_read(server, f"Runs, {size}")
            self._warm(server, f"Runs, {size}", "", "", "list", limit=LIST_S)
            self._table(server, f"Runs, {size}", count)
            newest = f"run-{count - 1:05d}"
            self._comparison(server, count, size)
            live = f"Live of one of {size}"
            self._warm(server, live, "live", newest, "chart", limit=CURVE_S)
            self._memory(server, f"Runs, {size}")

    def _comparison(self, server: DashboardProcess, count: int, size: str) -> None:
        """The newest runs side by side: what the first visit reads, the second has."""
        first = max(0, count - COMPARED)
        names = ",".join(f"run-{number:05d}" for number in range(first, count))
        for what in (f"Compare of {count - first} of {size}, first visit", "the same, again"):
            with self._page() as page:
                seconds = drawn(page, address(server, "compare", runs=names), "chart")
            self._add(row(f"{what}: first curve", [seconds]))

    def evaluations(self) -> None:
        """Two hundred evaluations of 800 episodes each."""
        count, tasks = max(4, round(200 * self._scale)), max(10, round(200 * self._scale))
        root = once(self._folder / "evaluations", lambda path: make_evaluations(path, count, tasks))
        size = f"{count:,} evaluations of {SIBLINGS * tasks:,} episodes"
        first, read = [], []
        for _ in range(3):
            with self._serve(root) as server, self._page() as opened:
                first.append(drawn(opened, address(server, "evaluations"), "ranking"))
                read.append(whole(opened, "still to be read"))
        self._add(row(f"Evaluations, {size}, first visit after the start: a ranking", first))
        self._add(row("the same: the ranking of all", read))
        with self._serve(root) as server:
            self._warm(server, f"Evaluations, {size}", "evaluations", "", "ranking")

    def _all_read(self, server: DashboardProcess, what: str) -> None:
        """Wait until the settings and metrics of all runs were read, however long that takes."""
        began = time.monotonic()
        with self._page() as page:
            drawn(page, address(server, ""), "list")
            notice = page.get_by_text("Reading settings and metrics")
            notice.wait_for(state="detached", timeout=0)
        name = f"{what}, just started: settings and metrics of all are read"
        self._add(row(name, [time.monotonic() - began]))

    def _table(self, server: DashboardProcess, title: str, count: int) -> None:
        """Filter, order and groups of all runs, on an open page."""
        caption = "[data-testid=stCaptionContainer]"
        for what, params, text in (
            ("a filter", {"filter": "lr > 1e-6 and step > 3"}, f"{count // 2:,} of {count:,} runs"),
            ("groups", {"group": "lr"}, f"4 groups of {count:,} runs"),
        ):
            times = []
            for _ in range(VISITS):
                with self._page() as page:
                    drawn(page, address(server, "", curves="0"), "list")
                    settle(page)
                    page.wait_for_timeout(1_000)
                    action = Action(page, [(caption, text, 1)])
                    _go(page, address(server, "", curves="0", **params))
                    times.append(action.seconds())
            self._add(row(f"{title}, page is up: {what}", times, 1.0))

    def viewers(self) -> None:
        """Four viewers of a run that trains."""
        root = self._work / "viewers"
        root.mkdir()
        log = self._work / "train.log"
        training = Training(root / "train", log, recipe="demo", overrides=OVERRIDES)
        steps = max(2, round(_VIEW_STEPS * min(1.0, self._scale)))
        rounds = max(1, round(_VIEW_ROUNDS * min(1.0, self._scale)))
        try:
            with self._serve(root) as server:
                comparison = compare(
                    training, server, self._browser, "train", rounds=rounds, steps=steps
                )
                self._memory(server, "four viewers of a live run")
        finally:
            training.close()
        for kind in ("clients", "browsers"):
            ratios = comparison.ratios(kind)
            shares = ", ".join(
                f"{who} {comparison.cores(kind, who):.2f} cores"
                for who in ("dashboard", "browsers")
            )
            base = f"p50 of a step without {comparison.p50_s('none'):.2f} s"
            self._add(
                Row(
                    what=f"step time with four {kind} over without",
                    median=statistics.median(ratios),
                    worst=max(ratios),
                    runs=len(ratios),
                    unit="x",
                    limit=1.05,
                    note=f"{steps} steps each; {base}; {shares}",
                )
            )

    @property
    def _large(self) -> Path:
        return self._folder / "large"

    def _add(self, new_row: Row) -> None:
        self.rows.append(new_row)
        print(table_line(new_row), file=sys.stderr, flush=True)

    @contextmanager
    def _serve(self, root: Path) -> Iterator[DashboardProcess]:
        server = DashboardProcess(root, self._work / "dashboard.log")
        try:
            yield server
        finally:
            server.close()

    @contextmanager
    def _page(self) -> Iterator[Page]:
        with visitor(self._browser) as context:
            yield context.new_page()

    def _first(
        self,
        what: str,
        page: str,
        run: str,
        part: str,
        *,
        root: Path | None = None,
        limit: float | None = None,
    ) -> None:
        """The first visit of dashboards that were just started."""
        times = []
        for _ in range(3):
            with self._serve(root or self._large) as server, self._page() as opened:
                times.append(drawn(opened, _address(server, page, run), part))
        name = f"{what}, first visit after the start: {_WORDS[part]}"
        self._add(row(name, times, limit))

    def _warm(
        self,
        server: DashboardProcess,
        what: str,
        page: str,
        run: str,
        part: str,
        *,
        limit: float | None = None,
    ) -> None:
        earlier = ("title", "verdict") if page == "live" else ("title",)
        before: list[float] = []

        def visit() -> float:
            with self._page() as opened:
                seconds = drawn(opened, _address(server, page, run), part)
                before.append(max(seen(opened, name) for name in earlier))
                return seconds

        seconds = _settled(visit)
        self._add(row(f"{what}, warm: {' and '.join(earlier)}", before[1:], TITLE_S))
        self._add(row(f"the same: {_WORDS[part]}", seconds, limit))

    def _trajectories(self, server: DashboardProcess, run: Path, steps: int) -> None:
        reader = open_run(run)
        rng = np.random.default_rng(0)

        def anyone() -> Trajectory:
            index, step = int(rng.integers(TRAJECTORIES)), int(rng.integers(steps))
            return reader.trajectory(trajectory_id(Split.TRAIN, step, index))

        def deep_link() -> float:
            with self._page() as opened:
                return drawn(opened, _address(server, "replay", "million", anyone()), "trajectory")

        title = "any of these trajectories by its address"
        self._add(row(f"{title}, new page", _settled(deep_link)))
        # In the middle, where the made run has texts and tokens of full length.
        step = steps // 2
        with self._page() as page:
            first = reader.trajectory(trajectory_id(Split.TRAIN, step, 0))
            drawn(page, _address(server, "replay", "million", first), "trajectory")
            settle(page)
            page.wait_for_timeout(1_000)
            times = []
            for index in range(1, 13):
                following = reader.trajectory(trajectory_id(Split.TRAIN, step, index))
                times.append(_turn_to(page, following, lambda: page.keyboard.press("j")))
            self._add(row("the next one by key `j`", times, TURN_S))
            times = []
            for _ in range(12):
                other = anyone()
                other_address = _address(server, "replay", "million", other)
                times.append(
                    _turn_to(
                        page, other, lambda other_address=other_address: _go(page, other_address)
                    )
                )
            self._add(row(f"{title}, page is up", times, TURN_S))

    def _section(self, server: DashboardProcess, number: int) -> float:
        """Seconds from the click on a section to all charts of its first page."""
        with self._page() as page:
            page_address = address(server, "live", run="wide", metrics=f"metric_0[{number}]")
            page.set_viewport_size(TALL)
            drawn(page, page_address, "chart")
            settle(page)
            page.wait_for_timeout(1_000)
            box = page.locator(".st-key-section_made")
            curve = f".st-key-section_made {CHART}"
            click = Action(page, [(curve, "", CHARTS_OF_PAGE)], event="click")
            box.locator("summary").click()
            return click.seconds()

    def _memory(self, server: DashboardProcess, what: str) -> None:
        peak = memory_of(server.pid) / 2**20
        note = "torch is loaded" if _has_torch(server.pid) else ""
        name = f"memory at its peak: {what}"
        self._add(Row(what=name, median=peak, worst=peak, runs=1, unit="MiB", note=note))


_WORDS = {"chart": "first curve", "list": "list", "ranking": "ranking"}


def _settled(visit: Callable[[], float]) -> list[float]:
    visit()
    return [visit() for _ in range(VISITS)]


def _address(
    server: DashboardProcess, page: str, run: str, trajectory: Trajectory | None = None
) -> str:
    run_part = {"run": run} if run else {}
    chosen = {"trajectory": trajectory.id, "order": "id"} if trajectory else {}
    return address(server, page, **run_part, **chosen)


def _go(page: Page, page_address: str) -> None:
    """What the back button of a browser does: another address of the page that is open."""
    page.evaluate(
        "place => { history.pushState({}, '', place);"
        " dispatchEvent(new PopStateEvent('popstate')) }",
        page_address,
    )


def _turn_to(page: Page, trajectory: Trajectory, act: Callable[[], None]) -> float:
    """Seconds until the head and the observation of a trajectory are on the page."""
    text = max(trajectory.turns[0].observation.split("\n"), key=len).strip()[:60]
    head = f"Group {trajectory.group_index}, sibling {trajectory.sibling_index}"
    action = Action(page, shows(head, text), event="")
    act()
    seconds = action.seconds()
    settle(page)
    page.wait_for_timeout(300)
    return seconds


def _has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def table_line(entry: Row) -> str:
    """As in docs/dashboard-speed.md."""
    unit = "" if entry.unit == "x" else f" {entry.unit}"
    digits = 0 if entry.unit == "MiB" else 2
    median, worst = (f"{value:.{digits}f}{unit}" for value in (entry.median, entry.worst))
    limit = "" if entry.limit is None else f"{entry.limit:g}{unit}"
    cells = (
        entry.what,
        median,
        worst if entry.runs > 1 else "",
        limit,
        entry.holds,
    )
    return markdown_row(cells).replace("|  |", "| |").replace("|  |", "| |")


def main() -> None:
    parts = ("start", "million", "wide", "visible", "many", "evaluations", "viewers")
    options = read_options(
        __doc__,
        only=(",".join(parts), "some of the parts, with commas"),
        scale=(1.0, "of the generated runs"),
        folder=(Path, "of the generated runs; else a temporary one, kept"),
        json=(False, "print JSON instead of a table"),
    )
    name = "echoscope-dashboard-bench" + ("" if options.scale == 1.0 else f"-{options.scale:g}")
    folder = options.folder or Path(tempfile.gettempdir()) / name
    with temporary_folder() as work, chromium() as browser:
        bench = Bench(browser, folder, work, options.scale)
        for part in options.only.split(","):
            getattr(bench, part)()
    machine = describe_machine()
    if options.json:
        rows = [{**asdict(measured), "holds": measured.holds} for measured in bench.rows]
        print(json.dumps({"machine": machine, "rows": rows}, indent=1))
        return
    print(machine)
    print(markdown_table(("what", "median", "worst", "limit", "holds")))
    for measured in bench.rows:
        print(table_line(measured))
    for measured in bench.rows:
        if measured.note:
            print(f"{measured.what}: {measured.note}")


if __name__ == "__main__":
    main()
