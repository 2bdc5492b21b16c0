"""P17 on tiny models: conversations of families of unlike kind, and mistakes that turn it red."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.families import tiny_folder
from vlmrl.data.encode import LaidOut
from vlmrl.extras.agents import conversation
from vlmrl.extras.families.conform.run import Report, conform
from vlmrl.extras.families.conform.subject import open_subject

WRITTEN = "between answers stands what the template writes"


def report(name: str, cases: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    return conform(open_subject(str(tiny_folder(name, folder, monkeypatch)), cases), name, ("P17",))


def red(of: Report) -> set[tuple[str, str]]:
    return {(check.promise, check.what) for check in of.failed()}


@pytest.mark.parametrize(
    ("name", "cases"), [("qwen3_5", ("image", "text")), ("gemma3", ("image",)), ("internvl", ("two",)), ("lfm2_vl", ("image",))]
)
def test_conversations_of_families_of_unlike_kind(name: str, cases: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta net with positions in three rows; pictures that see themselves; tiles; short convolutions."""
    found = report(name, cases, tmp_path, monkeypatch)
    assert found.failed() == []
    assert {check.case for check in found.checks} == set(cases)
    assert all(check.value < 1e-9 for check in found.checks if check.what.startswith("log-probs")), "float64 throughout"
    assert all(check.value > 1.0 for check in found.checks if check.control), "what was seen has log-probs too, which nobody adds"


def test_kinds_of_what_is_seen_left_out_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of a later picture would not see each other."""
    plain = conversation.Conversation._laid

    def unkind(self: conversation.Conversation, *args: Any) -> LaidOut:
        return plain(self, *args)._replace(kinds={})

    monkeypatch.setattr(conversation.Conversation, "_laid", unkind)
    assert red(report("gemma3", ("image",), tmp_path, monkeypatch)) == {("P17", WRITTEN)}


def test_an_end_of_an_answer_that_stands_twice_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = conversation.Conversation._between
    monkeypatch.setattr(conversation.Conversation, "_between", lambda self, *args: "<|im_end|>" + plain(self, *args))
    assert red(report("internvl", ("image",), tmp_path, monkeypatch)) == {("P17", WRITTEN)}


def test_a_later_turn_that_forgets_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = conversation.turns

    def forgetful(*args: Any) -> list[tuple[Any, tuple[int, ...]]]:
        rows = plain(*args)
        lost = rows[-1][0]
        return [*rows[:-1], (dataclasses.replace(lost, ids=(*lost.ids[:-3], *lost.ids[-2:])), rows[-1][1])]

    monkeypatch.setattr(conversation, "turns", forgetful)
    assert ("P17", WRITTEN) in red(report("internvl", ("text",), tmp_path, monkeypatch))


def test_a_template_that_leaves_out_what_was_said_is_seen_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = open_subject(str(tiny_folder("internvl", tmp_path, monkeypatch)), ("text",))
    tried.processor.chat_template = tried.processor.chat_template.replace("in messages %}", "in messages[-1:] %}")
    (check,) = conform(tried, "internvl", ("P17",)).failed()
    assert "rewrites earlier turns" in check.note
