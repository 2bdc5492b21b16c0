"""Rows audited chunk by chunk: the same whoever does it, none twice, and known again."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.tiny import MEDIA, Tiny
from vlmrl.config.schema import SourceSection
from vlmrl.data.adapters import Learned
from vlmrl.data.raw import Raw
from vlmrl.errors import VlmrlError
from vlmrl.media.store import MediaSettings
from vlmrl.run import audit_source
from vlmrl.run.audit_chunk import Auditor, Chunk, Terms
from vlmrl.run.audit_pool import AuditPool
from vlmrl.run.audit_report import SourceAudit
from vlmrl.run.audit_source import audited, tally, terms_of
from vlmrl.run.ui import Ui

SETTINGS = MediaSettings(
    min_pixels=3136, max_pixels=4704, video_total_pixels=None, fps=2.0, min_frames=4, max_frames=16, cache_bytes=1 << 20, decoder="auto"
)
ROWS = 200


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_source, "CHUNK", 16)
    monkeypatch.setattr(audit_source, "ALONE", 16)


def row(n: int, **more: Any) -> str:
    line = {"id": f"r{n}", "task": "counting", "answer_type": "number", "image": f"{n % 3}.png", "prompt": f"How many, {n}?", "answer": "7"}
    return json.dumps(line | more)


def write(folder: Path, lines: list[str]) -> Path:
    for n in range(3):
        Image.new("RGB", (60 + n, 40), (n, 0, 0)).save(folder / f"{n}.png")
    path = folder / "rows.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def terms(folder: Path, **more: Any) -> Terms:
    source = SourceSection(path="rows.jsonl")
    return terms_of(source, "think", folder, settings=SETTINGS, encoder=None, decode=True, all_gold=True, **more)


def run(path: Path, cache: Path, workers: int = 1) -> SourceAudit:
    found = SourceAudit(path=path.name, answer_format="think", used_by=[])
    tally(found, audited(path, terms(path.parent), Ui(quiet=True), workers=workers, cache=cache), "error")
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """First line of each chunk that this process audits."""
    out: list[int] = []
    chunk = Auditor.chunk

    def counted(self: Auditor, raws: list[Raw], places: list[int], learned: Learned) -> Chunk:
        out.append(raws[0].line)
        return chunk(self, raws, places, learned)

    monkeypatch.setattr(Auditor, "chunk", counted)
    return out


def test_workers_find_what_one_process_finds_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [row(n) for n in range(ROWS)]
    lines[30], lines[100], lines[101] = row(30, image="none.png"), "{not json", row(101, answer="many")
    lines[150], lines[160] = row(7), row(160, image="none.png")
    path = write(tmp_path, lines)
    alone = run(path, tmp_path / "a")
    assert dataclasses.asdict(run(path, tmp_path / "b", workers=2)) == dataclasses.asdict(alone)
    assert (alone.rows, alone.good, alone.shape) == (ROWS, ROWS - 5, "vlmrl")
    assert dict(alone.reasons) == {"missing": 2, "json": 1, "answer": 1, "duplicate_id": 1}
    assert [line.split(":")[1] for line in alone.examples] == ["31", "101", "102", "151"]  # 161 lacks the file that 31 lacks
    assert alone.examples[0].endswith("(and 1 more with the same)")
    assert "is already at" in alone.firsts["duplicate_id"]
    assert f"{path}:8, with the same content" in alone.firsts["duplicate_id"]


def test_prompts_are_counted_in_the_words_of_the_recipe(tiny: Tiny, tmp_path: Path) -> None:
    root = tiny.encoder.data_root
    for words in (None, "{{ question }} Look at every frame of it, say what you see, then give {{ ask }}.", None):
        encoder = dataclasses.replace(tiny.encoder, prompt=words)
        of = terms_of(SourceSection(path="train.jsonl"), "think", root, settings=MEDIA, encoder=encoder, decode=False)
        found = SourceAudit(path="train.jsonl", answer_format="think", used_by=[])
        tally(found, audited(root / "train.jsonl", of, Ui(quiet=True), workers=1, cache=tmp_path), "error")
        assert found.longest_prompt == max(len(encoder.plan(sample, "think").ids) for sample in tiny.samples)


def test_rows_that_are_known_are_not_audited_again(tmp_path: Path, asked: list[int]) -> None:
    lines = [row(n) for n in range(ROWS)]
    path = write(tmp_path, lines)
    first = run(path, tmp_path / "cache")
    assert len(asked) == 13
    asked.clear()
    assert dataclasses.asdict(run(path, tmp_path / "cache")) == dataclasses.asdict(first)
    assert asked == []
    lines[40] = row(40, answer="many")
    path.write_text("".join(line + "\n" for line in lines))
    assert (run(path, tmp_path / "cache").reasons, asked) == ({"answer": 1}, [33]), "changed rows alone are audited again"
    asked.clear()
    Image.new("RGB", (90, 40)).save(tmp_path / "1.png")
    (tmp_path / "2.png").write_bytes(b"no picture")
    again = run(path, tmp_path / "cache")
    assert len(asked) == 13, "every chunk shows a medium that changed"
    assert again.good == ROWS - 1 - sum(n % 3 == 2 for n in range(ROWS))
    [kept] = (tmp_path / "cache").glob("rows-*/chunks")
    assert len(kept.read_bytes().splitlines()) == 13, "what is not of the source any more is removed"


def test_damage_of_what_is_kept_is_seen(tmp_path: Path, asked: list[int]) -> None:
    path = write(tmp_path, [row(n) for n in range(48)])
    run(path, tmp_path / "cache")
    [kept] = (tmp_path / "cache").glob("rows-*/chunks")
    raw = bytearray(kept.read_bytes())
    raw[200] ^= 1
    kept.write_bytes(raw[:-7])
    asked.clear()
    assert run(path, tmp_path / "cache").good == 48
    assert asked == [1, 33], "the first line was changed and the last one cut"


def test_an_audit_that_was_cut_off_goes_on(tmp_path: Path, asked: list[int]) -> None:
    path = write(tmp_path, [row(n) for n in range(ROWS)])
    reads = audited(path, terms(tmp_path), Ui(quiet=True), workers=1, cache=tmp_path / "cache")
    for _ in range(5):
        next(reads)
    del reads
    done = len(asked)
    assert run(path, tmp_path / "cache").good == ROWS
    assert len(asked) == 13, f"{done} of them before the cut"


def test_plugins_may_change_what_is_found_so_nothing_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, [row(n) for n in range(20)])
    assert len([*audited(path, terms(tmp_path, plugins=["json"]), Ui(quiet=True), workers=1, cache=tmp_path / "cache")]) == 2
    assert not (tmp_path / "cache").exists()


def test_a_worker_that_dies_is_told_with_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dies.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    raws = [Raw("rows.jsonl", line, "line", row(line).encode()) for line in (5, 6, 7)]
    job = (raws, [5, 6, 7], Learned("vlmrl", None, (), ()))
    with AuditPool(terms(tmp_path, plugins=["dies"]), tmp_path / "media", 1) as pool, pytest.raises(VlmrlError) as caught:
        list(pool.map([job]))
    assert "ended with exit code 7 at rows.jsonl:5 to 7" in str(caught.value)


@pytest.mark.not_fast
def test_a_check_of_rows_without_a_model_loads_no_model_library(tmp_path: Path) -> None:
    path = write(tmp_path, [row(n) for n in range(3)])
    code = (
        "import sys\nfrom vlmrl.cli import main\n"
        f"sys.argv = ['vlmrl', 'check', '--rows', {str(path)!r}]\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = ('transformers', 'torchvision', 'scipy', 'sympy', 'deepspeed', 'torch._dynamo', 'torch.distributed.tensor')\n"
        "print(sorted(name for name in heavy if name in sys.modules))\n"
    )
    import os

    env = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["rows: ok", "[]"]
