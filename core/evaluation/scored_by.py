"""A model that scores a stored run: one of its checkpoints, or any model of its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from echoscope.diagnostics.config import InformationConfig
from echoscope.diagnostics.measure.information.scoring import ModelScorer
from echoscope.diagnostics.tools.rescoring import Weights
from echoscope.store.checkpoints import checkpoint_path, checkpoint_step
from echoscope.store.log.layout import MODEL_NAME
from echoscope.store.reader import RunReader

from ..config.loading import ConfigError
from ..config.settings import ModelConfig
from ..policy import causal_model, load_model
from ..pretrained.policy_assets import resolve_model
from ..rollout.chat import ChatFormat, ChatFormatError, load_chat, load_tokenizer
from ..run.checkpoint import list_checkpoints, require_whole


def by_checkpoint(reader: RunReader, step: int) -> Weights:
    """The weights of the run after a step.

    Raises:
        ConfigError: there is no such checkpoint, or it cannot be loaded.
    """
    folder = checkpoint_path(reader.path, step)
    steps = [checkpoint_step(path) for path in list_checkpoints(reader.path)]
    if step not in steps:
        have = f"it has {', '.join(map(str, steps))}" if steps else "it has none"
        raise ConfigError(f"{reader.run_id} has no checkpoint of step {step}; {have}")
    state = require_whole(folder)
    config = state.config
    weights = str(folder / MODEL_NAME)
    model: PreTrainedModel | PeftModel
    if config.model.lora is None:
        model = load_model(weights, config.model)
    else:
        base = load_model(config.model.path, config.model)
        try:
            model = PeftModel.from_pretrained(base, weights).eval()
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"{weights} cannot be loaded: {reason}") from None
    return _weights(
        model,
        _chat(weights),
        config.sampling.model_dump(),
        name=f"the checkpoint of step {step}",
        config=config.diagnostics.information,
    )


def by_model(reader: RunReader, path: str) -> Weights:
    """A model from elsewhere; it must have the tokenizer that the run's ids came from.

    Raises:
        ConfigError: it cannot be loaded, or is known to have another tokenizer.
    """
    info = reader.info()
    chat = _chat(resolve_model(path))
    if info.base_model:
        _check_tokenizer(chat, path, info.base_model)
    sampling = info.config.get("sampling", {})
    return _weights(
        load_model(path, ModelConfig()),
        chat,
        sampling if isinstance(sampling, Mapping) else {},
        name=f"the model {path}",
        config=InformationConfig(),
    )


def _chat(folder: str) -> ChatFormat:
    try:
        return load_chat(folder)
    except ChatFormatError as error:
        raise ConfigError(str(error)) from None


def _check_tokenizer(chat: ChatFormat, path: str, base_model: str) -> None:
    try:
        other = load_tokenizer(resolve_model(base_model))
    except (ConfigError, ValueError, OSError):
        return  # the run's own model is not here to compare with; ids out of range still show
    if other.get_vocab() != chat.tokenizer.get_vocab():
        raise ConfigError(
            f"{path} has another tokenizer than {base_model}, whose token ids the run recorded; "
            "name a model that was trained from it"
        )


def _weights(
    model: PreTrainedModel | PeftModel,
    chat: ChatFormat,
    sampling: Mapping[str, Any],
    *,
    name: str,
    config: InformationConfig,
) -> Weights:
    temperature = float(sampling.get("temperature", 1.0))
    return Weights(
        scorer=partial(ModelScorer, model, temperature=temperature),
        decode=chat.decode,
        name=name,
        vocabulary=int(causal_model(model).get_input_embeddings().num_embeddings),
        config=config,
    )
