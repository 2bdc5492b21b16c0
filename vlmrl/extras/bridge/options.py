"""Options of an evaluation through lmms-eval: how documents are asked, and what its scorers are shown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from vlmrl.answers.tags import FREE
from vlmrl.config.schema import MediaSection

View = Literal["answer", "raw"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a `model.VlmrlBridge`. Tasks of ours bring media, answer_format and view with them."""

    media: MediaSection = field(default_factory=MediaSection)
    max_prompt_tokens: int = 8192
    answer_format: str = FREE
    """Answer format whose instruction is added to the texts of tasks; by default a text stands as it is."""
    view: View = "answer"
    """What scorers are given: `answer` without thought and tags, or the raw text. Our scorers always read the raw text."""
    choice_tasks: Collection[str] = ()
    """Tasks that are multiple choice: an answer that names one option is shown as its bare letter."""
    batch_prompts: int = 32
    """Prompts generated for at a time."""
    seed: int = 0
    """Of sampled answers."""
