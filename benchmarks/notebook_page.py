"""The example notebook of the documentation, executed, and the pictures of its page.

    python benchmarks/notebook_page.py

Trains runs/collapse-template first where it is missing (four minutes). Runs every cell of
docs/examples/notebook.ipynb in a kernel, puts small PNGs in the place of interactive figures, and
writes the notebook back. Then it shows the notebook in Chromium as JupyterLab would, light and
dark, and writes docs/pictures/notebook_*.png.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import plotly.io
from common import read_options, temporary_folder
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from PIL import Image

HOME = Path(__file__).parents[1]
sys.path.insert(0, str(HOME / "tests" / "shared"))

from browsing import find_chromium  # noqa: E402

NOTEBOOK = HOME / "docs" / "examples" / "notebook.ipynb"
PICTURES = HOME / "docs" / "pictures"
RUN = HOME / "runs" / "collapse-template"
FIGURE = "application/vnd.plotly.v1+json"
WIDTH = 760
COLOURS = 64


def train() -> None:
    """The run that the notebook shows, where it is missing."""
    if not (RUN / "run.json").is_file():
        command = "from echoscope.cli import main; main()"
        arguments = ["train", "collapse-template", "-o", str(RUN)]
        subprocess.run([sys.executable, "-c", command, *arguments], check=True)


def small_png(picture: bytes) -> bytes:
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    out = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def drawn(browser: Any, figure: dict[str, Any], folder: Path) -> bytes:
    """A figure as a browser draws it on white."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 800})
    file = folder / "figure.html"
    plotly.io.write_html(figure, file, include_plotlyjs=True, config={"staticPlot": True})
    page.goto(file.as_uri())
    page.locator(".main-svg").first.wait_for()
    page.wait_for_timeout(500)
    picture = page.locator(".plot-container").first.screenshot()
    page.close()
    return small_png(picture)


def with_pictures(notebook: Any, browser: Any, folder: Path) -> None:
    """Figures become pictures, and what differs from run to run goes."""
    for number, cell in enumerate(notebook.cells):
        cell.metadata.pop("execution", None)
        cell["id"] = f"cell-{number:02d}"
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if FIGURE in data:
                picture = base64.b64encode(drawn(browser, data[FIGURE], folder)).decode("ascii")
                output["data"] = {"image/png": picture, "text/plain": "a plotly figure"}


def take(browser: Any, notebook: Any, theme: str, folder: Path) -> None:
    """The notebook as JupyterLab shows it: the card and the verdict as pictures."""
    exporter = HTMLExporter(template_name="lab", theme=theme)
    text, _ = exporter.from_notebook_node(notebook)
    file = folder / f"{theme}.html"
    file.write_text(text, encoding="utf-8")
    context = browser.new_context(viewport={"width": 1080, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.goto(file.as_uri(), wait_until="domcontentloaded")
    page.wait_for_timeout(1_500)
    end = "_dark" if theme == "dark" else ""
    cards = page.locator(".es-nb")
    for index, name in ((0, "card"), (1, "verdict"), (2, "episode")):
        picture = small_png(cards.nth(index).screenshot())
        path = PICTURES / f"notebook_{name}{end}.png"
        path.write_bytes(picture)
        print(f"{path.relative_to(HOME)}: {len(picture) / 1000:.0f} kB")
    page.screenshot(path=str(folder.parent / f"notebook_{theme}.png"), full_page=True)
    context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    options = read_options(__doc__, whole=(Path, "keep pictures of the whole notebook here"))
    train()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    with temporary_folder() as outer, sync_playwright() as playwright:
        folder = outer / "pages"
        folder.mkdir()
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        with_pictures(notebook, browser, folder)
        nbformat.write(notebook, NOTEBOOK)
        print(f"{NOTEBOOK.relative_to(HOME)}: {NOTEBOOK.stat().st_size / 1000:.0f} kB")
        for theme in ("light", "dark"):
            take(browser, notebook, theme, folder)
        if options.whole is not None:
            for picture in outer.glob("notebook_*.png"):
                (options.whole / picture.name).write_bytes(picture.read_bytes())
        browser.close()


if __name__ == "__main__":
    main()
