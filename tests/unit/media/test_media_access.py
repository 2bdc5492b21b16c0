"""A reference names a regular file below its root, or it is refused before anything is read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.errors import MediaError
from vlmrl.media import access
from vlmrl.media.access import check_path, open_media, read_media

FORBIDDEN = [
    "",
    ".",
    "/etc/passwd",
    "../a.jpg",
    "a/../../b.jpg",
    "a/..",
    "./a.jpg",
    "a//b.jpg",
    "a/",
    "a\0.jpg",
    "a\n.jpg",
    "http://127.0.0.1/a.jpg",
    "HTTPS://allowed@evil/a.jpg",
    "https://[::1]/a",
    "http://0x7f000001/a",
    "ftp://h/a",
    "file:///etc/passwd",
    "file:a.jpg",
    "s3://bucket/a",
    "data:image/png;base64,AAAA",
    "C:\\a.jpg",
    "c:a.jpg",
    "\\\\server\\share\\a.jpg",
    "a\\b.jpg",
    "x" * 5000,
    "e\u0301.jpg",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/clips").mkdir(parents=True)
    (tmp_path / "root/clips/a.jpg").write_bytes(b"pixels")
    (tmp_path / "secret").write_bytes(b"secret")
    return tmp_path / "root"


def reason(root: Path, path: str, max_bytes: int = 100) -> str:
    with pytest.raises(MediaError) as caught:
        read_media(root, path, max_bytes=max_bytes)
    assert "secret" not in str(caught.value) or "secret" in path
    return caught.value.reason


@pytest.mark.parametrize("path", FORBIDDEN)
def test_forbidden_paths(root: Path, path: str) -> None:
    assert reason(root, path) == "forbidden"


@given(st.text(max_size=30))
def test_an_allowed_path_stays_below_any_root(path: str) -> None:
    try:
        check_path(path)
    except MediaError:
        return
    joined = os.path.normpath(os.path.join("/root/data", path))
    assert joined == f"/root/data/{path}"


def test_reads_a_file(root: Path) -> None:
    assert read_media(root, "clips/a.jpg", max_bytes=6) == b"pixels"


def test_percent_signs_are_plain_characters(root: Path) -> None:
    assert reason(root, "%2e%2e/secret") == "missing"
    (root / "100%.jpg").write_bytes(b"x")
    assert read_media(root, "100%.jpg", max_bytes=1) == b"x"


@pytest.mark.parametrize("path", ["clips/b.jpg", "nothing/a.jpg", "clips/a.jpg/b.jpg", "CLIPS/a.jpg"])
def test_missing(root: Path, path: str) -> None:
    assert reason(root, path) == "missing"


def test_size_cap_is_exact(root: Path) -> None:
    assert reason(root, "clips/a.jpg", max_bytes=5) == "too_large"


def test_size_cap_holds_for_a_file_that_grows(root: Path) -> None:
    with open_media(root, "clips/a.jpg", max_bytes=6) as file:
        (root / "clips/a.jpg").write_bytes(b"pixels and more")
        with pytest.raises(MediaError, match="too_large"):
            access.read_all(file, "a.jpg", max_bytes=6)


def test_links_inside_the_root_are_followed_and_others_are_not(root: Path) -> None:
    (root / "inside").symlink_to(root / "clips")
    (root / "outside").symlink_to(root.parent)
    (root / "outside.jpg").symlink_to("../secret")
    (root / "loop").symlink_to("loop")
    assert read_media(root, "inside/a.jpg", max_bytes=10) == b"pixels"
    assert reason(root, "outside/secret") == "forbidden"
    assert reason(root, "outside.jpg") == "forbidden"
    assert reason(root, "loop") == "forbidden"


def test_the_root_may_itself_be_a_link(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    assert read_media(root.parent / "alias", "clips/a.jpg", max_bytes=10) == b"pixels"


def test_a_folder_swapped_for_a_link_between_check_and_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root.parent / "elsewhere").mkdir()
    (root.parent / "elsewhere/a.jpg").write_bytes(b"secret")
    real = os.path.realpath

    def swap(path: str, **kwargs: bool) -> str:
        found = real(path, **kwargs)
        if str(path).endswith("a.jpg"):
            (root / "clips/a.jpg").unlink()
            (root / "clips").rmdir()
            (root / "clips").symlink_to(root.parent / "elsewhere")
        return found

    monkeypatch.setattr(os.path, "realpath", swap)
    with pytest.raises(MediaError) as caught:
        read_media(root, "clips/a.jpg", max_bytes=10)
    assert caught.value.reason in ("forbidden", "missing")


def test_a_fifo_does_not_hang(root: Path) -> None:
    os.mkfifo(root / "pipe.jpg")
    out: list[str] = []
    thread = threading.Thread(target=lambda: out.append(reason(root, "pipe.jpg")), daemon=True)
    thread.start()
    thread.join(10)
    assert out == ["forbidden"]


def test_folders_and_devices_are_no_media(root: Path) -> None:
    assert reason(root, "clips") == "forbidden"
    assert reason(Path("/dev"), "zero") == "forbidden"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(root: Path) -> None:
    (root / "clips/a.jpg").chmod(0)
    assert reason(root, "clips/a.jpg") == "unreadable"


def test_no_descriptor_is_leaked(root: Path) -> None:
    (root / "outside.jpg").symlink_to("../secret")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("clips", "clips/none", "outside.jpg", "clips/a.jpg"):
        with pytest.raises(MediaError):
            read_media(root, path, max_bytes=2)
    assert len(os.listdir("/proc/self/fd")) == before
