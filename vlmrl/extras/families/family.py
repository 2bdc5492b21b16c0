"""A family without code of ours: training knows of it what its config, its generation config and its own processor say."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.extras.families import admission, generic, layouts, probe, routing, tiles
from vlmrl.extras.families.engine_fork import ForkEngine
from vlmrl.extras.families.generic import Message
from vlmrl.extras.families.scribe import Scribe
from vlmrl.extras.families.training import LAYOUTS
from vlmrl.families.base import Tokens
from vlmrl.families.registry import read_json
from vlmrl.families.report import report_of
from vlmrl.policy.found import located
from vlmrl.policy.model import Policy, ProcessorBundle
from vlmrl.policy.pack import PositionSpec
from vlmrl.policy.vision import VisionCache
from vlmrl.types import Part


@dataclass(frozen=True, kw_only=True)
class GenericFamily:
    """Any model type that transformers has classes for (`policy.foreign.ForeignFamily`)."""

    name: str
    config: Any
    generation: Any
    """Its generation config; None where the folder has none."""
    path: str = ""
    """Folder or hub id."""
    choice: str = "generic"
    own_code: bool = False
    time_scaled: bool = False
    step_times: bool = True

    def tokens(self, processor: Any, path: str) -> Tokens:
        """Ids by config and processor, never by name.

        Raises:
            ConfigError: nothing says which token ends an answer, or which stands for a picture.
        """
        pads = generic.placeholders(self.config)
        ends = self._ends(processor)
        if not ends or not pads:
            lacks = "an end of answers" if not ends else "a placeholder of pictures"
            raise ConfigError(f"model.path: neither config nor tokenizer of '{path}' names {lacks}; vlmrl check {path} says more")
        forbidden = probe.forbidden_ids(processor, pads, self.config.get_text_config().vocab_size)
        special = {int(i) for i in processor.tokenizer.all_special_ids} | set(forbidden)
        return Tokens(
            pad_ids=pads, special_ids=frozenset(special), forbidden_ids=tuple(i for i in forbidden if i not in ends), end_ids=ends
        )

    def _ends(self, processor: Any) -> tuple[int, ...]:
        """Ends of an answer; first the one that the chat template writes behind an answer, which is what training teaches."""
        ends = probe.ends_of((self.generation, self.config.get_text_config(), processor.tokenizer))
        word = "answer"
        asked: list[Message] = [
            {"role": role, "content": [{"type": "text", "text": text}]} for role, text in (("user", "question"), ("assistant", word))
        ]
        text = str(processor.apply_chat_template(list(asked), tokenize=False))
        behind = processor.tokenizer(text.rpartition(word)[2], add_special_tokens=False)["input_ids"]
        first = next((int(i) for i in behind if int(i) in ends), None)
        return ends if first is None else (first, *(i for i in ends if i != first))

    def cap_tiles(self, processor: Any, most: int, path: str) -> None:
        """By what its image processor calls it (`families.tiles`)."""
        tiles.cap(processor, most, path)

    def adaptable(self, model: Any) -> Sequence[str]:
        """By the layers of its decoder, whatever they are called."""
        return probe.adaptable(model)

    def part_of(self, name: str) -> Part:
        """By the names that transformers gives to modules."""
        return probe.part_of(name)

    def bundle(self, processor: Any, path: str) -> ProcessorBundle:
        """What encoding needs of the family, from its processor.

        Raises:
            ConfigError: there is no processor of pictures, the files do not say what ends an answer, or a report of `vlmrl check` beside
                them cannot be read.
        """
        if not hasattr(processor, "image_processor"):
            raise ConfigError(f"model.path: '{path}' has no image processor; a vision-language model is needed")
        tokens = self.tokens(processor, path)
        digest = hashlib.sha256(f"{self.choice} {self.name} {type(processor).__name__}".encode())
        for name in ("image_processor", "video_processor"):
            part = getattr(processor, name, None)
            # the class too: which one loads depends on the machine, and they round differently
            digest.update(b"" if part is None else f"{type(part).__name__} {part.to_json_string()}".encode())
        for text in (processor.tokenizer.backend_tokenizer.to_str(), str(processor.chat_template), str(tokens)):
            digest.update(text.encode())
        lock, report = threading.Lock(), report_of(path)
        return ProcessorBundle(
            family=self,
            processor=processor,
            tokenizer=processor.tokenizer,
            patch_size=1,
            merge_size=1,
            temporal_patch_size=1,
            pad_ids=dict(tokens.pad_ids),
            special_ids=tokens.special_ids,
            forbidden_ids=tokens.forbidden_ids,
            end_ids=tokens.end_ids,
            fingerprint=digest.hexdigest()[:16],
            lock=lock,
            step_times=True,
            writer=Scribe(processor=processor, pads=dict(tokens.pad_ids), lock=lock),
            layouts=() if report is None else report.admitted(),
        )

    def policy(self, model: Any, bundle: ProcessorBundle, *, device: torch.device, compute: torch.dtype) -> Policy:
        """A loaded model as a policy."""
        tiles.follow(model.config, bundle.processor)
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # what the kit tries; the default knows fewer types
        return Policy(
            model=model,
            bundle=bundle,
            positions=PositionSpec(merge_size=1, tokens_per_second=None),
            device=device,
            compute=compute,
            prefix_reason="the model's own masks",
            subject=layouts.prepare(model),
            layouts=LAYOUTS,
        )

    def engine(self, policy: Policy, vision: VisionCache, *, max_num_seqs: int) -> ForkEngine:
        """Forks the cache of a prompt to its answers."""
        return ForkEngine(policy, vision, max_num_seqs=max_num_seqs)

    def unproven(self, cfg: Config) -> list[str]:
        """What a recipe asks for and this family is not proven with, each with what to do."""
        return admission.unproven(
            cfg,
            name=self.name,
            choice=self.choice,
            lacking=partial(admission.reported, self.path),
            unrouted=partial(routing.refused_of, self.config),
        )

    def training_layout(self, policy: Policy, asked: str, *, recomputes: bool) -> tuple[str, str]:
        """(the layout that trains, why it is not the one asked for or nothing), as the report beside the model admits."""
        return admission.training_layout(policy, asked, recomputes=recomputes)


def given(model_type: str, path: str, revision: str | None = None) -> GenericFamily:
    """Any model type, by what its files say. Raises ConfigError where they cannot be read."""
    from transformers import AutoConfig, GenerationConfig
    from transformers.utils.hub import cached_file

    where = located(path, revision)
    try:
        config = AutoConfig.from_pretrained(where, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: cannot load the config of '{path}': {str(error).strip().splitlines()[0]}") from error
    generation: Any = None
    with contextlib.suppress(OSError, ValueError):  # many folders have none; the config then says what ends an answer
        file = cached_file(where, "generation_config.json", revision=revision)
        generation = None if file is None else GenerationConfig.from_dict(read_json(Path(file)))
    return GenericFamily(name=model_type, config=config, generation=generation, path=path)
