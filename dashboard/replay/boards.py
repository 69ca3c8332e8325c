"""Frames -> SVG pictures that are readable in light and dark, without colour, and read aloud.

Every thing has a shape and mostly a letter of its own; colours only help. The SVG brings its own
style with a media query, so it follows the theme as `<img>` and inline alike; it holds no script,
link or foreign element, and every text in it is escaped. `board_html` makes the `<img>` of a page.

To draw one more thing, add a shape to `_SHAPES` (a 32 x 32 tile). Unknown things get a tile with
their letter.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape as xml_escape
from pathlib import Path

from echoscope.text.png import PictureError, picture_size
from echoscope.text.sentences import wrapped

from ..charts.theme import style_sheet
from ..escaping import attribute, visible
from .frames import Card, Frame, Grid, Overlay, Position, read_frame

TILE = 32
_MARGIN = 16
_LINE_HEIGHT = 18
_CARD_COLUMNS = 40
_MAX_NUMBERED = 24
"""Rows and columns up to which their numbers stand at the edge."""
_STYLE = style_sheet(Path(__file__).parent / "css" / "boards.css")
"""Shapes are shown through `<use>`, where only selectors of a single element match."""


def _rect(fill: str) -> str:
    return f'<rect width="32" height="32" fill="var(--{fill})" stroke="var(--line)"/>'


def _sticker(colour: str, letter: str) -> str:
    """Of a cube; its letter is dark in both themes, because the colour is the same in both."""
    return (
        f'<rect x="1" y="1" width="30" height="30" rx="4" fill="{colour}" stroke="#1d232b"/>'
        f'<text class="es-l" x="16" y="20" style="fill:#1d232b">{letter}</text>'
    )


def _key(colour: str, letter: str) -> str:
    return (
        f'<path d="M17 14h12v4h-3v4h-4v-4h-5z" fill="{colour}" stroke="#1d232b"/>'
        f'<circle cx="11" cy="16" r="8" fill="{colour}" stroke="#1d232b"/>'
        f'<text class="es-l" x="11" y="20" style="fill:#1d232b">{letter}</text>'
    )


def _door(colour: str, letter: str) -> str:
    return (
        f'<rect x="3" y="1" width="26" height="30" rx="2" fill="{colour}" stroke="#1d232b" '
        'stroke-width="2"/><circle cx="24" cy="20" r="2" fill="#1d232b"/>'
        f'<text class="es-l" x="14" y="20" style="fill:#1d232b">{letter}</text>'
    )


_PAINTS: Mapping[str, str] = {
    "red": "#e8685f", "blue": "#7fa5f5", "green": "#6cc07a", "yellow": "#f4d73b",
}  # fmt: skip
_FLOOR = _rect("floor")
_ICE = (
    _rect("ice") + '<path d="M5 11l6-6M5 27L11 21M20 12l7-7M21 27l6-6" stroke="var(--frost)" '
    'stroke-width="1.4" fill="none"/>'
)
_FIGURE = (
    '<circle cx="16" cy="9" r="5" fill="var(--player)" stroke="var(--paper)" stroke-width="1.5"/>'
    '<path d="M5 29c0-9 4-14 11-14s11 5 11 14z" fill="var(--player)" stroke="var(--paper)" '
    'stroke-width="1.5"/>'
    '<text class="es-l" x="16" y="27" style="fill:var(--on-player)">P</text>'
)
_CRATE = (
    '<rect x="4" y="4" width="24" height="24" rx="2" fill="var(--box)" stroke="var(--box-line)" '
    'stroke-width="2"/><path d="M5 5l22 22M27 5L5 27" stroke="var(--box-line)" '
    'stroke-width="1.6"/>'
)
_RING = (
    '<circle cx="16" cy="16" r="9" fill="none" stroke="var(--target)" stroke-width="2.4"/>'
    '<circle cx="16" cy="16" r="3" fill="var(--target)"/>'
)
_EDGES = {"north": "16,1 11,6 21,6", "east": "31,16 26,11 26,21", "south": "16,31 11,26 21,26",
          "west": "1,16 6,11 6,21"}  # fmt: skip
_FACING = {
    f"facing {side}": f'<polygon points="{corners}" fill="var(--mark)" stroke="var(--paper)"/>'
    for side, corners in _EDGES.items()
}
"""Triangles at the edge that somebody looks at."""
_SHAPES: Mapping[str, str] = {
    **_FACING,
    "floor": _FLOOR,
    "ice": _ICE,
    "wall": _rect("wall")
    + '<path d="M0 10.5H32M0 21.5H32M11 0V10M22 11V21M11 22V32" stroke="var(--mortar)" '
    'stroke-width="1.6"/>',
    "hole": _ICE
    + '<ellipse cx="16" cy="17" rx="12.5" ry="11" fill="var(--hole)" stroke="var(--ink)"/>'
    '<text class="es-l" x="16" y="21" style="fill:var(--in-hole)">O</text>',
    "goal": _ICE + '<path d="M9 29V4" stroke="var(--ink)" stroke-width="2.2"/>'
    '<path d="M10 4h16l-5 6 5 6H10z" fill="var(--goal)" stroke="var(--ink)"/>'
    '<text class="es-l" x="22" y="29">G</text>',
    "target": _FLOOR + _RING,
    "player": _FIGURE,
    "box": _CRATE,
    "box on target": _CRATE
    + '<circle cx="16" cy="16" r="9" fill="var(--paper)" stroke="var(--target)" '
    'stroke-width="2.4"/>'
    '<path d="M11 16l4 4 7-8" fill="none" stroke="var(--ink)" stroke-width="2.4"/>',
    "start": '<rect x="2.5" y="2.5" width="27" height="27" rx="4" fill="none" '
    'stroke="var(--mark)" stroke-width="2" stroke-dasharray="4 3"/>'
    '<text class="es-l" x="7.5" y="13" style="fill:var(--mark);font-size:9px">S</text>',
    "slip": '<rect x="18" y="1" width="13" height="13" rx="3" fill="var(--paper)" '
    'stroke="var(--mark)" stroke-width="1.4"/><path d="M20.5 10c2-5 3 1 5-3s1-2 3-2.5" '
    'fill="none" stroke="var(--mark)" stroke-width="1.8"/>',
    "placed": '<rect x="3.5" y="3.5" width="25" height="25" rx="12" fill="none" '
    'stroke="var(--player)" stroke-width="1.8"/>',
    "conflict": '<rect x="2.5" y="2.5" width="27" height="27" rx="4" fill="none" '
    'stroke="var(--target)" stroke-width="2.4"/>'
    '<path d="M22 4l6 6M28 4l-6 6" stroke="var(--target)" stroke-width="2"/>',
    "treasure": '<path d="M4 14c0-8 24-8 24 0v14H4z" fill="#f4d73b" stroke="#1d232b" '
    'stroke-width="1.6"/><path d="M4 17h24" stroke="#1d232b" stroke-width="1.6"/>'
    '<rect x="13" y="14" width="6" height="7" fill="#1d232b"/>',
    **{f"{name} key": _key(paint, name[0].upper()) for name, paint in _PAINTS.items()},
    **{f"{name} door": _door(paint, name[0].upper()) for name, paint in _PAINTS.items()},
    "nothing": "",
    "white": _sticker("#f7f7f4", "W"),
    "orange": _sticker("#f59a3c", "O"),
    **{name: _sticker(paint, name[0].upper()) for name, paint in _PAINTS.items()},
}
_BACKGROUNDS = ("floor", "ice", "wall", "nothing")
"""Too many to be told one by one in a description."""


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
    payload = base64.b64encode(_svg(content).encode("utf-8")).decode("ascii")
    return (
        f'<img class="es-board-img" src="data:image/svg+xml;base64,{payload}" '
        f'alt="{attribute(describe(content), 600)}" '
        f'style="width:{min(round(width * 1.4), max_width)}px;max-width:100%;height:auto">'
    )


def picture_html(png: bytes, description: str, *, max_width: int = 320) -> str:
    """A stored picture as an `<img>`, once it is known to be a PNG within the limits; else why not.

    Args:
        png: Bytes of any origin.
        words: What it shows, for screen readers.
    """
    try:
        width, height = picture_size(png)
    except PictureError as error:
        return f'<div class="es-note">{xml_escape(visible(str(error), 300))}</div>'
    payload = base64.b64encode(png).decode("ascii")
    alt = attribute(f"{description}, {width} x {height} pixels", 600)
    return (
        f'<img class="es-picture" src="data:image/png;base64,{payload}" alt="{alt}" '
        f'style="width:{min(max(width, 64), max_width)}px;max-width:100%;height:auto">'
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


def player_position(frame: str) -> Position | None:
    """Where the player stands, if the frame is a grid and has one."""
    content = read_frame(frame)
    return content.find("player") if isinstance(content, Grid) else None


def _marked(content: Frame, marks: Sequence[tuple[str, Position]]) -> Frame:
    if isinstance(content, Card) or not marks:
        return content
    rows, cols = content.shape
    added = [
        Overlay(name=name, at=position)
        for name, position in marks
        if 0 <= position[0] < rows and 0 <= position[1] < cols
    ]
    return content.model_copy(update={"overlays": (*content.overlays, *added)})


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
    return _rect("other") + _letter(
        kind if kind.isdecimal() else grid.cells[position[0]][position[1]]
    )


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
