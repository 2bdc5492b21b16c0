"""The same step by TRL's GRPOTrainer, as its documentation recommends for one prompt group per step.

`per_device_train_batch_size` is prompts x G, or the rows that a side names with gradients accumulated to the same batch; in either case
one gradient step per batch of rollouts (so TRL computes no old log-probs), `beta` 0
(no reference model, TRL's default), the loss `grpo` as on our side, gradient checkpointing with `--recompute` alone (TRL's default
is on, which only slows it down where memory is enough). On a CPU float32, on CUDA bfloat16 autocast over float32 weights, as on our
side. Everything else is TRL's default. Answers cannot end: `suppress_tokens` holds the ids that our side forbids.

The rollout is `_generate` (prompt, pixels and `generate`); `meter.timed_steps` says what step and update are.
"""

from __future__ import annotations

import tempfile
from typing import Any

from benchmarks.common import BenchmarkError, Job, Result, need
from benchmarks.step.meter import timed_steps
from benchmarks.step.ours import LEARNING_RATE, open_bundle
from benchmarks.step.workload import fingerprint, model_folder, prompts_of, reward


def length_reward(completions: list[Any], **kwargs: Any) -> Any:
    return reward([completion[0]["content"] for completion in completions])


def dataset_of(job: Job) -> Any:
    """Rows with the pictures of our side; each is decoded when it is asked for, as TRL's loader does with any dataset of pictures."""
    from datasets import Dataset, Image

    texts, pictures = zip(*prompts_of(job), strict=True)
    rows = {"prompt": [[{"role": "user", "content": text}] for text in texts], "image": list(pictures)}
    return Dataset.from_dict(rows).cast_column("image", Image())


def rows_a_pass(job: Job, rows: int | None) -> int:
    """Rows of a forward pass, all of the batch for None.

    Raises:
        BenchmarkError: the batch is no multiple of `rows`.
    """
    batch = job["cell"]["batch"] * job["cell"]["group"]
    found = rows or batch
    if batch % found:
        raise BenchmarkError(f"{batch} answers of a step are no multiple of {found}; leave this side out with --sides")
    return found


def make_trainer(job: Job, out: str, rows: int, recompute: bool) -> Any:
    """The trainer with `rows` answers a forward pass."""
    from trl import GRPOConfig, GRPOTrainer

    settings, cell = job["settings"], job["cell"]
    path = str(model_folder(settings, cell["vocabulary"]))
    half = settings["dtype"] == "bfloat16"
    args = GRPOConfig(
        output_dir=out,
        use_cpu=settings["device"] == "cpu",
        bf16=half,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=cell["batch"] * cell["group"] // rows,
        num_generations=cell["group"],
        max_completion_length=cell["completion"],
        max_steps=settings["warmup"] + settings["steps"],
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="grpo",
        gradient_checkpointing=recompute or settings.get("recompute", False),
        generation_kwargs={"suppress_tokens": list(open_bundle(path).forbidden_ids)},
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return GRPOTrainer(model=path, reward_funcs=length_reward, args=args, train_dataset=dataset_of(job))


def measure(job: Job, rows: int | None = None, recompute: bool = False) -> Result:
    """What `ours.measure` gives, of TRL with `rows` answers a forward pass; `recompute` in any case where it is set."""
    need("trl", "--sides repeat shared_prefix")
    need("datasets", "--sides repeat shared_prefix")
    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    with tempfile.TemporaryDirectory() as out:
        trainer = make_trainer(job, out, rows_a_pass(job, rows), recompute)
        measured = timed_steps(trainer, job["settings"], "_generate", lambda made: made[:2], trainer.train)
    prompts, answers = measured.pop("kept")
    return measured | {
        "prompt_tokens": len(prompts[0]),
        "prompt_ids": fingerprint(prompts[0]),
        "completion_tokens": sum(len(ids) for ids in answers) / len(answers),
        "answers": len(answers),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }
