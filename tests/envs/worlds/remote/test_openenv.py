"""A server made with openenv-core is a world; `make test-worlds` installs the package."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="needs openenv-core: make test-worlds")

from pools import begin

from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.pool import EnvPool
from echoscope.envs.registry import make
from echoscope.envs.settings import EnvGroup


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("openenv_server.py")
    server = subprocess.Popen([sys.executable, str(script), str(port)])
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"openenv:http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_a_game_is_played_to_its_end(address: str) -> None:
    world = make(address, success_reward=1.0)
    first = world.reset(5, 0)
    assert first.text.startswith("Guess a number. It ends in ")
    assert world.instructions() == "Action: a number from 1 to 1000."
    low, high = 1, 1000
    for _ in range(10):
        guess = (low + high) // 2
        result = world.step(str(guess))
        if result.observation.text == "Higher.":
            low = guess + 1
        else:
            high = guess - 1
        if result.terminated:
            break
    assert (result.observation.text, result.reward, result.success) == ("Yes.", 1.0, True)
    assert not world.step("1").is_valid
    assert world.reset(5, 1) == first
    world.close()


def test_it_keeps_the_contract(address: str) -> None:
    report = check_env(address)
    assert report.failed == {}


def test_siblings_play_the_same_task_side_by_side(address: str) -> None:
    with EnvPool([EnvGroup(env=address, groups=3)], group_size=2, seed=0, split="train") as pool:
        slots = begin(pool, 1)
    assert [slots[0].task_key, slots[2].task_key] == [slots[1].task_key, slots[3].task_key]


def test_a_field_that_the_server_does_not_have_is_said(address: str) -> None:
    with pytest.raises(
        EnvParamsError, match=r"action_field is 'text', but an action of .* has number"
    ):
        make(address, action_field="text")


def test_nobody_there_is_said() -> None:
    with pytest.raises(EnvUnavailableError, match=r"127\.0\.0\.1:9/schema cannot be read: "):
        make("openenv:http://127.0.0.1:9")
