"""A trainer of one file, on a tiny Qwen2.5-VL, that does right by pixels or has one of the twelve faults of `extras.pixels` built in."""

from __future__ import annotations

import copy
import functools
import warnings
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image, ImageOps

from vlmrl.extras.pixels.job import RATE, Answer, Job, Row, Trained, spread

SIZE = 14


@functools.cache
def loaded(folder: str) -> tuple[Any, Any]:
    """Processor and model of a folder; nobody trains this one."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    return AutoProcessor.from_pretrained(folder), AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)


class Naive:
    """Without a fault it refuses what it cannot train right, and says why."""

    name = "naive"

    def __init__(self, fault: str | None = None, *, warns: str | None = None, blind: bool = False):
        """`fault` is built in. `warns`: what it says when it meets pixels that were lost, before it goes on without them."""
        self.fault, self.warns, self.blind = fault, warns, blind

    def version(self) -> str:
        return "0"

    def lacks(self, fault: str) -> str | None:
        return "has no sound" if fault == "sound" else None

    def train(self, job: Job) -> Trained:
        self.processor, start = loaded(job.model)
        self.model = copy.deepcopy(start)
        self.kept: dict[str, Any] = {}
        optimizer, trained = torch.optim.AdamW(self.model.parameters(), lr=RATE), Trained()
        random = torch.Generator().manual_seed(0)
        for step in range(job.steps):
            self.step = step
            weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()} if step else None
            losses = []
            for number, row in enumerate(job.rows):
                lost = number * job.ranks // len(job.rows) in job.lost
                prompt, answers = self.roll_out(row, job, random)
                rewards = torch.tensor(spread([self.processor.tokenizer.decode(ids) for ids in answers]))
                for ids, reward in zip(answers, rewards, strict=True):
                    logp = self.logp(row, job, prompt, ids, train=True, lost=lost)
                    losses.append(-(logp.sum() * (reward - rewards.mean())))
                    answer = Answer(prompt=tuple(prompt), ids=tuple(ids), logp=tuple(logp.detach().tolist()), step=step, weights=weights)
                    trained.answers.append(answer)
            optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            optimizer.step()
        return trained

    def roll_out(self, row: Row, job: Job, random: torch.Generator) -> tuple[list[int], list[list[int]]]:
        pad = f"<|{row.kind}_pad|>"
        with torch.no_grad():
            grids = self.features(row, job, train=False)[1]
        text = "".join(f"<|vision_start|>{pad * (int(grid.prod()) // 4)}<|vision_end|>" for grid in grids) + row.text
        if pad in row.text and self.fault != "expanded_twice":
            raise ValueError(f"row '{row.word}': its text holds placeholders")
        asked = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        prompt = self.processor.tokenizer(asked, add_special_tokens=False)["input_ids"]
        if job.most_prompt_tokens is not None and len(prompt) > job.most_prompt_tokens:
            if self.fault != "cut":
                raise ValueError(f"row '{row.word}': the prompt is longer than {job.most_prompt_tokens} tokens")
            prompt = prompt[-job.most_prompt_tokens :]
        answers = []
        for _ in range(job.group):
            ids: list[int] = []
            while len(ids) < job.answer_tokens:
                with torch.no_grad():
                    logits = self.logits(row, job, prompt, ids, train=False, lost=False)[-1]
                if self.fault != "sampled":
                    logits[[self.model.config.image_token_id, self.model.config.video_token_id]] = float("-inf")
                ids.append(int(torch.multinomial(logits.softmax(-1), 1, generator=random)))
            answers.append(ids)
        return prompt, answers

    def logp(self, row: Row, job: Job, prompt: list[int], ids: list[int], *, train: bool, lost: bool) -> torch.Tensor:
        logits = self.logits(row, job, prompt, ids[:-1], train=train, lost=lost)[len(prompt) - 1 :]
        return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]

    def logits(self, row: Row, job: Job, prompt: list[int], ids: list[int], *, train: bool, lost: bool) -> torch.Tensor:
        """float32 [tokens, vocabulary] behind every token of prompt and answer."""
        core, all_ids = self.model.model, torch.tensor([[*prompt, *ids]])
        features, grids, seconds = self.features(row, job, train=train)
        if lost:
            if self.warns is not None:
                warnings.warn(self.warns, stacklevel=1)
            elif self.fault not in ("dropped", "one_rank"):
                raise ValueError(f"row '{row.word}': placeholders without pixels")
            features = []
        if self.fault == "expanded_twice":
            features, grids = features * 2, grids * 2
        here = torch.ones_like(all_ids[0], dtype=torch.bool) if self.fault == "sampled" else torch.arange(all_ids.shape[1]) < len(prompt)
        config = self.model.config
        columns = (here & (all_ids[0] == (config.image_token_id if row.kind == "image" else config.video_token_id))).nonzero()[:, 0]
        embeds = core.get_input_embeddings()(all_ids)
        positions = None
        if features and len(columns):
            flat = torch.cat(features)
            if not self.blind:
                embeds = embeds.index_copy(1, columns, flat[torch.arange(len(columns)) % len(flat)][None])
            kinds = torch.zeros_like(all_ids)
            first = columns[: len(flat)]
            kinds[0, first] = 1 if row.kind == "image" else 2
            grid = torch.stack(grids)
            of_video = {"video_grid_thw": grid, "second_per_grid_ts": torch.tensor([seconds])}
            of_kind = {"image_grid_thw": grid} if row.kind == "image" else of_video
            positions, _ = core.get_rope_index(all_ids, kinds, **of_kind)
        hidden = core.language_model(inputs_embeds=embeds, position_ids=positions, use_cache=False).last_hidden_state[0]
        return self.model.lm_head(hidden)

    def features(self, row: Row, job: Job, *, train: bool) -> tuple[list[torch.Tensor], list[torch.Tensor], float]:
        """Of each medium of a row: features and grid; seconds between temporal steps."""
        if self.fault == "stale" and self.step > 0:
            return self.kept[row.word]
        out, grids, seconds = [], [], 1.0
        for path in reversed(row.media) if self.fault == "order" else row.media:
            if row.kind == "video":
                frames, seconds = self.frames(path, job.fps)
                tensor = torch.from_numpy(frames).permute(0, 3, 1, 2)
                cut = self.processor.video_processor(videos=[tensor], do_sample_frames=False, return_tensors="pt")
                patches, grid, call = cut["pixel_values_videos"], cut["video_grid_thw"], self.model.model.get_video_features
            else:
                picture = self.picture(path)
                cut = self.processor.image_processor(images=[picture], return_tensors="pt")
                if self.fault == "resized" and train:
                    height, width = (int(n) * SIZE for n in cut["image_grid_thw"][0, 1:])
                    small = picture.resize((width, height), Image.Resampling.NEAREST)
                    cut = self.processor.image_processor(images=[small], do_resize=False, return_tensors="pt")
                patches, grid, call = cut["pixel_values"], cut["image_grid_thw"], self.model.model.get_image_features
            out.append(torch.cat(list(call(patches, grid, return_dict=True).pooler_output)))
            grids.append(grid[0])
        if self.fault == "frame_times":
            seconds = 1.0
        found = (out, grids, seconds)
        self.kept[row.word] = ([one.detach() for one in out], grids, seconds)
        return found

    def picture(self, path: str) -> Image.Image:
        with Image.open(path) as image:
            image.load()
            upright = image if self.fault == "exif" else ImageOps.exif_transpose(image)
        if upright.mode == "RGBA" and self.fault != "alpha":
            upright = Image.alpha_composite(Image.new("RGBA", upright.size, (255, 255, 255, 255)), upright)
        return upright.convert("RGB")

    def frames(self, path: str, fps: float) -> tuple[np.ndarray, float]:
        """Frames on screen every 1 / fps seconds, and seconds between temporal steps."""
        with av.open(str(Path(path))) as container:
            found = [(float(frame.time or 0), frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
            duration = float(container.duration or 0) / 1e6
        count = round(duration * fps)
        if self.fault == "variable_rate":
            places = [round(n * (len(found) - 1) / (count - 1)) for n in range(count)]
        else:
            places = [max(place for place, (time, _) in enumerate(found) if time <= n / fps + 1e-3) for n in range(count)]
        return np.stack([found[place][1] for place in places]), 2 / fps
