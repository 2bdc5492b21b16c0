"""toy.kinds: which world is built, that it is built once and whole, and that the world of videos is what it always was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.browsers import needs_miniwob
from vlmrl.answers.tags import gold_text
from vlmrl.config.load import load
from vlmrl.config.schema import Config, ToyWorldSection
from vlmrl.data.encode import ANSWER_FORMATS, instruction
from vlmrl.data.source import load_source
from vlmrl.errors import ConfigError
from vlmrl.extras.toy import tasks, world
from vlmrl.extras.toy.kinds import PICTURES, VIDEOS, make_world, tokenizer_corpus, world_hash
from vlmrl.extras.toy.model import build_model, build_tokenizer
from vlmrl.extras.toy.shell import clip
from vlmrl.extras.toy.tasks import SPLITS
from vlmrl.media.image import decode_image
from vlmrl.methods import require_methods
from vlmrl.run.audit import audit
from vlmrl.run.ui import Ui

RECIPES = Path(__file__).parents[4] / "configs" / "recipes"
OF_KIND = {
    "multitask": "toy_g2rpo.yaml",
    "spatial": "toy_fgrpo.yaml",
    "think": "toy_ton.yaml",
    "gui": "toy_curriculum_gui.yaml",
    "click": "toy_click.yaml",
    "zoom": "toy_zoom.yaml",
    "stripes": "toy_crop.yaml",
    "clip": "toy_clip.yaml",
    "lake": "toy_lake.yaml",
    "pages": "toy_pages.yaml",
}


def small(kind: str, **more: int) -> ToyWorldSection:
    return ToyWorldSection.model_validate({"kind": kind, "pretrain": 4, "sft": 3, "train": 6, "validation": 2, "test": 3, "seed": 5} | more)


def tree(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_the_world_of_videos_is_unchanged() -> None:
    """Its hash, which names its folder and that of the base model, and its tokenizer's text are those from before there were kinds."""
    assert world_hash(ToyWorldSection()) == world.world_hash(ToyWorldSection()) == "04078e2f5b5db107"
    text = list(tokenizer_corpus("grounding"))
    assert text == list(tasks.tokenizer_corpus([instruction(answer_format, "time_span") for answer_format in ANSWER_FORMATS]))
    digest = hashlib.sha256("\n".join(text).encode()).hexdigest()
    assert digest == "77ccbd4f74d2a593015a17c1236acd565a814c55b4d68300c24f7e43072a3793"


def test_hash_depends_on_kind_counts_and_seed() -> None:
    section = small("gui")
    names = ("pretrain", "sft", "train", "validation", "test", "seed")
    others = [section.model_copy(update={name: getattr(section, name) + 1}) for name in names]
    others += [section.model_copy(update={"kind": kind}) for kind in ("grounding", "shell", "multitask", "spatial", "think")]
    assert len({world_hash(s) for s in [section, *others]}) == 12


@pytest.mark.parametrize("kind", [*VIDEOS, *PICTURES])
def test_a_part_of_a_world_is_as_in_the_whole_world(kind: str, tmp_path: Path) -> None:
    section = small(kind, pretrain=1, train=2)
    calls: list[tuple[int, int]] = []
    part = make_world(tmp_path / "part", section, lambda done, total: calls.append((done, total)), splits=("train", "test"))
    assert calls == [(i, 5) for i in range(1, 6)]
    whole = make_world(tmp_path / "whole", section)
    media = "videos" if kind in VIDEOS else "images"
    for split in ("train", "test"):
        assert part["rows"][split] == whole["rows"][split]
        assert part[media][split] == whole[media][split]
    assert set(part["rows"]) == {"train", "test"}
    files = {name: digest for name, digest in tree(tmp_path / "part").items() if name != world.MARKER}
    assert files == {name: digest for name, digest in tree(tmp_path / "whole").items() if name in files}


def test_unknown_kinds() -> None:
    section = small("gui").model_copy(update={"kind": "audio"})
    for function in (world_hash, lambda s: tokenizer_corpus(s.kind), lambda s: make_world(Path("nowhere"), s)):
        with pytest.raises(ConfigError, match="audio"):
            function(section)


@pytest.mark.parametrize("kind", PICTURES)
def test_files_are_whole_and_the_same_again(kind: str, tmp_path: Path) -> None:
    section = small(kind)
    calls: list[tuple[int, int]] = []
    marker = make_world(tmp_path / "a", section, lambda done, total: calls.append((done, total)))
    assert calls == [(i, 18) for i in range(1, 19)]
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "a").rglob("*")}
    assert make_world(tmp_path / "a", section) == marker
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "a").rglob("*")} == before
    assert make_world(tmp_path / "b", section) == marker
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a", "b"]
    used: list[str] = []
    for split in SPLITS:
        samples = load_source(tmp_path / "a" / f"{split}.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
        made = [item for i in range(getattr(section, split)) for item in PICTURES[kind].items(section.seed, split, i)]
        assert [sample.id for sample in samples] == [item.row["id"] for item in made]
        for sample, item in zip(samples, made, strict=True):
            files = [(tmp_path / "a" / ref.path).read_bytes() for ref in sample.media]
            assert files == list(item.files().values())
            assert sample.media[0].kind == "video" or np.array_equal(decode_image(files[0]), item.pixels)
            used += [ref.path for ref in sample.media]
    assert sorted(used) == sorted(str(f.relative_to(tmp_path / "a")) for f in (tmp_path / "a" / "images").rglob("*.*"))
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("damage", ["empty picture", "lost picture", "changed rows", "other kind"])
def test_a_damaged_or_different_world_is_built_anew(damage: str, tmp_path: Path) -> None:
    section, out = small("think"), tmp_path / "w"
    make_world(out, section)
    whole = tree(out)
    if damage == "empty picture":
        (out / "images/train/000000.png").write_bytes(b"")
    elif damage == "lost picture":
        (out / "images/test/000001.png").unlink()
    elif damage == "changed rows":
        (out / "test.jsonl").write_text("{}\n")
    else:
        section = section.model_copy(update={"kind": "spatial"})
    make_world(out, section)
    assert (tree(out) == whole) == (damage != "other kind")
    assert json.loads((out / world.MARKER).read_text())["recipe"] == world_hash(section)


@pytest.mark.parametrize("kind", [*PICTURES, "shell"])
def test_the_tokenizer_of_a_kind_knows_its_texts(kind: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tokenizer_corpus(kind))
    for index in range(24):
        rows = [clip(9, "train", index).row] if kind == "shell" else [item.row for item in PICTURES[kind].items(9, "train", index)]
        for row in rows:
            sample = _sample(row, tmp_path)
            texts = [sample.question, gold_text(sample, "think_or_not", sample.thought), instruction("think_or_not", sample.answer_type)]
            for text in texts:
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                assert tokenizer.decode(ids) == text
                words = len(text.replace("<", " <").split()) + sum(not c.isalpha() for c in text)
                assert len(ids) <= words + 2, f"{len(ids)} tokens: {text}"


def _sample(row: dict, folder: Path):
    path = folder / "row.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return load_source(path, media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)[0]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs_miniwob if kind == "pages" else ()) for kind in PICTURES])
def test_recipes_pass_the_audit_of_their_data(kind: str, tmp_path: Path) -> None:
    """Every row is read, its picture decoded, its prompt measured, its gold answer scored by the recipe's rewards."""
    cfg: Config = load(RECIPES / OF_KIND[kind], [f"toy.world.{split}=6" for split in SPLITS]).config
    assert cfg.toy is not None
    assert cfg.toy.base is not None
    assert cfg.toy.world.kind == kind
    require_methods(cfg)
    make_world(tmp_path / "w", cfg.toy.world)
    build_model(tmp_path / "m", seed=0, corpus=tokenizer_corpus(kind))
    report = audit(cfg, model=str(tmp_path / "m"), data=tmp_path / "w", ui=Ui(quiet=True))
    assert report.problems == []
    assert all(source.good == source.rows > 0 for source in report.sources)
    for source in report.sources:
        # visual tokens, a question and an instruction, and how to call a tool where there is one
        assert 30 < source.longest_prompt < {"zoom": 170, "clip": 300}.get(kind, 130)
