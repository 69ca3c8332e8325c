"""Frames -> SVG pictures that are readable in light and dark, without colour, and read aloud.

Stored frames are read without trust: whatever is no frame (`text/pictures.py`) becomes a card that
says why and shows the text. Every thing has a shape and mostly a letter of its own; colours only
help. The SVG brings its own style with a media query, so it follows the theme as `<img>` and inline
alike; it holds no script, link or foreign element, and every text in it is escaped. `board_html`
makes the `<img>` of a page.

To draw one more thing, add a shape to `look/shapes.svg` (a 32 x 32 tile). Unknown things get a
tile with their letter.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape as xml_escape
from pathlib import Path

from echoscope.text import pictures
from echoscope.text.sentences import wrapped

from ..charts.theme import style_sheet
from ..escaping import attribute, visible

TILE = 32
_MARGIN = 16
_LINE_HEIGHT = 18
_CARD_COLUMNS = 40
_MAX_NUMBERED = 24
"""Rows and columns up to which their numbers stand at the edge."""
MAX_NAME_CHARS = 40
MAX_LINES = 60
MAX_LINE_CHARS = 400
_LOOK = Path(__file__).parent / "look"
_STYLE = style_sheet(_LOOK / "boards.css")
"""Shapes are shown through `<use>`, where only selectors of a single element match."""


def _read_shapes() -> Mapping[str, str]:
    """Name -> drawing, of `shapes.svg`; a drawing with a PAINT in each of the paints."""
    shapes = {}
    text = (_LOOK / "shapes.svg").read_text(encoding="utf-8")
    for name, lines in re.findall(r'<g id="([\w-]+)">(.*?)</g>', text, re.DOTALL):
        drawing = " ".join(lines.split()).replace("> <", "><")
        for paint, colour in _PAINTS.items() if "PAINT" in name else [("", "")]:
            thing = name.replace("PAINT", paint).replace("-", " ")
            shapes[thing] = drawing.replace("PAINT", colour).replace("LETTER", paint[:1].upper())
    return shapes


_PAINTS: Mapping[str, str] = {
    "red": "#e8685f", "blue": "#7fa5f5", "green": "#6cc07a", "yellow": "#f4d73b",
    "white": "#f7f7f4", "orange": "#f59a3c",
}  # fmt: skip
_SHAPES = _read_shapes()
_BACKGROUNDS = ("floor", "ice", "wall", "nothing")
"""Too many to be told one by one in a description."""


Position = tuple[int, int]
"""Row and column, from 0 at the top left."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """Something that stands on a cell."""

    name: str
    at: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A board: one character per cell, what each means, and what stands on cells."""

    cells: tuple[str, ...]
    legend: dict[str, str]
    overlays: tuple[Overlay, ...]
    block: int
    """Side of the square blocks that thicker lines part; larger than the board: none."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.cells), len(self.cells[0])

    def cell(self, position: Position) -> str:
        """What a cell is."""
        return self.legend[self.cells[position[0]][position[1]]]

    def find(self, name: str) -> Position | None:
        """Where the first overlay of that name stands."""
        return next((overlay.at for overlay in self.overlays if overlay.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Lines of text under a title."""

    title: str
    lines: tuple[str, ...]

    def find(self, name: str) -> Position | None:
        """None: nothing stands anywhere."""
        return None


Frame = Grid | Card


def read_frame(text: str) -> Frame:
    """The content of a stored frame. Never raises: what is no frame is a card that says so."""
    try:
        frame = pictures.read_frame(text)
    except ValueError as error:
        safe = visible(text, limit=MAX_LINE_CHARS * 4)
        lines = tuple(row for line in safe.split("\n")[:MAX_LINES] for row in wrapped(line, 80))
        return Card(title="Not a frame", lines=(f"{error}. It holds:", *lines))
    if frame["kind"] == "card":
        return Card(title=_name(frame["title"], 2), lines=_shown_lines(frame["lines"]))
    return Grid(
        cells=tuple(frame["cells"]),
        legend={char: _name(name) for char, name in frame["legend"].items()},
        overlays=tuple(
            Overlay(_name(o["is"]), (o["at"][0], o["at"][1])) for o in frame["overlays"]
        ),
        block=frame["block"],
    )


def _name(text: str, times: int = 1) -> str:
    return visible(text, times * MAX_NAME_CHARS)


def _shown_lines(lines: Sequence[str]) -> tuple[str, ...]:
    safe = tuple(visible(line, MAX_LINE_CHARS) for line in lines[:MAX_LINES])
    left_out = len(lines) - MAX_LINES
    return (*safe, f"[{left_out:,} more lines are not shown]") if left_out > 0 else safe


def board_html(
    frame: str, marks: Sequence[tuple[str, Position]] = (), *, max_width: int = 320
) -> str:
    """The picture of a stored frame as an `<img>` whose `alt` says what is on it. Never raises.

    Args:
        frame: JSON text as stored; anything else becomes a card with the text.
        marks: more to draw on a grid, such as ("start", (0, 0)) or ("slip", (2, 1)); those outside
            the board are left out.
    """
    content = _marked(read_frame(frame), marks)
    width, _ = _size(content)
    width = min(round(width * 1.4), max_width)
    return _img("es-board-img", "svg+xml", _svg(content).encode("utf-8"), describe(content), width)


def picture_html(png: bytes, description: str, *, max_width: int = 320) -> str:
    """A stored picture as an `<img>`, once it is known to be a PNG within the limits; else why not.

    Args:
        png: Bytes of any origin.
        description: What it shows, for screen readers.
    """
    try:
        width, height = pictures.picture_size(png)
    except pictures.PictureError as error:
        return f'<div class="es-note">{xml_escape(visible(str(error), 300))}</div>'
    alt = f"{description}, {width} x {height} pixels"
    return _img("es-picture", "png", png, alt, min(max(width, 64), max_width))


def _img(css: str, kind: str, data: bytes, alt: str, width: int) -> str:
    payload = base64.b64encode(data).decode("ascii")
    return (
        f'<img class="{css}" src="data:image/{kind};base64,{payload}" alt="{attribute(alt, 600)}" '
        f'style="width:{width}px;max-width:100%;height:auto">'
    )


def describe(content: Frame) -> str:
    """What is on a frame, in words: for screen readers."""
    if isinstance(content, Card):
        return "\n".join([content.title, *content.lines])
    rows, cols = content.shape
    parts = [f"{o.name} at row {o.at[0]}, column {o.at[1]}" for o in content.overlays[:20]]
    places: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for row in range(rows):
        for col in range(cols):
            name = content.cell((row, col))
            counts[name] += 1
            if name not in _BACKGROUNDS and counts[name] <= 12:
                places.setdefault(name, []).append(f"({row}, {col})")
    parts += [f"{name} at {' '.join(squares)}" for name, squares in places.items()]
    parts += [f"{counts[name]} cells of {name}" for name in _BACKGROUNDS if counts[name]]
    return f"Board of {rows} rows and {cols} columns, counted from 0: {'; '.join(parts)}."


def _marked(content: Frame, marks: Sequence[tuple[str, Position]]) -> Frame:
    if isinstance(content, Card) or not marks:
        return content
    rows, cols = content.shape
    added = [
        Overlay(name, position)
        for name, position in marks
        if 0 <= position[0] < rows and 0 <= position[1] < cols
    ]
    return replace(content, overlays=(*content.overlays, *added))


def _size(content: Frame) -> tuple[int, int]:
    if isinstance(content, Card):
        rows = len(_card_rows(content))
        return _CARD_COLUMNS * 7 + 24, (rows + 1) * _LINE_HEIGHT + 20
    rows, cols = content.shape
    return cols * TILE + 2 * _MARGIN, rows * TILE + 2 * _MARGIN


def _svg(content: Frame) -> str:
    width, height = _size(content)
    body = _card_body(content) if isinstance(content, Card) else _grid_body(content)
    title = "Card" if isinstance(content, Card) else "Board"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="es-board" role="img" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<title>{title}</title><desc>{xml_escape(visible(describe(content), 4_000))}</desc>"
        f"{_STYLE}{body}</svg>"
    )


def _grid_body(grid: Grid) -> str:
    rows, cols = grid.shape
    places = [(row, col) for row in range(rows) for col in range(cols)]
    things = [(position, grid.cell(position), _cell(grid, position)) for position in places]
    things += [(overlay.at, *_thing(grid, overlay)) for overlay in grid.overlays]
    used = {name for _, name, _ in things if name in _SHAPES}
    parts = [_definitions(used)]
    for position, name, shape in things:
        # A figure on a goal, a hole or a target leaves room to see what it stands on.
        is_small = name == "player" and grid.cell(position) not in _BACKGROUNDS
        parts.append(_placed(position, name, shape, 0.66 if is_small else 1.0))
    parts.append(_block_lines(grid))
    # The net of a cube has no rows and columns.
    if max(rows, cols) <= _MAX_NUMBERED and "nothing" not in used:
        half = TILE // 2
        parts += [
            _number_at(_MARGIN // 2, _MARGIN + row * TILE + half + 3, row) for row in range(rows)
        ]
        parts += [_number_at(_MARGIN + col * TILE + half, _MARGIN - 5, col) for col in range(cols)]
    return "".join(parts)


def _block_lines(grid: Grid) -> str:
    rows, cols = grid.shape
    block, low = grid.block, _MARGIN
    strokes = [f"M{low + n * TILE} {low}v{rows * TILE}" for n in range(block, cols, block)]
    strokes += [f"M{low} {low + n * TILE}h{cols * TILE}" for n in range(block, rows, block)]
    if not strokes:
        return ""
    return f'<path d="{"".join(strokes)}" stroke="var(--ink)" stroke-width="2.4" fill="none"/>'


def _number_at(x: int, y: int, number: int) -> str:
    return f'<text class="es-l es-n" x="{x}" y="{y}">{number}</text>'


def _definitions(names: Iterable[str]) -> str:
    """Each known shape once, whatever the number of cells that show it."""
    shapes = (f'<g id="{_shape_id(name)}">{_SHAPES[name]}</g>' for name in sorted(names))
    return f"<defs>{''.join(shapes)}</defs>"


def _shape_id(name: str) -> str:
    return f"es-{name.replace(' ', '-')}"


def _placed(position: Position, name: str, shape: str, scale: float) -> str:
    x, y = _MARGIN + position[1] * TILE, _MARGIN + position[0] * TILE
    if name in _SHAPES and scale == 1.0:
        return f'<use href="#{_shape_id(name)}" x="{x}" y="{y}"/>'
    if name in _SHAPES:  # in the lower left of the tile
        transform = f"translate({x} {y + TILE * (1 - scale):g}) scale({scale:g})"
        return f'<use href="#{_shape_id(name)}" transform="{transform}"/>'
    return f'<g transform="translate({x} {y})">{shape}</g>'


def _cell(grid: Grid, position: Position) -> str:
    """The drawing of an unknown cell; a known one is drawn by name, and a number as it is."""
    kind = grid.cell(position)
    if kind in _SHAPES:
        return ""
    tile = '<rect width="32" height="32" fill="var(--other)" stroke="var(--line)"/>'
    return tile + _letter(kind if kind.isdecimal() else grid.cells[position[0]][position[1]])


def _thing(grid: Grid, overlay: Overlay) -> tuple[str, str]:
    """Name, and the drawing if the name is unknown."""
    name = overlay.name
    if name == "box" and grid.cell(overlay.at) == "target":
        name = "box on target"
    if name in _SHAPES:
        return name, ""
    disc = '<circle cx="16" cy="16" r="11" fill="var(--other)" stroke="var(--ink)"/>'
    return name, disc + _letter(name[:1].upper())


def _letter(char: str) -> str:
    safe = visible(char) if char.strip() else ""
    size = {1: 16, 2: 15, 3: 13, 4: 11}.get(len(safe), 9 if safe.isdecimal() else 5)
    return f'<text class="es-l" x="16" y="21" style="font-size:{size}px">{xml_escape(safe)}</text>'


def _card_rows(card: Card) -> list[str]:
    size = _CARD_COLUMNS - 2
    return [row for line in card.lines for row in wrapped(line, size)]


def _card_body(card: Card) -> str:
    title = f'<text class="es-l es-h" x="12" y="24">{xml_escape(card.title)}</text>'
    lines = [
        f'<text class="es-l es-c" x="12" y="{24 + _LINE_HEIGHT * n}">{xml_escape(line)}</text>'
        for n, line in enumerate(_card_rows(card), start=1)
    ]
    return title + "".join(lines)
