"""What a metric's name means by the words it holds, in any order and in several languages.

The catalogue in `foreign_names.py` lists names as trainers write them, and is asked first. Scripts
make up names of their own: `eprewmean`, `MeanEpReward`, `平均奖励`. Here a name is cut into words,
synonyms become one word, and each role asks which words must be there and which must not:
`max_reward` and `reward_threshold` hold `reward` and are no reward.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(
        ("rew", "rews", "rewards", "rwd", "rwds", "recompense", "récompense"), "reward"
    ),
    **dict.fromkeys(("récompenses", "recompensa", "recompensas", "belohnung", "награда"), "reward"),
    **dict.fromkeys(("ret", "rets", "returns", "eret"), "return"),
    **dict.fromkeys(("scores", "scr", "puntuacion", "puntaje"), "score"),
    **dict.fromkeys(("acc", "accs", "accuracies", "accu", "precision@1"), "accuracy"),
    **dict.fromkeys(("succ", "successes", "successful", "succeeded", "exito", "éxito"), "success"),
    **dict.fromkeys(("succes", "succès", "erfolg", "успех"), "success"),
    **dict.fromkeys(("wins", "won", "winning", "victory"), "win"),
    **dict.fromkeys(("solve", "solves", "solving"), "solved"),
    **dict.fromkeys(("passes", "passed", "passing"), "pass"),
    **dict.fromkeys(("correctness", "corrects"), "correct"),
    **dict.fromkeys(("ratio", "frac", "fraction", "pct", "percent", "percentage", "prob"), "rate"),
    **dict.fromkeys(("rates", "tasa", "taux", "quote"), "rate"),
    **dict.fromkeys(("ent", "entropies", "entropie", "entropia", "entropía"), "entropy"),
    **dict.fromkeys(("kld", "kldiv", "kls"), "kl"),
    **dict.fromkeys(("grads", "gradient", "gradients"), "grad"),
    **dict.fromkeys(("norms", "gnorm"), "norm"),
    **dict.fromkeys(("len", "lens", "lengths", "tokens", "toks", "token"), "length"),
    **dict.fromkeys(("resp", "responses", "completion", "completions", "output"), "response"),
    **dict.fromkeys(("outputs", "answer", "answers", "gen", "generation", "generated"), "response"),
    **dict.fromkeys(("generations", "reply", "replies", "rollout_response"), "response"),
    **dict.fromkeys(
        ("ep", "epi", "epis", "episodes", "episodic", "episodio", "épisode"), "episode"
    ),
    **dict.fromkeys(("avg", "average", "averaged", "mu", "moyen", "moyenne", "media"), "mean"),
    **dict.fromkeys(("medio", "promedio", "mittlere", "durchschnitt", "средняя"), "mean"),
    **dict.fromkeys(("stdev", "stddev", "sd", "sigma", "deviation", "sem", "stderr"), "std"),
    **dict.fromkeys(("variance", "vars"), "var"),
    **dict.fromkeys(("maximum", "maxi", "highest", "peak", "record", "top", "optimal"), "max"),
    **dict.fromkeys(("minimum", "lowest", "worst"), "min"),
    **dict.fromkeys(("coeff", "coefficient", "weight", "weights", "scale", "scaling"), "coef"),
    **dict.fromkeys(("validation", "val", "eval", "evaluation", "test", "dev"), "eval"),
    **dict.fromkeys(("testing", "evaluated", "evals", "heldout", "holdout"), "eval"),
}
_FREE = frozenset(
    {
        *("mean", "train", "training", "trained", "rollout", "rollouts", "episode", "env", "envs"),
        *("environment", "env_runners", "runners", "per", "of", "the", "over", "last", "recent"),
        *("current", "cur", "now", "running", "run", "moving", "rolling", "smoothed", "smooth"),
        *("window", "ma", "ema", "ewma", "sma", "overall", "total", "sum", "cumulative", "cum"),
        *("raw", "true", "all", "batch", "group", "agent", "agents", "policy", "actor", "player"),
        *("metrics", "metric", "stats", "charts", "chart", "losses", "ppo", "grpo", "dqn", "rl"),
        *("sac", "a2c", "reinforce", "rlhf", "rloo", "dapo", "gspo", "perf", "performance"),
        *("objective", "critic", "model", "global", "step", "steps", "iteration", "iter", "epoch"),
        *("update", "value", "values", "undiscounted", "discounted", "normalized", "normalised"),
        *("in", "on", "for", "at", "and", "to", "by", "with", "is", "log", "history", "curve"),
        *("latest", "final", "end", "team", "custom", "summary", "result", "results", "info"),
        *("task", "tasks", "game", "games", "extrinsic", "external", "outcome", "data", "main"),
        *("trajectory", "traj", "sequence", "seq", "sample", "samples", "prompt", "question"),
    }
)
"""Words that say how or where something was averaged, not what it is."""
_NOT_A_MEAN = frozenset({"std", "var", "min", "max", "median", "count", "num", "number", "n"})
_NO_MEASURE = frozenset(
    {
        *("coef", "threshold", "target", "limit", "time", "lr", "seconds", "sec", "ms", "loss"),
        *("clip", "clipped", "clipping", "eps", "epsilon", "beta", "alpha", "gamma", "lambda"),
        *("mask", "buffer", "size", "id", "idx", "index", "seed", "baseline", "advantage", "adv"),
        *("advantages", "delta", "diff", "gap", "change", "improvement", "error", "mse", "mae"),
        *("percentile", "quantile", "ci", "upper", "lower", "p5", "p10", "p25", "p50", "p75"),
        *("p90", "p95", "p99", "prev", "previous", "best", "goal_threshold", "weighted_loss"),
        *("required", "needed", "wanted", "penalty", "bonus", "schedule", "steps_to", "until"),
        *("expected", "predicted", "pred", "prediction", "estimate", "estimated", "zero"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Which words a name must hold, and must not, to mean a key."""

    key: str
    needs: tuple[frozenset[str], ...]
    """One of these sets must be there as a whole."""
    excludes: frozenset[str] = frozenset()
    num_strange: int = 1
    """How many words may be in the name that say nothing to us."""


def _sets(*phrases: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(phrase.split()) for phrase in phrases)


SUCCESS, RETURN = "rollout/success_rate", "reward/return_mean"
_OTHER_JUDGES = frozenset(
    {
        *("classifier", "discriminator", "disc", "length", "format", "critic", "value", "chosen"),
        *("rejected", "margin", "margins", "opponent", "random", "oracle", "tool", "action"),
        *("actions", "parse", "parsing", "syntax", "invalid", "wrong", "fail", "failed", "failure"),
        *("kl", "entropy", "intrinsic", "curiosity", "shaped", "shaping", "aux", "auxiliary"),
        *("ref", "reference", "teacher", "expert", "human", "demo", "quality_gate", "streak"),
        *("backup", "replay", "memory", "cost", "normalizer", "model_reward", "range", "percent"),
        *("cache", "hit", "std_reward", "calls", "to_go", "togo", "gpu", "cpu", "code_coverage"),
    }
)
ROLES = (
    Role(
        key="policy/entropy",
        needs=_sets("entropy"),
        excludes=_NOT_A_MEAN
        | (_NO_MEASURE - {"loss"})
        | {"cross", "ce", "reward", "bonus", "regularization", "reg", "conditional", "temperature"}
        | {"high", "low", "rate", "state", "visitation", "marginal", "critic", "success"},
    ),
    Role(
        key="optim/grad_norm",
        needs=_sets("grad norm"),
        excludes=_NOT_A_MEAN | _NO_MEASURE | {"critic", "value", "vf", "q", "disc", "encoder"},
    ),
    Role(
        key="policy/approx_kl",
        needs=_sets("kl approx", "kl ppo", "kl old", "kl update"),
        excludes=_NOT_A_MEAN | (_NO_MEASURE - {"loss", "penalty"}) | {"reward", "early", "stop"},
    ),
    Role(
        key="policy/ref_kl",
        needs=_sets("kl"),
        excludes=_NOT_A_MEAN
        | (_NO_MEASURE - {"loss", "penalty"})
        | {"reward", "early", "stop", "stopped", "ctl", "ctrl", "controller", "adaptive", "rate"}
        | {"mismatch", "sampler", "inference", "infer", "vllm", "corr", "latent", "vae", "teacher"},
    ),
    Role(
        key="rollout/response_length_mean",
        needs=_sets("length response"),
        excludes=_NOT_A_MEAN
        | _NO_MEASURE
        | {"total", "sum", "rate", "reward", "score", "overlong", "truncated", "prompt", "entropy"}
        | {"accuracy", "correct", "logprob", "logprobs", "s", "speed", "throughput", "cost"},
    ),
    Role(
        key=SUCCESS,
        needs=_sets(
            *("success", "accuracy", "win rate", "pass rate", "pass 1", "solved rate", "solved"),
            *("exact match", "correct rate", "correct", "goal rate", "resolved rate", "resolved"),
            *("task completion rate", "goal reached rate"),
        ),
        excludes=_NOT_A_MEAN
        | _NO_MEASURE
        | _OTHER_JUDGES
        | {"total", "sum", "cumulative", "reward", "score", "kept", "agent"},
    ),
    Role(
        key=RETURN,
        needs=_sets("reward", "return", "score"),
        excludes=_NOT_A_MEAN | _NO_MEASURE | (_OTHER_JUDGES - {"critic", "value"}) | {"rate", "f1"},
    ),
)
_VOCABULARY = frozenset(
    word
    for word in (
        *_SYNONYMS,
        *_SYNONYMS.values(),
        *_FREE,
        *(word for role in ROLES for phrase in role.needs for word in phrase),
        *_NOT_A_MEAN,
        *("loss", "value", "critic", "policy", "best", "std", "time"),
    )
    if len(word) >= 2 and word.isalpha()
)
_PHRASES: tuple[tuple[str, str], ...] = (
    *(("平均奖励", "mean reward"), ("平均獎勵", "mean reward"), ("平均回报", "mean return")),
    *(("平均得分", "mean score"), ("平均分", "mean score"), ("奖励", "reward"), ("獎勵", "reward")),
    *(
        ("回报", "return"),
        ("回報", "return"),
        ("收益", "return"),
        ("得分", "score"),
        ("分数", "score"),
    ),
    *(
        ("成功率", "success rate"),
        ("胜率", "win rate"),
        ("勝率", "win rate"),
        ("准确率", "accuracy"),
    ),
    *(("正确率", "accuracy"), ("準確率", "accuracy"), ("通过率", "pass rate"), ("熵", "entropy")),
    *(("策略熵", "policy entropy"), ("梯度范数", "grad norm"), ("回复长度", "response length")),
    *(
        ("响应长度", "response length"),
        ("输出长度", "response length"),
        ("生成长度", "response length"),
    ),
    *(("损失", "loss"), ("学习率", "learning rate"), ("探索率", "epsilon"), ("散度", "divergence")),
    *(
        ("全局步数", "global step"),
        ("步骤", "step"),
        ("步数", "step"),
        ("训练步", "step"),
        ("回合", "episode"),
    ),
    *(
        ("轮次", "epoch"),
        ("迭代", "iteration"),
        ("平均", "mean"),
        ("均值", "mean"),
        ("标准差", "std"),
    ),
    *(
        ("最大", "max"),
        ("最小", "min"),
        ("最高", "max"),
        ("最低", "min"),
        ("最佳", "best"),
        ("最好", "best"),
    ),
    *(
        ("总", "total"),
        ("累计", "cumulative"),
        ("累积", "cumulative"),
        ("评估", "eval"),
        ("验证", "eval"),
    ),
    *(("测试", "test"), ("训练", "train"), ("次数", "count"), ("数量", "count"), ("时间", "time")),
    *(
        ("エピソード", "episode"),
        ("ステップ", "step"),
        ("平均報酬", "mean reward"),
        ("報酬", "reward"),
    ),
    *(("成功", "success"), ("正解率", "accuracy"), ("エントロピー", "entropy"), ("損失", "loss")),
    *(
        ("에피소드", "episode"),
        ("스텝", "step"),
        ("평균", "mean"),
        ("보상", "reward"),
        ("성공률", "success rate"),
    ),
    *(("정확도", "accuracy"), ("승률", "win rate"), ("엔트로피", "entropy"), ("손실", "loss")),
    *(("эпизод", "episode"), ("шаг", "step"), ("средняя", "mean"), ("награда", "reward")),
    *(("точность", "accuracy"), ("энтропия", "entropy"), ("эпоха", "epoch"), ("потери", "loss")),
    *(("récompense", "reward"), ("épisode", "episode"), ("étape", "step"), ("época", "epoch")),
)
_TRANSLATED = dict(sorted(_PHRASES, key=lambda pair: -len(pair[0])))
_FOREIGN = re.compile("|".join(map(re.escape, _TRANSLATED)), re.IGNORECASE)
_WIDE = {
    **{0xFF01 + place: 0x21 + place for place in range(94)},  # full-width forms of ASCII
    **dict.fromkeys((0x2212, 0x2013), "-"),
    0x3000: " ",
    0x3010: "[",
    0x3011: "]",
}


def in_english(text: str) -> str:
    """Labels of other languages in English, and wide signs as their plain ones.

    >>> in_english("回合 3\\uff1a平均奖励\\uff1d0.5")
    'episode 3: mean reward=0.5'
    """
    if text.isascii():
        return text
    text = text.translate(_WIDE)
    text = text.replace(":", ": ") if _FOREIGN.search(text) else text
    out = _FOREIGN.sub(lambda match: f" {_TRANSLATED[match[0].lower()]} ", text)
    return re.sub(r"(?<=\w) +(?=[:=,)\]])|(?<= ) +(?=\w)", "", out).strip() if out != text else out


@functools.lru_cache(maxsize=65_536)
def words_of(spelling: str) -> tuple[str, ...]:
    """The words of a spelling, each as its synonym.

    >>> words_of("eprewmean"), words_of("mean100"), words_of("avg_win_rate")
    (('episode', 'reward', 'mean'), ('mean', '100'), ('mean', 'win', 'rate'))
    """
    out: list[str] = []
    for part in re.findall(r"[^\W_]+", spelling):
        numbered = re.fullmatch(r"([^\W\d_]+?)(\d+)", part)
        is_numbered = numbered is not None and bool(_cut(numbered[1]))
        for piece in numbered.groups() if numbered and is_numbered else (part,):
            out += _cut(piece) or [piece]
    return tuple(_SYNONYMS.get(word, word) for word in out)


@functools.lru_cache(maxsize=65_536)
def _cut(part: str) -> list[str]:
    """A word without separators as words of the vocabulary, as few as possible; else empty."""
    if part in _VOCABULARY:
        return [part]
    if len(part) > 40:
        return []
    best: list[list[str] | None] = [[], *[None] * len(part)]
    for end in range(2, len(part) + 1):
        for start in range(end - 1):
            before = best[start]
            if before is not None and part[start:end] in _VOCABULARY:
                shorter = best[end]
                if shorter is None or len(before) + 1 < len(shorter):
                    best[end] = [*before, part[start:end]]
    return best[-1] or []


@dataclass(frozen=True, slots=True, kw_only=True)
class ByWords:
    """What a name means by its words."""

    key: str
    num_strange: int
    """Words that say nothing to us: the fewer, the surer."""
    is_eval: bool


@functools.lru_cache(maxsize=65_536)
def role_of(spelling: str) -> ByWords | None:
    """The role of a name by its words, or None.

    >>> role_of("eprewmean").key, role_of("mean_policy_ent").key
    ('reward/return_mean', 'policy/entropy')
    >>> role_of("reward_threshold") is None, role_of("max_reward") is None
    (True, True)
    """
    words = words_of(spelling)
    held = set(words)
    for role in ROLES:
        phrase = next((phrase for phrase in role.needs if phrase <= held), None)
        if phrase is None:
            continue
        if held & role.excludes:
            return None
        rest = held - phrase - _FREE - {"eval"}
        num_strange = sum(not word.isdigit() and word != "rate" for word in rest)
        if num_strange > (0 if "eval" in held else role.num_strange if "rate" not in phrase else 0):
            return None
        return ByWords(key=role.key, num_strange=num_strange, is_eval="eval" in held)
    return None
