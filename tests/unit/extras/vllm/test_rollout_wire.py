"""Messages between trainer and rollout servers: what goes in comes out, and what is no message is no message."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import media_layouts
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.extras.vllm.inputs import Completion, Placed, PlacedMedium, Version, place
from vlmrl.extras.vllm.messages import GenerateRequest, answers_from, answers_message, ask_from, ask_message, version_from
from vlmrl.extras.vllm.wire import MAGIC, WireError, decode, digest, encode, length
from vlmrl.types import GenerationSettings

VERSION = Version(policy=3, vision=1, whole=2**61)
MEDIUM = PlacedMedium(kind="video", key="k", grid=(1, 2, 2), start=1, end=4, shown=((1, 2), (3, 4)), seconds=0.5)


def joined(pieces: list[memoryview]) -> bytearray:
    return bytearray(b"".join(pieces))


def question(**changes: Any) -> GenerateRequest:
    given: dict[str, Any] = {
        "placed": Placed(ids=(5, 151655, 151655, 151655, 7), media=(MEDIUM,), merge=2),
        "version": VERSION,
        "settings": GenerationSettings(max_new_tokens=12, temperature=0.7, top_p=0.9),
        "seeds": (0, 2**62),
        "ends": (1,),
        "forbidden": (2, 3),
        "patches": {"k": np.arange(4 * 24, dtype=np.uint8).reshape(4, 24)},
    }
    return GenerateRequest(**(given | changes))


def test_tensors_of_every_type_come_out_bit_for_bit() -> None:
    given = {
        "u8": torch.arange(7, dtype=torch.uint8),
        "bf16": torch.randn(3, 5).bfloat16(),
        "f16": torch.randn(2, 3).half(),
        "f32": torch.randn(4, 3).t(),
        "f64": torch.tensor(float("nan"), dtype=torch.float64),
        "i32": torch.zeros(0, 4, dtype=torch.int32),
        "i64": torch.tensor([-(2**62)]),
    }
    pieces = encode({"a": [1, "ü"]}, given.items())
    data = joined(pieces)
    assert length(pieces) == len(data)
    message = decode(data)
    assert message.body == {"a": [1, "ü"]}
    assert list(message.tensors) == list(given)
    for name, tensor in given.items():
        got = message.tensors[name]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got.contiguous().reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8))


def test_a_message_that_is_cut_off_anywhere_or_too_long_is_none() -> None:
    data = joined(encode({"a": 1}, [("x", torch.arange(5)), ("y", torch.zeros(3, dtype=torch.uint8))]))
    for end in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:end])
    with pytest.raises(WireError, match="8 bytes too many"):
        decode(data + bytes(8))
    assert decode(data).body == {"a": 1}


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"body": {}, "tensors": [], "more": 1}',
        b'{"body": [], "tensors": []}',
        b'{"body": {}, "tensors": [["x", "object", [1]]]}',
        b'{"body": {}, "tensors": [["x", "f32", [-1]]]}',
        b'{"body": {}, "tensors": [["x", "f32", [true]]]}',
        b'{"body": {}, "tensors": [["x", "f32", [1, 1099511627776]]]}',
        b'{"body": {}, "tensors": [["x", "u8", [0]], ["x", "u8", [0]]]}',
        b'{"body": {"a": NaN}, "tensors": []}',
        b'{"body": {"a": ' + b"[" * 32 + b"1" + b"]" * 32 + b'}, "tensors": []}',
        b'{"body": {"a": [' + b"1," * 2**20 + b'1]}, "tensors": []}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_header_that_lies_is_refused(header: bytes) -> None:
    header += b" " * (-len(header) % 8)
    with pytest.raises(WireError, match=r"its header is not|comes twice"):
        decode(bytearray(MAGIC + len(header).to_bytes(8, "little") + header))


def test_types_without_a_name_are_not_sent() -> None:
    with pytest.raises(WireError, match="complex64"):
        encode({}, [("x", torch.zeros(1, dtype=torch.complex64))])


def test_a_question_comes_out_as_it_went_in() -> None:
    ask = question()
    got = ask_from(decode(joined(ask_message(ask))))
    assert np.array_equal(got.patches["k"], ask.patches["k"])
    assert dataclasses.replace(got, patches={}) == dataclasses.replace(ask, patches={})


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
        got = ask_from(decode(joined(ask_message(question(placed=placed, patches={})))))
        assert got.placed == placed


def changed(path: tuple[Any, ...], value: Any) -> bytearray:
    """A question with one value of its body replaced."""
    message = decode(joined(ask_message(question())))
    at: Any = message.body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return joined(encode(json.loads(json.dumps(message.body)), message.tensors.items()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("seeds",), []),
        (("seeds",), [0.5]),
        (("seeds",), None),
        (("version",), {"policy": 1}),
        (("version", "whole"), "1"),
        (("media", 0, "kind"), "sound"),
        (("media", 0, "grid"), [1, 2]),
        (("media", 0, "grid"), [0, 2, 2]),
        (("media", 0, "end"), 6),
        (("media", 0, "start"), -1),
        (("media", 0, "shown"), [[0, 2]]),
        (("media", 0, "key"), 7),
        (("media",), 1),
        (("settings",), {}),
        (("merge",), "many"),
    ],
)
def test_a_question_that_is_none_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(WireError):
        ask_from(decode(changed(path, value)))


def test_ids_and_patches_have_their_types() -> None:
    message = decode(joined(ask_message(question())))
    for name, wrong in (("ids", torch.zeros(5)), ("patches.k", torch.zeros(4, 24)), ("patches.k", torch.zeros(4, dtype=torch.uint8))):
        with pytest.raises(WireError):
            ask_from(dataclasses.replace(message, tensors=message.tensors | {name: wrong}))
    with pytest.raises(WireError):
        ask_from(dataclasses.replace(message, tensors={}))


def test_answers_come_out_as_they_went_in_and_know_their_prompt() -> None:
    ids = (5, 6, 7)
    given = [
        Completion(ids=(9, 1), logprobs=(-0.1, -1e-300), reason="stop", cached=2, prompt_ids=ids),
        Completion(ids=(), logprobs=(), reason="abort", cached=0, prompt_ids=ids),
    ]
    message = decode(joined(answers_message(VERSION, given)))
    assert answers_from(message, ids) == (VERSION, given)
    _, other = answers_from(message, (5, 6, 8))
    assert [one.prompt_ids for one in other] == [(), ()], "answers to another prompt"
    assert digest(ids) != digest((5, 6, 7, 0))
    for broken in ({"answers": 1}, {"answers": [{}]}, {}):
        with pytest.raises(WireError):
            answers_from(dataclasses.replace(message, body=broken), ids)
    with pytest.raises(WireError):
        version_from([1, 2, 3])
