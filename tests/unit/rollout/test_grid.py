"""The cache of running answers: how a token is written to it, and what is alive while it changes its size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.saved_bytes import Live
from vlmrl.policy.attention import Pair
from vlmrl.rollout.engine_fixed import FixedGrid
from vlmrl.rollout.grid import GROW, DecodeGrid

LAYERS, K, R, D = 6, 2, 3, 8
CPU = torch.device("cpu")


class Writes(TorchDispatchMode):
    """What CUDA's deterministic mode does for each write to places that a tensor names: numbers that it sorts, bytes that it copies of
    the tensor that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.sorted: list[int] = []
        self.copied = 0

    def _put(self, to: Tensor, indices: list[Tensor | None]) -> None:
        named = [i for i, index in enumerate(indices) if index is not None]
        leading = named == list(range(len(named)))
        given = [index for index in indices if index is not None]
        self.sorted.append(torch.broadcast_tensors(*given)[0].numel())
        self.copied += 0 if leading and to.is_contiguous() else 2 * to.nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        if name in ("index_put", "_index_put_impl"):
            self._put(args[0], list(args[1]))
        elif name == "index_copy":
            self._put(args[0], [None] * args[1] + [args[2]])
        elif name == "scatter":  # every dimension is named, number by number
            self._put(args[0], [args[2]] * args[0].dim())
        return func(*args, **(kwargs or {}))


def packed(lengths: list[int]) -> list[Pair]:
    return [(torch.randn(1, K, sum(lengths), D), torch.randn(1, K, sum(lengths), D)) for _ in range(LAYERS)]


def step(grid: DecodeGrid | FixedGrid, rows: int) -> Tensor:
    """One token of every row, the same in all layers."""
    grid.advance()
    q, k, v = torch.randn(1, K * R, rows, D), torch.randn(1, K, rows, D), torch.randn(1, K, rows, D)
    return torch.cat([grid.attend(layer, q, k, v, 0.3) for layer in range(LAYERS)])


def test_a_token_of_answers_of_one_age_is_written_by_a_plain_copy() -> None:
    """Also after some have ended: what stands in their places is read by nobody."""
    grid = DecodeGrid(width=3, longest=32, device=CPU)
    grid.admit([0, 1], [3, 3], [5, 4], packed([5, 4]))
    step(grid, 6)
    grid.finish([False, True, False, False, False, True])
    with Writes() as writes:
        step(grid, 4)
    assert (writes.sorted, writes.copied) == ([], 0)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_token_of_answers_of_different_age_copies_nothing_of_the_cache(fixed: bool) -> None:
    """As many numbers are sorted as there are places and heads."""
    grid = FixedGrid(slots=2, width=3, prompt=5, answer=32, device=CPU) if fixed else DecodeGrid(width=3, longest=32, device=CPU)
    grid.admit([0], [3], [5], packed([5]))
    step(grid, 6 if fixed else 3)
    grid.admit([1], [3], [4], packed([4]))
    with Writes() as writes:
        step(grid, 6)
    assert writes.sorted == [2 * 3 * K] * 2 * LAYERS
    assert writes.copied == 0


def test_answers_are_those_of_a_plain_attention() -> None:
    """Prompts of different length and age, answers that end, rooms that grow: every row against its own keys and values alone."""
    torch.manual_seed(0)
    grid, own = DecodeGrid(width=2, longest=3 * GROW, device=CPU), {}
    running: list[tuple[int, int]] = []

    def admit(slot: int, count: int, length: int) -> None:
        layers = packed([length])
        for k in range(count):
            own[slot, k] = [list(pair) for pair in layers]
            running.append((slot, k))
        grid.admit([slot], [count], [length], layers)

    admit(0, 2, 5)
    for token in range(GROW + 40):
        if token == 3:
            admit(1, 2, 9)
        if token == 7:
            grid.finish([False, True, False, False])
            running.remove((0, 1))
        if token == 20:
            grid.finish([True, False, False])
            running.remove((0, 0))
        grid.advance()
        for layer in range(LAYERS):
            q, k, v = torch.randn(1, K * R, len(running), D), *(torch.randn(1, K, len(running), D) for _ in range(2))
            out = grid.attend(layer, q, k, v, 0.3)
            for n, row in enumerate(running):
                pair = own[row][layer]
                pair[0], pair[1] = torch.cat([pair[0], k[:, :, n : n + 1]], dim=2), torch.cat([pair[1], v[:, :, n : n + 1]], dim=2)
                if token % 10 == 3 or token == GROW:
                    keys, values = (x.repeat_interleave(R, dim=1) for x in pair)
                    true = torch.nn.functional.scaled_dot_product_attention(q[:, :, n : n + 1], keys, values, scale=0.3)
                    assert (out[:, n] - true[:, :, 0]).abs().max() < 1e-5
    assert grid.slots == [1]
    assert grid.room == 2 * GROW


def test_rooms_are_doubled_up_to_the_longest_answer() -> None:
    """And no further for a prompt whose answers have ended, which ages until it is dropped."""
    grid = DecodeGrid(width=1, longest=150, device=CPU)
    grid.admit([0], [1], [2], packed([2]))
    rooms = []
    for token in range(150):
        if token == 100:
            grid.admit([1, 2], [1, 1], [2, 2], packed([2, 2]))
        step(grid, 1 if token < 100 else 3)
        rooms.append(grid.room)
    assert sorted(set(rooms)) == [64, 128, 150]
    grid.finish([True, False, False])
    for _ in range(100):
        step(grid, 2)
    assert (grid.room, grid.slots) == (150, [1, 2])


def test_no_more_than_one_layer_is_there_twice() -> None:
    """While prompts come in, rooms grow, prompts come in behind them, and prompts go."""
    with Live() as live:
        grid = DecodeGrid(width=4, longest=4 * GROW, device=CPU)
        layers = packed([50, 50, 50])

        def held() -> int:
            return sum(x.nbytes for pair in (*grid._prompt, *grid._answer) for x in pair)

        def most(before: int) -> int:
            """Bytes beside the larger of the caches before and after."""
            return live.most - max(before, held())

        packed_bytes = live.now
        grid.admit([0, 1, 2], [4, 4, 4], [50, 50, 50], layers)
        assert layers == []
        one = held() / LAYERS
        assert most(packed_bytes) < 1.1 * one
        for _ in range(GROW):
            step(grid, 12)
        before, live.most = held(), live.now
        grid.advance()
        assert grid.room == 2 * GROW
        assert most(before) < 1.1 * held() / LAYERS
        before, live.most = held(), live.now
        more = packed([60])
        grid.admit([3], [4], [60], more)
        assert most(before) < 1.1 * held() / LAYERS
        grid.finish([n >= 8 for n in range(16)])
        before, live.most = held(), live.now
        grid.drop_finished()
        assert grid.slots == [0, 1]
        assert most(before) < 1.1 * before / LAYERS
