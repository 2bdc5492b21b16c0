"""What the options of TRL, verl, EasyR1 and ms-swift are called here: one table, for hints of unknown keys and for docs/coming_from.md.

Names are those of TRL 1.16 (`GRPOConfig`, `ModelConfig`, `ScriptArguments`), of verl 0.8's and EasyR1's configuration with their whole path
(verl b178a3c of January 2026, EasyR1 b44b311 of July 2026), and of ms-swift 4.6's arguments. A test compares the page with the table, and
the column of TRL with TRL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PAGE = "docs/coming_from.md"
TRAINERS = {"trl": "TRL", "verl": "verl", "easyr1": "EasyR1", "swift": "ms-swift"}
"""Column of the table -> name of the trainer."""


class Key(NamedTuple):
    """One option: how it is given here, and its names elsewhere, separated by spaces."""

    here: str
    """Our key, or why there is none. A key without a section of a recipe is one of a stage."""
    trl: str = ""
    verl: str = ""
    easyr1: str = ""
    swift: str = ""


_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"


def _under(prefix: str, *names: str) -> str:
    return " ".join(f"{prefix}.{name}" for name in names)


ROWS: tuple[Key, ...] = (
    # the model
    Key("`model.path`", "model_name_or_path", _under(_MODEL, "path"), "worker.actor.model.model_path", "model"),
    Key("`model.dtype`", "bf16 fp16", _under(_ACTOR, "fsdp_config.model_dtype"), "worker.actor.fsdp.torch_dtype", "torch_dtype bf16 fp16"),
    Key("`model.attention`", "attn_implementation", "", "", "attn_impl"),
    Key(
        "`model.gradient_checkpointing`",
        "gradient_checkpointing",
        _under(_MODEL, "enable_gradient_checkpointing"),
        "worker.actor.model.enable_gradient_checkpointing",
        "gradient_checkpointing",
    ),
    Key("`model.lora`", "use_peft", "", "", "tuner_type"),
    Key("`model.lora.rank`", "lora_r", _under(_MODEL, "lora_rank"), "worker.actor.model.lora.rank", "lora_rank"),
    Key("`model.lora.alpha`", "lora_alpha", _under(_MODEL, "lora_alpha"), "worker.actor.model.lora.alpha", "lora_alpha"),
    Key(
        "`model.lora.targets`",
        "lora_target_modules",
        _under(_MODEL, "target_modules"),
        "worker.actor.model.lora.target_modules",
        "target_modules",
    ),
    Key(
        "`freeze` (a list of `vision`, `projector`, `language`)",
        "",
        _under(_ACTOR, "freeze_vision_tower"),
        "worker.actor.model.freeze_vision_tower",
        "freeze_vit freeze_aligner freeze_llm",
    ),
    Key("`model.kernels`", "use_liger_kernel", _under(_MODEL, "use_liger"), "", "use_liger_kernel"),
    Key("`model.revision`", "model_revision", "", "", "model_revision"),
    Key("`train.offload_activations`", "", _under(_MODEL, "enable_activation_offload")),
    Key("none: the model is not compiled", "torch_compile", _under(_ACTOR, "use_torch_compile"), "worker.actor.use_torch_compile"),
    Key(
        "none: the chat template is the checkpoint's",
        "chat_template_kwargs",
        _under(_MODEL, "custom_chat_template"),
        "data.override_chat_template",
        "template",
    ),
    Key("`model.quantize`", "load_in_4bit", "", "", "quant_bits quant_method"),
    Key("none: weights are not quantised to 8 bits", "load_in_8bit", "", "", ""),
    Key(
        "none: code of a checkpoint is never run",
        "trust_remote_code",
        _under(_MODEL, "trust_remote_code"),
        "worker.actor.model.trust_remote_code",
    ),
    # the data
    Key("`source.path`", "dataset_name", "data.train_files", "data.train_files", "dataset"),
    Key("`eval.source.path`", "", "data.val_files", "data.val_files", "val_dataset"),
    Key(
        "`source.columns` (rows of known shapes need none: docs/data.md)",
        "",
        "data.prompt_key data.image_key data.video_key",
        "data.prompt_key data.answer_key data.image_key",
        "columns",
    ),
    Key("`source.media_root`", "", "", "data.image_dir"),
    Key("`answer_format`", "", "", "", "system"),
    Key("`data.prompt` (the text itself; 'content' is 'question' here)", "", "", "data.format_prompt"),
    Key("`media.fps`", "", "", "data.video_fps"),
    Key("`media.max_pixels`", "", "", "data.max_pixels", "max_pixels"),
    Key("`media.min_pixels`", "", "", "data.min_pixels"),
    Key("`data.max_prompt_tokens`", "", "data.max_prompt_length", "data.max_prompt_length", "max_length"),
    Key(
        "none: longer prompts are dropped and counted, never cut",
        "",
        "data.filter_overlong_prompts data.truncation",
        "data.filter_overlong_prompts",
        "truncation_strategy",
    ),
    Key("none: a row keeps all its columns", "remove_unused_columns"),
    Key("`eval.limit`", "", "data.val_max_samples"),
    Key("`eval.batch_prompts`", "per_device_eval_batch_size", "data.val_batch_size", "data.val_batch_size", "per_device_eval_batch_size"),
    Key("`sampler`", "shuffle_dataset", "data.shuffle", "data.shuffle", "dataset_shuffle"),
    # rollouts
    Key("`rollout.num_generations`", "num_generations", _under(_ROLLOUT, "n"), "worker.rollout.n", "num_generations"),
    Key(
        "`rollout.prompts_per_step` (prompts; TRL and ms-swift count answers)",
        "generation_batch_size",
        "data.train_batch_size",
        "data.rollout_batch_size",
        "generation_batch_size",
    ),
    Key(
        "`rollout.max_new_tokens`", "max_completion_length", "data.max_response_length", "data.max_response_length", "max_completion_length"
    ),
    Key("`rollout.temperature`", "temperature", _under(_ROLLOUT, "temperature"), "worker.rollout.temperature", "temperature"),
    Key("`rollout.top_p`", "top_p", _under(_ROLLOUT, "top_p"), "worker.rollout.top_p", "top_p"),
    Key(
        "none: sampling knows `rollout.temperature` and `rollout.top_p`",
        "top_k min_p repetition_penalty",
        _under(_ROLLOUT, "top_k"),
        "",
        "top_k repetition_penalty",
    ),
    Key("`rollout.max_num_seqs`", "", _under(_ROLLOUT, "max_num_seqs"), "", "vllm_max_num_seqs"),
    Key("`rollout.engine`", "use_vllm", _under(_ROLLOUT, "name"), "worker.rollout.name", "use_vllm"),
    Key(
        "`rollout.vllm.servers`",
        "vllm_mode vllm_server_host vllm_server_port vllm_server_base_url",
        "",
        "",
        "vllm_mode vllm_server_host vllm_server_port vllm_server_base_url",
    ),
    Key("`rollout.vllm.patience`", "vllm_server_timeout", "", "", "vllm_server_timeout"),
    Key(
        "`rollout.vllm.memory`",
        "vllm_gpu_memory_utilization",
        _under(_ROLLOUT, "gpu_memory_utilization"),
        "worker.rollout.gpu_memory_utilization",
        "vllm_gpu_memory_utilization",
    ),
    Key(
        "`rollout.vllm.max_model_len`",
        "vllm_max_model_length",
        _under(_ROLLOUT, "max_model_len"),
        "worker.rollout.max_model_len",
        "vllm_max_model_len",
    ),
    Key("`rollout.vllm.eager`", "", _under(_ROLLOUT, "enforce_eager"), "worker.rollout.enforce_eager", "vllm_enforce_eager"),
    Key(
        "`rollout.vllm.tensor_parallel`",
        "vllm_tensor_parallel_size",
        _under(_ROLLOUT, "tensor_model_parallel_size"),
        "worker.rollout.tensor_parallel_size",
        "vllm_tensor_parallel_size",
    ),
    Key("`rollout.vllm.sleep`", "vllm_enable_sleep_mode", _under(_ROLLOUT, "free_cache_engine"), "", "sleep_level"),
    Key(
        "none: the policy's own engine always batches continuously",
        "use_transformers_paged use_transformers_continuous_batching cache_implementation",
    ),
    Key("`environment`", "", _under(_ROLLOUT, "multi_turn.enable"), "", "multi_turn_scheduler use_gym_env gym_env"),
    Key(
        "`environment.max_turns`",
        "max_tool_calling_iterations",
        _under(_ROLLOUT, "multi_turn.max_assistant_turns"),
        "",
        "max_turns",
    ),
    Key(
        "`keep.table` (all kept answers: docs/view.md)",
        "log_completions",
        "trainer.log_val_generations",
        "trainer.val_generations_to_log",
        "log_completions",
    ),
    # rewards
    Key(
        '`rewards` (a function of yours: `{name: python, function: "my.py:score"}`)',
        "reward_funcs",
        "custom_reward_function.path custom_reward_function.name",
        "worker.reward.reward_function",
        "reward_funcs",
    ),
    Key("`weight` of an entry of `rewards`", "reward_weights", "", "", "reward_weights"),
    Key("`reward_shaping`", "", "", "", "soft_max_length soft_cache_length"),
    Key("`filters: [{name: overlong}]`", "mask_truncated_completions", "", "", "overlong_filter"),
    Key(
        "`dynamic_sampling.max_batches` and `filters`",
        "",
        "algorithm.filter_groups.enable algorithm.filter_groups.max_num_gen_batches",
        "algorithm.online_filtering trainer.max_try_make_batch",
        "dynamic_sample max_resample_times",
    ),
    Key("`low` and `high` of a filter by pass rate", "", "", "algorithm.filter_low algorithm.filter_high"),
    # advantage and loss
    Key(
        "`advantage` (or a preset: `algorithm`)",
        "scale_rewards multi_objective_aggregation",
        "algorithm.adv_estimator algorithm.norm_adv_by_std_in_grpo",
        "algorithm.adv_estimator",
        "advantage_estimator scale_rewards",
    ),
    Key("`reweight`", "top_entropy_quantile", "", "", "top_entropy_quantile"),
    Key(
        "`loss` and `reduce` (or a preset: `algorithm`)",
        "loss_type importance_sampling_level",
        _under(_ACTOR, "policy_loss.loss_mode"),
        "worker.actor.loss_type",
        "loss_type importance_sampling_level",
    ),
    Key("`reduce`", "", _under(_ACTOR, "loss_agg_mode"), "worker.actor.loss_avg_mode"),
    Key("`clip_low` of `loss`", "epsilon", _under(_ACTOR, "clip_ratio", "clip_ratio_low"), "worker.actor.clip_ratio_low", "epsilon"),
    Key("`clip_high` of `loss`", "epsilon_high", _under(_ACTOR, "clip_ratio_high"), "worker.actor.clip_ratio_high", "epsilon_high"),
    Key("`delta` of `loss`", "delta", "", "", "delta"),
    Key("`dual_clip` of `loss`", "", _under(_ACTOR, "clip_ratio_c"), "worker.actor.clip_ratio_dual"),
    Key(
        "`importance_correction`",
        "vllm_importance_sampling_correction vllm_importance_sampling_mode",
        _under("algorithm.rollout_correction", "rollout_is", "rollout_rs"),
        "",
        "rollout_importance_sampling_mode",
    ),
    Key(
        "`ratio_max` of `importance_correction`",
        "vllm_importance_sampling_clip_max",
        "algorithm.rollout_correction.rollout_is_threshold",
        "",
        "rollout_importance_sampling_threshold",
    ),
    Key("`ratio_min` of `importance_correction`", "vllm_importance_sampling_clip_min"),
    Key(
        "`tau_positive` and `tau_negative` of the loss `sapo`",
        "sapo_temperature_pos sapo_temperature_neg",
        _under(_ACTOR, "tau_pos", "tau_neg"),
        _under("worker.actor", "tau_positive", "tau_negative"),
        "tau_pos tau_neg",
    ),
    Key("none: VESPO is not in", "vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg"),
    Key("`auxiliary_losses`", "entropy_coef", _under(_ACTOR, "entropy_coeff")),
    Key(
        "`beta` (0 switches it off)",
        "beta",
        _under(_ACTOR, "kl_loss_coef", "use_kl_loss"),
        _under("algorithm", "kl_coef", "use_kl_loss", "disable_kl"),
        "beta",
    ),
    Key("`kl`", "use_bias_correction_kl", _under(_ACTOR, "kl_loss_type"), "algorithm.kl_penalty"),
    Key(
        "none: the divergence (`beta`) is a term of the loss, not of the reward",
        "",
        "algorithm.use_kl_in_reward",
        "",
        "kl_in_reward",
    ),
    Key(
        "`constraints`",
        "use_adaptive_entropy entropy_coef_delta entropy_coef_max entropy_coef_min",
        "algorithm.kl_ctrl.type algorithm.kl_ctrl.horizon",
        "algorithm.kl_type algorithm.kl_horizon",
    ),
    Key("`target` of a constraint", "entropy_target", "algorithm.kl_ctrl.target_kl", "algorithm.kl_target"),
    Key(
        "none: the reference is what the stage starts from",
        "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha",
        "",
        "",
        "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha ref_model",
    ),
    # steps and batches
    Key("`steps`", "max_steps", "trainer.total_training_steps", "trainer.max_steps", "max_steps"),
    Key(
        "`epochs` (of a stage, in place of `steps`)",
        "num_train_epochs",
        "trainer.total_epochs",
        "trainer.total_epochs",
        "num_train_epochs",
    ),
    Key(
        "`updates_per_step` (verl and EasyR1: batch of prompts over mini-batch)",
        "steps_per_generation",
        _under(_ACTOR, "ppo_mini_batch_size"),
        "worker.actor.global_batch_size",
        "steps_per_generation",
    ),
    Key(
        "none: each rollout is trained on once", "num_iterations", _under(_ACTOR, "ppo_epochs"), "worker.actor.ppo_epochs", "num_iterations"
    ),
    Key(
        "`max_tokens_per_microbatch` (tokens, not rows)",
        "per_device_train_batch_size",
        _under(_ACTOR, "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu"),
        "worker.actor.micro_batch_size_per_device_for_update",
        "per_device_train_batch_size",
    ),
    Key("none: it follows from `max_tokens_per_microbatch`", "gradient_accumulation_steps", "", "", "gradient_accumulation_steps"),
    Key(
        "none: rows are always packed without padding, by tokens",
        "",
        _under(_MODEL, "use_remove_padding") + " " + _under(_ACTOR, "use_dynamic_bsz"),
        _under("worker.actor", "padding_free", "dynamic_batching"),
        "padding_free packing",
    ),
    # the optimizer
    Key("`optim.lr`", "learning_rate", _under(_ACTOR, "optim.lr"), "worker.actor.optim.lr", "learning_rate"),
    Key("`optim.parts.vision` (the stage's schedule and warm-up; 0 freezes)", swift="vit_lr"),
    Key("`optim.parts.projector`", swift="aligner_lr"),
    Key(
        "`optim.kind` (plain AdamW, one with moments of 8 bits, or Muon)",
        "optim",
        _under(_ACTOR, "optim.optimizer"),
        "worker.actor.optim.strategy",
        "optim",
    ),
    Key(
        "`optim.schedule`",
        "lr_scheduler_type",
        _under(_ACTOR, "optim.lr_scheduler_type", "optim.warmup_style"),
        "worker.actor.optim.lr_scheduler_type",
        "lr_scheduler_type",
    ),
    Key(
        "`optim.warmup` (a share of the stage's steps)",
        "warmup_steps",
        _under(_ACTOR, "optim.lr_warmup_steps", "optim.lr_warmup_steps_ratio"),
        _under("worker.actor.optim", "lr_warmup_steps", "lr_warmup_ratio"),
        "warmup_ratio",
    ),
    Key("none: a schedule ends at 0", "", _under(_ACTOR, "optim.min_lr_ratio"), "worker.actor.optim.min_lr_ratio"),
    Key("`optim.weight_decay`", "weight_decay", _under(_ACTOR, "optim.weight_decay"), "worker.actor.optim.weight_decay", "weight_decay"),
    Key("`optim.betas`", "adam_beta1 adam_beta2", _under(_ACTOR, "optim.betas"), "worker.actor.optim.betas", "adam_beta1 adam_beta2"),
    Key("`optim.max_grad_norm`", "max_grad_norm", _under(_ACTOR, "grad_clip"), "worker.actor.max_grad_norm", "max_grad_norm"),
    # the run
    Key("`run.name`", "run_name", "trainer.experiment_name", "trainer.experiment_name", "run_name"),
    Key("`run.root`", "output_dir", "trainer.default_local_dir", "trainer.save_checkpoint_path", "output_dir"),
    Key("`run.seed`", "seed", "data.seed", "data.seed", "seed"),
    Key("`run.trackers`", "report_to", "trainer.logger", "trainer.logger", "report_to"),
    Key("`run.trackers` (`project` of an entry)", "project", "trainer.project_name", "trainer.project_name"),
    Key("`checkpoint.every`", "save_steps", "trainer.save_freq", "trainer.save_freq", "save_steps"),
    Key("`checkpoint.keep`", "save_total_limit", "trainer.max_actor_ckpt_to_keep", "trainer.save_limit", "save_total_limit"),
    Key("`checkpoint.asynchronous`", "", _under(_ACTOR, "checkpoint.async_save")),
    Key("`run.push_to_hub.repo`", "push_to_hub hub_model_id", "", "", "push_to_hub hub_model_id"),
    Key("`run.push_to_hub.private`", "hub_private_repo", "", "", "hub_private_repo"),
    Key("`run.push_to_hub.every`", "hub_strategy"),
    Key("none: every step is logged", "logging_steps", "", "", "logging_steps"),
    Key("`eval.every`", "eval_steps", "trainer.test_freq", "trainer.val_freq", "eval_steps"),
    Key("`eval.at_start`", "eval_on_start", "trainer.val_before_train", "trainer.val_before_train", "eval_on_start"),
    Key(
        "none: the same command resumes",
        "resume_from_checkpoint",
        "trainer.resume_mode trainer.resume_from_path",
        "trainer.load_checkpoint_path",
        "resume_from_checkpoint",
    ),
    Key(
        "none: evaluation is greedy; `vlmrl eval` has `--samples` and `--temperature`",
        "num_generations_eval",
        _under(_ROLLOUT, "val_kwargs.temperature", "val_kwargs.n"),
        "worker.rollout.val_override_config",
        "num_generations_eval",
    ),
    Key(
        "none: `vlmrl train --gpus` starts the processes",
        "",
        "trainer.n_gpus_per_node trainer.nnodes",
        "trainer.n_gpus_per_node trainer.nnodes",
    ),
    Key(
        "`train.sharding`",
        "deepspeed fsdp",
        _under(_ACTOR, "strategy"),
        "worker.actor.strategy worker.actor.fsdp.enable_full_shard",
        "deepspeed fsdp",
    ),
    Key(
        "`train.offload`",
        "",
        _under(_ACTOR, "fsdp_config.param_offload", "fsdp_config.optimizer_offload"),
        _under("worker.actor", "offload.offload_params", "offload.offload_optimizer", "fsdp.enable_cpu_offload"),
    ),
    Key("`train.shard_size`", "", _under(_ACTOR, "fsdp_config.fsdp_size"), "worker.actor.fsdp.fsdp_size"),
    Key("`train.sequence`", "", _under(_ACTOR, "ulysses_sequence_parallel_size"), "worker.actor.ulysses_size", "sequence_parallel_size"),
)


class _Found(NamedTuple):
    whole: bool
    """The whole foreign name was written, not only its end."""
    shared: int
    """Parts of the name that agree, from the end."""
    trainer: str
    name: str
    here: str


def hint(path: Sequence[str]) -> str | None:
    """What a key of another trainer is here: `TRL's 'learning_rate' is 'optim.lr' here (docs/coming_from.md)`.

    Args:
        path: the key with the keys above it, outermost first. verl's and EasyR1's names are known by their ends as well: `rollout.n`.

    Returns:
        None where no trainer has the key, or several have it for different things.
    """
    found = _matches(tuple(path))
    if not found:
        return None
    best = max((one.whole, one.shared) for one in found)
    nearest = [one for one in found if (one.whole, one.shared) == best]
    if len({one.here for one in nearest}) > 1:
        return None
    owners = " and ".join(dict.fromkeys(f"{one.trainer}'s" for one in nearest))
    here = nearest[0].here.replace("`", "'")
    meant = f"has no counterpart ({here.removeprefix('none: ')})" if here.startswith("none: ") else f"is {here} here"
    return f"{owners} '{nearest[0].name}' {meant}; see {PAGE}"


_BY_LAST_PART: dict[str, list[tuple[str, str, Key]]] = {}
"""Last part of a foreign name -> (trainer, name, row), in the order of the table."""
for _row in ROWS:
    for _column, _trainer in TRAINERS.items():
        for _name in str(getattr(_row, _column)).split():
            _BY_LAST_PART.setdefault(_name.rpartition(".")[2], []).append((_trainer, _name, _row))


def _matches(path: tuple[str, ...]) -> list[_Found]:
    out: list[_Found] = []
    for trainer, name, row in _BY_LAST_PART.get(path[-1], []):
        parts = name.split(".")
        shared = 1
        while shared < min(len(parts), len(path)) and parts[-1 - shared] == path[-1 - shared]:
            shared += 1
        out.append(_Found(shared == len(parts), shared, trainer, name, row.here))
    return out
