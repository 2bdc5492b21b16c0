"""The judge's client against a real vLLM: pictures arrive, what cannot be read is counted and never a zero, costs are the server's.

Set `VLMRL_VLLM_PYTHON` to the interpreter of an environment with vLLM (its CPU build is enough). The judge is a tiny Qwen2.5-VL with
random weights, so that plain replies are noise; verdicts come from guided decoding.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.support import builders
from tests.support import tiny as tiny_module
from tests.support.judge_server import Json, JudgeServer, Reply
from tests.support.tiny import Tiny
from tests.support.vllm_server import VllmServer, find_python, vllm_server
from vlmrl.errors import RemoteError
from vlmrl.extras.judges.judges import ChatJudge, JudgeQuestion, content
from vlmrl.extras.judges.material import pictures
from vlmrl.extras.judges.rewards.judge import judge
from vlmrl.extras.judges.services import Services, session
from vlmrl.extras.judges.verdicts import Problem, finite, label_check, score_check
from vlmrl.extras.toy.model import build_tokenizer
from vlmrl.extras.toy.multitask import items
from vlmrl.extras.toy.picture import png
from vlmrl.extras.toy.tasks import tokenizer_corpus
from vlmrl.protocols import RewardContext
from vlmrl.types import Group, Rollout
from vlmrl.zoo.rewards.reward_model import reward_model

PYTHON = find_python()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="no vLLM here; VLMRL_VLLM_PYTHON names an interpreter that has it"),
]

LABELS = ("CORRECT", "INCORRECT")
PRICES = {"price_in": 2.0, "price_out": 7.0}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A served judge, and pictures to ask about."""

    server: VllmServer
    tiny: Tiny

    def endpoint(self, **more: Any) -> dict[str, Any]:
        return {"url": self.server.url, "model": "judge", "max_tokens": 24, "timeout": 300.0, "max_wait": 60.0, **PRICES, **more}

    def group(self, *texts: str) -> tuple[Group, RewardContext]:
        (prompt,) = self.tiny.prompts(1, "answer_only")
        rollouts = tuple(
            Rollout(k=k, ids=(1,), logprobs=(0.0,), text=f"<answer>{text}</answer>", finish="stop", policy_version=0)
            for k, text in enumerate(texts)
        )
        media = {handle.key: self.tiny.store.get_key(handle.key) for handle in prompt.media}
        return Group(id="g", prompt=prompt, rollouts=rollouts), RewardContext(media=media)

    def counted(self) -> tuple[float, float]:
        """Prompt and completion tokens of the server since its start, as it counts them itself."""
        text = httpx.get(f"{self.server.base}/metrics", trust_env=False).text
        sums = [re.findall(rf"^vllm:{name}_tokens_total{{.*}} (\S+)$", text, re.MULTILINE) for name in ("prompt", "generation")]
        assert all(sums), "the server has no such counters"
        return sum(map(float, sums[0])), sum(map(float, sums[1]))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("judge")
    model, data = tiny_module.make_files(folder, sft=1, train=1, test=1)
    (data / "images" / "train").mkdir(parents=True)
    rows = [item for index in range(2) for item in items(0, "train", index)]
    for item in rows:
        (data / item.row["image"]).write_bytes(png(item.pixels))
    (data / "pictures.jsonl").write_text("".join(json.dumps(item.row) + "\n" for item in rows))
    loaded = tiny_module.load(model, data, split="pictures")
    assert PYTHON is not None
    with vllm_server(model, python=PYTHON, served_name="judge", folder=folder / "log") as server:
        yield Bench(server=server, tiny=loaded)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with session(Services(tmp_path / "judges")) as made:
        yield made


def until_equal(read: Callable[[], tuple[float, float]], wanted: tuple[float, float]) -> tuple[float, float]:
    """What `read` gives, once it is `wanted` or after ten seconds: the server's counters follow its replies."""
    end = time.monotonic() + 10
    while (found := read()) != wanted and time.monotonic() < end:
        time.sleep(0.2)
    return found


def read_label(reply: Mapping[str, Any], ident: str) -> Mapping[str, Any]:
    return {"label": content(reply)}


def read_score(reply: Mapping[str, Any], ident: str) -> Mapping[str, Any]:
    return {"score": finite(float(content(reply)), "score", 0.0, 1.0)}


def guided(bench: Bench, answer: str, *, with_pictures: bool = True, **extra: Any) -> JudgeQuestion:
    group, ctx = bench.group(answer)
    values = {"question": group.prompt.sample.question, "gold": "3", "answer": answer, "instructions": ""}
    seen = pictures(group, ctx) if with_pictures else ()
    wanted = {"structured_outputs": {"choice": list(LABELS)}, **extra}
    return JudgeQuestion(
        template="judge", values=values, check=label_check(*LABELS), pictures=seen, read=read_label, json_reply=False, extra=wanted
    )


def expected_tokens(bench: Bench, chat: ChatJudge, ask: JudgeQuestion) -> int:
    """Prompt tokens of a question by our own tokenizer, with as many per picture as its patches make."""
    bundle = bench.tiny.bundle
    conversation = [
        {**turn, "content": turn["content"] if isinstance(turn["content"], str) else [plain(part) for part in turn["content"]]}
        for turn in chat.body(ask, chat.key(ask), None)["messages"]
    ]
    text = bundle.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    short = bundle.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert sum(i == bundle.pad_ids["image"] for i in short) == len(ask.pictures)
    group, _ = bench.group("x")
    return len(short) + (sum(handle.tokens - 1 for handle in group.prompt.media) if ask.pictures else 0)


def plain(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "image"} if part["type"] == "image_url" else part


def test_pictures_arrive_as_their_tokens(bench: Bench, services: Services):
    chat = services.chat(bench.endpoint())
    for with_pictures in (False, True):
        ask = guided(bench, "2", with_pictures=with_pictures)
        (verdict,) = chat.ask_all("judge", [ask])
        assert isinstance(verdict, dict)
        assert verdict["label"] in LABELS
        cost = services.read()
        print(f"with pictures {with_pictures}: {cost['judge/prompt_tokens']:.0f} prompt tokens, verdict {verdict}")
        assert cost["judge/prompt_tokens"] == expected_tokens(bench, chat, ask)
        assert cost["judge/calls"] == 1


def test_what_a_judge_sees_decides(bench: Bench, services: Services):
    """Guided scores of one question with two pictures: if the server ignored the pixels they would be equal."""
    chat = services.chat(bench.endpoint())
    found = []
    for prompt in bench.tiny.prompts(2, "answer_only"):
        group = Group(id="g", prompt=prompt, rollouts=())
        seen = pictures(group, RewardContext(media={h.key: bench.tiny.store.get_key(h.key) for h in prompt.media}))
        ask = JudgeQuestion(
            template="judge",
            values={"question": "q", "gold": "3", "answer": "2", "instructions": ""},
            check=lambda reply: {"logprob": reply["logprob"]},
            pictures=seen,
            read=lambda reply, _: {"logprob": reply["choices"][0]["logprobs"]["content"][0]["logprob"]},
            json_reply=False,
            extra={"logprobs": True, "max_tokens": 1},
        )
        (verdict,) = chat.ask_all("judge", [ask])
        assert isinstance(verdict, dict)
        found.append(verdict["logprob"])
    assert found[0] != found[1]


@pytest.mark.parametrize("json_mode", [False, True])
def test_noise_is_unjudged_by_reason_and_never_zero(bench: Bench, services: Services, json_mode: bool):
    group, ctx = bench.group("7", "8")
    column = judge(group, ctx, endpoint=bench.endpoint(json_mode=json_mode))
    cost = services.read()
    reasons: dict[str, int] = column.reasons  # type: ignore[attr-defined]
    print(f"json mode {json_mode}: {list(column)}, {reasons}, {services.meters.reasons()}")
    assert list(column) == [None, None]
    assert sum(reasons.values()) == 2
    assert set(reasons) <= {"no_json", "wrong_id", "missing", "not_a_number"}
    assert services.meters.reasons() == {f"judge/{reason}": count for reason, count in reasons.items()}
    assert cost["judge/unjudged"] == 2
    assert cost["judge/reasks"] == 4  # each told twice what was wrong
    assert cost["judge/calls"] == 6


def test_guided_numbers_are_read(bench: Bench, services: Services):
    group, ctx = bench.group("2")
    ask = JudgeQuestion(
        template="judge",
        values={"question": "q", "gold": "3", "answer": "2", "instructions": ""},
        check=score_check(),
        pictures=pictures(group, ctx),
        read=read_score,
        json_reply=False,
        extra={"structured_outputs": {"regex": r"(0\.[0-9]|1\.0)"}},
    )
    (verdict,) = services.chat(bench.endpoint()).ask_all("judge", [ask])
    print(f"guided score: {verdict}")
    assert isinstance(verdict, dict)
    assert round(10 * verdict["score"]) / 10 == verdict["score"]


def test_cost_is_what_the_server_counts_and_nothing_is_asked_twice(bench: Bench, services: Services):
    chat = services.chat(bench.endpoint())
    asks = [guided(bench, str(n)) for n in (1, 2, 3)]
    before = bench.counted()
    verdicts = chat.ask_all("judge", [*asks, asks[0]])
    cost = services.read()
    tokens = cost["judge/prompt_tokens"], cost["judge/completion_tokens"]
    after = until_equal(bench.counted, (before[0] + tokens[0], before[1] + tokens[1]))
    print(f"tokens by our meters {tokens}, by the server {(after[0] - before[0], after[1] - before[1])}, cost {cost['judge/cost']}")
    assert tokens == (after[0] - before[0], after[1] - before[1])
    assert cost["judge/cost"] == pytest.approx((tokens[0] * PRICES["price_in"] + tokens[1] * PRICES["price_out"]) / 1e6)
    assert cost["judge/calls"] == 3  # the fourth question is the first again
    assert verdicts[3] == verdicts[0]

    assert chat.ask_all("judge", asks) == verdicts[:3]
    second = services.read()
    assert (second["judge/calls"], second["judge/cache_hits"], second["judge/cost"]) == (0, 3, 0)


def test_a_kept_verdict_is_that_of_the_file(bench: Bench, tmp_path: Path):
    """A second session on the same folder asks nothing."""
    ask, calls = guided(bench, "5"), []
    for _ in range(2):
        with session(Services(tmp_path / "judges")) as made:
            (verdict,) = made.chat(bench.endpoint()).ask_all("judge", [ask])
            calls.append((made.read()["judge/calls"], verdict))
    assert [n for n, _ in calls] == [1, 0]
    assert calls[0][1] == calls[1][1]


def test_what_does_not_fit_is_unjudged(bench: Bench, services: Services):
    (found,) = services.chat(bench.endpoint(max_tokens=4096)).ask_all("judge", [guided(bench, "9")])
    assert isinstance(found, Problem)
    assert found.reason == "http_400"
    assert services.meters.reasons() == {"judge/http_400": 1}


def test_a_model_that_is_not_served_ends_the_run(bench: Bench, services: Services):
    with pytest.raises(RemoteError, match=r"HTTP 404.*check endpoint\.url and endpoint\.model"):
        services.chat(bench.endpoint(model="other")).ask_all("judge", [guided(bench, "9")])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sequence classifier with one label, weights from a seed."""
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    folder = tmp_path_factory.mktemp("classifier")
    tokenizer = build_tokenizer(tokenizer_corpus())
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,  # heads of 32: attention of the CPU build has no smaller ones
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
        eos_token_id=end,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        config.num_labels = 1
        Qwen2ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bridge(server: VllmServer) -> Callable[[Json], Reply]:
    """Our wire format of reward models in front of vLLM's `/classify`, whose score is the logit."""

    def act(body: Json) -> Reply:
        one = body["inputs"][0]
        turns = [{"role": "user", "content": one["question"]}, {"role": "assistant", "content": one["response"]}]
        asked = {"model": server.model, "messages": turns, "use_activation": False}
        reply = httpx.post(f"{server.base}/classify", json=asked, timeout=300.0, trust_env=False)
        if reply.status_code != 200:
            return Reply(status=reply.status_code, body=reply.content)
        return Reply(body=json.dumps({"scores": [{"id": one["id"], "score": reply.json()["data"][0]["probs"][0]}]}).encode())

    return act


def test_scores_of_a_served_reward_model_are_those_of_transformers(classifier: Path, services: Services, tmp_path: Path):
    group, ctx = builders.group(["1", "the red square", "3.0 to 5.0", "", "When is the blue circle visible?"]), RewardContext()
    assert PYTHON is not None
    with (
        vllm_server(classifier, python=PYTHON, served_name="rm", folder=tmp_path, options=["--runner", "pooling"]) as server,
        JudgeServer(otherwise=bridge(server)) as front,
    ):
        endpoint = {"url": front.url, "model": "rm", "timeout": 300.0, "max_wait": 60.0}
        theirs = reward_model(group, ctx, endpoint=endpoint, transform="none", with_pictures=False)
    ours = reward_model(group, ctx, path=str(classifier), transform="none")
    print(f"scores: vLLM's {theirs}, transformers' {ours}")
    assert all(score is not None for score in [*theirs, *ours])
    assert theirs == pytest.approx(ours, abs=1e-4)
    assert len({round(score or 0.0, 3) for score in ours}) > 2
    assert services.read()["judge/unjudged"] == 0
