"""The report: a whole made-up run, rendered; then what must be in the page, and what must not."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from vlmrl import rng
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.measures import metrics_of
from vlmrl.evals.score.paired import compare
from vlmrl.evals.score.records import Record, Think
from vlmrl.extras.pages import browser
from vlmrl.extras.pages import run_page as report
from vlmrl.extras.pages.charts import LINES
from vlmrl.extras.pages.runfiles import MAX_STRIP_PIXELS, RunFiles, kept_frames, load_run, make_frames, safe_name, write_frames


def kept(run: Path, sample_id: str, **shown) -> Path:
    """Keep the frames of a question for the report of a run."""
    return write_frames(run / "eval" / "frames", make_frames(sample_id, **shown))


EVIL = "<script>alert(1)</script> \x1b[2J\u202e <img src=https://evil.example/x.png onerror=alert(2)>"
STAGES = ("base", "sft", "rl")


def record(stage: str, number: int, pred: tuple[float, float] | None, *, text: str | None = None, status: str = "ok") -> Record:
    gold = (1.0 + number % 4, 3.5 + number % 4)
    overlap = 0.0
    if pred is not None:
        overlap = max(0.0, min(pred[1], gold[1]) - max(pred[0], gold[0])) / (max(pred[1], gold[1]) - min(pred[0], gold[0]))
    thought = "" if pred is None else f"The red square appears at {pred[0]} and is gone at {pred[1]}."
    answer = None if pred is None else f"{pred[0]} to {pred[1]}"
    return Record(
        model=stage,
        sample_id=f"toy-test-{number:06d}",
        task="temporal_grounding",
        cluster=f"videos/{number}.mp4",
        sample_hash=f"hash-{number}",
        prompt_ids_hash="p",
        answer_format="think_or_not",
        answer_type="time_span",
        text=text if text is not None else f"<think>{thought}</think><answer>{answer}</answer>",
        answer=answer,
        status=status,
        format_ok=pred is not None,
        pred=pred,
        gold=gold,
        scores={"tiou": overlap},
        think=Think(has=stage == "rl" and pred is not None, tokens=12 if pred is not None else 0),
        n_in=120,
        n_out=20 + 3 * STAGES.index(stage),
        finish="stop" if pred is not None else "length",
        unclosed=False,
        fingerprint=f"weights-{stage}",
        settings={"max_new_tokens": 64, "temperature": 0.0, "top_p": 1.0},
    )


def answers(stage: str, count: int = 24) -> list[Record]:
    """Guesses that get closer with every stage."""
    spread = {"base": 3.0, "sft": 1.2, "rl": 0.35}[stage]
    out = []
    for n in range(count):
        draw = rng.generator(0, stage, n)
        start = 1.0 + n % 4 + spread * draw.normal()
        end = max(start + 0.5, 3.5 + n % 4 + spread * draw.normal())
        unreadable = stage == "base" and n % 6 == 1
        if unreadable:
            out.append(record(stage, n, None, text="I think that it is " * 9, status="truncated"))
        else:
            out.append(record(stage, n, (round(max(0.0, start), 2), round(max(0.5, end), 2))))
    return out


def metric_lines(steps: int = 120) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    wall = 1000.0
    for step in range(1, steps + 1):
        noise = rng.uniform(0, "noise", step) - 0.5
        wall += 1.0
        line: dict[str, object] = {
            "step": step,
            "global_step": step,
            "wall": wall,
            "loss": 0.4 / step + 0.02 * noise,
            "grad_norm": 1.0 + noise,
            "entropy": 0.8 - 0.004 * step,
            "lr": 1e-5 * (1 - step / steps),
            "time/step_total": 1.0,
            "time/forward_backward": 0.5,
            "time/decode": 0.1,
            "tokens/forward": 1000.0,
            "tokens/saved": 3000.0,
            "memory/peak_rss": 900.0 + step,
        }
        if step <= 40:
            lines.append(line | {"stage": "sft"})
            continue
        lines.append(
            line
            | {
                "stage": "rl",
                "reward": 0.3 + 0.004 * step + 0.1 * noise,
                "rewards/temporal_iou/mean": 0.2 + 0.004 * step + 0.1 * noise,
                "rewards/format/mean": min(1.0, 0.5 + 0.01 * step),
                "reward_std": 0.2 - 0.001 * step,
                "frac_reward_zero_std": 0.1 + 0.002 * step,
                "completions/mean_length": 40 - 0.1 * step,
                "completions/think_rate": 0.9 - 0.005 * step,
                "completions/think_rate/easy": 0.8 - 0.006 * step,
                "completions/think_rate/hard": 1.0 - 0.001 * step,
                "completions/clipped_ratio": 0.02,
                "kl": "NaN" if step == 60 else 0.001 * step,
                "clip_ratio": 0.01 + 0.01 * abs(noise),
                "sampling/logp_gap": 1e-4 * (1 + noise),
                "fault/reward/timeout": 1.0 if step == 70 else 0.0,
                "time/rollout": 0.3,
            }
        )
    lines.append({"stage": "run", "step": 80, "global_step": 120, "wall": wall, "time/step_total": 130.0, "time/evaluate": 6.0})
    return lines


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "toy_video")


def make_run(path: Path) -> Path:
    (path / "eval").mkdir(parents=True)
    stage = {"source": {"path": "train.jsonl"}, "optim": {"lr": 1e-5}}
    config = Config.model_validate(
        {
            "run": {"name": "toy_video", "seed": 3},
            "model": {"path": "https://models.example/tiny"},
            "stages": [
                {"name": "sft", "kind": "sft", "steps": 40, **stage},
                {"name": "rl", "kind": "grpo", "steps": 80, "rewards": [{"name": "temporal_iou"}], **stage},
            ],
        }
    )
    (path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    machine = {"system": "Linux", "release": "6.1", "arch": "x86_64", "cpus": 2}
    environment = {"vlmrl": "0.1", "python": "3.11", "packages": {"torch": "2.13.0"}, "machine": machine, "accelerators": []}
    (path / "environment.json").write_text(json.dumps(environment))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metric_lines()))
    (path / "eval" / "order.json").write_text(json.dumps(STAGES))
    for name in STAGES:
        rows = answers(name)
        if name == "rl":
            rows[2] = dataclasses.replace(rows[2], text=EVIL, pred=None, answer=None, status="no_tag", scores={"tiou": 0.0})
        (path / "eval" / f"{name}.jsonl").write_bytes(b"".join(r.line() for r in rows))
    for n in range(6):
        gold = (1.0 + n % 4, 3.5 + n % 4)
        question = "When is the red square visible?" if n != 4 else "When is <b>this</b> & \x07 visible?"
        kept(path, f"toy-test-{n:06d}", **video(gold), question=question, gold=gold, duration=8.0)
    (path / "FINISHED").write_text("{}")
    return path


def video(gold: tuple[float, float]) -> dict[str, np.ndarray]:
    """16 frames of 56 x 84 pixels in which a square is there during `gold`."""
    frames = np.full((16, 56, 84, 3), 30, dtype=np.uint8)
    frames[:, 34:48, 54:70] = (60, 90, 235)
    times = np.arange(16) / 2
    frames[(times >= gold[0]) & (times < gold[1]), 8:26, 10:28] = (225, 40, 40)
    return {"frames": frames, "times": times}


class Page(HTMLParser):
    """Tags that are not closed or closed out of order, resources, texts and the attributes of each tag."""

    VOID = ("meta", "input", "br", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without an opening tag"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_report_is_one_whole_page_that_asks_for_nothing_outside(run_dir):
    path = report.write_report(run_dir)
    assert path == run_dir / "report.html"
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    for tag, attributes in page.tags:
        assert tag not in ("img", "link", "iframe", "object", "embed", "base")
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert all("url(" not in (value or "") for value in attributes.values())
    assert set(re.findall(r"url\(([a-z/]+[:;])", text)) == {"data:"}
    assert "default-src 'none'" in next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    # Addresses from the recipe and from model text are text, and nowhere else.
    outside = [m.start() for m in re.finditer("https?://", text)]
    shown = "".join(page.texts)
    assert len(outside) == len(re.findall("https?://", shown)) > 0


def test_every_stage_and_every_group_of_curves_is_there(run_dir):
    text = report.write_report(run_dir).read_text(encoding="utf-8")
    for stage in STAGES:
        assert f"</span>{stage}</div>" in text
        assert f"</i>{stage}<span>" in text
    titles = {title for title, _, _ in LINES}
    assert {t for t in titles if f"<h3>{html.escape(t)}</h3>" in text} == titles
    hover = json.loads(re.search(r'id="hover">(.*?)</script>', text, re.DOTALL)[1])
    assert all(f"<h3>{title}</h3>" in text for title in ("Time of a step", "Tokens of a step"))
    drawn = {series["name"] for chart in hover.values() for series in chart["series"]}
    assert {"sum", "temporal iou", "format", "with thought", "all rewards equal"} <= drawn
    assert {"forward backward", "rollout", "unexplained", "computed", "saved by sharing"} <= drawn
    assert not {"kl", "loss", "lr", "memory/peak_rss"} & drawn, "single scalars are for TensorBoard"
    assert set(hover) == {a["id"] for t, a in Page(text).tags if a.get("class") == "card chart"}
    for label in ("mIoU", "R1@0.3", "R1@0.5", "R1@0.7", "constant-answer baseline", "base → rl", "unexplained", "finished", "2.13.0"):
        assert label in text


def test_text_of_models_and_rows_cannot_become_markup_or_control_anything(run_dir):
    text = report.write_report(run_dir).read_text(encoding="utf-8")
    page = Page(text)
    assert "<script>alert" not in text
    assert not any(a.get("onerror") for _, a in page.tags)
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert "<b>this" not in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    shown = "".join(page.texts)
    assert "<script>alert(1)</script> \\u001b[2J\\u202e <img src=https://evil.example/x.png onerror=alert(2)>" in shown
    assert "When is <b>this</b> & \\u0007 visible?" in shown


def test_stage_names_cannot_leave_the_script_block(run_dir):
    lines = [line | {"stage": "</script><script>alert(3)"} for line in metric_lines()]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line | {"rewards/</script>/mean": 0.5}) + "\n" for line in lines))
    text = report.write_report(run_dir).read_text(encoding="utf-8")
    assert "<script>alert(3)" not in text
    assert text.count("</script>") == 2
    assert Page(text).open == []


def test_frames_are_the_pixels_that_were_saved(run_dir):
    text = report.write_report(run_dir).read_text(encoding="utf-8")
    strips = re.findall(r"\.strip(\d+) \{[^}]*base64,([A-Za-z0-9+/=]+)\)", text)
    assert [int(n) for n, _ in strips] == list(range(6))
    for n, data in strips:
        frames = video((1.0 + int(n) % 4, 3.5 + int(n) % 4))["frames"]
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        np.testing.assert_array_equal(image, np.concatenate(list(frames), axis=1))
    assert text.count('<div class="frame true">') == 6 * 5  # 2.5 s at two frames per second
    assert text.count('<div class="frame">') == 6 * 11


def test_spans_are_drawn_to_scale(run_dir):
    run = load_run(run_dir)
    card = cards_of(run)[run.frames[0].sample_id]
    assert card.gold_bars == (browser.Bar(left=12.5, width=31.25),)  # 1.0 to 3.5 of 8 s
    assert [a.model for a in card.answers] == list(STAGES)


def cards_of(run: RunFiles) -> dict[str, browser.Question]:
    answered, colours = browser.by_sample(run.records), browser.model_colours(list(run.records))
    return {f.sample_id: browser.question(0, f.sample_id, answered[f.sample_id], colours, f) for f in run.frames}


def test_tags_for_the_filter(run_dir):
    run = load_run(run_dir)
    cards = cards_of(run)
    for sample_id, card in cards.items():
        first, last = (next(r for r in run.records[s] if r.sample_id == sample_id) for s in ("base", "rl"))
        assert ("better" in card.tags) == (last.scores["tiou"] > first.scores["tiou"])
        assert ("worse" in card.tags) == (last.scores["tiou"] < first.scores["tiou"])
        assert ("low" in card.tags) == (last.scores["tiou"] < 0.5)
    assert "unreadable" in cards["toy-test-000001"].tags
    assert "unreadable" in cards["toy-test-000002"].tags
    assert "unreadable" not in cards["toy-test-000003"].tags


def test_only_differences_whose_interval_leaves_out_zero_are_bold(run_dir):
    records = load_run(run_dir).records
    shown = [m for m in metrics_of("time_span") if m not in ("format_rate", "truncation_rate")]
    expected = [
        x.sign != 0
        for a, b in (("base", "sft"), ("sft", "rl"), ("base", "rl"))
        for x in [compare(records[a], records[b], 3).gaps[m] for m in shown]
        if x.differ
    ]
    cells = re.findall(r'<td class="(sure|)">[+-]', report.write_report(run_dir).read_text(encoding="utf-8"))
    assert [cell == "sure" for cell in cells] == expected
    assert {True, False} == set(expected)


def test_a_run_that_has_only_begun(tmp_path):
    run = tmp_path / "new"
    run.mkdir()
    (run / "config.yaml").write_text("run: {name: new, seed: 1}\n")
    text = report.write_report(run).read_text(encoding="utf-8")
    assert "not finished" in text
    assert "No evaluation has been finished yet." in text
    assert "No metrics have been logged yet." in text
    assert Page(text).open == []


def test_stages_on_other_questions_are_not_compared(run_dir):
    (run_dir / "eval" / "rl.jsonl").write_bytes(b"".join(r.line() for r in answers("rl", 20)))
    text = report.write_report(run_dir).read_text(encoding="utf-8")
    assert "sft and rl cannot be compared: only the first has answers on 4 samples" in html.unescape(text)
    assert "base → sft" in text
    assert "sft → rl" not in text


def test_not_a_run_directory(tmp_path):
    with pytest.raises(ConfigError, match="not a run directory"):
        report.write_report(tmp_path)


def test_damaged_files_are_named(run_dir):
    (run_dir / "eval" / "order.json").write_text("[")
    with pytest.raises(StorageError, match=r"order\.json: not JSON"):
        report.write_report(run_dir)
    (run_dir / "eval" / "order.json").write_text(json.dumps(STAGES))
    frames = next((run_dir / "eval" / "frames").glob("*.json"))
    frames.write_text("{}")
    with pytest.raises(StorageError, match="not frames of a question"):
        report.write_report(run_dir)
    frames.unlink()
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n{}")
    with pytest.raises(StorageError, match=r"metrics\.jsonl:122: not JSON"):
        report.write_report(run_dir)


def test_writing_twice_gives_the_same_page(run_dir):
    first = report.write_report(run_dir).read_bytes()
    assert report.write_report(run_dir).read_bytes() == first


def test_save_frames_keeps_less_of_a_long_video_at_full_size(tmp_path):
    frames = np.zeros((40, 300, 300, 3), dtype=np.uint8)
    frames[:] = np.arange(40, dtype=np.uint8)[:, None, None, None]
    path = kept(tmp_path, "long", frames=frames, times=np.arange(40) / 2, question="?", gold=None, duration=None)
    saved = json.loads(path.read_text())
    places = [int(2 * t) for t in saved["times"]]
    assert (saved["count"], saved["total"], saved["size"]) == (16, 40, [300, 300])  # 16 * 90,000 <= 1,500,000 < 17 * 90,000
    assert places[0] == 0
    assert places[-1] == 39
    assert {b - a for a, b in itertools.pairwise(places)} <= {2, 3}
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(saved["strip"]))))
    assert image.shape == (300, 16 * 300, 3)
    assert list(image[0, ::300, 0]) == places


@pytest.mark.parametrize(("count", "pixels"), [(1, 10), (7, 10), (3, MAX_STRIP_PIXELS), (500, 50_000), (2, 10**9), (1, 10**9)])
def test_kept_frames(count, pixels):
    kept = kept_frames(count, pixels)
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert kept[-1] == count - 1
    assert len(kept) == count or len(kept) <= max(2, MAX_STRIP_PIXELS // pixels)


def test_save_frames_of_an_image_and_of_wrong_arrays(tmp_path):
    image = np.zeros((1, 28, 28, 3), dtype=np.uint8)
    saved = json.loads(kept(tmp_path, "i", frames=image, times=None, question="?", gold=None, duration=None).read_text())
    assert (saved["times"], saved["duration"], saved["count"]) == (None, None, 1)
    with pytest.raises(ValueError, match="expected uint8"):
        kept(tmp_path, "i", frames=image.astype(np.float32), times=None, question="?", gold=None, duration=None)
    with pytest.raises(ValueError, match="2 times for 1 frames"):
        kept(tmp_path, "i", frames=image, times=[0.0, 1.0], question="?", gold=None, duration=None)


def test_safe_names_stay_in_the_folder_and_differ():
    names = ["../../etc/passwd", "a/b", "a_b", "a" * 500, "..", "", "\x00", "ä"]
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name) and len(name) < 80 for name in safe)


def mixed(gain: float = 0.0) -> list[Record]:
    def made(name: str, answer_type: str, scores: dict[str, float]) -> Record:
        row = record("base", 0, (1.0, 2.0))
        return dataclasses.replace(
            row, sample_id=name, answer_type=answer_type, scores=scores, cluster=name, sample_hash=name, task=f"toy_{answer_type}"
        )

    return [
        made("a", "bbox", {"iou": 0.4 + gain}),
        made("b", "bbox", {"iou": 0.6 + gain}),
        made("c", "number", {"exact": 0.0, "relative_accuracy": 0.5 + gain}),
    ]


def test_pictures_are_reported_by_what_applies_to_them(run_dir):
    before, after = mixed(), mixed(0.25)
    stored = run_dir / "eval"
    for name, rows in (("base", before), ("rl", after)):
        (stored / f"{name}.jsonl").write_bytes(b"".join(r.line() for r in rows))
    (stored / "order.json").write_text('["base", "rl"]')
    kept(run_dir, "a", frames=np.zeros((1, 56, 56, 3), np.uint8), times=None, question="Where?", gold=None, duration=None)
    run = load_run(run_dir)
    page = report.page(run)
    assert [tile["label"] for tile in page["tiles"]] == [
        f"{name} after rl" for name in ("box IoU", "box R@0.5", "exact", "relative accuracy", "tokens")
    ]
    assert page["tiles"][0]["value"] == "0.750"
    assert page["tiles"][0]["note"] == "+0.250 (no interval: 2 clusters) since base"
    assert [figure["label"] for figure in page["results"]["figures"]] == ["box IoU", "box R@0.5", "exact", "relative accuracy"]
    assert page["results"]["constant"] is None
    assert "mIoU" not in page["comparisons"]["header"]
    (card,) = [q for q in page["questions"] if q.id == "a"]
    assert [(a.bars, a.score) for a in card.answers] == [((), 0.4), ((), 0.65)]
    assert card.tags == ("better", "skipped", "undrawn")  # these frames do not say where boxes are
    assert "score <b>0.65</b>" in report.render(run)
