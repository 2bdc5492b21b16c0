"""A step of distillation beside one of GRPO, and beside TRL's DistillationTrainer: seconds, CPU seconds and peak memory.

    python -m benchmarks.step.distill                      1,024 visual tokens, 8 answers of 64; and a policy that sees 256 of them
    python -m benchmarks.step.distill --sides grpo distill
    python -m benchmarks.step.distill --device cuda --size 3b

Sides, on the same random weights, pictures and prompts, with answers of equal length: `grpo`; `distill` (the sampled tokens,
`teacher_reverse_kl`); `distill_jsd` (the whole vocabulary, `teacher_jsd` with beta 1); `trl_distill`, whose loss is that of `distill_jsd`
and whose teacher gets the policy's pixels. The teacher is a second copy of the weights. Needs TRL: pip install trl==1.16.0.
Writes docs/benchmarks/distill.md and .json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import (
    Job,
    Result,
    Store,
    check_same,
    common_settings,
    console,
    measure,
    median_range,
    need,
    provenance,
    publish,
    run_all,
    run_script,
    show,
)
from benchmarks.step.workload import CELL, TEMPLATE, media_folder, model_folder

SIDES = ("grpo", "distill", "distill_jsd", "trl_distill")
LEARNING_RATE = 1e-6
EQUAL = (
    "Answers cannot end, because the same ids (end and visual control tokens) are suppressed on all sides, so all have the full length.",
    "Every step shows new pictures, so no cache helps the next one. TRL: gradient checkpointing off, `beta` 1, the whole batch in one",
    "forward pass, each prompt as many times in a batch as it has answers, otherwise its defaults. MiB is the peak above loaded models, of",
    "which `grpo` has one and the others two. A step is from one to the next: decoding, sampling, scoring, update and log.",
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", type=int, default=1024, help="visual tokens of the picture as the teacher sees it (a square number)")
    parser.add_argument("--seen", type=int, nargs="+", default=[1024, 256], help="visual tokens as the policy sees it, a cell each")
    parser.add_argument("--group", type=int, default=8, help="answers per prompt")
    parser.add_argument("--completion", type=int, default=64, help="tokens per answer")
    parser.add_argument("--batch", type=int, default=1, help="prompts per step")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))


def worker(job: Job) -> Result:
    if job["side"] == "prepare":
        from benchmarks.step import workload

        return workload.prepare(job)
    if job["side"] != "trl_distill":
        return ours(job)
    if job["cell"]["seen"] != job["cell"]["prompt"]:
        return {"failed": "has one size of pictures for both"}
    return theirs(job)


def steps_of(job: Job) -> int:
    """Steps of a run: one more than are measured, since the last one ends with a checkpoint."""
    return job["settings"]["warmup"] + job["settings"]["steps"] + 1


def recipe(job: Job, root: str) -> dict[str, Any]:
    """What `vlmrl train` is asked for."""
    settings, cell = job["settings"], job["cell"]
    stage: dict[str, Any] = {
        "name": "benchmark",
        "kind": "grpo",
        "source": {"path": "rows.jsonl"},
        "steps": steps_of(job),
        "answer_format": TEMPLATE,
        "optim": {"lr": LEARNING_RATE},
        "rollout": {"prompts_per_step": cell["batch"], "num_generations": cell["group"], "max_new_tokens": cell["completion"]},
        "rewards": [{"name": "format"}],
    }
    sizes = {side: {"min_pixels": cell[side] * CELL * CELL, "max_pixels": cell[side] * CELL * CELL} for side in ("seen", "prompt")}
    if job["side"] != "grpo":
        stage |= {"kind": "distill", "rewards": [], "teacher": {} if cell["seen"] == cell["prompt"] else {"media": sizes["prompt"]}}
    if job["side"] == "distill_jsd":
        stage |= {"reweight": [], "auxiliary_losses": [{"name": "teacher_jsd", "beta": 1.0}]}
    folder = media_folder(settings, "image", cell["prompt"], steps_of(job) * cell["batch"])
    return {
        "run": {"name": "run", "root": root, "trackers": [], "threads": settings["threads"]},
        "model": {"path": str(model_folder(settings, cell["vocabulary"])), "device": settings["device"], "dtype": settings["dtype"]},
        "media": sizes["seen"],
        "data": {"root": str(folder), "max_prompt_tokens": 2**17},
        "stages": [stage],
        "checkpoint": {"every": 10**6},
        "keep": {"groups_per_step": 0},
    }


def ours(job: Job) -> Result:
    """Run the recipe as `vlmrl train` does, with answers that cannot end, and time its steps."""
    from benchmarks.step.meter import Meter, now
    from benchmarks.step.ours import open_bundle
    from vlmrl.config.load import loaded
    from vlmrl.config.schema import Config
    from vlmrl.run import session
    from vlmrl.run.loop import Loop
    from vlmrl.run.start import Places, train_from
    from vlmrl.run.ui import Ui

    device, marks, meters = job["settings"]["device"], list[tuple[float, float]](), list[Meter]()
    memory: dict[str, Any] = {}
    run = Loop.run

    def timed(loop: Loop, step: Any) -> None:
        meters.append(Meter(device))

        def marked() -> Any:
            marks.append((now(device), time.process_time()))
            memory.update(meters[0].read())
            return step()

        run(loop, marked)

    Loop.run = timed  # pyright: ignore[reportAttributeAccessIssue]
    session.load_processor = lambda path, **_: open_bundle(path)
    with tempfile.TemporaryDirectory() as root:
        cfg = Config.model_validate(recipe(job, root))
        train_from(loaded(cfg), Places(model=cfg.model.path, data=Path(cfg.data.root)), Ui(quiet=True))
        lines = [json.loads(line) for line in (Path(root) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        sides = Path(root) / "run" / "teacher" / "benchmark.rank-0.jsonl"
        seen = json.loads(sides.read_text(encoding="utf-8").splitlines()[0]) if sides.exists() else {}
    line = next(line for line in reversed(lines) if "grad_norm" in line)
    from vlmrl.policy.load import load_policy

    parameters = sum(p.numel() for p in load_policy(cfg.model.path, open_bundle(cfg.model.path), device="cpu").model.parameters())
    return times(marks, job) | {
        "memory": memory,
        "completion_tokens": line["completions/mean_length"],
        "answers": job["cell"]["batch"] * job["cell"]["group"],
        "teacher_tokens": seen.get("teacher", {}).get("tokens"),
        "parameters": parameters,
        "phases": {name: value for name, value in line.items() if name.startswith("time/")},
    }


def times(marks: list[tuple[float, float]], job: Job) -> Result:
    """Seconds and CPU seconds from the beginning of each measured step to that of the next."""
    own = marks[job["settings"]["warmup"] :]
    return {name: [b[place] - a[place] for a, b in itertools.pairwise(own)] for place, name in enumerate(("seconds", "cpu"))}


def theirs(job: Job) -> Result:
    """Run TRL's trainer on the same rows."""
    need("trl", "--sides grpo distill distill_jsd")
    need("datasets", "--sides grpo distill distill_jsd")
    from datasets import Dataset
    from transformers import TrainerCallback

    from benchmarks.step import peer_trl
    from benchmarks.step.meter import Meter, now, timed_method
    from benchmarks.step.ours import open_bundle
    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    from trl.trainer.distillation_config import DistillationConfig
    from trl.trainer.distillation_trainer import DistillationTrainer

    settings, cell = job["settings"], job["cell"]
    device, marks, answers = settings["device"], list[tuple[float, float]](), list[Any]()
    path = str(model_folder(settings, cell["vocabulary"]))
    rows = peer_trl.dataset_of({**job, "settings": settings | {"steps": settings["steps"] + 1}})
    repeated: Dataset = rows.select([n for n in range(len(rows)) for _ in range(cell["group"])])

    class Marks(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            marks.append((now(device), time.process_time()))

    with tempfile.TemporaryDirectory() as out:
        args = DistillationConfig(
            output_dir=out,
            use_cpu=device == "cpu",
            bf16=settings["dtype"] == "bfloat16",
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            teacher_model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            per_device_train_batch_size=cell["batch"] * cell["group"],
            gradient_accumulation_steps=1,
            max_completion_length=cell["completion"],
            max_steps=steps_of(job),
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            shuffle_dataset=False,
            beta=1.0,
            gradient_checkpointing=False,
            generation_kwargs={"suppress_tokens": list(open_bundle(path).forbidden_ids)},
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = DistillationTrainer(model=path, teacher_model=path, args=args, train_dataset=repeated)
        trainer.add_callback(Marks())
        model: Any = trainer.model
        timed_method(trainer, "_generate", [], device, answers)
        meter = Meter(device)
        trainer.train()
        memory = meter.read()
    generated = answers[-1][1]
    return times(marks, job) | {
        "memory": memory,
        "completion_tokens": sum(len(ids) for ids in generated) / len(generated),
        "answers": len(generated),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def table(store: Store, cells: list[dict[str, int]], sides: list[str]) -> list[list[str]]:
    """A row for each side of a cell, with its median against that of `grpo` in the same turn."""
    rows = [["policy sees, teacher sees", "side", "s / step", "CPU s / step", "MiB", "CPU time to `grpo`"]]
    for cell, side in itertools.product(cells, sides):
        results = [r for r in store.results.values() if r["cell"] == cell]
        found, base = ({r["repeat"]: r for r in results if r["side"] == one and "failed" not in r} for one in (side, "grpo"))
        name = f"{cell['seen']}, {cell['prompt']}"
        if not found:
            failed = [r["failed"] for r in results if r["side"] == side]
            rows.append([name, side, failed[0] if failed else "not measured", "-", "-", "-"])
            continue
        values = (median_range([v for r in found.values() for v in r[key]]) for key in ("seconds", "cpu"))
        peak = median_range([(r["memory"]["peak"] - r["memory"]["loaded"]) / 2**20 for r in found.values()], 0)
        times_ = [statistics.median(r["cpu"]) / statistics.median(base[n]["cpu"]) for n, r in found.items() if n in base]
        rows.append([name, side, *values, peak, median_range(times_)])
    return rows


def main(args: argparse.Namespace) -> None:
    settings = common_settings(args)
    store = Store.open(args.write.with_suffix(".json"), settings)
    shared = {"group": args.group, "completion": args.completion, "batch": args.batch, "vocabulary": args.vocabulary_rows}
    cells = [{"prompt": args.prompt, "seen": seen, **shared} for seen in args.seen]
    media = [["image", args.prompt, (args.warmup + args.steps + 1) * args.batch]]
    measure(
        __file__,
        {"side": "prepare", "cell": {"vocabularies": [args.vocabulary_rows], "media": media}, "settings": settings},
        timeout=args.timeout,
    )
    run_all(__file__, store, cells, args.sides, args.repeats, timeout=args.timeout, say=console().print)
    for cell in cells:
        check_same(store, cell, ("completion_tokens", "answers", "parameters"))
    one = next(r for r in store.results.values() if "failed" not in r)
    about = (
        f"Qwen2.5-VL with random weights, {one['parameters'] / 1e6:.1f} M parameters, all of them trained; {args.batch} prompt(s) with one "
        f"picture, {args.group} answers of {args.completion} tokens."
    )
    lines = ["# A step of distillation", "", about, "", show("Seconds and memory", table(store, cells, args.sides)), *EQUAL, ""]
    publish(args.write, [*lines, *provenance(store)])


if __name__ == "__main__":
    run_script(__doc__ or "", __file__, options, worker, main)
