"""Evaluation records: nothing is lost on the way to disk and back, damage is found, and equal questions have equal hashes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import fs_ops
from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.evals.score.records import (
    LATER,
    Key,
    Record,
    RecordStore,
    Think,
    from_json,
    prompt_ids_hash,
    prompt_keys,
    read_records,
    read_verified,
    sample_hash,
    settings_json,
)
from vlmrl.types import GenerationSettings, MediaHandle, MediaRef, Prompt, Sample

SETTINGS = GenerationSettings(max_new_tokens=16, temperature=0.0)


def make_record(sample_id: str = "a", **changes) -> Record:
    record = Record(
        model="rl",
        sample_id=sample_id,
        task="temporal_grounding",
        cluster="videos/1.mp4",
        sample_hash="s",
        prompt_ids_hash="p",
        answer_format="think",
        answer_type="time_span",
        text="<answer>1 to 2</answer>",
        answer="1 to 2",
        status="ok",
        format_ok=False,
        pred=(1.0, 2.0),
        gold=(1.0, 3.0),
        scores={"tiou": 0.5},
        think=Think(has=False, tokens=0),
        n_in=10,
        n_out=5,
        finish="stop",
        unclosed=False,
        fingerprint="w",
        settings={"max_new_tokens": 16, "temperature": 0.0, "top_p": 1.0},
    )
    return dataclasses.replace(record, **changes)


def make_prompt(sample_id: str = "a", *, question: str = "When?", gold=(1.0, 3.0), key: str = "k", ids=(1, 2, 3)) -> Prompt:
    sample = Sample(
        id=sample_id,
        task="temporal_grounding",
        answer_type="time_span",
        question=question,
        media=(MediaRef(kind="video", path="videos/1.mp4"),),
        answer="",
        gt={"time": list(gold)},
    )
    handle = MediaHandle(kind="video", key=key, grid_thw=(2, 4, 4), tokens=8)
    return Prompt(sample=sample, ids=tuple(ids), media=(handle,), spans=((0, 1),), answer_format="think")


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    text=st.text(),
    answer=st.none() | st.text(),
    pred=st.none() | st.tuples(finite, finite),
    tiou=st.floats(0, 1),
    tokens=st.integers(0, 10**6),
    has=st.booleans(),
)
def test_a_record_survives_the_way_through_json(text, answer, pred, tiou, tokens, has):
    record = make_record(text=text, answer=answer, pred=pred, scores={"tiou": tiou}, think=Think(has=has, tokens=tokens))
    line = record.line()
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert from_json(json.loads(line)) == record


def test_lone_surrogates_from_a_decoder_are_kept():
    record = make_record(text="a\ud800b\x1b[2J\u2028")
    assert from_json(json.loads(record.line())).text == record.text


def test_unknown_missing_and_misshapen_fields_are_refused():
    good = json.loads(make_record().line())
    with pytest.raises(TypeError, match="unknown field 'colour'"):
        from_json(good | {"colour": 1})
    with pytest.raises(KeyError, match="gold"):
        from_json({k: v for k, v in good.items() if k != "gold"})
    with pytest.raises(TypeError):
        from_json(good | {"think": {"has": True}})
    with pytest.raises(ValueError):
        make_record(scores={"tiou": float("nan")}).line()


def test_read_leaves_out_a_torn_tail_and_refuses_other_damage(tmp_path):
    path = tmp_path / "r.jsonl"
    a, b = make_record("a"), make_record("b")
    path.write_bytes(a.line() + b.line() + make_record("c").line()[:40])
    assert read_records(path) == [a, b]
    path.write_bytes(a.line() + b"\x00" * 50)
    assert read_records(path) == [a]
    path.write_bytes(a.line() + b.line()[:30] + b"\n")
    assert read_records(path) == [a]
    path.write_bytes(a.line() + b.line()[:30] + b"\n" + make_record("c").line())
    with pytest.raises(StorageError, match=r"r\.jsonl:2: not an evaluation record"):
        read_records(path)
    path.write_bytes(a.line() + b.line() + a.line())
    with pytest.raises(StorageError, match=r"r\.jsonl:3: the answer 0 to sample 'a' is already at line 1"):
        read_records(path)
    with pytest.raises(StorageError, match="no evaluation records"):
        read_records(tmp_path / "none.jsonl")


def test_hashes_depend_on_what_is_asked_and_on_nothing_else():
    base = make_prompt()
    assert sample_hash(base) == sample_hash(make_prompt(ids=(9, 9)))
    for other in (make_prompt(question="Where?"), make_prompt(gold=(1.0, 3.5)), make_prompt(key="other pixels"), make_prompt("b")):
        assert sample_hash(other) != sample_hash(base)
    assert prompt_ids_hash(base) == prompt_ids_hash(make_prompt(gold=(0.0, 9.0)))
    assert prompt_ids_hash(base) != prompt_ids_hash(make_prompt(ids=(1, 2, 4)))
    moved = dataclasses.replace(base.sample, source="other.jsonl:9", media_root="elsewhere")
    assert sample_hash(dataclasses.replace(base, sample=moved)) == sample_hash(base)


def test_key_of_a_prompt_separates_weights_and_settings():
    prompt = make_prompt()
    keys = {
        one_key(prompt, SETTINGS, "w1"),
        one_key(prompt, SETTINGS, "w2"),
        one_key(prompt, dataclasses.replace(SETTINGS, max_new_tokens=17), "w1"),
        one_key(prompt, dataclasses.replace(SETTINGS, top_p=0.9), "w1"),
    }
    assert len(keys) == 4
    assert one_key(prompt, dataclasses.replace(SETTINGS, temperature=0), "w1") == one_key(prompt, SETTINGS, "w1")


def test_another_engine_makes_other_answers_and_records_name_it():
    """Records of before, and those of the reference engine, have no such setting."""
    assert settings_json(SETTINGS, "hf") == settings_json(SETTINGS)
    assert "engine" not in settings_json(SETTINGS)
    assert settings_json(SETTINGS, "vllm") == {**settings_json(SETTINGS), "engine": "vllm"}
    ours, theirs = (prompt_keys(make_prompt(), SETTINGS, "w", engine=name) for name in ("hf", "vllm"))
    assert ours == prompt_keys(make_prompt(), SETTINGS, "w")
    assert ours != theirs


def one_key(prompt: Prompt, settings: GenerationSettings, fingerprint: str) -> Key:
    (key,) = prompt_keys(prompt, settings, fingerprint)
    return key


def test_answers_of_one_question_have_keys_of_their_own():
    sampled = GenerationSettings(max_new_tokens=16, temperature=1.0)
    keys = [key for seed in (0, 1) for key in prompt_keys(make_prompt(), sampled, "w", samples=3, seed=seed)]
    assert len(set(keys)) == 6
    greedy = [prompt_keys(make_prompt(), SETTINGS, "w", seed=seed) for seed in (0, 1)]
    assert greedy[0] == greedy[1]  # a greedy answer has no seed


def test_a_file_of_before_there_were_several_answers_can_be_read(tmp_path):
    row = json.loads(make_record("a").line())
    for name in LATER:
        del row[name]
    (tmp_path / "r.jsonl").write_text(json.dumps(row) + "\n")
    (record,) = read_records(tmp_path / "r.jsonl")
    assert (record.k, record.seed, record.category, record.harness) == (0, None, None, "vlmrl")


def test_store_keeps_exactly_what_is_complete(tmp_path):
    path = tmp_path / "eval" / "rl.jsonl"
    old, half, done = make_record("old", fingerprint="w0"), make_record("half", sample_hash="h"), make_record("done", sample_hash="d")
    fs.mkdir(path.parent)
    path.write_bytes(old.line() + half.line() + done.line() + b'{"torn')
    store = RecordStore(path)
    assert store.found == {r.key: r for r in (old, half, done)}
    store.keep([half.key, done.key], [done])
    assert path.read_bytes() == done.line()
    assert (path.parent / "rl.jsonl.superseded").read_bytes() == old.line()
    store.append([half])
    store.finish([done, half])
    assert read_records(path) == [done, half]


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path):
    store = RecordStore(tmp_path / "r.jsonl")
    store.keep([], [])
    store.append([make_record("a")])
    before = store.path.read_bytes()
    with fs_ops.fail_at(1), pytest.raises(StorageError):
        store.append([make_record("b"), make_record("c")])
    assert store.path.read_bytes() == before


def test_files_with_earlier_names_can_be_read():
    row = json.loads(make_record("a").line())
    old = {{"model": "stage", "answer_format": "template"}.get(name, name): value for name, value in row.items()}
    assert from_json(old) == make_record("a")
    with pytest.raises(TypeError, match="'stage' is the earlier name of 'model', which is there as well"):
        from_json(row | {"stage": "rl"})


@pytest.mark.parametrize("keeper", ["run", "evaluation"])
def test_records_are_compared_with_the_hash_that_is_kept_of_them(keeper: str, tmp_path: Path) -> None:
    """A letter that was changed leaves the lines well-formed; reports and comparisons would show another answer."""
    folder = tmp_path / "eval" if keeper == "run" else tmp_path
    folder.mkdir(exist_ok=True)
    path = folder / "sft.jsonl"
    path.write_bytes(b"")
    assert read_verified(path) == []
    empty = hashlib.sha256(b"").hexdigest()
    if keeper == "run":
        (tmp_path / "identity.json").write_text(json.dumps({"records": [["eval/sft.jsonl", 0, empty]]}))
    else:
        (tmp_path / "summary.json").write_text(json.dumps({"files": {"sft.jsonl": empty}}))
    assert read_verified(path) == []
    path.write_bytes(b"x")
    with pytest.raises(StorageError, match=r"sft\.jsonl: content is not what was written"):
        read_verified(path)
    (folder / "other.jsonl").write_bytes(b"")
    assert read_verified(folder / "other.jsonl") == []
