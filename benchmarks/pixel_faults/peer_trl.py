"""The adapter of TRL: GRPOTrainer on a data set with pictures, as its documentation of vision-language models has it.

Everything is TRL's default but: float32 on a CPU, no gradient checkpointing, one update per batch of rollouts, rows in their order. Its
batch is handed from rollout to training by `_generate_and_score_completions`, whose result loses its pixel tensors where a job says so.
What enters the loss is read where `_get_per_token_logps_and_entropies` gives it to `_compute_loss`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch

from vlmrl.compat import ensure_torchvision
from vlmrl.extras.pixels.job import RATE, Answer, Fault, Job, Trained, spread
from vlmrl.extras.pixels.ranks import across

PIXELS = ("pixel_values", "image_grid_thw", "mm_token_type_ids", "num_images")
"""What a batch of rollouts holds of pictures."""


class Trl:
    """TRL's GRPOTrainer, generation by transformers."""

    name = "trl"

    def version(self) -> str:
        """Name the installed version."""
        import trl

        return trl.__version__

    def lacks(self, fault: Fault) -> str | None:
        """Faults of videos, and of a bound on prompts, lie on paths that GRPOTrainer does not have."""
        ensure_torchvision()
        from trl.trainer.grpo_config import GRPOConfig

        if fault in ("frame_times", "variable_rate"):
            return "GRPOTrainer reads the columns `image` and `images`; its documentation names no video"
        bounds = {field.name for field in dataclasses.fields(GRPOConfig)} & {"max_prompt_length", "max_length"}
        if fault == "cut" and not bounds:
            return "GRPOConfig has no bound on the prompt (neither `max_prompt_length` nor `max_length`)"
        return None

    def train(self, job: Job) -> Trained:
        """Train a job; what TRL or transformers raise rises."""
        if job.ranks > 1 and "RANK" not in os.environ:
            return across(job, "benchmarks.pixel_faults.peer_trl:Trl")
        ensure_torchvision()
        trained = Trained()
        trainer = make_trainer(job)
        watch(trainer, job, trained)
        trainer.train()
        return trained


def make_trainer(job: Job) -> Any:
    """Make the trainer of a job."""
    from datasets import Dataset, Image, List
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    prompts = [[{"role": "user", "content": row.text}] for row in job.rows]
    if all(len(row.media) == 1 for row in job.rows):
        data = Dataset.from_dict({"prompt": prompts, "image": [row.media[0] for row in job.rows]}).cast_column("image", Image())
    else:
        data = Dataset.from_dict({"prompt": prompts, "images": [list(row.media) for row in job.rows]})
        data = data.cast_column("images", List(Image()))
    args = GRPOConfig(
        output_dir=str(Path(job.folder) / "out"),
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=len(job.rows) * job.group // job.ranks,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        num_generations=job.group,
        max_completion_length=job.answer_tokens,
        max_steps=job.steps,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    reward: Any = spread  # TRL wants a list of float | None, which a list of float is not
    return GRPOTrainer(model=job.model, reward_funcs=reward, args=args, train_dataset=data)


def watch(trainer: Any, job: Job, trained: Trained) -> None:
    """Write down what enters the loss; take the pixel tensors out of the batch on ranks that shall lose them."""
    score, forward = trainer._generate_and_score_completions, trainer._get_per_token_logps_and_entropies

    def scored(inputs: Any) -> Any:
        out = score(inputs)
        lost = trainer.accelerator.process_index in job.lost
        return {name: value for name, value in out.items() if not (lost and name in PIXELS)}

    def forwarded(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, *args: Any, **kwargs: Any) -> Any:
        out = forward(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)
        if torch.is_grad_enabled():
            step = trainer.state.global_step
            weights = None
            if step > 0:
                plain = trainer.accelerator.unwrap_model(model)
                weights = {name: value.detach().clone() for name, value in plain.state_dict().items()}
            for ids, mask, logp in zip(input_ids, attention_mask.bool(), out[0].detach(), strict=True):
                prompt, answer = mask.clone(), mask.clone()
                prompt[-logits_to_keep:], answer[:-logits_to_keep] = False, False
                kept = tuple(logp[answer[-logits_to_keep:]].tolist())
                trained.answers.append(
                    Answer(prompt=tuple(ids[prompt].tolist()), ids=tuple(ids[answer].tolist()), logp=kept, step=step, weights=weights)
                )
        return out

    trainer._generate_and_score_completions = scored
    trainer._get_per_token_logps_and_entropies = forwarded
