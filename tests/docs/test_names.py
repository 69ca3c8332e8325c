"""The page of names: what it calls a setting is one, and it leaves out no key of others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from setting_paths import setting_paths

PAGE = Path(__file__).parents[2] / "docs" / "names.md"
TRL = frozenset(
    re.findall(
        r"\S+",
        """
model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout cast_lm_head_to_fp32
remove_unused_columns num_generations num_generations_eval max_completion_length
ds3_gather_for_generation shuffle_dataset pad_to_multiple_of generation_batch_size
steps_per_generation temperature top_p top_k min_p generation_kwargs chat_template_kwargs
repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl
vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url vllm_server_host
vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization
vllm_max_model_length vllm_tensor_parallel_size beta num_iterations epsilon delta epsilon_high
sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg
vespo_lambda_neg importance_sampling_level reward_weights multi_objective_aggregation
scale_rewards loss_type mask_truncated_completions sync_ref_model ref_model_mixup_alpha
ref_model_sync_steps top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min
entropy_coef_max entropy_coef_delta entropy_target max_tool_calling_iterations
vllm_importance_sampling_correction vllm_importance_sampling_mode
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min off_policy_mask_threshold
use_bias_correction_kl log_completions log_multimodal num_completions_to_print
log_unique_prompts log_completions_hub_repo use_transformers_continuous_batching
transformers_continuous_batching_config use_transformers_paged vllm_importance_sampling_cap
learning_rate
""",
    )
)
"""Fields of `trl.GRPOConfig`, version 1.16, and of its own base the one that it sets anew."""
RAGEN = frozenset(
    re.findall(
        r"\S+",
        """
seed.train seed.val micro_batch_size_per_gpu log_prob_micro_batch_size_per_gpu
ppo_mini_batch_size model_path enable_response_mask grpo_advantage_length_weight lora.rank
actor.use_ref actor.entropy_coeff actor.loss_agg_mode actor.use_kl_loss actor.kl_loss_coef
actor.kl_loss_type actor.clip_ratio_low actor.clip_ratio_high actor.filter_loss_scaling
actor.optim.lr critic.optim.lr rollout.name rollout.load_format rollout.max_model_len
rollout.response_length rollout.prompt_length rollout.gpu_memory_utilization
rollout.max_num_batched_tokens rollout.temperature rollout.rollout_filter_value
rollout.rollout_filter_top_p_prob_mode rollout.rollout_filter_empty_stop_steps
rollout.gradient_analysis_num_buckets rollout.val_kwargs.do_sample algorithm.gamma algorithm.lam
algorithm.high_level_gamma algorithm.adv_estimator algorithm.norm_adv_by_std_in_grpo
algorithm.bi_level_gae algorithm.zero_task_advantage algorithm.soft_advantage_reweight
algorithm.kl_penalty algorithm.kl_ctrl.type algorithm.kl_ctrl.kl_coef trainer.project_name
trainer.experiment_name trainer.local_log_dir trainer.save_freq trainer.total_training_steps
trainer.test_freq trainer.validation_steps trainer.val_before_train trainer.n_gpus_per_node
trainer.logger trainer.generations_to_log_to_wandb trainer.log_group_rv_table
trainer.gradient_analysis_mode trainer.exit_after_gradient_analysis
agent_proxy.context_window_mode agent_proxy.max_context_window agent_proxy.batch_adjust_mode
agent_proxy.max_turn agent_proxy.action_sep agent_proxy.max_actions_per_turn
agent_proxy.use_turn_scores agent_proxy.enable_think agent_proxy.reward_normalization.grouping
agent_proxy.reward_normalization.method collapse_detection.compute_freq
collapse_detection.std_eps es_manager.format_penalty es_manager.train es_manager.val
""",
    )
)
"""Keys of RAGEN's `base.yaml`; of a list with the same beginning, the first."""


def rows_of(section: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("section", ["RAGEN", "TRL: GRPOConfig", "verl"])
def test_every_name_of_ours_is_a_setting(section: str) -> None:
    ours = [name for row in rows_of(section) for name in re.findall(r"`([^`]+)`", row[1])]
    assert len(ours) > 10
    assert sorted({*ours} - setting_paths()) == []


@pytest.mark.parametrize(("section", "names"), [("TRL: GRPOConfig", TRL), ("RAGEN", RAGEN)])
def test_no_key_of_the_other_trainer_is_missing(section: str, names: frozenset[str]) -> None:
    listed = {name for row in rows_of(section) for name in re.findall(r"`([^`]+)`", row[0])}
    assert sorted({*names} - listed) == []


@pytest.mark.parametrize("section", ["RAGEN", "TRL: GRPOConfig", "verl"])
def test_what_is_absent_says_why(section: str) -> None:
    assert [row[0] for row in rows_of(section) if row[1] == "-" and not row[2]] == []
