"""The Qwen-VL families that have code of their own here: native resolution, M-RoPE, placeholders between `<|vision_start|>` and its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn import Linear

from vlmrl.errors import ConfigError
from vlmrl.families.base import Tokens
from vlmrl.types import Part

LANGUAGE_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a Qwen decoder layer."""
_CONTROL = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
_NEEDED = ("<|image_pad|>", "<|video_pad|>", "<|im_end|>")
_ENDS = ("<|im_end|>", "<|endoftext|>")


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenVL:
    """A Qwen-VL model type (`families.base.Family`)."""

    name: str
    choice: str = "qwen_vl"
    own_code: bool = True
    time_scaled: bool = False
    """Temporal positions of a video run in seconds instead of steps."""
    step_times: bool = False
    """The time is written before each temporal step of a video, and the step has a span and positions of its own."""

    def tokens(self, processor: Any, path: str) -> Tokens:
        """Read control tokens and ends by name.

        Raises:
            ConfigError: the tokenizer lacks one that is needed.
        """
        tokenizer = processor.tokenizer
        vocabulary = tokenizer.get_vocab()
        missing = [token for token in _NEEDED if token not in vocabulary]
        if missing:
            raise ConfigError(f"model.path: the tokenizer of '{path}' lacks {', '.join(missing)}; a Qwen-VL-class model is needed")
        control = [vocabulary[token] for token in _CONTROL if token in vocabulary]
        return Tokens(
            pad_ids={"image": vocabulary["<|image_pad|>"], "video": vocabulary["<|video_pad|>"]},
            special_ids=frozenset(int(i) for i in tokenizer.all_special_ids) | set(control),
            forbidden_ids=tuple(sorted(control)),
            end_ids=tuple(vocabulary[token] for token in _ENDS if token in vocabulary),
        )

    def cap_tiles(self, processor: Any, most: int, path: str) -> None:
        """Pictures are never cut.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"media.max_tiles: '{path}' is a '{self.name}' model, which takes whole pictures in any size; leave it out, "
            "media.max_pixels bounds them"
        )

    def adaptable(self, model: Any) -> Sequence[str]:
        """List the linear layers below the language model, whatever stands around it."""
        return [name for name, module in model.named_modules() if isinstance(module, Linear) and ".language_model." in f".{name}"]

    def part_of(self, name: str) -> Part:
        """See `part_of`."""
        return part_of(name)


def part_of(name: str) -> Part:
    """Name the part of the model that a parameter of this name belongs to: `vision` is the tower without its mergers, `projector` the
    mergers (with those of deepstack features), `language` the decoder with embeddings and head."""
    if not in_tower(name):
        return "language"
    return "projector" if ".merger." in name or ".deepstack_merger_list." in name else "vision"


def in_tower(name: str) -> bool:
    """Check whether a module of this name belongs to the vision tower or its mergers."""
    # the dot in front: a name may begin with the tower itself
    return ".visual." in f".{name}"
