"""The independent reference: log-probs of given ids under given pixels, by transformers' own processor and model, one answer at a time.

Features are put into the placeholders of the prompt and nowhere else; a placeholder inside an answer is read as the token that it is.
Positions are those of transformers (`get_rope_index`), with the seconds between the temporal steps of a video.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vlmrl.compat import ensure_torchvision
from vlmrl.extras.pixels.job import Answer
from vlmrl.types import MediaKind


@dataclass(frozen=True)
class Medium:
    """A medium as the model should see it."""

    kind: MediaKind
    grid: tuple[int, int, int]
    patches: torch.Tensor
    """float32 [t * h * w, dim]."""
    seconds: float = 1.0
    """Video: between two temporal steps."""


class Reference:
    """A model of transformers with its processor, for one folder."""

    def __init__(self, folder: str):
        ensure_torchvision()
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.processor: Any = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
        how: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
        opened = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=False, use_safetensors=True, **how)
        self.model: Any = opened.eval()
        self.start: Mapping[str, torch.Tensor] = {name: value.clone() for name, value in self.model.state_dict().items()}
        config = self.model.config
        self.pads: dict[MediaKind, int] = {"image": config.image_token_id, "video": config.video_token_id}

    def medium(self, frames: np.ndarray, kind: MediaKind, *, seconds: float = 1.0, resize: bool = False) -> Medium:
        """Cut frames uint8 [T, H, W, 3] into patches, by transformers' own processor; sides in multiples of 28 unless it shall `resize`."""
        tensor = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
        if kind == "image":
            out = self.processor.image_processor(images=[tensor[0]], do_resize=resize, return_tensors="pt")
            values, grid = out["pixel_values"], out["image_grid_thw"]
        else:
            out = self.processor.video_processor(videos=[tensor], do_resize=resize, do_sample_frames=False, return_tensors="pt")
            values, grid = out["pixel_values_videos"], out["video_grid_thw"]
        t, h, w = (int(n) for n in grid[0])
        return Medium(kind, (t, h, w), values.float(), seconds)

    def text(self, ids: Sequence[int]) -> str:
        """Turn ids into text, control tokens included."""
        return str(self.processor.tokenizer.decode(list(ids), skip_special_tokens=False))

    @torch.no_grad()
    def logp(self, answer: Answer, media: Sequence[Medium]) -> torch.Tensor | None:
        """Compute log-probs of an answer's ids, with these media in the placeholders of its prompt.

        Returns:
            float32 [tokens of the answer], in nats; None where the prompt has more or fewer placeholders than these media have features.
        """
        self.model.load_state_dict(self.start if answer.weights is None else answer.weights)
        core, ids = self.model.model, torch.tensor([[*answer.prompt, *answer.ids]])
        prompt = torch.arange(ids.shape[1]) < len(answer.prompt)
        embeds = core.get_input_embeddings()(ids)
        kinds = torch.zeros_like(ids)
        for number, kind in enumerate(self.pads, start=1):
            own = [medium for medium in media if medium.kind == kind]
            columns = (prompt & (ids[0] == self.pads[kind])).nonzero()[:, 0]
            features = [self._features(medium) for medium in own]
            if len(columns) != sum(len(one) for one in features):
                return None
            if own:
                embeds[0, columns] = torch.cat(features)
                kinds[0, columns] = number
        positions = None
        if media:
            grids = {kind: torch.tensor([m.grid for m in media if m.kind == kind]) for kind in self.pads}
            seconds = torch.tensor([m.seconds for m in media if m.kind == "video"])
            positions, _ = core.get_rope_index(
                ids, kinds, image_grid_thw=grids["image"], video_grid_thw=grids["video"], second_per_grid_ts=seconds
            )
        hidden = core.language_model(inputs_embeds=embeds, position_ids=positions, use_cache=False).last_hidden_state[0]
        logits = self.model.lm_head(hidden[len(answer.prompt) - 1 : -1]).float()
        if answer.excluded:
            logits[:, list(answer.excluded)] = float("-inf")
        return logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]

    def _features(self, medium: Medium) -> torch.Tensor:
        call = self.model.model.get_image_features if medium.kind == "image" else self.model.model.get_video_features
        return torch.cat(list(call(medium.patches, torch.tensor([medium.grid]), return_dict=True).pooler_output))
