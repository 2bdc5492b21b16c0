"""The weight transfer backend `vlmrl` of vLLM: takes a trainer's weights over a group of their own (`carrier`), and proves what arrived.

vLLM drives it by its four phases (`WeightTransferEngine`) in each worker of a server. Nothing is raised: an error in vLLM's last phase
would leave its update open until a restart. What went wrong is a field of the report that the trainer asks for (`worker.LoadReport`), and
the trainer alone decides whether the weights become a version.

    update_weights({step: begin, language_only})         get ready
    update_weights({step: part, names, dtypes, shapes})  take a bucket from the group, and load it
    update_weights({step: end})                          put the weights in place, and count
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferUpdateInfo,
)

from vlmrl.extras.vllm.carrier import Carrier, CarrierError, Line, cut
from vlmrl.extras.vllm.hosted import end_with_server
from vlmrl.extras.vllm.worker import Landing, LoadReport, nothing

BACKEND = "vlmrl"


def register() -> None:
    """Make the backend known, in every process of a server (`vllm.general_plugins`)."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # pyright: ignore[reportMissingImports]

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, __name__, Receiver.__name__)
        end_with_server()


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One step of an update."""

    step: str
    language_only: bool = False
    names: list[str] = field(default_factory=list[str])
    dtypes: list[str] = field(default_factory=list[str])
    shapes: list[list[int]] = field(default_factory=list[list[int]])


class Receiver(WeightTransferEngine):
    """One worker's end."""

    init_info_cls, update_info_cls = Line, UpdateInfo

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._landing = Landing()
        self._carrier: Carrier | None = None
        self._error = self._lost = ""
        self._report = nothing()

    def init_transfer_engine(self, init_info: Line) -> None:
        """Meet the trainer."""
        self.shutdown()
        self._lost = ""
        try:
            self._carrier = Carrier(init_info, 1 + self.parallel_config.rank, device=self.device)
        except CarrierError as error:
            self._lost = str(error)

    def start_weight_update(self) -> None:
        """Nothing: `begin` says which weights come."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Take one step."""
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except CarrierError as error:
            self._lost = self._lost or str(error)
            self.shutdown()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the trainer's to hear: it is in the report)
            self._error = self._error or f"{type(error).__name__}: {str(error)[:500]}"

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Take one step."""
        {"begin": self._begin, "part": self._part, "end": self._end}[update_info.step](update_info)

    def finish_weight_update(self) -> None:
        """Nothing: the weights are in place since `end`."""

    def report(self) -> LoadReport:
        """What has become of the weights."""
        return {**self._report, "error": self._error, "lost": self._lost}

    def shutdown(self) -> None:
        """Leave the group."""
        if self._carrier is not None:
            self._carrier.leave()
        self._carrier = None

    def _begin(self, told: UpdateInfo) -> None:
        self._error, self._report = "", nothing()
        self._landing.begin(self.model, language_only=told.language_only)

    def _part(self, told: UpdateInfo) -> None:
        carrier = self._carrier
        if carrier is None:
            raise CarrierError("this worker has met no trainer")

        def taken(size: int) -> torch.Tensor:
            row = torch.empty(size, dtype=torch.uint8, device=carrier.device)
            carrier.cast(row)
            return row.to(self.device)

        tensors = cut(told.names, told.dtypes, told.shapes, taken)
        if not self._error:  # the bytes had to be taken, or the trainer would wait
            self._landing.load(tensors)

    def _end(self, told: UpdateInfo) -> None:
        del told
        self._report = self._landing.finish(self.model_config)
