"""Packed rows over several ranks: how columns and heads are dealt, and the log-probs and gradients of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support import sequence_ranks
from tests.support.ranks import run_ranks
from tests.support.sequence_ranks import CASES
from vlmrl.config.train import TrainSection
from vlmrl.errors import ConfigError
from vlmrl.extras.scale.sequence import Columns, Ranks, require_heads
from vlmrl.extras.scale.sharing import ranks_of


def columns(tokens: int, rank: int, size: int, owner: int = 0) -> Columns:
    return Columns(Ranks(rank=rank, size=size, control=None, device=None), tokens, owner)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 8, 1001])
@pytest.mark.parametrize("size", [2, 4])
def test_every_column_lies_on_one_rank(tokens: int, size: int) -> None:
    dealt = [columns(tokens, rank, size) for rank in range(size)]
    assert [at for of in dealt for at in range(of.own.start, of.own.stop)] == list(range(tokens))
    assert max(dealt[0].sizes) - min(dealt[0].sizes) <= 1
    places = torch.randint(tokens, (50,), generator=torch.Generator().manual_seed(0))
    for rank, found in enumerate(dealt[0].of(places)):
        assert found.tolist() == [n for n, at in enumerate(places.tolist()) if dealt[rank].own.start <= at < dealt[rank].own.stop]


@pytest.mark.parametrize(("heads", "keys", "size"), [(28, 4, 4), (16, 2, 4), (64, 8, 2), (2, 1, 2)])
def test_heads_that_can_be_shared(heads: int, keys: int, size: int) -> None:
    require_heads(heads, keys, size)


@pytest.mark.parametrize(("heads", "keys", "size"), [(14, 2, 4), (2, 2, 4), (12, 3, 2)])
def test_heads_that_cannot(heads: int, keys: int, size: int) -> None:
    with pytest.raises(ConfigError, match=rf"train\.sequence: {size} ranks cannot share {heads} heads"):
        require_heads(heads, keys, size)


def test_one_process_has_nobody_to_share_with() -> None:
    assert ranks_of(TrainSection()) is None
    with pytest.raises(ConfigError, match=r"train\.sequence: 2 does not divide the 1 rank "):
        ranks_of(TrainSection(sequence=2))


def check(folder: Path, number: int) -> None:
    run_ranks(number, folder / "logs", sequence_ranks.main, folder)
    found = json.loads((folder / f"{number}.json").read_text())
    assert set(found) == set(CASES)
    for name, of in found.items():
        for what, difference in of.items():
            assert difference < 1e-5, (name, what)  # NaN is not smaller either


@pytest.mark.not_fast
def test_two_ranks_give_the_gradients_of_one(tmp_path: Path) -> None:
    """Rows with pictures, videos and text, whole answers in the loss, three backends, parts frozen, recomputation."""
    check(tmp_path, 2)


@pytest.mark.slow
def test_four_ranks_do_with_two_key_heads(tmp_path: Path) -> None:
    check(tmp_path, 4)
