"""Whether a run's evaluations still improve: a function of its evaluations, so of no state."""

from __future__ import annotations

from collections.abc import Mapping

from echoscope.text.amounts import share_of_all

from ..config.schedule import EarlyStoppingConfig


def why_stop(success: Mapping[int, float], settings: EarlyStoppingConfig) -> str:
    """One sentence if the last `patience` evaluations brought nothing better; empty otherwise.

    An evaluation is better if its success is above the best one before it, and by `min_delta` at
    least. The first one always is.

    Args:
        success: Step to the success of its evaluation.

    >>> why_stop({0: 0.2, 10: 0.5, 20: 0.5, 30: 0.4}, EarlyStoppingConfig(patience=2))
    'success in evaluation was best at step 10 (50 %), and 2 evaluations since were not better'
    >>> why_stop({0: 0.2, 10: 0.5, 20: 0.5}, EarlyStoppingConfig(patience=2))
    ''
    """
    if not settings.patience:
        return ""
    best_step, num_worse = -1, 0
    for step, rate in sorted(success.items()):
        is_better = best_step < 0 or (
            rate > success[best_step] and rate >= success[best_step] + settings.min_delta
        )
        best_step, num_worse = (step, 0) if is_better else (best_step, num_worse + 1)
    if num_worse < settings.patience:
        return ""
    return (
        f"success in evaluation was best at step {best_step} "
        f"({share_of_all(success[best_step])}), and {num_worse} evaluations since were not better"
    )
