"""What four viewers cost a training run: stretches of one run with them and without, in turn.

Viewers come in two kinds. Browsers open the pages for real; where they run on the trainer's machine
they take its processors, too. Clients speak to the dashboard as a browser does, with the timers and
the listeners that the pages set, and draw nothing: what they cost is the dashboard's share alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from browsing import DashboardProcess, until
from dashboard_pages import SIZE, address, settle

from echoscope.dashboard.live.pulses import EVERY_S
from echoscope.store.reader import open_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = ("live", "diagnosis", "replay", "")
"""The last one is the page Runs."""
SKIPPED = 2
"""Steps after a change that count for neither side: opening a page is not following a run."""
OVERRIDES = ("envs.eval=[]", "probe.every=0", "checkpoint.every=0", "optim.lr=1e-8", "threads=1")
"""A policy that stays as it is: every stretch has the same work to do."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 900.0


class Training:
    """`echoscope train` in a process of its own, until it is stopped."""

    def __init__(self, path: Path, output: Path, *, recipe: str, overrides: Sequence[str]) -> None:
        arguments = ["train", recipe, "steps=100000", *overrides, "-o", str(path), "--headless"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._output = output.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "echoscope", *arguments],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        until((path / "run.json").exists, "run", patience_s=_PATIENCE_S)
        self._reader = open_run(path)
        self.wait_for(SKIPPED)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def step(self) -> int:
        return self._reader.info().last_step

    def wait_for(self, step: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self.step < step:
            assert self._process.poll() is None, "the training ended"
            assert time.monotonic() < deadline, f"no step {step} in {_PATIENCE_S:.0f} s"
            time.sleep(0.2)

    def step_seconds(self, first: int, last: int) -> list[float]:
        steps, seconds = self._reader.metrics("time/step_s", phase="train")
        return [float(s) for k, s in zip(steps, seconds, strict=True) if first <= k <= last]

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some steps with one kind of viewers."""

    kind: str
    p50_s: float
    seconds: tuple[float, ...]
    cores: dict[str, float]
    """Processor seconds per second, of the dashboard and of the browsers."""


@dataclass(slots=True)
class Comparison:
    """One kind of viewers beside none."""

    stretches: list[Stretch] = field(default_factory=list)

    def ratios(self, kind: str) -> list[float]:
        """p50 of each stretch with viewers over the mean of those before and after it."""
        ratio_list = []
        for number, stretch in enumerate(self.stretches):
            if stretch.kind == kind and 0 < number < len(self.stretches) - 1:
                beside = (self.stretches[number - 1].p50_s, self.stretches[number + 1].p50_s)
                ratio_list.append(stretch.p50_s / statistics.mean(beside))
        return ratio_list

    def p50_s(self, kind: str) -> float:
        seconds = [s for stretch in self.stretches if stretch.kind == kind for s in stretch.seconds]
        return statistics.median(seconds)

    def cores(self, kind: str, who: str) -> float:
        return statistics.mean(s.cores[who] for s in self.stretches if s.kind == kind)


def compare(
    training: Training,
    server: DashboardProcess,
    browser: Browser,
    run_id: str,
    *,
    rounds: int,
    steps: int,
) -> Comparison:
    """Stretches of `steps` steps: none, browsers, none, clients, none, and so on."""
    comparison = Comparison()
    for _ in range(rounds):
        comparison.stretches.append(_stretch("none", training, server, steps))
        with browsers(browser, server, run_id):
            comparison.stretches.append(_stretch("browsers", training, server, steps))
        comparison.stretches.append(_stretch("none", training, server, steps))
        with clients(server, run_id):
            comparison.stretches.append(_stretch("clients", training, server, steps))
    comparison.stretches.append(_stretch("none", training, server, steps))
    return comparison


def _stretch(kind: str, training: Training, server: DashboardProcess, steps: int) -> Stretch:
    _as_anybody(server.pid, training.pid)
    first = training.step + 1 + SKIPPED
    training.wait_for(first - 1)
    before, started = _processor_s(server.pid, training.pid), time.monotonic()
    training.wait_for(first + steps - 1)
    took = time.monotonic() - started
    after = _processor_s(server.pid, training.pid)
    seconds = training.step_seconds(first, first + steps - 1)
    return Stretch(
        kind=kind,
        p50_s=statistics.median(seconds),
        seconds=tuple(seconds),
        cores={who: (after[who] - before[who]) / took for who in before},
    )


def _as_anybody(server: int, training: int) -> None:
    """A Chromium of the superuser gives itself a higher priority than the trainer has: take it."""
    for pid, (who, _) in _processes(server, training).items():
        if who == "browsers" and os.getpriority(os.PRIO_PROCESS, pid) < 0:
            os.setpriority(os.PRIO_PROCESS, pid, 0)


def _processor_s(server: int, training: int) -> dict[str, float]:
    """Processor seconds so far: of the dashboard, the trainer, and what else this one started."""
    out = {"dashboard": 0.0, "trainer": 0.0, "browsers": 0.0}
    for who, seconds in _processes(server, training).values():
        out[who] += seconds
    return out


def _processes(server: int, training: int) -> dict[int, tuple[str, float]]:
    """Of all that this process started: whose each is, and its processor seconds so far."""
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields_of_stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            parents[int(folder.name)] = int(fields_of_stat[1])
            used[int(folder.name)] = (int(fields_of_stat[11]) + int(fields_of_stat[12])) / _TICKS
    out = {}
    for pid, seconds in used.items():
        line = list(_ancestors(pid, parents))
        if os.getpid() in line[1:]:
            who = "dashboard" if server in line else "trainer" if training in line else "browsers"
            out[pid] = (who, seconds)
    return out


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        yield pid
        pid = parents[pid]


@contextmanager
def browsers(browser: Browser, server: DashboardProcess, run_id: str) -> Iterator[None]:
    """Four people, each with a browser of their own."""
    with ExitStack() as stack:
        for name in PAGES:
            # Not a `visitor`: to look at every frame for what is drawn costs as much as the page.
            context = browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
            stack.callback(context.close)
            page = context.new_page()
            page.goto(address(server, name, **({"run": run_id} if name else {})))
            page.wait_for_selector("h1")
            settle(page)
        yield


@contextmanager
def clients(server: DashboardProcess, run_id: str) -> Iterator[None]:
    """Four connections that follow the pages and draw nothing."""
    following = [Follower(server.url, name, run_id if name else "") for name in PAGES]
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: asyncio.run(_follow(following, stop)))
        try:
            until(lambda: future.done() or all(f.num_runs for f in following), "answers")
            yield
        finally:
            stop.set()
    future.result()


async def _follow(following: Sequence[Follower], stop: threading.Event) -> None:
    tasks = [asyncio.create_task(follower.follow()) for follower in following]
    while not stop.is_set() and not any(task.done() for task in tasks):
        await asyncio.sleep(0.1)
    was_cut = not stop.is_set()
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    assert not was_cut, "the dashboard closed a connection"


def _bytes_of(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        content: bytes = answer.read()
    return content


def _json_of(url: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_bytes_of(url))
    return document


class Follower:
    """One page, as its browser would follow it: asks when a timer of the page says so."""

    def __init__(self, url: str, page: str, run_id: str) -> None:
        self.page = page
        self.num_runs = 0
        """Times that the script or a part of it was run for this viewer."""
        self._url = url
        self._query = urlencode({"run": run_id}) if run_id else ""
        self._script = ""
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._pulses: dict[str, Mapping[str, Any]] = {}

    async def follow(self) -> None:
        """Until it is cancelled."""
        from websockets.asyncio.client import connect

        address_of_stream = self._url.replace("http://", "ws://") + "/_stcore/stream"
        async with connect(
            address_of_stream,
            origin=self._url,  # type: ignore[arg-type]
            subprotocols=["streamlit"],  # type: ignore[list-item]
            max_size=None,
        ) as socket:
            await self._ask(socket)
            try:
                async for data in socket:
                    self._take(socket, data)
            finally:
                self._stop_timers()
                for question in self._questions.values():
                    question.cancel()

    async def _ask(self, socket: Any, fragment: str = "") -> None:
        from streamlit.proto.BackMsg_pb2 import BackMsg

        message = BackMsg()
        wish = message.rerun_script
        wish.query_string, wish.page_script_hash = self._query, self._script
        if not self._script:
            wish.page_name = self.page
        if fragment:
            wish.fragment_id, wish.is_auto_rerun = fragment, True
        await socket.send(message.SerializeToString())

    def _take(self, socket: Any, data: bytes) -> None:
        from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

        message = ForwardMsg.FromString(data)
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self._script = message.new_session.page_script_hash
            if not message.metadata.run.fragment_ids:
                self._stop_timers()
        elif kind == "stop_auto_rerun":
            self._stop_timers(message.stop_auto_rerun.fragment_ids)
        elif kind == "auto_rerun":
            wish = message.auto_rerun
            self._start_timer(
                wish.fragment_id, self._repeat(socket, wish.fragment_id, wish.interval)
            )
        elif kind == "delta":
            self._listen(socket, message.delta)
        elif kind == "script_finished":
            self.num_runs += 1

    def _listen(self, socket: Any, delta: Any) -> None:
        """A listener of the page (`pulse.js`): its fragment is drawn again when the run moves."""
        if delta.WhichOneof("type") != "new_element":
            return
        component = delta.new_element.bidi_component
        if component.component_name.endswith("echoscope_figure"):
            head = json.loads(component.bytes.partition(b"\n")[0])
            if head["source"]:
                name = f"chart {component.id}"
                self._start_timer(name, self._fetch(head["source"]))
        if component.component_name.endswith("echoscope_pulse"):
            wish = json.loads(json.loads(component.json))
            self._start_timer(delta.fragment_id, self._hear(socket, delta.fragment_id, wish))

    async def _hear(self, socket: Any, fragment: str, wish: Mapping[str, Any]) -> None:
        def is_new(pulse: Mapping[str, Any]) -> bool:
            return any(pulse[name] != seen for name, seen in wish["seen"].items())

        await self._pulse(wish["address"], is_new)
        await self._ask(socket, fragment)

    async def _fetch(self, source: Mapping[str, Any]) -> None:
        """A chart that fetches itself whenever the run has moved."""
        seen = {source["position"]}
        while True:
            pulse = await self._pulse(source["pulse"], lambda now: now["position"] not in seen)
            seen.add(pulse["position"])
            await asyncio.to_thread(_bytes_of, self._url + source["address"])

    async def _pulse(
        self, address: str, is_awaited: Callable[[Mapping[str, Any]], bool]
    ) -> Mapping[str, Any]:
        """The first pulse that is awaited; all of a page share one question a second."""
        if address not in self._questions:
            self._questions[address] = asyncio.ensure_future(self._question(address))
        while address not in self._pulses or not is_awaited(self._pulses[address]):
            await asyncio.sleep(0.1)
        return self._pulses[address]

    async def _question(self, address: str) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self._pulses[address] = await asyncio.to_thread(_json_of, self._url + address)

    def _start_timer(self, fragment: str, work: Coroutine[Any, Any, None]) -> None:
        self._stop_timers([fragment])
        self._timers[fragment] = asyncio.ensure_future(work)

    async def _repeat(self, socket: Any, fragment: str, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self._ask(socket, fragment)

    def _stop_timers(self, fragments: Iterable[str] | None = None) -> None:
        for fragment in list(self._timers) if fragments is None else fragments:
            timer = self._timers.pop(fragment, None)
            if timer:
                timer.cancel()
