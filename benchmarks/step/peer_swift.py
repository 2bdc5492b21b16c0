"""The same step by ms-swift's GRPO: `swift rlhf --rlhf_type grpo --use_vllm false`.

Settings are as in `peer_trl.py`: the whole batch or some rows a pass, one gradient step per batch of rollouts, `beta` 0, the loss `grpo`,
no gradient checkpointing unless it is asked for; the temperature is TRL's and ours, and all weights train, the tower included. Everything
else is ms-swift's default. It computes the old log-probs in a pass of its own even where a batch gives one gradient step.

Two things go through ms-swift's own ways to extend it: the reward, and a template, since that of Qwen2.5-VL has the number of Qwen's own
image token built in and adds a system prompt. Answers cannot end: `suppress_tokens` of the model's generation config holds the ids that
our side forbids.

The rollout is `_generate_completions` (prompt, pixels and `generate`); `meter.timed_steps` says what step and update are. Runs in
ms-swift's own environment, which pins other versions of TRL and transformers than ours.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import BenchmarkError, Job, Result, need
from benchmarks.step.meter import timed_steps
from benchmarks.step.ours import LEARNING_RATE, open_bundle
from benchmarks.step.peer_trl import rows_a_pass
from benchmarks.step.workload import fingerprint, model_folder, prompts_of, reward

NAME = "benchmark"
"""Of the reward and the template."""


def options_of(job: Job, out: Path, rows: int, recompute: bool) -> dict[str, Any]:
    """Options of `swift rlhf` with `rows` answers a forward pass; writes the rows into `out`."""
    settings, cell = job["settings"], job["cell"]
    half = settings["dtype"] == "bfloat16"
    lines = [json.dumps({"messages": [{"role": "user", "content": f"<image>{text}"}], "images": [path]}) for text, path in prompts_of(job)]
    (out / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return {
        "rlhf_type": "grpo",
        "model": model_folder(settings, cell["vocabulary"]),
        "model_type": "qwen2_5_vl",
        "template": NAME,
        "dataset": out / "rows.jsonl",
        "output_dir": out / "out",
        "reward_funcs": NAME,
        "use_vllm": False,
        "use_cpu": settings["device"] == "cpu",
        "torch_dtype": "float32",
        "bf16": half,
        "attn_impl": "sdpa",
        "tuner_type": "full",
        "freeze_vit": False,
        "freeze_aligner": False,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": cell["batch"] * cell["group"] // rows,
        "num_generations": cell["group"],
        "max_completion_length": cell["completion"],
        "temperature": 1.0,
        "max_steps": settings["warmup"] + settings["steps"],
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "beta": 0.0,
        "loss_type": "grpo",
        "gradient_checkpointing": recompute or settings.get("recompute", False),
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def measure(job: Job, rows: int | None = None, recompute: bool = False) -> Result:
    """What `peer_trl.measure` gives, of ms-swift.

    Raises:
        BenchmarkError: it trained on other tokens than it sampled, or on others beside them.
    """
    need("swift", "--sides trl repeat shared_prefix")
    bundle = open_bundle(str(model_folder(job["settings"], job["cell"]["vocabulary"])))
    with tempfile.TemporaryDirectory() as out:
        os.environ["MODELSCOPE_CACHE"] = out  # what it makes of the rows
        options = options_of(job, Path(out), rows_a_pass(job, rows), recompute)
        return timed(job, bundle)([str(word) for name, value in options.items() for word in (f"--{name}", value)]).main()


def timed(job: Job, bundle: Any) -> Any:
    """`swift rlhf` with our reward and template that times its steps; `bundle`: the processor with answers that cannot end."""
    from swift.pipelines.train.rlhf import SwiftRLHF
    from swift.rewards import ORM, orms
    from swift.template import register_template
    from swift.template.templates.qwen import Qwen2_5VLTemplate, QwenTemplateMeta

    class Length(ORM):
        def __call__(self, completions: list[str], **kwargs: Any) -> list[float]:
            return reward(completions)

    class Template(Qwen2_5VLTemplate):
        image_token_id = bundle.tokenizer.convert_tokens_to_ids("<|image_pad|>")

    class Timed(SwiftRLHF):
        def train(self, trainer: Any) -> Any:
            trainer.model.generation_config.suppress_tokens = list(bundle.forbidden_ids)
            train = super().train
            measured = timed_steps(trainer, job["settings"], "_generate_completions", answers_of, lambda: train(trainer))
            return measured | trained_on(trainer, measured.pop("kept"))

    orms[NAME] = Length
    register_template(QwenTemplateMeta(NAME, template_cls=Template, default_system=None))
    return Timed


def answers_of(samples: list[Any]) -> list[list[int]]:
    """Sampled ids of every answer."""
    return [list(sample.response_token_ids) for sample in samples]


def trained_on(trainer: Any, answers: list[list[int]]) -> Result:
    """What the last step had in its loss, held against what it had sampled."""
    prompts, scored = list[list[int]](), list[list[int]]()
    for batch in trainer._buffered_inputs:
        masks = batch["grpo_batch"].completion_mask
        for ids, mask in zip(batch["model_inputs"]["input_ids"].tolist(), masks.tolist(), strict=True):
            prompts.append(ids[: -len(mask)])
            scored.append([token for token, kept in zip(ids[-len(mask) :], mask, strict=True) if kept])
    if scored != answers or any(prompt != prompts[0] for prompt in prompts):
        raise BenchmarkError("ms-swift trained on other tokens than it had sampled; this is no comparison")
    return {
        "prompt_tokens": len(prompts[0]),
        "prompt_ids": fingerprint(prompts[0]),
        "completion_tokens": sum(len(ids) for ids in scored) / len(scored),
        "answers": len(scored),
        "parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
    }
