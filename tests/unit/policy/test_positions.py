"""M-RoPE positions against the specification's worked example and against transformers' own function."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny import Tiny
from vlmrl.compat import ensure_torchvision
from vlmrl.extras.toy.model import ModelFamily, build_config, build_tokenizer
from vlmrl.families.registry import FAMILIES
from vlmrl.policy.pack import PositionSpec, extend, mrope_positions, prompt_positions, visual_index
from vlmrl.types import MediaHandle, Prompt, Sample

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


PER_STEP = PositionSpec(merge_size=2, tokens_per_second=None, per_step=True)


def test_steps_of_a_video_are_laid_out_like_images() -> None:
    """1 text, step of 1x2, 2 text, step of 1x2, 1 text: each step starts where the text has come to, and takes max(1, 2) positions."""
    positions = mrope_positions(8, [(1, 3), (5, 7)], [video(2, 2, 4, 1.0)], PER_STEP, [0, 0])
    assert positions.tolist() == [[0, 1, 1, 3, 4, 5, 5, 7], [0, 1, 1, 3, 4, 5, 5, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
    pair = mrope_positions(8, [(1, 3), (5, 7)], [image(2, 4), image(2, 4)], PER_STEP)
    assert torch.equal(positions, pair)


def test_video_in_the_layout_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 2 for each temporal step; was the prompt encoded for another model"):
        mrope_positions(6, [(1, 5)], [video(2, 2, 4, 1.0)], PER_STEP)
    with pytest.raises(ValueError, match="needs 4; was the prompt encoded for another model"):
        mrope_positions(8, [(1, 3), (5, 7)], [video(2, 2, 4, 1.0)], SPEC, [0, 0])


def prompt_of(spans: list[tuple[int, int]], media: list[MediaHandle], owners: list[int]) -> Prompt:
    sample = Sample(id="s", task="t", answer_type="number", question="q", media=(), answer="1", gt={})
    return Prompt(sample=sample, ids=(0,) * 99, media=tuple(media), spans=tuple(spans), answer_format="think", owners=tuple(owners))


def test_visual_index_of_mixed_media() -> None:
    media = [image(4, 4), video(2, 2, 4, 1.0), image(2, 4)]
    found = visual_index(prompt_of([(1, 5), (6, 8), (9, 11), (11, 13)], media, [0, 1, 1, 2]))
    assert [(s, e, f, t) for s, e, _, f, t in found] == [(1, 5, 0, 4), (6, 8, 0, 2), (9, 11, 2, 4), (11, 13, 0, 2)]
    assert [span.handle for span in found] == [media[0], media[1], media[1], media[2]]


@pytest.mark.parametrize(
    ("spans", "owners", "message"),
    [
        ([(1, 3)], [0], "hold 2 tokens but its features are 4"),
        ([(1, 3), (3, 7)], [0, 0], "hold 6 tokens but its features are 4"),
        ([(1, 3), (2, 4)], [0, 0], "begins before"),
        ([(5, 7), (1, 3)], [0, 0], "begins before"),
        ([(1, 5), (6, 6)], [0, 0], "is empty"),
        ([(1, 3), (3, 5)], [], "2 visual spans of 1 media"),
        ([(1, 3), (3, 5)], [0, 1], "owners are"),
        ([(1, 3), (3, 5)], [0, -1], "owners are"),
        ([], [], "0 visual spans of 1 media"),
    ],
)
def test_spans_that_do_not_hold_their_media_are_refused(spans: Any, owners: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        visual_index(prompt_of(spans, [video(2, 2, 4, 1.0)], owners))


TOKENIZER = build_tokenizer(["a few words"])


@pytest.fixture(scope="module", params=get_args(ModelFamily))
def core(request: pytest.FixtureRequest) -> Any:
    """The real model without weights: positions need none."""
    ensure_torchvision()
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(build_config(TOKENIZER, request.param)).model


piece = st.one_of(
    st.integers(1, 5),
    st.builds(lambda h, w: image(2 * h, 2 * w), st.integers(1, 4), st.integers(1, 4)),
    st.builds(
        lambda t, h, w, s: video(t, 2 * h, 2 * w, s),
        st.integers(1, 5),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([0.5, 1, 2.4]),
    ),
)


@given(pieces=st.lists(piece, max_size=5))
def test_every_family_equals_its_own_model(core: Any, pieces: list[int | MediaHandle]) -> None:
    """Text, images and videos in any order, under the rule of transformers. One text token stands between media."""
    family = FAMILIES[core.config.model_type]
    types, spans, media, owners = [0], [], [], []
    for part in pieces:
        if isinstance(part, int):
            types += [0] * part
            continue
        for _ in range(part.grid_thw[0] if family.step_times else 1):
            tokens = part.tokens // (part.grid_thw[0] if family.step_times else 1)
            spans.append((len(types), len(types) + tokens))
            owners.append(len(media))
            types += [1 if part.kind == "image" else 2] * tokens + [0]
        media.append(part)
    grids = {kind: [m.grid_thw for m in media if m.kind == kind] for kind in ("image", "video")}
    given_grids: dict[str, Any] = {f"{kind}_grid_thw": torch.tensor(grid) for kind, grid in grids.items() if grid}
    if family.time_scaled and grids["video"]:
        given_grids["second_per_grid_ts"] = torch.tensor([m.seconds_per_grid for m in media if m.kind == "video"])
    theirs, _ = core.get_rope_index(torch.zeros(1, len(types), dtype=torch.int64), torch.tensor([types]), **given_grids)
    per_second = core.config.vision_config.tokens_per_second if family.time_scaled else None
    spec = PositionSpec(merge_size=2, tokens_per_second=per_second, rule="grid", per_step=family.step_times)
    assert torch.equal(mrope_positions(len(types), spans, media, spec, owners), theirs[:, 0])


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
