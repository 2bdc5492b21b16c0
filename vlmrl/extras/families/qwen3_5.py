"""Qwen3.5 (dense): pixels, prompts, positions and layouts of Qwen3-VL, with gated delta nets beside full attention.

Prompts are shared in packed rows and their media pass the tower once, in training (`families.delta_net`) and in the rollout engine
(`families.delta_grid`). What was not tried with it is refused by name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.extras.families import admission, delta_net
from vlmrl.extras.families.delta_grid import DeltaGrid
from vlmrl.families.qwen_vl import QwenVL
from vlmrl.policy.attention import NAME, STATES, attach, choose
from vlmrl.policy.model import Policy, ProcessorBundle
from vlmrl.policy.pack import PositionSpec

KERNEL = "sdpa"
LACKING = {
    admission.SHARDS: "or model.family: generic with a report of vlmrl check MODEL, which may admit shards",
    admission.TURNS_OF: "",
    admission.VLLM: "",
}
"""Promise that an option needs -> why it is not kept; nothing: it is."""
TAKEN = ("model.vision_chunk_patches", "media.vision_cache_dir")
"""Options of what is run as that of Qwen3-VL: the tower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaVL(QwenVL):
    """A Qwen-VL model type with gated delta nets (`policy.foreign.ForeignFamily`)."""

    own_code: bool = False

    def bundle(self, processor: Any, path: str) -> ProcessorBundle:
        """Read what encoding needs from the processor that was found at `path`.

        Raises:
            ConfigError: it is that of another family.
        """
        from transformers import Qwen3VLProcessor

        if not isinstance(processor, Qwen3VLProcessor):
            raise ConfigError(
                f"model.path: '{path}' is a '{self.name}' model but its processor is {type(processor).__name__}, which lays out videos in "
                "another way; take both from the same model"
            )
        tokens, images = self.tokens(processor, path), processor.image_processor
        # what decides token ids and pixels: a run goes on only with the same
        digest = hashlib.sha256(processor.tokenizer.backend_tokenizer.to_str().encode())
        for part in (images.to_json_string(), processor.video_processor.to_json_string(), str(processor.chat_template)):
            digest.update(part.encode())
        return ProcessorBundle(
            family=self,
            processor=processor,
            tokenizer=processor.tokenizer,
            patch_size=int(images.patch_size),
            merge_size=int(images.merge_size),
            temporal_patch_size=int(images.temporal_patch_size),
            pad_ids=dict(tokens.pad_ids),
            special_ids=tokens.special_ids,
            forbidden_ids=tokens.forbidden_ids,
            end_ids=tokens.end_ids,
            fingerprint=digest.hexdigest()[:16],
            step_times=self.step_times,
        )

    def policy(self, model: Any, bundle: ProcessorBundle, *, device: torch.device, compute: torch.dtype) -> Policy:
        """Make a policy of a loaded model.

        Raises:
            ConfigError: a layer of its decoder is of a kind that no packed row was tried with.
        """
        from transformers import AttentionInterface, AttentionMaskInterface

        text = model.config.get_text_config()
        layers, linear = delta_net.heed(model), [kind for kind in text.layer_types if kind != "full_attention"]
        if set(linear) - {"linear_attention"} or len(layers) != len(linear) or len(linear) == len(text.layer_types):
            raise ConfigError(
                f"model.path: a '{self.name}' model with layers {', '.join(sorted(set(text.layer_types)))}: it was tried with full "
                "attention beside gated delta nets; model.family: generic takes others"
            )
        attach(model, KERNEL, device=device, compute=compute)
        plain, name = NAME.format(kernel=KERNEL), NAME.format(kernel=KERNEL) + STATES
        # the same attention, under a name that says that the layers beside it heed packed rows too
        AttentionInterface.register(name, AttentionInterface()[plain])
        AttentionMaskInterface.register(name, AttentionMaskInterface()[plain])
        model.set_attn_implementation({"text_config": name, "vision_config": model.config.vision_config._attn_implementation})
        backend, reason = choose("auto", device, compute)
        return Policy(
            model=model,
            bundle=bundle,
            positions=PositionSpec(merge_size=bundle.merge_size, tokens_per_second=None, per_step=self.step_times),
            device=device,
            compute=compute,
            prefix_backend=backend,
            prefix_reason=reason,
            decode_grid=partial(DeltaGrid, kinds=tuple(text.layer_types)),
        )

    def unproven(self, cfg: Config) -> list[str]:
        """List what a recipe asks for and this family is not proven with, each with what to do."""
        return admission.unproven(cfg, name=self.name, choice=self.choice, lacking=lambda promise, **_: LACKING[promise], taken=TAKEN)

    def training_layout(self, policy: Policy, asked: str, *, recomputes: bool) -> tuple[str, str]:
        """Choose the layout that is asked for: all are written out. Returns (layout, no reason against it)."""
        del policy, recomputes
        return asked, ""


QWEN3_5 = DeltaVL(name="qwen3_5", step_times=True)
"""The mixture-of-experts variant is left out: no packed row was tried with a router."""
