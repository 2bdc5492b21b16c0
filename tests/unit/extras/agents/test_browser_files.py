"""agents.browser.files: what lies under an origin and nothing else, pictures of styles, and a digest of names and contents."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from vlmrl.extras.agents.browser.files import Files, read_files

CSS = (
    b"a:hover { content:url(../pictures/a%20b.png) } b { src: url(x.woff) } c { background: url('no.png') } d { content: url(/etc/passwd) }"
)
HELD = Files(
    "https://own.invalid/",
    {"index.html": b"<p>", "styles/s.css": CSS, "pictures/a b.png": b"png", "x.woff": b"f", "m.MJS": b"1", "data": b"?"},
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("index.html", (b"<p>", "text/html; charset=utf-8")),
        ("index.html?a=1#b", (b"<p>", "text/html; charset=utf-8")),
        ("pictures/a%20b.png", (b"png", "image/png")),
        ("m.MJS", (b"1", "text/javascript")),
        ("data", (b"?", "application/octet-stream")),
        ("", None),
        ("no.html", None),
        ("../index.html", None),
        ("pictures", None),
    ],
)
def test_what_is_served(path: str, found: tuple[bytes, str] | None):
    assert HELD.serve("https://own.invalid/" + path) == found


def test_nothing_of_another_origin_is_served():
    for url in ("http://own.invalid/index.html", "https://own.invalid.example/index.html", "file:///index.html", "index.html"):
        assert HELD.serve(url) is None


def test_pictures_of_styles_come_with_the_style_and_others_stay():
    """A relative path is one beside the style; what is no picture, or not there, stays as it is."""
    served = HELD.serve("https://own.invalid/styles/s.css")
    assert served is not None
    written = served[0]
    start = written.index(b"base64,") + len(b"base64,")
    assert base64.b64decode(written[start : written.index(b")", start)]) == b"png"
    assert written.startswith(b"a:hover { content:url(data:image/png;base64,")
    assert written[written.index(b" } b") :] == CSS[CSS.index(b" } b") :]
    assert HELD.styled("any.js", CSS) == CSS


def test_files_are_read_by_their_paths_without_hidden_ones(tmp_path: Path):
    (tmp_path / "a" / ".git").mkdir(parents=True)
    for name in ("index.html", "a/b.js", "a/.git/c", ".DS_Store"):
        (tmp_path / name).write_text(name)
    assert read_files(tmp_path) == {"a/b.js": b"a/b.js", "index.html": b"index.html"}


def test_the_digest_is_of_names_and_contents():
    digests = [Files("x/", held).digest for held in ({"a": b"bc"}, {"ab": b"c"}, {"a": b"b", "c": b""}, {"a": b"bd"})]
    assert len(set(digests)) == 4
    assert Files("y/", {"a": b"bc"}).digest == digests[0], "it is not of the origin"
