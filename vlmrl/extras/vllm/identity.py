"""What a teacher's server says of its model, so that a trainer knows it again, and finds its own ids and pixels in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.inputs import problems_of
from vlmrl.policy.load import config_of, files_of, load_processor, saved_rule
from vlmrl.policy.model import ProcessorBundle
from vlmrl.policy.pack import PositionSpec
from vlmrl.run.identity import model_files
from vlmrl.types import digest


def identity_of(path: str, dtype: str) -> dict[str, Any]:
    """Hash a model's files with the type that it computes in, and say how it reads (`read_by`).

    Raises:
        ConfigError: its files are not on this machine, or vLLM cannot run it as it was trained.
    """
    folder = files_of(path)
    if folder is None:
        raise ConfigError(f"--teacher: '{path}' is no folder here, and not in the hub's cache")
    bundle = load_processor(path)
    config = config_of(path, bundle, None)
    seconds = getattr(config.vision_config, "tokens_per_second", None) if bundle.family.time_scaled else None
    if saved_rule(path) != "max":
        raise ConfigError(
            f"--teacher {path}: it was trained with positions '{saved_rule(path)}', and vLLM knows 'max' only; give its folder to "
            "teacher.weights, which has it in the trainer"
        )
    if problems := problems_of(bundle, PositionSpec(merge_size=bundle.merge_size, tokens_per_second=seconds)):
        raise ConfigError([f"--teacher {path}: {problem}" for problem in problems])
    return {"fingerprint": digest([model_files(folder), dtype]), **read_by(bundle, timed=seconds is not None)}


def read_by(bundle: ProcessorBundle, *, timed: bool) -> dict[str, Any]:
    """Say how a model reads ids and pixels: of its tokenizer a hash of all ids with what they mean, and what its tower makes of patches.

    Args:
        timed: temporal positions of a video run in seconds.
    """
    vocabulary = sorted((number, text) for text, number in bundle.tokenizer.get_vocab().items())
    images = bundle.processor.image_processor
    pixels = {name: np.asarray(getattr(images, name), dtype=float).tolist() for name in ("image_mean", "image_std", "rescale_factor")}
    pixels |= {"patch_size": bundle.patch_size, "merge_size": bundle.merge_size, "temporal_patch_size": bundle.temporal_patch_size}
    return {"ids": len(vocabulary), "vocabulary": digest(vocabulary), "pixels": {**pixels, "timed": timed}}


def problem_of(theirs: dict[str, Any], ours: dict[str, Any]) -> str | None:
    """Say in what a server's model reads otherwise than the policy (`read_by` of both); None where it reads the same."""
    if theirs["vocabulary"] != ours["vocabulary"]:
        return (
            f"its tokenizer has {theirs['ids']} ids and that of model.path {ours['ids']}, and they do not mean the same. It has to score "
            "the very ids that the policy has sampled: start the server with a model of the same tokenizer"
        )
    differ = [name for name, value in ours["pixels"].items() if theirs["pixels"].get(name) != value]
    if differ:
        name = differ[0]
        return (
            f"{name} of its processor is {theirs['pixels'].get(name)}, and {ours['pixels'][name]} for the policy, so it would see "
            "other pixels; give the model's folder to teacher.weights, which has it in the trainer"
        )
    return None
