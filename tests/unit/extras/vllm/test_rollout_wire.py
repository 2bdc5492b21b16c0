"""Messages between trainer and rollout servers: what goes in comes out, and what is no message is no message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from tests.support import media_layouts
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.extras.vllm.inputs import Completion, Placed, PlacedMedium, Version, place
from vlmrl.extras.vllm.wire import (
    BEAT,
    GenerateRequest,
    WireError,
    answers_from,
    answers_message,
    ask_from,
    ask_message,
    body_from,
    body_message,
    digest,
    reply_from,
    version_from,
)
from vlmrl.types import GenerationSettings

VERSION = Version(policy=3, vision=1, whole=2**61)
PATCHES = {"k": np.arange(4 * 24, dtype=np.uint8).reshape(4, 24)}
MEDIUM = PlacedMedium(kind="video", key="k", grid=(1, 2, 2), start=1, end=4, shown=((1, 2), (3, 4)), seconds=0.5)


def question(**changes: Any) -> GenerateRequest:
    given: dict[str, Any] = {
        "placed": Placed(ids=(5, 151655, 151655, 151655, 7), media=(MEDIUM,), merge=2),
        "version": VERSION,
        "settings": GenerationSettings(max_new_tokens=12, temperature=0.7, top_p=0.9),
        "seeds": (0, 2**62),
        "ends": (1,),
        "forbidden": (2, 3),
    }
    return GenerateRequest(**(given | changes))


def test_a_question_comes_out_as_it_went_in() -> None:
    ask = question()
    got, patches = ask_from(ask_message(ask, PATCHES))
    assert got == ask
    assert list(patches) == ["k"]
    assert np.array_equal(patches["k"], PATCHES["k"])
    assert ask_from(ask_message(ask, {})) == (ask, {})


def test_a_question_that_is_cut_off_anywhere_or_too_long_is_none() -> None:
    data = ask_message(question(), PATCHES)
    for end in (*range(0, len(data), 7), len(data) - 1):
        with pytest.raises(WireError):
            ask_from(data[:end])
    with pytest.raises(WireError):
        ask_from(data + bytes(8))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b'{"a": NaN}',
        b"\xff",
        b"[" * 100_000,
        b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
        b"[" + b"1," * 2**20 + b"1]",
    ],
)
def test_what_is_no_object_of_json_is_no_message(data: bytes) -> None:
    with pytest.raises(WireError):
        body_from(data)


@pytest.mark.parametrize("data", [b"", b"hello", b"[1]", b"[" * 100_000])
def test_what_is_no_object_of_json_is_no_reply(data: bytes) -> None:
    with pytest.raises(WireError):
        reply_from(data)
    assert reply_from(BEAT * 3 + body_message({"a": [1, "ü"]})) == {"a": [1, "ü"]}


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_prompts_of_every_layout_keep_their_places(family: ModelFamily, tmp_path: Path) -> None:
    loaded = media_layouts.make(tmp_path, family)
    for name, prompt in media_layouts.prompts(loaded).items():
        timed = loaded.policy.positions.tokens_per_second is not None
        placed = place(prompt, merge=loaded.bundle.merge_size, timed=timed)
        assert [medium.key for medium in placed.media] == [handle.key for handle in prompt.media], name
        for medium, handle in zip(placed.media, prompt.media, strict=True):
            shown = medium.shown or ((medium.start, medium.end),)
            assert sum(end - start for start, end in shown) == handle.tokens
            pad = loaded.bundle.pad_ids[handle.kind]
            assert all(placed.ids[at] == pad for start, end in shown for at in range(start, end))
            assert (medium.seconds is not None) == (timed and handle.kind == "video")
        got, _ = ask_from(ask_message(question(placed=placed), {}))
        assert got.placed == placed


def changed(path: tuple[Any, ...], value: Any) -> bytes:
    """A question with one value of its description replaced."""
    tensors = load(ask_message(question(), PATCHES))
    body = json.loads(tensors["ask"].numpy().tobytes())
    at: Any = body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return save(tensors | {"ask": torch.frombuffer(bytearray(json.dumps(body).encode()), dtype=torch.uint8)})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("seeds",), []),
        (("seeds",), [0.5]),
        (("seeds",), None),
        (("version",), {"policy": 1}),
        (("version", "whole"), "1"),
        (("placed", "media", 0, "kind"), "sound"),
        (("placed", "media", 0, "grid"), [1, 2]),
        (("placed", "media", 0, "grid"), [0, 2, 2]),
        (("placed", "media", 0, "end"), 6),
        (("placed", "media", 0, "start"), -1),
        (("placed", "media", 0, "shown"), [[0, 2]]),
        (("placed", "media", 0, "seconds"), 0.0),
        (("placed", "media", 0, "key"), 7),
        (("placed", "media"), 1),
        (("settings",), {}),
        (("placed", "merge"), "many"),
        (("placed", "merge"), 0),
        (("placed", "ids"), [5, 1.5]),
    ],
)
def test_a_question_that_is_none_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(WireError):
        ask_from(changed(path, value))


def test_patches_are_rows_of_bytes_and_nothing_else_comes_along() -> None:
    tensors = load(ask_message(question(), PATCHES))
    for more in (
        {"patches.k": torch.zeros(4, 24)},
        {"patches.k": torch.zeros(1, 4, 24, dtype=torch.uint8)},
        {"other": torch.zeros(4, 24, dtype=torch.uint8)},
    ):
        with pytest.raises(WireError, match="rows of bytes"):
            ask_from(save(tensors | more))
    with pytest.raises(WireError):
        ask_from(save({"patches.k": torch.zeros(4, 24, dtype=torch.uint8)}))


def test_answers_come_out_as_they_went_in_and_know_their_prompt() -> None:
    ids = (5, 6, 7)
    given = [
        Completion(ids=(9, 1), logprobs=(-0.1, -1e-300), reason="stop", cached=2, prompt_ids=ids),
        Completion(ids=(), logprobs=(), reason="abort", cached=0, prompt_ids=ids),
    ]
    message = reply_from(body_message(answers_message(VERSION, given)))
    assert answers_from(message, ids) == (VERSION, given)
    _, other = answers_from(message, (5, 6, 8))
    assert [one.prompt_ids for one in other] == [(), ()], "answers to another prompt"
    assert digest(ids) != digest((5, 6, 7, 0))
    for broken in ({"answers": 1}, {"answers": [{}]}, {}):
        with pytest.raises(WireError):
            answers_from(message | broken if broken else {}, ids)
    with pytest.raises(WireError):
        version_from([1, 2, 3])


def test_log_probs_that_are_no_numbers_come_out_as_what_they_are() -> None:
    """So that the run ends for them, and not for the message."""
    given = Completion(ids=(9,), logprobs=(float("nan"),), reason="stop", cached=0, prompt_ids=(5,))
    _, (got,) = answers_from(reply_from(body_message(answers_message(VERSION, [given]))), (5,))
    assert np.isnan(got.logprobs[0])
