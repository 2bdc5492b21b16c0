"""The servers of a teacher, as a rank asks them: what is sent, what becomes of each fault, and who is refused. Servers without vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import media_layouts, tiny
from tests.support.rollout_stand_in import Served, cut_off, garbage, made_up_scores, serving, silence
from vlmrl.errors import ConfigError, EngineError, Preempted, RemoteError
from vlmrl.extras.vllm import endpoint as endpoint_module
from vlmrl.extras.vllm import scorer as scorer_module
from vlmrl.extras.vllm.fleet import Fleet, Needed
from vlmrl.extras.vllm.identity import identity_of, problem_of, read_by
from vlmrl.extras.vllm.inputs import Placed
from vlmrl.extras.vllm.remote import Lost, Remote
from vlmrl.extras.vllm.scorer import Scorer
from vlmrl.extras.vllm.wire import (
    ScoreRequest,
    WireError,
    body_message,
    reply_from,
    score_from,
    score_message,
    scores_from,
    scores_message,
)

HOW: dict[str, Any] = {"temperature": 0.7, "forbidden": (2, 3)}
ANSWERS = [np.asarray([[5, 8], [6, 9], [7, 7]], dtype=np.int32), np.asarray([[11, 4]], dtype=np.int32)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def loaded(files: Path) -> tiny.Tiny:
    return media_layouts.make(files, "qwen2_5_vl")


@pytest.fixture(scope="module")
def teacher(loaded: tiny.Tiny) -> dict[str, Any]:
    return {"fingerprint": "of the teacher", **read_by(loaded.bundle, timed=True)}


@pytest.fixture(scope="module")
def questions(loaded: tiny.Tiny) -> list[Any]:
    return [(prompt, ANSWERS) for prompt in media_layouts.prompts(loaded).values()] * 2


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "SECOND", 0.05)
    monkeypatch.setattr(scorer_module, "SLICE", 0.02)


@contextmanager
def asking(loaded: tiny.Tiny, *teachers: Any, **options: Any) -> Iterator[tuple[Scorer, list[Served]]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving("Model", teacher=teacher)) for teacher in teachers]
        remotes = [Remote(one.address, token=None, key="teacher", quiet=0.5) for one in servers]
        how: dict[str, Any] = {"patience": 5.0, **options}
        scorer = Scorer(remotes, loaded.policy, loaded.store, **how)
        stack.callback(scorer.close)
        yield scorer, servers


def wanted(scorer: Scorer, questions: Sequence[Any]) -> list[list[list[list[float]]]]:
    out: list[list[list[list[float]]]] = []
    for prompt, answers in questions:
        patches = scorer.patches(prompt, [handle.key for handle in prompt.media])
        out.append([made_up_scores(scorer.inputs.placed(prompt), patches, ids).tolist() for ids in answers])
    return out


def scored(scorer: Scorer, questions: Sequence[Any]) -> list[list[list[list[float]]]]:
    return [[one.tolist() for one in group] for group in scorer.score(questions, **HOW)]


def test_prompts_are_sent_once_each_and_in_turn(loaded: tiny.Tiny, teacher: Any, questions: list[Any]) -> None:
    with asking(loaded, teacher, teacher) as (scorer, servers):
        assert scorer.open()["architecture"] == "Model"
        assert scorer.fingerprint == "of the teacher"
        assert scored(scorer, questions) == wanted(scorer, questions)
        asked = [ask for one in servers for ask in one.engine.scored]
        assert len(asked) == len(questions)
        assert min(len(one.engine.scored) for one in servers) > 0
        assert {(ask.temperature, ask.forbidden) for ask in asked} == {(0.7, (2, 3))}
        assert scorer.score([], **HOW) == []


def test_a_medium_goes_to_a_server_once_and_again_where_it_was_forgotten(loaded: tiny.Tiny, teacher: Any, questions: list[Any]) -> None:
    with asking(loaded, teacher) as (scorer, (server,)):
        scorer.open()
        scorer.score(questions, **HOW)
        sent: list[str] = []
        patches = scorer.patches
        scorer.patches = lambda prompt, keys: (sent.extend(keys), patches(prompt, keys))[1]  # pyright: ignore
        scorer.score(questions, **HOW)
        assert sent == []
        server.desk.media = endpoint_module.MediaMemory()
        assert scored(scorer, questions) == wanted(scorer, questions)
        assert sent != []


@pytest.mark.parametrize("fault", [cut_off, garbage, silence])
def test_a_lost_reply_is_asked_for_elsewhere(loaded: tiny.Tiny, teacher: Any, questions: list[Any], fault: Any) -> None:
    with asking(loaded, teacher, teacher) as (scorer, servers):
        scorer.open()
        servers[0].faults += [fault]
        assert scored(scorer, questions) == wanted(scorer, questions)
        assert servers[0].faults == []


def test_a_server_that_is_killed_leaves_its_prompts_to_the_other(loaded: tiny.Tiny, teacher: Any, questions: list[Any]) -> None:
    with asking(loaded, teacher, teacher) as (scorer, servers):
        scorer.open()
        servers[0].kill()
        assert scored(scorer, questions) == wanted(scorer, questions)
        assert servers[0].engine.scored == []


def test_without_any_server_the_run_ends_with_69(loaded: tiny.Tiny, teacher: Any, questions: list[Any]) -> None:
    with asking(loaded, teacher, patience=0.3) as (scorer, (server,)):
        scorer.open()
        server.kill()
        with pytest.raises(
            RemoteError, match=r"no server of the teacher for 0.3 s \(teacher.patience\): 127.*connection.*same command"
        ) as found:
            scorer.score(questions, **HOW)
        assert found.value.exit_code == 69
        with pytest.raises(RemoteError, match="no server of the teacher"):
            scorer.open()


def test_a_run_that_is_asked_to_stop_does_not_wait(loaded: tiny.Tiny, teacher: Any, questions: list[Any]) -> None:
    with asking(loaded, teacher, stop=lambda: True, patience=60.0) as (scorer, (server,)):
        scorer.open()
        server.kill()
        with pytest.raises(Preempted, match="waiting for a server of the teacher"):
            scorer.score(questions, **HOW)


def test_what_no_server_takes_ends_with_the_rows_name(loaded: tiny.Tiny, teacher: Any, questions: list[Any]) -> None:
    with asking(loaded, teacher) as (scorer, (server,)):
        scorer.open()

        async def refuse(*given: Any) -> list[bytes]:
            raise endpoint_module.RefusalError("refused", "ValueError: no")

        server.engine.scores = refuse  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(EngineError, match=r"none scores the answers to 'text', 127.*ValueError: no"):
            scorer.score(questions[:1], **HOW)


def test_a_prompt_that_is_too_long_is_named_before_it_is_sent(loaded: tiny.Tiny, teacher: Any, questions: list[Any]) -> None:
    with asking(loaded, teacher) as (scorer, (server,)):
        scorer.open()
        scorer.remotes[0].facts["max_model_len"] = len(questions[0][0].ids) + 2
        with pytest.raises(ConfigError, match=r"has room for \d+ tokens, and row 'text' with its answer needs \d+.*--max-model-len"):
            scorer.score(questions[:1], **HOW)
        assert server.engine.scored == []


# ---- who is refused ----------------------------------------------------------------------------------------------------


def test_a_server_that_began_anew_with_another_model_is_refused(loaded: tiny.Tiny, teacher: Any, questions: list[Any]) -> None:
    with asking(loaded, teacher) as (scorer, (server,)):
        scorer.open()
        server.desk.teacher = {**teacher, "fingerprint": "of another"}
        with pytest.raises(ConfigError, match=r"teacher\.servers: 127.* has another teacher than the run was begun with"):
            scorer.score(questions, **HOW)
        assert server.engine.scored == []


def test_servers_of_different_teachers_are_refused(loaded: tiny.Tiny, teacher: Any) -> None:
    with (
        asking(loaded, teacher, {**teacher, "fingerprint": "of another"}) as (scorer, _),
        pytest.raises(ConfigError, match="another teacher"),
    ):
        scorer.open()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocabulary": "other", "ids": 7}, r"its tokenizer has 7 ids and that of model.path \d+, and they do not mean the same"),
        ({"pixels": {"image_mean": [0.5, 0.5, 0.5]}}, r"image_mean of its processor is \[0\.5, 0\.5, 0\.5\], and \[.*\] for the policy"),
    ],
)
def test_a_teacher_that_reads_otherwise_is_refused(loaded: tiny.Tiny, teacher: Any, changes: Any, said: str) -> None:
    theirs = {**teacher, **changes, "pixels": {**teacher["pixels"], **changes.get("pixels", {})}}
    with asking(loaded, theirs) as (scorer, _), pytest.raises(ConfigError, match=rf"teacher\.servers: 127.*{said}"):
        scorer.open()


def test_servers_for_rollouts_and_of_teachers_are_told_apart(loaded: tiny.Tiny, teacher: Any) -> None:
    with asking(loaded, None) as (scorer, _), pytest.raises(ConfigError, match="has no teacher: its weights come from trainers"):
        scorer.open()
    with asking(loaded, teacher) as (scorer, _):
        (remote,) = scorer.remotes
        needed = Needed(architecture="Model", dtype="float32", length=10)
        with pytest.raises(ConfigError, match=r"rollout\.vllm\.servers: 127.* is a teacher's server"):
            Fleet([remote], needed, patience=1.0).greet()
        lost = remote.post("weights/begin", body_message({"load": "a", "line": "b"}))
        assert isinstance(lost, Lost)
        assert lost.reason == "teacher"


def test_a_server_knows_its_model_by_all_of_its_files(files: Path, loaded: tiny.Tiny, tmp_path: Path) -> None:
    import shutil

    told = identity_of(str(files / "model"), "float32")
    assert problem_of(told, read_by(loaded.bundle, timed=True)) is None
    other = tmp_path / "other"
    shutil.copytree(files / "model", other)
    assert identity_of(str(other), "float32") == told
    assert identity_of(str(other), "bfloat16")["fingerprint"] != told["fingerprint"]
    weights = next(other.glob("*.safetensors"))
    raw = bytearray(weights.read_bytes())
    raw[len(raw) // 2] ^= 1
    weights.write_bytes(raw)
    assert identity_of(str(other), "float32")["fingerprint"] != told["fingerprint"]
    (other / "vlmrl.json").write_text('{"positions": "grid"}')
    with pytest.raises(ConfigError, match="it was trained with positions 'grid'"):
        identity_of(str(other), "float32")
    with pytest.raises(ConfigError, match="is no folder here"):
        identity_of(str(tmp_path / "none"), "float32")


# ---- messages ----------------------------------------------------------------------------------------------------------


def ask(**changes: Any) -> ScoreRequest:
    given: dict[str, Any] = {"placed": Placed(ids=(5, 6, 7)), "teacher": "t", "temperature": 0.7, "forbidden": (1,)}
    return ScoreRequest(**(given | changes))


def test_a_question_and_its_reply_come_out_as_they_went_in() -> None:
    patches = {"k": np.arange(24, dtype=np.uint8).reshape(2, 12)}
    got, ids, seen = score_from(score_message(ask(), ANSWERS, patches))
    assert got == ask()
    assert [of.tolist() for of in ids] == [of.tolist() for of in ANSWERS]
    assert np.array_equal(seen["k"], patches["k"])
    scores = [(-1 / (of + 3)).astype(np.float32) for of in ANSWERS]
    reply = reply_from(body_message(scores_message(ask(), [of.tobytes() for of in scores])))
    assert all(np.array_equal(a, b) for a, b in zip(scores_from(reply, ask(), ANSWERS), scores, strict=True))


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [np.zeros((0, 1), dtype=np.int32)],
        [np.zeros((2, 1), dtype=np.int64)],
        [np.zeros(3, dtype=np.int32)],
        [np.full((1, 1), -1, np.int32)],
    ],
)
def test_ids_that_are_none_are_refused(ids: list[Any]) -> None:
    with pytest.raises(WireError, match="no ids are to be scored"):
        score_from(score_message(ask(), ids, {}))


def test_what_is_no_question_is_refused() -> None:
    for wrong in (ask(temperature=0.0), ask(placed=Placed(ids=()))):
        with pytest.raises(WireError):
            score_from(score_message(wrong, ANSWERS, {}))
    with pytest.raises(WireError):
        score_from(b"{}")


@pytest.mark.parametrize(
    "changes",
    [{"teacher": "u"}, {"prompt": "x"}, {"scores": []}, {"scores": ["AAAA", "!"]}, {"scores": ["AAAA", "AAAA"]}, {"scores": None}],
)
def test_a_reply_to_another_question_is_none(changes: dict[str, Any]) -> None:
    scores = [np.zeros(of.shape, dtype=np.float32).tobytes() for of in ANSWERS]
    with pytest.raises(WireError):
        scores_from({**scores_message(ask(), scores), **changes}, ask(), ANSWERS)
