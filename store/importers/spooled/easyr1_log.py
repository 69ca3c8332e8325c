"""EasyR1's `generations.log`: four labelled texts a sample, without steps.

Every validation appends its samples in the same order. So where the prompts come again as before,
the next validation begins, and its number stands for the step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ..lines import MAX_LINE_BYTES

_LABELS = (b"[prompt] ", b"[output] ", b"[ground_truth] ", b"[score] ")
_NAMES = ("prompt", "output", "ground_truth", "score")
_BLOCK = 1 << 20


@dataclass(slots=True)
class Sample:
    """The texts of one sample, as far as they stand in the file; the first problem it has."""

    lines: list[list[bytes]] = field(default_factory=list)
    """Of each text, while it is read."""
    texts: list[bytes] = field(default_factory=list)
    problem: str = ""
    place: int = 0
    """Where it begins in the file."""
    size: int = 0
    """How many bytes of the file it has."""

    @property
    def is_closed(self) -> bool:
        """Whether it is whole, and has the blank line that EasyR1 writes behind each sample."""
        return self.is_whole and self.texts[-1].endswith(b"\n")

    @property
    def is_whole(self) -> bool:
        return len(self.texts) == len(_LABELS) and not self.problem


def is_generations(path: Path, head: bytes) -> bool:
    """Whether a file begins as such a log, and its first sample has all labels in their order."""
    if not head.removeprefix(b"\xef\xbb\xbf").startswith(_LABELS[0]):
        return False
    with path.open("rb") as file:
        first = next(samples(file), None)
    return first is not None and first.is_whole


def write_samples(path: Path, target: Path) -> None:
    """Write the samples as JSON lines, each with the number of its validation where there are
    several. A sample that is not whole has the key `problem`.
    """
    with path.open("rb") as file:
        prompts, is_torn = [], False
        for sample in samples(file):
            prompts.append(prompt_digest(sample))
            is_torn = not sample.texts[1:]
        # Half a prompt is no other prompt: it says nothing of where a validation begins.
        period = period_of(prompts[:-1] if is_torn else prompts)
    with path.open("rb") as file, target.open("w", encoding="utf-8") as out:
        for number, sample in enumerate(samples(file)):
            row = row_of(sample, number // period if period else None)
            out.write(json.dumps(row) + "\n")


def row_of(sample: Sample, validation: int | None) -> dict[str, object]:
    """A sample as the format "EasyR1 generations" reads it."""
    texts = [text.decode("utf-8", "replace") for text in sample.texts]
    row: dict[str, object] = {"easyr1": dict(zip(_NAMES, texts, strict=False))}
    if validation is not None:
        row["validation"] = validation
    if not sample.is_whole:
        row["problem"] = sample.problem or "the sample is not written to its end"
    return row


def samples(file: BinaryIO) -> Iterator[Sample]:
    """The samples in bounded memory: what is longer than a line may be is cut, and said."""
    sample: Sample | None = None
    place, is_first = file.tell(), True
    while line := file.readline(_BLOCK):
        size = len(line)
        if is_first:
            line, is_first = line.removeprefix(b"\xef\xbb\xbf"), False
        number = len(sample.lines) if sample else 0
        is_over = number == len(_LABELS)
        if line.startswith(_LABELS[0]) and (sample is None or is_over):
            if sample is not None:
                yield _ended(sample)
            sample, number = Sample(place=place), 0
        place += size
        if sample is None:
            continue  # blank lines before the first sample
        sample.size += size
        if sample.size > MAX_LINE_BYTES:
            sample.problem = "a sample of more than 16 MB"
        elif number < len(_LABELS) and line.startswith(_LABELS[number]):
            sample.lines.append([line.removeprefix(_LABELS[number])])
        elif sample.lines:
            sample.lines[-1].append(line)
    if sample is not None:
        yield _ended(sample)


def _ended(sample: Sample) -> Sample:
    texts = [b"".join(lines) for lines in sample.lines]
    if len(texts) == len(_LABELS) and not texts[-1].endswith(b"\n"):
        del texts[-1]  # a score may be half written
    sample.lines, sample.texts = [], [text.removesuffix(b"\n") for text in texts]
    return sample


def prompt_digest(sample: Sample) -> bytes:
    prompt = sample.texts[0] if sample.texts else b""
    return hashlib.blake2b(prompt, digest_size=8).digest()


def period_of(prompts: Sequence[bytes]) -> int:
    """After how many samples all prompts come again in their order; 0 where they never do.

    >>> period_of([b"a", b"b", b"a", b"b", b"a"]), period_of([b"a", b"b", b"c"])
    (2, 0)
    """
    borders = [0] * len(prompts)
    border = 0
    for place in range(1, len(prompts)):
        while border and prompts[place] != prompts[border]:
            border = borders[border - 1]
        border += prompts[place] == prompts[border]
        borders[place] = border
    period = len(prompts) - border
    return period if prompts and 2 * period <= len(prompts) else 0
