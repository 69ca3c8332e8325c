"""verifiers and prime-rl as recorded runs: every episode, with its messages, rewards and group.

    hook = EpisodeHook(recorder)
    await env.run_slot(slot, ctx, on_complete=hook)     # verifiers v1: once an episode
    recorder.step(step, metrics)                        # once a step

`on_complete` is verifiers' own place for this: it is called with each episode that is final. A
loop that generates rollouts in another way gives each of them to `add`: an `Episode`, the dict that
it is stored as, or a row of the older `results.jsonl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from echoscope.store.importers.draft import RowError
from echoscope.store.importers.format import Where
from echoscope.store.importers.formats.verifiers import EPISODES, LEGACY
from echoscope.text.sentences import in_one_line

from .recorder import Recorder

_NOWHERE = Where(path=PurePath("recorder"))


class EpisodeHook:
    """Records what an environment of verifiers has finished. Call it in the recorder's thread.

    Args:
        recorder: whose next `step` the episodes belong to.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._said: set[str] = set()

    async def __call__(self, episode: Any) -> None:
        """For `on_complete`. Never raises for what the episode holds."""
        self.add(episode)

    def add(self, episode: Any, *, group: str | None = None) -> None:
        """Record an episode.

        Args:
            group: siblings of one task have the same; None: the episode's own group, or its task.
        """
        try:
            row = episode if isinstance(episode, Mapping) else episode.to_record()
            whole = {"run": None, **row}  # an episode has no run before somebody names one
            kind = next((form for form in (EPISODES, LEGACY) if form.matches(whole)), None)
            if kind is None:
                raise RowError("it is neither an episode of v1 nor a row of results.jsonl")
            for draft in kind.drafts(row, _NOWHERE):
                if group is not None:
                    draft.group = group
                self._recorder.draft(draft)
        except Exception as error:  # noqa: BLE001 - the rollouts go on, and it is said
            reason = in_one_line(error)
            if reason not in self._said:
                self._said.add(reason)
                self._recorder.say(f"recorder: an episode of verifiers was not recorded: {reason}")
