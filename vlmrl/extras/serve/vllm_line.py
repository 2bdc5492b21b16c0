"""The line that serves a checkpoint with vLLM so that it sees what it saw in training, as far as vLLM's options go. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vlmrl.errors import ConfigError
from vlmrl.evals.ask.asking import Asking

IMAGES, VIDEOS = 8, 1
"""Most of a prompt, where nobody says."""


def vllm_line(
    folder: Path,
    asking: Asking,
    *,
    rule: str,
    own_code: bool,
    name: str,
    host: str,
    port: int,
    dtype: str = "auto",
    images: int = IMAGES,
    videos: int = VIDEOS,
    allowed: Sequence[Path] = (),
) -> list[str]:
    """The command with all arguments.

    Args:
        rule: how positions were counted in training (`policy.load.saved_rule`).
        own_code: whether it is a family whose processor takes pixel limits under the names of Qwen-VL's.
        images, videos: most of a prompt.
        allowed: folders whose files requests may name; vLLM knows one.

    Raises:
        ConfigError: vLLM would be another model than the one that was trained, or cannot allow several folders.
    """
    if rule != "max":
        raise ConfigError(
            f"{folder}: this model was trained with model.positions: {rule}, and vLLM knows the rule 'max' only, so its answers about "
            "videos would be another model's; serve it with --engine hf"
        )
    if len(allowed) > 1:
        raise ConfigError("--allow-media: vLLM takes one folder (--allowed-local-media-path); name the one that holds them all")
    media = asking.media
    line = ["vllm", "serve", str(folder), "--served-model-name", name, "--host", host, "--port", str(port), "--dtype", dtype]
    line += ["--max-model-len", str(asking.max_prompt_tokens + asking.max_new_tokens)]
    line += ["--limit-mm-per-prompt", json.dumps({"image": images, "video": videos})]
    if own_code:
        line += ["--mm-processor-kwargs", json.dumps({"min_pixels": media.min_pixels, "max_pixels": media.max_pixels})]
    line += ["--media-io-kwargs", json.dumps({"video": {"num_frames": media.max_frames, "fps": media.fps}})]
    line += ["--generation-config", "vllm", "--trust-request-mm-kwargs"]
    if allowed:
        line += ["--allowed-local-media-path", str(allowed[0].absolute())]
    return line


def what_differs(asking: Asking, *, own_code: bool) -> list[str]:
    """What the line's options cannot say, one sentence each."""
    media = asking.media
    out = [
        "vLLM adds no instruction: end a question with the one below, as in training"
        if asking.prompt is None
        else "vLLM adds no words to a question: put it into the Jinja template below, as in training (docs/data.md)",
        "vLLM takes frames at even numbers, training by the times at which they are on screen: clients that send processed frames with "
        "their rate (vlmrl eval --endpoint) get the pixels of training",
    ]
    if not own_code:
        out.append("this family's processor names its pixel limits otherwise: set --mm-processor-kwargs by its documentation")
    if media.video_total_pixels is not None:
        out.append(f"media.video_total_pixels ({media.video_total_pixels}) is no option of vLLM: long videos have more pixels there")
    if media.min_frames > 1:
        out.append(f"videos of fewer than {media.min_frames} frames at {media.fps:g} a second are sampled more densely in training")
    return out
