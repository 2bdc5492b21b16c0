"""run.identity: rows, base model, exports and records by content, and messages that name what differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.builders import sample
from vlmrl.errors import CheckpointError
from vlmrl.run.identity import FILE, FOLDER, Identity, SourceRows
from vlmrl.types import MediaRef, Sample


def row(name: str, **more: object) -> Sample:
    given = {"source": f"train.jsonl:{ord(name)}", "media": (MediaRef(kind="image", path=f"{name}.png"),)}
    return replace(sample(id=name), **(given | more))


@pytest.fixture
def begun(tmp_path: Path) -> Callable[..., None]:
    """A run that has seen the rows a, b, c; what it says of others."""
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(b"picture")

    def check(
        rows: list[Sample], *, accept: bool = False, left_out: dict[str, str] | None = None, note: Callable[[str], None] = print
    ) -> None:
        identity = Identity.open(tmp_path, None, print)
        given = SourceRows(samples=rows, root=lambda _: tmp_path, left_out=left_out or {})
        identity.check_rows("train.jsonl", ["think"], given, accept=accept, note=note)

    check([row(name) for name in "abc"])
    return check


CHANGES: dict[str, tuple[dict[str, object], str]] = {
    "question": ({"question": "Where?"}, "question changed"),
    "place of media": ({"question_first": True}, "question changed"),
    "answer": ({"answer": "1.0 to 2.0"}, "gold answer changed"),
    "gt": ({"gt": {"time": [3.0, 5.5]}}, "gold answer changed"),
    "meta": ({"meta": {"options": ["A"]}}, "gold answer changed"),
    "thought": ({"thought": "so"}, "gold answer changed"),
    "answer type": ({"answer_type": "choice"}, "gold answer changed"),
    "media": ({"media": (MediaRef(kind="image", path="a.png"),)}, r"media changed \(a.png\)"),
    "both": ({"question": "?", "answer": "x"}, "question, gold answer changed"),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_changed_row_is_named(name: str, begun: Callable[..., None]) -> None:
    change, told = CHANGES[name]
    with pytest.raises(
        CheckpointError, match=rf"train.jsonl: 1 of 3 rows changed since the run began:\n  row 'b' \(train.jsonl:98\): {told}\n"
    ):
        begun([row("a"), row("b", **change), row("c")])
    begun([row("a"), row("b"), row("c")])


def test_another_size_of_a_medium_is_another_content(begun: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "c.png").write_bytes(b"another picture")
    with pytest.raises(CheckpointError, match=r"row 'c' \(train.jsonl:99\): media changed \(c.png\)"):
        begun([row(name) for name in "abc"])


def test_many_rows_are_counted(tmp_path: Path) -> None:
    def check(count: int, question: str) -> None:
        rows = [replace(sample(id=str(n)), question=question) for n in range(count)]
        given = SourceRows(samples=rows, root=lambda _: tmp_path)
        Identity.open(tmp_path, None, print).check_rows("s", [], given, accept=False, note=print)

    check(20, "When?")
    with pytest.raises(CheckpointError, match=r"20 of 20 rows changed.*\n(  row .*\n){5}  ... and 15 more\n"):
        check(20, "Where?")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("bac", r"3 rows when the run began, 3 now; number 1 is row 'b' \(train.jsonl:98\), which was number 2"),
        ("ab", "3 rows when the run began, 2 now; those from number 3 on are gone"),
        ("abcd", r"3 rows when the run began, 4 now; number 4 is row 'd' .*which was not there"),
        ("axc", r"number 2 is row 'x' \(train.jsonl:120\), which was not there"),
    ],
)
def test_other_rows_are_never_accepted(rows: str, told: str, begun: Callable[..., None]) -> None:
    with pytest.raises(CheckpointError, match=told):
        begun([row(name) for name in rows], accept=True)


def test_a_row_that_cannot_be_used_any_more_is_named_with_its_reason(begun: Callable[..., None]) -> None:
    with pytest.raises(CheckpointError, match=r"row 'b' was used then and cannot be used now: train.jsonl:98: missing: b.png"):
        begun([row("a"), row("c")], left_out={"b": "train.jsonl:98: missing: b.png"})


def test_accepted_rows_are_noted_and_are_the_runs_from_then_on(begun: Callable[..., None]) -> None:
    notes: list[str] = []
    now = [row("a"), row("b", question="Where?"), row("c")]
    begun(now, accept=True, note=notes.append)
    assert notes == ["data.changed: accept: train.jsonl: row 'b' (train.jsonl:98): question changed"]
    begun(now)
    with pytest.raises(CheckpointError, match="question changed"):
        begun([row(name) for name in "abc"])


def test_damaged_hashes_of_rows_are_refused(begun: Callable[..., None], tmp_path: Path) -> None:
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"rows-.*\.bin: missing, or its content differs"):
        begun([row(name) for name in "abc"])


def test_sources_are_told_apart_by_what_is_asked_of_them(begun: Callable[..., None], tmp_path: Path) -> None:
    identity = Identity.open(tmp_path, None, print)
    given = SourceRows(samples=[row("a")], root=lambda _: tmp_path)
    identity.check_rows("train.jsonl", ["answer_only"], given, accept=False, note=print)
    assert [entry["count"] for entry in identity.rows.values()] == [3, 1]


def test_the_base_model(tmp_path: Path) -> None:
    model, run = tmp_path / "model", tmp_path / "run"
    (model / "logs").mkdir(parents=True)
    run.mkdir()
    for name in ("config.json", "model.safetensors", "pytorch_model.bin", ".gitattributes", "logs/x"):
        (model / name).write_text(name)
    first = Identity.open(run, None, print)
    first.check_model("m", None)
    first.check_model("m", model)
    for name in ("pytorch_model.bin", ".gitattributes", "logs/x"):  # nothing of this is read
        (model / name).write_text("other")
    Identity.open(run, None, print).check_model("m", model)
    (model / "model.safetensors").write_text("other")
    (model / "config.json").unlink()
    (model / "tokenizer.json").write_text("{}")
    told = r"model.path: 'm' .*config.json is missing, .*model.safetensors has other content, .*tokenizer.json was not there"
    with pytest.raises(CheckpointError, match=told):
        Identity.open(run, None, print).check_model("m", model)


def test_records_are_compared_in_the_order_of_evaluation(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    paths = [tmp_path / "eval" / f"{name}.jsonl" for name in ("base", "a", "rl")]
    identity = Identity.open(tmp_path, None, print)
    for path in paths:
        path.write_text(path.name)
        identity.evaluated([path])
    identity.evaluated(paths[:1])
    again = Identity.open(tmp_path, None, print)
    assert [name for name, _, _ in again.records] == ["eval/base.jsonl", "eval/a.jsonl", "eval/rl.jsonl"]
    paths[0].write_text("base.jsonL")
    paths[1].unlink()
    assert again.damaged_records() == {paths[0]: f"content differs from its sha256 in {FILE}", paths[1]: "missing"}
    again.forget(paths[1])
    assert list(Identity.open(tmp_path, None, print).damaged_records()) == [paths[0]]


@pytest.mark.parametrize("damage", [b"", b"{", b"null", None])
def test_a_damaged_file_is_replaced_by_the_checkpoints_copy(damage: bytes | None, tmp_path: Path) -> None:
    identity = Identity.open(tmp_path, None, print)
    identity.made(tmp_path / "stages" / "sft", "seal")
    copy = identity.body()
    if damage is None:
        body = json.loads((tmp_path / FILE).read_text())
        (tmp_path / FILE).write_text(json.dumps(body | {"exports": {}}))
    else:
        (tmp_path / FILE).write_bytes(damage)
    said: list[str] = []
    assert Identity.open(tmp_path, copy, said.append).exports == {"stages/sft": "seal"}
    assert len(said) == 1
    assert "what the last checkpoint knows is taken instead" in said[0]


def test_a_newer_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmrl.run.identity.SCHEMA", 4)
    Identity.open(tmp_path, None, print).write()
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="schema 4, this version reads up to 1"):
        Identity.open(tmp_path, None, print)
