"""Types commands that a person gets wrong, and counts what comes of them.

    python tests/cli/odd_input.py [CONFIGURATIONS CALLS FILES]

The seed is new each time and told; ECHOSCOPE_SEED repeats one.

Each wrong configuration must be refused, each odd call and each metrics file refused or answered: a
refusal is one line, or the usage of the command. A traceback, a call that does not end, and an end
of this process are failures.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
from harness_seed import draw, told

from echoscope.cli import main as echoscope
from echoscope.core.config.loading import RECIPES, load_config, merge
from echoscope.store.records import StepMetrics
from echoscope.store.writer import RunWriter

SECONDS = 30
"""Of the clock; a call that is not over by then does not end."""
NESTED = "[" * 5_000 + "]" * 5_000
LONG = "9" * 401


@dataclass(frozen=True, kw_only=True)
class Call:
    """Words behind `echoscope`, and whether they are wrong without doubt."""

    arguments: tuple[str, ...]
    must_be_refused: bool = False


class EndlessError(BaseException):
    """Not an `Exception`: nothing may handle it."""


def _ring(*args: object) -> None:
    raise EndlessError


def outcome_of(call: Call) -> str:
    """refused, answered, or what went wrong."""
    out, err = io.StringIO(), io.StringIO()
    before, typed = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["echoscope", *call.arguments], io.StringIO("quit\n")
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            echoscope()
    except SystemExit as stop:
        code = stop.code
    except EndlessError:
        return "endless"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is counted
        return f"traceback: {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.argv, sys.stdin = before, typed
    errors = err.getvalue()
    if code in (None, 0, 3, 5):
        return "accepted a wrong value" if call.must_be_refused else "answered"
    if code == 2 and "Usage:" in errors:
        return "refused"
    is_line = errors.count("\n") == 1 and "Traceback" not in errors
    if code in (1, 2, 4) and (is_line or not errors):
        return "refused"
    return f"refused in other words ({code}): {errors[:200]!r}"


# -- configurations ------------------------------------------------------------------------------

POISON = (
    *("yes", "off", "1:30", "'1'", "[[[]]]", "{a: {b: 1}}", "1e308", "-1e308", "9" * 300),
    *("-" + "9" * 300, ".inf", "-.inf", ".nan", "2001-01-01", "0b11", "!!set {a}", '"\\uD800"'),
    *("1_000", "*a", "&a [*a]", "!!python/name:os.system", "[", "}", LONG, NESTED, "\udcff"),
)


def numbers(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the settings that are numbers or switches."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from numbers(getattr(value, name), f"{prefix}{name}.")
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        yield from numbers(value[0], f"{prefix}0.")
    elif isinstance(value, bool | int | float):
        yield prefix[:-1]


def configurations(number: int, rng: random.Random, folder: Path) -> Iterator[Call]:
    """Wrong values of numbers and switches, as words and in files, of every recipe."""
    recipes = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    keys = {recipe: list(numbers(load_config(recipe))) for recipe in recipes}
    for index in range(number):
        recipe = rng.choice(recipes)
        key, value = rng.choice(keys[recipe]), rng.choice(POISON)
        if index % 3:
            yield Call(arguments=("config", "show", recipe, f"{key}={value}"), must_be_refused=True)
            continue
        nested: Any = f"VALUE {index}"
        for part in reversed(key.split(".")):
            nested = [nested] if part == "0" else {part: nested}
        content = merge({"extends": recipe}, nested if isinstance(nested, dict) else {})
        text = json.dumps(content).replace(f'"VALUE {index}"', value)
        file = folder / f"wrong {index}.yaml"
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        arguments = ("train", "--config", str(file), "--headless", "-o", str(folder / "never"))
        yield Call(arguments=arguments, must_be_refused=True)


# -- calls ---------------------------------------------------------------------------------------

WORDS = (
    *("", " ", "-", "--", "-1", "0", "1e309", "nan", LONG, "0x10", "1_000", "true", "null", "~"),
    *("=", "a=b=c", "a.b.c=1", "steps=yes", "optim.lr=1e39", "%s", "{0}", "[", NESTED, "*", "&a"),
    *("'; DROP TABLE metrics; --", "select 1; select 2", "COPY (SELECT 1) TO 'x'", "💥", "\udcff"),
    *("a" * 5_000, "..", "a\nb", "\x1b[31m", "os:system", ":", "a:b", "bandit", "no_such"),
)
TEMPLATES = (
    "diagnose {}",
    "diagnose GOOD --map {}",
    "diagnose RUN --every {}",
    "diagnose GOOD --fail-on {}",
    "query {} SELECT",
    "query RUN {}",
    "query RUN SELECT --limit {}",
    "query RUN SELECT --format {}",
    "runs list {}",
    "runs show {}",
    "runs verify {}",
    "runs pack {}",
    "runs seal {}",
    "runs repair {} --to COPY",
    "runs repair RUN --to {}",
    "runs note {} --text x",
    "runs note RUN --text {}",
    "runs note RUN --tag {}",
    "runs rm MISSING/{}",
    "report {}",
    "report RUN --output {}",
    "report RUN --trajectory {}",
    "whatif {}",
    "whatif RUN --set {}",
    "whatif RUN --steps {}",
    "ctl {} status",
    "ctl RUN {}",
    "ctl RUN set {}",
    "ctl RUN branch --dry-run --checkpoint {}",
    "ctl RUN branch --dry-run {}",
    "ctl RUN evaluate {}",
    "envs play {}",
    "envs play bandit {}",
    "envs play bandit --seed {}",
    "envs check bandit {}",
    "envs check {}",
    "sft generate {} -o OUT --episodes 1",
    "sft generate bandit -o OUT --episodes {}",
    "sft train {} -o OUT",
    "sft merge {} -o OUT",
    "config show {}",
    "config show bandit {}",
    "config schema {}",
    "models {}",
    "preflight {} steps=yes",
    "train {} steps=yes --headless -o NEVER",
    "bench collapse --curves {} --part small",
    "import {} --output IMPORTED",
    "import GOOD --map {} --output IMPORTED",
    "import GOOD --output {}",
    "watch {} --once --output WATCHED",
    "watch GOOD --once --map {} --output WATCHED",
    "watch GOOD --once --output {}",
    "{}",
    "--{}",
)


def paths(folder: Path) -> tuple[str, ...]:
    """What a path may be and no command can use."""
    (folder / "empty").write_bytes(b"")
    (folder / "binary").write_bytes(bytes(range(256)) * 40)
    (folder / "json").write_text("{" * 3_000)
    (folder / "yaml").write_text("register: [{id: a, entry_point: [1]}, 1:30]")
    (folder / "bomb").write_text("a: &a [1,1]\nb: &b [*a,*a]\nregister: " + NESTED)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "folder").mkdir()
    (folder / "half").mkdir()
    (folder / "half" / "run.json").write_text('{"schema": 1')
    (folder / "commands").mkdir()
    shutil.copytree(folder / "run", folder / "mailbox")
    (folder / "mailbox" / "commands").mkdir(exist_ok=True)
    odd = {"id": "a", "issued_at": 10**400}
    (folder / "mailbox" / "commands" / "0.json").write_text(json.dumps(odd))
    names = ("empty", "binary", "json", "yaml", "bomb", "pipe", "loop", "folder", "half", "mailbox")
    return (*(str(folder / name) for name in names), "/dev/zero", "/dev/null", "missing")


def calls(number: int, rng: random.Random, folder: Path) -> Iterator[Call]:
    """Every command with odd words and with paths that are nothing it can use."""
    (folder / "good.csv").write_text("step,reward\n" + "".join(f"{s},{s}.5\n" for s in range(40)))
    odd = (*WORDS, *paths(folder))
    named = {
        **{"RUN": "run", "GOOD": "good.csv", "COPY": "copy", "OUT": "out", "NEVER": "never"},
        **{"IMPORTED": "imported", "WATCHED": "watched"},
    }
    for index in range(number):
        template = TEMPLATES[index % len(TEMPLATES)]
        value = rng.choice(odd)
        arguments = [
            "SELECT 1"
            if word == "SELECT"
            else str(folder / named[word])
            if word in named
            else word.replace("MISSING", str(folder / "missing")).replace("{}", value)
            for word in template.split(" ")
        ]
        yield Call(arguments=tuple(arguments))


# -- metrics files -------------------------------------------------------------------------------


def good_logs() -> dict[str, str]:
    rows = [(step, 0.1 + step / 100, 1.5 - step / 100) for step in range(40)]
    records = [{"step": s, "reward": r, "entropy": e} for s, r, e in rows]
    lines = [str(record) for record in records]
    cell = {"cell_type": "code", "outputs": [{"output_type": "stream", "text": lines}]}
    return {
        "csv": "step,reward,entropy\n" + "".join(f"{s},{r},{e}\n" for s, r, e in rows),
        "tsv": "step\treward\n" + "".join(f"{s}\t{r}\n" for s, r, _ in rows),
        "jsonl": "".join(json.dumps(record) + "\n" for record in records),
        "columns": json.dumps({"step": [s for s, *_ in rows], "reward": [r for _, r, _ in rows]}),
        "state": json.dumps({"log_history": records}, indent=1),
        "trl": "\n".join(lines),
        "verl": "\n".join(
            f"step:{s} - critic/score/mean:{r} - actor/entropy:{e}" for s, r, e in rows
        ),
        "blocks": "\n".join(
            f"| ep_rew_mean | {r} |\n| total_timesteps | {s} |" for s, r, _ in rows
        ),
        "notebook": json.dumps({"cells": [cell], "nbformat": 4}),
        "list": json.dumps([r for _, r, _ in rows]),
    }


ODD_VALUES = (
    *("1e308", "-1e308", "1e400", LONG, "NaN", "Infinity", "-inf", "null", "true", '"\\ud800"'),
    *("", '""', "{}", "[]", "1,5", "1 000", "0x1", "--", "2**70", "9223372036854775808", "%"),
    *(NESTED, "\x00", "\ufeff", "\u2028", "tensor(0.5)", "__import__('os')", "a" * 100_000),
)


def damaged(text: str, rng: random.Random) -> bytes:
    """A log with some values, bytes or lines of something else."""
    kind = rng.randrange(7)
    if kind == 0:
        parts = text.split("0.")
        places = rng.sample(range(1, len(parts)), k=min(3, len(parts) - 1))
        for index in places:
            parts[index] = f"{rng.choice(ODD_VALUES)} {parts[index]}"
        return "0.".join(parts).encode("utf-8", "replace")
    data = bytearray(text.encode())
    if kind == 1:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 2:
        for _ in range(20):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if kind == 3:
        return text.encode(rng.choice(["utf-16", "utf-32", "utf-8-sig", "cp037"]))
    lines = text.splitlines(keepends=True)
    if kind == 4:
        rng.shuffle(lines)
        return "".join(lines).encode()
    if kind == 5:
        return "".join(line * rng.randrange(4) for line in lines).encode()
    return (text + rng.choice(ODD_VALUES) + text).encode("utf-8", "replace")


def files(number: int, rng: random.Random, folder: Path) -> Iterator[Call]:
    """Logs of every form, each damaged in one way."""
    logs = sorted(good_logs().items())
    for index in range(number):
        name, text = logs[index % len(logs)]
        file = folder / f"{index} {name}"
        file.write_bytes(damaged(text, rng))
        yield Call(arguments=("diagnose", *(["--json"] if index % 2 else []), str(file)))


# -- all -----------------------------------------------------------------------------------------


def write_run(path: Path) -> None:
    """A small finished run, for commands that need one."""
    writer = RunWriter.create(path, run_id="odd", config={"lr": 0.001}, is_packing=False)
    for step in range(3):
        metrics = StepMetrics(
            run_id="odd",
            step=step,
            phase="train",
            policy_version=step,
            wall_time=1000.0 + step,
            values={"reward/return_mean": 0.5, "policy/entropy": 1.0},
            durations_s={},
        )
        writer.commit_step(metrics=[metrics], trajectories=[], outcomes=[])
    writer.close(status="finished")


def tables(
    folder: Path, numbers_of: tuple[int, int, int], seed: int = 0
) -> dict[str, Counter[str]]:
    """What came of each kind of input, by kind."""
    here = os.getcwd()
    os.chdir(folder)
    out: dict[str, Counter[str]] = {}
    try:
        write_run(folder / "run")
        for kind, make, number in zip(
            ("configurations", "calls", "metrics files"),
            (configurations, calls, files),
            numbers_of,
            strict=True,
        ):
            counts: Counter[str] = Counter()
            for call in make(number, random.Random(f"{kind} {seed}"), folder):
                outcome = outcome_of(call)
                is_right = outcome in ("refused", "answered")
                counts[outcome if is_right else f"{outcome} {typed_line(call)}"] += 1
            out[kind] = counts
    finally:
        os.chdir(here)
    return out


def typed_line(call: Call) -> str:
    return ascii(" ".join(word[:60] for word in call.arguments))


def failures(counts: Counter[str]) -> list[str]:
    return [outcome for outcome in counts if outcome not in ("refused", "answered")]


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [332, 345, 117]
    sys.stdout.write(f"wrong calls {told()}\n")
    with tempfile.TemporaryDirectory() as folder:
        made = tables(Path(folder), (sizes[0], sizes[1], sizes[2]), draw())
    for kind, counts in made.items():
        bad = failures(counts)
        sys.stdout.write(
            f"{kind:16}{counts.total():>6} tried {counts['refused']:>6} refused "
            f"{counts['answered']:>6} answered {len(bad):>4} failed\n"
        )
        sys.stdout.write("".join(f"  {line}\n" for line in bad))
    sys.exit(any(failures(counts) for counts in made.values()))


if __name__ == "__main__":
    main()
