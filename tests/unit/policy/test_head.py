"""The streaming head against plain log_softmax: values, gradients, memory, edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vlmrl.policy.head import CHUNK_ROWS, CHUNK_VOCAB, streaming_logprobs

M, V, H = 7, 11, 5
CHUNKS = [(1, 1), (2, 3), (M, V), (M + 1, V + 1), (CHUNK_ROWS, CHUNK_VOCAB), (3, V), (M, 4)]


def data(dtype: torch.dtype = torch.float64, *, m: int = M, v: int = V, h: int = H) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    hidden = torch.randn(m, h, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    head = torch.randn(v, h, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, head, torch.randint(0, v, (m,), generator=g)


def plain(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float,
    forbidden: tuple[int, ...],
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, through whole logits."""
    logits = hidden @ head.T if bias is None else hidden @ head.T + bias
    logits = (logits / temperature).index_fill(1, torch.tensor(forbidden, dtype=torch.int64), float("-inf"))
    logp = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return logp, torch.special.entr(logits.softmax(-1)).sum(-1).detach()


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
@pytest.mark.parametrize("forbidden", [(), (2, 9), (0, 1, 2), (9, 10, 9)])
def test_equals_log_softmax_in_float64(chunks: tuple[int, int], temperature: float, forbidden: tuple[int, ...]) -> None:
    hidden, head, targets = data()
    targets = torch.tensor([3, 4, 8, 5, 6, 7, 3])
    weights = torch.linspace(-2, 3, M, dtype=torch.float64)
    logp, entropy = streaming_logprobs(
        hidden, head, targets, temperature=temperature, forbidden=forbidden, chunk_rows=chunks[0], chunk_vocab=chunks[1]
    )
    theirs, their_entropy = plain(hidden, head, targets, temperature=temperature, forbidden=forbidden)
    ours = torch.autograd.grad((weights * logp).sum(), (hidden, head))
    expected = torch.autograd.grad((weights * theirs).sum(), (hidden, head))
    assert logp.dtype == entropy.dtype == torch.float64
    assert not entropy.requires_grad
    torch.testing.assert_close(logp, theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, their_entropy, rtol=0, atol=1e-12)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunks", [pytest.param((1, 1), marks=pytest.mark.slow), (2, 3), (M, V), (M, V + 1)])
def test_gradcheck(chunks: tuple[int, int]) -> None:
    hidden, head, targets = data()
    bias = torch.linspace(-1, 1, V, dtype=torch.float64).requires_grad_()
    forbidden = tuple({0, 1, 2} - set(targets.tolist()))

    def logp(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return streaming_logprobs(h, w, targets, temperature=1.3, forbidden=forbidden, chunk_rows=chunks[0], chunk_vocab=chunks[1], bias=b)[
            0
        ]

    assert torch.autograd.gradcheck(logp, (hidden, head, bias))


def test_by_hand() -> None:
    """Logits (0, log 3): p = (1/4, 3/4); at temperature 1/2 p = (1/10, 9/10)."""
    hidden = torch.ones(2, 1, dtype=torch.float64)
    head = torch.tensor([[0.0], [math.log(3.0)]], dtype=torch.float64)
    targets = torch.tensor([0, 1])
    for temperature, p in ((1.0, (0.25, 0.75)), (0.5, (0.1, 0.9))):
        logp, entropy = streaming_logprobs(hidden, head, targets, temperature=temperature, forbidden=(), chunk_vocab=1)
        q = torch.tensor(p, dtype=torch.float64)
        torch.testing.assert_close(logp.exp(), q, rtol=0, atol=1e-15)
        torch.testing.assert_close(entropy, -(q * q.log()).sum().expand(2), rtol=0, atol=1e-15)


@pytest.mark.parametrize("chunk_vocab", [1, 3, V])
def test_forbidden_target_is_impossible_and_pulls_no_logit_of_its_own(chunk_vocab: int) -> None:
    """As -inf logits do: log-prob -inf; its own row of the head gets no gradient."""
    hidden, head, _ = data()
    targets = torch.tensor([2, 4, 2, 5, 6, 7, 3])
    logp, entropy = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(2,), chunk_vocab=chunk_vocab)
    theirs, their_entropy = plain(hidden, head, targets, temperature=1.0, forbidden=(2,))
    assert logp[0] == logp[2] == float("-inf")
    assert torch.isfinite(logp[[1, 3, 4, 5, 6]]).all()
    torch.testing.assert_close(entropy, their_entropy, rtol=0, atol=1e-12)
    ours = torch.autograd.grad(logp.sum(), (hidden, head))
    for a, b in zip(ours, torch.autograd.grad(theirs.sum(), (hidden, head)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert (ours[1][2] == 0).all()


def test_one_token_left_is_certain() -> None:
    hidden, head, _ = data()
    targets = torch.full((M,), 6)
    logp, entropy = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(*range(6), *range(7, V)), chunk_vocab=2)
    torch.testing.assert_close(logp, torch.zeros_like(logp), rtol=0, atol=1e-15)
    torch.testing.assert_close(entropy, torch.zeros_like(entropy), rtol=0, atol=1e-15)


@pytest.mark.parametrize("chunk_vocab", [1, V])
def test_large_logits_do_not_overflow(chunk_vocab: int) -> None:
    hidden, head, targets = data()
    big = (hidden * 1e3).detach()
    logp, entropy = streaming_logprobs(big, head, targets, temperature=1.0, forbidden=(), chunk_vocab=chunk_vocab)
    theirs, their_entropy = plain(big, head, targets, temperature=1.0, forbidden=())
    torch.testing.assert_close(logp, theirs, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(entropy, their_entropy, rtol=0, atol=1e-9)


def test_minus_infinity_in_the_bias_masks() -> None:
    hidden, head, _ = data()
    targets = torch.full((M,), 4)
    bias = torch.zeros(V, dtype=torch.float64)
    bias[[0, 7]] = float("-inf")
    by_bias = streaming_logprobs(hidden, head, targets, temperature=0.9, forbidden=(), bias=bias, chunk_vocab=1)
    by_ids = streaming_logprobs(hidden, head, targets, temperature=0.9, forbidden=(0, 7))
    for a, b in zip(by_bias, by_ids, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk_vocab", [3, V])
def test_not_a_number_is_seen(chunk_vocab: int) -> None:
    hidden, head, targets = data()
    broken = hidden.detach().clone()
    broken[1, 0] = float("nan")
    logp, entropy = streaming_logprobs(broken, head, targets, temperature=1.0, forbidden=(0,), chunk_vocab=chunk_vocab)
    assert logp.isnan().tolist() == entropy.isnan().tolist() == [False, True, False, False, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_rows(dtype: torch.dtype) -> None:
    hidden, head, targets = data(dtype, m=0)
    logp, entropy = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(1,))
    assert logp.shape == entropy.shape == (0,)
    assert logp.dtype == entropy.dtype == torch.float32
    logp.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == (0, H)
    assert head.grad is not None
    assert (head.grad == 0).all()


@pytest.mark.parametrize("frozen", ["head", "hidden"])
def test_a_frozen_side_gets_no_gradient_and_costs_none(frozen: str) -> None:
    hidden, head, targets = data(m=50, v=60, h=40)
    expected = torch.autograd.grad(plain(hidden, head, targets, temperature=1.0, forbidden=())[0].sum(), (hidden, head))
    parts = {"hidden": hidden, "head": head}
    parts[frozen].requires_grad_(False)
    logp, _ = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(), chunk_rows=8, chunk_vocab=8)
    with Largest() as seen:
        logp.sum().backward()
    assert parts[frozen].grad is None
    other, index = (hidden, 0) if frozen == "head" else (head, 1)
    torch.testing.assert_close(other.grad, expected[index], rtol=0, atol=1e-12)
    assert tuple(parts[frozen].shape) not in seen.shapes


def test_tied_embedding_adds_both_gradients() -> None:
    _, head, targets = data()
    ids = torch.tensor([1, 2, 3, 4, 4, 0, 10])

    def hidden() -> torch.Tensor:
        return torch.tanh(head[ids])

    ours = torch.autograd.grad(
        streaming_logprobs(hidden(), head, targets, temperature=1.0, forbidden=(), chunk_rows=2, chunk_vocab=3)[0].sum(), head
    )
    theirs = torch.autograd.grad(plain(hidden(), head, targets, temperature=1.0, forbidden=())[0].sum(), head)
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunks", [(2, 3), (M, V)])
def test_a_kept_graph_can_run_twice(chunks: tuple[int, int]) -> None:
    hidden, head, targets = data()
    logp, _ = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(), chunk_rows=chunks[0], chunk_vocab=chunks[1])
    first = torch.autograd.grad(logp.sum(), (hidden, head), retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(logp.sum(), (hidden, head)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("chunk", [17, 300])
def test_float32_stays_close_to_log_softmax(chunk: int) -> None:
    hidden, head, targets = data(torch.float32, m=40, v=300, h=16)
    targets = targets.where((targets != 5) & (targets != 299), 7)
    logp, entropy = streaming_logprobs(hidden, head, targets, temperature=0.8, forbidden=(5, 299), chunk_rows=chunk, chunk_vocab=chunk)
    theirs, their_entropy = plain(hidden.double(), head.double(), targets, temperature=0.8, forbidden=(5, 299))
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp.double(), theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), their_entropy, rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(theirs.pow(2).sum(), (hidden, head))
    for a, b in zip(torch.autograd.grad(logp.pow(2).sum(), (hidden, head)), expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hidden_dtype", [torch.bfloat16, torch.float32])
def test_autocast_multiplies_in_bfloat16(hidden_dtype: torch.dtype) -> None:
    """Logits are those of `hidden @ head.T` under autocast, bit for bit; everything after is float32."""
    hidden, head, targets = data(torch.float32, m=20, v=50, h=16)
    hidden = hidden.detach().to(hidden_dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logp, entropy = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(), chunk_rows=6, chunk_vocab=9)
        whole = hidden @ head.T
    assert whole.dtype == torch.bfloat16
    logits = whole.float().log_softmax(-1)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp, logits.gather(1, targets[:, None])[:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, -(logits * logits.exp()).sum(-1), rtol=0, atol=1e-5)
    ours = torch.autograd.grad(logp.sum(), (hidden, head))
    assert (ours[0].dtype, ours[1].dtype) == (hidden_dtype, torch.float32)
    exact = torch.autograd.grad(plain(hidden.float(), head, targets, temperature=1.0, forbidden=())[0].sum(), (hidden, head))
    for a, b in zip(ours, exact, strict=True):
        assert 0 < (a.double() - b.double()).norm() / b.double().norm() < 0.02, "rounded to bfloat16, but no worse"


def test_backward_ignores_the_autocast_of_its_caller() -> None:
    hidden, head, targets = data(torch.float32)
    logp, _ = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(), chunk_rows=2, chunk_vocab=3)
    outside = torch.autograd.grad(logp.sum(), (hidden, head), retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(logp.sum(), (hidden, head))
    for a, b in zip(outside, inside, strict=True):
        assert torch.equal(a, b)


def test_bfloat16_gradients_add_up_in_float32() -> None:
    """64 equal contributions of 1/256 to a gradient near 1: added in bfloat16, each would be lost."""
    rows = 65
    hidden = torch.full((rows, 1), 1.0 / 256, dtype=torch.bfloat16)
    hidden[0] = 1.0
    head = torch.zeros(2, 1, dtype=torch.bfloat16).requires_grad_()
    targets = torch.zeros(rows, dtype=torch.int64)
    logp, _ = streaming_logprobs(hidden, head, targets, temperature=0.5, forbidden=(), chunk_rows=1, chunk_vocab=1)
    logp.sum().backward()
    assert head.grad is not None
    assert head.grad.dtype == torch.bfloat16
    assert head.grad.flatten().tolist() == [1.25, -1.25]


def test_entropy_can_be_left_out() -> None:
    hidden, head, targets = data()
    full, _ = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(), chunk_vocab=4)
    logp, nothing = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(), chunk_vocab=4, entropy=False)
    assert torch.equal(full, logp)
    assert nothing.isnan().all()


class Largest(TorchDispatchMode):
    """Records the shape of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    @property
    def numel(self) -> int:
        return max(torch.Size(shape).numel() for shape in self.shapes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.shapes |= {tuple(leaf.shape) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)}
        return out


@pytest.mark.parametrize("cast", [False, True])
def test_whole_logits_never_exist(cast: bool) -> None:
    m, v, h, chunk = 96, 1000, 4, 32
    hidden, head, targets = data(torch.float32, m=m, v=v, h=h)
    with Largest() as seen, torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
        logp, _ = streaming_logprobs(hidden, head, targets, temperature=0.9, forbidden=(3,), chunk_rows=chunk, chunk_vocab=chunk)
        logp.sum().backward()
    assert (chunk, chunk) in seen.shapes, "the record sees chunks"
    assert seen.numel == v * h, "nothing is larger than the gradient of the head"
    with Largest() as whole:
        plain(hidden, head, targets, temperature=0.9, forbidden=(3,))[0].sum().backward()
    assert whole.numel == m * v, "the record would see whole logits"


def test_one_chunk_is_multiplied_once_forward() -> None:
    """Backward of one chunk takes two products (for hidden and head), of several chunks three each."""

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)
            return func(*args, **(kwargs or {}))

    hidden, head, targets = data()
    for chunk_vocab, forward, backward in ((V, 1, 2), (4, 3, 9)):
        with Products() as first:
            logp, _ = streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(), chunk_vocab=chunk_vocab)
        with Products() as second:
            logp.sum().backward()
        assert (first.count, second.count) == (forward, backward)


@given(st.integers(1, 9), st.integers(2, 12), st.integers(1, 10), st.integers(1, 13), st.floats(0.1, 5.0), st.data())
def test_any_shape_and_chunking(m: int, v: int, rows: int, vocab: int, temperature: float, draw: st.DataObject) -> None:
    hidden, head, targets = data(m=m, v=v)
    forbidden = tuple(draw.draw(st.sets(st.integers(0, v - 1), max_size=v - 1)) - set(targets.tolist()))
    logp, entropy = streaming_logprobs(
        hidden, head, targets, temperature=temperature, forbidden=forbidden, chunk_rows=rows, chunk_vocab=vocab
    )
    theirs, their_entropy = plain(hidden, head, targets, temperature=temperature, forbidden=forbidden)
    torch.testing.assert_close(logp, theirs, rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(entropy, their_entropy, rtol=1e-12, atol=1e-11)
    ours = torch.autograd.grad(logp.sum(), (hidden, head))
    for a, b in zip(ours, torch.autograd.grad(theirs.sum(), (hidden, head)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"chunk_rows": 0}, "chunk_rows"),
        ({"chunk_vocab": 0}, "chunk_vocab"),
        ({"forbidden": (V,)}, "forbidden"),
        ({"forbidden": (-1,)}, "forbidden"),
        ({"forbidden": tuple(range(V))}, "nothing is left"),
        ({"targets_M": torch.full((M,), V)}, "target ids"),
        ({"targets_M": torch.full((M,), -100)}, "target ids -100"),
        ({"targets_M": torch.zeros(M - 1, dtype=torch.int64)}, "targets"),
        ({"targets_M": torch.zeros(M)}, "int64"),
        ({"head_VH": torch.zeros(V, H + 1, dtype=torch.float64)}, "expected"),
        ({"head_VH": torch.zeros(V, H)}, "autocast"),
        ({"bias": torch.zeros(V - 1, dtype=torch.float64)}, "bias"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    hidden, head, targets = data()
    good: dict[str, Any] = {"hidden_MH": hidden, "head_VH": head, "targets_M": targets, "temperature": 1.0, "forbidden": ()}
    with pytest.raises(ValueError, match=message):
        streaming_logprobs(**{**good, **change})


@pytest.mark.parametrize("chunks", [(2, 3), (100, 100)])
@pytest.mark.parametrize("forbidden", [(), (1, 5)])
def test_gradient_of_the_entropy(chunks, forbidden):
    """Both results differentiated together, against autograd on the whole softmax."""
    torch.manual_seed(0)
    hidden, head = torch.randn(7, H, dtype=torch.float64), torch.randn(V, H, dtype=torch.float64)
    targets = torch.tensor([0, 2, 3, 4, 6, 7, 2])
    weight_M, entropy_weight_M = torch.randn(7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)

    def gradients(logprobs):
        h, w = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        logp, entropy = logprobs(h, w)
        (weight_M * logp + entropy_weight_M * entropy).sum().backward()
        return h.grad, w.grad

    def ours(h, w):
        return streaming_logprobs(
            h, w, targets, temperature=0.7, forbidden=forbidden, entropy_gradient=True, chunk_rows=chunks[0], chunk_vocab=chunks[1]
        )

    def theirs(h, w):
        z = (h @ w.T) / 0.7
        allowed = [v for v in range(V) if v not in forbidden]
        logp = z[:, allowed].log_softmax(1)
        place = torch.tensor([allowed.index(int(t)) for t in targets])
        return logp.gather(1, place[:, None])[:, 0], -(logp.exp() * logp).sum(1)

    for mine, expected in zip(gradients(ours), gradients(theirs), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)


def test_gradient_of_the_entropy_needs_the_entropy():
    with pytest.raises(ValueError, match="entropy_gradient"):
        streaming_logprobs(
            torch.ones(1, H), torch.ones(V, H), torch.tensor([0]), temperature=1.0, forbidden=(), entropy=False, entropy_gradient=True
        )


@pytest.mark.parametrize("chunks", [(M, V), (2, 3), (CHUNK_ROWS, CHUNK_VOCAB)])
@pytest.mark.parametrize("forbidden", [(), (2, 9)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_a_soft_cap_bends_logits_before_the_temperature(
    chunks: tuple[int, int], forbidden: tuple[int, ...], temperature: float, entropy_gradient: bool
) -> None:
    hidden, head, _ = data()
    bias = torch.linspace(-1, 1, V, dtype=torch.float64).requires_grad_()
    targets = torch.tensor([3, 4, 8, 5, 6, 7, 3])
    weights = torch.linspace(-2, 3, M, dtype=torch.float64)
    how: dict[str, Any] = {"temperature": temperature, "forbidden": forbidden, "bias": bias, "entropy_gradient": entropy_gradient}
    logp, entropy = streaming_logprobs(hidden, head, targets, cap=1.5, chunk_rows=chunks[0], chunk_vocab=chunks[1], **how)
    bent = 1.5 * torch.tanh((hidden @ head.T + bias) / 1.5) / temperature
    bent = bent.index_fill(1, torch.tensor(forbidden, dtype=torch.int64), -1e30)
    theirs = bent.log_softmax(-1)
    their_entropy = -(theirs.exp() * theirs).sum(-1)
    mine, its = (weights * logp).sum(), (weights * theirs.gather(1, targets[:, None])[:, 0]).sum()
    if entropy_gradient:
        mine, its = mine + (weights.square() * entropy).sum(), its + (weights.square() * their_entropy).sum()
    torch.testing.assert_close(logp, theirs.gather(1, targets[:, None])[:, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy.detach(), their_entropy.detach(), rtol=0, atol=1e-12)
    ours, expected = (torch.autograd.grad(loss, (hidden, head, bias)) for loss in (mine, its))
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
    uncapped, _ = streaming_logprobs(hidden, head, targets, **how)
    assert float((uncapped - logp).detach().abs().max()) > 1e-2


def test_a_soft_cap_must_be_positive() -> None:
    hidden, head, targets = data()
    with pytest.raises(ValueError, match="soft cap"):
        streaming_logprobs(hidden, head, targets, temperature=1.0, forbidden=(), cap=0.0)
