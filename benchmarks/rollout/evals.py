"""An evaluation with several questions about each video: with our two engines, and with lmms-eval's own Qwen2.5-VL class.

A part of `rollout.py`. Every side is a process of its own and answers the same questions about the same files with the same weights,
greedily and at equal length. The time runs from the rows to the answers, with decoding, and without loading the model or starting vLLM; a
question about another video, which does not count, comes first. lmms-eval's class loads bfloat16; in float32 its model is cast back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import BenchmarkError, Job, Result, Store, median_range, need, show

SIDES = ("hf", "vllm", "lmms-eval", "lmms-eval, batch of 5")
LMMS = SIDES[2:]
QUESTIONS = (
    "When is the red square visible?",
    "When is the blue square visible?",
    "When does the first square appear?",
    "When does the last square vanish?",
    "When are two squares visible?",
)
ANSWER_FORMAT = "answer_only"
KIND = "video"


def cells_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    more = {"vocabulary": args.vocabulary_rows, "vllm_memory": args.vllm_memory}
    return [
        {"part": "evals", "kind": KIND, "prompt": prompt, "completion": completion, "videos": args.videos, "questions": len(QUESTIONS)}
        | more
        for prompt in args.prompts
        for completion in args.completions
    ]


def media_of(cell: dict[str, Any], settings: dict[str, Any]) -> tuple[str, int, int]:
    """One more video than counts, for the warm-up."""
    del settings
    return KIND, cell["prompt"], cell["videos"] + 1


def worker(job: Job) -> Result:
    return lmms_eval(job) if job["side"] in LMMS else ours(job)


def rows_of(folder: Path, cell: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the questions, that of the warm-up)."""
    first, *others = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    rows = [row | {"id": f"{row['id']}-{n}", "prompt": text} for row in others for n, text in enumerate(QUESTIONS)]
    return rows, [first | {"id": "warm-up"}]


def require_size(cell: dict[str, Any], tokens: int) -> None:
    """
    Raises:
        BenchmarkError: a side does not show the video in as many tokens as the others.
    """
    if tokens != cell["prompt"]:
        raise BenchmarkError(f"{cell}: a video of {tokens} tokens; this is no comparison")


def ours(job: Job) -> Result:
    """`vlmrl eval` with an engine of ours, from rows to records."""
    from benchmarks.step import ours as step
    from benchmarks.step.workload import MAX_PIXELS, media_folder, model_folder
    from vlmrl.evals.ask.models import LocalModel, open_store
    from vlmrl.evals.ask.run import evaluate_model, task_prompts
    from vlmrl.evals.ask.suite import load_suite
    from vlmrl.policy.load import quiet_transformers

    quiet_transformers()
    settings, cell = job["settings"], job["cell"]
    root, path = media_folder(settings, *media_of(cell, settings)), model_folder(settings, cell["vocabulary"])
    given: dict[str, Any] = {"device": settings["device"], "dtype": settings["dtype"]}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        suites: dict[str, Any] = {}
        for name, rows in zip(("counted", "warm-up"), rows_of(root, cell), strict=True):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            task = {
                "id": "questions",
                "source": f"{name}.jsonl",
                "media_root": str(root.resolve()),
                "answer_format": ANSWER_FORMAT,
                "answer_type": "number",
                "max_new_tokens": cell["completion"],
                "max_prompt_tokens": cell["prompt"] + 512,
                "media": {"max_pixels": MAX_PIXELS},
            }
            (folder / f"{name}.yaml").write_text(json.dumps({"id": name, "version": 1, "tasks": [task]}))  # JSON is YAML
            suites[name] = load_suite(folder / f"{name}.yaml")
        if job["side"] == "vllm":
            from vlmrl.extras.vllm.evaluation import VllmModel

            model: Any = VllmModel.load(path, tasks=suites["counted"].tasks, **given)
        else:
            model = LocalModel.load(path, **given)
        model.policy.bundle = bundle = step.open_bundle(str(path))
        task = suites["warm-up"].tasks[0]
        prompts, _ = task_prompts(task, folder, open_store(task, bundle), bundle, None)
        require_size(cell, prompts[0].ids.count(bundle.pad_ids[KIND]))
        evaluate_model(model, suites["warm-up"], folder / "first", data_root=folder)
        began = time.perf_counter()
        evaluate_model(model, suites["counted"], folder / "out", data_root=folder)
        seconds = time.perf_counter() - began
        records = [json.loads(line) for line in (folder / "out" / "questions.jsonl").read_text().splitlines()]
        if job["side"] == "vllm":
            model.close()
    return {"seconds": [seconds], "answers": len(records), "tokens": sum(record["n_out"] for record in records)}


def lmms_eval(job: Job) -> Result:
    """lmms-eval's class for Qwen2.5-VL, asked as its evaluator asks it."""
    need("lmms_eval", "--without lmms-eval")
    from lmms_eval.api.instance import Instance
    from lmms_eval.models.simple.qwen2_5_vl import Qwen2_5_VL

    from benchmarks.step import ours as step
    from benchmarks.step.workload import CELL, MAX_PIXELS, media_folder, model_folder
    from vlmrl.data.encode import instruction

    settings, cell = job["settings"], job["cell"]
    root, path = media_folder(settings, *media_of(cell, settings)), model_folder(settings, cell["vocabulary"])
    sizes: dict[str, Any] = {"min_pixels": CELL * CELL, "max_pixels": MAX_PIXELS, "max_num_frames": 768}
    batch = 1 if job["side"] == LMMS[0] else len(QUESTIONS)
    asked: Any = Qwen2_5_VL(str(path), device=settings["device"], device_map=settings["device"], batch_size=batch, **sizes)
    if settings["dtype"] == "float32":
        asked.model.float()
    asked.model.generation_config.suppress_tokens = list(step.open_bundle(str(path)).forbidden_ids)
    counted, whole = {"answers": 0, "tokens": 0}, asked.model.generate

    def generate(**inputs: Any) -> Any:
        for ids in inputs["input_ids"].tolist():
            require_size(cell, ids.count(asked.model.config.video_token_id))
        out = whole(**inputs)
        counted["answers"] += len(out)
        counted["tokens"] += out.shape[0] * (out.shape[1] - inputs["input_ids"].shape[1])
        return out

    asked.model.generate = generate
    rows, first = rows_of(root, cell)

    def answer(rows: list[dict[str, Any]]) -> None:
        asked.task_dict = {"questions": {"test": rows}}
        wanted = {"max_new_tokens": cell["completion"], "temperature": 0.0, "do_sample": False, "until": []}
        instances = [
            Instance(
                request_type="generate_until",
                arguments=(f"{row['prompt']}\n{instruction(ANSWER_FORMAT, 'number')}", wanted, show_video, n, "questions", "test"),
                idx=0,
                metadata={"task": "questions", "doc_id": n, "repeats": 1},
            )
            for n, row in enumerate(rows)
        ]
        asked.generate_until(instances)

    def show_video(row: dict[str, Any]) -> list[str]:
        return [str((root / row[KIND]).resolve())]

    answer(first)
    counted |= {"answers": 0, "tokens": 0}
    began = time.perf_counter()
    answer(rows)
    return {"seconds": [time.perf_counter() - began], **counted}


def lines(results: list[Result], store: Store) -> list[str]:
    del store
    return [
        show("Evaluations: from rows to the answers to several questions about each video", table_of(results)),
        "lmms-eval asks in batches of one unless it is told otherwise. Its prompt has a system message of its own, and its videos come",
        "through qwen-vl-utils. Loading the model and starting vLLM are not counted.",
    ]


def table_of(results: list[Result]) -> list[list[str]]:
    """A row per cell and side; `times hf` is of the medians."""
    rows = [["visual tokens x questions x answer, videos", "side", "s", "questions / s", "answer tokens", "times hf"]]
    cells = [dict(cell) for cell in dict.fromkeys(tuple(r["cell"].items()) for r in results)]
    for cell in cells:
        name = f"{cell['prompt']} x {cell['questions']} x {cell['completion']}, {cell['videos']}"
        of = {side: [r for r in results if r["cell"] == cell and r["side"] == side and "failed" not in r] for side in SIDES}
        for side, found in of.items():
            if not found:
                continue
            seconds = [s for r in found for s in r["seconds"]]
            own = [s for r in of["hf"] for s in r["seconds"]]
            middle = statistics.median(seconds)
            ratio = f"{middle / statistics.median(own):.2f}" if own else "-"
            rows.append([name, side, median_range(seconds), f"{found[0]['answers'] / middle:.2f}", str(found[0]["tokens"]), ratio])
    return rows
