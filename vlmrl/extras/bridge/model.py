"""The model object that lmms-eval generates with: a thin shell around one of our models.

Importing this module imports lmms-eval; do it inside `compat.preserved`.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms

from vlmrl import fs
from vlmrl.answers.tags import answer_view
from vlmrl.data.encode import Encoder, instruction
from vlmrl.errors import ConfigError, DataError, MediaError, RowError
from vlmrl.evals.ask.engines import EvalEngine
from vlmrl.evals.ask.models import Model, open_store
from vlmrl.evals.ask.tasks import Task
from vlmrl.extras.bridge import functions
from vlmrl.extras.bridge.compat import strict_pillow
from vlmrl.extras.bridge.conversation import Pictures, encode, read_messages, with_instruction
from vlmrl.extras.bridge.options import Options
from vlmrl.extras.bridge.requests import Answer, Job, Key, cut, read_request
from vlmrl.metrics.text import read_choice
from vlmrl.types import GenerationSettings, Prompt

PADDING = "__padding_only__"
"""Upstream's mark of requests that only keep ranks in step."""
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class _Seat:
    """What is needed to ask under one set of media settings."""

    encoder: Encoder
    engine: EvalEngine


class VlmrlBridge(lmms):
    """A chat model of lmms-eval. Requests of both layouts are answered, in their order, by the prompt path of native evaluation.

    Requests of one task with the same settings are generated for together and apart from others, so a task's answers do not depend on
    which tasks it is run with. `raw` keeps every answer by (task, split, document).
    """

    is_simple = False

    def __init__(
        self, model: Model, *, fingerprint: str, options: Options | None = None, records: Path | None = None, raw: Path | None = None
    ):
        """`fingerprint`: of the weights; `records`: the folder of records that a replaying model reads; `raw`: a file of JSON lines that
        raw answers are added to, for runs that upstream's command line owns."""
        super().__init__()
        self.options = options or Options()
        instruction(self.options.answer_format, "exact_text")  # an unknown answer format is an error now and not after loading everything
        self.fingerprint = fingerprint
        self.raw: dict[Key, list[Answer]] = {}
        self.raw_file = raw
        self._records = records or Path(".")
        self._model = [model]  # a list: upstream deletes attributes that are modules before it scores
        self._seats: dict[str, _Seat] = {}
        self._temporary = tempfile.TemporaryDirectory(prefix="vlmrl-pictures-")
        self._pictures = Pictures(Path(self._temporary.name))

    def __str__(self) -> str:
        """Weights and settings: upstream's response cache takes models with equal texts for the same model."""
        options = asdict(self.options) | {"media": self.options.media.model_dump(), "choice_tasks": sorted(self.options.choice_tasks)}
        return f"vlmrl:{self.fingerprint}:{json.dumps(options, sort_keys=True)}"

    def clean(self) -> None:
        """Nothing: upstream's own deletes the model and empties the trainer's caches."""

    @property
    def device(self) -> Any:
        """Where upstream puts the few numbers that ranks exchange."""
        return "cpu"

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("vlmrl answers generation tasks only; choose the task's generate_until variant")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        raise NotImplementedError("vlmrl answers single-round generation tasks only")

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:  # type: ignore[override]
        """The answer to every request, in their order, with token counts.

        Raises:
            DataError: documents that cannot be asked, with reasons.
            ConfigError: settings that our engines do not have.
        """
        with strict_pillow():
            jobs = [read_request(request.args, self.task_dict) for request in requests]
            prompts = self._prompts({job.key: job for job in jobs}.values())
            padding = [bool(request.metadata.get(PADDING)) for request in requests]
            samples = Counter(job.key for job, pads in zip(jobs, padding, strict=True) if not pads)
            answers = self._answers(jobs, prompts, samples)
        out: list[GenerationResult] = []
        for job, answer, pads in zip(jobs, self._in_order(jobs, answers), padding, strict=True):
            counts = TokenCounts(input_tokens=len(answer.prompt.ids), output_tokens=answer.generation.n_out)
            out.append(GenerationResult(text=answer.shown, token_counts=counts))
            if not pads:
                self.raw.setdefault(job.key, []).append(answer)
        if self.raw_file is not None:
            fs.append(self.raw_file, b"".join(_line(key, k, a) for key, own in answers.items() for k, a in enumerate(own)))
        return out

    def _prompts(self, jobs: Collection[Job]) -> dict[Key, Prompt]:
        prompts: dict[Key, Prompt] = {}
        problems: list[str] = []
        for job in jobs:
            where = f"task '{job.key[0]}', document {job.key[2]}"
            try:
                prompts[job.key] = self._prompt(job, where)
            except (MediaError, RowError) as error:
                problems.append(f"{where}: {error}")
        if problems:
            more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            listing = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
            raise DataError(f"{len(problems)} of {len(jobs)} documents cannot be asked; fix or remove them{listing}{more}")
        return prompts

    def _prompt(self, job: Job, where: str) -> Prompt:
        turns = read_messages(job.messages, self._pictures, where)
        ours = functions.is_ours(job.doc)
        if not ours and turns:
            turns = with_instruction(turns, instruction(self.options.answer_format, "exact_text"))
        name = str(job.doc["id"]) if ours else "/".join(map(str, job.key))
        return encode(turns, self._seat(job).encoder, name=name, task=job.key[0], source=where)

    def _seat(self, job: Job) -> _Seat:
        """Encoder and engine for the media settings of a document's task."""
        if functions.is_ours(job.doc):
            task = functions.task_of(job.doc)
        else:
            media, longest = self.options.media, self.options.max_prompt_tokens
            task = Task(
                id=job.key[0],
                source="-",
                answer_format="think",
                answer_type="exact_text",
                max_new_tokens=1,
                media=media,
                max_prompt_tokens=longest,
            )
        key = f"{task.id} {task.max_prompt_tokens} {task.media.model_dump_json()}"
        if key not in self._seats:
            model = self._model[0]
            store = open_store(task, model.bundle)
            encoder = Encoder(
                tokenizer=model.bundle.tokenizer,
                media=store,
                data_root=Path("/"),
                pad_ids=model.bundle.pad_ids,
                special_ids=model.bundle.special_ids,
                writer=model.bundle.writer,
                max_prompt_tokens=task.max_prompt_tokens,
            )
            self._seats[key] = _Seat(encoder=encoder, engine=model.engine(task, store, self._records / f"{task.id}.jsonl"))
        return self._seats[key]

    def _answers(self, jobs: Sequence[Job], prompts: Mapping[Key, Prompt], samples: Mapping[Key, int]) -> dict[Key, list[Answer]]:
        """All answers to every document, generated in batches of one task and one way of generating."""
        groups: dict[tuple[str, GenerationSettings, int], dict[Key, Job]] = {}
        for job in jobs:
            groups.setdefault((job.key[0], job.settings, samples.get(job.key, 1)), {})[job.key] = job
        out: dict[Key, list[Answer]] = {}
        for (_, settings, count), members in groups.items():
            if count > 1 and settings.temperature == 0:
                where = next(iter(members))[0]
                raise ConfigError(f"task '{where}': repeats is {count} at temperature 0, which gives {count} times the same answer")
            waiting = list(members.values())
            for start in range(0, len(waiting), self.options.batch_prompts):
                batch = waiting[start : start + self.options.batch_prompts]
                asked = [prompts[job.key] for job in batch]
                made = self._seat(batch[0]).engine.generate(asked, settings, samples=count, seed=self.options.seed)
                for job, prompt, own in zip(batch, asked, made, strict=True):
                    out[job.key] = [Answer(prompt=prompt, settings=settings, generation=g, shown=self._shown(job, g.text)) for g in own]
        return out

    @staticmethod
    def _in_order(jobs: Sequence[Job], answers: Mapping[Key, Sequence[Answer]]) -> list[Answer]:
        """The answer to each request; the k-th request of a document gets its k-th answer, one more than that (padding) the last."""
        used: Counter[Key] = Counter()
        out: list[Answer] = []
        for job in jobs:
            out.append(answers[job.key][min(used[job.key], len(answers[job.key]) - 1)])
            used[job.key] += 1
        return out

    def _shown(self, job: Job, text: str) -> str:
        if functions.is_ours(job.doc):
            return text
        shown = cut(answer_view(text) if self.options.view == "answer" else text, job.until)
        if job.key[0] in self.options.choice_tasks:
            return read_choice(shown, _options(job.doc)) or shown
        return shown


def _options(doc: Mapping[str, Any]) -> list[str]:
    """The options of a document, where it lists them as texts."""
    for name in ("options", "choices"):
        found = doc.get(name)
        if isinstance(found, list) and found and all(isinstance(option, str) for option in found):
            return found
    return []


def _line(key: Key, k: int, answer: Answer) -> bytes:
    task, split, number = key
    generation = answer.generation
    row = {"task": task, "split": split, "doc_id": number, "k": k, "text": generation.text, "shown": answer.shown}
    row |= {"n_in": len(answer.prompt.ids), "n_out": generation.n_out, "finish": generation.finish}
    return json.dumps(row, sort_keys=True).encode() + b"\n"
