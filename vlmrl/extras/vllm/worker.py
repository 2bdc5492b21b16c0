"""Runs inside vLLM's worker: takes the trainer's tensors under their own names, and says where each of them went.

vLLM's own loader maps names and fuses q, k, v and gate, up. It raises for a name that it does not know, but passes over unknown biases
without a word, and calls a fused parameter loaded when only a part of it came. So every call of a parameter's loader is noted here.

vLLM's `reload_weights` is not used: it empties the worker's cache of encoded media and not the scheduler's, and the next request that asks
for one of these media ends the engine. Here no cache is emptied; their keys carry the version of the weights (`inputs.Version`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict

import torch

from vlmrl.extras.vllm.routes import Routes
from vlmrl.extras.vllm.scoring import Scoring

_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")
"""Ends of names of tensors that hold the weights of all experts. Files of some models have their rows as columns: transformers turns them
as it reads the file, and vLLM turns whatever it is given."""


class LoadReport(TypedDict):
    """What one worker says after a synchronisation. Of several each has its shard of the parameters, and is handed whole tensors."""

    landed: dict[str, list[str]]
    """Name at the trainer -> parameters of vLLM's model whose loader was called with it."""
    arrived: dict[str, int]
    """Name at the trainer -> sum of the bits that came under it."""
    held: dict[str, int]
    """Every parameter of the part that was sent -> sum of its bits; of one that vLLM keeps elsewhere, of what has reached its loader."""
    sizes: dict[str, int]
    """Parameter -> its elements; 0 where vLLM keeps it elsewhere."""
    partial: list[str]
    """Parameters whose loader got fewer elements than they have: of one that is fused (q, k, v) a part was left out."""
    error: str
    """Why this worker does not take the weights; empty where it does."""
    lost: str
    """Why the line to the trainer broke, which sends everything again; empty where it did not."""


def nothing() -> LoadReport:
    """What a worker says that has not been sent anything."""
    return {"landed": {}, "arrived": {}, "held": {}, "sizes": {}, "partial": [], "error": "", "lost": ""}


def checksum(tensor: torch.Tensor) -> int:
    """Sum of a tensor's bits, as integers of its element size. Sums of parts are the sum of the whole, in any order."""
    as_integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return int(tensor.detach().contiguous().view(as_integers).sum(dtype=torch.int64))


def _repack_experts(model: Any) -> None:
    """Let vLLM's CPU build pack the weights of experts again as they come. It does so for the first kernel of a layer alone, and after a
    reload that kernel would read rows where it packed them."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if str(getattr(getattr(method, "unquantized_backend", None), "value", "")) == "CPU":
            method.moe_kernel = None


class Landing:
    """Puts tensors into one model of vLLM. It lives as long as the model, whose loaders it has wrapped."""

    def __init__(self) -> None:
        self._landed: dict[str, list[str]] = {}
        self._arrived: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._missing: dict[str, int] = {}
        self._current = ""
        self._turned = False

    def begin(self, model: Any, *, language_only: bool) -> None:
        """Get ready to take weights: all, or those of the language model."""
        from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload  # pyright: ignore[reportMissingImports]
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader  # pyright: ignore[reportMissingImports]

        self._model, self._part = model, model.language_model if language_only else model
        self._prefix = "language_model." if language_only else ""
        self._landed, self._arrived, self._reached = {}, {}, {}
        self._turned = any(getattr(module, "is_fused_checkpoint_transposed", False) for module in model.modules())
        _repack_experts(self._part)
        with torch.no_grad():
            initialize_layerwise_reload(self._part)
        # rows of a vocabulary are padded, so of these there are more than come
        padded = {id(one) for module in model.modules() if hasattr(module, "org_vocab_size") for one in module.parameters()}
        self._missing = {name: 0 if id(one) in padded else one.numel() for name, one in model.named_parameters()}
        for name, parameter in model.named_parameters():
            # vLLM keeps the loaders of one reload for the next, ours around them
            loader = getattr(parameter, "weight_loader", default_weight_loader)
            if name.startswith(self._prefix) and not hasattr(loader, "vlmrl_notes"):
                parameter.weight_loader = self._noting(loader, name)

    def _noting(self, loader: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The loader, with a note of each call. It keeps the name of vLLM's own wrapper, through which vLLM looks for what is inside."""

        @functools.wraps(loader)
        def online_process_loader(*args: Any, **kwargs: Any) -> Any:
            self._landed.setdefault(self._current, []).append(name)
            arrived: torch.Tensor = args[1] if len(args) > 1 else kwargs["loaded_weight"]
            self._missing[name] -= arrived.numel()
            if arrived.device.type == "cpu":  # vLLM's CPU build repacks linear weights and drops the parameter
                self._reached[name] = self._reached.get(name, 0) + checksum(arrived)
            return loader(*args, **kwargs)

        online_process_loader.__dict__["vlmrl_notes"] = True
        return online_process_loader

    def load(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Take some weights.

        Raises:
            ValueError: a name that the model does not have.
        """

        def one_by_one() -> Iterator[tuple[str, torch.Tensor]]:
            for self._current, tensor in bucket:
                self._arrived[self._current] = self._arrived.get(self._current, 0) + checksum(tensor)
                yield self._current, tensor.transpose(1, 2) if self._turned and self._current.endswith(_EXPERTS) else tensor

        with torch.no_grad():
            self._model.load_weights(one_by_one())

    def finish(self, model_config: Any) -> LoadReport:
        """Put the weights in place."""
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload  # pyright: ignore[reportMissingImports]

        with torch.no_grad():
            finalize_layerwise_reload(self._part, model_config)
        own = {name: parameter for name, parameter in self._model.named_parameters() if name.startswith(self._prefix)}
        held = {name: checksum(one) if one.numel() else self._reached.get(name, 0) for name, one in own.items()}
        sizes = {name: one.numel() for name, one in own.items()}
        partial = [name for name in own if self._missing[name] > 0]
        return {**nothing(), "landed": self._landed, "arrived": self._arrived, "held": held, "sizes": sizes, "partial": partial}


class WeightReceiver:
    """Mixed into vLLM's worker class (`worker_extension_cls`); called by name."""

    model_runner: Any
    weight_transfer_engine: Any

    def vlmrl_begin(self, language_only: bool) -> None:
        """Get ready to take weights, in the trainer's process: all, or those of the language model."""
        if not hasattr(self, "_vlmrl_landing"):
            self._vlmrl_landing = Landing()
        self._vlmrl_landing.begin(self.model_runner.get_model(), language_only=language_only)

    def vlmrl_load(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Take some weights, in the trainer's process.

        Raises:
            ValueError: a name that the model does not have.
        """
        self._vlmrl_landing.load(bucket)

    def vlmrl_finish(self) -> LoadReport:
        """Put the weights in place, in the trainer's process."""
        return self._vlmrl_landing.finish(self.model_runner.vllm_config.model_config)

    def vlmrl_report(self) -> LoadReport:
        """On a server: what has become of the last weights (`transfer.Receiver`)."""
        return self.weight_transfer_engine.report()

    def vlmrl_route(self) -> tuple[str, list[int]]:
        """Keep the experts that routers take from now on (`Routes.watch`)."""
        self._vlmrl_routes = Routes()
        return self._vlmrl_routes.watch(self.model_runner)

    def vlmrl_experts(self, name: str) -> tuple[bytes, tuple[int, ...], str] | None:
        """Hand out the experts of a request that has ended (`Routes.fetch`)."""
        return self._vlmrl_routes.fetch(name)

    def vlmrl_watch(self) -> str:
        """On a teacher's server: score what requests ask from now on; why that cannot be, empty where it can."""
        self._vlmrl_scoring = Scoring()
        return self._vlmrl_scoring.watch(self.model_runner)

    def vlmrl_scores(self, name: str) -> bytes | None:
        """On a teacher's server: hand out the scores of a request (`Scoring.fetch`)."""
        return self._vlmrl_scoring.fetch(name)
