"""Command lines as a person types them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import typer.main
import typer.testing

from echoscope.cli import main

command_tree = cache(typer.main.get_command)


@pytest.fixture(scope="module", autouse=True)
def _one_command_tree() -> Iterator[None]:
    """Typer makes all commands anew for each line: a process runs one, but these tests run 400."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", command_tree)
        patch.setattr(typer.testing, "_get_command", command_tree)
        yield


@dataclass(frozen=True, kw_only=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def type_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Runs `echoscope WORD ...` in this process."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["echoscope", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        code = caught.value.code
        return Answer(code=code if isinstance(code, int) else 0, out=out, err=err)

    return run
