"""Results of other harnesses as records: every shape of the files, nothing guessed, and damage named."""

from __future__ import annotations

import json
import sys

import pytest

from vlmrl.errors import ConfigError, DataError
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.paired import Incomparable
from vlmrl.evals.score.records import read_records
from vlmrl.extras.bridge.importers.common import number_of
from vlmrl.extras.bridge.importers.lmms_eval import import_lmms_samples, settings_of
from vlmrl.extras.bridge.importers.run import run_import
from vlmrl.extras.bridge.importers.vlmevalkit import import_vlmevalkit
from vlmrl.types import MediaRef, Sample


def doc(number, filtered, **more):
    return {"doc_id": number, "target": "B", "filtered_resps": filtered, "doc_hash": "74234e98", "input": f"Q{number}", "acc": 1.0, **more}


def samples_file(folder, lines, task="mmstar", date="20260101_120000"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{date}_samples_{task}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def row(name, answer="B") -> Sample:
    media = (MediaRef(kind="image", path=f"{name}.png"),)
    meta = {"choices": ["cat", "dog"], "category": "animals"}
    return Sample(id=name, task="vqa", answer_type="choice", question="Which?", media=media, answer=answer, gt={}, meta=meta)


def test_a_line_without_rows(tmp_path):
    text = "<think>Looks like a dog.</think><answer> B </answer>"
    counts = [{"input_tokens": 90, "output_tokens": 12}]
    line = doc(3, "B", resps=text, token_counts=counts, mcq={"score": 0, "id": 7}, bad=float("nan"), pred="x")
    imported = import_lmms_samples(samples_file(tmp_path / "run", [line]))
    (record,) = imported.records
    assert (record.sample_id, record.task, record.k, record.text, record.answer, record.status) == ("3", "mmstar", 0, text, "B", "ok")
    assert record.scores == {"upstream/acc": 1.0, "upstream/mcq": 0.0}
    assert (record.n_in, record.n_out, record.think.has) == (90, 12, True)
    assert (record.model, record.harness, record.settings, record.task_version) == ("run", "unknown version of lmms-eval", {}, 0)
    assert (record.finish, record.format_ok, record.think.tokens, record.answer_format, record.answer_type) == (
        None,
        None,
        None,
        "unknown",
        "unknown",
    )
    assert record.sample_hash.startswith("unknown:")
    assert record.prompt_ids_hash.startswith("unknown:")
    assert [note.partition(": ")[2] for note in imported.notes] == [
        "'bad' is no number on 1 of 1 lines and is left out there",
        "'pred' is no number on 1 of 1 lines and is left out there",
    ]


def test_order_repeats_and_what_is_left_out(tmp_path):
    lines = [
        doc(2, ["x", "y"], resps=[["x"], ["y"]], token_counts=[{"output_tokens": 1}, None]),  # a request per answer
        doc(0, "only"),  # resps are left out when they are equal
        doc(1, ["first"], resps=["first", "second"], token_counts=[{"output_tokens": 4}]),  # several answers, of which one is scored
    ]
    records = import_lmms_samples(samples_file(tmp_path, lines), model="m").records
    found = [(r.sample_id, r.k, r.text, r.n_out, "upstream/acc" in r.scores) for r in records]
    assert found == [
        ("0", 0, "only", None, True),
        ("1", 0, "first", 4, True),
        ("1", 1, "second", None, False),
        ("2", 0, "x", 1, True),
        ("2", 1, "y", None, False),
    ]
    assert len({r.prompt_ids_hash for r in records}) == 3


@pytest.mark.parametrize(
    ("text", "answer", "status", "unclosed"),
    [("<think>never ends", None, "truncated", True), ("", None, "no_tag", False), ("plain B", "plain B", "ok", False)],
)
def test_how_an_answer_is_read(tmp_path, text, answer, status, unclosed):
    (record,) = import_lmms_samples(samples_file(tmp_path, [doc(0, text)])).records
    assert (record.answer, record.status, record.unclosed) == (answer, status, unclosed)


def test_the_results_file_says_more(tmp_path):
    path = samples_file(tmp_path, [doc(0, "B")])
    results = {
        "lmms_eval_version": "0.7.3",
        "model_name": "qwen",
        "config": {"model": "qwen2_5_vl", "model_args": "pretrained=x"},
        "configs": {"mmstar": {"output_type": "generate_until", "generation_kwargs": {"max_new_tokens": 16, "temperature": 0}}},
        "versions": {"mmstar": 2},
    }
    beside = tmp_path / "20260101_120000_results.json"
    beside.write_text(json.dumps(results))
    (record,) = import_lmms_samples(path).records
    assert (record.harness, record.model, record.task_version) == ("lmms-eval 0.7.3", "qwen (pretrained=x)", 2)
    assert record.settings == {"max_new_tokens": 16, "temperature": 0.0, "top_p": 1.0}
    results["configs"]["mmstar"]["output_type"] = "loglikelihood"
    beside.write_text(json.dumps(results))
    with pytest.raises(DataError, match="asks for loglikelihood, not for text"):
        import_lmms_samples(path)
    beside.write_text("{")
    with pytest.raises(DataError, match=r"results\.json: not JSON"):
        import_lmms_samples(path)


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ({"max_new_tokens": 8, "do_sample": False, "temperature": 0.7}, {"max_new_tokens": 8, "temperature": 0.0, "top_p": 1.0}),
        ({"max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9}, {"max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9}),
        ({"max_new_tokens": 8, "temperature": 0.7}, {}),
        ({"temperature": 0}, {}),
        ({}, {}),
    ],
)
def test_settings_are_known_as_a_whole_or_not(arguments, known):
    assert settings_of(arguments) == known


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no answers"),
        (b'{"doc_id": 0, "filtered', r":1: not JSON"),
        (b'{"doc_id": 0}\n', r":1: no doc_id and filtered_resps"),
        (b"[1]\n", r":1: no doc_id and filtered_resps"),
        (b'\n{"doc_id": 0, "filtered_resps": "a"}\n{"doc_id": 0, "filtered_resps": "b"}\n', r":3: document 0 is already on line 2"),
        (b'{"doc_id": 0, "filtered_resps": []}\n', r":1: no answer in it"),
        (b'{"doc_id": 0, "filtered_resps": 5}\n', r":1: an answer is int, not text"),
        (b'{"doc_id": 0, "filtered_resps": [["-1.5", "True"], ["-2.5", "False"]]}\n', r":1: a log-likelihood and not a text"),
    ],
)
def test_damaged_samples_files(tmp_path, content, message):
    path = samples_file(tmp_path, [])
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        import_lmms_samples(path)


def test_the_task_needs_a_name(tmp_path):
    path = samples_file(tmp_path, [doc(0, "B")]).rename(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match="not named <date>_samples_<task>"):
        import_lmms_samples(path)
    assert import_lmms_samples(path, task="mine").records[0].task == "mine"


def test_with_rows_our_scorers_judge_as_well(tmp_path):
    path = samples_file(tmp_path, [doc(0, "<answer>B</answer>", acc=0), doc(1, "it is A", acc=1)])
    records = import_lmms_samples(path, samples={"0": row("r0"), "1": row("r1")}, answer_format="answer_only").records
    assert [(r.sample_id, r.scores["exact"], r.scores["upstream/acc"]) for r in records] == [("r0", 1.0, 0.0), ("r1", 0.0, 1.0)]
    assert [(r.cluster, r.answer_type, r.format_ok, r.category) for r in records] == [
        ("r0.png", "choice", True, "animals"),
        ("r1.png", "choice", False, "animals"),
    ]
    with pytest.raises(DataError, match=r"1 of 2 answers have no row, the first has the id '1' \(rows have ids such as '0'\)"):
        import_lmms_samples(path, samples={"0": row("r0")})


TABLE = [
    {"index": "1", "question": "Which?", "A": "cat", "B": "dog", "answer": "B", "prediction": "B", "hit": "1"},
    {"index": "1000001", "question": 'Say "so"\nnow', "A": "cat", "B": "dog", "answer": "A", "prediction": "tab\there", "hit": "nan"},
]


def table_file(path, delimiter):
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(TABLE[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(TABLE)
    return path


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".json"])
def test_tables_of_vlmevalkit(tmp_path, suffix):
    path = tmp_path / f"Model_MMStar{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps([{**r, "index": int(r["index"])} for r in TABLE]))
    else:
        table_file(path, "\t" if suffix == ".tsv" else ",")
    imported = import_vlmevalkit(path, version="abc")
    found = [(r.sample_id, r.text, r.scores, r.n_out, r.settings) for r in imported.records]
    assert found == [("1", "B", {"upstream/hit": 1.0}, None, {}), ("1000001", "tab\there", {}, None, {})]
    assert {(r.harness, r.task, r.prompt_ids_hash) for r in imported.records} == {("VLMEvalKit abc", "Model_MMStar", "unknown")}
    assert imported.notes == (f"{path}: 'hit' is no number in 1 of 2 rows and is left out there",)
    scored = import_vlmevalkit(path, samples={"1": row("a"), "1000001": row("b", "A")})
    assert [(r.sample_id, r.scores["exact"], r.harness) for r in scored.records] == [
        ("a", 1.0, "unknown version of VLMEvalKit"),
        ("b", 0.0, "unknown version of VLMEvalKit"),
    ]


def test_a_thought_in_a_column_of_its_own(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"index": 3.0, "prediction": "B", "thinking": "hm"}, {"index": 4, "prediction": None, "thinking": None}]))
    first, second = import_vlmevalkit(path).records
    assert (first.sample_id, first.think.has, first.text) == ("3", True, "B")
    assert (second.think.has, second.text, second.status) == (False, "", "no_tag")


def test_large_cells_are_read_and_the_limit_is_put_back(tmp_path):
    import csv

    before = csv.field_size_limit()
    path = tmp_path / "big.tsv"
    path.write_text("index\timage\tprediction\n1\t" + "x" * 300_000 + "\tB\n")
    assert import_vlmevalkit(path).records[0].answer == "B"
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.tsv", "index\tanswer\n1\tB\n", DataError, "no column 'prediction'; it has index, answer"),
        ("a.tsv", "index\tprediction\n1\tB\n1\tA\n", DataError, "row 2: index '1' is already in row 1"),
        ("a.tsv", "index\tprediction\n1\n", DataError, "row 1 has another number of cells"),
        ("a.tsv", "index\tprediction\n", DataError, "holds no answers"),
        ("a.json", "{}", DataError, "not a list of objects"),
        ("a.json", "{", DataError, "not JSON"),
        ("a.pkl", "", ConfigError, r"cannot read '\.pkl'; give one of \.tsv"),
    ],
)
def test_other_tables_are_refused(tmp_path, name, content, error, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(error, match=message):
        import_vlmevalkit(path)


def test_xlsx_without_openpyxl_asks_for_another_format(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"PK")
    with pytest.raises(ConfigError, match=r"needs openpyxl: pip install 'vlmrl\[xlsx\]', or save the table as TSV or CSV"):
        import_vlmevalkit(path)


def test_xlsx(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["index", "prediction", "hit"])
    book.active.append([7, "B", 1])
    book.save(tmp_path / "a.xlsx")
    (record,) = import_vlmevalkit(tmp_path / "a.xlsx").records
    assert (record.sample_id, record.answer, record.scores) == ("7", "B", {"upstream/hit": 1.0})


@pytest.mark.parametrize(
    ("value", "number"),
    [(True, 1.0), (2, 2.0), (0.5, 0.5), ("True", 1.0), (" 0 ", 0.0), ("1e-2", 0.01), ("nan", None), ("x", None), (None, None), ([1], None)],
)
def test_what_is_a_number(value, number):
    assert number_of(value) == number


def test_import_and_compare(tmp_path):
    before = samples_file(tmp_path / "old", [doc(n, "B", acc=1) for n in range(20)])
    samples_file(tmp_path / "old", [doc(0, "A")], task="other")
    after = samples_file(tmp_path / "new", [doc(n, "A", acc=int(n > 9)) for n in range(20)])
    assert run_import(tmp_path / "old", "lmms-eval", tmp_path / "a") == []
    run_import(after, "lmms-eval", tmp_path / "b", primary="upstream/acc")
    assert len(read_records(tmp_path / "a" / "mmstar.jsonl")) == 20
    assert json.loads((tmp_path / "b" / "summary.json").read_text())["tasks"]["mmstar"] == {
        "n": 20,
        "metrics": {"upstream/acc": {"mean": 0.5}},
    }
    with pytest.raises(Incomparable) as caught:
        compare_folders(tmp_path / "a", tmp_path / "b")
    assert str(caught.value).count("is unknown on 20 samples") == 6
    result = compare_folders(tmp_path / "a", tmp_path / "b", force=True)
    assert (result.regressed, result.only, len(result.tasks[0].flips)) == (("mmstar",), (("other",), ()), 10)
    assert (result.models, before.exists()) == (("old", "new"), True)
    assert set(result.tasks[0].gaps) == {"parse_rate", "think_rate", "upstream/acc"}


def test_rows_from_a_file(tmp_path):
    rows = [
        {"id": f"r{n}", "task": "vqa", "image": "x.png", "prompt": "Which?", "answer": "B", "answer_type": "exact_text"} for n in range(2)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    path = samples_file(tmp_path, [doc(1, "A"), doc(0, "b")])
    run_import(path, "lmms-eval", tmp_path / "out", rows=tmp_path / "rows.jsonl", join="index", primary="exact")
    assert [(r.sample_id, r.scores["exact"]) for r in read_records(tmp_path / "out" / "mmstar.jsonl")] == [("r0", 1.0), ("r1", 0.0)]
    with pytest.raises(DataError, match="the first has the id '0'"):
        run_import(path, "lmms-eval", tmp_path / "out", rows=tmp_path / "rows.jsonl")


def test_options_that_do_not_fit(tmp_path):
    path = samples_file(tmp_path / "x", [doc(0, "B")])
    samples_file(tmp_path / "x", [doc(0, "B")], task="other")
    out = tmp_path / "out"
    for arguments, message in (
        ((path, "helm"), "unknown kind 'helm'; there is: lmms-eval, vlmevalkit"),
        ((tmp_path / "no", "lmms-eval"), "no: no such file"),
        ((tmp_path, "lmms-eval"), "no file <date>_samples_<task>"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_import(*arguments, out)
    with pytest.raises(ConfigError, match="holds 2 tasks"):
        run_import(tmp_path / "x", "lmms-eval", out, task="a")
    with pytest.raises(ConfigError, match=r"no metric 'exact'; there is: upstream/acc$"):
        run_import(path, "lmms-eval", out, primary="exact")
    with pytest.raises(ConfigError, match=r"name '\.\./x' is not a plain name"):
        run_import(path, "lmms-eval", out, task="../x")
    samples_file(tmp_path / "x", [doc(0, "B")], date="20260102_120000")
    with pytest.raises(ConfigError, match="task 'mmstar' was run more than once"):
        run_import(tmp_path / "x", "lmms-eval", out)
    assert not out.exists()
