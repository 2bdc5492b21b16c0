"""A teacher whose weights are on servers: it is shown our ids and our pixels, and says how likely it finds what the policy has sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vlmrl.errors import ConfigError
from vlmrl.extras.distill.section import TeacherSection
from vlmrl.extras.distill.teacher import Scores
from vlmrl.extras.distill.topk import Chosen
from vlmrl.policy.pack import Row, response_mask
from vlmrl.policy.token_stats import HeadStat
from vlmrl.registry import Catalogue
from vlmrl.train import dist
from vlmrl.train.step import Learner
from vlmrl.types import Prompt


class Servers(Protocol):
    """Who asks the servers of a teacher."""

    fingerprint: str
    """Of the teacher, once it is open."""

    def open(self) -> Mapping[str, Any]:
        """Meet the teacher, and say what it is."""
        ...

    def score(
        self, questions: Sequence[tuple[Prompt, Sequence[np.ndarray]]], *, temperature: float, forbidden: Sequence[int]
    ) -> list[list[np.ndarray]]:
        """Log-probs of the ids of each prompt's answers, float32 [T, K] for int32 [T, K], the tokens of the answer in the first column."""
        ...

    def close(self) -> None:
        """Give up the connections."""
        ...


SERVERS: Catalogue[Callable[..., Servers]] = Catalogue("servers of a teacher")
"""What asks them, by what runs on them."""


@dataclass(frozen=True, kw_only=True)
class ServedTeacher(Scores):
    """Scores on servers. A prompt is sent once for all answers of its group."""

    servers: Servers

    def score(self, learner: Learner, rows: Sequence[Row], stats: Mapping[str, HeadStat], chosen: Chosen | None) -> Tensor:
        assert not stats, "hidden states do not leave a server"
        groups: dict[int, list[int]] = {}
        for n, row in enumerate(rows):
            groups.setdefault(id(row.prompt), []).append(n)  # which the rows of a group share; turns of an episode have their own
        questions = [(rows[places[0]].prompt, [_ids_of(rows[n], chosen) for n in places]) for places in groups.values()]
        asked = partial(self.servers.score, questions, temperature=learner.temperature, forbidden=learner.forbidden)
        made = dist.run_synchronized(asked)  # servers that one rank has lost end the step on all
        out_NT = torch.zeros(response_mask(rows).shape)
        for places, scores in zip(groups.values(), made, strict=True):
            for n, scores_TK in zip(places, scores, strict=True):
                found_TK = torch.from_numpy(scores_TK.copy())
                out_NT[n, : len(found_TK)] = found_TK[:, 0]
                if chosen is not None:
                    chosen.told[rows[n].index] = found_TK[:, 1:]
        return out_NT


def _ids_of(row: Row, chosen: Chosen | None) -> np.ndarray:
    """The tokens of an answer, and beside each the chosen ids, int32 [T, 1 + k]."""
    own = np.asarray(row.response, dtype=np.int32)[:, None]
    return own if chosen is None else np.concatenate([own, chosen.of_row[row.index].numpy().astype(np.int32)], 1)


def open_servers(teacher: TeacherSection, *given: Any, stop: Callable[[], bool]) -> tuple[Servers, Mapping[str, Any]]:
    """Meet the servers of a teacher. Every rank calls it.

    Args:
        given: the policy, and the pixels of the teacher's prompts.
        stop: whether the run was asked to end.

    Returns:
        The servers, and what the teacher says of itself.

    Raises:
        ConfigError: a server has no teacher that reads what the policy reads, or ranks have met different ones.
    """
    token = None if teacher.token_file is None else Path(teacher.token_file)
    servers = SERVERS["vllm"](teacher.servers, token, *given, patience=teacher.patience, stop=stop)
    facts = servers.open()
    if len(set(dist.gather(servers.fingerprint))) > 1:
        raise ConfigError("teacher.servers: not all of them have the same teacher; start each with the same model and dtype")
    return servers, facts
