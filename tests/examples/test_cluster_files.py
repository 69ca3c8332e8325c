"""The files of `examples/cluster`, each read by the tool that it is for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from echoscope.core.config.loading import load_config

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
SHELL = sorted(FOLDER.glob("*.sbatch"))


def parsed(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def test_the_run_on_a_cluster_is_a_run() -> None:
    config = load_config(None, file=FOLDER / "train.yaml", overrides=[])
    assert (config.trainer.launcher, config.trainer.ranks) == ("ray", 8)
    assert config.engine.kind == "ray"
    assert config.engine.vllm is not None


def test_a_large_model_does_not_inherit_the_learning_rate_of_a_small_one() -> None:
    for name in ("train.yaml", "sokoban-7b.yaml"):
        assert load_config(None, file=FOLDER / name, overrides=[]).optim.lr == 1e-6


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_scripts_are_shell(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)


def slurm_job(
    tmp_path: Path,
    name: str,
    arguments: list[str],
    *,
    settings: dict[str, str] | None = None,
    **tools: str,
) -> subprocess.Popen[str]:
    """A job whose commands of Slurm are scripts that say what they were told."""
    folder, home = tmp_path / "bin", tmp_path / "home"
    (home / "echoscope-venv" / "bin").mkdir(parents=True)
    (home / "echoscope-venv" / "bin" / "activate").touch()
    folder.mkdir()
    programs = {"scontrol": "echo node1; echo node2", "srun": 'echo "$@"', "sleep": ""}
    for tool_name, script in (programs | tools).items():
        (folder / tool_name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / tool_name).chmod(0o755)
    slurm = {
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_CPUS_PER_TASK": "64",
    }
    return subprocess.Popen(
        ["bash", str(FOLDER / name), *arguments],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(home)}
        | slurm
        | (settings or {}),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", ["slurm.sbatch", "slurm-ray.sbatch"])
@pytest.mark.parametrize("attempt", ["first", "again", "resumed"])
def test_a_slurm_job_starts_a_run_and_resumes_it_when_it_is_queued_again(
    name: str, attempt: str, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "slurm-7"
    if attempt == "again":
        run.mkdir(parents=True)
        (run / "run.json").touch()
    arguments = ["frozen_lake", "optim.lr=1e-5"]
    if attempt == "resumed":
        arguments = ["--resume", "runs/other"]
    job = slurm_job(tmp_path, name, arguments)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 0
    if name == "slurm.sbatch":
        assert "torchrun --nnodes=2 --nproc-per-node=8" in output
        assert "--rdzv-endpoint=node1:29500" in output
    told = {
        "first": f"frozen_lake optim.lr=1e-5 -o {run}",
        "again": f"--resume {run}",
        "resumed": "--resume runs/other",
    }
    assert f"echoscope train {told[attempt]} --headless" in output


def test_a_slurm_job_leaves_gpus_of_each_node_to_servers(tmp_path: Path) -> None:
    job = slurm_job(tmp_path, "slurm.sbatch", ["demo"], settings={"RANKS_PER_NODE": "4"})
    output, _ = job.communicate(timeout=60)
    assert "--cpus-per-task=64 torchrun --nnodes=2 --nproc-per-node=4" in output


def test_a_ray_cluster_of_one_node_asks_for_no_other(tmp_path: Path) -> None:
    job = slurm_job(tmp_path, "slurm-ray.sbatch", ["demo"], settings={"SLURM_NNODES": "1"})
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 0
    assert "ray start --head" in output
    assert "--exclude" not in output


def test_a_slurm_job_whose_time_is_nearly_up_stops_its_run_and_waits_for_it(
    tmp_path: Path,
) -> None:
    stopped = tmp_path / "stopped"
    waits = f"echo begun; while [ ! -e {stopped} ]; do /bin/sleep 0.05; done; echo ended"
    job = slurm_job(
        tmp_path, "slurm.sbatch", ["demo"], srun=waits, echoscope=f'echo "$@"; touch {stopped}'
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "begun\n"
    job.terminate()
    output, _ = job.communicate(timeout=60)
    assert output.splitlines() == [f"ctl {tmp_path}/runs/slurm-7 stop", "ended"]
    assert job.returncode == 0


def tool(name: str) -> str:
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        pytest.skip(f"needs {name}: make test-launchers")
    return str(path)


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    subprocess.run([tool("shellcheck"), str(path)], check=True)


def test_hadolint_finds_nothing() -> None:
    subprocess.run([tool("hadolint"), str(FOLDER / "Dockerfile")], check=True)


def test_skypilot_reads_its_task() -> None:
    sky = pytest.importorskip("sky", reason="needs SkyPilot: make test-launchers")
    task = sky.Task.from_yaml(str(FOLDER / "sky.yaml"))
    assert task.num_nodes == 2
    assert [str(r.accelerators) for r in task.resources] == ["{'H100': 8}"]
    subprocess.run(["bash", "-n"], input=task.run, text=True, check=True)


def test_dstack_reads_its_task() -> None:
    models = pytest.importorskip(
        "dstack._internal.core.models.configurations", reason="needs dstack: make test-launchers"
    )
    task = models.parse_apply_configuration(parsed("dstack.yml")[0])
    assert (task.type, task.nodes) == ("task", 2)
    for command in task.commands:
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)


def test_kubernetes_takes_the_pods_and_the_disk() -> None:
    """Its own schema; that of RayJob comes with KubeRay and was not at hand."""
    validator = pytest.importorskip("kubernetes_validate", reason="make test-launchers")
    job, disk = parsed("kuberay.yaml")
    validator.validate(disk, "1.31", strict=True)
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for number, group in enumerate(groups):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}}
        validator.validate(pod | group["template"], "1.31", strict=True)
    num_gpus = sum(
        group["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
        for group in cluster["workerGroupSpecs"]
        for container in group["template"]["spec"]["containers"]
    )
    assert f"trainer.ranks={num_gpus} " in job["spec"]["entrypoint"]


def test_ray_reads_its_cluster() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = pytest.importorskip("ray.autoscaler._private.util", reason="needs ray")
    [cluster] = parsed("ray.yaml")
    ray_schema = Path(schema.__file__).parents[1] / "ray-schema.json"
    jsonschema.validate(cluster, json.loads(ray_schema.read_text()))
