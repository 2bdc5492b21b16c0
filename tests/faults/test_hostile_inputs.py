"""Files, settings and texts that try to become code, to leave their place or to tell a secret: S1, S2, S5 to S10 of the fault catalogue.

S3 and S4 (paths and addresses in rows) are in `test_hostile`. Of the others this version does not have, so nothing is tested:
S1, shards of DeepSpeed: none are read. S2, a switch for remote code: there is none, and `tests/test_layering.py` keeps it so.
S6, loading scripts of data sets: nothing runs a script; what is tested is that one that lies in a folder stays unread.
S8, releases and lock files: a matter of the repository, not of a run; the hashes of media in rows are tested.
S9, rewards that run code which a model wrote: there are none, and no sandbox; rewards are modules that the recipe names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from tests.support import media_trace, runs
from tests.support.builders import group, sample
from tests.support.hostile import encode, good_row, picture
from tests.support.tiny import Tiny
from vlmrl.cli import printable
from vlmrl.config.load import load
from vlmrl.data.source import read_source
from vlmrl.errors import ConfigError, MediaError, VlmrlError
from vlmrl.methods import registries
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.protocols import RewardContext
from vlmrl.protocols import reward as rewards
from vlmrl.types import MediaRef

RECIPE = "model: {path: m}\ndata: {root: d}\nstages:\n- {name: s, kind: sft, source: {path: a.jsonl}, steps: 1}\n"


class Drops:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.fixture
def folder(tiny_files: tuple[Path, Path], tmp_path: Path) -> Path:
    """A model folder of this test's own."""
    return Path(shutil.copytree(tiny_files[0], tmp_path / "model"))


# S1


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.bin", "model.pt", "model.safetensors"])
def test_a_pickle_is_no_model(tiny: Tiny, folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Drops(tmp_path / "canary")))
    with pytest.raises((VlmrlError, SafetensorError)):
        load_policy(str(folder), tiny.bundle, device="cpu")
    assert not (tmp_path / "canary").exists()


def _safetensors(header: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + b"\0" * 64


@pytest.mark.parametrize(
    "data",
    [
        _safetensors(b"{}", length=2**62),
        _safetensors(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,99999999999]}}'),
        _safetensors(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}'),
        _safetensors(b'{"a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,16]}}'),
        b"",
    ],
    ids=["huge-header", "beyond-the-end", "overlap", "overflow", "empty"],
)
def test_damaged_weights_are_refused(tiny: Tiny, folder: Path, data: bytes) -> None:
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises((VlmrlError, SafetensorError)):
        load_policy(str(folder), tiny.bundle, device="cpu")


# S2


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "processor_config.json"])
@pytest.mark.parametrize("known", [True, False])
def test_code_in_a_model_folder_never_runs(folder: Path, tmp_path: Path, file: str, known: bool) -> None:
    """`auto_map` names classes in a module of the folder. A folder of a known kind loads without them; another one is refused."""
    canary = tmp_path / "canary"
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(canary)!r})\nclass Evil:\n    pass\n")
    content = json.loads((folder / file).read_text())
    names = ("AutoConfig", "AutoModel", "AutoModelForImageTextToText", "AutoProcessor", "AutoImageProcessor", "AutoVideoProcessor")
    content["auto_map"] = {name: "evil.Evil" for name in names} | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    if not known and "model_type" in content:
        content["model_type"] = "evil"
    (folder / file).write_text(json.dumps(content))
    try:
        load_policy(str(folder), load_processor(str(folder)), device="cpu")
    except ConfigError:
        refused = True
    else:
        refused = False
    assert not canary.exists()
    assert refused or known or "model_type" not in content


# S5


PAYLOADS = [
    "__import__('os').mkdir({0!r})",
    "eval(\"__import__('os').mkdir({0!r})\")",
    "().__class__.__base__.__subclasses__()",
    "\\boxed{{__import__('os').mkdir({0!r})}}",
    "{{{{ cycler.__init__.__globals__.os.mkdir({0!r}) }}}}",
    "!!python/object/apply:os.mkdir [{0!r}]",
    "lambda: __import__('os').mkdir({0!r})",
    "$(mkdir {0})",
    "`mkdir {0}`; mkdir {0}",
    "[x for x in [__import__('os').mkdir({0!r})]]",
    "70**70**70**70",
    "factorial(10**9)",
]


@pytest.mark.parametrize("kind", ["math", "number", "exact", "temporal_iou", "format", "ocr_wer", "choice"])
def test_answers_are_text(tmp_path: Path, kind: str) -> None:
    """Every payload is judged as a wrong answer or not judged, and nothing happens."""
    registries()
    canary = str(tmp_path / "canary")
    answer_type = {"temporal_iou": "time_span", "exact": "exact_text", "format": "exact_text", "ocr_wer": "short_text"}.get(kind, kind)
    gold = {"choice": "A", "number": "8191.5", "math": "8191.5"}.get(kind, "3.0 to 5.0")  # not a number that the canary's path may have
    of = dataclasses.replace(sample(gold, {"number": 8191.5} if kind == "number" else None), answer_type=answer_type)
    texts = [f"<answer>{text.format(canary)}</answer>" for text in PAYLOADS]
    scores = list(rewards.bind(kind, {})(group(texts, of), RewardContext()))
    assert len(scores) == len(texts)
    assert kind == "format" or all(score is None or score == 0 for score in scores)
    assert not os.path.exists(canary)


# S6


@pytest.mark.parametrize(
    "text",
    [
        "x: !!python/object/apply:os.mkdir [{0}]\n",
        "x: !!python/name:os.system\n",
        "x: !include {0}\n",
        "x: &a {{b: 1}}\ny: *a\n",
        "x: {{<<: {{b: 1}}}}\n",
    ],
)
def test_a_recipe_makes_no_objects(tmp_path: Path, text: str) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "recipe.yaml").write_text(RECIPE + text.format(canary))
    with pytest.raises(ConfigError, match=r"recipe\.yaml:"):
        load(tmp_path / "recipe.yaml", [])
    assert not canary.exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.mkdir('CANARY') }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{% set x = lipsum.__globals__['os'].mkdir('CANARY') %}",
    ],
)
def test_a_chat_template_stays_in_its_sandbox(tiny: Tiny, folder: Path, tmp_path: Path, template: str) -> None:
    canary = tmp_path / "canary"
    (folder / "chat_template.jinja").write_text(template.replace("CANARY", str(canary)))
    (tmp_path / "a.png").write_bytes(encode(picture(), "PNG"))
    encoder = dataclasses.replace(tiny.encoder, data_root=tmp_path, tokenizer=load_processor(str(folder)).tokenizer)
    row = dataclasses.replace(tiny.samples[0], media=(MediaRef(kind="image", path="a.png"),))
    with pytest.raises(Exception) as caught:
        encoder.encode(row, "think")
    assert type(caught.value).__name__ in ("SecurityError", "UndefinedError")
    assert not canary.exists()


def test_a_script_in_a_data_folder_stays_unread(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    data = tmp_path / "set"
    data.mkdir()
    for name in ("set.py", "dataset.py", "__init__.py", "conftest.py"):
        (data / name).write_text(f"import os\nos.mkdir({str(canary)!r})\n")
    (data / "chat_template.jinja").write_text("{{ 1/0 }}")
    (data / "train.jsonl").write_text(json.dumps(good_row("a")) + "\n")
    assert [s.id for s in read_source(tmp_path / "set@train", media_root=".").samples] == ["a"]
    assert not canary.exists()


# S7


def test_a_secret_of_the_environment_is_nowhere_in_the_run_directory(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    made = runs.small_config(*tiny_files, tmp_path / "runs", steps=1)
    made["stages"] = made["stages"][1:]
    made["stages"][0]["rollout"] |= {"max_new_tokens": 4}
    made["eval"]["every"] = None
    secret = "hf_" + hashlib.sha256(b"planted").hexdigest()[:32]
    child = runs._CONTEXT.Process(target=media_trace.run_with_environment, args=(made, {"HF_TOKEN": secret, "WANDB_API_KEY": secret}))
    child.start()
    child.join(180)
    assert child.exitcode == 0
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("text", ["hf_" + "a" * 24, "sk-" + "b" * 24, "ghp_" + "c" * 24, "AKIA" + "D" * 16, "https://me:word@host/x"])
def test_a_secret_in_a_recipe_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("path: m", f"path: '{text}'"))
    with pytest.raises(ConfigError, match="looks like a secret") as caught:
        load(tmp_path / "recipe.yaml", [])
    assert text not in str(caught.value)


# S8


def test_altered_media_do_not_pass_as_those_of_the_row(tiny: Tiny, tmp_path: Path) -> None:
    data = encode(picture(), "PNG")
    digest = hashlib.sha256(data).hexdigest()
    other = encode(picture(61), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    ref = MediaRef(kind="image", path="a.png", sha256=digest)
    assert tiny.store.get(ref, tmp_path).original_size == (60, 84)
    (tmp_path / "a.png").write_bytes(other)
    with pytest.raises(MediaError, match="hash_mismatch"):
        tiny.store.get(ref, tmp_path)


# S10


ESCAPES = ["\x1b[2J\x1b[1;1Hgone", "\x1b]0;title\x07", "a\rb", "\u202egnp.exe", "\x9b31mred", "a\x08b"]


@pytest.mark.parametrize("text", ESCAPES)
def test_a_console_message_cannot_steer_the_terminal(text: str) -> None:
    shown = printable(f"row '{text}' is bad")
    assert not [c for c in shown if ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]


@pytest.mark.parametrize("text", ESCAPES)
def test_a_quarantine_line_is_one_line_of_plain_characters(tmp_path: Path, text: str) -> None:
    from vlmrl.run.rows import quarantine_row

    quarantine_row(tmp_path / "bad.jsonl", dataclasses.replace(sample(), id=text), "corrupt", f"{text} is broken")
    raw = (tmp_path / "bad.jsonl").read_bytes()
    assert raw.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in raw[:-1])
    assert json.loads(raw)["id"] == text
