"""Own panels: pages of charts that people put together, kept as a few lines of YAML in the root.

    pages:
      main:
      - metric: policy/entropy
        width: half
      - sql: SELECT step, success_rate FROM steps ORDER BY step

Several people may change them at once: each change is made to what the file says at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from echoscope.text.yaml_text import YamlError, read_yaml_file

from ..errors import AnnotationError, StoreError
from ..log.durable import changing, replace_file
from ..log.remote.pulling import refuse_copy_of_root
from .annotation_file import one_line

FILE = "panels.yaml"
MAX_PAGES = 20
MAX_PANELS = 24
"""Of a page."""
FIRST_PAGE = "main"
HEIGHTS = (140, 900)
"""Pixels: the lowest and the highest panel."""
MAX_SQL = 20_000
"""Characters of a query."""


_Line = Annotated[str, StringConstraints(max_length=120), AfterValidator(one_line)]
_Key = Annotated[str, StringConstraints(min_length=1, max_length=300), AfterValidator(one_line)]
PageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}$")]


class Panel(BaseModel):
    """One chart, or the answer to one query, and how it is shown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    metric: _Key | None = None
    """Key of a metric."""
    chart: _Key | None = None
    """Name of a chart of the page Live."""
    sql: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SQL)] | None = None
    """One SELECT over the tables of a run."""
    title: _Line = ""
    """In place of the usual one."""
    width: Literal["third", "half", "full"] = "third"
    height: Annotated[int, Field(ge=HEIGHTS[0], le=HEIGHTS[1])] = 260
    """Pixels."""
    log: bool = False
    """Logarithmic scale."""
    clip: bool = False
    """The scale leaves out outliers."""
    x: Literal["step", "time", "tokens"] = "step"
    smooth: Annotated[float, Field(ge=0, le=0.99)] = 0.0

    @model_validator(mode="after")
    def _shows_one_thing(self) -> Self:
        if sum(part is not None for part in (self.metric, self.chart, self.sql)) != 1:
            raise ValueError("a panel shows one thing: give metric, chart or sql")
        return self


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pages: Annotated[
        dict[PageName, Annotated[list[Panel], Field(max_length=MAX_PANELS)]],
        Field(max_length=MAX_PAGES),
    ]


Pages = Mapping[str, Sequence[Panel]]


def read_pages(root: Path) -> Pages:
    """The pages of a root by name; none where there is no file.

    Raises:
        StoreError: the file says something that no page may say, or cannot be read. Hostile.
    """
    path = root / FILE
    try:
        value = read_yaml_file(path)
        return {} if value is None else _File.model_validate(value).pages
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _broken(f"{path}: {error.strerror or error}") from error
    except YamlError as error:
        raise _broken(f"{path} {error}") from None
    except ValidationError as error:
        raise _broken(f"{path}: {_sentence(error)}") from None


def _broken(text: str) -> StoreError:
    return StoreError(f"{text}. Correct the file or move it away")


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    rule = first["msg"].removeprefix("Value error, ")
    return f"{name or 'the file'}: {rule[:1].lower()}{rule[1:]}"


def made(**fields: Any) -> Panel:
    """A panel of what a person chose.

    Raises:
        AnnotationError: it is none.
    """
    try:
        return Panel(**fields)
    except ValidationError as error:
        raise AnnotationError(f"this panel cannot be kept: {_sentence(error)}") from None


# --- changes


def add(root: Path, page: str, panel: Panel) -> None:
    """Put a panel at the end of a page, which is made if it is not there.

    Raises:
        StoreError: as of all changes: the file is broken or full, or the disk refuses. Nothing is
            changed then.
        AnnotationError: no page may have this name.
    """
    with _changing(root) as pages:
        pages.setdefault(page, []).append(panel)


def replace(root: Path, page: str, old: Panel, new: Panel) -> None:
    """Put another panel in the place of one.

    Raises:
        StoreError: as `add`, or somebody changed or removed the panel meanwhile.
    """
    with _changing(root) as pages:
        index = _place(pages, page, old)
        pages[page][index] = new


def remove(root: Path, page: str, panel: Panel) -> None:
    """Take a panel away; a page without any is gone. Raises as `replace`."""
    with _changing(root) as pages:
        index = _place(pages, page, panel)
        del pages[page][index]
        if not pages[page]:
            del pages[page]


def move(root: Path, page: str, panel: Panel, by: int) -> None:
    """Move a panel by so many places; not beyond the ends. Raises as `replace`."""
    with _changing(root) as pages:
        index = _place(pages, page, panel)
        pages[page].insert(max(0, index + by), pages[page].pop(index))


def _place(pages: Mapping[str, list[Panel]], page: str, panel: Panel) -> int:
    if panel not in pages.get(page, ()):
        raise StoreError("somebody changed or removed this panel meanwhile; nothing was changed")
    return pages[page].index(panel)


@contextmanager
def _changing(root: Path) -> Iterator[dict[str, list[Panel]]]:
    """What the file says now, to be changed; readers see the old file or the new one."""
    refuse_copy_of_root(root)
    with changing(root / FILE):
        pages = {name: list(panels) for name, panels in read_pages(root).items()}
        yield pages
        replace_file(root / FILE, _text(pages).encode())


def _text(pages: Pages) -> str:
    """The file: of each panel what is not as usual.

    Raises:
        AnnotationError: more pages or panels than there may be, or a name that no page may have.
    """
    value = {
        "pages": {
            name: [panel.model_dump(exclude_defaults=True) for panel in panels]
            for name, panels in pages.items()
        }
    }
    try:
        _File.model_validate(value)
    except ValidationError as error:
        raise AnnotationError(f"{_sentence(error)}; nothing was changed") from None
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
