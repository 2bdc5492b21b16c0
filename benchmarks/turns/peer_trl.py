"""The same step of episodes by TRL's GRPOTrainer: `environment_factory`, a tool whose result is a screenshot.

TRL 1.16 puts pictures of a tool's result into the conversation (`GRPOTrainer._tool_call_loop`): a method of the environment returns content
parts, an image among them. Three things are ours, so that both sides do the same work:

* Random weights write no tool calls. `trl.trainer.grpo_trainer.parse_response` is replaced: every answer is a call of the environment's
  only method with the answer's text.
* The chat template shows a tool's result as a user turn, which is what our observations are, so ids between answers are equal but for the
  end token of an answer that was cut off: TRL writes none.
* Answers cannot end (`suppress_tokens`), and `max_new_tokens` is that of one turn; TRL's `max_completion_length` is that of an episode.

TRL bounds the calls and not the turns: `max_tool_calling_iterations` is one less than the turns, the last action is not carried out.
Everything else is as in `step/peer_trl.py`.

Side `trl-vllm`: the rollouts by vLLM in the trainer's process (`vllm_mode="colocate"`), whose prefix cache keeps what a conversation began
with. TRL's own options forbid the same ids (`generation_kwargs`) and switch off the correction for the sampler's log-probs, which is
another forward pass of the whole batch that the other sides do without. Three things are ours here:

* TRL 1.16 hands vLLM prompts with a place for every visual token, and vLLM takes the first of each picture for the whole picture and
  makes places for all of it again (huggingface/trl#6294). It is given one place a picture, as TRL's open fix (#6718, #6719) does.
* vLLM's CPU build packs the weights of linear layers and drops the parameters, so TRL's `load_weights` finds nothing to write to
  ("'Parameter' object has no attribute 'weight_loader'"). vLLM's own way of loading weights again surrounds TRL's `sync_weights`.
* Of vLLM's options TRL passes on a few. The compute type is given, which vLLM takes as bfloat16 for a float32 model; on a CPU also blocks
  of 32 tokens, the smallest that its kernels take (its own choice is 128, more than a turn), 1 GiB for keys and values, and no compiling,
  as our engine has it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import BenchmarkError, Job, Result, need
from benchmarks.step.meter import timed_steps
from benchmarks.step.ours import LEARNING_RATE, open_bundle
from benchmarks.step.workload import TEMPLATE, model_folder, reward, side_of
from benchmarks.turns.ours import asked
from benchmarks.turns.world import TEXT, picture

SIDES = ("trl", "trl-vllm")
ON_CPU = {"block_size": 32, "kv_cache_memory_bytes": 2**30, "enforce_eager": True}
"""Of vLLM, beside what TRL gives it."""
FORBIDDEN = -100.0
"""On a logit, the most that vLLM takes off."""

TEMPLATE_WITH_TOOLS = (
    "{% for message in messages %}<|im_start|>{{ 'user' if message['role'] == 'tool' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }}{{ call['function']['arguments'] }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_environment(side: int) -> Any:
    """A class of environments that TRL can use: its one tool shows the next screen."""

    class Screens:
        def reset(self, seed: int = 0, **row: Any) -> None:
            """The first screen is in the prompt."""
            del row
            self.seed, self.turn = seed, 0

        def act(self, text: str) -> list[Any]:
            """
            Act on the screen.

            Args:
                text: The action.
            """
            self.turn += 1
            return [{"type": "image", "image": picture(self.seed, self.turn, text, side)}, {"type": "text", "text": TEXT}]

    return Screens


def dataset_of(job: Job, folder: Path) -> Any:
    """A row for each step: the first screen, and the seed of the episode."""
    from datasets import Dataset, Image

    from vlmrl.data.encode import messages
    from vlmrl.types import MediaRef

    settings, cell = job["settings"], job["cell"]
    text = messages(asked(MediaRef(kind="image", path="s.png")), TEMPLATE)[0]["content"][-1]["text"]
    files: list[str] = []
    for n in range(settings["warmup"] + settings["steps"]):
        files.append(str(folder / f"{n}.png"))
        picture(n, 0, "", side_of(cell["screen"]) // 28).save(files[-1])
    rows = {"prompt": [[{"role": "user", "content": text}] for _ in files], "image": files, "seed": list(range(len(files)))}
    return Dataset.from_dict(rows).cast_column("image", Image())


def episode_reward(completions: list[Any], **kwargs: Any) -> Any:
    """That of `ours`, of the last answer: trivial and not constant."""
    del kwargs
    return reward([_said(one[-1]) for one in completions])


def _said(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def make_trainer(job: Job, out: Path) -> Any:
    from transformers import AutoProcessor
    from trl import GRPOConfig, GRPOTrainer

    settings, cell = job["settings"], job["cell"]
    path = str(model_folder(settings, cell["vocabulary"]))
    processor = AutoProcessor.from_pretrained(path)
    processor.chat_template = processor.tokenizer.chat_template = TEMPLATE_WITH_TOOLS
    processor.tokenizer.response_schema = {"type": "object"}  # nothing is parsed by it, and TRL wants one
    args = GRPOConfig(
        output_dir=str(out),
        use_cpu=settings["device"] == "cpu",
        bf16=settings["dtype"] == "bfloat16",
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        per_device_train_batch_size=cell["group"],
        gradient_accumulation_steps=1,
        num_generations=cell["group"],
        max_completion_length=2**16,
        max_tool_calling_iterations=cell["turns"] - 1,
        max_steps=settings["warmup"] + settings["steps"],
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="grpo",
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **sampling(job, open_bundle(path).forbidden_ids),
    )
    return GRPOTrainer(
        model=path,
        processing_class=processor,
        reward_funcs=episode_reward,
        args=args,
        train_dataset=dataset_of(job, out),
        environment_factory=make_environment(side_of(cell["screen"]) // 28),
    )


def sampling(job: Job, forbidden: Sequence[int]) -> dict[str, Any]:
    """Options of the rollout: answers of one length, by transformers or by vLLM."""
    cell = job["cell"]
    if job["side"] == "trl":
        return {"generation_kwargs": {"suppress_tokens": list(forbidden), "max_new_tokens": cell["completion"]}}
    bias = dict.fromkeys(forbidden, FORBIDDEN)
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 1024 + cell["turns"] * (cell["screen"] + cell["completion"] + 64),
        "vllm_importance_sampling_correction": False,
        "generation_kwargs": {"max_tokens": cell["completion"], "ignore_eos": True, "logit_bias": bias, "detokenize": False},
    }


@contextmanager
def patched(job: Job) -> Iterator[None]:
    """TRL with what is ours (see above).

    Raises:
        BenchmarkError: vLLM was built for another device.
    """
    where = "trl.generation.vllm_generation"
    with mock.patch("trl.trainer.grpo_trainer.parse_response", always_acts):
        if job["side"] == "trl":
            yield
            return
        from vlmrl.extras.vllm.engine import platform

        built, device = platform(), job["settings"]["device"]  # it sets vLLM's variables, so it comes before TRL's import of vLLM
        if built != device:
            raise BenchmarkError(
                f"the vLLM of this environment was built for {built} and not for {device}; leave trl-vllm out with --sides"
            )
        from trl.generation.vllm_generation import VLLMGeneration

        sync = VLLMGeneration.sync_weights
        with (
            mock.patch(f"{where}.LLM", llm_of(job["settings"])),
            mock.patch(f"{where}.VLLMGeneration.sync_weights", packing(sync) if device == "cpu" else sync),
        ):
            yield


def llm_of(settings: dict[str, Any]) -> Any:
    """vLLM's `LLM` with our options, which takes TRL's prompts and counts what it reads."""
    from vllm import LLM

    options = {"dtype": settings["dtype"]} | (ON_CPU if settings["device"] == "cpu" else {})

    class Reader(LLM):
        def __init__(self, **given: Any):
            super().__init__(**given, **options)
            self.reads: list[int] = []
            """Tokens that each call has read: those of the prompts that were not in the prefix cache."""

        def generate(self, prompts: Sequence[dict[str, Any]], **given: Any) -> Any:
            pad = self.llm_engine.model_config.hf_config.image_token_id
            asked = [one | {"prompt_token_ids": one_place(one["prompt_token_ids"], pad)} for one in prompts]
            outs = super().generate(asked, **given)
            self.reads.append(sum(len(out.prompt_token_ids) - out.num_cached_tokens for out in outs))
            return outs

    return Reader


def one_place(ids: Sequence[int], pad: int) -> list[int]:
    """A prompt with one place for each picture, which are never next to each other."""
    return [token for token, before in zip(ids, itertools.chain([None], ids), strict=False) if token != pad or before != pad]


def packing(sync: Callable[[Any], None]) -> Callable[[Any], None]:
    """TRL's `sync_weights` where vLLM packs the weights anew behind it."""

    def synced(generation: Any) -> None:
        import torch
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

        runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
        with torch.no_grad():
            initialize_layerwise_reload(runner.model)
            sync(generation)
            finalize_layerwise_reload(runner.model, runner.vllm_config.model_config)

    return synced


def always_acts(tokenizer: Any, ids: list[int], **kwargs: Any) -> dict[str, Any]:
    """An answer as a call of the environment's method, in place of `parse_response`."""
    del kwargs
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "act", "arguments": {"text": text}}}],
    }


def measure(job: Job) -> Result:
    """What `ours.measure` gives, of TRL."""
    need("trl", "--sides anew kept")
    need("datasets", "--sides anew kept")
    import torch

    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    cell = job["cell"]
    with tempfile.TemporaryDirectory() as out, patched(job):
        threads, set_threads = torch.get_num_threads(), torch.set_num_threads
        trainer = make_trainer(job, Path(out))
        set_threads(threads)  # vLLM's worker may have changed it for everybody
        measured = timed_steps(trainer, job["settings"], "_generate", lambda made: made[:3], trainer.train)
    prompts, answers, masks = measured.pop("kept")
    sampled = sum(map(sum, masks))
    played = cell["group"] * cell["turns"]
    observed = sum(map(len, answers)) - sampled
    observations = played - cell["group"]
    if job["side"] == "trl-vllm":
        # of the last step; with the end tokens that `between_tokens` has too
        measured["read_tokens"] = sum(trainer.vllm_generation.llm.reads[-cell["turns"] :]) + observations
    return measured | {
        "prompt_tokens": len(prompts[0]),
        # ours begin with the end token that an answer which was cut off lacks
        "between_tokens": observed // observations + 1,
        "completion_tokens": sampled / played,
        "turns_played": float(played),
        "answers": cell["group"],
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }
