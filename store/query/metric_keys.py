"""Keys of metrics that several packages write or read by name; the catalogue says what each is."""

from __future__ import annotations

from typing import Final

SUCCESS_RATE: Final = "rollout/success_rate"
RETURN_MEAN: Final = "reward/return_mean"
ENTROPY: Final = "policy/entropy"
GROUP_STD: Final = "reward/group_std_mean"
ZERO_STD: Final = "reward/zero_std_frac"
GRAD_NORM: Final = "optim/grad_norm"
REF_KL: Final = "policy/ref_kl"
SAMPLED_TOKENS: Final = "rollout/num_sampled_tokens_mean"
RESPONSE_LENGTH: Final = "rollout/response_length_mean"
ACTION_VALID: Final = "rollout/action_valid_frac"
SOLVED_FRAC: Final = "reward/solved_frac"
HOPELESS_FRAC: Final = "reward/hopeless_frac"
LUCK_FRAC: Final = "reward/luck_frac"
NOTHING_SELECTED: Final = "selection/is_empty"
REGULARISER_RATIO: Final = "gradient/regulariser_ratio"
EVALUATIONS: Final = "eval/"
"""How the keys of an evaluation's metrics begin."""
