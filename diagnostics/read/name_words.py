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


def _turned(spellings: Mapping[str, str]) -> dict[str, str]:
    """Word -> its spellings, apart by spaces, the other way round: each spelling -> the word."""
    return {spelling: word for word, many in spellings.items() for spelling in many.split()}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SYNONYMS: Mapping[str, str] = _turned(
    {
        "reward": (
            "rew rews rewards rwd rwds recompense récompense récompenses recompensa recompensas "
            "belohnung награда"
        ),
        "return": "ret rets returns eret",
        "score": "scores scr puntuacion puntaje",
        "accuracy": "acc accs accuracies accu precision@1",
        "success": "succ successes successful succeeded exito éxito succes succès erfolg успех",
        "win": "wins won winning victory",
        "solved": "solve solves solving",
        "pass": "passes passed passing",
        "correct": "correctness corrects",
        "rate": "ratio frac fraction pct percent percentage prob rates tasa taux quote",
        "entropy": "ent entropies entropie entropia entropía",
        "kl": "kld kldiv kls",
        "grad": "grads gradient gradients",
        "norm": "norms gnorm",
        "length": "len lens lengths tokens toks token",
        "response": (
            "resp responses completion completions output outputs answer answers gen generation "
            "generated generations reply replies rollout_response"
        ),
        "episode": "ep epi epis episodes episodic episodio épisode",
        "mean": (
            "avg average averaged mu moyen moyenne media medio promedio mittlere durchschnitt "
            "средняя"
        ),
        "std": "stdev stddev sd sigma deviation sem stderr",
        "var": "variance vars",
        "max": "maximum maxi highest peak record top optimal",
        "min": "minimum lowest worst",
        "coef": "coeff coefficient weight weights scale scaling",
        "eval": "validation val eval evaluation test dev testing evaluated evals heldout holdout",
    }
)
_FREE = _words(
    """
    mean train training trained rollout rollouts episode env envs environment env_runners
    runners per of the over last recent current cur now running run moving rolling smoothed
    smooth window ma ema ewma sma overall total sum cumulative cum raw true all batch group
    agent agents policy actor player metrics metric stats charts chart losses ppo grpo dqn rl
    sac a2c reinforce rlhf rloo dapo gspo perf performance objective critic model global step
    steps iteration iter epoch update value values undiscounted discounted normalized normalised
    in on for at and to by with is log history curve latest final end team custom summary result
    results info task tasks game games extrinsic external outcome data main trajectory traj
    sequence seq sample samples prompt question
    """
)
"""Words that say how or where something was averaged, not what it is."""
_NOT_A_MEAN = _words("std var min max median count num number n")
_NO_MEASURE = _words(
    """
    coef threshold target limit time lr seconds sec ms loss clip clipped clipping eps epsilon
    beta alpha gamma lambda mask buffer size id idx index seed baseline advantage adv advantages
    delta diff gap change improvement error mse mae percentile quantile ci upper lower p5 p10
    p25 p50 p75 p90 p95 p99 prev previous best goal_threshold weighted_loss required needed
    wanted penalty bonus schedule steps_to until expected predicted pred prediction estimate
    estimated zero
    """
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
    return tuple(_words(phrase) for phrase in phrases)


SUCCESS, RETURN = "rollout/success_rate", "reward/return_mean"
_OTHER_JUDGES = _words(
    """
    classifier discriminator disc length format critic value chosen rejected margin margins
    opponent random oracle tool action actions parse parsing syntax invalid wrong fail failed
    failure kl entropy intrinsic curiosity shaped shaping aux auxiliary ref reference teacher
    expert human demo quality_gate streak backup replay memory cost normalizer model_reward
    range percent cache hit std_reward calls to_go togo gpu cpu code_coverage
    """
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
_PHRASES: Mapping[str, str] = _turned(
    {
        "mean reward": "平均奖励 平均獎勵 平均報酬",
        "mean return": "平均回报",
        "mean score": "平均得分 平均分",
        "reward": "奖励 獎勵 報酬 보상 награда récompense",
        "return": "回报 回報 收益",
        "score": "得分 分数",
        "success rate": "成功率 성공률",
        "win rate": "胜率 勝率 승률",
        "accuracy": "准确率 正确率 準確率 正解率 정확도 точность",
        "pass rate": "通过率",
        "entropy": "熵 エントロピー 엔트로피 энтропия",
        "policy entropy": "策略熵",
        "grad norm": "梯度范数",
        "response length": "回复长度 响应长度 输出长度 生成长度",
        "loss": "损失 損失 손실 потери",
        "learning rate": "学习率",
        "epsilon": "探索率",
        "divergence": "散度",
        "global step": "全局步数",
        "step": "步骤 步数 训练步 ステップ 스텝 шаг étape",
        "episode": "回合 エピソード 에피소드 эпизод épisode",
        "epoch": "轮次 эпоха época",
        "iteration": "迭代",
        "mean": "平均 均值 평균 средняя",
        "std": "标准差",
        "max": "最大 最高",
        "min": "最小 最低",
        "best": "最佳 最好",
        "total": "总",
        "cumulative": "累计 累积",
        "eval": "评估 验证",
        "test": "测试",
        "train": "训练",
        "count": "次数 数量",
        "time": "时间",
        "success": "成功",
    }
)
_TRANSLATED = dict(sorted(_PHRASES.items(), key=lambda pair: -len(pair[0])))
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
