"""echoscope sft: warm starts from scripted experts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from .options import AsJson
from .terminal import print_json

SILENT_S = 20.0
"""A training says how far it is after this many seconds, or 50 iterations if these are sooner."""

app = typer.Typer(
    help="Warm starts: demonstrations from scripted experts, and training on them.",
    no_args_is_help=True,
)


@app.command()
def generate(
    targets: Annotated[
        list[str],
        typer.Argument(help="Recipes, YAML files or environment ids.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("-o", "--output", help="JSONL file to write.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes in all.")] = 1000,
    careful: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TAG=]SHARE",
            help="Share of turns that follow the expert; the others guess. Repeat for single "
            "environments: --careful 0.4 --careful sokoban=0.5",
        ),
    ] = None,
    nonsense: Annotated[
        float, typer.Option(min=0, max=1, help="Share of turns with an invalid reply.")
    ] = 0.02,
    narrator: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Writes the reasoning: your function from the id of an environment to its "
            "narrator. Default: a plain one that names the action.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    all_tasks: Annotated[
        bool, typer.Option("--all-tasks", help="Also play the tasks reserved for evaluation.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write demonstrations: scripted experts that make deliberate mistakes, with reasoning."""
    from echoscope.core.warm_start.demonstrations import SftError, demonstrate, write_jsonl
    from echoscope.core.warm_start.narrators import load_narrators
    from echoscope.core.warm_start.run import plan_lessons
    from echoscope.text.amounts import percent
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    narrator_of = load_narrators(narrator)
    share, by_tag = _careful(careful or [])
    lessons = plan_lessons(
        targets, episodes=episodes, careful=share, careful_by_tag=by_tag, nonsense=nonsense
    )
    if out.is_dir():
        raise SftError(f"{out} is a folder; name a file")
    out.parent.mkdir(parents=True, exist_ok=True)
    demonstrations = [
        episode
        for lesson in lessons
        for episode in demonstrate(lesson, seed=seed, all_tasks=all_tasks, narrator_of=narrator_of)
    ]
    write_jsonl(demonstrations, out)
    success: dict[str, list[bool]] = {}
    for episode in demonstrations:
        success.setdefault(episode.env, []).append(bool(episode.success))
    if as_json:
        rates = {env: sum(won) / len(won) for env, won in success.items()}
        print_json({"out": out, "episodes": len(demonstrations), "success": rates})
        return
    for env, won in success.items():
        typer.echo(f"{env}: {len(won)} episodes, {percent(sum(won) / len(won), 1)} succeed")
    typer.echo(f"wrote {out}")


@app.command()
def train(
    data: Annotated[list[Path], typer.Argument(help="JSONL files of `sft generate`.")],
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder for the policy.")],
    model: Annotated[
        str, typer.Option(help="`fresh`, a name of `echoscope models list`, a folder or a hub id.")
    ] = "tiny",
    iterations: Annotated[int, typer.Option(min=1)] = 700,
    batch_episodes: Annotated[int, typer.Option(min=1)] = 32,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    prompt_weight: Annotated[
        float, typer.Option(min=0, max=1, help="Loss weight of prompt tokens.")
    ] = 0.1,
    max_row_tokens: Annotated[
        int, typer.Option(min=2, help="A longer episode is an error.")
    ] = 1024,
    lora: Annotated[bool, typer.Option("--lora", help="Train low-rank adapters only.")] = False,
    lora_rank: Annotated[int, typer.Option(min=1)] = 64,
    lora_alpha: Annotated[float, typer.Option("--lora-alpha")] = 64.0,
    dtype: Annotated[
        str, typer.Option(help="float32, or with --lora bfloat16: half the memory.")
    ] = "float32",
    save_dtype: Annotated[
        str, typer.Option(help="Of the written weights: float32 or bfloat16.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    force_think: Annotated[
        bool, typer.Option(help="The prompt opens <think>, as in training.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Annotated[
        int, typer.Option(min=1, help="Torch threads; results repeat exactly with 1.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a policy on demonstrations."""
    import torch

    from echoscope.core.pretrained.policy_assets import PolicyShape
    from echoscope.core.warm_start.demonstrations import SftError
    from echoscope.core.warm_start.run import SaveDtype, SftConfig, warm_start
    from echoscope.diagnostics.tools.setting_errors import checked

    _quiet()
    if save_dtype not in get_args(SaveDtype):
        raise SftError(f"--save-dtype is {save_dtype!r}, but must be float32 or bfloat16")
    torch.set_num_threads(threads)
    values = {
        "iterations": iterations,
        "batch_episodes": batch_episodes,
        "lr": lr,
        "prompt_weight": prompt_weight,
        "max_row_tokens": max_row_tokens,
        "seed": seed,
        "dtype": dtype,
        "device": device,
        "lora": {"rank": lora_rank, "alpha": lora_alpha} if lora else None,
    }
    config = checked(SftConfig, values, ())
    said_at = time.monotonic()

    def on_progress(iteration: int, loss: float) -> None:
        nonlocal said_at
        is_due = iteration % 50 == 0 or time.monotonic() - said_at > SILENT_S
        if not as_json and (is_due or iteration == iterations):
            said_at = time.monotonic()
            typer.echo(f"iteration {iteration:>5}/{iterations}  loss {loss:.4f}")

    loss = warm_start(
        data,
        model,
        out,
        config,
        shape=PolicyShape(),
        force_think=force_think,
        on_progress=on_progress,
        save_dtype=cast(SaveDtype, save_dtype),
    )
    if as_json:
        print_json({"out": out, "iterations": iterations, "final_loss": loss})
    else:
        typer.echo(f"wrote {out} after {iterations} iterations, loss {loss:.4f}")


@app.command()
def merge(
    adapters: Annotated[
        Path,
        typer.Argument(help="Folder of `sft train --lora`, or `model` of a LoRA run's checkpoint."),
    ],
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder for the merged policy.")],
) -> None:
    """Merge LoRA adapters into their base model."""
    from echoscope.core.warm_start.adapters import merge_adapters

    _quiet()
    merge_adapters(adapters, out)
    typer.echo(f"wrote {out}")


def _careful(texts: list[str]) -> tuple[float, dict[str, float]]:
    """`["0.4", "sokoban=0.5"]` as the common share and those by tag."""
    from echoscope.core.warm_start.demonstrations import SftError

    common, by_tag = 0.4, {}
    for word in texts:
        tag, _, number = word.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            raise SftError(f"--careful is {word!r}, but must be a number or TAG=NUMBER") from None
        if tag:
            by_tag[tag] = share
        else:
            common = share
    return common, by_tag


def _quiet() -> None:
    """Keep the libraries' bars, notes and warnings to their developers out of the output."""
    import warnings

    from transformers.utils import logging

    warnings.filterwarnings("ignore", category=FutureWarning)

    logging.disable_progress_bar()
    logging.set_verbosity_error()
