"""Pictures that a trainer wrote as files beside its rows, given to the turns that saw them.

VAGEN does so. Its training numbers the pictures of a row and marks their places in the text; its
evaluation names each picture after its turn. A stored turn has one picture: the last one that its
observation shows.
"""

from __future__ import annotations

import bisect
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from echoscope.text.png import MAX_BYTES, PictureError, open_picture, picture_key

from ..draft import Draft, PictureFiles
from ..sources import JsonLines, Source, natural
from ..survey import Refusals

MAX_STEP_BYTES = 128 << 20
"""Of the different pictures of one step: they are in memory until the step is written."""
MAX_FILES = 2_000
"""Pictures of one episode."""
_MARKS = (
    re.compile(r"<\|vision_start\|>"),
    re.compile(r"(?:<\|image_pad\|>)+"),
    re.compile(r"<image>"),
    re.compile(r"<img>"),
)
"""What chat templates put in the place of a picture: Qwen's, then those of others."""
_NUMBERED = re.compile(r"(\d{1,6})\.png")
_OF_TURN = re.compile(r"turn_(\d{2,6})_(\d{2,6})\.png")


class Pictures:
    """Reads the pictures of a step's episodes. `start_step` begins the next step.

    Args:
        root: What is imported, a file or a folder: no picture is read from outside of it.
    """

    def __init__(self, root: Path) -> None:
        self.num_kept = 0
        """Turns and ends of episodes that have a picture."""
        self.left_out = Refusals()
        self._base = root if root.is_dir() else root.parent
        self._resolved = self._base.resolve()
        self._of_step: dict[str, bytes] = {}
        """Name of a picture -> its bytes: equal pictures are in memory once."""
        self._num_bytes = 0
        self._line_ends: tuple[Path, list[int]] | None = None

    def start_step(self) -> None:
        """Forget the pictures of the step before."""
        self._of_step, self._num_bytes = {}, 0

    def add(self, draft: Draft, source: Source, place: int) -> None:
        """Give a draft's turns their pictures, where there are any.

        Args:
            place: Of the row in its source.
        """
        where = draft.pictures
        if where is None or not draft.turns or not self._is_readable(self._base / where.folder):
            return
        shown = (
            self._of_row(draft, where, source, place)
            if where.is_of_rows
            else self._of_turns(draft, where)
        )
        ends: list[bytes | None] = [None] * (len(draft.turns) + 1)
        for number, files in enumerate(shown):
            if len(files) > 1:
                self.left_out.add(
                    "an observation shows several; the last one is kept",
                    self._shown(files[0]),
                    len(files) - 1,
                )
            ends[number] = self._read(files[-1]) if files else None
        for turn, picture in zip(draft.turns, ends, strict=False):
            turn.image = picture
        draft.final_image = ends[-1]
        self.num_kept += sum(picture is not None for picture in ends)

    def _is_readable(self, folder: Path) -> bool:
        return folder.is_dir() and folder.resolve().is_relative_to(self._resolved)

    def _of_row(
        self, draft: Draft, where: PictureFiles, source: Source, place: int
    ) -> list[list[Path]]:
        """For each observation, and the one after the last reply, the files it shows."""
        number = self._line_number(source, place)
        folder = self._base / where.folder / f"images_{number}"
        files = self._named(folder, _NUMBERED) if number is not None else []
        texts = [*(turn.observation for turn in draft.turns), draft.final_observation]
        if draft.fields.get("system"):
            texts[0] = f"{draft.fields['system']}{texts[0]}"
        for mark in _MARKS:
            counts = [len(mark.findall(text)) for text in texts]
            if files and sum(counts) == len(files):
                return _dealt(files, counts)
        if files and len(files) in (len(draft.turns), len(texts)):
            draft.reconstructed.add("pictures")
            return [[file] for file in files]
        if files:
            self.left_out.add(
                "the text does not mark as many pictures as the row has",
                self._shown(folder),
                len(files),
            )
        return []

    def _of_turns(self, draft: Draft, where: PictureFiles) -> list[list[Path]]:
        folder = self._base / where.folder
        shown: list[list[Path]] = [[] for _ in range(len(draft.turns) + 1)]
        for file in self._named(folder, _OF_TURN):
            named = _OF_TURN.fullmatch(file.name)
            turn = int(named[1]) if named else 0
            if 1 <= turn <= len(shown):
                shown[turn - 1].append(file)
            else:
                self.left_out.add("no turn has its number", self._shown(file))
        return shown

    def _named(self, folder: Path, pattern: re.Pattern[str]) -> list[Path]:
        """The regular files of a folder with such names, by their numbers."""
        if not self._is_readable(folder):
            return []
        with os.scandir(folder) as entries:
            names = sorted((e.name for e in entries if pattern.fullmatch(e.name)), key=natural)
        if len(names) > MAX_FILES:
            self.left_out.add(
                f"an episode may have {MAX_FILES:,} pictures",
                self._shown(folder),
                len(names) - MAX_FILES,
            )
        return [folder / name for name in names[:MAX_FILES]]

    def _read(self, file: Path) -> bytes | None:
        """The bytes of a picture; None where it is refused."""
        try:
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise PictureError("it is a link or no regular file")
            if status.st_size > MAX_BYTES:
                raise PictureError(f"a picture may have {MAX_BYTES:,} bytes")
            png = file.read_bytes()
            known = self._of_step.get(picture_key(png))
            if known is not None:
                return known
            if self._num_bytes + len(png) > MAX_STEP_BYTES:
                raise PictureError(f"the pictures of a step may have {MAX_STEP_BYTES >> 20} MB")
            open_picture(png)
        except PictureError as error:
            self.left_out.add(str(error), self._shown(file))
            return None
        except OSError as error:
            self.left_out.add(error.strerror or str(error), self._shown(file))
            return None
        self._of_step[picture_key(png)] = png
        self._num_bytes += len(png)
        return png

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._base))

    def _line_number(self, source: Source, place: int) -> int | None:
        """The number of a line from 0, by its first byte; None where rows are no lines."""
        if not isinstance(source, JsonLines):
            return None
        if self._line_ends is None or self._line_ends[0] != source.path:
            with source.path.open("rb") as file:
                ends, at = [], 0
                while block := file.read(1 << 20):
                    ends += [at + found.start() for found in re.finditer(b"\n", block)]
                    at += len(block)
            self._line_ends = source.path, ends
        return bisect.bisect_left(self._line_ends[1], place)


def _dealt(files: Sequence[Path], counts: Sequence[int]) -> list[list[Path]]:
    """Files in order, so many to each."""
    dealt, at = [], 0
    for count in counts:
        dealt.append(list(files[at : at + count]))
        at += count
    return dealt
