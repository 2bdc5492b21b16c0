"""The cache of vision features: computed once per medium, kept under the version of the weights that they depend on."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from vlmrl.policy.model import Policy
from vlmrl.policy.pack import to_device
from vlmrl.policy.windows import TOWER, WINDOWS
from vlmrl.types import MediaHandle, MediaKind

Parts = tuple[torch.Tensor, ...]
"""Merged features, and those of each deepstack level."""


class Pixels(Protocol):
    """The source of the pixels that features are computed from (`media.store.MediaStore`)."""

    def get_key(self, key: str) -> Any: ...


@dataclass(frozen=True, eq=False)
class Features:
    """Vision features of one medium, as the language model gets them."""

    merged: torch.Tensor
    """[tokens, H], put in the places of the placeholders."""
    deepstack: tuple[torch.Tensor, ...] = ()
    """Per early layer of the language model [tokens, H], added to its hidden states at the same places (Qwen3-VL); else empty."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(part.numel() * part.element_size() for part in (self.merged, *self.deepstack))

    def to(self, device: torch.device) -> Features:
        """Copy the features to a device."""
        return Features(to_device(self.merged, device), tuple(to_device(layer, device) for layer in self.deepstack))

    def owned(self) -> Features:
        """Give the features memory of their own: a slice of a batch would keep the whole batch alive."""
        return Features(_own(self.merged), tuple(_own(layer) for layer in self.deepstack))


class FeatureDisk(Protocol):
    """Features that outlive the process (`policy.vision_disk.FeatureStore`)."""

    def get(self, key: str, fingerprint: str, dtype: torch.dtype) -> Features | None: ...

    def put(self, key: str, fingerprint: str, dtype: torch.dtype, features: Features) -> None: ...


@dataclass(frozen=True)
class _Quiet:
    """Pixels that are looked at without being counted, where their store can do that."""

    pixels: Pixels

    def get_key(self, key: str) -> Any:
        return getattr(self.pixels, "peek", self.pixels.get_key)(key)


class VisionCache:
    """Features of media by (handle key, vision version), least recently used first out, within a byte budget.

    While the tower is frozen its version never changes, so a medium is encoded once per run, or with `disk` once for all runs that
    share the folder. While it trains, the version moves with every update, old entries are dropped at once and `disk` is left alone.
    """

    def __init__(self, pixels: Pixels, *, budget_bytes: int, disk: FeatureDisk | None = None):
        self.pixels = pixels
        self.budget = budget_bytes
        self.disk = disk
        self.patches_encoded = 0
        self.hits = 0
        """Media served from memory."""
        self.disk_hits = 0
        """Media served from disk."""
        self._version = -1
        self._features: OrderedDict[str, Any] = OrderedDict()
        self._bytes = 0
        self._fingerprints: WeakKeyDictionary[torch.nn.Module, tuple[int, str]] = WeakKeyDictionary()

    def twin(self) -> VisionCache:
        """Make a cache that knows the same features in memory. What is looked up there leaves this one as it is, and its counters."""
        out = VisionCache(_Quiet(self.pixels), budget_bytes=self.budget)
        out._version, out._features, out._bytes = self._version, OrderedDict(self._features), self._bytes
        return out

    def features(self, policy: Policy, handles: Sequence[MediaHandle], *, train: bool) -> Mapping[str, Any]:
        """Give the features of every distinct medium. With `train` and a tower that trains they carry gradient and are not cached.

        Returns:
            By key: `Features`, or `layouts.HandedOver` of families without code of their own.

        Raises:
            RuntimeError: a medium has more or fewer features than placeholder tokens.
            StorageError: the folder of `disk` cannot be read or written.
        """
        return self.look(policy, handles, train=train).features(policy, handles, train=train)

    def get_ready(self, policy: Policy) -> None:
        """Do what needs all ranks: where weights lie in shards, they are read together for the name of the features on disk."""
        if self.disk is not None and policy.shards.collective and not policy.vision_trains:
            self.fingerprint(policy)

    def look(self, policy: Policy, handles: Sequence[MediaHandle], *, train: bool) -> PassFeatures:
        """Look up what is known of these media, in memory or on disk, and what has to be encoded. Nothing is encoded yet: ranks whose
        passes are collectives first agree on how many each of them makes.

        Returns:
            What `features` of the same media then encodes and gives.
        """
        distinct = {handle.key: handle for handle in handles}
        if train and policy.vision_trains:  # features with a gradient belong to one backward pass
            return self._seen(policy, {}, list(distinct.values()))
        if self._version != policy.vision_version:  # an update of the tower: what is here is of older weights
            self._features.clear()
            self._bytes, self._version = 0, policy.vision_version
        known = {key: self._features[key] for key in distinct if key in self._features}
        self.hits += len(known)
        for key in known:
            self._features.move_to_end(key)  # used last, dropped last
        missing = [handle for key, handle in distinct.items() if key not in known]
        if missing and self.disk is not None and not policy.vision_trains:
            for handle in missing:
                found = self.disk.get(handle.key, self.fingerprint(policy), policy.compute)
                if found is not None:
                    _check(handle, found)
                    known[handle.key] = found.to(policy.device)
                    self._keep(handle.key, known[handle.key])
                    self.disk_hits += 1
        return self._seen(policy, known, [handle for handle in missing if handle.key not in known])

    def _seen(self, policy: Policy, known: dict[str, Any], unknown: Sequence[MediaHandle]) -> PassFeatures:
        passes = len(unknown) if policy.subject is not None else len(tower_passes(unknown, policy.vision_chunk_patches))
        return PassFeatures(self, known, unknown, passes)

    def encode(self, policy: Policy, handles: Sequence[MediaHandle], *, train: bool) -> dict[str, Any]:
        """Pass media through the tower; without gradient they are kept, in memory and on disk.

        Returns:
            Key -> features.
        """
        if train and policy.vision_trains:
            return self._encode(policy, handles, train=True)
        with torch.no_grad():
            # slices of one pass share its memory: each is kept, and dropped, by itself
            out = {key: value.owned() for key, value in self._encode(policy, handles, train=False).items()}
        for key, value in out.items():
            if self.disk is not None and not policy.vision_trains:
                self.disk.put(key, self.fingerprint(policy), policy.compute, value)
            self._keep(key, value)
        return out

    def fingerprint(self, policy: Policy) -> str:
        """`tower_fingerprint`, computed once per model and version."""
        known = self._fingerprints.get(policy.model)
        if known is None or known[0] != policy.vision_version:
            known = (policy.vision_version, tower_fingerprint(policy))
            self._fingerprints[policy.model] = known
        return known[1]

    def _keep(self, key: str, value: Any) -> None:
        if value.nbytes > self.budget:
            return  # it would push out everything and not fit
        held = self._features.pop(key, None)
        self._features[key] = value
        self._bytes += value.nbytes - (0 if held is None else held.nbytes)
        while self._bytes > self.budget:
            _, old = self._features.popitem(last=False)
            self._bytes -= old.nbytes

    def _encode(self, policy: Policy, handles: Sequence[MediaHandle], *, train: bool) -> dict[str, Any]:
        """Make one pass of the tower per kind, or as many as its bound of patches asks for. Patches that backward computes again count
        once. A family without code of its own passes media one by one."""
        if policy.subject is not None:
            with policy.autocast():
                return {handle.key: policy.subject.hand_over(self.pixels.get_key(handle.key).argued) for handle in handles}
        found: dict[str, list[Parts]] = {}
        for pieces in tower_passes(handles, policy.vision_chunk_patches):
            self.patches_encoded += sum(piece.patches for piece in pieces)
            for piece, parts in zip(pieces, _encode_pieces(policy, pieces, self.pixels, train=train), strict=True):
                found.setdefault(piece.handle.key, []).append(parts)
        out: dict[str, Features] = {}
        for handle in handles:
            # pieces of each level joined along time, and let go as soon as they are
            merged, *deep = (level[0] if len(level) == 1 else torch.cat(level) for level in zip(*found.pop(handle.key), strict=True))
            out[handle.key] = Features(merged, tuple(deep))
            _check(handle, out[handle.key])
        return out


@dataclass(frozen=True)
class PassFeatures:
    """Media of one pass: the features of those that are known, and the others."""

    cache: VisionCache
    known: dict[str, Any]
    unknown: Sequence[MediaHandle]
    passes: int
    """Of the tower, that `features` makes."""
    later: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    """What `features` encodes for later passes: (key, what such a pass knows)."""

    def features(self, policy: Policy, handles: Sequence[MediaHandle], *, train: bool) -> Mapping[str, Any]:
        """Give the features as the cache does, for the media that were looked at."""
        encoded = self.cache.encode(policy, self.unknown, train=train)
        for key, known in self.later:
            known[key] = encoded[key]
        return {**self.known, **encoded}


# ---- passes of the tower --------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Temporal steps [first, last) of a medium."""

    handle: MediaHandle
    first: int
    last: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Of these steps."""
        return (self.last - self.first, *self.handle.grid_thw[1:])

    @property
    def patches(self) -> int:
        return (self.last - self.first) * self.step

    @property
    def step(self) -> int:
        """Patches of one temporal step."""
        return self.handle.grid_thw[1] * self.handle.grid_thw[2]


def tower_passes(handles: Sequence[MediaHandle], bound: int | None) -> list[list[Piece]]:
    """Plan what goes through the tower in each pass: all media of a kind, or with a bound of patches pieces of them, in their order.

    Each medium attends only to itself, so batching does not mix them. Attention of the Qwen-VL towers never crosses a temporal step,
    positions along time do not enter it, and a merger joins patches of one step: the features of a video are those of its steps, computed
    in any number of passes. A step, and so a picture, is never cut.

    Args:
        bound: patches of a pass, at most; None: no bound.

    Returns:
        The pieces of each pass.
    """
    out: list[list[Piece]] = []
    for kind in ("image", "video"):
        whole = [Piece(handle, 0, handle.grid_thw[0]) for handle in handles if handle.kind == kind]
        if whole:
            out += [whole] if bound is None else _bounded(whole, bound)
    return out


def _bounded(whole: Sequence[Piece], bound: int) -> list[list[Piece]]:
    out: list[list[Piece]] = [[]]
    room = bound
    for handle, at, end in whole:
        while at < end:
            step = Piece(handle, at, end).step
            fits = min(end - at, room // step)
            if fits < 1 and out[-1]:
                out.append([])
                room = bound
                continue
            piece = Piece(handle, at, at + max(1, fits))  # a step that is larger than the bound has a pass of its own
            out[-1].append(piece)
            room -= piece.patches
            at = piece.last
    return out


def _encode_pieces(policy: Policy, pieces: Sequence[Piece], pixels: Pixels, *, train: bool) -> list[Parts]:
    """Compute the features of each piece, in one pass.

    Raises:
        RuntimeError: the tower did not return deepstack features by medium.
    """
    kind = pieces[0].handle.kind
    held = [pixels.get_key(piece.handle.key).pixel_values[piece.first * piece.step : piece.last * piece.step] for piece in pieces]

    # a function: under recomputation pixels are put together again, and not kept on the device
    def values() -> torch.Tensor:
        return torch.cat([torch.from_numpy(np.ascontiguousarray(part)) for part in held])

    flat = run_tower(policy, kind, values, [piece.grid for piece in pieces], train=train)
    levels = len(flat) // len(pieces)  # merged features, and deepstack levels where there are any
    return [tuple(flat[n * levels : (n + 1) * levels]) for n in range(len(pieces))]


def run_tower(
    policy: Policy, kind: MediaKind, values: Callable[[], torch.Tensor], grids: Sequence[tuple[int, int, int]], *, train: bool
) -> Parts:
    """Run one pass of the tower over the patches that `values` gives.

    Chunks that train are recomputed in backward: until then only pixels of the host and the features are kept. Recomputation ends with the
    last tensor that is needed, before the hooks that under ZeRO-3 would take away the weights of the module whose gradient comes next.

    Returns:
        The parts of the first medium, then those of the second, and so on; [tokens, H] each.
    """
    call = policy.core.get_image_features if kind == "image" else policy.core.get_video_features

    def passed() -> Parts:
        grid = torch.tensor(grids)  # on the host, where it is counted with
        places = _places(policy.core.visual, grid, policy.device)
        with policy.autocast():
            return _parts(call(_pixels(policy, kind, values()), grid, return_dict=True, **places), len(grids))

    if policy.vision_chunk_patches is None or not (train and policy.vision_trains):
        return passed()
    return cast(Parts, checkpoint(passed, use_reentrant=False, preserve_rng_state=False))  # no tower has dropout


def _pixels(policy: Policy, kind: MediaKind, patches: torch.Tensor) -> torch.Tensor:
    """Bring patches of the host to the tower as it sees them: what is kept as bytes travels as bytes."""
    there = to_device(patches, policy.device)
    return policy.bundle.scales[kind](there) if there.dtype == torch.uint8 else there


def _places(tower: Any, grid: torch.Tensor, device: torch.device) -> dict[str, torch.Tensor]:
    """Compute where each patch stands, as transformers' towers take it: made on the host and copied, for on the device the host would wait
    for every number that it counts with. Boundaries of windows stay on the host, where attention looks at them; but transformers' own flash
    attention takes those of the device."""
    from transformers import vision_utils as made

    kernel = tower.config._attn_implementation
    of_device = "flash" in kernel and kernel not in (TOWER, WINDOWS)
    out = {"position_ids": made.get_vision_position_ids(grid, tower.spatial_merge_size)}
    here: dict[str, torch.Tensor] = {}
    if of_device:
        out["cu_seqlens"] = made.get_vision_cu_seqlens(grid)
    if hasattr(tower, "window_size"):
        out["window_index"], ends = made.get_vision_window_index(grid, tower.spatial_merge_size, tower.window_size, tower.patch_size)
        (out if of_device else here)["cu_window_seqlens"] = ends
    if hasattr(tower, "num_grid_per_side"):
        taps = made.get_vision_interpolation_indices_and_weights(
            grid,
            num_grid_per_side=tower.num_grid_per_side,
            mode=tower.interpolation_mode,
            align_corners=tower.interpolation_align_corners,
            spatial_merge_size=tower.spatial_merge_size,
        )
        out |= dict(zip(("interp_indices", "interp_weights"), taps, strict=True))
    return {name: to_device(x, device) for name, x in out.items()} | here


def _parts(encoded: Any, count: int) -> Parts:
    """Sort what the tower returned, medium after medium. Deepstack features come per layer and then per medium; most families have none."""
    layers = getattr(encoded, "deepstack_features", None) or ()
    for number, layer in enumerate(layers):
        if isinstance(layer, torch.Tensor) or len(layer) != count:
            raise RuntimeError(f"deepstack layer {number}: expected one tensor for each of {count} media, got {type(layer).__name__}")
    return tuple(part for n, merged in enumerate(encoded.pooler_output) for part in (merged, *(layer[n] for layer in layers)))


# ---- what features depend on ----------------------------------------------------------------------------------------------


def tower_fingerprint(policy: Policy) -> str:
    """Hash all that turns pixels into features: the tower's weights with its mergers, its settings, its code and where it runs.

    Kernels of another device or attention implementation round differently, and another version of transformers may compute
    something else, so these count as other features. Every rank calls it where weights lie in shards.
    """
    from transformers import __version__

    tower = policy.core.visual
    settings = {
        "transformers": __version__,
        "class": type(tower).__name__,
        "attention": tower.config._attn_implementation,
        "device": policy.device.type,
        "config": tower.config.to_dict(),
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    parameters = dict(tower.named_parameters())
    for name, tensor in sorted(tower.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        tensor = policy.shards.full(parameters.get(name, tensor))
        if tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check(handle: MediaHandle, features: Features) -> None:
    for part in (features.merged, *features.deepstack):
        if part.shape[0] != handle.tokens:
            raise RuntimeError(f"{handle.kind} {handle.key[:12]}: {handle.tokens} placeholder tokens but {part.shape[0]} features")


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() else tensor.clone()
