"""Checkpoints: a whole, verifiable folder or nothing, without pickle.

checkpoints/step_000100/
  model/             save_pretrained folder (adapters only with LoRA), with the tokenizer
  critic.safetensors
  optimizer.safetensors
  state.json         step, policy version, resolved configuration, observers' state
  MANIFEST.json      size and SHA-256 of each of these files (`store/checkpoints.py`)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from echoscope.store.checkpoints import (
    MANIFEST_NAME,
    STATE_NAME,
    checkpoint_damage,
    checkpoint_folders,
    checkpoint_path,
    checkpoint_step,
    older_whole_checkpoint,
    write_checkpoint_manifest,
)
from echoscope.store.errors import StoreError
from echoscope.store.log.durable import sync_path
from echoscope.store.log.index import read_run_json
from echoscope.store.log.layout import MODEL_NAME, Layout, shown_path
from echoscope.store.records import CheckpointRecord

from ..config.loading import ConfigError, validate
from ..config.settings import RunConfig
from ..policy import Policy, causal_model
from ..pretrained.base import is_other_base, remember_base
from ..update.learners.alone import Learner

FORMAT_VERSION = 3


class CheckpointError(OSError):
    """A checkpoint cannot be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the loop carries from step to step, besides weights and settings."""

    step: int = 0
    """The last finished step."""
    num_nonfinite: int = 0
    """Consecutive steps skipped because of a NaN or infinite gradient."""
    success_by_tag: Mapping[str, float] = field(default_factory=dict)
    """Running success of each environment, for the curriculum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState(Progress):
    """What the loop knows at a step boundary, besides weights."""

    policy_version: int
    config: RunConfig
    """With all live changes so far."""
    observers: Mapping[str, Any] = field(default_factory=dict)
    """State of observers by name, JSON values."""

    @property
    def progress(self) -> Progress:
        return Progress(**{each.name: getattr(self, each.name) for each in fields(Progress)})


_REMAINS = re.compile(r"\.step_[0-9]{6,}\.(?:partial|removed)")


def list_checkpoints(run_path: Path) -> list[Path]:
    """Whole checkpoints, oldest first. Folders with other names, such as copies, are none."""
    return checkpoint_folders(run_path / "checkpoints")


def begin_checkpoint(
    run_path: Path,
    state: TrainState,
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    *,
    reason: str,
) -> Callable[[], CheckpointRecord]:
    """Write a checkpoint's files; what is returned makes them durable, and then a checkpoint.

    Nothing that the training changes is read by it, so it may run in a thread. The next checkpoint
    begins after it has ended.

    Raises:
        CheckpointError: the disk refuses, here or there; older checkpoints are as they were.
    """
    final = checkpoint_path(run_path, state.step)
    final.parent.mkdir(exist_ok=True)
    _clear_remains(final.parent)
    partial = final.with_name(f".{final.name}.partial")
    with _whole_or_nothing(partial, state.step):
        _write(partial, state, learner, tokenizer)

    def finish() -> CheckpointRecord:
        with _whole_or_nothing(partial, state.step):
            _finish(partial, final, run_path)
        return _record(run_path, final, state.policy_version, reason)

    return finish


@contextmanager
def _whole_or_nothing(partial: Path, step: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk need not stay full
        if isinstance(error, (OSError, SafetensorError)):
            raise CheckpointError(
                f"{partial.parent}: cannot write the checkpoint of step {step} "
                f"({_one_line(error)}); the run is safe up to that step"
            ) from error
        raise


def remove_checkpoints(run_path: Path, steps: Collection[int]) -> list[CheckpointRecord]:
    """Delete the checkpoints of some steps; one record for each."""
    records = []
    for old in list_checkpoints(run_path):
        if checkpoint_step(old) in steps:
            _remove(old)
            records.append(_record(run_path, old, -1, "keep", is_deleted=True))
    return records


def adopt_checkpoint(
    source: Path,
    run_path: Path,
    config: RunConfig,
    *,
    observers: Mapping[str, Any] | None = None,
) -> CheckpointRecord:
    """Make another run's checkpoint the first of `run_path`, to go on from it under `config`.

    Its files are shared by hard links where the disk can do that: nobody changes them in place.
    `observers` is what those of the new run remember.

    Raises:
        CheckpointError: the disk refuses, or the checkpoint went away.
    """
    before = read_state(source)
    final = checkpoint_path(run_path, before.step)
    partial = final.with_name(f".{final.name}.partial")
    plays_the_same = config.envs.train == before.config.envs.train
    state = replace(
        before,
        config=config,
        num_nonfinite=0,
        success_by_tag=before.success_by_tag if plays_the_same else {},
        observers=observers or {},
    )
    try:
        final.parent.mkdir(exist_ok=True)
        own = shutil.ignore_patterns(STATE_NAME, MANIFEST_NAME)
        shutil.copytree(source, partial, copy_function=_link, ignore=own)
        (partial / STATE_NAME).write_text(_state_json(state), encoding="utf-8")
        _finish(partial, final, run_path)
    except OSError as error:
        raise CheckpointError(
            f"{final.parent}: cannot take over {source} ({_one_line(error)})"
        ) from error
    return _record(run_path, final, state.policy_version, "branch")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)


def _write(
    partial: Path, state: TrainState, learner: Learner, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write all files but their manifest."""
    policy = learner.policy
    partial.mkdir()
    policy.model.save_pretrained(partial / MODEL_NAME, safe_serialization=True)
    if isinstance(policy.model, PeftModel):
        remember_base(partial / MODEL_NAME, Path(causal_model(policy.model).name_or_path))
    _save_tokenizer(tokenizer, partial / MODEL_NAME)
    if policy.critic is not None:
        weights = {n: w.detach().contiguous() for n, w in policy.critic.state_dict().items()}
        save_file(weights, partial / "critic.safetensors")
    learner.save(partial)
    (partial / STATE_NAME).write_text(_state_json(state), encoding="utf-8")


def _finish(partial: Path, final: Path, run_path: Path) -> None:
    """Make all files durable, then the manifest that names them, then its name."""
    for path in sorted(partial.rglob("*")):
        sync_path(path)
    write_checkpoint_manifest(partial, step=checkpoint_step(final), run_id=_run_id(run_path))
    sync_path(partial)
    if final.exists():
        _remove(final)
    partial.rename(final)
    sync_path(final.parent)


def _run_id(run_path: Path) -> str | None:
    """The run's id; None where the folder is no run yet."""
    try:
        return str(read_run_json(Layout(run_path))["run_id"])
    except StoreError:
        return None


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # the tokenizers library has no class of its own for a full disk
        raise OSError(_one_line(error)) from error


def _remove(path: Path) -> None:
    """Delete a checkpoint so that a crash on the way leaves none that looks whole."""
    doomed = path.with_name(f".{path.name}.removed")
    path.rename(doomed)
    shutil.rmtree(doomed)


def _clear_remains(folder: Path) -> None:
    """Delete what a crash left of checkpoints half written or half removed, and nothing else."""
    for path in folder.iterdir():
        if _REMAINS.fullmatch(path.name):
            shutil.rmtree(path)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _record(
    run_path: Path, path: Path, version: int, reason: str, *, is_deleted: bool = False
) -> CheckpointRecord:
    files = [] if is_deleted else [file for file in path.rglob("*") if file.is_file()]
    return CheckpointRecord(
        step=checkpoint_step(path),
        path=str(path.relative_to(run_path)),
        policy_version=version,
        num_bytes=sum(file.stat().st_size for file in files),
        wall_time=time.time(),
        reason=reason,
        is_deleted=is_deleted,
    )


def _state_json(state: TrainState) -> str:
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    values |= {"format_version": FORMAT_VERSION, "config": state.config.model_dump(mode="json")}
    return json.dumps(values, indent=1)


def read_state(path: Path) -> TrainState:
    """The loop's state in a checkpoint.

    Raises:
        ConfigError: not a checkpoint, damaged, or written by a newer Echoscope.
    """
    why = checkpoint_damage(path, only=STATE_NAME)
    if why:
        raise _refused(path, f"is damaged: {why}")
    try:
        values = json.loads((path / STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a checkpoint: it has no readable state.json")
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{path} has checkpoint format {version}, but this Echoscope reads format "
            f"{FORMAT_VERSION}; use the version that wrote it"
        )
    try:
        kept = {each.name: values[each.name] for each in fields(TrainState)}
        return TrainState(**kept | {"config": validate(values["config"])})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}/state.json is damaged: {_one_line(error)}") from None


def require_whole(path: Path) -> TrainState:
    """The loop's state in a checkpoint, once every file is proven to be what was written.

    Raises:
        ConfigError: damaged; the message names the checkpoint before it and the command.
    """
    run_path = path.parent.parent
    why = checkpoint_damage(path, run_id=_run_id(run_path))
    if why:
        raise _refused(path, f"is damaged: {why}")
    return read_state(path)


def _refused(path: Path, why: str) -> ConfigError:
    """The error that names the checkpoint to go back to, and how."""
    older = older_whole_checkpoint(path)
    run = shown_path(path.parent.parent)
    way_out = "there is no older checkpoint to go back to"
    if older is not None:
        step = checkpoint_step(older)
        way_out = (
            f"the next older checkpoint is whole: `echoscope train --resume {run} "
            f"--checkpoint {step}` or `echoscope ctl {run} branch --checkpoint {step}`"
        )
    return ConfigError(f"{path} {why}; {way_out}")


def load_weights(path: Path, learner: Learner) -> None:
    """Put a checkpoint's weights and optimizer state into place, bit for bit.

    Raises:
        ConfigError: a file is missing or damaged, or belongs to another model.
    """
    version, policy = require_whole(path).policy_version, learner.policy
    device = str(policy.device)
    try:
        load_policy(path / MODEL_NAME, policy)
        if policy.critic is not None:
            policy.critic.load_state_dict(load_file(path / "critic.safetensors", device=device))
        learner.load(path)
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise _refused(path, f"cannot be loaded ({_one_line(error)})") from error
    policy.version = version


def load_policy(folder: Path, policy: Policy) -> None:
    """Put the weights of a checkpoint's model folder into place.

    Raises:
        OSError, KeyError, ValueError, RuntimeError, SafetensorError: it is damaged, or another's.
    """
    if isinstance(policy.model, PeftModel):
        if is_other_base(folder, Path(causal_model(policy.model).name_or_path)):
            raise ValueError(
                f"its adapters were trained on other weights than model.path={policy.config.path} "
                "has now; bring those back"
            )
        tensors = load_file(folder / "adapter_model.safetensors", device=str(policy.device))
        if tensors.keys() != get_peft_model_state_dict(policy.model).keys():
            raise ValueError("its adapters belong to another model")
        set_peft_model_state_dict(policy.model, tensors)
        return
    if not (folder / "config.json").is_file():
        raise ValueError("model/config.json is missing")
    model = causal_model(policy.model)
    loaded, report = type(model).from_pretrained(
        folder, dtype=model.dtype, use_safetensors=True, output_loading_info=True
    )
    if report["missing_keys"]:
        raise ValueError(f"it has no weights for {min(report['missing_keys'])}")
    with torch.no_grad():
        source = dict(loaded.named_parameters())
        for name, parameter in model.named_parameters():
            parameter.copy_(source[name])
