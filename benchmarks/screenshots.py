"""The pictures of the dashboard in README and docs, taken from real runs in a real browser.

    python benchmarks/screenshots.py [--root runs/pictures]

Trains what is missing under the root first: the demo, and a run that collapses (a few minutes).
Then it opens the pages in Chromium, light and dark, and writes docs/pictures/dashboard_*.png.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import read_options, temporary_folder
from PIL import Image

from echoscope import open_run

HOME = Path(__file__).parents[1]
sys.path.insert(0, str(HOME / "tests" / "shared"))

from browsing import DashboardProcess, find_chromium, visit  # noqa: E402

PICTURES = HOME / "docs" / "pictures"
RUNS = {
    "demo": ["demo"],
    "collapse-template": [
        "collapse-template",
        "diagnostics.alarms.actions={TEMPLATE_COLLAPSE: notify}",
    ],
}
COLOURS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture: where, how large, and what to wait for.

    `{measured}` in a path is the last step of the demo whose information was measured.
    """

    name: str
    path: str
    theme: str = "light"
    size: tuple[int, int] = (1440, 900)
    wait_for: str = "h1"


BOTH = ("light", "dark")
_DESKTOP = (
    Shot(name="live", path="/live?run=collapse-template", wait_for=".js-plotly-plot"),
    Shot(name="diagnosis", path="/diagnosis?run=collapse-template", wait_for=".js-plotly-plot"),
    Shot(
        name="replay",
        path="/replay?run=demo&step={measured}&heat=information&order=best",
        wait_for=".es-talk",
    ),
    Shot(name="compare", path="/compare?runs=demo,collapse-template", wait_for=".js-plotly-plot"),
)
_SWEEP = (
    Shot(
        name="runs",
        path="/?group=algo,optim.lr&sort=-eval_success&curve=eval/success_rate,rollout/success_rate",
        wait_for=".js-plotly-plot",
    ),
)
SHOTS = [replace(shot, theme=theme) for shot in _DESKTOP for theme in BOTH]
SWEEP_SHOTS = [replace(shot, theme=theme) for shot in _SWEEP for theme in BOTH]
"""Of the root that `dashboard_sweep.py` makes."""


def train(root: Path) -> None:
    """Whatever run is missing; the command line trains it as a person would."""
    for name, overrides in RUNS.items():
        if not (root / name / "run.json").is_file():
            command = "from echoscope.cli import main; main()"
            arguments = ["train", *overrides, "-o", str(root / name)]
            subprocess.run([sys.executable, "-c", command, *arguments], check=True)


def last_measured(run: Path) -> int:
    sql = "SELECT max(step) AS step FROM diagnostics WHERE kind = 'information'"
    return int(open_run(run).sql(sql).column("step")[0].as_py())


def take(browser: Any, url: str, shot: Shot) -> None:
    """Open, wait until the charts stand still, and keep a small PNG."""
    width, height = shot.size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=shot.theme
    )
    page = context.new_page()
    visit(page, url + shot.path)
    page.locator(shot.wait_for).first.wait_for(timeout=60_000)
    for busy in ("Reading settings and metrics", "more are being read", "not judged yet"):
        page.get_by_text(busy).first.wait_for(state="detached", timeout=600_000)
    page.wait_for_timeout(4_000)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    end = "_dark" if shot.theme == "dark" else ""
    file = PICTURES / f"dashboard_{shot.name}{end}.png"
    image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        file, optimize=True
    )
    print(f"{file.relative_to(HOME)}: {file.stat().st_size / 1000:.0f} kB")
    context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    options = read_options(
        __doc__,
        root=Path("runs/pictures"),
        sweep=Path("runs/sweep"),
        only=("", "names, with commas"),
    )
    names = set(filter(None, options.only.split(",")))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        shots = [shot for shot in SHOTS if not names or shot.name in names]
        if shots:
            train(options.root)
            measured = last_measured(options.root / "demo")
            paths = [shot.path.format(measured=measured) for shot in shots]
            placed = [replace(shot, path=path) for shot, path in zip(shots, paths, strict=True)]
            shoot(browser, options.root, placed)
        shots = [shot for shot in SWEEP_SHOTS if not names or shot.name in names]
        if shots:
            make_sweep(options.sweep)
            shoot(browser, options.sweep, shots)
        browser.close()


def make_sweep(root: Path) -> None:
    """The runs that are missing, of all that `dashboard_sweep.py` makes."""
    script = Path(__file__).with_name("dashboard_sweep.py")
    subprocess.run([sys.executable, str(script), str(root)], check=True)


def shoot(browser: Any, root: Path, shots: Sequence[Shot]) -> None:
    """Take pictures of a root's pages."""
    with temporary_folder() as folder:
        dashboard = DashboardProcess(root, folder / "log")
        try:
            for shot in shots:
                take(browser, dashboard.url, shot)
        finally:
            dashboard.close()


if __name__ == "__main__":
    main()
