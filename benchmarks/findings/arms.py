"""The arms: vanilla StarPO on a small lake, and what the others change in it."""

from __future__ import annotations

from dataclasses import replace

from .training import Arm

STEPS = 25
LR = "1e-3"


def _lake(groups: int, *, slip: float = 0.0, turns: int = 2) -> str:
    """FrozenLake 4x4 with two holes, the goal two moves away."""
    params = f"size: 4, holes: 2, slip: {slip}, min_distance: 2, max_distance: 2"
    return (
        f"{{env: frozen_lake, groups: {groups}, max_turns: {turns}, max_actions_per_turn: 1, "
        f"params: {{{params}, observation: relative}}}}"
    )


def _train(groups: int = 8, *, slip: float = 0.0, turns: int = 2) -> str:
    return f"envs.train=[{_lake(groups, slip=slip, turns=turns)}]"


LAKE = (
    f"steps={STEPS}",
    f"optim.lr={LR}",
    "optim.minibatches=2",
    f"envs.eval=[{_lake(64)}]",
)
"""Evaluation is the same for every arm: 64 fixed lakes without slip, two turns."""
PPO = ("advantage={kind: gae}", "critic={kind: head, lr: 1.0e-3}")
VANILLA_LOSS = {"kl_coef": "0.001", "entropy_coef": "0.001", "clip_low": "0.2", "clip_high": "0.2"}


def _loss(**changes: str) -> tuple[str, ...]:
    return tuple(f"loss.{key}={value}" for key, value in (VANILLA_LOSS | changes).items())


def _keep(share: float) -> tuple[str, ...]:
    return ("selection.strategy=top_k", f"selection.value={share}")


FILTER = ("selection.strategy=top_p", "selection.value=0.9")


def _arm(name: str, words: str, *overrides: str) -> Arm:
    return Arm(name=name, words=words, recipe="healthy-frozen-lake", overrides=(*LAKE, *overrides))


def _vanilla(name: str, words: str, *more: str, train: str | None = None) -> Arm:
    return _arm(name, words, train or _train(), *PPO, *_loss(), *more)


STARPO = _vanilla(
    "starpo",
    "vanilla StarPO: PPO with a value head, KL 0.001, entropy bonus 0.001, clip 0.2 both ways, "
    "8 groups of 8, all groups train",
)
KEEP_75 = _vanilla("keep-75", "the 75 % of groups with the largest reward spread", *_keep(0.75))
KEEP_50 = _vanilla("keep-50", "50 % of the groups", *_keep(0.5))
KEEP_25 = _vanilla("keep-25", "25 % of the groups", *_keep(0.25))
CLIP_HIGHER = _arm("clip-higher", "upper clip 0.28", _train(), *PPO, *_loss(clip_high="0.28"))
NO_KL = _arm("no-kl", "no KL penalty", _train(), *PPO, *_loss(kl_coef="0.0"))
STARPO_S = _arm(
    "starpo-s",
    "StarPO-S: 25 % of the groups, no KL penalty, upper clip 0.28",
    _train(),
    *PPO,
    *_loss(kl_coef="0.0", clip_high="0.28"),
    *_keep(0.25),
)
GRPO = _arm("grpo", "GRPO: no critic", _train(), *_loss())
DR_GRPO = _arm(
    "dr-grpo",
    "Dr. GRPO: no critic, no division by spread or length",
    _train(),
    "advantage={kind: dr_grpo}",
    *_loss(aggregation="seq_mean_token_sum_norm"),
)
BI_LEVEL = _arm(
    "bi-level",
    "bi-level GAE, credit by turn",
    _train(),
    "advantage={kind: bi_level_gae}",
    PPO[1],
    "reward.credit=turn",
    *_loss(),
)
FILTERED = _vanilla("starpo-filter", "SNR-adaptive filter (top_p 0.9)", *FILTER)
GRPO_FILTERED = replace(
    GRPO, name="grpo-filter", words="GRPO with the filter", overrides=(*GRPO.overrides, *FILTER)
)
SLIP_50 = _vanilla("slip-50", "half of the moves slip", train=_train(slip=0.5))
SLIP_50_FILTERED = _vanilla(
    "slip-50-filter", "half of the moves slip, filter", *FILTER, train=_train(slip=0.5)
)
SLIP_90 = _vanilla("slip-90", "nine moves in ten slip", train=_train(slip=0.9))
SLIP_90_FILTERED = _vanilla(
    "slip-90-filter", "nine moves in ten slip, filter", *FILTER, train=_train(slip=0.9)
)
REUSE_5 = _vanilla(
    "reuse-5",
    "each rollout trains five times; as many updates in all, a fifth of the rollouts",
    "optim.epochs=5",
    f"steps={STEPS // 5}",
    "eval.every=1",
    "diagnostics.information.every=1",
)
MORE_TASKS = _vanilla(
    "tasks-16", "16 tasks, 4 siblings each", "envs.group_size=4", train=_train(16)
)
FEWER_TASKS = _vanilla(
    "tasks-4", "4 tasks, 16 siblings each", "envs.group_size=16", train=_train(4)
)
TURNS_4 = _vanilla("turns-4", "four moves an episode in training", train=_train(turns=4))
TURNS_8 = _vanilla("turns-8", "eight moves an episode in training", train=_train(turns=8))
AGREEMENT = _vanilla(
    "agreement",
    "0.1 for each reply whose reasoning names the move that is made",
    "reward.shaping=[{name: agreement_bonus, function: agreement, weight: 0.1}]",
)


def _brevity(weight: float) -> str:
    return (
        f"reward.shaping=[{{name: brevity, function: length, weight: {weight}, "
        "params: {soft: 0, hard: 40, part: reasoning}}]"
    )


BRIEF = _vanilla("brief", "0.025 off for each token of reasoning", _brevity(1.0))


def _bandit(name: str, words: str, *overrides: str) -> Arm:
    """Evaluated on names of arms that never train."""
    common = (
        f"steps={STEPS + 15}",
        "optim.lr=1e-4",
        "envs.eval=[{env: bandit, groups: 128, max_turns: 1, max_actions_per_turn: 1, "
        "params: {pairs: test}}]",
    )
    return Arm(name=name, words=words, recipe="healthy-bandit", overrides=(*common, *overrides))


BANDIT = _bandit("bandit-rloo", "the bandit with RLOO: two arms, one pays at random")
BANDIT_BRIEF = _bandit(
    "bandit-brief", "the bandit with RLOO, 0.05 off for each token of reasoning", _brevity(2.0)
)
BANDIT_PPO = _bandit(
    "bandit-starpo",
    "the bandit with vanilla StarPO",
    *PPO,
    *_loss(),
    f"optim.lr={LR}",
    "optim.minibatches=2",
)
