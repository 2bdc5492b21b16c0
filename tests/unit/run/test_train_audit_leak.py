"""run.audit_leak: what counts as the same medium and the same question."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import sample
from vlmrl.errors import MediaError
from vlmrl.run.audit_leak import NAMED, Hashes, Overlap, RowContent, overlap, plain_question, told
from vlmrl.types import MediaRef


def shown(ident: str, media: str, question: str = "q") -> RowContent:
    return RowContent(id=ident, where=f"f:{ident}", media=tuple(sorted(media)), question=question)


def ids(found: Overlap) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    return [(a.id, b.id) for a, b in found.same], [(a.id, b.id) for a, b in found.media]


@pytest.mark.parametrize(
    ("trained", "held", "same", "media"),
    [
        (shown("t", "a"), shown("h", "a"), True, False),
        (shown("t", "a"), shown("h", "a", "other"), False, True),
        (shown("t", "a"), shown("h", "b"), False, False),
        (shown("t", "ab"), shown("h", "ba"), True, False),  # the order is no difference
        (shown("t", "ab"), shown("h", "bc"), False, True),  # the same question about other media
        (shown("t", "aa"), shown("h", "a"), False, True),
        (shown("t", ""), shown("h", ""), True, False),  # text alone: by the question
        (shown("t", ""), shown("h", "", "other"), False, False),
        (shown("t", "a"), shown("h", ""), False, False),
    ],
)
def test_pairs(trained: RowContent, held: RowContent, same: bool, media: bool) -> None:
    assert ids(overlap([trained], [held])) == ([("t", "h")] if same else [], [("t", "h")] if media else [])


def test_a_row_is_told_once_and_by_the_graver_finding() -> None:
    held = [shown("h1", "a", "x"), shown("h2", "a", "q"), shown("h3", "a", "q")]
    assert ids(overlap([shown("t", "a", "q"), shown("u", "a", "y")], held)) == ([("t", "h2")], [("u", "h1")])


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "ab"]), st.sampled_from("qr")), max_size=12))
def test_every_row_is_the_same_as_itself(rows: list[tuple[str, str]]) -> None:
    listed = [shown(str(n), media, question) for n, (media, question) in enumerate(rows)]
    found = overlap(listed, listed)
    assert ([a for a, _ in found.same], found.media) == (listed, [])
    assert ids(overlap(listed, [])) == ([], [])


def test_questions_are_compared_without_case_and_spaces_but_with_signs() -> None:
    assert plain_question("  What IS\n\tit? ") == plain_question("what is it?")
    assert plain_question("\uff21\ufb01x") == plain_question("afix")  # full width A, ligature fi
    assert plain_question("1 + 1") != plain_question("1 - 1")
    assert plain_question("Stra\u00dfe") == plain_question("STRASSE")


def test_messages_count_all_and_name_some() -> None:
    pairs = [(shown(f"t{n}", "a"), shown(f"h{n}", "a")) for n in range(NAMED + 2)]
    problems, notes = told("train.jsonl", "test", Overlap(same=pairs, media=pairs[:1]))
    assert problems[0].startswith(
        "train.jsonl: 5 training rows have the media and the question of rows in test: f:t0 ('t0') and f:h0 ('h0'), "
    )
    assert "('h2'), and 2 more; take them out" in problems[0]
    assert "t3" not in problems[0]
    assert notes == ["warning: train.jsonl: 1 training rows show media of test, with other questions: f:t0 ('t0') and f:h0 ('h0')"]
    assert told("a", "b", Overlap(same=[], media=[])) == ([], [])


def test_a_video_of_pictures_is_known_by_all_of_them_and_their_times(tmp_path: Path) -> None:
    for name, content in (("a.png", b"one"), ("b.png", b"two"), ("c.png", b"two")):
        (tmp_path / name).write_bytes(content)

    def video(*names: str, fps: float = 2.0) -> MediaRef:
        frames = tuple(MediaRef(kind="image", path=name) for name in names)
        return MediaRef(kind="video", path=names[0], frames=frames, fps=fps)

    hashes = Hashes()
    one = hashes.of(video("a.png", "b.png"), tmp_path)
    assert hashes.of(video("a.png", "c.png"), tmp_path) == one
    others = {hashes.of(ref, tmp_path) for ref in (video("b.png", "a.png"), video("a.png", "b.png", fps=3), video("a.png"))}
    assert len(others | {one}) == 4


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    for name, content in (("a.png", b"one"), ("b.png", b"one"), ("c.png", b"two")):
        (tmp_path / name).write_bytes(content)
    hashes = Hashes()
    a, b, c = (MediaRef(kind="image", path=name) for name in ("a.png", "b.png", "c.png"))
    # printf one | sha256sum
    assert hashes.of(a, tmp_path) == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    assert hashes.of(a, tmp_path) == hashes.of(b, tmp_path) != hashes.of(c, tmp_path)
    assert hashes.files == 3
    (tmp_path / "a.png").write_bytes(b"two")
    os.utime(tmp_path / "a.png", (1, 1))
    assert hashes.of(a, tmp_path) == hashes.of(c, tmp_path)
    assert hashes.files == 4
    row = dataclasses.replace(sample("x"), media=(c, b), question="Q  ?")
    found = hashes.shown(dataclasses.replace(row, media_root="."), tmp_path)
    assert found.media == tuple(sorted((hashes.of(c, tmp_path), hashes.of(b, tmp_path))))
    assert found.question == "q ?"
    with pytest.raises(MediaError, match=r"gone\.png"):
        hashes.of(MediaRef(kind="image", path="gone.png"), tmp_path)
    with pytest.raises(MediaError, match="forbidden"):
        hashes.of(MediaRef(kind="image", path="../up.png"), tmp_path)
