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
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import Job, Result, need
from benchmarks.step.meter import timed_steps
from benchmarks.step.ours import LEARNING_RATE, open_bundle
from benchmarks.step.workload import TEMPLATE, model_folder, reward, side_of
from benchmarks.turns.ours import asked
from benchmarks.turns.world import TEXT, picture

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


def episode_reward(completions: list[Any], **kwargs: Any) -> list[float]:
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
        generation_kwargs={"suppress_tokens": list(open_bundle(path).forbidden_ids), "max_new_tokens": cell["completion"]},
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=path,
        processing_class=processor,
        reward_funcs=episode_reward,
        args=args,
        train_dataset=dataset_of(job, out),
        environment_factory=make_environment(side_of(cell["screen"]) // 28),
    )


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
    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    cell = job["cell"]
    with tempfile.TemporaryDirectory() as out, mock.patch("trl.trainer.grpo_trainer.parse_response", always_acts):
        trainer = make_trainer(job, Path(out))
        measured = timed_steps(trainer, job["settings"], "_generate", lambda made: made[:3], trainer.train)
    prompts, answers, masks = measured.pop("kept")
    sampled = sum(map(sum, masks))
    played = cell["group"] * cell["turns"]
    observed = sum(map(len, answers)) - sampled
    return measured | {
        "prompt_tokens": len(prompts[0]),
        # ours begin with the end token that an answer which was cut off lacks
        "between_tokens": observed // (played - cell["group"]) + 1,
        "completion_tokens": sampled / played,
        "turns_played": float(played),
        "answers": cell["group"],
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }
