"""Frames that are sent as the model is to see them are what the file gave; other shapes are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.tiny import MEDIA, Tiny
from vlmrl.errors import MediaError, RowError
from vlmrl.extras.serve.incoming import Incoming
from vlmrl.extras.serve.protocol import Part, Refused
from vlmrl.media.store import MediaStore


def test_frames_as_they_are_give_the_patches_of_the_file(tiny: Tiny) -> None:
    row = tiny.samples[0]
    read = tiny.store.get(row.media[0], tiny.encoder.root(row))
    assert read.times is not None
    assert read.handle.seconds_per_grid is not None
    spacing = read.handle.seconds_per_grid / tiny.bundle.temporal_patch_size
    sent = MediaStore.of(MEDIA, tiny.bundle).put(np.array(read.frames), "video", times=np.array(read.times), spacing=spacing)
    assert (sent.pixel_values == read.pixel_values).all()
    assert (sent.handle.grid_thw, sent.handle.tokens, sent.handle.seconds_per_grid) == (
        *(read.handle.grid_thw, read.handle.tokens, read.handle.seconds_per_grid),
    )
    store = MediaStore.of(MEDIA, tiny.bundle)
    first = store.put(np.zeros((1, 56, 56, 3), np.uint8), "image")
    assert store.put(np.zeros((1, 56, 56, 3), np.uint8), "image") is first
    assert store.put(np.ones((1, 56, 56, 3), np.uint8), "image").handle.key != first.handle.key
    assert store.get_key(first.handle.key) is first


@pytest.mark.parametrize(
    ("shape", "kind"), [((1, 57, 56, 3), "image"), ((2, 56, 56, 3), "image"), ((3, 56, 56, 3), "video"), ((0, 56, 56, 3), "video")]
)
def test_frames_of_another_shape_are_refused(tiny: Tiny, shape: tuple[int, ...], kind: str) -> None:
    with pytest.raises(MediaError, match="multiples of 28 pixels"):
        tiny.store.put(np.zeros(shape, np.uint8), kind)


def test_what_does_not_fit_the_cache_is_refused(tiny: Tiny) -> None:
    import dataclasses

    small = MediaStore.of(dataclasses.replace(MEDIA, cache_bytes=1000), tiny.bundle)
    with pytest.raises(MediaError, match="too_large"):
        small.put(np.zeros((1, 56, 56, 3), np.uint8), "image")


def test_only_named_folders_are_read(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "outside.png").write_bytes(b"x")
    (tmp_path / "allowed" / "link.png").symlink_to(tmp_path / "outside.png")
    incoming = Incoming(tiny.store, tmp_path, [tmp_path / "allowed"], pixels={}, rate={})
    for url, told in (
        (str(tmp_path / "outside.png"), "no file in the folders"),
        ("../outside.png", "contains '..'"),
        ("link.png", "no file in the folders"),
        ("http://127.0.0.1/a.png", "nothing is downloaded"),
        ("file://elsewhere/a.png", "nothing is downloaded"),
        ("http://[::1/a.png", "no URL"),
        ("data:image/png,plain", "base64"),
    ):
        with pytest.raises(Refused, match=told):
            incoming.open(Part(kind="image", value=url))
    with pytest.raises(Refused, match="sized as in training"):
        Incoming(tiny.store, tmp_path, [], pixels={"max_pixels": 3}, rate={})


@pytest.mark.parametrize("depth", ["relative", "absolute", "climbs from inside", "file URL", "through a link", "a link"])
def test_nobody_learns_which_files_are_there(tiny: Tiny, tmp_path: Path, depth: str) -> None:
    """Outside of the allowed folders a file that is there, a folder and nothing give the same answer."""
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    allowed.mkdir()
    (outside / "inner.png").mkdir(parents=True)
    (outside / "there.png").write_bytes(b"secret")
    (allowed / "out").symlink_to(outside)
    for name in ("there.png", "never.png", "inner.png"):
        (allowed / name).symlink_to(outside / name)
    form = {
        "relative": "../outside/{}",
        "absolute": f"{outside}/{{}}",
        "climbs from inside": f"{allowed}/../outside/{{}}",
        "file URL": f"file://{allowed}/%2e%2e/outside/{{}}",
        "through a link": "out/{}",
        "a link": "{}",
    }[depth]
    incoming = Incoming(tiny.store, tmp_path, [allowed], pixels={}, rate={})
    told: list[tuple[str, int, str | None]] = []
    for name in ("there.png", "never.png", "inner.png"):
        with pytest.raises(Refused) as refused:
            incoming.open(Part(kind="image", value=form.format(name)))
        told.append((str(refused.value).replace(name, "NAME"), refused.value.status, refused.value.code))
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("name", ["n" * 100_000, "a/" * 5000 + "b", f"{'n' * 300}.png", "a\x00b.png", "\ud800.png"])
@pytest.mark.parametrize("begin", ["", "ALLOWED/"])
def test_names_that_no_file_has_are_refused(tiny: Tiny, tmp_path: Path, begin: str, name: str) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    incoming = Incoming(tiny.store, tmp_path, [allowed], pixels={}, rate={})
    with pytest.raises(Refused) as refused:
        incoming.open(Part(kind="image", value=begin.replace("ALLOWED", str(allowed)) + name))
    assert refused.value.status in (400, 403)


def test_a_name_is_looked_for_in_each_folder(tiny: Tiny, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    Image.new("RGB", (60, 60)).save(folders[1] / "p.png")
    incoming = Incoming(tiny.store, tmp_path, folders, pixels={}, rate={})
    seen = [incoming.open(Part(kind="image", value=url)).handle.key for url in ("p.png", str(folders[1] / "p.png"))]
    assert seen[0] == seen[1]
    (folders[0] / "p.png").write_bytes(b"no picture")
    with pytest.raises(Refused, match="image"):
        incoming.open(Part(kind="image", value="p.png"))


def test_turns_carry_no_control_tokens(tiny: Tiny) -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]}]
    with pytest.raises(RowError, match="control token"):
        tiny.encoder.encode_turns(tiny.samples[0], turns, [])
    plain = tiny.encoder.encode_turns(tiny.samples[0], [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], [])
    assert plain.media == ()
