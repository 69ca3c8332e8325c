"""EasyR1: the samples of each validation, from `generations.log`; see `spooled/easyr1_log.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..dialogue import read_flat
from ..draft import Draft, RowError, number, without
from ..format import Format, Row, Where, step_key


def _matches(row: Row) -> bool:
    return isinstance(row.get("easyr1"), Mapping)


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    if "problem" in row:
        raise RowError(str(row["problem"]))
    sample = row["easyr1"]
    dialogue, is_guess = read_flat(sample["prompt"], sample["output"])
    fields = without(sample, ("prompt", "output", "score"))
    draft = Draft(
        turns=dialogue.turns,
        prompt=sample["prompt"],
        final_observation=dialogue.final_observation,
        fields=fields,
    )
    if dialogue.system:
        fields["system"] = dialogue.system
    if is_guess:
        draft.reconstructed.add("turns")
    if "validation" in row:
        draft.reconstructed.add("validations")
    draft.set_episode_reward(number(sample["score"].strip()))
    yield draft


SAMPLES = Format(
    name="EasyR1 generations",
    trainer="EasyR1",
    matches=_matches,
    drafts=_drafts,
    step=step_key("validation"),
    file_step=lambda where: None,
)
