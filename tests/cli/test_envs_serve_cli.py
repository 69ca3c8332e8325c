"""echoscope envs serve: what it prints, how it ends, how it fails."""

from __future__ import annotations

import re
import threading
import time

import pytest
from serving_worlds import ServerProcess, ask, error, free_port
from typer.testing import CliRunner

from echoscope.cli import app
from echoscope.cli.envs import served_worlds
from echoscope.envs.base import EnvError
from echoscope.envs.worlds.remote.sessions import Served


def test_it_says_where_it_serves_and_ends_at_ctrl_c() -> None:
    server = ServerProcess(
        *("frozen_lake", "bandit"),
        *("frozen_lake.slip=0", "bandit.pairs=test"),
    )
    assert re.fullmatch(
        r"serving frozen_lake, bandit at http://127\.0\.0\.1:\d+ \(Ctrl-C ends it\)\n", server.line
    )
    listed = ask(server.url, "/metadata", method="GET")[1]["environments"]
    assert [each["params"] for each in listed] == [{"slip": 0}, {"pairs": "test"}]
    assert ask(server.url, "/open", {"env": "bandit"})[0] == 200
    server.interrupt()
    assert server.wait() == (0, "stopped\n")


@pytest.mark.parametrize("word", ["slip=0.5", "frozen_lake.slip=0.5"])
def test_one_environment_takes_parameters_with_and_without_its_name(word: str) -> None:
    assert served_worlds(["frozen_lake", word]) == [Served(id="frozen_lake", params={"slip": 0.5})]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frozen_lak"], "did you mean 'frozen_lake'"),
        (["frozen_lake", "slip=x"], "slip is 'x', but must be a number"),
        (["slip=0"], "name an environment first"),
        (["frozen_lake", "bandit", "slip=0"], "looks like frozen_lake.KEY=VALUE"),
        (["frozen_lake", "frozen_lake"], "must be different ids"),
        (["remote"], "needs a server"),
        (["bandit", "--host", "0.0.0.0"], "refusing to listen on 0.0.0.0"),
        (["my_nope:Guess"], "run the command in the folder of my_nope.py"),
    ],
)
def test_mistakes_are_one_line_errors(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ECHOSCOPE_ENV_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["envs", "serve", *arguments, "--port", str(free_port())])
    assert result.exit_code == 1
    assert isinstance(result.exception, EnvError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.long
def test_ctrl_c_does_not_wait_for_a_call_that_hangs() -> None:
    server = ServerProcess("waiting_worlds:HangingLake")
    ask(server.url, "/reset", {"seed": 0, "noise_seed": 4})

    answers: list[tuple[int, str, str]] = []

    def hang() -> None:
        answers.append(error(ask(server.url, "/notice", {"action": {"text": "jump"}})))

    thread = threading.Thread(target=hang, daemon=True)
    thread.start()
    while ask(server.url, "/health", method="GET")[1]["counts"]["calls"] < 2:
        time.sleep(0.01)
    started = time.monotonic()
    server.interrupt()
    code, text = server.wait()
    assert (code, text.splitlines()[-1]) == (0, "stopped")
    assert "Traceback" not in text
    assert time.monotonic() - started < 15
    thread.join(5)
    assert answers == [(503, "stopping", "the server is being stopped")]
