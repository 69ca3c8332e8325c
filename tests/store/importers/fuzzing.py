"""Damages every fixture and imports it: `python tests/store/importers/fuzzing.py 1000`.

The seed is new each time and told; ECHOSCOPE_SEED repeats one.

A damaged file is imported, refused with a sentence, or partly imported; nothing else. The run lists
which sentences came of it, with how often.
"""

from __future__ import annotations

import gzip
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "shared"))
from harness_seed import draw, told
from rollout_import import import_run

from echoscope.store.importers.importing import ImportingError
from echoscope.store.importers.survey import is_rollouts

FIXTURES = Path(__file__).parent / "fixtures"
FOLDERS = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
_TOKENS = (
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"null", b"true", b"-1", b"[]", b"{}", b'""'),
    *(b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\r\n"),
    *(
        b'"\\ud800"',
        b"cos\nsystem\n(S'x'\ntR.",
        b"\x80\x04\x95",
        b"PK\x03\x04",
        b"PAR1",
        b"- &a *a",
    ),
)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def flipped(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def with_token(data: bytes, rng: random.Random) -> bytes:
    """A piece is replaced by what parsers stumble over."""
    start = rng.randrange(len(data))
    return data[:start] + rng.choice(_TOKENS) + data[start + rng.choice((0, 1, 4, 30)) :]


def with_value(data: bytes, rng: random.Random) -> bytes:
    """A value of a JSON text is replaced by another."""
    values = [*re.finditer(rb'(?<=: )[^,{}\[\]]+|(?<=":)[^,{}\[\]]+', data)]
    if not values:
        return with_token(data, rng)
    chosen = rng.choice(values)
    return data[: chosen.start()] + rng.choice(_TOKENS) + data[chosen.end() :]


def doubled(data: bytes, rng: random.Random) -> bytes:
    start, stop = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:stop] + data[start:stop] * rng.randint(1, 3) + data[stop:]


def recoded(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", errors="replace")
    return text.encode(
        rng.choice(("utf-16", "utf-16-be", "utf-32", "utf-8-sig", "cp037")), "replace"
    )


def packed(data: bytes, rng: random.Random) -> bytes:
    whole = gzip.compress(data, 1)
    return whole if rng.random() < 0.5 else flipped(whole, rng)


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(cut, flipped, with_token, with_value, with_value, doubled, recoded, packed),
)


def damaged_folder(folder: Path, target: Path, rng: random.Random) -> str:
    """Copy a fixture and damage one of its files; which damage."""
    shutil.copytree(folder, target)
    files = sorted(path for path in target.rglob("*") if path.is_file() and path.stat().st_size)
    chosen = rng.choice(files)
    damage = rng.choice(DAMAGES)
    chosen.write_bytes(damage(chosen.read_bytes(), rng))
    if rng.random() < 0.1:
        chosen.rename(chosen.with_suffix(rng.choice((".pkl", ".jsonl", ".json", ".eval", ".pt"))))
    if rng.random() < 0.1:
        other = FIXTURES / rng.choice(FOLDERS)
        shutil.copytree(other, target / "mixed", dirs_exist_ok=True)
    return damage.__name__


def outcomes(name: str, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """(damage, what came of it) of a number of damaged copies of a fixture.

    Raises:
        Anything that an import must not raise.
    """
    rng = random.Random(f"{name} {seed}")
    for _ in range(count):
        with tempfile.TemporaryDirectory(prefix="echoscope-fuzz-") as folder:
            target = Path(folder) / "in"
            damage = damaged_folder(FIXTURES / name, target, rng)
            is_rollouts(target)
            try:
                report = import_run(target, Path(folder) / "run", is_packing=False)
            except ImportingError as error:
                yield damage, f"refused: {_sentence(str(error), target)}"
                continue
            reasons = [*report.survey.refused_rows.counts, *report.survey.refused_files.counts]
            yield damage, "; ".join(sorted(map(_short, reasons))) or "all imported"


def _sentence(text: str, target: Path) -> str:
    return _short(text.replace(str(target), ""))


def _short(text: str) -> str:
    """A reason without its numbers and names."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\d[\d,.]*", "#", text.encode("ascii", "replace").decode())
    return text[:110]


def main() -> None:
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    sys.stdout.write(f"damaged imports {told()}\n")
    started = time.perf_counter()
    counts: Counter[str] = Counter()
    per_folder = max(1, total // len(FOLDERS))
    slowest = 0.0
    for name in FOLDERS:
        before = time.perf_counter()
        for _, outcome in outcomes(name, per_folder, draw()):
            counts[outcome] += 1
            slowest = max(slowest, time.perf_counter() - before)
            before = time.perf_counter()
    seconds = time.perf_counter() - started
    lines = [f"{times:6} {outcome}" for outcome, times in counts.most_common(40)]
    head = f"{counts.total():,} damaged folders in {seconds:.0f} s, the slowest {slowest:.1f} s;"
    sys.stdout.write("\n".join([f"{head} no other error than a refusal", *lines]) + "\n")


if __name__ == "__main__":
    main()
