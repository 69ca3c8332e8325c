"""Stored frames, read again without trust: JSON text of any origin -> a bounded `Grid` or `Card`.

The two kinds that environments write (docs/environments.md): a **grid** has `size`, `cells`,
`legend` and `overlays`; a **card** has `title` and `lines`. Whatever is neither becomes a card that
says why and shows the text. To add a kind: a class here, in `_FRAME`, and a painter in `boards.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from echoscope.text.sentences import wrapped

from ..escaping import visible

MAX_JSON_CHARS = 200_000
MAX_CELLS = 64 * 64
MAX_OVERLAYS = 512
MAX_NAME_CHARS = 40
MAX_LINES = 60
MAX_LINE_CHARS = 400

Position = tuple[int, int]
"""Row and column, from 0 at the top left."""
Name = Annotated[str, AfterValidator(lambda text: visible(text, MAX_NAME_CHARS))]
Title = Annotated[str, AfterValidator(lambda text: visible(text, MAX_NAME_CHARS * 2))]


def _shown_lines(lines: tuple[str, ...]) -> tuple[str, ...]:
    safe = tuple(visible(line, MAX_LINE_CHARS) for line in lines[:MAX_LINES])
    left_out = len(lines) - MAX_LINES
    return (*safe, f"[{left_out:,} more lines are not shown]") if left_out > 0 else safe


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True)


class Overlay(_Part):
    """Something that stands on a cell."""

    name: Name = Field(alias="is")
    at: Position


class Grid(_Part):
    """A board: one character per cell, what each means, and what stands on cells."""

    kind: Literal["grid"]
    size: Position
    cells: tuple[str, ...]
    legend: dict[str, Name]
    overlays: tuple[Overlay, ...] = Field(default=(), max_length=MAX_OVERLAYS)
    block: int = Field(default=MAX_CELLS, ge=1, le=MAX_CELLS)
    """Side of the square blocks that thicker lines part; larger than the board: none."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.cells or not self.cells[0] or len({len(row) for row in self.cells}) > 1:
            raise ValueError("'cells' must be rows of one length")
        rows, cols = self.shape
        if rows * cols > MAX_CELLS:
            raise ValueError(f"{rows} x {cols} cells, at most {MAX_CELLS:,} are drawn")
        if self.size != self.shape:
            raise ValueError("'size' differs from 'cells'")
        if set("".join(self.cells)) - set(self.legend):
            raise ValueError("'legend' must name every character of 'cells'")
        if not all(0 <= o.at[0] < rows and 0 <= o.at[1] < cols for o in self.overlays):
            raise ValueError("an overlay lies outside the grid")
        return self

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.cells), len(self.cells[0])

    def cell(self, position: Position) -> str:
        """What a cell is."""
        return self.legend[self.cells[position[0]][position[1]]]

    def find(self, name: str) -> Position | None:
        """Where the first overlay of that name stands."""
        return next((overlay.at for overlay in self.overlays if overlay.name == name), None)


class Card(_Part):
    """Lines of text under a title."""

    kind: Literal["card"] = "card"
    title: Title = ""
    lines: Annotated[tuple[str, ...], AfterValidator(_shown_lines)]

    def find(self, name: str) -> Position | None:
        """None: nothing stands anywhere."""
        return None


Frame = Grid | Card
_FRAME: TypeAdapter[Frame] = TypeAdapter(Annotated[Frame, Field(discriminator="kind")])


def read_frame(text: str) -> Frame:
    """The content of a stored frame. Never raises: what is no frame is a card that says so."""
    if len(text) > MAX_JSON_CHARS:
        problem = f"{len(text):,} characters, at most {MAX_JSON_CHARS:,} are read"
    else:
        try:
            return _FRAME.validate_json(text)
        except ValidationError as error:
            problem = _problem(error)
        except UnicodeError:
            problem = "not JSON"
    safe = visible(text, limit=MAX_LINE_CHARS * 4)
    lines = tuple(row for line in safe.split("\n")[:MAX_LINES] for row in wrapped(line, 80))
    return Card.model_construct(title=f"Not a frame: {problem}", lines=lines)


def _problem(error: ValidationError) -> str:
    """The first thing that does not fit."""
    first = error.errors(include_url=False, include_input=False)[0]
    match first["type"]:
        case "json_invalid":
            return "not JSON"
        case "union_tag_invalid" | "union_tag_not_found":
            return "unknown kind, known are card and grid"
        case "value_error":
            return str(first["ctx"]["error"])
    where = ".".join(str(part) for part in first["loc"][1:])
    return f"{where or 'text'}: {first['msg']}"
