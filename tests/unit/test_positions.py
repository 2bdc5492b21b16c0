"""M-RoPE positions against the specification's worked example and against transformers' own function."""

from __future__ import annotations

import pytest
import torch

from vlmrl.policy.positions import PositionSpec, extend, mrope_positions, prompt_positions
from vlmrl.testing.tiny import Tiny
from vlmrl.types import MediaHandle

SPEC = PositionSpec(merge_size=2, tokens_per_second=None)


def image(h: int, w: int) -> MediaHandle:
    return MediaHandle(kind="image", key="k", grid_thw=(1, h, w), tokens=h * w // 4)


def video(t: int, h: int, w: int, seconds: float) -> MediaHandle:
    return MediaHandle(kind="video", key="v", grid_thw=(t, h, w), tokens=t * h * w // 4, seconds_per_grid=seconds)


def test_image_example_of_the_specification() -> None:
    """4 text + image grid (1, 8, 12) with merge 2 + 6 text: image rows from (4,4,4) to (4,7,9), last text 15, answer at 16."""
    positions = mrope_positions(34, [(4, 28)], [image(8, 12)], SPEC)
    assert positions[:, 4].tolist() == [4, 4, 4]
    assert positions[:, 27].tolist() == [4, 7, 9]
    assert positions[:, 33].tolist() == [15, 15, 15]
    assert extend(positions, 3)[:, 34:].tolist() == [[16, 17, 18]] * 3


def test_video_example_of_the_specification() -> None:
    """2 text, 20 temporal steps of a 2x2 merged grid with 4 positions per step, 4 text: closing text at 79 or at 4."""
    spec = {rule: PositionSpec(merge_size=2, tokens_per_second=4.0, rule=rule) for rule in ("max", "grid")}
    of_max = mrope_positions(86, [(2, 82)], [video(20, 4, 4, 1.0)], spec["max"])
    of_grid = mrope_positions(86, [(2, 82)], [video(20, 4, 4, 1.0)], spec["grid"])
    assert of_max[0, 82:].tolist() == [79, 80, 81, 82]
    assert of_grid[0, 82:].tolist() == [4, 5, 6, 7]
    assert torch.equal(of_max[:, :82], of_grid[:, :82])


def test_text_only_counts() -> None:
    assert mrope_positions(5, [], [], SPEC).tolist() == [[0, 1, 2, 3, 4]] * 3


def test_rules_agree_on_images() -> None:
    grid = PositionSpec(merge_size=2, tokens_per_second=2.0, rule="grid")
    top = PositionSpec(merge_size=2, tokens_per_second=2.0, rule="max")
    spans, media = [(1, 13), (15, 17)], [image(4, 12), image(2, 4)]
    assert torch.equal(mrope_positions(20, spans, media, grid), mrope_positions(20, spans, media, top))


def test_span_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="23 tokens"):
        mrope_positions(34, [(4, 27)], [image(8, 12)], SPEC)


def test_response_cannot_follow_a_visual_block() -> None:
    with pytest.raises(ValueError, match="visual block"):
        extend(mrope_positions(28, [(4, 28)], [image(8, 12)], SPEC), 1)


def test_grid_rule_equals_transformers(tiny: Tiny) -> None:
    for prompt in tiny.prompts(6):
        (handle,) = prompt.media
        ids = torch.tensor([prompt.ids])
        types = (ids == tiny.bundle.pad_ids["video"]).int() * 2
        theirs, _ = tiny.policy.core.get_rope_index(
            ids, types, video_grid_thw=torch.tensor([handle.grid_thw]), second_per_grid_ts=torch.tensor([handle.seconds_per_grid])
        )
        spec = PositionSpec(merge_size=2, tokens_per_second=tiny.policy.positions.tokens_per_second, rule="grid")
        assert torch.equal(prompt_positions(prompt, spec), theirs[:, 0])
