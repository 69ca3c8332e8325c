"""Which steps of a stored run can be measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader


def steps_with_groups(reader: RunReader, *, with_tokens: bool = False) -> list[int]:
    """Finished steps that have training (or imported) trajectories, in order.

    While a step goes on, the episodes that ended first can be read already: the short ones, and
    groups in part. They say nothing of the step.

    Args:
        with_tokens: only steps with recorded tokens.
    """
    found = reader.sql(
        "SELECT DISTINCT step FROM trajectories WHERE split IN ('train', 'import') "
        "AND step <= $1 AND (num_sampled_tokens > 0 OR NOT $2) ORDER BY step",
        [reader.info().last_step, with_tokens],
    )
    return [int(step) for step in found.column("step").to_pylist()]
