"""Does the first suggestion bring a collapsed language model back? SmolLM2 with LoRA, two kinds.

    python benchmarks/pretrained_cures.py [--root DIR]

The warm start of `pretrained.py`, then `bandit-llm` with something wrong about it, and the branch
that the verdict asks for at the first critical alarm, typed as printed. The run is started from a
file, so that the verdict cannot read the answer from its recipe. Success is measured every
five steps on 24 reserved prompts. One seed, one core, float32; about an hour. What is finished in
--root is not done again. Needs `echoscope models get smollm2`.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml
from common import describe_machine, markdown_table, read_options
from pretrained import RECIPE, echoscope, warm_start

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.store.checkpoints import evaluation_success

KINDS = {"rate": "optim.lr=5e-3", "entropy": "loss.entropy_coef=1"}
"""Name to what is wrong; healthy is a rate of 5e-4 without a bonus."""
UNTREATED, TREATED = 12, 24
"""Steps of the run itself and of its branch."""
LAST = 3
"""Evaluations at the end over which success is averaged."""


def finish(root: Path, name: str, *arguments: str) -> Path:
    """The run of this name, made by a command unless it is there, and gone on with to its end.

    The folder of a branch has the time behind its name.
    """
    paths = sorted(root.glob(f"{name}-2*")) or [root / name]
    if not (paths[0] / "run.json").exists():
        echoscope(*arguments)
        return (sorted(root.glob(f"{name}-2*")) or paths)[0]
    if open_run(paths[0]).info().status not in ("finished", "stopped"):
        echoscope("train", "--resume", str(paths[0]), "--headless")
    return paths[0]


def settings(*overrides: str) -> str:
    """The recipe with some settings changed, as YAML that names no recipe."""
    config = load_config(RECIPE, overrides=overrides)
    return yaml.safe_dump(config.model_dump(mode="json") | {"recipe": None})


def at_the_end(path: Path) -> str:
    success = [rate for _, rate in sorted(evaluation_success(open_run(path)).items())]
    return f"{sum(success[-LAST:]) / LAST:.0%}"


def main() -> None:
    root = read_options(__doc__, root=Path("runs/pretrained-cures")).root
    root.mkdir(parents=True, exist_ok=True)
    print(describe_machine(), flush=True)
    shared = [f"model.path={warm_start(root, 'float32')}", "model.dtype=float32", "eval.every=5"]
    shared += ["envs.eval.0.groups=24", "checkpoint.every=2", "checkpoint.keep=100", "seed=0"]
    head = ("what is wrong", "before", "first critical alarm", "untreated", "suggestion", "with it")
    rows = [markdown_table(head)]
    for name, setting in KINDS.items():
        file = root / f"{name}.yaml"
        file.write_text(settings(*shared, setting, f"steps={UNTREATED}"), encoding="utf-8")
        made = ("--config", str(file), "--headless", "-o", str(root / "runs" / name))
        path = finish(root / "runs", name, "train", *made)
        alarm = diagnose(path).first_critical_step
        verdict = None if alarm is None else diagnose(path, at=alarm)
        if verdict is None or not verdict.actions or not verdict.actions[0].command:
            rows.append(f"| `{setting}` | no critical alarm with a suggestion |" + " |" * 4)
            continue
        _, *command = shlex.split(verdict.actions[0].command)
        arguments = (f"steps={TREATED}", "--name", f"{name}-advice", "--headless")
        treated = finish(root / "runs", f"{name}-advice", *command, *arguments)
        before = evaluation_success(open_run(path))[0]
        suggestion = " ".join(word for word in command if "=" in word)
        rows.append(
            f"| `{setting}` | {before:.0%} | step {alarm} | {at_the_end(path)} | checkpoint "
            f"{verdict.actions[0].checkpoint}, `{suggestion}` | {at_the_end(treated)} |"
        )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
