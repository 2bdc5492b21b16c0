"""The teacher of a stage: its weights, what it sees, and what it has scored in this step."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vlmrl.errors import CheckpointError
from vlmrl.extras.distill.divergence import Outputs, generalised_jsd
from vlmrl.extras.distill.section import TeacherSection
from vlmrl.extras.distill.topk import CHOSEN, Chosen, Told
from vlmrl.extras.distill.turns import TurnsView
from vlmrl.extras.distill.view import TeacherView
from vlmrl.policy.average import PREFIX, AveragedWeights
from vlmrl.policy.load import files_of
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import Row, response_mask, to_device
from vlmrl.policy.token_stats import HeadStat
from vlmrl.policy.vision import VisionCache
from vlmrl.train.stage.base import Stage
from vlmrl.train.step import Learner, score_tokens
from vlmrl.types import Prompt, ScoredGroup

KEPT = "kept"
"""Name of the quantity under which hidden states are taken from the teacher's pass."""
_ENDS = 2**20
"""Bytes at both ends of a file of weights by which it is told apart from another."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores answers of the policy, wherever its model is, under prompts of its own."""

    view: TeacherView
    turns: TurnsView | None = None
    """Where the rows are turns of episodes."""

    def rows_of(self, rows: Sequence[Row], groups: Sequence[tuple[int, ScoredGroup]] = ()) -> list[Row]:
        """Put the same answers behind the teacher's prompts; each prompt is made once for its group. `groups`: of the rows, where they are
        turns."""
        if self.turns is not None:
            return self.turns.rows_of(rows, groups)
        made: dict[int, Prompt] = {}
        for row in rows:
            if row.group not in made:
                made[row.group] = self.view.of(row.prompt)
        return [dataclasses.replace(row, prompt=made[row.group]) for row in rows]

    def score(self, learner: Learner, rows: Sequence[Row], stats: Mapping[str, HeadStat], chosen: Chosen | None) -> Tensor:
        """Compute log-probs of the answers, [N, T] float32 on the CPU.

        Args:
            stats: quantities that the pass computes besides.
            chosen: ids whose log-probs it takes as well; None: none.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Teacher(Scores):
    """A model in this process that scores answers of the policy."""

    policy: Policy
    vision: VisionCache

    def score(self, learner: Learner, rows: Sequence[Row], stats: Mapping[str, HeadStat], chosen: Chosen | None) -> Tensor:
        if chosen is not None:
            stats = {**stats, CHOSEN: Told(chosen=chosen)}
        return score_tokens(learner, rows, policy=self.policy, vision=self.vision, stats=stats).logp_NT


@dataclass(kw_only=True)
class TeacherScores:
    """What the teacher said of a step's rows, and the part of the stage's memory that knows which teacher that was."""

    teacher: Scores | None = None
    chosen: Chosen | None = None
    """The policy's likeliest ids, where a method compares them."""
    beta: float | None = None
    """Of the divergence over the whole vocabulary; None: no method asks for it, and no hidden states are kept."""
    hidden: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Index of a row -> the teacher's hidden states of its answer, [T, H], on the CPU."""
    layer: Outputs | None = None
    """The teacher's output layer (with hidden states of no row), in the machine's memory where its weights lie in shards: whole there until
    the update is made, while a pass that gathers weights frees them at its end."""
    fingerprint: str = ""
    average: AveragedWeights | None = None
    """The teacher's weights, where they follow the policy's."""
    _stage: Stage | None = None
    _saved: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of the average, from a checkpoint, until the teacher is there."""

    def attach(self, teacher: Scores, fingerprint: str) -> None:
        """Take the teacher of the stage, once it is open.

        Raises:
            CheckpointError: the checkpoint was made with other weights of the teacher.
        """
        if self.fingerprint not in ("", fingerprint):
            raise CheckpointError(
                "teacher.weights: its files are not those that this run was begun with, here or on its servers; put them back, or choose "
                "another run.name"
            )
        self.teacher, self.fingerprint = teacher, fingerprint

    def follow(self, stage: Stage, every: int, decay: float) -> None:
        """Have the teacher's weights be a running average of the policy's, from what they are now or were at the checkpoint.

        Raises:
            CheckpointError: the checkpoint has another average.
        """
        assert isinstance(self.teacher, Teacher)
        own, put = dict(self.teacher.policy.model.named_parameters()), self.teacher.policy.shards.put
        self._stage = stage
        self.average = AveragedWeights({name: own[name] for name, _ in stage.learner.named}, every=every, decay=decay, put=put)
        if self._saved:
            tensors = {name: value for name, value in self._saved.items() if name.startswith(PREFIX)}
            self.average.load_state_dict({name: value for name, value in self._saved.items() if name not in tensors}, tensors)
            self._saved = {}

    def rows_of(self, rows: Sequence[Row], groups: Sequence[tuple[int, ScoredGroup]] = ()) -> list[Row]:
        """Put the same answers behind the teacher's prompts (`Teacher.rows_of`)."""
        assert self.teacher is not None
        return self.teacher.rows_of(rows, groups)

    def score(self, learner: Learner, rows: Sequence[Row]) -> Tensor:
        """Compute the teacher's log-probs of the answers, [N, T] float32 on the CPU, and keep its hidden states where they are needed."""
        assert self.teacher is not None
        self._forget()
        stats: Mapping[str, HeadStat] = {} if self.beta is None else {KEPT: _Kept(scores=self)}
        return self.teacher.score(learner, rows, stats, self.chosen)

    def _forget(self) -> None:
        self.hidden.clear()
        self.layer = None

    def of_rows(self, rows: Sequence[Row], device: torch.device) -> Outputs:
        """Give the teacher's hidden states of rows that it has scored in this step, row after row, with its output layer."""
        layer = self.layer
        assert layer is not None
        parts = [self.hidden[row.index] for row in rows]
        return Outputs(
            hidden_MH=to_device(torch.cat(parts), device) if parts else layer.hidden_MH,
            head_VH=_at(device, layer.head_VH),
            bias_V=None if layer.bias_V is None else _at(device, layer.bias_V),
            cap=layer.cap,
        )

    def after_update(self) -> None:
        """Free what was kept for the update. Move the average; any other teacher stays as it is."""
        self._forget()
        if self.average is None or not isinstance(self.teacher, Teacher) or self._stage is None:
            return
        if self.average.step(dict(self._stage.learner.named)):
            # features of its tower are those of other weights now, if the tower trains
            self.teacher.policy.vision_version += int(self._stage.policy.vision_trains)

    def state_dict(self) -> dict[str, Any]:
        average = {} if self.average is None else self.average.state_dict() | self.average.tensors()
        return {"fingerprint": self.fingerprint, **average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = dict(state)
        self.fingerprint = str(self._saved.pop("fingerprint"))


@dataclass(frozen=True, kw_only=True)
class _Kept(HeadStat):
    """Takes the hidden states from the teacher's pass; its values are 0."""

    scores: TeacherScores
    rows: Sequence[Row] = ()

    def of_rows(self, rows: Sequence[Row]) -> HeadStat:
        return dataclasses.replace(self, rows=rows)

    def at(self, hidden_MH: Tensor, head_VH: Tensor, **how: Any) -> Tensor:
        where = hidden_MH.device.type
        # the type of the products, to which they are cast in any case
        kept_MH = hidden_MH.to(torch.get_autocast_dtype(where) if torch.is_autocast_enabled(where) else hidden_MH.dtype)
        lengths = response_mask(self.rows).sum(1).tolist()
        for row, part in zip(self.rows, kept_MH.cpu().split(lengths), strict=True):
            self.scores.hidden[row.index] = part
        if self.scores.layer is None:
            bias_V = None if how["bias"] is None else self._lasting(how["bias"])
            self.scores.layer = Outputs(hidden_MH=kept_MH[:0].clone(), head_VH=self._lasting(head_VH), bias_V=bias_V, cap=how["cap"])
        return torch.zeros(len(hidden_MH), device=hidden_MH.device)

    def _lasting(self, weight: Tensor) -> Tensor:
        """Give a weight that is there after the pass, too."""
        assert isinstance(self.scores.teacher, Teacher)
        if not self.scores.teacher.policy.shards.collective:
            return weight.detach()
        copy = weight.detach().to("cpu", copy=True)
        return copy.pin_memory() if weight.is_cuda else copy


@dataclass(frozen=True, kw_only=True)
class TeacherJsd(HeadStat):
    """Divergence of the policy's next tokens from the teacher's, for the rows that the teacher has scored in this step."""

    scores: TeacherScores
    beta: float
    gradient: bool = True
    rows: Sequence[Row] = ()

    def of_rows(self, rows: Sequence[Row]) -> HeadStat:
        return dataclasses.replace(self, rows=rows)

    def at(self, hidden_MH: Tensor, head_VH: Tensor, **how: Any) -> Tensor:
        if any(row.index < 0 for row in self.rows):  # a pass that is made for other ranks alone
            return hidden_MH.sum(1).float() * 0
        student = Outputs(hidden_MH=hidden_MH, head_VH=head_VH, bias_V=how["bias"], cap=how["cap"])
        teacher = self.scores.of_rows(self.rows, hidden_MH.device)
        return generalised_jsd(student, teacher, beta=self.beta, temperature=how["temperature"], forbidden=how["forbidden"])


def _at(device: torch.device, weight: Tensor) -> Tensor:
    """Give a weight on the device: itself where it is there."""
    return weight if weight.device == device else to_device(weight, device)


def fingerprint_of(teacher: TeacherSection) -> str:
    """Tell a teacher apart from others: by its name where it is what the stage starts from, else by its files, of which names, sizes and
    both ends of each file of weights or settings count. A whole large model is not read for this."""
    weights = teacher.weights
    if teacher.at_hand:
        return weights
    folder = files_of(weights)
    digest = hashlib.sha256(weights.encode() if folder is None else b"")
    for path in sorted(folder.iterdir()) if folder is not None else ():
        if path.suffix in (".safetensors", ".json"):
            size = path.stat().st_size
            with path.open("rb") as file:
                digest.update(f"{path.name} {size} ".encode() + file.read(_ENDS))
                file.seek(max(0, size - _ENDS))
                digest.update(file.read(_ENDS))
    return digest.hexdigest()
