"""One question to a checkpoint: the settings of its run, the prompt of training, and the answer drawn."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.tiny import Tiny
from vlmrl.answers.marks import Mark, Marks, Span
from vlmrl.config.load import load
from vlmrl.config.schema import MediaSection
from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.evals.ask.asking import ASKED, ORIGIN, Asking, asked_by, asking_of, chosen, recipe_of
from vlmrl.evals.ask.models import LocalModel
from vlmrl.evals.ask.question import Answered, QuestionModel, sample_of
from vlmrl.extras.pages import drawn
from vlmrl.media.store import ProcessedMedia
from vlmrl.types import MediaHandle, Sample

RECIPE = """
model: {path: m}
media: {max_pixels: 4704, max_frames: 32}
data: {root: ROOT, max_prompt_tokens: 777}
stages:
  - {name: first, kind: sft, source: {path: a.jsonl}, steps: 1, answer_format: answer_only}
  - name: rl
    kind: grpo
    source: {path: b.jsonl}
    steps: 1
    rewards: [{name: exact}]
    answer_format: think_or_not
    rollout: {max_new_tokens: 33}
"""
ASKING = Asking(
    media=MediaSection(min_pixels=56 * 56, max_pixels=56 * 84, max_frames=32),
    answer_format="think_or_not",
    answer_type="time_span",
    frame=None,
    max_prompt_tokens=4096,
    max_new_tokens=6,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with two stages, without weights."""
    root = tmp_path / "run"
    for name in ("first", "rl"):
        (root / "stages" / name).mkdir(parents=True)
        (root / "stages" / name / "config.json").write_text("{}")
    (root / "final").symlink_to("stages/rl")
    (root / "run.json").write_text("{}")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "b.jsonl").write_text(json.dumps({"id": "1", "answer_type": "bbox", "meta": {"frame": "norm1000"}}) + "\n")
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.replace("ROOT", str(rows)))
    (root / "config.yaml").write_text(load(file, []).text)
    return root


def test_a_checkpoint_is_asked_as_its_stage_was(run: Path):
    for checkpoint in (run, run / "final", run / "stages" / "rl"):
        found = asking_of(checkpoint)
        assert (found.answer_format, found.answer_type, found.frame) == ("think_or_not", "bbox", "norm1000")
        assert (found.media.max_pixels, found.max_prompt_tokens, found.max_new_tokens) == (4704, 777, 33)
        assert found.notes[0].startswith("asked as stage 'rl' of ")
    first = asking_of(run / "stages" / "first")
    assert (first.answer_format, first.answer_type, first.max_new_tokens) == ("answer_only", None, 256)


def test_a_model_outside_of_a_run_needs_to_be_told(run: Path, tmp_path: Path):
    copy = tmp_path / "elsewhere" / "model"
    copy.mkdir(parents=True)
    (copy / "config.json").write_text("{}")
    assert recipe_of(copy) is None
    plain = asking_of(copy)
    assert (plain.media, plain.answer_type) == (MediaSection(), None)
    assert "--recipe names another" in plain.notes[0]
    assert asking_of(copy, run / "config.yaml").max_prompt_tokens == 777
    with pytest.raises(ConfigError, match=r"answer_type \(--answer-type\): nothing says"):
        chosen(plain, answer_type=None, answer_format=None, frame=None, max_new_tokens=None)
    given = chosen(plain, answer_type="point", answer_format="answer_only", frame="norm1", max_new_tokens=5)
    assert (given.answer_type, given.answer_format, given.frame, given.max_new_tokens) == ("point", "answer_only", "norm1", 5)
    for wrong in ({"answer_type": "pont"}, {"answer_format": "thinking"}, {"frame": "percent"}):
        options = {"answer_type": "point", "answer_format": None, "frame": None, "max_new_tokens": None, **wrong}
        with pytest.raises(ConfigError, match=f"--{next(iter(wrong)).replace('_', '-')}"):
            chosen(plain, **options)


def test_a_copied_folder_says_how_it_is_asked(run: Path, tmp_path: Path):
    """The folder's own words are those of its recipe, rows and all; settings of the machine are not among them."""
    cfg = load(run / "config.yaml", ["media.cache_bytes=77", "media.fps=1.5"]).config
    rows = [asked("point", frame="norm1000"), asked("bbox", frame="norm1000"), asked("bbox", frame="norm1000")]
    said = asked_by(cfg, cfg.stages[1], rows)
    assert said["instructions"]["bbox"].startswith("Think in <think></think> or leave it empty, then give ")
    copy = tmp_path / "elsewhere" / "model"
    copy.mkdir(parents=True)
    (copy / "config.json").write_text("{}")
    (copy / "vlmrl.json").write_text(json.dumps({"positions": "max", ASKED: said, ORIGIN: {"run": "mine", "stage": "rl"}}))
    found = asking_of(copy)
    beside = asking_of(run / "stages" / "rl")
    assert found.media == beside.media.model_copy(update={"fps": 1.5})
    for name in ("answer_format", "answer_type", "frame", "max_prompt_tokens", "max_new_tokens"):
        assert getattr(found, name) == getattr(beside, name), name
    assert found.answer_types == ("bbox", "point")
    assert found.notes[0] == "asked as stage 'rl' of run 'mine'"
    assert "bbox, point: 'bbox' is asked for" in found.notes[1]
    assert asking_of(copy, run / "config.yaml").media.fps == 2.0, "a recipe that is given wins"
    assert asked_by(cfg, cfg.stages[0], ())["answer_types"] == []


def test_a_notebook_shows_the_picture_with_its_marks():
    seen = picture(np.full((1, 40, 60, 3), 200, np.uint8), None)
    said = Answered(
        sample=asked("bbox", frame="norm1000"),
        text="...",
        thought="a < b",
        answer="[100, 250, 500, 750]",
        finish="stop",
        tokens=3,
        shown=(seen,),
    )
    page = said._repr_html_()
    assert "<b>Thought:</b> a &lt; b</p><p><b>Answer:</b> [100, 250, 500, 750]</p>" in page
    found = re.match(r'<img src="data:image/png;base64,([^"]+)"', page)
    assert found is not None
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1]))))
    assert (pixels == drawn.COLOUR).all(-1)[10, 6:30].all(), "the upper side of the box, at a quarter of the height"
    assert pixels[2, 2].tolist() == [200, 200, 200]
    without = dataclasses.replace(said, text="<no>", thought=None, answer=None, shown=())
    assert without._repr_html_() == "<p><b>Without an answer:</b> &lt;no&gt;</p>"
    assert max(len(repr(said)), len(repr(without))) < 200


def test_a_wording_of_the_recipe_goes_with_the_model(run: Path, tmp_path: Path):
    """With the run's recipe, with a copied folder, and into every way of asking; a folder without one stays as it was."""
    words = "{{ question }} Say {{ ask }} in <answer></answer>."
    cfg = load(run / "config.yaml", [f"data.prompt={json.dumps(words)}"]).config
    assert "prompt" not in asked_by(load(run / "config.yaml", []).config, cfg.stages[1], [])
    copy = tmp_path / "elsewhere" / "model"
    copy.mkdir(parents=True)
    (copy / "config.json").write_text("{}")
    (copy / "vlmrl.json").write_text(
        json.dumps({ASKED: asked_by(cfg, cfg.stages[1], [asked("bbox")]), ORIGIN: {"run": "a", "stage": "rl"}})
    )
    assert asking_of(copy).prompt == words
    assert asking_of(run).prompt is None
    (run / "config.yaml").write_text(load(run / "config.yaml", [f"data.prompt={json.dumps(words)}"]).text)
    assert asking_of(run).prompt == words


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ('{"asked": {"media": {}}}', "KeyError: 'answer_types'"),
        ('{"asked": {"answer_types": [], "media": {"fps": -1}}}', "ValidationError"),
        ('{"asked": {"answer_types": [], "prompt": "Answer."}}', "prompt: the template has no"),
        ('{"asked": {"answer_types": [], "prompt": 7}}', "'asked' is not as this version writes it"),
    ],
)
def test_a_damaged_file_of_settings_is_named(text: str, told: str, tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "vlmrl.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"vlmrl.json: .*{told}"):
        asking_of(tmp_path)


def test_what_cannot_be_asked_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.mp4: no such file"):
        sample_of("When?", [("video", tmp_path / "none.mp4")], ASKING)
    with pytest.raises(ConfigError, match="the question is empty"):
        sample_of("  ", [], ASKING)
    for name in ("a/x.png", "b/y.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    sample, root = sample_of("Which?", [("image", tmp_path / "a/x.png"), ("image", tmp_path / "b/y.png")], ASKING)
    assert root == tmp_path
    assert [ref.path for ref in sample.media] == ["a/x.png", "b/y.png"]


def test_the_prompt_is_that_of_training(tiny: Tiny):
    """The same token ids and the same pixels as the row has, and the same answer as the engine of an evaluation gives."""
    asker = QuestionModel(LocalModel(name="tiny", policy=tiny.policy, fingerprint="x"), ASKING)
    row = tiny.samples[0]
    video = tiny.encoder.root(row) / row.media[0].path
    try:
        sample, root = sample_of(row.question, [("video", video)], ASKING)
        prompt, trained = asker.prompt(sample, root), tiny.encoder.encode(row, ASKING.answer_format)
        assert prompt.ids == trained.ids
        assert [handle.key for handle in prompt.media] == [handle.key for handle in trained.media]
        said = asker.ask(row.question, [("video", video)])
        assert said.tokens <= 6
        assert said.shown[0].frames.shape[3] == 3
        assert asker.ask(row.question, [("video", video)]).text == said.text
        assert len(repr(said)) < 300, "pixels have no place on a screen"
    finally:
        asker.close()


def test_a_question_is_asked_in_the_words_of_training(tiny: Tiny):
    words = "{{ question }} Say {{ ask }} in <answer></answer>."
    asker = QuestionModel(LocalModel(name="tiny", policy=tiny.policy, fingerprint="x"), dataclasses.replace(ASKING, prompt=words))
    row = tiny.samples[0]
    try:
        sample, root = sample_of(row.question, [("video", tiny.encoder.root(row) / row.media[0].path)], ASKING)
        trained = dataclasses.replace(tiny.encoder, prompt=words).encode(row, ASKING.answer_format)
        assert asker.prompt(sample, root).ids == trained.ids != tiny.encoder.encode(row, ASKING.answer_format).ids
    finally:
        asker.close()


def picture(frames: np.ndarray, times: list[float] | None) -> ProcessedMedia:
    handle = MediaHandle(kind="image" if times is None else "video", key="k", grid_thw=(1, 1, 1), tokens=1)
    return ProcessedMedia(
        handle=handle,
        frames=frames,
        times=None if times is None else np.array(times),
        pixel_values=np.zeros((1, 1), np.float32),
        original_size=(200, 400),
        duration=None if times is None else 10.0,
    )


def asked(answer_type: str, **meta: object) -> Sample:
    return Sample(id="a", task="a", answer_type=answer_type, question="?", media=(), answer="", gt={}, meta=meta)


def test_a_box_is_drawn_where_the_answer_says(tmp_path: Path):
    """[100, 200, 500, 600] of 1000 on 101 x 201 pixels: its corners are at (20, 20) and (100, 60)."""
    media = picture(np.full((1, 101, 201, 3), 255, np.uint8), None)
    out = tmp_path / "a.png"
    marks = drawn.draw_answer(out, asked("bbox", frame="norm1000"), media, "[100, 200, 500, 600]")
    assert marks.problems == ()
    pixels = np.asarray(Image.open(out))
    red = np.argwhere((pixels == drawn.COLOUR).all(axis=2))
    assert (red.min(axis=0).tolist(), red.max(axis=0).tolist()) == ([20, 20], [60, 100])
    assert (pixels[40, 60] == 255).all()
    unplaced = drawn.draw_answer(out, asked("bbox"), media, "[100, 200, 500, 600]")
    assert "states no coordinate frame" in unplaced.problems[0]
    assert not ((np.asarray(Image.open(out)) == drawn.COLOUR).all(axis=2)).any()
    assert drawn.draw_answer(out, asked("bbox", frame="norm1000"), media, None) == Marks()
    with pytest.raises(ConfigError, match="a picture is written as one of"):
        drawn.draw_answer(tmp_path / "a.gif", asked("bbox"), media, None)


def test_a_span_is_drawn_below_the_frames(tmp_path: Path):
    """2 to 5 of 10 seconds below two frames of 50 pixels: from 0.2 to 0.5 of 99."""
    media = picture(np.zeros((2, 40, 50, 3), np.uint8), [0.0, 4.0])
    out = tmp_path / "a.jpg"
    assert drawn.draw_answer(out, asked("time_span"), media, "2.0 to 5.0").spans == (Span(start=2.0, end=5.0),)
    drawn.draw_answer(tmp_path / "a.png", asked("time_span"), media, "2.0 to 5.0")
    pixels = np.asarray(Image.open(tmp_path / "a.png"))
    assert pixels.shape == (40 + 2 * drawn.BAR, 100, 3)
    bar = np.argwhere((pixels[40 + drawn.BAR + 12] == drawn.COLOUR).all(axis=1)).ravel()
    assert (bar.min(), bar.max()) == (20, 50)
    assert Image.open(out).format == "JPEG"


def test_frames_with_marks_are_among_those_shown():
    frames, times = np.zeros((71, 41, 41, 3), np.uint8), [float(n) for n in range(71)]
    for on, count, marked in (((), 8, 0), ((33,), 9, 1), ((30,), 8, 1), (tuple(range(1, 40)), 16, 8 + 3)):
        shapes = tuple(Mark(kind="point", points=((50.0, 50.0),), frame=frame) for frame in on)
        strip = np.asarray(drawn._strip(frames, times, Marks(shapes=shapes), None))
        red = (strip[:41] == drawn.COLOUR).all(axis=2).reshape(41, -1, 41).any(axis=(0, 2))
        assert (len(red), red.sum()) == (count, marked)


def test_a_mark_of_one_frame_is_drawn_on_that_one_only(tmp_path: Path):
    shape = Mark(kind="point", points=((50.0, 50.0),), frame=1)
    media = picture(np.zeros((2, 41, 41, 3), np.uint8), [0.0, 1.0])
    strip = np.asarray(drawn._strip(media.frames, [0.0, 1.0], Marks(shapes=(shape,)), None))
    red = (strip[:41] == drawn.COLOUR).all(axis=2)
    assert not red[:, :41].any()
    assert red[20, 61]
