"""Training log-probs: chunking, padding, placeholder checks, gradients through the tower."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.tiny import Tiny
from vlmrl.policy.head import streaming_logprobs
from vlmrl.policy.load import freeze
from vlmrl.policy.pack import Row
from vlmrl.policy.repeat import pack, repeat, split
from vlmrl.policy.vision import VisionCache
from vlmrl.types import PARTS


def rows_of(tiny: Tiny, count: int = 4) -> list[Row]:
    texts = ["<answer>1.0 to 2.0</answer>", "<think>red</think>", "<answer>3</answer>", "x"]
    prompts = tiny.prompts(count)
    return [
        Row(index=n, group=n // 2, prompt=prompts[n // 2], response=(*tiny.bundle.tokenize(texts[n % 4]), tiny.bundle.end_ids[0]))
        for n in range(count)
    ]


def score(tiny: Tiny, rows: list[Row], *, train: bool = False) -> torch.Tensor:
    batch = pack(rows, tiny.policy.positions, tiny.policy.device, pad_id=0)
    scored = repeat(tiny.policy, batch, tiny.vision, temperature=1.0, forbidden=(), train=train)
    return scored.logp_BT


def reference_logp(
    hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, temperature: float, forbidden: tuple[int, ...]
) -> torch.Tensor:
    logits = hidden @ head.T / temperature
    logits[:, list(forbidden)] = float("-inf")
    return logits.log_softmax(-1)[torch.arange(len(targets)), targets]


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_do_not_change_values_or_gradients(chunk: int) -> None:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=g, requires_grad=True)
    head = torch.randn(11, 5, generator=g, requires_grad=True)
    targets = torch.tensor([0, 3, 4, 10, 5, 6, 1])
    logp, entropy = streaming_logprobs(hidden, head, targets, temperature=0.7, forbidden=(2, 9), chunk_rows=chunk)
    logp.pow(2).sum().backward()
    grads = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None
    plain = reference_logp(hidden, head, targets, 0.7, (2, 9))
    plain.pow(2).sum().backward()
    assert torch.allclose(logp, plain, atol=1e-5)
    assert torch.allclose(grads[0], hidden.grad, atol=1e-4)
    assert torch.allclose(grads[1], head.grad, atol=1e-4)
    p = (hidden @ head.T / 0.7).index_fill(1, torch.tensor([2, 9]), float("-inf")).softmax(-1)
    assert torch.allclose(entropy, torch.special.entr(p).sum(-1), atol=1e-5)


def test_no_rows_give_an_empty_result_that_joins_backward() -> None:
    hidden = torch.zeros(0, 5, requires_grad=True)
    logp, _ = streaming_logprobs(hidden, torch.randn(11, 5), torch.zeros(0, dtype=torch.int64), temperature=1.0, forbidden=())
    assert logp.shape == (0,)
    logp.sum().backward()


def test_padding_changes_nothing(tiny: Tiny) -> None:
    rows = rows_of(tiny)
    together = score(tiny, rows)
    for n, row in enumerate(rows):
        alone = score(tiny, [row])[0]
        assert torch.allclose(together[n, : len(alone)], alone, atol=1e-5)
        assert (together[n, len(alone) :] == 0).all()


def test_equals_the_model_called_the_usual_way(tiny: Tiny) -> None:
    (row,) = rows_of(tiny, 1)
    (handle,) = row.prompt.media
    batch = pack([row], tiny.policy.positions, tiny.policy.device, pad_id=0)
    with torch.no_grad():
        logits = tiny.policy.model(
            input_ids=batch.ids_BS,
            attention_mask=batch.attention_BS,
            position_ids=batch.positions_3BS,
            pixel_values_videos=tiny.bundle.pixel_values(tiny.store.get_key(handle.key).pixel_values, "video"),
            video_grid_thw=torch.tensor([handle.grid_thw]),
        ).logits[0]
    start = len(row.prompt.ids) - 1
    theirs = logits[start : start + len(row.response)].log_softmax(-1)[torch.arange(len(row.response)), torch.tensor(row.response)]
    assert torch.allclose(score(tiny, [row])[0], theirs, atol=1e-5)


def test_sampled_placeholder_is_refused(tiny: Tiny) -> None:
    (row,) = rows_of(tiny, 1)
    bad = Row(index=0, group=0, prompt=row.prompt, response=(tiny.bundle.pad_ids["video"], *row.response))
    with pytest.raises(ValueError, match="placeholder"):
        score(tiny, [bad])


def test_tower_gets_gradient_and_is_run_once_per_medium(tiny: Tiny) -> None:
    rows = [Row(index=n, group=0, prompt=tiny.prompts(1)[0], response=(5, 6, 7)) for n in range(4)]
    freeze(tiny.policy, ())
    before = tiny.vision.patches_encoded
    score(tiny, rows, train=True).sum().backward()
    tower = [p for name, p in tiny.policy.model.named_parameters() if ".visual." in name]
    assert all(p.grad is not None for p in tower)
    assert any(bool(p.grad.abs().max() > 0) for p in tower)
    t, h, w = rows[0].prompt.media[0].grid_thw
    assert tiny.vision.patches_encoded - before == t * h * w
    tiny.policy.model.zero_grad(set_to_none=True)


def test_repeated_rows_give_the_same_gradient_as_separate_forwards(tiny: Tiny) -> None:
    rows = rows_of(tiny)
    freeze(tiny.policy, ())
    parameters = [p for _, p in sorted(tiny.policy.model.named_parameters())]

    def gradient(parts: list[list[Row]]) -> list[torch.Tensor]:
        tiny.policy.model.zero_grad(set_to_none=True)
        for part in parts:
            score(tiny, part, train=True).sum().backward()
        return [p.grad.clone() for p in parameters]

    for a, b in zip(gradient([rows]), gradient([[row] for row in rows]), strict=True):
        assert torch.allclose(a, b, atol=2e-4)
    tiny.policy.model.zero_grad(set_to_none=True)


def test_freeze_parts(tiny: Tiny) -> None:
    everything = {name for name, _ in freeze(tiny.policy, ())}
    without_vision = {name for name, _ in freeze(tiny.policy, ("vision",))}
    assert tiny.policy.vision_trains, "the merger still trains"
    only_language = {name for name, _ in freeze(tiny.policy, ("vision", "projector"))}
    assert not tiny.policy.vision_trains
    assert only_language < without_vision < everything
    assert not any(".visual." in name for name in only_language)
    freeze(tiny.policy, ())


def test_split_respects_the_budget_and_the_order(tiny: Tiny) -> None:
    rows = rows_of(tiny, 4) * 3
    longest = max(len(r.prompt.ids) + len(r.response) for r in rows)
    parts = split(rows, longest * 3)
    assert [place for part in parts for place in part] == list(range(12))
    assert all(len(part) * max(len(rows[n].prompt.ids) + len(rows[n].response) for n in part) <= longest * 3 for part in parts)
    assert [len(part) for part in split(rows, 1)] == [1] * 12


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters(tiny_files: tuple[Path, Path], tiny: Tiny) -> None:
    from vlmrl.policy.load import load_policy

    half = load_policy(str(tiny_files[0]), tiny.bundle, device="cpu", dtype="bfloat16", trains=PARTS)
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    rows = rows_of(tiny)
    batch = pack(rows, half.positions, half.device, pad_id=0)
    scored = repeat(half, batch, VisionCache(tiny.store, budget_bytes=2**26), temperature=1.0, forbidden=(), train=True)
    scored.logp_BT.sum().backward()
    exact = score(tiny, rows)
    assert scored.logp_BT.dtype == torch.float32
    gap = (scored.logp_BT - exact).abs().max()
    assert 0 < gap < 0.2, "bfloat16 rounds, but not wildly"
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in half.model.parameters())
