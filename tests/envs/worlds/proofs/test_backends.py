"""The two ways to run Lean: what is asked, and what a server or a process can do wrong."""

from __future__ import annotations

import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scripted_lean
from costs import HANG_S, without_hanging

from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.worlds.proofs.backends import KiminaServer, LocalRepl, shared_repl
from echoscope.envs.worlds.proofs.statements import MADE_THEOREMS, read_theorems
from echoscope.envs.worlds.proofs.verdicts import (
    LeanFailedError,
    LeanTimeoutError,
    body_of,
    judge,
)

THEOREM = read_theorems(MADE_THEOREMS, None)[1]
BODY = body_of(THEOREM, THEOREM.proof)


def server_of(kimina: scripted_lean.Kimina, wait_s: float = 0.3) -> KiminaServer:
    return KiminaServer(kimina.url, wait_s)


def test_the_request_is_that_of_kimina(kimina: scripted_lean.Kimina) -> None:
    answer = server_of(kimina).check("import A", BODY, 2.5)
    path, content, headers = kimina.requests[0]
    assert path == "/api/check"
    assert content == {
        "snippets": [{"id": "step", "code": f"import A\n\n{BODY}"}],
        "timeout": 3,
        "debug": False,
        "reuse": True,
    }
    assert "X-Auth-Token" not in headers
    assert answer.errors == ()
    assert [message.severity for message in answer.messages] == ["info"]


def test_the_key_of_a_server_goes_along(
    kimina: scripted_lean.Kimina, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAN_SERVER_API_KEY", "secret")
    assert judge(server_of(kimina), THEOREM, THEOREM.proof, 1.0).status == "proved"
    headers = kimina.requests[0][2]
    assert headers["X-Auth-Token"] == headers["Authorization"] == "Bearer secret"


def test_a_proof_from_its_first_to_its_last_step(kimina: scripted_lean.Kimina) -> None:
    server = server_of(kimina)
    verdicts = [judge(server, THEOREM, THEOREM.proof[:n], 1.0) for n in range(5)]
    assert [verdict.status for verdict in verdicts] == ["open"] * 4 + ["proved"]
    assert verdicts[2].text == "step : 2\n⊢ 2 to go"
    wrong = judge(server, THEOREM, ["exact nope"], 1.0)
    assert (wrong.status, wrong.text) == ("rejected", "Unknown identifier `nope`")


def test_what_failed_once_is_asked_again(kimina: scripted_lean.Kimina) -> None:
    def once(handler: Any) -> bool:
        kimina.trouble = None
        handler.reply({"detail": "No available REPLs"}, 429)
        return True

    kimina.trouble = once
    assert judge(server_of(kimina, wait_s=5.0), THEOREM, THEOREM.proof, 1.0).status == "proved"
    assert len(kimina.requests) == 2


def test_a_step_that_fails_lean_is_rejected_where_lean_lives_on(
    kimina: scripted_lean.Kimina,
) -> None:
    """A tactic that overflows Lean's stack is answered with status 500; others are not."""

    def only_the_step(handler: Any) -> bool:
        if "theorem" not in kimina.requests[-1][1]["snippets"][0]["code"]:
            return False
        handler.reply({"detail": "Lean process broken pipe"}, 500)
        return True

    kimina.trouble = only_the_step
    verdict = judge(server_of(kimina, wait_s=2.0), THEOREM, THEOREM.proof, 1.0)
    assert (verdict.status, verdict.is_lasting) == ("rejected", False)
    assert verdict.text == "Lean failed on this step: it answered with status 500."


def _status_500(handler: Any) -> bool:
    handler.reply({"detail": "x"}, 500)
    return True


def _status_401(handler: Any) -> bool:
    handler.reply({"detail": "Missing API key"}, 401)
    return True


def _html(handler: Any) -> bool:
    handler.reply("<html>Sorry</html>")
    return True


def _deep(handler: Any) -> bool:
    handler.reply("[" * 200_000)
    return True


def _huge(handler: Any) -> bool:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(9):
        handler.wfile.write(b" " * (1 << 20))
    return True


def _hang(_: Any) -> bool:
    time.sleep(2)
    return True


def _drip(handler: Any) -> bool:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)
    return True


def _die(handler: Any) -> bool:
    handler.connection.close()
    return True


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (_status_500, "answered with status 500"),
        (_status_401, "answered with status 401"),
        (_html, "answered with text that is not JSON"),
        (_deep, "answered with text that is not JSON"),
        (_huge, "answered with more than 8 MiB"),
        (_hang, "did not answer within 0.4 s"),
        (_drip, "did not answer within 0.4 s"),
        (_die, "cannot be reached"),
    ],
)
def test_a_server_in_trouble_ends_the_episode_soon(
    kimina: scripted_lean.Kimina, trouble: Any, sentence: str
) -> None:
    kimina.trouble = trouble
    unavailable = pytest.raises(
        EnvUnavailableError, match=rf"^the Lean server at {kimina.url} {sentence}"
    )
    wait_s = 0.3 if trouble in (_hang, _drip) else HANG_S
    with without_hanging(), unavailable:
        judge(server_of(kimina, wait_s), THEOREM, THEOREM.proof, 0.1)


@pytest.mark.parametrize(
    "content",
    [
        [], {}, {"results": []}, {"results": [{}]}, {"results": [{"id": "other", "response": {}}]},
        {"results": [{"id": "step"}]}, {"results": [{"id": "step", "response": {}}]},
        {"results": [{"id": "step", "response": {"env": 0, "messages": 7}}]},
        {"results": [{"id": "step", "response": {"env": 0, "messages": [7]}}]},
        {"results": [{"id": "step", "response": {"env": 0, "messages": [{"severity": "info"}]}}]},
        {"results": [{"id": "step", "response": {"message": "Unknown environment."}}]},
        {"results": [{"id": "step", "error": "Lean REPL process exceeded memory limit"}]},
    ],
)  # fmt: skip
def test_nonsense_proves_nothing(kimina: scripted_lean.Kimina, content: Any) -> None:
    kimina.trouble = lambda handler: handler.reply(content) is None
    with pytest.raises(LeanFailedError):
        server_of(kimina).check("", BODY, 1.0)


def test_leans_own_time_limit(kimina: scripted_lean.Kimina) -> None:
    def late(handler: Any) -> bool:
        error = f"Lean REPL {what}command timed out in 1 seconds"
        handler.reply({"results": [{"id": "step", "error": error}]})
        return True

    kimina.trouble = late
    what = ""
    verdict = judge(server_of(kimina), THEOREM, THEOREM.proof, 1.0)
    assert (verdict.status, verdict.text) == ("timeout", "Lean took longer than 1 s.")
    what = "header "
    with pytest.raises(EnvUnavailableError, match="did not read a header within 1 s: raise"):
        judge(server_of(kimina), THEOREM, THEOREM.proof, 1.0)


def test_nobody_listens() -> None:
    with pytest.raises(EnvUnavailableError, match="cannot be reached"):
        judge(KiminaServer("http://127.0.0.1:9", 1.0), THEOREM, (), 1.0)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A `lake` that runs the scripted REPL, in the folder of that REPL."""
    pytest.importorskip("lean_interact")
    lake = tmp_path / "lake"
    lake.write_text(f'#!/bin/sh\nexec {sys.executable} {scripted_lean.__file__} "$@"\n')
    lake.chmod(lake.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "lean-toolchain").write_text("leanprover/lean4:v4.20.0\n")
    return lake


@pytest.fixture
def repl(lake: Path) -> Iterator[LocalRepl]:
    """lean-interact with that `lake`."""
    backend = LocalRepl(str(lake.parent), "", str(lake), 4096)
    yield backend
    backend.close()


def test_a_proof_in_the_local_repl(repl: LocalRepl) -> None:
    verdicts = [judge(repl, THEOREM, THEOREM.proof[:n], 10.0) for n in range(5)]
    assert [verdict.status for verdict in verdicts] == ["open"] * 4 + ["proved"]
    assert repl.check("import Init", BODY, 10.0).errors == ()


@pytest.mark.long
def test_folders_may_be_relative(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake.parents[1])
    backend = shared_repl(lake.parent.name, "", f"{lake.parent.name}/lake", 4096)
    try:
        assert judge(backend, THEOREM, THEOREM.proof, 10.0).status == "proved"
    finally:
        backend.close()


@pytest.mark.long
def test_a_repl_that_hangs_dies_or_talks_nonsense_starts_anew(repl: LocalRepl) -> None:
    assert judge(repl, THEOREM, THEOREM.proof, 10.0).status == "proved"
    with pytest.raises(LeanTimeoutError):
        repl.check("", "hang", 0.2)
    for code, sentence in (("die", "ended"), ("nonsense", "answered no JSON")):
        with pytest.raises(LeanFailedError, match=sentence):
            repl.check("", code, 10.0)
    assert judge(repl, THEOREM, THEOREM.proof, 10.0).status == "proved"


def test_a_repl_that_does_not_start(tmp_path: Path) -> None:
    pytest.importorskip("lean_interact")
    backend = LocalRepl(str(tmp_path), "", str(tmp_path / "lake"), 4096)
    with pytest.raises(EnvUnavailableError, match=r"does not start: .*No such file"):
        judge(backend, THEOREM, THEOREM.proof, 1.0)
    with pytest.raises(EnvParamsError, match="is no folder: build the REPL there first"):
        shared_repl(str(tmp_path / "none"), "", "lake", 4096)
