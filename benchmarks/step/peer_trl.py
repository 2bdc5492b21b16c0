"""The same step by TRL's GRPOTrainer, as its documentation recommends for one prompt group per step.

`per_device_train_batch_size` is prompts x G, or the rows that a side names with gradients accumulated to the same batch; in either case
one gradient step per batch of rollouts (so TRL computes no old log-probs), `beta` 0
(no reference model, TRL's default), the loss `grpo` as on our side, gradient checkpointing with `--recompute` alone (TRL's default
is on, which only slows it down where memory is enough). On a CPU float32, on CUDA bfloat16 autocast over float32 weights, as on our
side. Everything else is TRL's default. Answers cannot end: `suppress_tokens` holds the ids that our side forbids.

The step is timed between two `on_step_end`. The rollout is `_generate` (prompt, pixels and `generate`); the update is what remains
of the step without `_generate_and_score_completions` and without the loader's `get_batch_samples`.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from typing import Any

from benchmarks.common import BenchmarkError, Job, Result, need
from benchmarks.step.meter import Meter, now
from benchmarks.step.ours import LEARNING_RATE, open_bundle
from benchmarks.step.workload import TEMPLATE, media_folder, model_folder, reward


def length_reward(completions: list[Any], **kwargs: Any) -> list[float]:
    return reward([completion[0]["content"] for completion in completions])


def dataset_of(job: Job) -> Any:
    """Rows with the pictures of our side; each is decoded when it is asked for, as TRL's loader does with any dataset of pictures."""
    from datasets import Dataset, Image

    from vlmrl.data.encode import messages
    from vlmrl.data.source import load_source

    settings, cell = job["settings"], job["cell"]
    folder = media_folder(settings, "image", cell["prompt"], (settings["warmup"] + settings["steps"]) * cell["batch"])
    samples = load_source(folder / "rows.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    texts = [messages(s, TEMPLATE)[0]["content"][-1]["text"] for s in samples]
    rows = {"prompt": [[{"role": "user", "content": text}] for text in texts], "image": [str(folder / s.media[0].path) for s in samples]}
    return Dataset.from_dict(rows).cast_column("image", Image())


def make_trainer(job: Job, out: str, rows: int | None, recompute: bool) -> Any:
    """The trainer with `rows` answers a forward pass (None: the whole batch).

    Raises:
        BenchmarkError: the batch is no multiple of `rows`.
    """
    from trl import GRPOConfig, GRPOTrainer

    settings, cell = job["settings"], job["cell"]
    path = str(model_folder(settings, cell["vocabulary"]))
    half = settings["dtype"] == "bfloat16"
    batch = cell["batch"] * cell["group"]
    rows = rows or batch
    if batch % rows:
        raise BenchmarkError(f"{batch} answers of a step are no multiple of {rows}; leave this side out with --sides")
    args = GRPOConfig(
        output_dir=out,
        use_cpu=settings["device"] == "cpu",
        bf16=half,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=batch // rows,
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
    from transformers import TrainerCallback

    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    settings, cell = job["settings"], job["cell"]
    device = settings["device"]
    ends: list[float] = []
    cpu: list[float] = []
    kept: list[Any] = []
    parts: dict[str, list[float]] = {"_generate": [], "_generate_and_score_completions": [], "get_batch_samples": []}

    class Ends(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            ends.append(now(device))
            cpu.append(time.process_time())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(now(device))
            cpu.append(time.process_time())

    with tempfile.TemporaryDirectory() as out:
        trainer = make_trainer(job, out, rows, recompute)
        trainer.add_callback(Ends())
        for name in parts:
            timed_method(trainer, name, parts[name], device, kept if name == "_generate" else None)
        meter = Meter(device)
        trainer.train()
        memory = meter.read()
    steps = [b - a for a, b in itertools.pairwise(ends)]
    skip = settings["warmup"]
    prompts, answers = kept[-1][:2]
    together = zip(steps, parts["_generate_and_score_completions"], parts["get_batch_samples"], strict=True)
    return {
        "seconds": steps[skip:],
        "cpu": [b - a for a, b in itertools.pairwise(cpu)][skip:],
        "rollout": parts["_generate"][skip:],
        "update": [whole - scored - loaded for whole, scored, loaded in together][skip:],
        "memory": memory,
        "prompt_tokens": len(prompts[0]),
        "completion_tokens": sum(len(ids) for ids in answers) / len(answers),
        "answers": cell["batch"] * cell["group"],
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }


def timed_method(trainer: Any, name: str, into: list[float], device: str, kept: list[Any] | None) -> None:
    """Record the seconds of every call of a method, and what it returned the last time."""
    method = getattr(trainer, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = now(device)
        result = method(*args, **kwargs)
        into.append(now(device) - began)
        if kept is not None:
            kept[:] = [result]
        return result

    setattr(trainer, name, timed)
