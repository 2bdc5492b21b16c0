"""Media of an audit are looked at once, whichever process meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlmrl.errors import MediaError
from vlmrl.media import seen
from vlmrl.media.seen import PlanCache, from_json, state_of, to_json
from vlmrl.types import MediaHandle, MediaRef

HANDLE = MediaHandle(kind="video", key="k", grid_thw=(2, 4, 4), tokens=8, seconds_per_grid=1.0, step_times=(0.1, 1.3), duration=2.5)


class Looks:
    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, ref: MediaRef, root: Path) -> MediaHandle:
        self.paths.append(ref.path)
        if ref.path == "bad.mp4":
            raise MediaError("corrupt", "bad.mp4: cut: short")
        return HANDLE


def test_no_medium_is_looked_at_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_HELD", 2)
    looks = Looks()
    one, two = (PlanCache(looks, tmp_path / "table") for _ in range(2))
    for each in (one, two, one, two):
        for name in ("a.mp4", "b.mp4", "c.mp4"):
            found = each.plan(MediaRef(kind="video", path=name), tmp_path)
            assert (found, found.duration) == (HANDLE, 2.5)
        with pytest.raises(MediaError) as caught:
            each.plan(MediaRef(kind="video", path="bad.mp4"), tmp_path)
        assert (caught.value.reason, str(caught.value)) == ("corrupt", "corrupt: bad.mp4: cut: short")
    assert looks.paths == ["a.mp4", "b.mp4", "c.mp4", "bad.mp4"]
    assert one.plan(MediaRef(kind="video", path="a.mp4"), tmp_path / "elsewhere") == HANDLE
    assert looks.paths[-1] == "a.mp4", "another folder is another medium"
    one.begin()
    one.plan(MediaRef(kind="video", path="b.mp4"), tmp_path)
    assert [ref.path for _, ref in one.used] == ["b.mp4"]
    one.close()
    two.close()


def test_the_state_of_a_medium_is_that_of_its_files(tmp_path: Path) -> None:
    frames = tuple(MediaRef(kind="image", path=f"{n}.png") for n in range(2))
    plain, listed = MediaRef(kind="image", path="0.png", sha256="0" * 64), MediaRef(kind="video", path="0.png", frames=frames, fps=2.0)
    states: list[tuple[str, str]] = []
    for content in (None, b"a", b"bc"):
        if content is not None:
            for n in range(2):
                (tmp_path / f"{n}.png").write_bytes(content)
        states.append((state_of(plain, tmp_path), state_of(listed, tmp_path)))
    assert len({one for one, _ in states}) == len({two for _, two in states}) == 3
    assert states[-1] == (state_of(plain, tmp_path), state_of(listed, tmp_path))
    assert [from_json(to_json(ref)) for ref in (plain, listed)] == [plain, listed]
