"""rewards.reward_model: behind an endpoint, and a tiny classifier in this process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tests.support.builders import group, sample
from tests.support.judge_server import Reply, raw, score, serving
from vlmrl.compat import ensure_torchvision
from vlmrl.protocols import RewardContext
from vlmrl.zoo.rewards.reward_model import load, reward_model

ensure_torchvision()
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification  # noqa: E402

CTX = RewardContext()
OF = sample("3", gt={})
BYTES = sorted(ByteLevel.alphabet())
"""One token per byte."""


def build(folder: Path, labels: int, template: str | None = None) -> Path:
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(BYTES)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = template
    fast.save_pretrained(folder)
    torch.manual_seed(labels)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=labels,
        pad_token_id=511,
    )
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    return folder


def logits(folder: Path, *texts: str) -> list[float]:
    """The same from the library's parts: the folder's tokenizer, then the model."""
    ids = AutoTokenizer.from_pretrained(folder)(*texts)["input_ids"]
    model: Any = Qwen2ForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double().tolist()


def test_reward_model_in_process_with_one_label(tmp_path: Path) -> None:
    path = str(build(tmp_path, 1))
    texts = ["red car", "blue"]
    expected = [logits(tmp_path, "When?", text)[0] for text in texts]
    assert expected[0] != expected[1]
    assert reward_model(group(texts, OF), CTX, path=path, transform="none") == pytest.approx(expected, abs=1e-6)
    assert reward_model(group(texts, OF), CTX, path=path) == pytest.approx([1 / (1 + math.exp(-x)) for x in expected], abs=1e-6)
    assert load(path, "cpu") is load(path, "cpu")
    with pytest.raises(ValueError, match=r"label 1, but the model .* has 1 labels"):
        reward_model(group(texts, OF), CTX, path=path, label=1)


def test_reward_model_in_process_with_several_labels(tmp_path: Path) -> None:
    path = str(build(tmp_path, 3))
    x = torch.tensor(logits(tmp_path, "When?", "red")).softmax(0)
    for label in range(3):
        assert reward_model(group(["red"], OF), CTX, path=path, label=label) == pytest.approx([float(x[label])], abs=1e-6)


def test_reward_model_uses_the_chat_template_of_the_model(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    path = build(tmp_path, 1, template)
    (expected,) = logits(path, "<user> When? <assistant> red ")
    assert expected != logits(path, "When?", "red")[0]
    assert reward_model(group(["red"], OF), CTX, path=str(path), transform="none") == pytest.approx([expected], abs=1e-6)


def test_reward_model_never_cuts_a_text_to_fit(tmp_path: Path) -> None:
    path = str(build(tmp_path, 1))
    short, long = (len(AutoTokenizer.from_pretrained(path)("When?", text)["input_ids"]) for text in ("red", "red car"))
    assert short < long
    column = reward_model(group(["red", "red car"], OF), CTX, path=path, max_length=short)
    assert column[0] is not None
    assert column[1] is None
    assert column.reasons == {"overlong": 1}  # type: ignore[attr-defined]
    column = reward_model(group(["red"], OF), CTX, path=path, low=50.0, high=60.0)
    assert column == [None]
    assert column.reasons == {"out_of_range": 1}  # type: ignore[attr-defined]


def test_reward_model_takes_safetensors_only(tmp_path: Path) -> None:
    path = build(tmp_path, 1)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        reward_model(group(["red"], OF), CTX, path=str(path))


def test_reward_model_behind_an_endpoint() -> None:
    with serving(score(0.0), score(math.log(3))) as s:
        assert reward_model(group(["red", "blue"], OF), CTX, endpoint=s.endpoint) == pytest.approx([0.5, 0.75])
        body, _, path = s.server.requests[0]
    assert path == "/v1"
    assert body["model"] == "judge"
    assert {k: v for k, v in body["inputs"][0].items() if k != "id"} == {"question": "When?", "response": "red", "images": []}


def test_reward_model_raw_scores_and_one_call_per_text() -> None:
    with serving(score(-3), score(4.5)) as s:
        column = reward_model(group(["red", "blue", "red"], OF), CTX, endpoint=s.endpoint, transform="none")
        assert column == [-3.0, 4.5, -3.0]
        assert s.server.calls == 2


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (score(1e9), "out_of_range"),
        (score("1"), "not_a_number"),
        (score(None), "missing"),
        (raw(b'{"scores": []}'), "wrong_count"),
        (raw(b'{"scores": [{"id": "x", "score": 1}]}'), "wrong_id"),
        (raw(b'{"scores": [3]}'), "wrong_id"),
        (raw(b"{}"), "envelope"),
    ],
)
def test_reward_model_with_a_lying_server_is_missing(act: Any, reason: str) -> None:
    with serving(act, act, act, score(0.0)) as s:
        column = reward_model(group(["red", "blue"], OF), CTX, endpoint=s.endpoint)
        assert column == [None, 0.5]
        assert column.reasons == {reason: 1}  # type: ignore[attr-defined]


def test_reward_model_arguments() -> None:
    of = group(["red"], OF)
    for arguments in ({}, {"endpoint": {"url": "https://x", "model": "m"}, "path": "here"}):
        with pytest.raises(ValueError, match="either 'endpoint'"):
            reward_model(of, CTX, **arguments)
    with pytest.raises(ValueError, match="must be below"):
        reward_model(of, CTX, path="here", low=1.0, high=1.0)


def test_scripted_replies_are_what_they_seem() -> None:
    assert score(1.0)({"inputs": [{"id": "a"}]}) == Reply(body=b'{"scores": [{"id": "a", "score": 1.0}]}')
