"""rewards.run.foreign: functions of TRL, verl, EasyR1 and ms-swift run unchanged, with what they get there."""

from __future__ import annotations

import dataclasses
import sys
import textwrap

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.run.contract import ContractError
from vlmrl.rewards.run.place import place
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.rewards.run.workers import RewardPool, WorkerReward, WorkerSettings
from vlmrl.types import MediaHandle, MediaRef, Turn
from vlmrl.zoo.rewards.run.foreign import python

CTX = RewardContext(progress=0.5)
ROW = dataclasses.replace(
    sample("3.0 to 5.0", gt={"time": [3.0, 5.0]}, id="row-7", meta={"level": 2, "completions": "a column with a bad name"}),
    media=(MediaRef(kind="video", path="clips/a.mp4"),),
    media_root="/data",
)


def rows(*texts, of=ROW):
    return group(texts, of)


@pytest.fixture
def file(tmp_path):
    def write(code, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        return str(path)

    return write


def test_trl_gets_what_trl_gives(file):
    path = file("""
        import json
        SEEN = {}
        def fn(prompts, completions, completion_ids, solution, level, time, media, log_metric, **kwargs):
            SEEN.update(locals())
            log_metric("x", 1.0)
            return [1.0 if c[0]["content"] == solution[i] else None for i, c in enumerate(completions)]
    """)
    assert python(rows("3.0 to 5.0", "x"), CTX, function=f"{path}:fn", form="trl") == [1.0, None]
    seen = next(m for n, m in sys.modules.items() if n.startswith("vlmrl_user_") and getattr(m, "__file__", "") == path).SEEN
    shown = [{"type": "video"}, {"type": "text", "text": "When?"}]
    assert seen["prompts"] == [[{"role": "user", "content": shown}]] * 2
    assert seen["completions"] == [[{"role": "assistant", "content": "3.0 to 5.0"}], [{"role": "assistant", "content": "x"}]]
    assert seen["completion_ids"] == [list(map(ord, "3.0 to 5.0")), [ord("x")]]
    assert (seen["solution"], seen["level"], seen["time"]) == (["3.0 to 5.0"] * 2, [2, 2], [[3.0, 5.0]] * 2)
    assert seen["media"] == [[{"kind": "video", "path": "/data/clips/a.mp4"}]] * 2
    assert {"id", "task", "problem", "answer", "log_extra"} <= set(seen["kwargs"])
    assert "trainer_state" not in seen["kwargs"]


def test_trl_gets_the_earlier_turns_too(file):
    path = file("""
        SEEN = {}
        def fn(prompts, completions, messages=None, **kwargs):
            SEEN.update(locals())
            return [1.0] * len(completions)
    """)
    turn = Turn(question="Who?", answer="A cat.", media=1, question_first=True)
    told = dataclasses.replace(ROW, media=(MediaRef(kind="image", path="b.png"), *ROW.media), history=(turn,))
    python(rows("x", of=told), CTX, function=f"{path}:fn", form="trl")
    seen = next(m for n, m in sys.modules.items() if n.startswith("vlmrl_user_") and getattr(m, "__file__", "") == path).SEEN
    assert seen["prompts"][0] == [
        {"role": "user", "content": [{"type": "text", "text": "Who?"}, {"type": "image"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
        {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "When?"}]},
    ]


def test_trl_with_plain_texts_few_parameters_and_async(file):
    path = file("""
        def few(prompts, completions, level):
            return [len(p) + len(c) + n for p, c, n in zip(prompts, completions, level)]
        async def later(completions, prompts, *, bonus=0.0):
            return [len(c) + bonus for c in completions]
        def needs_more(prompts, completions, trainer_state):
            return []
    """)
    assert python(rows("ab"), CTX, function=f"{path}:few", chat=False) == [5 + 2 + 2]
    assert python(rows("abc"), CTX, function=f"{path}:later", chat=False, options={"bonus": 0.5}) == [3.5]
    with pytest.raises(TypeError, match="trainer_state"):
        python(rows("ab"), CTX, function=f"{path}:needs_more")


def test_media_say_what_was_processed(file):
    path = file("def fn(completions, prompts, media):\n    return [m[0]['tokens'] + m[0]['grid_thw'][2] for m in media]\n")
    handle = MediaHandle(kind="video", key="k", grid_thw=(2, 4, 6), tokens=12)
    one = rows("a")
    one = dataclasses.replace(one, prompt=dataclasses.replace(one.prompt, media=(handle,)))
    assert python(one, CTX, function=f"{path}:fn") == [18.0]


def test_media_say_of_which_pictures_a_video_is(file):
    path = file("""
        def fn(completions, prompts, media):
            folder, pictures = media[0]
            assert folder == {"kind": "video", "path": "/data/f", "fps": 2.0}, folder
            assert pictures["frames"] == ["/data/1.png", "/data/2.png"] and pictures["times"] == [0.0, 0.5], pictures
            return [1.0]
    """)
    frames = tuple(MediaRef(kind="image", path=f"{i}.png") for i in (1, 2))
    both = (MediaRef(kind="video", path="f", fps=2.0), MediaRef(kind="video", path="1.png", frames=frames, times=(0.0, 0.5)))
    assert python(rows("a", of=dataclasses.replace(ROW, media=both)), CTX, function=f"{path}:fn") == [1.0]


def test_verl(file):
    path = file("""
        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            assert data_source == "geo" and extra_info == {"index": 4}, (data_source, extra_info)
            return float(solution_str == ground_truth)
        def as_dict(data_source, solution_str, ground_truth, extra_info, scale):
            assert data_source == "temporal_grounding" and extra_info["level"] == 2 and ground_truth == "3.0 to 5.0"
            return {"score": scale * len(solution_str), "acc": 1.0}
        def no_score(data_source, solution_str, ground_truth, extra_info):
            return {"acc": 1.0}
    """)
    geo = sample("x", meta={"data_source": "geo", "reward_model": {"ground_truth": "42"}, "extra_info": {"index": 4}})
    assert python(rows("42", "41", of=geo), CTX, function=f"{path}:compute_score", form="verl") == [1.0, 0.0]
    assert python(rows("ab"), CTX, function=f"{path}:as_dict", form="verl", options={"scale": 0.5}) == [1.0]
    with pytest.raises(ContractError, match=r"mine.py:no_score \(form verl\) on row 'row-7': returned a dict without 'score' .*'acc'"):
        python(rows("ab"), CTX, function=f"{path}:no_score", form="verl")


EASYR1 = """
    REWARD_NAME = "mine"
    REWARD_TYPE = "{kind}"
    def compute_score(reward_{inputs}, format_weight: float = 0.1):
        def one(r):
            assert set(r) == {{"response", "response_length", "ground_truth"}} and r["response_length"] == len(r["response"])
            right = float(r["response"] == r["ground_truth"])
            return {{"overall": (1 - format_weight) * right, "format": 0.0, "accuracy": right}}
        return {result}
"""


@pytest.mark.parametrize(
    ("kind", "inputs", "result"),
    [("batch", "inputs", "[one(r) for r in reward_inputs]"), ("sequential", "input", "one(reward_input)")],
)
def test_easyr1(file, kind, inputs, result):
    path = file(EASYR1.format(kind=kind, inputs=inputs, result=result), f"{kind}.py")
    call = {"function": f"{path}:compute_score", "form": "easyr1"}
    assert python(rows("3.0 to 5.0", "x"), CTX, **call) == [0.9, 0.0]
    assert python(rows("3.0 to 5.0", "x"), CTX, **call, options={"format_weight": 0.5}, batch=kind == "batch") == [0.5, 0.0]


def test_easyr1_without_a_type_is_a_batch_and_must_give_dicts(file):
    path = file("""
        def batch(reward_inputs): return [{"overall": 1} for _ in reward_inputs]
        def numbers(reward_inputs): return [1.0 for _ in reward_inputs]
        def nothing(reward_inputs): return None
    """)
    assert python(rows("a", "b"), CTX, function=f"{path}:batch", form="easyr1") == [1, 1]
    with pytest.raises(ContractError, match=r"returned float 1\.0, expected a dict with 'overall'"):
        python(rows("a"), CTX, function=f"{path}:numbers", form="easyr1")
    with pytest.raises(ContractError, match="returned NoneType"):
        python(rows("a"), CTX, function=f"{path}:nothing", form="easyr1")


def test_swift_classes_instances_and_entries(file, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "swift"]:
        monkeypatch.delitem(sys.modules, name)
    path = file("""
        from swift.plugin import ORM, orms
        class Mine(ORM):
            def __init__(self, scale=1.0):
                super().__init__()
                self.scale = scale
            def __call__(self, completions, solution, **kwargs):
                assert kwargs["messages"][0][-1] == {"role": "assistant", "content": completions[0]}
                return [self.scale * (c == s) for c, s in zip(completions, solution)]
        orms["mine"] = Mine
        made = Mine(4.0)
    """)
    texts = rows("3.0 to 5.0", "x")
    assert python(texts, CTX, function=f"{path}:Mine", form="swift") == [1.0, 0.0]
    assert python(texts, CTX, function=f"{path}:Mine", form="swift", options={"scale": 2.0}) == [2.0, 0.0]
    assert python(texts, CTX, function=f"{path}:mine", form="swift") == [1.0, 0.0]
    assert python(texts, CTX, function=f"{path}:made", form="swift") == [4.0, 0.0]


def test_ours_from_an_installed_module():
    texts = rows("<think>a</think><answer>3 to 5</answer>", "x")
    assert python(texts, CTX, function="vlmrl.rewards.format:format_reward", form="ours") == [1.0, 0.0]


def test_numbers_of_numpy_are_floats(file):
    path = file("import numpy as np\ndef fn(prompts, completions): return [np.float32(0.5), np.int64(2), np.float64(0.1), 1, None]\n")
    values = python(rows(*"abcde"), CTX, function=f"{path}:fn")
    assert values == [0.5, 2.0, 0.1, 1, None]
    assert [type(v) for v in values] == [float, float, float, int, type(None)]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("[1.0]", "returned 1 values for 2 rollouts"),
        ("[1.0] * 3", "returned 3 values for 2 rollouts"),
        ("[1.0, float('nan')]", "value 1 is not a finite float"),
        ("[1.0, np.float32('nan')]", "value 1 is not a finite float"),
        ("[float('-inf'), 1.0]", "value 0 is not a finite float"),
        ("[1.0, True]", "value 1 is bool True"),
        ("[1.0, np.bool_(True)]", "value 1 is bool"),
        ("[1.0, '1']", "value 1 is str '1'"),
        ("[1.0, np.zeros(1)]", "value 1 is ndarray"),
        ("torch.zeros(2)", "returned Tensor, expected a list"),
        ("[1.0, torch.zeros(())]", "value 1 is Tensor"),
        ("np.zeros(2)", "returned ndarray, expected a list"),
        ("'11'", "returned str"),
        ("None", "returned NoneType"),
        ("{0: 1.0}", "returned dict"),
        ("(x for x in [1.0, 1.0])", "returned generator"),
    ],
)
def test_a_broken_contract_names_function_row_and_place(file, returned, says):
    path = file(f"import numpy as np\nimport torch\ndef fn(prompts, completions): return {returned}\n")
    with pytest.raises(ContractError) as caught:
        python(rows("a", "b"), CTX, function=f"{path}:fn")
    assert str(caught.value).startswith(f"{path}:fn (form trl) on row 'row-7': {says}")
    runner = RewardRunner([("mine", 1.0, lambda g, c: python(g, c, function=f"{path}:fn"))])
    assert runner.score(rows("a", "b"), CTX).scores.reasons == {"mine/contract": 2}
    assert runner.first_fault["mine"] == str(caught.value)


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        ("fn", ImportError, "does not name a function"),
        (":fn", ImportError, "does not name a function"),
        ("no_such_module_here:fn", ImportError, "no_such_module_here"),
        ("no_such_file.py:fn", ImportError, "there is no file"),
        ("vlmrl.rewards.format:nobody", AttributeError, "has no 'nobody'"),
        ("vlmrl.rewards.run.runner:JUNK", TypeError, "is a tuple, not a function"),
    ],
)
def test_what_cannot_be_called_is_said(function, error, says):
    with pytest.raises(error, match=says):
        python(rows("a"), CTX, function=function)


def test_two_files_of_one_name_stay_apart_and_a_broken_one_is_tried_again(tmp_path):
    for n in (1, 2):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "r.py").write_text(f"def fn(prompts, completions): return [{n}.0]\n", encoding="utf-8")
    assert [python(rows("a"), CTX, function=f"{tmp_path}/{n}/r.py:fn") for n in (1, 2)] == [[1.0], [2.0]]
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('at import')\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(ValueError, match="at import"):
            python(rows("a"), CTX, function=f"{broken}:fn")


def test_python_runs_in_a_worker_by_default_with_its_faults(file):
    path = file("""
        import os
        def fn(prompts, completions, solution):
            if completions[0][0]["content"] == "die":
                os.abort()
            return [float(c[0]["content"] == s) for c, s in zip(completions, solution)]
        def short(prompts, completions): return []
    """)
    with RewardPool(WorkerSettings(count=1, deadline=60.0)) as pool:
        mine = place("python", {"function": f"{path}:fn"}, isolate=None, pool=pool)
        short = place("python", {"function": f"{path}:short"}, isolate=None, pool=pool)
        assert isinstance(mine, WorkerReward)
        runner = RewardRunner([("right", 1.0, mine), ("short", 1.0, short)], pool=pool, entries={"right": "python", "short": "python"})
        scores = [runner.score(rows(*texts), CTX).scores for texts in (("3.0 to 5.0", "x"), ("die", "x"))]
        assert scores[0].rewards_GK == ((1.0, None), (0.0, None))
        assert scores[0].reasons == {"short/contract": 2}
        assert scores[1].reasons == {"right/crashed": 2, "short/contract": 2}
        assert f"{path}:short (form trl) on row 'row-7': returned 0 values for 2 rollouts" in runner.first_fault["short"]
