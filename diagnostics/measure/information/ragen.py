"""RAGEN's collapse metrics by its own formulas: its users' dashboards and numbers carry over.

What it computes differs from `estimate.py` on purpose, and so do the numbers: its `mi_estimate`
mixes length-normalised likelihoods, its trajectory sample makes every drawn pair a column of its
own, and reasonings that were never closed are left out. docs/information.md compares both.

Kept from its code: the samples, the formulas, the constants and the names. Not kept: it tokenises
the reasoning again and strips it; here the sampled ids between the tags are scored.

Legend: **S** rows (reasonings), **N** columns (prompts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from echoscope.store.records import FloatArray64, IntArray, IntArray64, Trajectory, Turn

from .cross_scores import CrossScores
from .estimate import log_mean_exp
from .pairs import Draw, inner_span

FIRST_TURN = "collapse_first_turn_sample"
TRAJECTORY = "collapse_trajectory_sample"
NUM_SAMPLES = 64
STD_EPS = 1e-3
EMA_DECAY = 0.9
RANKS = (2, 4, 8)


def draw_first_turn(
    trajectories: Sequence[Trajectory], rng: np.random.Generator, num_samples: int = NUM_SAMPLES
) -> Draw:
    """Valid first turns, at most `num_samples` without replacement; a column per group drawn.

    A group's prompt is that of its first sampled row.
    """
    valid = [t for t in trajectories if t.turns and inner_span(t.turns[0])]
    chosen = rng.choice(len(valid), size=min(num_samples, len(valid)), replace=False)
    rows = [(valid[i], 0) for i in chosen]
    place: dict[int, int] = {}
    column_S = [place.setdefault(t.group_index, len(place)) for t, _ in rows]
    return _draw(FIRST_TURN, rows, np.array(column_S, dtype=np.int64))


def draw_trajectory(
    trajectories: Sequence[Trajectory], rng: np.random.Generator, num_samples: int = NUM_SAMPLES
) -> Draw:
    """Pairs with replacement: a trajectory, then one of its valid turns; each pair is a column.

    A trajectory without a valid turn is drawn and dropped, so there may be fewer pairs.
    """
    valid = [[k for k, turn in enumerate(t.turns) if inner_span(turn)] for t in trajectories]
    rows = []
    for _ in range(min(num_samples, sum(map(len, valid)))):
        place = int(rng.integers(len(trajectories)))
        if valid[place]:
            rows.append((trajectories[place], valid[place][int(rng.integers(len(valid[place])))]))
    return _draw(TRAJECTORY, rows, np.arange(len(rows)))


def as_ragen_first_turn(scores: CrossScores) -> CrossScores:
    """Scores of our `first_turn` family as RAGEN's first-turn sample, without scoring again.

    Rows without a closed reasoning with words are left out, and columns without rows. What remains
    is one of the samples it could have drawn, except that prompts which several groups share are
    one column.
    """
    inner_M2 = scores.inner_M2
    if inner_M2 is None or scores.num_reasonings == 0:
        return replace(scores, family=FIRST_TURN)
    kept_M = inner_M2[:, 1] > inner_M2[:, 0]
    kept_N = np.bincount(scores.column_M[kept_M], minlength=scores.num_prompts) > 0
    place_N = np.cumsum(kept_N) - 1
    return CrossScores(
        logprobs_MNR=scores.logprobs_MNR[np.ix_(kept_M, kept_N)],
        lengths_M=scores.lengths_M[kept_M],
        column_M=place_N[scores.column_M[kept_M]],
        inner_M2=inner_M2[kept_M],
        family=FIRST_TURN,
    )


def ragen_metrics(
    scores: CrossScores, previous: Mapping[str, float] | None = None
) -> dict[str, float]:
    """`<family>/mi_estimate` and the rest, of scores of one of the draws above.

    Only tokens between the tags count. As in RAGEN there are no metrics with fewer than two
    columns; NaN log-probs give NaN.

    Args:
        previous: what this function returned at the measurement before, for the moving averages.
    """
    if scores.num_prompts < 2 or scores.num_reasonings == 0:
        return {}
    inner = scores.inner_M2
    lengths_S = scores.lengths_M if inner is None else inner[:, 1] - inner[:, 0]
    sums_SN = scores.inner_sums_MN()
    means_SN = sums_SN / lengths_S[:, None]
    signature_N = np.arange(scores.num_prompts) if scores.cluster_N is None else scores.cluster_N
    out = {"mi_upper_bound": float(np.log(scores.num_prompts))}
    for suffix, values_SN in (("", means_SN), ("_seq", sums_SN)):
        out |= _information(values_SN, scores.column_M, suffix)
    out |= _retrieval(means_SN, scores.column_M, signature_N)
    named = {f"{scores.family}/{name}": value for name, value in out.items()}
    return named | _moving_averages(named, scores.family, previous or {})


def thinking_rates(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`collapse/...`: how many turns have a closed reasoning with something in it."""
    firsts = [t.turns[0] for t in trajectories if t.turns]
    turns = [turn for t in trajectories for turn in t.turns]
    num_first = sum(inner_span(turn) is not None for turn in firsts)
    num_all = sum(inner_span(turn) is not None for turn in turns)
    return {
        "collapse/valid_thinking_rate": num_all / len(turns) if turns else float("nan"),
        "collapse/first_turn_num_total": float(len(firsts)),
        "collapse/first_turn_num_valid": float(num_first),
        "collapse/first_turn_valid_rate": num_first / len(firsts) if firsts else float("nan"),
    }


def _information(values_SN: FloatArray64, column_S: IntArray64, suffix: str) -> dict[str, float]:
    """Of per-token or per-sequence scores; the mixture holds the own column."""
    matched_S = values_SN[np.arange(len(column_S)), column_S]
    marginal_S = log_mean_exp(values_SN)
    information = float((matched_S - marginal_S).mean())
    spread = float(marginal_S.std())
    out = {
        f"mi{suffix}_estimate": information,
        f"conditional_entropy{suffix}_est": -float(matched_S.mean()),
        f"reasoning_entropy{suffix}_est": -float(marginal_S.mean()),
        f"marginal_std{suffix}": spread,
        f"mi_zscore{suffix}": information / (spread + STD_EPS),
    }
    if not suffix:
        out["matched_log_prob_mean"] = float(matched_S.mean())
        out["marginal_log_prob_mean"] = float(marginal_S.mean())
    return out


def _retrieval(
    means_SN: FloatArray64, column_S: IntArray64, signature_N: IntArray64
) -> dict[str, float]:
    """By length-normalised scores; a column with the true column's prompt tokens counts as it."""
    num_rows, num_columns = means_SN.shape
    right_SN = signature_N[column_S][:, None] == signature_N
    order_SN = np.argsort(-means_SN, axis=1, kind="stable")
    found_SN = np.take_along_axis(right_SN, order_SN, axis=1)
    single = float(right_SN.mean())
    out = {}
    for rank in (1, *RANKS):
        effective = min(rank, min(RANKS[-1], num_columns))
        accuracy = float(found_SN[:, :effective].any(axis=1).sum()) / num_rows
        chance = min(1.0, single * effective)
        name = "" if rank == 1 else f"@{rank}"
        out[f"retrieval_accuracy{name}"] = accuracy
        out[f"retrieval_chance_level{name}"] = chance
        out[f"retrieval_above_chance{name}"] = accuracy - chance
    return out


def _moving_averages(
    named: Mapping[str, float], family: str, previous: Mapping[str, float]
) -> dict[str, float]:
    """z-scores against the moving average of the marginal's spread; its first value starts it."""
    out = {}
    for suffix in ("", "_seq"):
        now = named[f"{family}/marginal_std{suffix}"]
        key = f"{family}/marginal_std_ema{suffix}"
        average = EMA_DECAY * previous[key] + (1 - EMA_DECAY) * now if key in previous else now
        out[key] = average
        information = named[f"{family}/mi{suffix}_estimate"]
        out[f"{family}/mi_zscore_ema{suffix}"] = information / (average + STD_EPS)
    return out


def _draw(family: str, rows: Sequence[tuple[Trajectory, int]], column_S: IntArray64) -> Draw:
    """Its columns may hold equal prompts; `cluster_N` then holds the prompts' signatures."""
    if not rows:
        return Draw(family=family, problem="no turn has a closed reasoning with something in it")
    turns = [trajectory.turns[k] for trajectory, k in rows]
    first_row_N = np.unique(column_S, return_index=True)[1]
    prompts = [_prompt(turns[row]) for row in first_row_N]
    signature: dict[bytes, int] = {}
    return Draw(
        family=family,
        prompts=tuple(prompts),
        reasonings=tuple(_inner_tokens(turn) for turn in turns),
        column_M=column_S,
        cluster_N=np.array([signature.setdefault(x.tobytes(), len(signature)) for x in prompts]),
        env_N=tuple(rows[row][0].tag for row in first_row_N),
        turn_M=np.array([k for _, k in rows]),
        truncated_M=np.zeros(len(rows), dtype=np.bool_),
        inner_M2=np.array([(0, len(_inner_tokens(turn))) for turn in turns]),
        source_M=tuple((trajectory.id, k) for trajectory, k in rows),
    )


def _inner_tokens(turn: Turn) -> IntArray:
    assert turn.response_tokens is not None
    assert turn.reasoning_span is not None
    return turn.response_tokens[slice(*turn.reasoning_span)]


def _prompt(turn: Turn) -> IntArray:
    """Up to and with the opening tag, sampled or forced."""
    assert turn.prompt_tokens is not None
    assert turn.response_tokens is not None
    assert turn.reasoning_span is not None
    opening = turn.response_tokens[: turn.reasoning_span[0]]
    return np.concatenate([turn.prompt_tokens, opening])
