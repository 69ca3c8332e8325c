"""OpenEnv's addresses and shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serving_worlds import ask, error, served
from websockets.sync.client import ClientConnection, connect

from echoscope.envs import registry
from echoscope.envs.worlds.remote.sessions import Served

ROOM = Served(id="spatial", params={"questions": ["direction"]})
LAKE = Served(id="frozen_lake", params={"slip": 0.0, "size": 3, "holes": 1})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(LAKE, Served(id="bandit"), ROOM) as address:
        yield address


def test_reset_step_and_state_over_http(url: str) -> None:
    world = registry.make("frozen_lake", **LAKE.params)
    first = world.reset(3, 0)
    status, begun = ask(url, "/reset", {"env": "frozen_lake", "seed": 3, "episode_id": "e-1"})
    assert status == 200
    assert begun["observation"]["text"] == first.text
    assert begun["observation"]["legal_actions"] == list(world.legal_actions())
    assert (begun["reward"], begun["done"]) == (None, False)
    assert begun["metadata"]["task_key"] == world.task_key()
    actions = world.solve() or []
    for action in actions:
        asked = {"action": {"text": action}, "episode_id": "e-1"}
        _, answer = ask(url, "/step", asked)
        here = world.step(action)
        assert answer["observation"]["text"] == here.observation.text
        assert (answer["reward"], answer["done"]) == (here.reward, here.terminated)
    assert answer["metadata"]["success"] is True
    _, state = ask(url, "/state?episode_id=e-1", method="GET")
    assert (state["episode_id"], state["step_count"]) == ("e-1", len(actions))
    # The same name begins anew, in the same session.
    _, again = ask(url, "/reset", {"seed": 3, "episode_id": "e-1"})
    assert again["observation"] == begun["observation"]


def test_an_observation_holds_what_the_policy_may_see_and_no_frame(url: str) -> None:
    asked = {"env": "spatial", "seed": 4, "episode_id": "room"}
    first = registry.make("spatial", **ROOM.params).reset(4, 0)
    begun = ask(url, "/reset", asked)[1]["observation"]
    _, answer = ask(url, "/step", {"action": {"text": "look"}, "episode_id": "room"})
    assert begun["view"] == first.view != first.frame
    assert "frame" not in begun.keys() | answer["observation"].keys()
    schema = ask(url, "/schema", method="GET")[1]["observation"]["properties"]
    assert "view" in schema
    assert "frame" not in schema


def test_without_a_name_or_a_seed(url: str) -> None:
    seeds = {ask(url, "/reset", {"env": "bandit"})[1]["metadata"]["seed"] for _ in range(3)}
    assert len(seeds) == 3
    assert ask(url, "/state", method="GET")[1]["episode_id"] == "default"


@pytest.mark.parametrize(
    ("path", "content", "status", "kind"),
    [
        ("/step", {"action": {"text": "up"}, "episode_id": "nobody"}, 409, "order"),
        ("/step", {"action": "up"}, 400, "bad_request"),
        ("/step", {"action": {"text": 3}}, 400, "bad_request"),
        ("/reset", {"episode_id": "x" * 256}, 400, "bad_request"),
        ("/reset", {"env": "bandit", "seed": "x"}, 400, "bad_request"),
        ("/reset", {"episode_id": "new"}, 404, "unknown_env"),
    ],
)
def test_bad_requests(url: str, path: str, content: dict[str, Any], status: int, kind: str) -> None:
    assert error(ask(url, path, content))[:2] == (status, kind)


def test_what_it_says_of_itself(url: str) -> None:
    assert ask(url, "/health", method="GET")[1]["status"] == "healthy"
    assert ask(url, "/metadata", method="GET")[1]["name"] == "frozen_lake, bandit, spatial"
    schema = ask(url, "/schema", method="GET")[1]
    assert schema["action"]["required"] == ["text"]
    assert set(schema) == {"action", "observation", "state"}


def talk(socket: ClientConnection, message: object) -> dict[str, Any]:
    socket.send(message if isinstance(message, str) else json.dumps(message))
    answer: dict[str, Any] = json.loads(socket.recv(timeout=10))
    return answer


def test_each_web_socket_has_an_episode_of_its_own(url: str) -> None:
    world = registry.make("frozen_lake", **LAKE.params)
    address = url.replace("http", "ws") + "/ws"
    begin = {"type": "reset", "data": {"env": "frozen_lake", "seed": 3}}
    with connect(address) as one, connect(address) as two:
        first = talk(one, begin)
        assert first["type"] == "observation"
        assert first["data"]["observation"]["text"] == world.reset(3, 0).text
        assert talk(two, begin)["data"]["observation"] == first["data"]["observation"]
        action = (world.solve() or [""])[0]
        stepped = talk(one, {"type": "step", "data": {"text": action}})
        assert stepped["data"]["observation"]["text"] == world.step(action).observation.text
        assert talk(one, {"type": "state"})["data"]["step_count"] == 1
        assert talk(two, {"type": "state"})["data"]["step_count"] == 0
        for bad in ("{", "[]", {"type": "fly"}, {"type": "step", "data": 3}, {"type": "step"}):
            assert talk(one, bad)["data"]["code"] == "VALIDATION_ERROR"
        one.send(json.dumps({"type": "close"}))
    sessions = ask(url, "/health", method="GET")[1]["metrics"]["sessions"]
    with connect(address) as three:
        talk(three, begin)
        assert ask(url, "/health", method="GET")[1]["metrics"]["sessions"] == sessions + 1
