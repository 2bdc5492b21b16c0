"""Runs inside vLLM's worker: takes the trainer's tensors under their own names, and says where each of them went.

vLLM's own loader maps names and fuses q, k, v and gate, up. It raises for a name that it does not know, but passes over unknown biases
without a word, and calls a fused parameter loaded when only a part of it came. So every call of a parameter's loader is noted here.

vLLM's `reload_weights` is not used: it empties the worker's cache of encoded media and not the scheduler's, and the next request that asks
for one of these media ends the engine. Here no cache is emptied; their keys carry the version of the weights (`inputs.Version`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypedDict

import torch


class LoadReport(TypedDict):
    """What a worker says after a synchronisation."""

    landed: dict[str, list[str]]
    """Name at the trainer -> parameters of vLLM's model whose loader was called with it."""
    parameters: list[str]
    """All parameters of the part that was sent."""


def checksum(tensor: torch.Tensor) -> int:
    """Sum of a tensor's bits, as integers of its element size. Sums of parts are the sum of the whole, in any order."""
    as_integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return int(tensor.detach().contiguous().view(as_integers).sum(dtype=torch.int64))


class WeightReceiver:
    """Mixed into vLLM's worker class (`worker_extension_cls`); called by name."""

    model_runner: Any
    _vlmrl_current: str
    _vlmrl_landed: dict[str, list[str]]
    _vlmrl_arrived: dict[str, int]
    _vlmrl_part: Any

    def vlmrl_begin(self, language_only: bool) -> None:
        """Get ready to take weights: all, or those of the language model."""
        from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload  # pyright: ignore[reportMissingImports]

        model = self.model_runner.get_model()
        self._vlmrl_part = model.language_model if language_only else model
        self._vlmrl_landed = {}
        known: dict[str, int] = getattr(self, "_vlmrl_arrived", {})
        prefix = "language_model." if language_only else ""
        self._vlmrl_arrived = {name: value for name, value in known.items() if not name.startswith(prefix)}
        with torch.no_grad():
            initialize_layerwise_reload(self._vlmrl_part)
        for name, parameter in model.named_parameters():
            # vLLM keeps the loaders of one reload for the next, ours around them
            if name.startswith(prefix) and not hasattr(parameter.weight_loader, "vlmrl_notes"):
                parameter.weight_loader = self._vlmrl_noting(parameter.weight_loader, name)

    def _vlmrl_noting(self, loader: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The loader, with a note of each call. It keeps the name of vLLM's own wrapper, through which vLLM looks for what is inside."""

        @functools.wraps(loader)
        def online_process_loader(*args: Any, **kwargs: Any) -> Any:
            self._vlmrl_landed.setdefault(self._vlmrl_current, []).append(name)
            arrived: torch.Tensor = args[1] if len(args) > 1 else kwargs["loaded_weight"]
            if arrived.device.type == "cpu":  # vLLM's CPU build repacks linear weights and drops the parameter
                self._vlmrl_arrived[name] = self._vlmrl_arrived.get(name, 0) + checksum(arrived)
            return loader(*args, **kwargs)

        online_process_loader.__dict__["vlmrl_notes"] = True
        return online_process_loader

    def vlmrl_load(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Take some weights.

        Raises:
            ValueError: a name that the model does not have.
        """

        def one_by_one() -> Iterator[tuple[str, torch.Tensor]]:
            for self._vlmrl_current, tensor in bucket:
                yield self._vlmrl_current, tensor

        with torch.no_grad():
            self.model_runner.get_model().load_weights(one_by_one())

    def vlmrl_finish(self) -> LoadReport:
        """Put the weights in place."""
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload  # pyright: ignore[reportMissingImports]

        with torch.no_grad():
            finalize_layerwise_reload(self._vlmrl_part, self.model_runner.vllm_config.model_config)
        model, part = self.model_runner.get_model(), self._vlmrl_part
        prefix = "" if part is model else "language_model."
        return {"landed": self._vlmrl_landed, "parameters": [name for name, _ in model.named_parameters() if name.startswith(prefix)]}

    def vlmrl_sums(self, names: Iterable[str]) -> dict[str, int]:
        """Checksum of each of these parameters: of what it holds, or where it is empty of what has arrived for it."""
        parameters = dict(self.model_runner.get_model().named_parameters())
        return {name: checksum(parameters[name]) if parameters[name].numel() else self._vlmrl_arrived.get(name, 0) for name in names}
