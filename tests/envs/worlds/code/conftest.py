"""Sandboxes as they are made by whoever runs the tests, and by a user without rights."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from echoscope.envs.worlds.code.sandbox import ProgramRun, Sandbox, SandboxLimits, why_not

Run = Callable[..., list[ProgramRun]]


def needs_sandbox() -> pytest.MarkDecorator:
    """ECHOSCOPE_SANDBOX=required makes its absence a failure."""
    required = os.environ.get("ECHOSCOPE_SANDBOX") == "required"
    return pytest.mark.skipif(bool(why_not()) and not required, reason=why_not())


@pytest.fixture(scope="session")
def plain_user() -> Iterator[Run]:
    """Runs programs in sandboxes that a user without rights makes."""
    if os.geteuid() != 0:
        pytest.skip("whoever runs the tests is a user without rights")
    pythons = [sys.executable, *_other_pythons()]
    helper = Path(__file__).with_name("plain_user.py").read_text()
    reasons = []
    for python in pythons:
        process = subprocess.Popen(
            [python, "-c", helper, os.pathsep.join(site.getsitepackages())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        if first and not json.loads(first):
            break
        errors = process.communicate()[1].strip().splitlines()
        reasons.append(json.loads(first) if first else errors[-1])
    else:
        pytest.skip(f"a user without rights makes no sandbox here: {'; '.join(reasons)}")

    def run(
        program: str, inputs: Sequence[str] = ("",), limits: SandboxLimits | None = None
    ) -> list[ProgramRun]:
        request = [program, list(inputs), asdict(limits or SandboxLimits())]
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return [
            ProgramRun(output=output, errors=errors, exit_code=exit_code, timed_out=timed_out)
            for output, errors, exit_code, timed_out in json.loads(process.stdout.readline())
        ]

    yield run
    process.communicate()


def _other_pythons() -> list[str]:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = shutil.which(name, path="/usr/local/bin:/usr/bin")
    return [path] if path else []


@pytest.fixture(scope="session", params=["this user", "a user without rights"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs programs in sandboxes, as this user and as one without rights."""
    if request.param == "a user without rights":
        return request.getfixturevalue("plain_user")

    def run_here(
        program: str, inputs: Sequence[str] = ("",), limits: SandboxLimits | None = None
    ) -> list[ProgramRun]:
        return Sandbox(limits or SandboxLimits()).run(program, inputs)

    return run_here
