"""The loss of a step written down a second time: token by token, in float64, from the records.

Nothing of `core.batch`, `core.advantages` or `core.losses` is used: turns are forwarded one by one
with the model's own logits, and the formulas are those of docs/algorithms.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from bench import Bench
from peft import PeftModel
from transformers import AutoModelForCausalLM

from echoscope.core.config.settings import RunConfig
from echoscope.core.policy import ModelCritic
from echoscope.core.update.batch import TokenBatch
from echoscope.store.records import RolloutBatch, Trajectory, Turn


@dataclass(slots=True, kw_only=True)
class Token:
    """One sampled token."""

    group: int
    trajectory: int
    row: int
    turn: int
    behaviour: float
    before: float = 0.0
    """Log-prob of the trainer when the step was recorded."""
    reward: float = 0.0
    old_value: float = 0.0
    ref: float = 0.0
    advantage: float = 0.0
    target: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a forward pass says of one token."""

    logprob: float
    entropy: float
    value: float


@dataclass(slots=True, kw_only=True)
class NaiveStep:
    """A step as recorded, with the numbers at the weights that sampled it."""

    bench: Bench
    turns: list[Turn] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    episodes: list[list[Token]] = field(default_factory=list)

    @classmethod
    def of(cls, bench: Bench, rollouts: RolloutBatch) -> NaiveStep:
        """Call it before the weights move."""
        step = cls(bench=bench)
        num_rows = 0
        for number, trajectory in enumerate(rollouts.trajectories):
            num_rows = step._add(number, trajectory, num_rows)
        seen = step.look()
        has_critic = bench.policy.critic is not None
        wants_ref = bench.config.loss.kl_coef or bench.config.reward.kl is not None
        refs = step.look(reference=True) if wants_ref else seen
        for token, now, ref in zip(step.tokens, seen, refs, strict=True):
            token.before = now.logprob
            token.old_value = now.value if has_critic else 0.0
            token.ref = ref.logprob
        _credit(step.episodes, rollouts, bench.config)
        penalty = bench.config.reward.kl
        for token in step.tokens if penalty is not None else ():
            token.reward -= penalty.coef * _kl(token.behaviour - token.ref, penalty.estimator)
        _advantages(step.episodes, bench.config)
        return step

    def _add(self, number: int, trajectory: Trajectory, num_rows: int) -> int:
        episode: list[Token] = []
        row: list[int] | None = None
        for turn in trajectory.turns:
            prompt = turn.prompt_tokens.tolist()
            if row is None or prompt[: len(row)] != row:
                num_rows += 1
            row = prompt + turn.response_tokens.tolist()
            self.turns.append(turn)
            episode += [
                Token(
                    group=trajectory.group_index,
                    trajectory=number,
                    row=num_rows,
                    turn=turn.index,
                    behaviour=float(logprob),
                )
                for logprob in turn.logprobs
            ]
        self.tokens += episode
        self.episodes.append(episode)
        return num_rows

    def look(self, *, reference: bool = False) -> list[Seen]:
        """Every sampled token at the present weights, or under the reference policy."""
        policy = self.bench.policy
        with torch.no_grad():
            if not reference:
                return [seen for turn in self.turns for seen in self._look_at(policy.model, turn)]
            if isinstance(policy.model, PeftModel):
                with policy.model.disable_adapter():
                    return [s for turn in self.turns for s in self._look_at(policy.model, turn)]
            start = AutoModelForCausalLM.from_pretrained(self.bench.config.model.path).eval()
            return [seen for turn in self.turns for seen in self._look_at(start, turn)]

    def _look_at(self, model: torch.nn.Module, turn: Turn) -> list[Seen]:
        ids = torch.tensor([[*turn.prompt_tokens.tolist(), *turn.response_tokens.tolist()]])
        out = model(input_ids=ids, output_hidden_states=True)
        values = self._values(ids, out.hidden_states[-1])
        first = len(turn.prompt_tokens) - 1
        supports = _supports(turn)
        tokens = []
        for index, token in enumerate(turn.response_tokens.tolist()):
            scores = out.logits[0, first + index].double() / turn.temperature
            support = supports[index]
            kept = scores if support is None else scores[support]
            logprobs = kept - kept.logsumexp(0)
            tokens.append(
                Seen(
                    logprob=float(scores[token] - kept.logsumexp(0)),
                    entropy=-float((logprobs.exp() * logprobs).sum()),
                    value=float(values[first + index]),
                )
            )
        return tokens

    def _values(self, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        critic = self.bench.policy.critic
        if critic is None:
            return torch.zeros(ids.shape[1])
        if isinstance(critic, ModelCritic):
            return critic.head(critic.trunk(input_ids=ids).last_hidden_state[0])
        return critic(hidden[0])

    def loss(self) -> float:
        """The whole loss at the present weights."""
        config, seen = self.bench.config, self.look()
        loss = config.loss
        olds = self._old_logprobs(seen)
        logs = [now.logprob - old for now, old in zip(seen, olds, strict=True)]
        weights = _weights(self.tokens, config)
        corrections = _corrections(self.tokens, olds, config)
        policy = kl = entropy = value = 0.0
        for token, now, log, weight, (correction, token_correction) in zip(
            self.tokens, seen, logs, weights, corrections, strict=True
        ):
            ratio = math.exp(log)
            if loss.kind == "gspo":
                row = [
                    other_log
                    for other, other_log in zip(self.tokens, logs, strict=True)
                    if other.row == token.row
                ]
                ratio = math.exp(sum(row) / len(row))
            surrogate = _surrogate(ratio, token.advantage, now.logprob, config)
            policy += weight * correction * surrogate
            difference = now.logprob - token.ref
            kl_weight = min(math.exp(log) * token_correction, 10.0)
            kl += weight * kl_weight * _kl(difference, loss.kl_estimator)
            entropy += weight * now.entropy
            error = (now.value - token.target) ** 2
            if loss.value_clip is not None:
                moved = now.value - token.old_value
                near = token.old_value + max(-loss.value_clip, min(loss.value_clip, moved))
                error = max(error, (near - token.target) ** 2)
            value += error / len(self.tokens)
        total = policy + loss.kl_coef * kl - loss.entropy_coef * entropy
        if self.bench.policy.critic is not None:
            total += 0.5 * loss.value_coef * value
        return total

    def _old_logprobs(self, seen: Sequence[Seen]) -> list[float]:
        """What the ratio is taken to. A step with one update takes its own pass as the old one,
        unless one weight serves a trajectory of several rows, or the reward needed one before."""
        off_policy = self.bench.config.off_policy
        if off_policy.old_logprobs == "sampler":
            return [token.behaviour for token in self.tokens]
        rows, trajectories = (
            {getattr(token, name) for token in self.tokens} for name in ("row", "trajectory")
        )
        by_sequence = off_policy.correction != "none" and off_policy.level == "sequence"
        is_known_before = self.bench.config.reward.kl is not None
        if is_known_before or (by_sequence and len(rows) > len(trajectories)):
            return [token.before for token in self.tokens]
        return [now.logprob for now in seen]


def largest_gap(step: NaiveStep, batch: TokenBatch, logprobs: torch.Tensor) -> float:
    """How far the batch's log-probs are from those of the naive pass, token by token."""
    ours = logprobs[batch.loss_mask].tolist()
    naive = [seen.logprob for seen in step.look()]
    return max(abs(a - b) for a, b in zip(ours, naive, strict=True))


def _supports(turn: Turn) -> Sequence[list[int] | None]:
    if turn.support is None:
        return [None] * len(turn.response_tokens)
    out: list[list[int] | None] = []
    rest = turn.support.tokens.tolist()
    for size in turn.support.sizes.tolist():
        out.append(rest[:size])
        rest = rest[size:]
    return out


def _credit(episodes: list[list[Token]], rollouts: RolloutBatch, config: RunConfig) -> None:
    for episode, trajectory in zip(episodes, rollouts.trajectories, strict=True):
        rewards = [turn.total_reward for turn in trajectory.turns]
        if config.reward.credit == "trajectory":
            episode[-1].reward = sum(rewards)
            continue
        for turn, reward in enumerate(rewards):
            [token for token in episode if token.turn == turn][-1].reward = reward


def _advantages(episodes: list[list[Token]], config: RunConfig) -> None:
    advantage = config.advantage
    everything = [token for episode in episodes for token in episode]
    if advantage.kind in ("gae", "bi_level_gae"):
        for episode in episodes:
            _gae(episode, config)
        for token in everything:
            token.target = token.advantage + token.old_value
        if advantage.whiten:
            _whiten(everything)
        return
    gamma = advantage.gamma if advantage.kind == "reinforce_pp" else 1.0
    for episode in episodes:
        later = 0.0
        for token in reversed(episode):
            later = token.reward + gamma * later
            token.target = token.advantage = later
    if advantage.kind == "reinforce_pp":
        _whiten(everything)
        return
    for group in {token.group for token in everything}:
        _compare([e for e in episodes if e[0].group == group], config)
    if advantage.kind == "reinforce_pp_baseline":
        _whiten(everything)


def _gae(episode: list[Token], config: RunConfig) -> None:
    advantage = config.advantage
    rewards = [token.reward for token in episode]
    values = [token.old_value for token in episode]
    ends = [False] * len(episode)
    if advantage.kind == "bi_level_gae":
        last = [
            index
            for index in range(len(episode))
            if index + 1 == len(episode) or episode[index + 1].turn != episode[index].turn
        ]
        earned = [sum(t.reward for t in episode if t.turn == episode[e].turn) for e in last]
        rewards, high = [0.0] * len(episode), 0.0
        for k in reversed(range(len(last))):
            after = values[last[k + 1]] if k + 1 < len(last) else 0.0
            delta = earned[k] + advantage.turn_gamma * after - values[last[k]]
            high = delta + advantage.turn_gamma * advantage.lam * high
            rewards[last[k]], ends[last[k]] = high + values[last[k]], True
    carry = after = 0.0
    for index in reversed(range(len(episode))):
        if ends[index]:
            carry = after = 0.0
        delta = rewards[index] + advantage.gamma * after - values[index]
        carry = delta + advantage.gamma * advantage.lam * carry
        after = values[index]
        episode[index].advantage = carry


def _compare(siblings: list[list[Token]], config: RunConfig) -> None:
    """Each sibling against the others: whole returns, or returns-to-go turn by turn."""
    by_turn = config.reward.credit == "turn"
    num_turns = max(token.turn for episode in siblings for token in episode) + 1
    turns = range(num_turns if by_turn else 1)
    scores = [
        [sum(t.reward for t in episode if not by_turn or t.turn >= k) for k in turns]
        for episode in siblings
    ]
    n = len(siblings)
    means = [sum(score[k] for score in scores) / n for k in turns]
    spreads = [
        math.sqrt(sum((score[k] - means[k]) ** 2 for score in scores) / (n - 1)) for k in turns
    ]
    scale = {
        "grpo": 1 / (max(spreads) + 1e-6) if max(spreads) > 1e-6 else 0.0,
        "dr_grpo": 1.0,
        "reinforce_pp_baseline": 1.0,
        "rloo": n / (n - 1),
    }[config.advantage.kind]
    for episode, score in zip(siblings, scores, strict=True):
        for token in episode:
            k = token.turn if by_turn else 0
            token.advantage = scale * (score[k] - means[k])


def _whiten(tokens: list[Token]) -> None:
    mean = sum(token.advantage for token in tokens) / len(tokens)
    variance = sum((token.advantage - mean) ** 2 for token in tokens) / (len(tokens) - 1)
    for token in tokens:
        token.advantage = (token.advantage - mean) / math.sqrt(variance + 1e-8)


def _weights(tokens: list[Token], config: RunConfig) -> list[float]:
    lengths: dict[int, int] = {}
    for token in tokens:
        lengths[token.trajectory] = lengths.get(token.trajectory, 0) + 1
    number = len(lengths)
    return [
        {
            "token_mean": 1 / len(tokens),
            "seq_mean_token_sum": 1 / number,
            "seq_mean_token_mean": 1 / (number * lengths[token.trajectory]),
            "seq_mean_token_sum_norm": 1 / (number * config.norm_tokens),
        }[config.loss.aggregation]
        for token in tokens
    ]


def _corrections(
    tokens: list[Token], olds: list[float], config: RunConfig
) -> list[tuple[float, float]]:
    """Weights of each token's surrogate, and of its KL penalty."""
    off_policy = config.off_policy
    cap = math.inf if off_policy.cap is None else off_policy.cap
    logs = [old - token.behaviour for token, old in zip(tokens, olds, strict=True)]
    out = []
    for token, log in zip(tokens, logs, strict=True):
        rho = math.exp(log)
        of_trajectory = [
            other_log
            for other, other_log in zip(tokens, logs, strict=True)
            if other.trajectory == token.trajectory
        ]
        mean = math.exp(sum(of_trajectory) / len(of_trajectory))
        is_kept = off_policy.low <= mean <= off_policy.high
        out.append(
            {
                ("none", "token"): (1.0, 1.0),
                ("none", "sequence"): (1.0, 1.0),
                ("tis", "token"): (min(rho, cap), min(rho, cap)),
                ("tis", "sequence"): (min(math.exp(sum(of_trajectory)), cap), min(rho, cap)),
                ("mis", "token"): (rho * (off_policy.low <= rho <= off_policy.high),) * 2,
                ("mis", "sequence"): (float(is_kept), is_kept * min(rho, cap)),
            }[off_policy.correction, off_policy.level]
        )
    return out


def _surrogate(ratio: float, advantage: float, logprob: float, config: RunConfig) -> float:
    loss = config.loss
    clipped = max(1 - loss.clip_low, min(1 + loss.clip_high, ratio))
    if loss.kind == "cispo":
        return -clipped * advantage * logprob
    worse = max(-advantage * ratio, -advantage * clipped)
    if loss.kind == "clip" and loss.dual_clip is not None and advantage < 0:
        return min(worse, -advantage * loss.dual_clip)
    return worse


def _kl(difference: float, estimator: str) -> float:
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    return math.exp(-difference) - 1 + difference
