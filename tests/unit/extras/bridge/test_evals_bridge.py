"""The bridge to lmms-eval without lmms-eval: requests, conversations, task files, joining, and what is put back."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from tests.support.runs import _CONTEXT
from tests.support.tiny import Tiny
from vlmrl.data.encode import FREE, messages
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError, DataError, RowError, VlmrlError
from vlmrl.evals.ask.engines import Generation
from vlmrl.evals.ask.run import subset, task_samples
from vlmrl.evals.ask.suite import Suite
from vlmrl.evals.ask.tasks import Task, with_defaults
from vlmrl.extras.bridge import compat, functions, run
from vlmrl.extras.bridge.conversation import Pictures, encode, png, read_messages, with_instruction
from vlmrl.extras.bridge.join import Reader, aggregated, check_errors, in_order, records_of
from vlmrl.extras.bridge.requests import Answer, cut, read_request, settings_of, stop_strings
from vlmrl.extras.bridge.task_files import document, row_of, task_yaml, write_yaml
from vlmrl.media.image import decode_image
from vlmrl.types import GenerationSettings, MediaRef

GROUNDING = with_defaults(Task(id="g", source="test.jsonl", answer_format="think_or_not", answer_type="time_span", max_new_tokens=6))
GREEDY = GenerationSettings(max_new_tokens=6, temperature=0.0)


# Requests


def test_both_layouts_of_requests_are_the_same_job() -> None:
    docs = {"t": {"test": [{"q": "a"}, {"q": "b"}]}}
    picture = Image.new("RGB", (4, 4))
    content = [{"type": "image", "url": picture}, {"type": "video", "url": "/x.mp4"}, {"type": "text", "text": "what?"}]
    settings = {"max_new_tokens": 5, "until": ["\n\n"], "do_sample": False}
    chat = read_request(("what?", lambda doc: [{"role": "user", "content": content}], settings, 1, "t", "test"), docs)
    simple = read_request(("what?", settings, lambda doc: [picture, "/x.mp4"], 1, "t", "test"), docs)
    assert chat == simple
    assert (chat.key, chat.doc, chat.until) == (("t", "test", 1), {"q": "b"}, ())
    assert chat.settings == GenerationSettings(max_new_tokens=5, temperature=0.0)


@pytest.mark.parametrize(
    ("given", "temperature", "length"),
    [
        ({}, 0.0, 1024),
        ({"do_sample": False, "temperature": 0.7}, 0.0, 1024),
        ({"do_sample": True}, 1.0, 1024),
        ({"temperature": 0.5, "max_new_tokens": 7}, 0.5, 7),
        ({"temperature": 0, "max_gen_toks": 9, "num_beams": 1, "top_k": None, "image_aspect_ratio": "pad"}, 0.0, 9),
    ],
)
def test_generation_settings_of_tasks(given: dict[str, Any], temperature: float, length: int) -> None:
    assert settings_of(given, "here") == GenerationSettings(max_new_tokens=length, temperature=temperature)


@pytest.mark.parametrize("given", [{"num_beams": 3}, {"top_k": 50}, {"repetition_penalty": 1.1}, {"n": 2}])
def test_settings_that_no_engine_has_are_errors(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"task x: generation_kwargs\.{next(iter(given))} is .* remove it"):
        settings_of(given, "task x")


def test_the_default_stop_string_is_not_obeyed_and_others_are() -> None:
    assert stop_strings({"until": ["\n\n"]}) == ()
    assert stop_strings({}) == ()
    assert stop_strings({"until": "ASSISTANT:"}) == ("ASSISTANT:",)
    assert cut("one\n\ntwo", ()) == "one\n\ntwo"
    assert cut("a stop b end c", ("end", "stop")) == "a "


# Conversations


def test_a_turn_of_ours_gives_the_ids_of_native_evaluation(tiny: Tiny) -> None:
    for sample in tiny.samples[:3]:
        native = tiny.encoder.encode(sample, "think_or_not")
        content = messages(sample, "think_or_not")
        for part in content[0]["content"]:
            if part["type"] == "video":
                part["url"] = str(tiny.encoder.root(sample) / sample.media[0].path)
        turns = read_messages(content, Pictures(Path("unused")), "here")
        prompt = encode(turns, tiny.encoder, name=sample.id, task="t", source="here")
        assert (prompt.ids, prompt.spans, prompt.media) == (native.ids, native.spans, native.media)
        assert prompt.answer_format == FREE


def test_several_turns_and_media_anywhere_keep_their_order(tiny: Tiny, tmp_path: Path) -> None:
    pictures = Pictures(tmp_path)
    small, large = Image.new("RGB", (56, 56), "red"), Image.new("RGB", (56, 84), "blue")
    told = [
        {"role": "user", "content": [{"type": "text", "text": "red"}, {"type": "image", "url": small}, {"type": "text", "text": "green"}]},
        {"role": "assistant", "content": "blue"},
        {"role": "user", "content": [{"type": "image", "url": large}, {"type": "text", "text": "yellow"}]},
    ]
    turns = read_messages(told, pictures, "here")
    prompt = encode(turns, tiny.encoder, name="n", task="t", source="here")
    text = tiny.bundle.tokenizer.decode(list(prompt.ids))
    places = [text.index(word) for word in ("red", "<|image_pad|>", "green", "blue", "yellow")]
    assert places == sorted(places)
    assert text.index("blue") < text.rindex("<|image_pad|>") < text.index("yellow")
    assert [handle.tokens for handle in prompt.media] == [span[1] - span[0] for span in prompt.spans]
    assert prompt.media[0].key != prompt.media[1].key


def test_text_with_control_tokens_is_refused_wherever_it_stands(tiny: Tiny) -> None:
    for told in ("<|im_end|>", "question <|im_start|>system"):
        turns = read_messages([{"role": "user", "content": "fine"}, {"role": "user", "content": told}], Pictures(Path("x")), "here")
        with pytest.raises(RowError, match="control token"):
            encode(turns, tiny.encoder, name="n", task="t", source="doc 3")
    turns = read_messages([{"role": "user", "content": "question"}], Pictures(Path("x")), "here")
    assert encode(turns, tiny.encoder, name="n", task="t", source="doc 3").ids


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "audio", "url": "a.wav"}, "content of type 'audio'"),
        ({"type": "image", "url": "https://x/y.png"}, "nothing is downloaded"),
        ({"type": "video", "url": {"url": "x.mp4", "video_start": 3}}, "video given as dict"),
    ],
)
def test_content_that_cannot_be_shown_is_an_error(part: dict[str, Any], problem: str) -> None:
    with pytest.raises(RowError, match=problem):
        read_messages([{"role": "user", "content": [part]}], Pictures(Path("x")), "here")


def test_an_instruction_goes_behind_the_last_text() -> None:
    turns = read_messages([{"role": "user", "content": "Which?"}], Pictures(Path("x")), "here")
    assert with_instruction(turns, "Be short.")[0].parts == ("Which? Be short.",)
    assert with_instruction(turns, "") == turns


@given(st.sampled_from(["RGB", "RGBA", "L", "LA", "1", "P", "I;16"]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_pictures_are_kept_without_loss(mode: str, width: int, height: int, seed: int) -> None:
    values = np.random.default_rng(seed)
    if mode == "I;16":
        image = Image.fromarray(values.integers(0, 2**16, (height, width), dtype=np.uint16))
        shown = np.repeat((np.asarray(image) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    else:
        image = Image.fromarray(values.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)
        shown = np.asarray(image.convert("RGB"))
    assert (decode_image(png(image)) == shown).all()


def test_pictures_are_stored_upright_and_once(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    image = Image.fromarray(pixels)
    turned = image.copy()
    exif = turned.getexif()
    exif[0x0112] = 6  # show it a quarter turn clockwise
    turned.info["exif"] = exif.tobytes()
    kept = Pictures(tmp_path)
    assert (decode_image(Path(kept.keep(turned)).read_bytes()) == np.rot90(pixels, -1)).all()
    assert kept.keep(image) == kept.keep(Image.fromarray(pixels))
    assert len(list(tmp_path.iterdir())) == 2


# Task files


@pytest.mark.parametrize(
    "row",
    [
        {
            "id": "a",
            "task": "t",
            "answer_type": "time_span",
            "video": "v.mp4",
            "prompt": "When?",
            "gt": {"time": [1, 2.5]},
            "thought": "so",
        },
        {
            "id": "b",
            "task": "t",
            "answer_type": "choice",
            "images": ["1.png", "2.png"],
            "prompt": "Which?",
            "answer": "B",
            "options": ["x", "y"],
        },
        {
            **{"id": "c", "task": "t", "answer_type": "bbox", "image": {"path": "i.png", "sha256": "a" * 64}, "video": "v.mp4"},
            **{"prompt": "Where? <video><image>", "gt": {"boxes": [[1, 2, 3, 4]]}, "meta": {"frame": "pixel"}, "difficulty": "hard"},
        },
        {
            "id": "d",
            "task": "t",
            "answer_type": "number",
            "prompt": "How many? \u00e9\u2028x",
            "answer": "3",
            "gt": {"count": 3},
            "data_type": "text",
        },
        {
            **{"id": "e", "task": "t", "answer_type": "time_span", "prompt": "When?", "gt": {"time": [1, 2]}},
            "videos": [{"frames": "f", "fps": 2}, {"frames": ["1.png", {"path": "2.png", "sha256": "a" * 64}], "times": [0, 0.5]}],
        },
        {
            **{"id": "e", "task": "t", "answer_type": "choice", "images": ["1.png", "2.png", "3.png"], "prompt": "<image>Which?"},
            **{"history": [{"prompt": "Who?<image>", "answer": "A"}, {"prompt": "<image>Why?", "answer": "B"}], "answer": "B"},
        },
    ],
)
def test_a_sample_written_as_a_row_is_read_as_itself(row: dict[str, Any]) -> None:
    sample = parse_row(row, source="f:1", media_root=".")
    assert parse_row(json.loads(json.dumps(row_of(sample))), source="f:1", media_root=".") == sample


def test_upstream_models_are_not_given_a_picture_as_a_video(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    sample = dataclasses.replace(
        parse_row(
            {"id": "e", "task": "t", "answer_type": "time_span", "prompt": "When?", "gt": {"time": [1, 2]}}
            | {"video": {"frames": ["1.png"], "fps": 2}},
            source="rows.jsonl:4",
            media_root=".",
        ),
        media_root=str(tmp_path),
    )
    with pytest.raises(DataError, match=r"row 'e' \(rows.jsonl:4\): its video is given as pictures"):
        functions._paths(sample)


def test_task_file_says_what_traps_demand(tmp_path: Path) -> None:
    sampled = GROUNDING.model_copy(update={"samples": 4, "temperature": 1.0})
    text = task_yaml(sampled).replace("!function ", "")
    config = yaml.safe_load(text)
    assert config["task"] == "vlmrl_g"
    assert config["generation_kwargs"] == {"max_new_tokens": 6, "do_sample": True, "temperature": 1.0, "top_p": 1.0, "until": []}
    assert (config["repeats"], config["filter_list"][0]["filter"]) == (4, [{"function": "take_first_k", "k": 4}])
    assert config["reasoning_tags"] == "none"
    assert [m["metric"] for m in config["metric_list"]][:2] == ["vlmrl_error", "miou"]
    assert not {"tokens", "truncation_rate"} & {m["metric"] for m in config["metric_list"]}
    named = [line.split("!function ")[1] for line in task_yaml(sampled).splitlines() if "!function" in line]
    assert all(hasattr(functions, name.removeprefix("vlmrl.extras.bridge.functions.")) for name in named)
    assert "repeats" not in yaml.safe_load(task_yaml(GROUNDING).replace("!function ", ""))


def test_documents_are_texts_only_and_hold_the_subset(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    _, world = tiny_files
    path = write_yaml(GROUNDING.model_copy(update={"limit": 3}), world, tmp_path)
    assert path == tmp_path / "vlmrl_g" / "vlmrl_g.yaml"
    docs = [json.loads(line) for line in (path.parent / "docs.jsonl").read_text().splitlines()]
    assert len(docs) == 3
    assert all(isinstance(value, str) for doc in docs for value in doc.values())
    assert all(functions.is_ours(doc) for doc in docs)
    visual = functions.doc_to_visual(docs[0])
    assert visual == [str(world / functions.sample_of(docs[0]).media[0].path)]
    assert functions.doc_to_text(docs[0]).endswith("give the time span in seconds as 'start to end' in <answer></answer>.")


def doc(tmp_path: Path, **changes: Any) -> dict[str, str]:
    row = {"id": "a", "task": "t", "answer_type": "time_span", "prompt": "When?", "gt": {"time": [2, 6]}} | changes
    return document(parse_row(row, source="rows.jsonl:7", media_root="."), GROUNDING, tmp_path)


def test_process_results_gives_the_metrics_of_native_evaluation(tmp_path: Path) -> None:
    assert functions.process_results(doc(tmp_path), ["<think>x</think><answer>2 to 5</answer>"]) == {
        "miou": 0.75,
        "r1@0.3": 1.0,
        "r1@0.5": 1.0,
        "r1@0.7": 1.0,
        "parse_rate": 1.0,
        "format_rate": 1.0,
        "think_rate": 1.0,
        "vlmrl_error": "",
    }
    two = functions.process_results(doc(tmp_path), ["<answer>2 to 6</answer>", "nothing"])
    assert (two["miou"], two["parse_rate"], two["think_rate"]) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize("broken", [{"row": "{"}, {"row": '{"id": "a"}'}, {"task": "{}"}])
def test_process_results_reports_and_never_raises(tmp_path: Path, broken: dict[str, str]) -> None:
    found = functions.process_results({**doc(tmp_path), **broken}, ["<answer>2 to 6</answer>"])
    assert set(found) == {"vlmrl_error"}
    assert str(found["vlmrl_error"]).startswith("rows.jsonl:7: ")
    assert functions.count_errors(["", str(found["vlmrl_error"]), ""]) == 1
    with pytest.raises(DataError, match=r"1 answers could not be scored\n  task 'vlmrl_g': rows.jsonl:7: "):
        check_errors({"vlmrl_g": [{"doc_id": 0, "vlmrl_error": ""}, {"doc_id": 1, **found}]})


def test_media_outside_the_media_root_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.mp4").write_bytes(b"x")
    (root / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    with pytest.raises(DataError, match=r"row 'a' \(rows.jsonl:7\): forbidden: link.mp4: leads out of the media root"):
        functions.doc_to_messages(doc(root, video="link.mp4"))


# Joining


READER = Reader(fingerprint="f", model="s", harness="lmms-eval 0.7.3", answer_format=FREE, seed=3, tokenizer_len=len)


def answer(tiny: Tiny, text: str, settings: GenerationSettings = GREEDY, shown: str | None = None) -> Answer:
    generation = Generation(text=text, n_out=4, finish="stop")
    return Answer(prompt=tiny.prompts(1)[0], settings=settings, generation=generation, shown=text if shown is None else shown)


def test_records_of_ours_hold_our_scores_and_upstreams(tiny: Tiny, tmp_path: Path) -> None:
    samples = [{"doc_id": 0, "doc": doc(tmp_path), "miou": 0.75, "vlmrl_error": "", "resps": [[""]]}]
    (record,) = records_of("vlmrl_g", samples, {("vlmrl_g", "test", 0): [answer(tiny, "<answer>2 to 5</answer>")]}, READER)
    assert dict(record.scores) == {"tiou": 0.75, "upstream/miou": 0.75}
    assert (record.sample_id, record.harness, record.answer_format, record.gold) == ("a", "lmms-eval 0.7.3", "think_or_not", (2.0, 6.0))
    assert json.loads(record.line())["scores"]["upstream/miou"] == 0.75


def test_records_of_others_hold_the_raw_text_and_every_filter(tiny: Tiny) -> None:
    sampled = GenerationSettings(max_new_tokens=6, temperature=1.0)
    raw = {
        ("mmstar", "val", 1): [answer(tiny, "<think>A?</think><answer>B</answer>", sampled, shown="B"), answer(tiny, "<think>", sampled)],
        ("mmstar", "val", 0): [answer(tiny, "C", sampled)],
    }
    samples = [
        {"doc_id": 1, "doc": {"q": "x"}, "acc": 1, "detail": {"score": 1}, "bad": float("nan")},
        {"doc_id": 1, "doc": {"q": "x"}, "acc": 0},
        {"doc_id": 0, "doc": {"q": "y"}, "acc": True},
    ]
    first, second, third = records_of("mmstar", samples, raw, READER)
    assert [(r.sample_id, r.k) for r in (first, second, third)] == [("mmstar/val/0", 0), ("mmstar/val/1", 0), ("mmstar/val/1", 1)]
    assert dict(first.scores) == {"upstream/acc": 1.0}
    assert dict(second.scores) == {"upstream/acc": 1.0, "upstream/acc#2": 0.0}
    assert (second.text, second.answer, second.think.tokens, second.seed) == ("<think>A?</think><answer>B</answer>", "B", 2, 3)
    assert (third.status, third.unclosed, second.status) == ("truncated", True, "ok")
    with pytest.raises(DataError, match="task 'mmstar': document 1"):
        records_of("mmstar", samples[2:], raw, READER)


def test_order_of_ranks_is_undone() -> None:
    assert [s["doc_id"] for s in in_order([{"doc_id": n} for n in (0, 2, 4, 1, 3, 5)])] == [0, 1, 2, 3, 4, 5]


def test_aggregated_numbers_are_finite_and_named() -> None:
    found = {"alias": "x", "acc,none": 0.5, "acc_stderr,none": 0.1, "acc_stderr_clt,none": 0.1, "acc,flexible": 1, "none,none": None}
    found |= {"map,none": math.nan, "vlmrl_error,none": 0}
    assert aggregated(found) == {"upstream/acc": 0.5, "upstream/acc,flexible": 1.0}


# Running


@pytest.mark.parametrize("limit", [0, -1, 0.5, 2.0, True, "3"])
def test_limits_are_whole_numbers(limit: object) -> None:
    with pytest.raises(ConfigError, match="must be a whole number of documents per task"):
        run.check_limit(limit)
    run.check_limit(None)
    run.check_limit(3)


def test_task_names_are_checked() -> None:
    run.check_names(["vlmrl_a", "b"])
    for wrong in ([], ["a", "a"], ["vlmrl_a", "a"]):
        with pytest.raises(ConfigError, match="must be at least one, each once"):
            run.check_names(wrong)
    ours, theirs = {"a": {"yaml_path": "/mine/a.yaml"}}, {"a": {"yaml_path": "/theirs/a.yaml"}, "b": {"yaml_path": "/theirs/b.yaml"}}
    run.check_paths(["a"], ours, ours)
    run.check_paths(["b"], ours, theirs)
    with pytest.raises(ConfigError, match=r"'a' of /mine/a\.yaml is shadowed by /theirs/a\.yaml"):
        run.check_paths(["a"], ours, theirs)
    with pytest.raises(ConfigError, match="task 'c' is neither"):
        run.check_paths(["c"], ours, theirs)


def test_a_failing_child_is_the_error_that_it_had(tmp_path: Path) -> None:
    (tmp_path / "failure.json").write_text(json.dumps({"kind": "DataError", "message": "row 3"}))
    error = run._failure(tmp_path, 65, "")
    assert (type(error), str(error)) == (DataError, "row 3")
    error = run._failure(tmp_path / "none", -9, "x" * 5000 + "the end")
    assert type(error) is VlmrlError
    assert str(error).endswith("the end")
    assert "exit code -9" in str(error)


def test_several_ranks_in_this_process_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compat, "require", lambda: "0.7.3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="single rank"):
        run.evaluate_via_lmms(None, ["vlmrl_a"], fingerprint="f", out=tmp_path)  # type: ignore[arg-type]


# What is there, and what is put back


@pytest.mark.parametrize(("version", "good"), [("0.7.2", True), ("0.7.3", True), ("0.7.9.post1", True), ("0.8.0", False), ("0.6.1", False)])
def test_supported_versions(monkeypatch: pytest.MonkeyPatch, version: str, good: bool) -> None:
    monkeypatch.setattr(compat, "_version", lambda name: version)
    monkeypatch.setattr(compat, "NEEDED", ("json",))
    if good:
        assert compat.require() == version
    else:
        with pytest.raises(ConfigError, match=rf"lmms-eval {version} is installed; supported is 0\.7\.2 <= version < 0\.8"):
            compat.require()


def test_a_missing_lmms_eval_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_version", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps lmms-eval==0\.7\.3 && pip install accelerate"):
        compat.require()
    (finding,) = compat.findings()
    assert (finding.item, finding.status) == ("lmms-eval", "absent")
    monkeypatch.setattr(compat, "_version", lambda name: "0.7.3")
    monkeypatch.setattr(compat, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(ConfigError, match="needs no_such_package"):
        compat.require()


def test_old_math_verify_and_antlr_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_version", lambda name: {"math-verify": "0.1.0", "antlr4-python3-runtime": "4.7.2"}[name])
    assert (compat._math_verify().status, compat._antlr().status) == ("problem", "problem")
    monkeypatch.setattr(compat, "_version", lambda name: {"math-verify": "0.9.0", "antlr4-python3-runtime": "4.13.2"}[name])
    assert (compat._math_verify().status, compat._antlr().status) == ("ok", "ok")


def test_the_process_is_afterwards_as_before() -> None:
    loguru = pytest.importorskip("loguru")
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout())
    module[0].eval()
    heard: list[str] = []
    handler = loguru.logger.add(lambda message: heard.append(str(message)), level="INFO", format="{message}")
    strict = ImageFile.LOAD_TRUNCATED_IMAGES
    filters = list(warnings.filters)
    timeout = torch.distributed.distributed_c10d.default_pg_timeout

    def state() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]

    def upstream() -> None:
        assert not module.training
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)
        warnings.filterwarnings("ignore")
        loguru.logger.remove()
        loguru.logger.add(sys.stderr)
        torch.distributed.distributed_c10d.default_pg_timeout = None
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        raise ZeroDivisionError

    before = state()
    with pytest.raises(ZeroDivisionError), compat.preserved(module):
        upstream()
    loguru.logger.info("still here")
    loguru.logger.remove(handler)
    assert state() == before
    assert [part.training for part in module.modules()] == [True, False, True]
    assert list(warnings.filters) == filters
    assert strict == ImageFile.LOAD_TRUNCATED_IMAGES
    assert torch.distributed.distributed_c10d.default_pg_timeout == timeout
    assert heard == ["still here\n"]


def _import_the_bridge() -> None:
    import vlmrl.extras.bridge.entry
    import vlmrl.extras.bridge.functions
    import vlmrl.extras.bridge.run  # noqa: F401

    assert "lmms_eval" not in sys.modules


def test_nothing_of_lmms_eval_is_imported_with_the_bridge() -> None:
    child = _CONTEXT.Process(target=_import_the_bridge)  # in this process another test may have imported it
    child.start()
    child.join()
    assert child.exitcode == 0
    code = "import sys, vlmrl.extras.bridge.entry\nassert not {'torch', 'lmms_eval'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr


def test_a_media_reference_below_the_root_of_the_file_system() -> None:
    (turn,) = read_messages([{"role": "user", "content": [{"type": "video", "url": "/a/../b/c.mp4"}]}], Pictures(Path("x")), "here")
    assert turn.parts == (MediaRef(kind="video", path="b/c.mp4"),)
    assert dataclasses.is_dataclass(turn)


def test_a_limit_takes_the_rows_of_native_evaluation(
    tiny_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's own limit would take the first rows of the file."""
    _, world = tiny_files
    task = GROUNDING.model_copy(update={"source": "train.jsonl"})
    samples, whole = task_samples(task, world, None)
    wanted = [sample.id for sample in subset(samples, 2)]
    assert wanted != [sample.id for sample in samples[:2]], "the case must tell the two rules apart"
    asked: dict[str, Any] = {}
    monkeypatch.setattr(run, "evaluate_offline", lambda checkpoint, tasks, **given: asked.update(given))
    run.evaluate_suite_via_lmms(Path("x"), Suite(id="s", version=1, tasks=(task,)), out=tmp_path, data_root=world, limit=2)
    lines = (tmp_path / "tasks" / "vlmrl_g" / "docs.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == wanted
    assert asked.get("limit") is None
    assert whole > 2
