"""Loads a model and its processor. Weights enter as safetensors only; remote code is off and cannot be switched on by a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from vlmrl.compat import ensure_torchvision
from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.families import registry
from vlmrl.families.base import REPORT, Family, is_reported
from vlmrl.families.registry import AUTO, family_of
from vlmrl.policy.attention import attach, choose
from vlmrl.policy.model import Policy, ProcessorBundle
from vlmrl.policy.pack import PositionSpec, Rule
from vlmrl.policy.precision import keep_stream_wide, settle_types, typed
from vlmrl.policy.root import Read
from vlmrl.registry import load
from vlmrl.types import Part

SETTINGS = "vlmrl.json"
"""File of an exported folder that says how the model was run in training."""
COMPUTE = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Types of the forward pass. Not float16: its gradients vanish or overflow without a loss scaler, which no step here has."""


def quiet_transformers() -> None:
    """Switch off transformers' progress bars and warnings; errors stay. For programs, not for importers."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _load(loader: Any, path: str, what: str, **kwargs: Any) -> Any:
    from vlmrl.policy.found import located

    where = located(path, kwargs.get("revision"))
    try:
        return loader.from_pretrained(where, trust_remote_code=False, **kwargs)
    except ImportError as error:
        from vlmrl.families.packages import what_is_missing

        missing = what_is_missing(error, f"the {what} of '{path}'")
        raise ConfigError(f"model.path: {missing}") from error
    except (OSError, ValueError, SafetensorError) as error:
        first = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"model.path: cannot load the {what} of '{path}': {first}\n"
            "  give a folder with config.json and *.safetensors, or a hub id that is in the local cache or reachable"
        ) from error


def files_of(path: str, revision: str | None = None) -> Path | None:
    """Find the folder that holds the files of a model: the path itself, or where the hub's cache has them; None if they are in neither."""
    local = Path(path).expanduser()
    if local.exists():
        return local if local.is_dir() else None
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(path, "config.json", revision=revision, local_files_only=True)
    except OSError:
        return None
    return None if found is None else Path(found).parent


def load_processor(path: str, *, revision: str | None = None, family: str = AUTO, max_tiles: int | None = None) -> ProcessorBundle:
    """Load only tokenizer and processors: enough to encode data without any weights.

    Args:
        path: folder or hub id.
        family: `model.family` of a recipe.
        max_tiles: its `media.max_tiles`, which becomes part of the fingerprint.

    Raises:
        ConfigError: not found, of a model type that is not supported, not that family's processor, or one that cannot cut pictures so.
    """
    ensure_torchvision()
    from transformers import AutoProcessor, Qwen3VLProcessor

    found = model_type(path, revision)
    chosen = None if found is None else registry.choose(family, found, path, revision)
    if chosen is not None and not chosen.own_code:
        given = _load(AutoProcessor, path, "processor", revision=revision)
        if max_tiles is not None and hasattr(given, "image_processor"):
            chosen.cap_tiles(given, max_tiles, path)
        from vlmrl.policy.foreign import foreign

        return foreign(chosen).bundle(given, path)
    processor = _load(AutoProcessor, path, "processor", revision=revision)
    if not hasattr(processor, "image_processor") or not hasattr(processor, "video_processor"):
        raise ConfigError(f"model.path: '{path}' has no image and video processor; a Qwen-VL-class model is needed")
    steps = isinstance(processor, Qwen3VLProcessor)
    own = chosen or family_of("qwen3_vl" if steps else "qwen2_5_vl", path)
    if max_tiles is not None:
        own.cap_tiles(processor, max_tiles, path)
    tokens = own.tokens(processor, path)
    images = processor.image_processor
    # what decides token ids and pixels: a run goes on only with the same
    digest = hashlib.sha256(processor.tokenizer.backend_tokenizer.to_str().encode())
    for part in (images.to_json_string(), processor.video_processor.to_json_string(), str(processor.chat_template)):
        digest.update(part.encode())
    return ProcessorBundle(
        family=own,
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
        step_times=steps,
    )


def model_type(path: str, revision: str | None) -> str | None:
    """Read `model_type` of the model beside the processor; None for a folder that holds a processor alone."""
    from transformers import AutoConfig

    local = Path(path).expanduser()
    if local.is_dir() and not (local / "config.json").is_file():
        return None
    return str(_load(AutoConfig, path, "config", revision=revision).model_type)


def pick_device(name: str) -> torch.device:
    """Choose the device of this process; `auto` takes CUDA when there is one.

    Raises:
        ConfigError: `cuda` is asked for and not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("model.device: 'cuda' is asked for but torch sees no CUDA device; use 'auto' or 'cpu'")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        import os

        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))  # a launcher's processes share a machine, one GPU each
    return torch.device(name)


def _where(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    if dtype not in COMPUTE:
        raise ConfigError(f"model.dtype: expected one of {', '.join(COMPUTE)}, got '{dtype}'")
    where, compute = pick_device(device), COMPUTE[dtype]
    if where.type == "cuda" and compute == torch.float32:
        torch.backends.cudnn.allow_tf32 = False  # torch's default for convolutions, which make patches into features
    return where, compute


def load_policy(
    path: str,
    bundle: ProcessorBundle,
    *,
    device: str = "auto",
    dtype: str = "float32",
    attention: str = "sdpa",
    revision: str | None = None,
    positions: Literal["auto", "max", "grid"] = "auto",
    prefix_backend: str = "auto",
    read: Read = "placed",
    vision_chunk_patches: int | None = None,
    quantize: Literal["none", "nf4"] = "none",
    trains: Collection[Part] = (),
) -> Policy:
    """Load the weights, and make a policy of them, in evaluation mode and without adapters; `freeze` says which parameters train.

    Args:
        positions: `auto` takes the rule that the folder's `vlmrl.json` names, else `max`.
        read: what is not `placed` has to be given to an engine (`train.updates`) before it is used.
        quantize: see `policy.nf4`; only for models that are `placed`.
        trains: parts whose weights may train: they stay float32. All others are kept in the type `dtype` (`policy.precision`).

    Raises:
        ConfigError: not found, unsupported family, a type that is not in `COMPUTE`, a device that is not there, or a report of
            `vlmrl check` beside it that says no.
        CheckpointError: tensors are missing or left over, so that part of the model would be random.
    """
    where, compute = _where(device, dtype)
    family: Family = bundle.family
    config = config_of(path, bundle, revision)
    if is_reported(path):
        load("vlmrl.families.report:REPORTS")[REPORT](path).check()
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigError(f"model.path: the weights of '{path}' are quantised already; take the original ones, and model.quantize: nf4")
    model = empty_model(config, attention)
    kind, settle = type(model), partial(settle_types, family=family, compute=compute, trains=trains)
    if quantize != "none":
        if read != "placed" or not bundle.family.own_code:
            raise ConfigError(f"model.quantize: '{quantize}' is for the Qwen-VL families with train.sharding: ddp; leave it out")
        from vlmrl.policy import nf4  # needs bitsandbytes

        model = _weights(path, revision, typed(kind, settle), attention, quantised=nf4.options(model, compute), where=where)
        nf4.settle(model)
    elif read != "none":
        model = _weights(path, revision, typed(kind, settle), attention, where=where if read == "placed" else None)
    model.__class__ = kind  # `typed` was for loading alone
    settle(model)
    if read == "placed":  # else an engine places the weights (`train.updates`)
        model = model.to(where)
        if where.type == "cpu":
            _own_memory(model)
        keep_stream_wide(model)
    model.eval()
    if not family.own_code:
        from vlmrl.policy.foreign import foreign

        return replace(foreign(family).policy(model, bundle, device=where, compute=compute), vision_chunk_patches=vision_chunk_patches)
    attach(model, attention, device=where, compute=compute)
    backend, reason = choose(prefix_backend, where, compute)
    return Policy(
        model=model,
        bundle=bundle,
        positions=PositionSpec(
            merge_size=bundle.merge_size,
            tokens_per_second=getattr(config.vision_config, "tokens_per_second", None) if family.time_scaled else None,
            rule=saved_rule(path) if positions == "auto" else positions,
            per_step=family.step_times,
        ),
        device=where,
        deepstack=len(getattr(config.vision_config, "deepstack_visual_indexes", ())),
        compute=compute,
        prefix_backend=backend,
        prefix_reason=reason,
        vision_chunk_patches=vision_chunk_patches,
        quantized=quantize,
    )


def config_of(path: str, bundle: ProcessorBundle, revision: str | None) -> Any:
    """Load the model's config, of a family that is supported and that the processor belongs to.

    Raises:
        ConfigError: not found, an unsupported family, or another one than the processor's.
    """
    ensure_torchvision()
    from transformers import AutoConfig

    config = _load(AutoConfig, path, "config", revision=revision)
    if not bundle.family.own_code:
        if config.model_type != bundle.family.name:
            raise ConfigError(f"model.path: '{path}' is a '{config.model_type}' model, and its processor that of '{bundle.family.name}'")
        return config
    if family_of(config.model_type, path).step_times != bundle.step_times:
        raise ConfigError(
            f"model.path: '{path}' is a '{config.model_type}' model but its processor is {type(bundle.processor).__name__}, which lays "
            "out videos in another way; take both from the same model"
        )
    return config


def _weights(
    path: str, revision: str | None, kind: Any, attention: str, *, quantised: Any = None, where: torch.device | None = None
) -> Any:
    """Load a model of the class `kind` with all of its tensors. They go one by one from the file to the device `where`, or with None to the
    machine's memory, in the file's type, and get the type that they have in the empty model there. `quantised`: `nf4.options`."""
    model, info = _load(
        kind,
        path,
        "weights",
        revision=revision,
        dtype=torch.float32,
        attn_implementation=attention,
        use_safetensors=True,
        output_loading_info=True,
        **({} if where is None else {"device_map": {"": where}}),
        **({} if quantised is None else {"quantization_config": quantised}),
    )
    # transformers would only warn, and fill what is missing with random numbers
    left_out = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"]) + [str(k) for k in info["mismatched_keys"]]
    if left_out:
        raise CheckpointError(f"'{path}': {len(left_out)} tensors are missing, unexpected or of another shape: {', '.join(left_out[:5])}")
    return model


def empty_model(config: Any, attention: str) -> Any:
    """Make the same model without memory, on the meta device. No file is read."""
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation=attention)


def _own_memory(model: Any) -> None:
    """Move parameters out of the mapped file. There they lie as the file's header leaves them, and the CPU's kernels round by
    alignment: a process that has the weights from the file would differ in the last bit from the one that wrote it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)


def saved_rule(path: str) -> Rule:
    """Read the position rule that a folder we exported was trained with; `max` for any other model.

    Raises:
        CheckpointError: the folder's `vlmrl.json` is damaged.
    """
    file = Path(path).expanduser() / SETTINGS
    if not file.is_file():
        return "max"
    try:
        rule = json.loads(file.read_text(encoding="utf-8"))["positions"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{file}: expected {{"positions": "max" or "grid"}}: {error}') from error
    if rule not in ("max", "grid"):
        raise CheckpointError(f"{file}: unknown position rule {rule!r}; known: max, grid")
    return rule


def freeze(policy: Policy, parts: tuple[str, ...]) -> list[tuple[str, torch.nn.Parameter]]:
    """Set which parameters train.

    A policy with adapters trains those of the parts that are left, and nothing else.

    Args:
        parts: that do not train.

    Returns:
        (name, parameter) of those that train, by name: optimizers and checkpoints rely on the order.

    Raises:
        ConfigError: nothing is left to train.
        ValueError: what is to train is kept in 16 bits: it has been loaded as a part that does not train.
    """
    named = dict(policy.model.named_parameters())
    out: list[tuple[str, torch.nn.Parameter]] = []
    policy.vision_trains = False
    for name in sorted(named):
        part = policy.bundle.family.part_of(name)
        # with adapters the weights below them stay frozen, whatever part they are of
        trains = part not in parts and (policy.lora is None or name in policy.lora.names)
        named[name].requires_grad_(trains)
        if trains:
            out.append((name, named[name]))
            policy.vision_trains |= part != "language"  # the mergers too: features depend on them
            if named[name].element_size() < 4:
                raise ValueError(f"'{name}' is to train and is {named[name].dtype}, which is too coarse for updates: load it with trains")
    if not out:
        adapters = "" if policy.lora is None else " (with model.lora only adapters train, and those are in other parts)"
        raise ConfigError(f"freeze: {', '.join(parts)} leaves nothing to train{adapters}")
    return out
