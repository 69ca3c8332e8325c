"""A world behind HTTP trains like the same world here, and outlives its server."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from listening import Listener
from serving_worlds import KILL_FILE, ServerProcess, free_port
from started import ended_afterwards

from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.store.reader import open_run

MakeConfig = Callable[..., RunConfig]
LAKE = {"size": 4, "holes": 2, "slip": 0.3, "max_distance": 5, "observation": "relative"}
WORLDS: Mapping[str, Mapping[str, Any]] = {
    "frozen_lake": LAKE,
    "bandit": {},
    "price_list": {"items": 1},
}


def entries(url: str | None) -> str:
    """The entries of `envs.train`: here, or at a server."""
    rows = []
    for env_id, params in WORLDS.items():
        where: dict[str, Any] = {"env": env_id, "params": dict(params)}
        if url is not None:
            where = {"env": "remote", "params": {"url": url, "env": env_id, "params": dict(params)}}
        rows.append(
            {"tag": env_id, "groups": 1, "max_turns": 3, "max_actions_per_turn": 2, **where}
        )
    return yaml.safe_dump(rows, default_flow_style=True, width=10_000).strip()


def small_run(make_config: MakeConfig, groups: str, *overrides: str) -> RunConfig:
    return make_config(
        "model.path=tiny",
        "steps=2",
        "diagnostics.enabled=false",
        "checkpoint.every=0",
        "eval.every=2",
        "context.max_response_tokens=40",
        "context.max_prompt_tokens=900",
        "context.instructions=true",
        f"envs.train={groups}",
        f"envs.eval={groups}",
        *overrides,
    )


TABLES = {
    "trajectories": "SELECT * EXCLUDE (run_id, attempt, duration_s, env_id) FROM trajectories "
    "ORDER BY id",
    "turns": "SELECT * EXCLUDE (run_id, attempt) FROM turns ORDER BY trajectory_id, turn",
    "tokens": "SELECT * EXCLUDE (run_id, attempt) FROM tokens ORDER BY trajectory_id, turn",
    "metrics": "SELECT step, phase, key, value FROM metrics "
    "WHERE key NOT SIMILAR TO '(time|system|collection)/.*' ORDER BY step, phase, key",
}


def stored(path: Path) -> dict[str, list[str]]:
    """What a run recorded, without clocks and the world's name, as text: equal text, equal bits."""
    reader = open_run(path)
    return {
        name: [repr(row) for row in reader.sql(sql).to_pylist()] for name, sql in TABLES.items()
    }


@pytest.fixture(scope="module")
def here(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The run with the worlds in this process."""
    path = tmp_path_factory.mktemp("runs") / "here"
    assert start(small_run(make_config, entries(None)), path, Listener()) == "finished"
    return stored(path)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server with the same worlds, in a process of its own."""
    arguments = [f"{env}.{key}={value}" for env in WORLDS for key, value in WORLDS[env].items()]
    with ended_afterwards():
        yield ServerProcess(*WORLDS, *arguments).url


@pytest.mark.long
def test_trajectories_of_a_remote_world_are_those_of_the_local_one(
    here: dict[str, list[str]], url: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    """Text, tokens, rewards, success, task keys, frames and metrics: every column but clocks."""
    config = small_run(make_config, entries(url))
    assert start(config, tmp_path / "there", Listener()) == "finished"
    there = stored(tmp_path / "there")
    for name, rows in here.items():
        assert there[name] == rows, name
    assert len(here["trajectories"]) == 2 * 12 + 2 * 3
    played = " ".join(here["turns"])
    assert "Goal" in played
    assert "cells" in played
    assert not re.search("env_error|timeout", " ".join(here["trajectories"]))


PLAYED = (
    "SELECT t.id, t.env_seed, t.noise_seed, t.task_key, t.stop_reason, t.is_success, u.turn, "
    "u.observation, u.response, u.reward, u.frame FROM trajectories t JOIN turns u "
    "ON u.trajectory_id = t.id ORDER BY t.id, u.turn"
)


@pytest.mark.long
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_it_plays_the_same_beside_the_sampling(
    workers: str, url: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    """In threads or processes, each episode at its own pace; log-probs may differ by rounding."""
    runs = {}
    for name, address in (("here", None), ("there", url)):
        mode = ["collection.mode=async", f"collection.workers={workers}", "steps=1"]
        config = small_run(make_config, entries(address), *mode, "eval.every=0", "envs.eval=[]")
        assert start(config, tmp_path / name, Listener()) == "finished"
        runs[name] = open_run(tmp_path / name).sql(PLAYED).to_pylist()
    assert runs["there"] == runs["here"]
    assert {row["stop_reason"] for row in runs["here"]} <= {"terminated", "max_turns"}


@pytest.mark.long
def test_a_killed_server_ends_its_trajectories_and_the_run_goes_on(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    kill_file, port = tmp_path / "kill", free_port()
    world = "serving_worlds:KillingLake"
    arguments = [world, *(f"{key}={LAKE[key]}" for key in LAKE)]

    def serve() -> ServerProcess:
        return ServerProcess(*arguments, port=port, variables={KILL_FILE: str(kill_file)})

    first = serve()
    killed: list[int] = []

    def bring_back() -> None:
        code, _ = first.wait()
        killed.append(code)
        time.sleep(0.5)
        serve()

    entry = {
        "tag": "lake",
        "env": "remote",
        "groups": 2,
        "max_turns": 2,
        "max_actions_per_turn": 1,
        "params": {"url": f"http://127.0.0.1:{port}", "env": world},
    }
    groups = yaml.safe_dump([entry], default_flow_style=True, width=10_000).strip()

    class Killer(Listener):
        def phase(self, step: int, name: str) -> None:
            if (step, name) == (2, "rollout"):
                kill_file.touch()
            super().phase(step, name)

    threading.Thread(target=bring_back, daemon=True).start()
    config = small_run(make_config, groups, "steps=4", "eval.every=0", "envs.eval=[]")
    assert start(config, tmp_path / "run", Killer()) == "finished"
    assert killed == [-9]
    rows = (
        open_run(tmp_path / "run")
        .sql(
            "SELECT t.step, t.stop_reason, t.is_success, t.final_observation FROM trajectories t "
            "ORDER BY t.step"
        )
        .to_pylist()
    )
    assert [row["step"] for row in rows] == [1] * 8 + [2] * 8 + [3] * 8 + [4] * 8
    failed = [row for row in rows if row["stop_reason"] == "env_error"]
    assert [row["step"] for row in failed] == [2] * 8
    for row in failed:
        assert row["is_success"] is None
        assert re.search(
            r"Environment error: (UnreachableError: cannot reach|RemoteError:) "
            rf"http://127.0.0.1:{port}",
            row["final_observation"],
        )
