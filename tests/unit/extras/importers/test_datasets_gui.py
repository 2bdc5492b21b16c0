"""data/: the GUI data sets, each from an invented sample in the layout of its release to rows that the readers and rewards accept."""

from __future__ import annotations

import base64
import functools
import gzip
import importlib.util
import io
import json
import shutil
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.standins import image_bytes, make_medium, picture
from vlmrl.data.row import parse_row
from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.prepare.gui_rows import describe, pointing, step_row, swipe
from vlmrl.extras.importers.prepare.prepare import Embedded, Skipped, official_counts, prepare
from vlmrl.media.image import decode_image
from vlmrl.metrics.gui import ACTIONS, action_of
from vlmrl.rewards.gui_action import gui_action
from vlmrl.rewards.run.runner import RewardRunner

DATA = Path(__file__).resolve().parents[4] / "data"
NAMES = ("aitz", "android_control", "screenspot", "screenspot_v2", "screenspot_pro", "gui_act", "omniact", "gui_odyssey")
PHONE = (108, 240)
SIZES = {
    path: tuple(size)
    for name in NAMES
    if (DATA / name / "standins.json").is_file()
    for path, size in json.loads((DATA / name / "standins.json").read_text()).items()
}
"""Screenshots that the samples leave out."""


@functools.cache
def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"prepare_{name}", DATA / name / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def download(tmp_path: Path):
    """The sample of a data set with its screenshots, as if it had been downloaded."""

    def make(name: str) -> Path:
        root = tmp_path / "download" / name
        shutil.copytree(DATA / name / "sample", root)
        for path, size in SIZES.items():
            make_medium(root, path, "image", {"size": size})
        for folder, pattern in (("train", "*/*/*.json"), ("test", "*/*/*.json")):
            for file in (root / folder).glob(pattern):
                for step in json.loads(file.read_text()):
                    make_medium(root, f"{folder}/{step['image_path']}", "image", {})
        for file in (root / "annotations").glob("0*.json"):
            for step in json.loads(file.read_text())["steps"]:
                make_medium(root, f"screenshots/{step['screenshot']}", "image", {})
        return root

    return make


def prepared(name: str, root: Path, split: str, **options: str) -> list[dict[str, Any]]:
    out = root.parent / f"{name}-rows"
    prepare(load(name).DATASET, root, out, split, allow_partial=True, **options)
    rows = [json.loads(line) for line in (out / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
    media = out / "media" if (out / "media").is_dir() else root
    assert all((media / row["image"]).is_file() for row in rows)
    return rows


EXPECTED: list[tuple[str, str, dict[str, str], list[dict[str, Any]]]] = [
    (
        "aitz",
        "train",
        {},
        [
            {"action": "navigate_home"},
            {"action": "scroll", "direction": "up"},  # from 0.75 to 0.25 of the height: the finger goes up
            {"action": "click", "coordinate": [750, 250]},  # kept as (y, x) = (0.25, 0.75)
            {"action": "input_text", "text": "tide times"},
            {"action": "enter"},
            {"action": "complete"},
        ],
    ),
    (
        "aitz",
        "test",
        {},
        [
            {"action": "navigate_back"},
            {"action": "scroll", "direction": "left"},
            {"action": "scroll", "direction": "down"},  # 0.095 down and 0.1 right: vertical from 0.9 of the level move on
            {"action": "impossible"},
            {"action": "click", "coordinate": [600, 400]},
            {"action": "input_text", "text": "tides"},
        ],
    ),
    (
        "android_control",
        "test",
        {"level": "high"},
        [
            {"action": "open_app", "app_name": "Tide Times"},
            {"action": "click", "coordinate": [500, 250]},  # (54, 60) of 108 x 240
            {"action": "scroll", "direction": "down"},
            {"action": "input_text", "text": "Larkford"},
            {"action": "wait"},
            {"action": "long_press", "coordinate": [1000, 100]},  # at the right edge
            {"action": "navigate_back"},
        ],
    ),
    (
        "screenspot",
        "test",
        {},
        [
            {"action": "click", "coordinate": [500, 550], "box": [250, 500, 750, 600]},
            {"action": "click", "coordinate": [50, 25], "box": [0, 0, 100, 50]},
            {"action": "click", "coordinate": [968.75, 975], "box": [937.5, 950, 1000, 1000]},  # reaches over the screen, cut
            {"action": "click", "coordinate": [100, 50], "box": [0, 0, 200, 100]},
            {"action": "click", "coordinate": [625, 250], "box": [500, 200, 750, 300]},
            {"action": "click", "coordinate": [200, 100], "box": [100, 50, 300, 150]},
        ],
    ),
    (
        "screenspot_v2",
        "test",
        {},
        [
            {"action": "click", "coordinate": [200, 550], "box": [100, 500, 300, 600]},
            {"action": "click", "coordinate": [625, 150], "box": [500, 100, 750, 200]},
            {"action": "click", "coordinate": [200, 125], "box": [100, 100, 300, 150]},
            {"action": "click", "coordinate": [550, 550], "box": [500, 500, 600, 600]},
            {"action": "click", "coordinate": [500, 600], "box": [250, 500, 750, 700]},
            {"action": "click", "coordinate": [50, 50], "box": [0, 0, 100, 100]},
        ],
    ),
    (
        "screenspot_pro",
        "test",
        {},
        [
            {"action": "click", "coordinate": [104.95, 104.86], "box": [100, 100, 109.9, 109.72]},
            {"action": "click", "coordinate": [250, 12.5], "box": [0, 0, 500, 25]},
            {"action": "click", "coordinate": [12.5, 125], "box": [0, 100, 25, 150]},
            {"action": "click", "coordinate": [550, 12.5], "box": [500, 0, 600, 25]},
            {"action": "click", "coordinate": [950, 525], "box": [900, 500, 1000, 550]},
        ],
    ),
    (
        "gui_act",
        "test",
        {"part": "web-single"},
        [
            {"action": "click", "coordinate": [300, 250], "box": [200, 200, 400, 300]},
            {"action": "click", "coordinate": [600, 550], "box": [500, 500, 700, 600]},
            {"action": "answer", "text": "Larkford"},
            {"action": "select", "text": "19:42"},
            {"action": "scroll", "direction": "down"},
        ],
    ),
    (
        "gui_act",
        "test",
        {"part": "web-multi"},
        [
            {"action": "hover", "coordinate": [50, 50], "box": [0, 0, 100, 100]},
            {"action": "scroll", "direction": "down"},
            {"action": "select_text"},
        ],
    ),
    (
        "gui_act",
        "test",
        {"part": "smartphone"},
        [{"action": "click", "coordinate": [500, 970]}, {"action": "scroll", "direction": "up"}, {"action": "complete"}],
    ),
    (
        "omniact",
        "test",
        {},
        [
            {"action": "hover", "coordinate": [500.78, 250], "box": [400, 200, 600, 300]},
            {"action": "input_text", "text": "boat trips, one day"},
            {"action": "scroll", "direction": "down"},
            {"action": "enter"},
            {"action": "click", "coordinate": [500, 52.08], "box": [156.25, 20.83, 843.75, 83.33]},
            {"action": "right_click", "coordinate": [100, 520.83]},
        ],
    ),
    ("omniact", "train", {}, [{"action": "double_click", "coordinate": [100, 200], "box": [0, 0, 1000, 1000]}]),
    ("omniact", "val", {}, [{"action": "hotkey", "text": "ctrl+c"}]),
    (
        "gui_odyssey",
        "train",
        {},
        [
            {"action": "click", "coordinate": [250, 400], "box": [200, 350, 300, 450]},
            {"action": "scroll", "direction": "up"},
            {"action": "app_switch"},
            {"action": "long_press", "coordinate": [100, 100]},  # its box is elsewhere
            {"action": "input_text", "text": "19:42"},
            {"action": "complete"},
        ],
    ),
    (
        "gui_odyssey",
        "test",
        {},
        [
            {"action": "navigate_home"},
            {"action": "scroll", "direction": "left"},
            {"action": "navigate_back"},
            {"action": "impossible"},
            {"action": "click", "coordinate": [500, 300], "box": [450, 250, 550, 350]},
            {"action": "input_text", "text": "06:15"},
        ],
    ),
]


@pytest.mark.parametrize(("name", "split", "options", "actions"), EXPECTED)
def test_sample_gives_the_expected_actions(download, name: str, split: str, options: dict[str, str], actions: list[dict[str, Any]]) -> None:
    rows = prepared(name, download(name), split, **options)
    assert [row["gt"]["action"] for row in rows] == actions
    assert {row["source"] for row in rows} == {name}
    assert all(row["meta"]["split"] == split and row["meta"]["frame"] == "norm1000" for row in rows)


def test_gold_answers_of_all_samples_score_full_by_every_profile(download) -> None:
    samples = []
    roots = {name: download(name) for name in NAMES}
    for name, split, options, _ in EXPECTED:
        root = roots[name]
        for row in prepared(name, root, split, **options):
            row["meta"].setdefault("size", [1080, 2400])  # AITZ does not say it
            samples.append(parse_row(row, source=row["id"], media_root=str(root)))
    profiles: tuple[Any, ...] = ("exact", "os_atlas", "gui_r1", "ui_r1", "ton")
    for profile in profiles:
        runner = RewardRunner([("gui_action", 1.0, functools.partial(gui_action, profile=profile))])
        assert runner.self_test(samples, "answer_only") == [], profile
    assert len({sample.id for sample in samples}) == len(samples) == sum(len(actions) for *_, actions in EXPECTED)


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_cards(name: str) -> None:
    module = load(name)
    card = DATA / name / "card.md"
    counts = official_counts(card)
    assert set(counts) >= set(module.DATASET.splits)
    text = card.read_text(encoding="utf-8")
    for part in ("Source", "Licence", "Layout", "sha256", "Coordinates", "Sample"):
        assert part in text, part
    kinds = {kind.split()[0] for kind in getattr(module, "ACTIONS", {"": "click"}).values()} - {"gesture"}
    assert kinds <= set(ACTIONS)


def test_counts_that_are_known() -> None:
    assert official_counts(DATA / "aitz" / "card.md") == {"train": 13919, "test": 4724}
    assert official_counts(DATA / "omniact" / "card.md") == {"train": 6788, "val": 991, "test": 2021}
    for name, count in (("screenspot", 1272), ("screenspot_v2", 1272), ("screenspot_pro", 1581)):
        assert official_counts(DATA / name / "card.md") == {"test": count}


def test_incomplete_download_is_refused(download, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"6 records read, but .*card.md says 13919"):
        prepare(load("aitz").DATASET, download("aitz"), tmp_path / "out", "train")


@pytest.mark.parametrize("name", NAMES)
def test_empty_folder_is_named(tmp_path: Path, name: str) -> None:
    dataset = load(name).DATASET
    with pytest.raises(DataError, match=str(tmp_path)):
        prepare(dataset, tmp_path, tmp_path / "out", dataset.splits[-1], allow_partial=True)


# AITZ


def test_aitz_history_thought_and_prompt(download) -> None:
    row = prepared("aitz", download("aitz"), "train")[5]
    assert row["id"] == "aitz-1001-5"
    assert row["trajectory"]["history"][0] == "press the home button"
    assert len(row["trajectory"]["history"]) == 5
    assert "press the home button" not in row["prompt"]  # four past steps are shown
    assert 'Done: scroll up; click on the search bar at the top; type "tide times"; press enter' in row["prompt"]
    assert row["thought"] == "The next step is to stop and set the query as completed."
    assert "where the finger moves" in row["prompt"]


def test_aitz_gestures() -> None:
    def step(touch: list[float], lift: list[float]) -> dict[str, Any]:
        return {"result_action_type": 4, "result_touch_yx": json.dumps(touch), "result_lift_yx": lift}

    act = load("aitz").to_action
    assert act(step([0.5, 0.3], [0.5, 0.34]), "s") == {"action": "click", "coordinate": [300, 500]}  # 0.04 is still a tap
    assert act(step([0.5, 0.3], [0.5, 0.35]), "s") == {"action": "scroll", "direction": "right"}
    assert act(step([0.5, 0.3], [0.4, 0.41]), "s") == {"action": "scroll", "direction": "up"}  # 0.1 >= 0.9 * 0.11
    assert act({"result_action_type": 8}, "s") == {"action": "scroll", "direction": "left"}
    with pytest.raises(RowError, match=r"s: unknown action 2; known: 0, 1, 3"):
        act({"result_action_type": 2}, "s")
    with pytest.raises(RowError, match="result_lift_yx"):
        act({"result_action_type": 4, "result_touch_yx": "[0.1, 0.1]"}, "s")
    with pytest.raises(RowError, match=r"not \[y, x\]"):
        act(step([0.1], [0.1, 0.1]), "s")


def test_point_off_the_screen_is_skipped_and_named(download) -> None:
    root = download("aitz")
    file = next((root / "train").glob("*/*/*.json"))
    steps = json.loads(file.read_text())
    steps[2] |= {"result_touch_yx": "[1.2, 0.5]", "result_lift_yx": "[1.2, 0.5]"}
    file.write_text(json.dumps(steps))
    assert len(prepared("aitz", root, "train")) == 5
    skipped = (root.parent / "aitz-rows" / "train.skipped.jsonl").read_text()
    assert json.loads(skipped) == {"id": "aitz-1001-2", "reason": "coordinates off the screen"}


# AndroidControl: a writer of TFRecord files by the format's description, independent of the reader


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def message(*fields: tuple[int, bytes]) -> bytes:
    return b"".join(varint(number << 3 | 2) + varint(len(data)) + data for number, data in fields)


def feature(values: list[Any], packed: bool = True) -> bytes:
    if isinstance(values[0], bytes):
        return message((1, message(*((1, value) for value in values))))
    numbers = message((1, b"".join(map(varint, values)))) if packed else b"".join(b"\x08" + varint(value) for value in values)
    return message((3, numbers))


def example(features: dict[str, list[Any]], packed: bool = True) -> bytes:
    pairs = [message((1, name.encode()), (2, feature(values, packed))) for name, values in features.items()]
    return message((1, message(*((1, pair) for pair in pairs))))


def masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord(*data: bytes) -> bytes:
    out = b""
    for record in data:
        head = struct.pack("<Q", len(record))
        out += head + struct.pack("<I", masked_crc32c(head)) + record + struct.pack("<I", masked_crc32c(record))
    return out


def android_episode(number: int, goal: str, actions: list[dict[str, Any]], steps: list[str]) -> dict[str, list[Any]]:
    shots = len(actions) + 1
    return {
        "episode_id": [number],
        "goal": [goal.encode()],
        "screenshots": [image_bytes(f"{number}_{i}.png", PHONE) for i in range(shots)],
        "screenshot_widths": [PHONE[0]] * shots,
        "screenshot_heights": [PHONE[1]] * shots,
        "actions": [json.dumps(action).encode() for action in actions],
        "step_instructions": [step.encode() for step in steps],
    }


EPISODES = (
    android_episode(3, "Go home.", [{"action_type": "navigate_home"}], ["Go to the home screen"]),
    android_episode(
        5,
        "In Tide Times, show the tides of Larkford.",
        [
            {"action_type": "open_app", "app_name": "Tide Times"},
            {"action_type": "click", "x": 54, "y": 60},
            {"action_type": "scroll", "direction": "down"},
            {"action_type": "input_text", "text": "Larkford"},
            {"action_type": "wait"},
            {"action_type": "long_press", "x": 108, "y": 24},
            {"action_type": "navigate_back"},
        ],
        ["Open Tide Times", "Click the search field", "Go further down", "Type Larkford", "Wait", "Hold the first entry", "Go back"],
    ),
)


def test_android_control_sample_is_what_the_format_says() -> None:
    module = load("android_control")
    path = DATA / "android_control" / "sample" / "android_control-00000-of-00001"
    read = [module.example(record, "here") for record in module.records(path)]
    assert gzip.decompress(path.read_bytes()) == tfrecord(*map(example, read))  # checksums included
    for features, episode in zip(read, EPISODES, strict=True):
        assert features | {"screenshots": []} == episode | {"screenshots": []}
        for i, data in enumerate(features["screenshots"]):  # other versions of Pillow may compress them otherwise
            assert (decode_image(data) == picture(f"{features['episode_id'][0]}_{i}.png", PHONE)).all()


@pytest.mark.parametrize("packed", [True, False])
def test_android_control_reads_what_was_written(packed: bool) -> None:
    module = load("android_control")
    for episode in EPISODES:
        assert module.example(example(episode, packed), "here") == episode


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5), st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_any_features_are_read_back(numbers: list[int], texts: list[bytes]) -> None:
    features = {"n": numbers, "t": texts}
    assert load("android_control").example(example(features), "here") == features


@given(st.binary(min_size=1, max_size=60))
def test_junk_is_read_or_refused(data: bytes) -> None:
    try:
        features = load("android_control").example(data, "here")
    except RowError as error:
        reason = error.reason
    else:
        reason = "not_object" if all(isinstance(name, str) for name in features) else "read as something else"
    assert reason == "not_object"


@pytest.mark.parametrize("data", [b"\x0d1234", b"\x0a\xff", b"\x0a\x05ab", b"\x80" * 11, b"\x08\x01"])
def test_what_is_no_example_is_refused(data: bytes) -> None:
    with pytest.raises(RowError, match=r"here: not a tf\.train\.Example message"):
        load("android_control").example(data, "here")


def test_android_control_low_and_high_differ_in_the_prompt_only(download) -> None:
    root = download("android_control")
    rows = prepared("android_control", root, "test")
    low, high = rows[::2], rows[1::2]
    assert len(low) == len(high) == 7
    assert low[1]["prompt"] == high[1]["prompt"].replace("\nActions:", "\nNow: Click the search field\nActions:")
    for a, b in zip(low, high, strict=True):
        assert (a["gt"], a["answer"], a["image"], a["trajectory"]["history"]) == (
            b["gt"],
            b["answer"],
            b["image"],
            b["trajectory"]["history"],
        )
        assert (a["task"], b["task"]) == ("android_control_low", "android_control_high")
        assert a["trajectory"]["step"] == b["trajectory"]["step"]
    assert low[1]["meta"]["size"] == list(PHONE)
    written = (root.parent / "android_control-rows" / "media" / low[1]["image"]).read_bytes()
    assert (decode_image(written) == picture("5_1.png", PHONE)).all()
    assert [row["meta"]["level"] for row in prepared("android_control", root, "train", level="low")] == ["low"]


def test_android_control_faults(download) -> None:
    root = download("android_control")
    module = load("android_control")
    file = root / "android_control-00000-of-00001"
    whole = tfrecord(*map(example, EPISODES))
    file.write_bytes(gzip.compress(whole[:-3]))
    with pytest.raises(DataError, match="record is cut"):
        list(module.rows(root, "test"))
    file.write_bytes(gzip.compress(whole)[:-30])
    with pytest.raises(DataError, match="not a gzipped TFRecord file, or cut"):
        list(module.rows(root, "test"))
    file.write_bytes(b"plain")
    with pytest.raises(DataError, match="not a gzipped"):
        list(module.rows(root, "test"))
    short = EPISODES[1] | {"actions": EPISODES[1]["actions"][:-1]}
    file.write_bytes(gzip.compress(tfrecord(example(short))))
    with pytest.raises(RowError, match="8 screenshots, 6 actions and 7 step instructions"):
        list(module.rows(root, "test"))
    with pytest.raises(RowError, match=r"unknown action 'type'; known: click"):
        module.to_action('{"action_type": "type", "x": 1, "y": 1, "text": "a"}', PHONE, "s")


# GUIAct


def pictures(*names: str) -> bytes:
    """A Parquet file as pandas writes a frame with one column and an index."""
    text = [base64.b64encode(image_bytes(f"{name}.png")).decode() for name in names]
    out = io.BytesIO()
    pq.write_table(pa.table({"base64": text, "__index_level_0__": list(names)}), out)
    return out.getvalue()


ACT_PICTURES = {
    "web-single": ("a1",),
    "web-multi": tuple(f"uid_record_00001_step_0{i}" for i in range(3)),
    "smartphone": tuple(f"uid_episode_5_step_0{i}" for i in range(3)),
}


@pytest.mark.parametrize("part", list(ACT_PICTURES))
def test_gui_act_pictures_of_the_sample(part: str) -> None:
    table = pq.read_table(DATA / "gui_act" / "sample" / f"{part}_test_images.parquet")
    assert table.schema.names == pq.read_schema(io.BytesIO(pictures("a1"))).names
    assert table["__index_level_0__"].to_pylist() == list(ACT_PICTURES[part])
    for name, text in zip(ACT_PICTURES[part], table["base64"].to_pylist(), strict=True):
        assert (decode_image(base64.b64decode(text)) == picture(f"{name}.png")).all()


def test_gui_act_steps_and_further_actions(download) -> None:
    root = download("gui_act")
    multi = prepared("gui_act", root, "test", part="web-multi")
    assert [(row["trajectory"]["step"], row["trajectory"]["length"]) for row in multi] == [(0, 3), (1, 3), (2, 3)]
    assert multi[2]["trajectory"]["history"] == ["step 0: hover", "step 1: scroll"]
    assert multi[2]["meta"]["more"] == ["copy", "answer"]
    single = prepared("gui_act", root, "test", part="web-single")
    assert [row["meta"]["more"] for row in single] == [[], ["input"], [], [], []]
    assert single[0]["thought"] == "click on the link 'Ferries'"
    assert single[0]["image"] == "web-single/a1.png"
    written = (root.parent / "gui_act-rows" / "media" / "web-single" / "a1.png").read_bytes()
    assert (decode_image(written) == picture("a1.png")).all()


def test_gui_act_faults(download) -> None:
    root = download("gui_act")
    module = load("gui_act")
    (root / "web-single_test_images.parquet").write_bytes(pictures("a2"))
    with pytest.raises(DataError, match=r"lacks 1 picture\(s\), first 'a1'"):
        list(module.rows(root, "test"))
    with pytest.raises(RowError, match=r"unknown action 'drag'; known: click"):
        module.to_action({"name": "Drag"}, "s")
    with pytest.raises(RowError, match="is not '<box>"):
        module.to_action({"name": "click", "element": {"related": "0.1, 0.2, 0.3, 0.4"}}, "s")
    with pytest.raises(RowError, match="outside of the frame 'norm1'"):
        module.to_action({"name": "click", "element": {"related": "<box>0.1, 0.2, 1.3, 0.4</box>"}}, "s")


# OmniACT


@pytest.mark.parametrize(
    ("call", "text", "action"),
    [
        ("click", "x=64, y=48", {"action": "click", "coordinate": [100, 100]}),
        ("rightClick", "640, 480", {"action": "right_click", "coordinate": [1000, 1000]}),
        ("click", "", {"action": "click"}),
        ("write", '"it\'s, (here)"', {"action": "input_text", "text": "it's, (here)"}),
        ("press", "'down'", {"action": "hotkey", "text": "down"}),
        ("hotkey", "'ctrl', 'shift', 't'", {"action": "hotkey", "text": "ctrl+shift+t"}),
        ("hscroll", "3", {"action": "scroll", "direction": "right"}),
        ("scroll", "10", {"action": "scroll", "direction": "up"}),
        ("hscroll", "'-10'", {"action": "scroll", "direction": "left"}),
        ("hscroll", "[10]", {"action": "scroll", "direction": "right"}),
        ("hotKey", "'ctrl','c'", {"action": "hotkey", "text": "ctrl+c"}),
        ("moveto", "320, 240", {"action": "hover", "coordinate": [500, 500]}),
    ],
)
def test_omniact_calls(call: str, text: str, action: dict[str, Any]) -> None:
    assert load("omniact").to_action(call, text, (640, 480), {}, "s")[0] == action


@pytest.mark.parametrize(
    ("call", "text", "reason"),
    [("dragTo", "1, 2", "unknown action 'dragTo'"), ("click", "open('x')", "cannot read"), ("scroll", "0", "does not scroll")],
)
def test_omniact_faults(call: str, text: str, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        load("omniact").to_action(call, text, (640, 480), {}, "s")


def test_omniact_scripts(download) -> None:
    module = load("omniact")
    assert module.script(["Task: a", "b", "Output Script: pyautogui.click(1,2)"], "s") == ("a b", [("click", "1,2")])
    for lines in (["Task: a"], ["x", "Output Script:"], ["Task: a", "Output Script:", "import os"], ["Task: a", "Output Script:"]):
        with pytest.raises(RowError, match="s: "):
            module.script(lines, "s")
    root = download("omniact")
    row = prepared("omniact", root, "test")[0]
    assert (row["meta"]["element"], row["meta"]["platform"], row["meta"]["application"]) == ("shopping list", "desktop", "notes")
    assert prepared("omniact", root, "train")[0]["meta"]["more"] == ["write", "press"]


def test_omniact_web_pages_lie_under_other_names_than_the_lists_say(download) -> None:
    root = download("omniact")
    before = prepared("omniact", root, "test")
    for folder, name, other in (("data", "screen_2.png", "screen2.png"), ("metadata/web/boxes", "screen_2.json", "screen2_boxes.json")):
        place = root / "data" / (folder if folder != "data" else "data/web") / "harbour"
        (place / name).rename(place / other)
    after = prepared("omniact", root, "test")
    assert [row["image"] for row in after[1:]] == ["data/data/web/harbour/screen2.png"] * (len(before) - 1)
    assert [row["gt"] for row in after] == [row["gt"] for row in before]


def test_omniact_task_with_a_drag_is_left_out_and_the_others_stay(download) -> None:
    root = download("omniact")
    whole = list(load("omniact").rows(root, "test"))
    for file, call, reason in (
        ("task_2.1", "pyautogui.dragTo(1, 2)", "a call for which rows have no action"),
        ("task_2.2", "pyautogui.click(open('x'))", "a script that is not read"),
    ):
        (root / f"data/tasks/web/harbour/{file}.txt").write_text(f"Task: a\nOutput Script:\n{call}\n", encoding="utf-8")
        assert Skipped(f"omniact-test-{8 if file == 'task_2.1' else 9}", reason) in list(load("omniact").rows(root, "test"))
    assert len(list(load("omniact").rows(root, "test"))) == len(whole)


# GUI-Odyssey


def test_gui_odyssey_boxes_history_and_faults(download) -> None:
    rows = prepared("gui_odyssey", download("gui_odyssey"), "train")
    assert [row["meta"]["box_misses_point"] for row in rows] == [False, False, False, True, False, False]
    assert rows[2]["trajectory"]["history"] == ["Open Tide Times", "Scroll to the evening"]
    assert rows[0]["meta"]["size"] == [1080, 2400]
    act = load("gui_odyssey").to_action
    with pytest.raises(RowError, match=r"unknown action 'DRAG'; known: CLICK"):
        act({"action": "DRAG", "info": ""}, "s")
    with pytest.raises(RowError, match=r"unknown action 'KEY_MENU'; known: KEY_HOME"):
        act({"action": "CLICK", "info": "KEY_MENU"}, "s")
    with pytest.raises(RowError, match=r"expected 2 point\(s\)"):
        act({"action": "SCROLL", "info": [[1, 2]]}, "s")


# Shared


def test_screenspot_without_its_screenshot(download) -> None:
    root = download("screenspot")
    (root / "screenspot_imgs" / "pc_1.png").unlink()
    with pytest.raises(DataError, match=r"pc_1.png.*coordinates in pixels need the screenshot"):
        list(load("screenspot").rows(root, "test"))


def test_box_without_area_is_skipped() -> None:
    item = {"id": "d_0", "img_filename": "a.png", "bbox": [5, 5, 5, 9], "instruction": "x", "application": "a", "platform": "p"}
    module = load("screenspot_pro")
    record = module.usable("d_0", lambda: module.element(item | {"ui_type": "icon", "img_size": [100, 100]}, "s", "test"))
    assert record == Skipped("d_0", "a box without area, or an empty text")
    with pytest.raises(RowError, match="'ui_type' is missing"):
        module.usable("d_0", lambda: module.element(item, "s", "test"))


@pytest.mark.parametrize(
    ("dx", "dy", "way"), [(0.1, -0.3, "up"), (0.1, 0.3, "down"), (-0.3, 0.1, "left"), (0.3, -0.1, "right"), (0.2, 0.2, "down")]
)
def test_swipe(dx: float, dy: float, way: str) -> None:
    assert swipe(dx, dy) == way


@given(st.tuples(*[st.floats(0, 1000)] * 4), st.tuples(st.floats(0, 1000), st.floats(0, 1000)))
def test_pointing_keeps_the_box_where_the_point_is_in_it(corners: tuple[float, ...], point: tuple[float, float]) -> None:
    box = [min(corners[0], corners[2]), min(corners[1], corners[3]), max(corners[0], corners[2]), max(corners[1], corners[3])]
    action, missed = pointing("click", point, box)
    assert ("box" in action) is not missed
    assert missed is not (box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3])
    assert action_of(action) is not None


def test_describe_and_step_row() -> None:
    assert describe({"action": "click", "coordinate": [500, 120]}) == "click [500, 120]"
    assert describe({"action": "open_app", "app_name": "Maps"}) == 'open_app "Maps"'
    assert describe({"action": "scroll", "direction": "up"}) == "scroll up"
    keys: dict[str, Any] = {"id": "a", "task": "t", "image": "a.png", "space": "S", "trajectory": "a", "step": 0, "length": 1, "meta": {}}
    row = step_row(goal=" G ", action={"action": "click", "coordinate": [1, 2], "box": [0, 0, 3, 3]}, history=(), **keys)
    assert row["prompt"] == "Task: G\nDone: nothing\nS"
    assert row["answer"] == '{"action": "click", "coordinate": [1, 2]}'
    assert "thought" not in row
    with pytest.raises(RowError, match="goal is empty"):
        step_row(goal=" ", action={"action": "wait"}, history=(), **keys)


def test_embedded_pictures_only_where_the_release_holds_them(download) -> None:
    for name, split in (("android_control", "test"), ("gui_act", "test")):
        assert all(isinstance(row["image"], Embedded) for row in load(name).rows(download(name), split))
