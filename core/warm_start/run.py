"""From demonstration files to a trained policy folder: what `echoscope sft` runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from echoscope.envs import registry
from echoscope.envs.settings import EnvGroup
from echoscope.text.did_you_mean import did_you_mean

from ..config.context import ContextConfig
from ..config.loading import ConfigError, load_config, recipe_names
from ..config.settings import ModelConfig
from ..policy import load_model, with_adapters
from ..pretrained.base import remember_base
from ..pretrained.policy_assets import (
    PolicyShape,
    create_policy,
    resolve_model,
    save_tokenizer,
    train_tokenizer,
)
from ..rollout.chat import ChatFormat, check_vocabulary, load_tokenizer
from .adapters import check_out
from .demonstrations import (
    Demonstration,
    SftError,
    Teaching,
    demonstrate,
    encode,
    read_jsonl,
    training_text,
)
from .narrators import NarratorOf, plain_narrator
from .sft import SftConfig, train

FRESH = "fresh"
"""In place of a model: a new small policy with a tokenizer of its own."""

SUMMARY_FILE = "sft.json"
SaveDtype = Literal["float32", "bfloat16"]
"""Of the weights in a policy's folder."""
BARE_CONTEXT = ContextConfig(system="", instructions=False, format_hint=False)
"""A user turn is the observation and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One environment to demonstrate, and how many episodes of it."""

    group: EnvGroup
    context: ContextConfig
    episodes: int
    teaching: Teaching


def plan_lessons(
    targets: Sequence[str],
    *,
    episodes: int,
    careful: float,
    careful_by_tag: Mapping[str, float],
    nonsense: float,
) -> list[Lesson]:
    """Share `episodes` among the environments of the targets, in proportion to their `groups`.

    A target is a YAML file, a recipe or an environment id, looked for in this order.

    Raises:
        ConfigError: a target that is none of these, or a careful tag that names no environment.
    """
    groups = [pair for target in targets for pair in _groups_of(target)]
    names = {name for group, _ in groups for name in (group.name, group.env)}
    for tag in careful_by_tag:
        if tag not in names:
            raise ConfigError(f"--careful names {tag!r}{did_you_mean(tag, names)}")
    total = sum(group.groups for group, _ in groups)
    lessons = []
    given = seen = 0
    for group, context in groups:
        seen += group.groups
        share = episodes * seen // total - given
        given += share
        of_env = careful_by_tag.get(group.env, careful)
        teaching = Teaching(careful=careful_by_tag.get(group.name, of_env), nonsense=nonsense)
        lessons.append(Lesson(group=group, context=context, episodes=share, teaching=teaching))
    return lessons


def _groups_of(target: str) -> list[tuple[EnvGroup, ContextConfig]]:
    if target.endswith((".yaml", ".yml")):
        config = load_config(file=Path(target))
    elif target in recipe_names():
        config = load_config(target)
    elif target in registry.known_ids() or target.count(":") == 1:
        return [(EnvGroup(env=target), BARE_CONTEXT)]
    else:
        names = [*recipe_names(), *registry.known_ids()]
        raise ConfigError(f"no recipe or environment {target!r}{did_you_mean(target, names)}")
    return [(group, config.context) for group in config.envs.train]


def teach(
    lessons: Sequence[Lesson],
    *,
    seed: int,
    all_tasks: bool = False,
    narrator_of: NarratorOf = plain_narrator,
) -> list[Demonstration]:
    """All episodes of all lessons, in order. The same seed gives the same ones.

    Args:
        all_tasks: also play tasks that are reserved for evaluation.
        narrator_of: writes the reasoning of an environment.
    """
    return [
        episode
        for lesson in lessons
        for episode in demonstrate(
            lesson.group,
            lesson.context,
            lesson.teaching,
            episodes=lesson.episodes,
            seed=seed,
            all_tasks=all_tasks,
            narrator_of=narrator_of,
        )
    ]


def warm_start(
    data: Sequence[Path],
    model: str,
    out: Path,
    config: SftConfig,
    *,
    shape: PolicyShape,
    force_think: bool,
    on_progress: Callable[[int, float], None] = lambda iteration, loss: None,
    save_dtype: SaveDtype = "float32",
) -> float:
    """Train `model` (a shipped name, a folder or `fresh`) and write the policy to `out`.

    `out` then holds the weights (or the adapters), the tokenizer and `sft.json`. Returns the mean
    loss of the last 50 iterations.

    Raises:
        SftError, ConfigError, ChatFormatError: something does not fit; nothing was overwritten.
    """
    check_out(out)
    if config.dtype != "float32" and config.lora is None:
        raise SftError(
            f"dtype is {config.dtype}, in which small changes of a weight are lost: add --lora, "
            "whose adapters are float32, or leave --dtype out"
        )
    demonstrations = [each for path in data for each in read_jsonl(path)]
    if not demonstrations:
        raise SftError(f"no demonstration in {', '.join(map(str, data))}")
    tokenizer, network = _load(model, demonstrations, shape, config)
    chat = ChatFormat(tokenizer)
    check_vocabulary(chat, int(network.get_input_embeddings().weight.shape[0]))
    rows = [
        encode(each, chat, force_think=force_think, prompt_weight=config.prompt_weight)
        for each in demonstrations
    ]
    losses = train(network, rows, config, on_progress=on_progress)[-50:]
    loss = sum(losses) / len(losses)
    out.mkdir(parents=True, exist_ok=True)
    _save(network, out, save_dtype)
    save_tokenizer(tokenizer, out)
    if config.lora is not None:
        remember_base(out, Path(resolve_model(model)))
    facts = {"model": model, "num_episodes": len(demonstrations), "data": _digest(data)}
    _write_summary(out, config, facts | {"final_loss": round(loss, 5)})
    return loss


def _load(
    model: str, demonstrations: Sequence[Demonstration], shape: PolicyShape, config: SftConfig
) -> tuple[PreTrainedTokenizerFast, PreTrainedModel | PeftModel]:
    if model == FRESH:
        if config.lora is not None:
            raise SftError("a fresh model has nothing to adapt; leave --lora out")
        tokenizer = train_tokenizer(training_text(demonstrations), shape.vocab_size)
        network = create_policy(tokenizer, shape, seed=config.seed)
        # The library's own default keeps 50 tokens, which is another policy than the trained one.
        network.generation_config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        return tokenizer, network
    folder = resolve_model(model)
    tokenizer = load_tokenizer(folder)
    network = load_model(folder, ModelConfig(dtype=config.dtype, device=config.device))
    if config.lora is None:
        return tokenizer, network
    adapted = with_adapters(network, config.lora, config.seed)
    # `tiny` rather than where it lies today, so that the adapters can move between machines.
    adapted.peft_config["default"].base_model_name_or_path = model
    return tokenizer, adapted


def _save(network: PreTrainedModel | PeftModel, out: Path, dtype: SaveDtype) -> None:
    if dtype == "bfloat16":  # half the size, rounded once: training always happens in float32
        network.to(torch.bfloat16)
    if isinstance(network, PeftModel):
        # Embeddings never grow here; to find that out, peft would look for the base on a hub.
        network.save_pretrained(str(out), save_embedding_layers=False)
    else:
        network.save_pretrained(out)


def _digest(data: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in data:
        digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def _write_summary(folder: Path, config: SftConfig, facts: Mapping[str, Any]) -> None:
    """How the weights were made. Written last: a folder that has it is complete."""
    summary = {**facts, "settings": config.model_dump(mode="json"), "torch": torch.__version__}
    text = json.dumps(summary, indent=2, sort_keys=True)
    (folder / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")
