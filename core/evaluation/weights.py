"""A player whose weights are here: its episodes are sampled as those of a training are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from echoscope.store.records import Split, Trajectory

from ..config.loading import ConfigError
from ..config.settings import RunConfig
from ..engines.base import SamplingParams
from ..engines.build import build_engine, check_engine
from ..pretrained.policy_assets import resolve_model
from ..rollout.chat import check_vocabulary, load_chat
from ..rollout.context import check_reasoning
from ..rollout.rollout import Collection
from ..rollout.shaping import resolve as resolve_shaping
from ..rollout.stop_strings import Stopping
from .players import IN_FLIGHT, Spent, TaskBatch
from .who import Who, load


class WeightsPlayer:
    """Samples from a policy's own weights, with the engine that the settings name.

    Raises:
        ConfigError, ChatFormatError, EngineError: it cannot play under these settings.
    """

    def __init__(self, who: Who, config: RunConfig, *, is_budgeted: bool) -> None:
        check_engine(config)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        policy = load(who, config)
        self._config = config
        self._chat = load_chat(resolve_model(config.model.path), config.context.template_args)
        check_vocabulary(self._chat, policy.vocabulary_size)
        check_reasoning(self._chat, config.context)
        self._stopping = Stopping(self._chat, config.sampling)
        self._shaping = resolve_shaping(config.reward.shaping)
        self._pace = config.collection
        if is_budgeted:  # few are under way when the limit is reached
            most = config.collection.max_in_flight or IN_FLIGHT
            update = {"mode": "async", "max_in_flight": most}
            self._pace = config.collection.model_copy(update=update)
        self.spent = Spent()
        self._engine = build_engine(config, policy)
        try:
            self._engine.sync_weights(policy)
        except BaseException:
            self._engine.close()
            raise

    def play(self, part: TaskBatch) -> None:
        """See `Player`."""
        config = self._config

        def finished(ended: Sequence[Trajectory]) -> None:
            self.spent.add(0, sum(t.num_sampled_tokens for t in ended), None)
            part.on_finished(ended)

        try:
            Collection(
                pool=part.pool,
                engine=self._engine,
                chat=self._chat,
                context=config.context,
                sampling=SamplingParams(max_new_tokens=1, temperature=config.eval.temperature),
                step=part.step,
                split=Split.EVAL,
                seed=config.seed,
                on_finished=finished,
                should_abort=part.should_abort,
                shaping=self._shaping,
                stopping=self._stopping,
                pace=self._pace,
                played=part.played,
                may_begin=part.may_begin,
                seed_step=0,
            ).run()
        except torch.OutOfMemoryError:
            raise ConfigError(
                "memory ran out while episodes were played: lower engine.max_batch_rows, or set "
                "collection.mode=async and collection.max_in_flight"
            ) from None
        finally:
            self._engine.release_memory()

    def close(self) -> None:
        self._engine.close()
