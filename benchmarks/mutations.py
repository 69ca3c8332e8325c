"""How many planted faults do the tests notice?

    python benchmarks/mutations.py [--only NAME,NAME] [--check] [--whole]

Each mutation of `mutations.toml` changes one place of a clone of the last commit. The tests that it
names are run until the first failure; a mutation that passes them is tried on the whole suite of
`make test` with `--whole`. `--check` only says whether every mutation still fits the code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from common import describe_machine, read_options, temporary_folder

ROOT = Path(__file__).resolve().parent.parent
QUICK = (
    "not slow and not browser and not gpu and not vllm and not ray and not ranks and not s3"
    " and not long"
)
LIMIT_S = 900.0
"""A mutation may make a test hang: that counts as noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One fault."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def problem(self, root: Path) -> str | None:
        """Why it does not fit the code under `root`."""
        path = root / self.file
        if not path.exists():
            return f"{self.file} does not exist"
        number = path.read_text(encoding="utf-8").count(self.before)
        if number != 1:
            return f"{self.file} holds {self.before!r} {number} times, not once"
        missing = [test for test in self.tests if not (root / test).exists()]
        return f"{missing[0]} does not exist" if missing else None


def load(path: Path) -> list[Mutation]:
    """The mutations of a TOML file."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def failing_test(clone: Path, tests: tuple[str, ...]) -> str | None:
    """The first test that fails, or why the run ended otherwise; None where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", QUICK]
    if not tests:
        command += ["-n", "2", "--dist", "worksteal"]
    environment = {**os.environ, "PYTHONPATH": str(clone / ".package"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {LIMIT_S:.0f} s"
    if done.returncode == 0:
        return None
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0][:150] if failures else f"exit status {done.returncode}"


def link_package(clone: Path) -> None:
    """What the install makes: the clone's folders under the name of the package."""
    package = clone / ".package" / "echoscope"
    package.mkdir(parents=True)
    for part in [*(init.parent for init in clone.glob("*/__init__.py")), *clone.glob("__*__.py")]:
        (package / part.name).symlink_to(part)


def main() -> None:
    options = read_options(
        __doc__,
        only=("", "names, separated by commas"),
        check=(False, "run nothing"),
        whole=(False, "then the whole suite"),
    )
    mutations = load(Path(__file__).with_suffix(".toml"))
    if options.only:
        mutations = [each for each in mutations if each.name in options.only.split(",")]
    problems = [f"{each.name}: {text}" for each in mutations if (text := each.problem(ROOT))]
    if problems or options.check:
        print("\n".join(problems) or f"{len(mutations)} mutations fit")
        raise SystemExit(bool(problems))
    print(describe_machine())
    caught = 0
    with temporary_folder() as folder:
        clone = folder / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        link_package(clone)
        for mutation in mutations:
            path = clone / mutation.file
            source = path.read_text(encoding="utf-8")
            path.write_text(source.replace(mutation.before, mutation.after), encoding="utf-8")
            failure = failing_test(clone, mutation.tests)
            if failure is None and options.whole:
                failure = failing_test(clone, ())
            path.write_text(source, encoding="utf-8")
            caught += failure is not None
            print(f"{mutation.name}: {failure or 'ALIVE'}", flush=True)
    print(f"{caught} of {len(mutations)} noticed")


if __name__ == "__main__":
    main()
