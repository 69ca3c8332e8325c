"""Who is evaluated: a run's checkpoint, a model, or a model behind somebody's interface."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from echoscope.store.checkpoints import (
    best_step,
    checkpoint_path,
    checkpoint_step,
    evaluation_success,
)
from echoscope.store.log.layout import MODEL_NAME, Layout
from echoscope.store.reader import open_run

from ..config.loading import ConfigError
from ..config.loss import NoCriticConfig
from ..config.settings import RunConfig
from ..policy import Policy, build_policy
from ..pretrained.policy_assets import check_weights, resolve_model
from ..run.checkpoint import list_checkpoints, load_policy, read_state, require_whole

PROVIDERS = frozenset(
    [
        "anthropic",
        "azureai",
        "bedrock",
        "cf",
        "cloudflare",
        "deepseek",
        "fireworks",
        "goodfire",
        "google",
        "grok",
        "groq",
        "mistral",
        "mockllm",
        "moonshotai",
        "nebius",
        "ollama",
        "openai",
        "openai-api",
        "openrouter",
        "perplexity",
        "sambanova",
        "sglang",
        "together",
        "vertex",
        "vllm",
    ]
)
"""What a name may begin with, before a slash, that Inspect's model layer serves."""
_ADDRESS = re.compile(r"https?://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """One that can play."""

    typed: str
    """As it was named."""
    run: Path | None = None
    step: int | None = None
    """Of the run's checkpoint."""
    price: tuple[float, float] | None = None
    """US dollars for a million input tokens and a million output tokens, of a provider."""
    is_provider: bool = False
    """It is asked over a provider's interface: messages in, text out."""

    @property
    def name(self) -> str:
        """For people, and for the folder of the evaluation."""
        if self.run is not None:
            return f"{self.run.name} step {self.step}"
        return self.typed

    @property
    def slug(self) -> str:
        """A part of a folder's name."""
        text = f"{self.run.name}-{self.step}" if self.run is not None else self.typed
        return re.sub(r"[^A-Za-z0-9._-]+", "-", _ADDRESS.sub("", text)).strip("-.")[-60:]


def resolve(
    typed: str, checkpoint: int | None = None, price: tuple[float, float] | None = None
) -> Who:
    """Who is meant.

    Args:
        typed: a run's folder, a provider and its model (`openai/gpt-5`), an address that speaks
            OpenAI's protocol followed by `#` and the model's name, or a model's name or folder.
        checkpoint: step of the run's checkpoint; None for the best evaluated one, or the last.

    Raises:
        ConfigError: nothing of that name can play.
    """
    folder = Path(typed).expanduser()
    if Layout(folder).is_run:
        return Who(typed=typed, run=folder, step=_step(folder, checkpoint))
    if checkpoint is not None:
        raise ConfigError(
            f"--checkpoint {checkpoint} names a checkpoint of a run, but {typed!r} is not a run's "
            "folder"
        )
    if _ADDRESS.match(typed):
        if not typed.partition("#")[2]:
            raise ConfigError(
                f"{typed!r} is an address without a model: add its name, such as {typed}#my-model"
            )
        return Who(typed=typed, is_provider=True, price=price)
    if typed.partition("/")[0] in PROVIDERS and "/" in typed and not folder.exists():
        return Who(typed=typed, is_provider=True, price=price)
    check_weights(resolve_model(typed))
    return Who(typed=typed)


def _step(run: Path, checkpoint: int | None) -> int:
    """The checkpoint to take: the one named, else the best evaluated, else the last."""
    steps = [checkpoint_step(path) for path in list_checkpoints(run)]
    if not steps:
        raise ConfigError(f"{run} has no checkpoint to evaluate")
    if checkpoint is not None:
        if checkpoint not in steps:
            raise ConfigError(
                f"{run} has no checkpoint of step {checkpoint}; it has {', '.join(map(str, steps))}"
            )
        return checkpoint
    best = best_step(steps, evaluation_success(open_run(run)))
    return steps[-1] if best is None else best


def run_settings(who: Who) -> RunConfig:
    """The settings of the run at the checkpoint that plays.

    Raises:
        ConfigError: the checkpoint cannot be read.
    """
    assert who.run is not None
    assert who.step is not None
    return read_state(checkpoint_path(who.run, who.step)).config


def load(who: Who, config: RunConfig) -> Policy:
    """The policy that plays, with the weights in place and nothing of a training around it.

    Raises:
        ConfigError: the weights are missing, damaged, or another model's.
    """
    policy = build_policy(config.model, NoCriticConfig(), seed=config.seed)
    if who.run is not None and who.step is not None:
        folder = checkpoint_path(who.run, who.step)
        state = require_whole(folder)
        try:
            load_policy(folder / MODEL_NAME, policy)
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"{folder} cannot be loaded: {reason}") from None
        policy.version = state.policy_version
    return policy
