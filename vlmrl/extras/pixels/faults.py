"""The twelve faults: where each was seen, what a trainer is given so that it can happen, and what would be right.

Ten are fed through rows that any data set may hold. Two (`dropped`, `one_rank`) no row causes: there the adapter takes the pixels out of
the batch between the rollout and the training forward pass, at the place where its trainer hands one to the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from vlmrl.extras.pixels.feed import CELL, Feed, blocks
from vlmrl.extras.pixels.job import Job, Row
from vlmrl.extras.pixels.reference import Medium, Reference
from vlmrl.types import MediaKind

Reading = Mapping[str, Sequence[Medium]]
"""Word of a row -> its media as the model should see them."""
WIDE, HIGH = 3 * CELL, 2 * CELL
"""Sides of a picture that no trainer has to resize."""
RATE = 8
"""Frames per second of the regular video."""


@dataclass(frozen=True)
class Case:
    """A job, and what is right."""

    job: Job
    readings: Sequence[Reading]
    """Any of these is right, if it is that of all answers."""
    as_rolled_out: bool = False
    """The pixels of the rollout are right, whatever they are; `readings` count where these cannot be seen."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that public threads tell of."""

    key: str
    title: str
    threads: tuple[str, ...]
    """`owner/repository#number`."""
    given: str
    """What the trainer is fed."""
    right: str
    """What it is compared with."""
    names: str
    """Expression that a message which names the fault matches."""
    make: Callable[[Feed, Reference], Case]
    kind: MediaKind = "image"


def plain(feed: Feed, reference: Reference, **how: Any) -> Case:
    """Make a job with one picture and nothing wrong with it. `how`: fields of `Job`."""
    pixels = blocks(1, WIDE, HIGH)
    row = Row(word="amber", text="Say what the amber card shows.", media=(feed.save("one.png", pixels[0]),))
    return Case(feed.job(row, **how), [{"amber": [reference.medium(pixels, "image")]}])


def plain_video(feed: Feed, reference: Reference, fps: float = 2.0) -> Case:
    """Make a job with a video of a constant rate, two seconds long."""
    frames = blocks(2, 2 * CELL, 2 * CELL, 2 * RATE)
    path = feed.video("one.mp4", frames, [n / RATE for n in range(len(frames))], 1 / RATE)
    row = Row(word="amber", text="Say what the amber clip shows.", media=(path,), kind="video")
    shown = reference.medium(frames[:: round(RATE / fps)], "video", seconds=2 / fps)
    return Case(feed.job(row, fps=fps), [{"amber": [shown]}])


def sampled(feed: Feed, reference: Reference) -> Case:
    return plain(feed, reference, wants_placeholders=True)


def expanded_twice(feed: Feed, reference: Reference) -> Case:
    case = plain(feed, reference)
    (row,) = case.job.rows
    tokens = len(case.readings[0]["amber"][0].patches) // 4
    text = f"<|vision_start|>{'<|image_pad|>' * tokens}<|vision_end|>{row.text}"
    return dataclasses.replace(case, job=dataclasses.replace(case.job, rows=(dataclasses.replace(row, text=text),)))


def dropped(feed: Feed, reference: Reference) -> Case:
    return plain(feed, reference, lost=(0,))


def cut(feed: Feed, reference: Reference) -> Case:
    case = plain(feed, reference, most_prompt_tokens=64)
    (row,) = case.job.rows
    text = f"{row.text} {' '.join(f'Look at part {n} of it.' for n in range(60))}"
    return dataclasses.replace(case, job=dataclasses.replace(case.job, rows=(dataclasses.replace(row, text=text),)))


def resized(feed: Feed, reference: Reference) -> Case:
    pixels = blocks(3, 131, 97)
    row = Row(word="amber", text="Say what the amber card shows.", media=(feed.save("two.png", pixels[0]),))
    return Case(feed.job(row), [{"amber": [reference.medium(pixels, "image", resize=True)]}], as_rolled_out=True)


def frame_times(feed: Feed, reference: Reference) -> Case:
    return plain_video(feed, reference, fps=4.0)


def stale(feed: Feed, reference: Reference) -> Case:
    return plain(feed, reference, steps=2)


def one_rank(feed: Feed, reference: Reference) -> Case:
    pixels = {word: blocks(seed, WIDE, HIGH) for seed, word in enumerate(("amber", "birch"), start=4)}
    rows = [
        Row(word=word, text=f"Say what the {word} card shows.", media=(feed.save(f"six-{word}.png", one[0]),))
        for word, one in pixels.items()
    ]
    right = {word: [reference.medium(one, "image")] for word, one in pixels.items()}
    return Case(feed.job(*rows, ranks=2, lost=(1,)), [right])


def order(feed: Feed, reference: Reference) -> Case:
    first, second, third = (blocks(seed, WIDE, HIGH) for seed in (6, 7, 8))
    files = [feed.save(f"three-{n}.png", one[0]) for n, one in enumerate((first, second, third))]
    two = Row(word="amber", text="Say how the amber cards differ.", media=(files[0], files[1]))
    one = Row(word="birch", text="Say what the birch card shows.", media=(files[2],))
    shown = {"amber": [reference.medium(pixels, "image") for pixels in (first, second)], "birch": [reference.medium(third, "image")]}
    return Case(feed.job(two, one), [shown])


def exif(feed: Feed, reference: Reference) -> Case:
    picture = Image.fromarray(blocks(9, WIDE, HIGH)[0])
    tags = Image.Exif()
    tags[0x0112] = 6  # a camera that was held upright: the viewer turns the file by 90 degrees clockwise
    path = feed.save("four.jpg", picture, exif=tags, quality=100, subsampling=0)
    with Image.open(path) as stored:
        upright = np.array(ImageOps.exif_transpose(stored).convert("RGB"))
    row = Row(word="amber", text="Say what the amber card shows.", media=(path,))
    return Case(feed.job(row), [{"amber": [reference.medium(upright[None], "image")]}])


def alpha(feed: Feed, reference: Reference) -> Case:
    pixels, hidden = blocks(10, WIDE, HIGH)[0], (blocks(11, WIDE, HIGH)[0], blocks(12, WIDE, HIGH)[0])
    seen = np.arange(WIDE)[None, :].repeat(HIGH, 0) < CELL  # the left third is opaque, the rest cannot be seen
    rows, words = list[Row](), ("amber", "birch")
    for word, below in zip(words, hidden, strict=True):
        rgba = np.dstack([np.where(seen[..., None], pixels, below), np.where(seen, 255, 0)]).astype(np.uint8)
        rows.append(Row(word=word, text=f"Say what the {word} card shows.", media=(feed.save(f"five-{word}.png", rgba),)))
    grounds = [np.where(seen[..., None], pixels, level).astype(np.uint8) for level in (255, 0)]
    return Case(feed.job(*rows), [{word: [reference.medium(ground[None], "image")] for word in words} for ground in grounds])


def variable_rate(feed: Feed, reference: Reference) -> Case:
    times = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    frames = blocks(13, 2 * CELL, 2 * CELL, len(times))
    row = Row(word="amber", text="Say what the amber clip shows.", media=(feed.video("two.mp4", frames, times, 0.5),), kind="video")
    shown = frames[[times.index(n / 2) for n in range(8)]]  # on screen at 0, 0.5, 1 ... 3.5 seconds
    return Case(feed.job(row, fps=2.0), [{"amber": [reference.medium(shown, "video", seconds=1.0)]}])


_OF_THE_FILE = "log-probs of the same answer with the pixels of the file"
FAULTS: tuple[Fault, ...] = (
    Fault(
        key="sampled",
        title="Placeholders that the policy sampled",
        threads=("verl-project/verl#7038",),
        given="a model that wants an image or a video placeholder at every token",
        right="log-probs with the picture in the placeholders of the prompt alone; placeholders among the tokens of the loss are counted",
        names=r"placeholder|image.?token|pad.?token|features",
        make=sampled,
    ),
    Fault(
        key="expanded_twice",
        title="A prompt expanded twice",
        threads=("huggingface/trl#6294", "OpenRLHF/OpenRLHF#1220", "PrimeIntellect-ai/prime-rl#1739"),
        given="a row whose text holds the placeholders of its picture already, as many as the picture has tokens",
        right=f"{_OF_THE_FILE}, in as many placeholders as it has tokens",
        names=r"placeholder|control token|image.?token|features|<image>|<\|image_pad\|>",
        make=expanded_twice,
    ),
    Fault(
        key="dropped",
        title="Tensors dropped between rollout and trainer",
        threads=("PrimeIntellect-ai/prime-rl#2786", "microsoft/agent-lightning#559", "unslothai/unsloth#11031"),
        given="a batch whose pixel tensors are taken out behind the rollout",
        right=_OF_THE_FILE,
        names=r"placeholder|pixel|image|features|visual|media",
        make=dropped,
    ),
    Fault(
        key="cut",
        title="Images cut with the prompt",
        threads=("huggingface/trl#5904", "huggingface/trl#5881", "TIGER-AI-Lab/verl-tool#145"),
        given="a prompt that is longer than the trainer's bound, its picture in front",
        right=f"{_OF_THE_FILE} and the whole prompt",
        names=r"overlong|too long|longer than|max_prompt|truncat|features",
        make=cut,
    ),
    Fault(
        key="resized",
        title="Another resize in rollout than in training",
        threads=("huggingface/trl#6401", "vllm-project/vllm#52874"),
        given="a picture of 131 x 97 pixels, which no patch divides",
        right="the patches that the tower was given in the rollout, and log-probs with them",
        names=r"pixel|resize|grid|features",
        make=resized,
    ),
    Fault(
        key="frame_times",
        title="Frame times lost",
        threads=("modelscope/ms-swift#9668", "hiyouga/LlamaFactory#10335"),
        given="a video shown at 4 frames per second, 0.5 seconds between temporal steps",
        right="log-probs with positions of 0.5 seconds; where the time is lost they are of 1 second",
        names=r"second|fps|time",
        make=frame_times,
        kind="video",
    ),
    Fault(
        key="stale",
        title="Features stale after an update of the tower",
        threads=("huggingface/trl#7198", "verl-project/verl#6523", "vllm-project/vllm#44910"),
        given="the same picture in two steps, the tower trained in the first",
        right="log-probs of the second step with its weights; those that the rollout reports too",
        names=r"stale|version|features|weights",
        make=stale,
    ),
    Fault(
        key="one_rank",
        title="Images of one rank missing",
        threads=("huggingface/trl#6617", "allenai/molmo2#26"),
        given="two processes; the batch of the second loses its pixel tensors behind the rollout",
        right=f"{_OF_THE_FILE}, on both ranks",
        names=r"placeholder|pixel|image|features|visual|media",
        make=one_rank,
    ),
    Fault(
        key="order",
        title="Order of two images swapped",
        threads=("unslothai/unsloth#5197", "huggingface/trl#6570", "lmstudio-ai/lmstudio-bug-tracker#1675"),
        given="a row with two pictures and a row with one, in one batch",
        right="log-probs with the pictures in the order of the rows",
        names=r"order|image|pixel",
        make=order,
    ),
    Fault(
        key="exif",
        title="EXIF orientation",
        threads=("mistralai/mistral-common#330", "ggml-org/llama.cpp#20870", "ollama/ollama#18418"),
        given="a JPEG with orientation 6",
        right="log-probs with the picture turned upright",
        names=r"exif|orientation|rotat",
        make=exif,
    ),
    Fault(
        key="alpha",
        title="Alpha channel",
        threads=("NousResearch/hermes-agent#64548", "mflux-community/mflux#722", "vllm-project/vllm-omni#4502"),
        given="two PNGs that look the same, with other colours below their transparent pixels",
        right="log-probs with both on white, or both on black",
        names=r"alpha|transparen|rgba",
        make=alpha,
    ),
    Fault(
        key="variable_rate",
        title="A video of variable frame rate",
        threads=("meta-pytorch/torchcodec#1629",),
        given="a video of 4 seconds, half of its frames in the first half second, shown at 2 frames per second",
        right="log-probs with the frames that are on screen at 0, 0.5, 1 ... 3.5 seconds",
        names=r"variable|frame.?rate|timestamp",
        make=variable_rate,
        kind="video",
    ),
)
"""In the order of the table."""
