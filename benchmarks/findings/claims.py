"""What the papers claim, which arms test it, and when we would disagree.

Published words and numbers are those of RAGEN (arXiv 2504.20073, "V1" here) and RAGEN-2 (arXiv
2604.06268, "V2"). Nothing here says whether a claim holds: `intervals.verdict` does, from the
record.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import arms
from .figures import Difference, Figure, Lead, Level, Ranks, Split
from .intervals import Expected
from .measures import ENTROPY, ENTROPY_DOWN, ENTROPY_UP, GRADIENT, INFORMATION, RETURN, SPREAD
from .training import Arm

V1, V2 = "V1", "V2"
MARGIN = 10.0
"""Points of success that count as no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence of a paper, and what answers it."""

    topic: str
    says: str
    """The paper's claim, in one sentence."""
    published: str
    """Its number, or that there is none."""
    source: str
    figure: Figure
    expected: Expected
    border: float = 0.0
    why: str = ""
    """What may explain a disagreement; shown only where we disagree."""


VANILLA = "Vanilla StarPO collapses"
FIRST = "What moves first"
FILTER = "StarPO-S: the share of groups that trains"
PARTS = "StarPO-S: clip-higher, no KL penalty, all of it"
CRITIC = "Critic or not; PPO, GRPO, Dr. GRPO, bi-level GAE"
DIVERSITY = "Task diversity at a fixed budget"
ACTIONS = "Action budget"
REUSE = "Rollout reuse"
REASONING = "Reasoning on and off"
DECAY = "Reasoning decay under shaping"
NOISE = "SNR-adaptive filter across noise"
PREDICTORS = "I(X;Z) against entropy as predictors"

_COLLAPSING = (
    arms.STARPO,
    arms.KEEP_75,
    arms.KEEP_50,
    arms.KEEP_25,
    arms.CLIP_HIGHER,
    arms.NO_KL,
    arms.STARPO_S,
    arms.FILTERED,
    arms.GRPO,
    arms.DR_GRPO,
    arms.BI_LEVEL,
)
"""Arms of one world and one learning rate, for the order of signs and for ranks."""
_SWEEP = (*_COLLAPSING, arms.GRPO_FILTERED, arms.SLIP_50, arms.SLIP_50_FILTERED, arms.SLIP_90)
_MORE = (arms.SLIP_90_FILTERED, arms.MORE_TASKS, arms.FEWER_TASKS, arms.TURNS_4)
_RANKED = (*_SWEEP, *_MORE)
_ZSCORE = "collapse_first_turn_sample/mi_zscore"


def _shares(arm: Arm, share: str, published: str) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            topic=FILTER,
            says=f"Training on {share} of the groups {what}.",
            published=published,
            source=f"{V1}, StarPO-S",
            figure=Difference(arm=arm, other=arms.STARPO, measure=measure),
            expected="above",
        )
        for measure, what in (
            ("share of the run before success halved", "delays collapse"),
            ("final success", "ends at a higher success"),
        )
    )


def _lead(metric: str, words: str, says: str, published: str) -> Claim:
    return Claim(
        topic=FIRST,
        says=says,
        published=published,
        source=f"{V1}, early indicators",
        figure=Lead(sources=_COLLAPSING, metric=metric, metric_words=words),
        expected="above",
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        topic=VANILLA,
        says="Vanilla StarPO first learns, then loses what it has learned.",
        published="FrozenLake with PPO collapses at step 90 of 200, Sokoban at about 10; the "
        "bandit peaks at 120",
        source=f"{V1}, Echo Trap",
        figure=Level(arm=arms.STARPO, measure="fall from the peak"),
        expected="above",
        border=MARGIN,
    ),
    Claim(
        topic=VANILLA,
        says="Vanilla StarPO collapses on the bandit, too.",
        published="peaks at step 120, gradient spike at 170",
        source=f"{V1}, Echo Trap",
        figure=Level(arm=arms.BANDIT_PPO, measure="fall from the peak"),
        expected="above",
        border=MARGIN,
    ),
    Claim(
        topic=VANILLA,
        says="Entropy rises in runs that collapse and decays in the others.",
        published="direction only",
        source=f"{V1}, Echo Trap",
        figure=Split(sources=_COLLAPSING, measure="entropy at the end"),
        expected="above",
    ),
    _lead(
        SPREAD,
        "reward spread below half",
        "Reward spread within a group falls before success does.",
        "FrozenLake: spread drops at 40, reward at 90; bandit 70 and 120; Sokoban both at 10",
    ),
    _lead(
        ENTROPY_UP,
        "entropy times 1.5",
        "Output entropy changes before success does (here: it rises).",
        "an early sign; no step is given",
    ),
    _lead(
        ENTROPY_DOWN,
        "entropy divided by 1.5",
        "Output entropy changes before success does (here: it falls).",
        "an early sign; no step is given",
    ),
    Claim(
        topic=FIRST,
        says="Gradient spikes confirm the collapse: they do not come before it.",
        published="FrozenLake: both at 90; bandit 120 and 170; Sokoban 10 and 110",
        source=f"{V1}, Echo Trap",
        figure=Lead(
            sources=_COLLAPSING, metric=GRADIENT, metric_words="gradient norm above 3 times"
        ),
        expected="below",
    ),
    _lead(
        INFORMATION,
        "I(X;Z) below half of its best",
        "I(X;Z) falls before success does.",
        "V2 says so; a replication on Sokoban saw it fall a median of 5 steps after",
    ),
    _lead(
        RETURN,
        "training return below half",
        "Return in training shows the loss before evaluation does.",
        "direction only",
    ),
    *_shares(arms.KEEP_75, "75 %", "FrozenLake collapses at 140 instead of 100"),
    *_shares(arms.KEEP_50, "50 %", "FrozenLake does not collapse in 200 steps"),
    *_shares(arms.KEEP_25, "25 %", "the default of StarPO-S"),
    Claim(
        topic=PARTS,
        says="A higher upper clip keeps success up.",
        published="direction only",
        source=f"{V1}, StarPO-S",
        figure=Difference(arm=arms.CLIP_HIGHER, other=arms.STARPO, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=PARTS,
        says="Leaving out the KL penalty keeps success up.",
        published="direction only",
        source=f"{V1}, StarPO-S",
        figure=Difference(arm=arms.NO_KL, other=arms.STARPO, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=PARTS,
        says="StarPO-S as a whole ends higher than vanilla StarPO.",
        published="collapse is delayed or absent on all three worlds",
        source=f"{V1}, StarPO-S",
        figure=Difference(arm=arms.STARPO_S, other=arms.STARPO, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=PARTS,
        says="StarPO-S reaches a higher peak than vanilla StarPO.",
        published="direction only",
        source=f"{V1}, StarPO-S",
        figure=Difference(arm=arms.STARPO_S, other=arms.STARPO, measure="peak success"),
        expected="above",
    ),
    Claim(
        topic=CRITIC,
        says="A critic stabilises training: PPO ends higher than GRPO.",
        published="peak on FrozenLake (3B): PPO 67.0 %, GRPO 70.9 %; V1 prefers PPO",
        source=f"{V1}; {V2}, table 4",
        figure=Difference(arm=arms.STARPO, other=arms.GRPO, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=CRITIC,
        says="GRPO peaks about as high as PPO on FrozenLake.",
        published="70.9 % against 67.0 %: 3.9 points",
        source=f"{V2}, table 4",
        figure=Difference(arm=arms.GRPO, other=arms.STARPO, measure="peak success"),
        expected="near",
        border=MARGIN,
    ),
    Claim(
        topic=CRITIC,
        says="Dr. GRPO peaks far lower than GRPO on FrozenLake.",
        published="23.2 % against 70.9 %: -47.7 points",
        source=f"{V2}, table 4",
        figure=Difference(arm=arms.DR_GRPO, other=arms.GRPO, measure="peak success"),
        expected="below",
    ),
    Claim(
        topic=CRITIC,
        says="Bi-level GAE ends higher than GAE over tokens.",
        published="no number in V1 or V2",
        source="the estimator's purpose",
        figure=Difference(arm=arms.BI_LEVEL, other=arms.STARPO, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=DIVERSITY,
        says="With 64 trajectories a step, more tasks with 4 siblings beat 4 tasks with 16.",
        published="diverse initial states help; direction only",
        source=f"{V1}, rollouts",
        figure=Difference(arm=arms.MORE_TASKS, other=arms.FEWER_TASKS, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=DIVERSITY,
        says="More tasks with fewer siblings reach a higher peak, without a filter.",
        published="Sokoban: 64 tasks of 2: 18.8 %, 32 of 4: 24.2 %, 8 of 16: 15.6 %",
        source=f"{V2}, table 5",
        figure=Difference(arm=arms.MORE_TASKS, other=arms.FEWER_TASKS, measure="peak success"),
        expected="above",
    ),
    Claim(
        topic=ACTIONS,
        says="A medium budget of actions beats a small one.",
        published="5 to 6 actions a turn are best; direction only",
        source=f"{V1}, rollouts",
        figure=Difference(arm=arms.TURNS_4, other=arms.STARPO, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=ACTIONS,
        says="A medium budget of actions beats a large one.",
        published="5 to 6 actions a turn are best; direction only",
        source=f"{V1}, rollouts",
        figure=Difference(arm=arms.TURNS_4, other=arms.TURNS_8, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=REUSE,
        says="Fresh rollouts for each update beat rollouts that are used five times.",
        published="Online-1 beats Online-5 and Online-10; direction only",
        source=f"{V1}, rollouts",
        figure=Difference(arm=arms.STARPO, other=arms.REUSE_5, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=REUSE,
        says="Fresh rollouts reach a higher peak than rollouts that are used five times.",
        published="Online-1 beats Online-5 and Online-10; direction only",
        source=f"{V1}, rollouts",
        figure=Difference(arm=arms.STARPO, other=arms.REUSE_5, measure="peak success"),
        expected="above",
    ),
    Claim(
        topic=REASONING,
        says="Reasoning helps on the bandit.",
        published="direction only, from memory",
        source=f"{V1}, reasoning",
        figure=Difference(arm=arms.BANDIT, other=arms.BANDIT_BRIEF, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=REASONING,
        says="Reasoning hardly matters for success in worlds of several turns.",
        published="direction only",
        source=f"{V1}, reasoning",
        figure=Difference(arm=arms.STARPO, other=arms.BRIEF, measure="peak success"),
        expected="near",
        border=MARGIN,
    ),
    Claim(
        topic=DECAY,
        says="Reasoning becomes shorter while rewards ask for results only.",
        published="shorter in 8 worlds; longer by half in 15 of 20 collapsed runs of a replication",
        source=f"{V1}; {V2}, figures",
        figure=Level(arm=arms.STARPO, measure="reasoning length at the end"),
        expected="below",
        border=100.0,
    ),
    Claim(
        topic=DECAY,
        says="A reward for the reasoning itself keeps it longer.",
        published="direction only",
        source=f"{V1}, reasoning",
        figure=Difference(
            arm=arms.AGREEMENT, other=arms.STARPO, measure="reasoning length at the end"
        ),
        expected="above",
    ),
    Claim(
        topic=DECAY,
        says="A reward for the reasoning itself ends at a higher success.",
        published="direction only",
        source=f"{V1}, reasoning",
        figure=Difference(arm=arms.AGREEMENT, other=arms.STARPO, measure="final success"),
        expected="above",
    ),
    Claim(
        topic=DECAY,
        says="A penalty on length shortens the reasoning.",
        published="our check of the measure, not a published claim",
        source="ours",
        figure=Difference(arm=arms.BRIEF, other=arms.STARPO, measure="reasoning length at the end"),
        expected="below",
    ),
    Claim(
        topic=DECAY,
        says="A penalty on length shortens the reasoning on the bandit.",
        published="our check of the measure, not a published claim",
        source="ours",
        figure=Difference(
            arm=arms.BANDIT_BRIEF, other=arms.BANDIT, measure="reasoning length at the end"
        ),
        expected="below",
    ),
    Claim(
        topic=NOISE,
        says="The filter raises the peak of PPO.",
        published="FrozenLake (3B): 67.0 % and +10.9 points",
        source=f"{V2}, table 4",
        figure=Difference(arm=arms.FILTERED, other=arms.STARPO, measure="peak success"),
        expected="above",
    ),
    Claim(
        topic=NOISE,
        says="The filter changes the peak of GRPO little on FrozenLake.",
        published="70.9 % and -3.0 points (+2.3 in a figure of the paper)",
        source=f"{V2}, table 4",
        figure=Difference(arm=arms.GRPO_FILTERED, other=arms.GRPO, measure="peak success"),
        expected="near",
        border=MARGIN,
    ),
    Claim(
        topic=NOISE,
        says="The gain remains when half of the moves slip.",
        published="gain at 0 to 50 % noise",
        source=f"{V2}, FrozenLake slip",
        figure=Difference(arm=arms.SLIP_50_FILTERED, other=arms.SLIP_50, measure="peak success"),
        expected="above",
    ),
    Claim(
        topic=NOISE,
        says="The gain is gone when nine moves in ten slip.",
        published="no gain at 80 to 100 % noise",
        source=f"{V2}, FrozenLake slip",
        figure=Difference(arm=arms.SLIP_90_FILTERED, other=arms.SLIP_90, measure="peak success"),
        expected="near",
        border=MARGIN,
    ),
    Claim(
        topic=PREDICTORS,
        says="The z-score of I(X;Z) goes with final success.",
        published="+0.39; +0.48 in a replication on Sokoban",
        source=f"{V2}, Spearman",
        figure=Ranks(sources=_RANKED, metric=_ZSCORE, metric_words="I(X;Z) z-score"),
        expected="above",
    ),
    Claim(
        topic=PREDICTORS,
        says="I(X;Z) of the first turn, by sequence, goes with final success.",
        published="no number for this estimate; +0.02 in the replication for theirs",
        source="ours",
        figure=Ranks(sources=_RANKED, metric=INFORMATION, metric_words="I(X;Z)"),
        expected="above",
    ),
    Claim(
        topic=PREDICTORS,
        says="Entropy goes weakly against final success.",
        published="-0.11 to -0.14; -0.47 in the replication",
        source=f"{V2}, Spearman",
        figure=Ranks(sources=_RANKED, metric=ENTROPY, metric_words="entropy"),
        expected="below",
    ),
    Claim(
        topic=PREDICTORS,
        says="I(X;Z) predicts final success better than entropy does.",
        published="0.39 against 0.14: 0.25",
        source=f"{V2}, Spearman",
        figure=Ranks(
            sources=_RANKED,
            metric=_ZSCORE,
            metric_words="I(X;Z) z-score",
            less=ENTROPY,
            less_words="entropy",
        ),
        expected="above",
    ),
    Claim(
        topic=PREDICTORS,
        says="I(X;Z) predicts better than entropy, measured in the first half alone.",
        published="direction only",
        source=f"{V2}, Spearman",
        figure=Ranks(
            sources=_RANKED,
            metric=_ZSCORE,
            metric_words="I(X;Z) z-score",
            half="first",
            less=ENTROPY,
            less_words="entropy",
        ),
        expected="above",
    ),
)


def arms_of(claims: tuple[Claim, ...] = CLAIMS) -> tuple[Arm, ...]:
    """Every arm once, in the order in which claims name them."""
    return tuple(dict.fromkeys(arm for claim in claims for arm in claim.figure.arms))
