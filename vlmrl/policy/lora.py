"""Low-rank adapters (LoRA, arXiv:2106.09685, eq. 3) on the linear layers of a policy, through the `peft` library.

    y = W x + (alpha / rank) B A x        W [out, in] frozen, A [rank, in], B [out, rank] trained, B = 0 at the start

The policy's model stays the transformers model that it was; peft puts its layers into it in place. So attention, head, vision tower
and cache run as they do without adapters, and the reference policy is the same model with the adapters switched off.

Ours: A is drawn from a seed per layer name and not from torch's global generator; the product B A is added to W in float64 and
rounded once, by the same function for the exported folder and for the live model, so that a stage that starts from the folder and
one that goes on in the same process have the same bits.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from vlmrl.compat import ensure_torchvision
from vlmrl.errors import ConfigError
from vlmrl.families.qwen_vl import LANGUAGE_TARGETS
from vlmrl.policy import nf4
from vlmrl.policy.model import ADAPTER, Adapters, LoraSpec, Policy, lora_weights

_TENSORS = (".lora_A.", ".lora_B.")


def add_adapters(policy: Policy, spec: LoraSpec, *, seed_of: Callable[[str], int], base: str) -> None:
    """Put fresh adapters into a policy; its output does not change, because B starts at zero.

    Args:
        policy: without adapters.
        spec: size and place.
        seed_of: seed of A of the layer with a given name, a 63-bit integer.
        base: folder or hub id of the weights that the adapters belong to; written into an exported adapter.

    Raises:
        ConfigError: peft is not installed, a target names no linear layer of this model, or peft takes it for something else.
        ValueError: the policy has adapters already.
    """
    if policy.lora is not None:
        raise ValueError("the policy has adapters already: fold them into the weights first (fold_adapters)")
    ensure_torchvision()
    try:
        from peft import LoraConfig, LoraModel
    except ImportError as error:
        raise ConfigError(f"model.lora: needs the peft package, which does not load here ({error}); pip install 'vlmrl[lora]'") from error
    wanted = _wanted(policy, spec)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # pyright: ignore[reportArgumentType] -- peft divides it by r; whole numbers are only its habit
        lora_dropout=0.0,
        bias="none",
        target_modules=_pattern(wanted, [name for name, _ in policy.model.named_modules()]),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    _require_kept(policy, config, wanted)
    # peft draws initial values that are replaced below; that must not move the global generators
    with torch.random.fork_rng(devices=[policy.device] if policy.device.type == "cuda" else []):
        tuner = LoraModel(policy.model, config, ADAPTER)
    layers = {name: policy.model.get_submodule(name) for name in wanted}
    tuner._cast_adapter_dtype(ADAPTER)  # peft gives them the type of the weight that they are beside
    for name, layer in layers.items():
        layer.cast_input_dtype_enabled = False  # autocast does it
        _initialise(layer, seed_of(name))
    names = frozenset(name for name, _ in policy.model.named_parameters() if any(part in name for part in _TENSORS))
    if len(names) != 2 * len(layers):
        raise RuntimeError(f"{len(layers)} layers were asked for but peft made {len(names)} tensors: this version of peft does not fit")
    policy.model.eval()
    part_of = policy.bundle.family.part_of
    on_vision = any(part_of(name) != "language" for name in names)
    policy.lora = Adapters(spec=spec, tuner=tuner, layers=layers, names=names, on_vision=on_vision)


def merged_items(policy: Policy, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and whole tensor of the model as one without adapters, with the adapters added to the weights they belong to.

    The live model is left as it is. Weights in shards are gathered one by one, on every rank in the same order. `wanted` is asked with
    names in the live model; what it does not want is not gathered.

    Yields:
        (name in the model without adapters, tensor). Tensors without an adapter are the live ones, the others fresh; weights in 4 bits
        come as the layers compute with them, in float32.
    """
    lora = policy.lora
    quantised = nf4.layers(policy.model)
    if lora is None and not quantised:
        yield from policy.state(wanted=wanted)
        return
    for key, tensor in policy.state(wanted=lambda name: wanted(name) and not any(part in name for part in _TENSORS)):
        layer, inside, rest = key.partition(".base_layer.")
        if key.partition(".weight.")[0] in quantised:
            continue  # scales and tables of values: they are in the weight
        owner, _, kind = key.rpartition(".")
        if lora is not None and inside and rest == "weight":
            tensor = lora.merged(layer, policy.shards.full)
        elif owner in quantised and kind == "weight":
            tensor = nf4.dense(quantised[owner])
        yield (f"{layer}.{rest}" if inside else key), tensor


def merged_state(policy: Policy, *, keep: bool = True) -> dict[str, torch.Tensor]:
    """Collect all of `merged_items`.

    Returns:
        Tensors by name. Those without an adapter are the live ones, the others and those in 4 bits fresh and on the CPU; with `keep` those
        that were gathered from shards are on the CPU too, without it nothing is kept.
    """
    out: dict[str, torch.Tensor] = {}
    adapted = set() if policy.lora is None else {f"{layer}.weight" for layer in policy.lora.layers}
    adapted |= {f"{layer.removesuffix('.base_layer')}.weight" for layer in nf4.layers(policy.model)}
    for name, tensor in merged_items(policy):
        if keep:
            out[name] = tensor.cpu() if policy.shards.collective or name in adapted else tensor
    return out


def fold_adapters(policy: Policy) -> None:
    """Add the adapters to the live weights, bit for bit as `merged_state` does, and take them out of the model. No-op without any.

    Raises:
        ValueError: the weights lie in 4 bits, where the sum would be rounded to values that are further apart than most updates.
    """
    lora = policy.lora
    if lora is None:
        return
    if policy.quantized != "none":
        raise ValueError(f"adapters cannot be added to weights in {policy.quantized}; merged_state gives the sums in float32")
    with torch.no_grad():
        for name, layer in lora.layers.items():
            layer.get_base_layer().weight.copy_(lora.merged(name))
    lora.tuner.unload()
    policy.lora = None
    if lora.on_vision:  # features now come of the sums, which round otherwise than W x + B A x
        policy.vision_version += 1
    policy.vision_trains = False


def adapter_state(policy: Policy) -> dict[str, torch.Tensor]:
    """Gather the tensors of the adapters. Every rank calls it where weights lie in shards.

    Returns:
        Whole tensors by name; empty without any.
    """
    if policy.lora is None:
        return {}
    named = dict(policy.model.named_parameters())
    return {name: policy.shards.full(named[name]).detach() for name in sorted(policy.lora.names)}


def save_adapter(policy: Policy, folder: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write the adapter alone in peft's format (`adapter_config.json`, `adapter_model.safetensors`) into a new folder.

    `peft.PeftModel.from_pretrained(base_model, folder)` opens it. The caller makes the files durable.

    Args:
        state: what `adapter_state` gave.

    Raises:
        ValueError: the policy has no adapters.
    """
    if policy.lora is None:
        raise ValueError("the policy has no adapters to save")
    config = copy.copy(policy.lora.tuner.peft_config[ADAPTER])
    config.inference_mode = True
    config.save_pretrained(folder)
    tensors = {f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": tensor for name, tensor in state.items()}
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(on_cpu, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _wanted(policy: Policy, spec: LoraSpec) -> list[str]:
    """Name the layers that get an adapter, in the order of the model."""
    family = policy.bundle.family
    linear = [name for name, module in policy.model.named_modules() if isinstance(module, torch.nn.Linear)]
    own = family.adaptable(policy.model)
    has = sorted({name.rsplit(".", 1)[-1] for name in own})
    # all layers of a Qwen decoder stand for all layers of any decoder: elsewhere they have other names
    targets = has if not family.own_code and set(spec.targets) == set(LANGUAGE_TARGETS) else spec.targets
    missing = sorted(set(targets) - set(has))
    if missing or not targets:
        what = ", ".join(missing) or "nothing is listed"
        raise ConfigError(f"model.lora.targets: {what}: the language model of {type(policy.model).__name__} has {', '.join(has)}")
    chosen = {name for name in own if name.rsplit(".", 1)[-1] in targets}
    chosen |= {name for name in linear if spec.vision and family.part_of(f"{name}.weight") != "language"}
    return [name for name in linear if name in chosen]


def _require_kept(policy: Policy, config: Any, wanted: Sequence[str]) -> None:
    """Refuse layers that peft would take for the experts of a model. In models that used to have a layer for each expert, and have one
    tensor for all of them now, peft goes by the last part of a layer's name and adapts that tensor instead. An exported adapter is read
    that way too, wherever it is opened.

    Raises:
        ConfigError: it would do so with a layer that is wanted.
    """
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    kept: list[str] = []
    names = sorted({name.rpartition(".")[2] for name in wanted})
    for name in names:
        alone = copy.copy(config)
        alone.target_modules, alone.rank_pattern, alone.alpha_pattern = {name}, {}, {}
        try:
            convert_peft_config_for_transformers(alone, policy.model, None)
        except ValueError:  # it takes this one together with another
            continue
        kept += [name] if not alone.target_parameters else []
    taken = sorted(set(names) - set(kept))
    if taken:
        raise ConfigError(
            f"model.lora.targets: {', '.join(taken)}: peft takes layers of these names for the experts of a "
            f"'{policy.model.config.model_type}' model, which are one tensor and carry no adapters here; take {', '.join(kept)}"
        )


def _pattern(wanted: Sequence[str], known: Sequence[str]) -> str:
    """Write a regular expression of exactly the wanted ones among the known module names; numbers of layers stand for any number.

    A list of last parts would not do: the towers of some models have layers of the same names.
    """
    kinds: dict[str, list[str]] = {}
    for name in wanted:
        # `layers.0.q_proj`, `layers.1.q_proj`, ... are one alternative of the pattern
        kinds.setdefault(re.sub(r"\\\.\d+(?=\\\.|$)", lambda _: r"\.\d+", re.escape(name)), []).append(name)
    out: list[str] = []
    for kind, names in kinds.items():
        exact = {name for name in known if re.fullmatch(kind, name)} == set(names)
        out += [kind] if exact else map(re.escape, names)
    return f"({'|'.join(sorted(out))})"


def _initialise(layer: Any, seed: int) -> None:
    """Draw A uniform in +-1/sqrt(in) (the Kaiming rule that peft uses), and set B to zero."""
    a, b = lora_weights(layer)
    bound = a.shape[1] ** -0.5
    draws = np.random.Generator(np.random.Philox(seed)).random(tuple(a.shape))  # on the host: the same on every device
    with torch.no_grad():
        a.copy_(torch.from_numpy((2 * draws - 1) * bound))
        b.zero_()
