"""Settings of a TRL trainer that may change while it trains: rate, temperature, beta and clip.

Read in TRL 1.16: the loss reads `beta` and `epsilon_low`, `epsilon_high` of the trainer at every
batch, the optimizer is told its rate by the scheduler after every step. The temperature stands in
four places: the trainer, its generation config, its vLLM client, and the forward that TRL gave each
model, which divides the logits by it. Replies and their loss need the same one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CellType
from typing import Any

from transformers import Trainer

from echoscope.store.steer.steering import SteeringError, check_settings

from .orders import NotYetError

RATE, TEMPERATURE, KL = "optim.lr", "sampling.temperature", "loss.kl_coef"
CLIP_LOW, CLIP_HIGH, CISPO_LIMIT = "loss.clip_low", "loss.clip_high", "epsilon_high"
_ATTRIBUTES = {
    KL: "beta",
    CLIP_LOW: "epsilon_low",
    CLIP_HIGH: "epsilon_high",
    CISPO_LIMIT: "epsilon_high",
}
"""Settings that the trainer's loss reads anew at each batch, and where."""
_OF_REPLIES = {TEMPERATURE, KL}
"""Settings that replies and their loss must share: they change where new replies are sampled."""
_SCALING_SCHEDULES = ("LambdaLR", "ReduceLROnPlateau")
"""Classes of torch that multiply a base rate, or the present one."""
_WITHOUT_CLIP = ("sapo", "vespo")
_POLICY_TRAINERS = {"GRPOTrainer", "RLOOTrainer"}


class TrlSettings:
    """What of a trainer may change between two steps. In distributed training each process has one.

    Args:
        trainer: of TRL, whose training has begun. GRPO and RLOO have all settings, other trainers
            the learning rate.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        names = {each.__name__ for each in type(trainer).__mro__}
        self._is_policy_trainer = not names.isdisjoint(_POLICY_TRAINERS)
        self._has_reference = bool(getattr(trainer, "beta", 0.0))

    @property
    def live(self) -> dict[str, dict[str, Any]]:
        """JSON Schema of each setting, with the value that holds."""
        trainer, args = self._trainer, self._trainer.args
        schemas = {
            RATE: {
                "exclusiveMinimum": 0,
                "value": args.learning_rate,
                "moves": True,
                "names": ["learning_rate"],
                "description": "Learning rate of the next step. The schedule goes on from there.",
            }
        }
        if self._is_policy_trainer:
            both = [] if args.epsilon_high is not None else ["epsilon"]
            schemas |= {
                TEMPERATURE: {
                    "exclusiveMinimum": 0,
                    "value": trainer.temperature,
                    "names": ["temperature"],
                    "description": "Temperature of the sampling, and of the loss.",
                },
                KL: {
                    "minimum": 0,
                    "value": trainer.beta,
                    "names": ["beta"],
                    "description": "Weight of the KL penalty against the reference policy.",
                },
                CLIP_LOW: {
                    "minimum": 0,
                    "maximum": 1,
                    "value": trainer.epsilon_low,
                    "names": ["epsilon", "epsilon_low"],
                    "description": "The importance ratio is clipped at 1 minus this.",
                },
                CLIP_HIGH: {
                    "minimum": 0,
                    "value": trainer.epsilon_high,
                    "names": [*both, "epsilon_high"],
                    "description": "The importance ratio is clipped at 1 plus this.",
                },
            }
            if self._loss == "cispo":
                # Another quantity there than elsewhere, and than ours: it keeps TRL's own name.
                schemas[CISPO_LIMIT] = schemas.pop(CLIP_HIGH) | {
                    "names": [],
                    "description": "The importance ratio is clipped at this.",
                }
        typed = {key: {"type": "number", **schema} for key, schema in schemas.items()}
        return {key: schema for key, schema in typed.items() if _is_own(key, schema)}

    def set(self, settings: Mapping[str, Any]) -> str:
        """Change settings for the next step, all of them or none; what else is to be said of it.

        Args:
            settings: checked by their schemas.

        Raises:
            SteeringError: the trainer does not allow one of them; the message says why.
            NotYetError: replies were sampled that more steps train with.
        """
        for key in settings:
            if why := self._why_not(key):
                raise SteeringError(f"{key} cannot change: {why}")
        if settings.keys() & _OF_REPLIES and not self._is_sampling_next:
            raise NotYetError
        note = ""
        for key, value in settings.items():
            if key == RATE:
                note = self._set_rate(float(value))
            elif key == TEMPERATURE:
                self._set_temperature(float(value))
            else:
                setattr(self._trainer, _ATTRIBUTES[key], float(value))
        return note

    @property
    def _loss(self) -> str:
        return str(getattr(self._trainer, "loss_type", ""))

    @property
    def _is_sampling_next(self) -> bool:
        """Whether the next step begins with replies of its own, not with some of the last ones."""
        trainer = self._trainer
        every = trainer.args.steps_per_generation * trainer.num_iterations
        return bool(trainer._step % every == 0)

    def _why_not(self, key: str) -> str:
        """Why the trainer does not allow a setting to change, as sentences; empty if it does."""
        if key == RATE:
            return self._why_no_rate()
        if key == TEMPERATURE:
            return self._why_no_temperature()
        if key == KL and not self._has_reference:
            return (
                "beta was 0 when the training began, so TRL loaded no reference policy. Start the "
                "training with a beta above 0."
            )
        if key == CLIP_LOW and self._loss == "cispo":
            return "loss_type=cispo clips only above. Set epsilon_high."
        if key in (CLIP_LOW, CLIP_HIGH) and self._loss in _WITHOUT_CLIP:
            return f"loss_type={self._loss} does not clip. Start the training with another loss."
        return ""

    # -- learning rate ---------------------------------------------------------------------------

    @property
    def _scheduler(self) -> Any:
        """The schedule itself, without what accelerate puts around it."""
        scheduler = self._trainer.lr_scheduler
        return getattr(scheduler, "scheduler", scheduler)

    def _why_no_rate(self) -> str:
        kind = type(self._scheduler).__name__
        if getattr(self._trainer, "is_deepspeed_enabled", False):
            return "DeepSpeed's engine keeps it. Start the training with another learning_rate."
        if kind not in _SCALING_SCHEDULES:
            return (
                f"the schedule {kind} would overwrite it. Train with an lr_scheduler_type "
                "that scales the learning rate, such as linear, cosine or constant."
            )
        if not float(self._trainer.optimizer.param_groups[0]["lr"]) > 0:
            return (
                "the schedule has brought it to 0, and would multiply a new one by 0. Start the "
                "training with another lr_scheduler_type."
            )
        return ""

    def _set_rate(self, rate: float) -> str:
        """The rate of the first parameter group, which TRL logs; the others keep their ratio to it.

        The schedule multiplies a base by a factor of the step, so the base is scaled, too.
        """
        groups, scheduler = self._trainer.optimizer.param_groups, self._scheduler
        before = float(groups[0]["lr"])
        for group in groups:
            for name in {"lr", "initial_lr"} & group.keys():
                group[name] = group[name] * (rate / before)
        state = scheduler.state_dict()
        scaled = {
            name: [each * (rate / before) for each in state[name]]
            for name in ("base_lrs", "_last_lr")  # the second is what `get_last_lr` tells the log
            if name in state
        }
        scheduler.load_state_dict(state | scaled)
        kind = self._trainer.args.lr_scheduler_type
        name = getattr(kind, "value", kind)
        return f"the rate was {before:.3g}; the schedule ({name}) goes on from the new one"

    # -- temperature -----------------------------------------------------------------------------

    def _why_no_temperature(self) -> str:
        trainer, args = self._trainer, self._trainer.args
        if getattr(trainer, "rollout_func", None) is not None:
            return "rollout_func samples the replies, at its own temperature. Change it there."
        if "temperature" in (args.generation_kwargs or {}):
            return (
                "generation_kwargs has a temperature that replies are sampled with. Start the "
                "training without it."
            )
        if getattr(args, "torch_compile", False):
            return "torch_compile built the present one into the loss. Train without torch_compile."
        if not all(any(_logit_temperatures(model)) for model in self._scoring_models()):
            return (
                "the loss of this version of TRL has a copy of its own, which was not found. With "
                "TRL 1.16 it can change."
            )
        return ""

    def _set_temperature(self, value: float) -> None:
        trainer = self._trainer
        trainer.temperature = value
        if trainer.use_vllm:
            trainer.vllm_generation.temperature = value
        else:
            trainer.generation_config.temperature = value
            trainer.generation_kwargs["temperature"] = value
        for model in self._scoring_models():
            for cell in _logit_temperatures(model):
                cell.cell_contents = value

    def _scoring_models(self) -> Iterator[Any]:
        """The policy and the reference, as TRL gave them their forward: without wrappers."""
        for model in (self._trainer.model, getattr(self._trainer, "ref_model", None)):
            if model is not None:
                bare = self._trainer.accelerator.unwrap_model(model)
                yield bare.get_base_model() if hasattr(bare, "peft_config") else bare


def running_trainer(callback: Any) -> Trainer | None:
    """The trainer that is calling a callback of its own; transformers hands over all but itself."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer) and callback in caller.callback_handler.callbacks:
            return caller
        frame = frame.f_back
    return None


def _logit_temperatures(model: Any) -> Iterator[CellType]:
    """Where the forward of TRL keeps the temperature; accelerate may have wrapped that forward."""
    forward = inspect.unwrap(model.forward, stop=lambda each: "temperature" in _enclosed(each))
    if "temperature" in (enclosed := _enclosed(forward)):
        yield enclosed["temperature"]


def _enclosed(function: Any) -> dict[str, CellType]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    return dict(zip(code.co_freevars, cells, strict=True)) if code is not None and cells else {}


def _is_own(key: str, schema: Mapping[str, Any]) -> bool:
    """Whether a setting's own value is one that a person may set; the trainer may have others."""
    with suppress(SteeringError):
        check_settings({key: schema}, {key: schema["value"]})
        return True
    return False
