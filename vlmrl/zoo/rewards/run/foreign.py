"""Adapters for reward functions of other trainers (TRL, verl, ...): called with what they get there, in a worker (`rewards.run.workers`).

    rewards:
      - {name: python, label: accuracy, function: my_rewards.py:accuracy_reward, form: trl}
      - {name: python, label: boxes, function: my_pkg.scores:compute_score, form: verl, weight: 0.5}

| form | called with | must return |
|---|---|---|
| `ours` | `(group, ctx)`, as a registered reward | a list: one number or None per rollout |
| `trl` | `prompts, completions, completion_ids` and the row's columns as lists, by keyword; may be `async` | the same |
| `verl` | `data_source, solution_str, ground_truth, extra_info`, once per rollout | a number, or a dict with `score` |
| `easyr1` | a list of dicts `response, response_length, ground_truth` (`REWARD_TYPE = "sequential"`: one each) | dicts with `overall` |
| `swift` | an `ORM` class or instance: `completions` (texts), and the row's columns as lists by keyword | a list of numbers |

A row's columns are its `meta`, its `gt`, and, where these do not have them, `id`, `task`, `answer_type`, `problem` and `question`
(the question), `answer` and `solution` (the gold answer as text). `ground_truth` is the row's own (`ground_truth`, or verl's
`reward_model.ground_truth`) or the gold answer. Numbers of numpy become floats, None means "does not apply to this row"; booleans,
strings, tensors and NaN break the contract. A function that lists its parameters gets the columns that it lists, one with `**kwargs`
gets all, `media` among them: per rollout, what is known of each picture and video (its path and processed size, not its pixels).

Not there: TRL's `trainer_state`, `environments` and the pictures as objects. What is logged through its `log_metric` and `log_extra`
is dropped.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import numbers
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.run.contract import ContractError, contract_problem
from vlmrl.types import Group, Rollout

Form = Literal["ours", "trl", "verl", "easyr1", "swift"]


@reward("python", worker=True, best=None, foreign=True)
def python(
    group: Group,
    ctx: RewardContext,
    *,
    function: str,
    form: Form = "trl",
    chat: bool = True,
    batch: bool | None = None,
    options: dict[str, Any] | None = None,
) -> list[float | None]:
    """A reward function of the user, in the form of TRL, verl, EasyR1 or ms-swift, or in ours.

    Args:
        function: `package.module:name` or `path/to/file.py:name`. For `swift` also a key of the file's `orms`.
        form: whose calling convention it follows.
        chat: `trl`: prompts and completions are lists of messages, as with any data set with pictures there; else texts.
        batch: `easyr1`: one call with all rollouts, or one call each; by default the file's `REWARD_TYPE`, else one call.
        options: further keyword arguments (`reward_kwargs` of verl, `reward_function_kwargs` of EasyR1; for an `ORM` class those of
            its constructor).

    Raises:
        ImportError, AttributeError, TypeError: the function cannot be found, or is none.
        ContractError: it returned something else than its form asks for; names the function, the row and the place.
    """
    extra = dict(options or {})
    target = _target(function, form, tuple(sorted(extra.items())) if form == "swift" else ())
    n = len(group.rollouts)
    try:
        returned = _returned(target, group, ctx, form, chat, batch, extra)
    except ContractError as error:
        raise ContractError(f"{function} (form {form}) on row '{group.prompt.sample.id}': {error}") from error
    values = [_number(v) for v in returned] if isinstance(returned, list | tuple) and form != "ours" else returned
    problem = contract_problem(values, n)
    if problem is not None:
        raise ContractError(f"{function} (form {form}) on row '{group.prompt.sample.id}': {problem}")
    return list(values)


def _returned(
    target: Callable[..., Any], group: Group, ctx: RewardContext, form: Form, chat: bool, batch: bool | None, options: dict[str, Any]
) -> Any:
    """What the function returns, with the scores taken out of dicts."""
    if form == "verl":
        return [_field(r, "score", optional=True) for r in _verl(target, group, options)]
    if form == "easyr1":
        return _easyr1(target, group, _is_batch(target, batch), options)
    if form == "ours":
        returned: Any = target(group, ctx, **options)
    elif form == "trl":
        returned = _trl(target, group, chat, options)
    else:
        columns = _lists(group)
        columns.pop("completions", None)
        returned = target([r.text for r in group.rollouts], **_accepted(target, columns))
    return _run(_awaited(returned)) if inspect.isawaitable(returned) else returned


def _trl(target: Callable[..., Any], group: Group, chat: bool, options: Mapping[str, Any]) -> Any:
    n, texts = len(group.rollouts), [r.text for r in group.rollouts]
    completions: list[Any] = [[{"role": "assistant", "content": text}] for text in texts] if chat else list(texts)
    columns = _lists(group) | {"log_metric": _dropped, "log_extra": _dropped, "completion_ids": [list(r.ids) for r in group.rollouts]}
    columns |= {"prompts": [_prompt(group, chat) for _ in range(n)], "completions": completions}
    return target(**(_accepted(target, columns) | dict(options)))


def _verl(target: Callable[..., Any], group: Group, options: Mapping[str, Any]) -> list[Any]:
    sample = group.prompt.sample
    info = sample.meta.get("extra_info")
    extra: dict[str, Any] = dict(info) if isinstance(info, Mapping) else dict(_columns(group))
    return [
        target(
            data_source=sample.meta.get("data_source", sample.task),
            solution_str=r.text,
            ground_truth=_truth(group),
            extra_info=extra,
            **options,
        )
        for r in group.rollouts
    ]


def _easyr1(target: Callable[..., Any], group: Group, batch: bool, options: Mapping[str, Any]) -> Any:
    truth = _truth(group)
    inputs = [{"response": r.text, "response_length": len(r.ids), "ground_truth": truth} for r in group.rollouts]
    if not batch:
        return [_field(target(one, **options), "overall") for one in inputs]
    returned: Any = target(inputs, **options)
    return [_field(one, "overall") for one in returned] if isinstance(returned, list | tuple) else returned


def _is_batch(target: Callable[..., Any], batch: bool | None) -> bool:
    """EasyR1's files say how they are called; its default is the batch."""
    if batch is not None:
        return batch
    return getattr(sys.modules.get(target.__module__), "REWARD_TYPE", "batch") == "batch"


def _field(returned: Any, key: str, *, optional: bool = False) -> Any:
    """The score within a dict; what is no dict passes where that is allowed, and is refused by the contract where it is not."""
    if isinstance(returned, Mapping):
        if key not in returned:
            raise ContractError(f"returned a dict without '{key}' (it has {sorted(map(str, returned))})")
        return returned[key]
    if not optional and returned is not None:
        raise ContractError(f"returned {type(returned).__name__} {returned!r:.100}, expected a dict with '{key}' per rollout")
    return returned


def _number(value: Any) -> Any:
    """A real number of numpy as a float; all else as it is, for the contract to judge."""
    return float(value) if isinstance(value, numbers.Real) and type(value) not in (bool, int, float) else value


def _columns(group: Group) -> dict[str, Any]:
    """What a row of the data set holds, under the names that other trainers' data sets use."""
    s = group.prompt.sample
    own = {"id": s.id, "task": s.task, "answer_type": s.answer_type, "problem": s.question, "question": s.question}
    return own | {"answer": s.answer, "solution": s.answer} | dict(s.gt) | dict(s.meta)


def _lists(group: Group) -> dict[str, list[Any]]:
    """The columns once per rollout, as a batch holds them, with `media` and the conversation."""
    n = len(group.rollouts)
    out: dict[str, list[Any]] = {name: [value] * n for name, value in _columns(group).items()}
    out["media"] = [_media(group)] * n
    out.setdefault("messages", [_messages(group, r) for r in group.rollouts])
    return out


def _media(group: Group) -> list[dict[str, Any]]:
    """Kind, path and, where it has been processed, tokens and grid (t, h, w in patches) of each medium.

    A video given as pictures has `times` or `fps`, and `frames` with their paths; without `frames`, `path` is their folder."""
    sample, handles = group.prompt.sample, group.prompt.media
    out: list[dict[str, Any]] = [{"kind": ref.kind, "path": str(Path(sample.media_root, ref.path))} for ref in sample.media]
    for one, ref in zip(out, sample.media, strict=True):
        if ref.frames:
            one["frames"] = [str(Path(sample.media_root, frame.path)) for frame in ref.frames]
        if ref.as_frames:
            one |= {"fps": ref.fps} if ref.times is None else {"times": list(ref.times)}
    for one, handle in zip(out, handles, strict=False):  # a prompt that was not encoded (self-test) has no handles
        one |= {"tokens": handle.tokens, "grid_thw": list(handle.grid_thw), "seconds_per_grid": handle.seconds_per_grid}
    return out


def _prompt(group: Group, chat: bool) -> Any:
    sample = group.prompt.sample
    if not chat:
        return sample.asked
    out: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = [{"type": ref.kind} for ref in sample.media]
    for turn in sample.history:
        own, shown, said = shown[: turn.media], shown[turn.media :], [{"type": "text", "text": turn.question}]
        out.append({"role": "user", "content": said + own if turn.question_first else own + said})
        out.append({"role": "assistant", "content": [{"type": "text", "text": turn.answer}]})
    said = [{"type": "text", "text": sample.question}]
    return [*out, {"role": "user", "content": said + shown if sample.question_first else shown + said}]


def _messages(group: Group, rollout: Rollout) -> list[dict[str, str]]:
    sample = group.prompt.sample
    said = [text for turn in sample.history for text in (turn.question, turn.answer)] + [sample.question, rollout.text]
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)]


def _truth(group: Group) -> Any:
    sample = group.prompt.sample
    for place in (sample.gt, sample.meta):
        nested = place.get("reward_model")
        if "ground_truth" in place:
            return place["ground_truth"]
        if isinstance(nested, Mapping) and "ground_truth" in nested:
            return nested["ground_truth"]
    return sample.answer


def _accepted(target: Callable[..., Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that the function lists, or all where it takes `**kwargs`."""
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(columns)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in columns.items() if name in names}


async def _awaited(value: Any) -> Any:
    return await value


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns; also within a running loop, as the cells of a notebook have one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, work).result()


def _dropped(*args: Any, **kwargs: Any) -> None:
    """Stands in for TRL's `log_metric` and `log_extra`."""


def _target(function: str, form: Form, options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """What the recipe names, loaded once per process."""
    key = (function, form, repr(options))
    if key not in _LOADED:
        _LOADED[key] = _find(function, form, dict(options))
    return _LOADED[key]


_LOADED: dict[tuple[str, str, str], Callable[..., Any]] = {}
"""Loaded functions and `ORM` instances. Not state of a score: the same recipe always makes the same."""


def _find(function: str, form: Form, options: dict[str, Any]) -> Callable[..., Any]:
    where, colon, name = function.rpartition(":")
    if not colon or not where or not name:
        raise ImportError(f"'{function}' does not name a function; write package.module:name or path/to/file.py:name")
    if form == "swift":
        _stand_in_for_swift()
    module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    found: Any = module
    known = getattr(module, "orms", {}) if form == "swift" else {}
    if name in known:
        found = known[name]
    else:
        for part in name.split("."):
            if not hasattr(found, part):
                raise AttributeError(f"'{where}' has no '{name}'")
            found = getattr(found, part)
    if form == "swift" and inspect.isclass(found):
        found = found(**options)
    if not callable(found):
        raise TypeError(f"'{function}' is a {type(found).__name__}, not a function")
    return found


def _from_file(path: Path) -> ModuleType:
    """A module from a file. Its name is made of its whole path, so that two files of one name stay apart."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ImportError(f"there is no file '{path}'")
    name = "vlmrl_user_" + "".join(c if c.isalnum() else "_" for c in str(path.with_suffix("")))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.cache
def _stand_in_for_swift() -> None:
    """Where ms-swift is not installed: modules with its `ORM` and `orms`, which a plug-in file imports to derive from and enter in."""
    if importlib.util.find_spec("swift") is not None:
        return

    class ORM:
        def __init__(self, args: Any = None, **kwargs: Any):
            self.args = args

        def __call__(self, **kwargs: Any) -> list[float]:
            raise NotImplementedError

    contents: dict[str, Any] = {"ORM": ORM, "AsyncORM": ORM, "orms": {}}
    for name in ("swift", "swift.plugin", "swift.plugin.orm", "swift.rewards", "swift.rewards.orm"):
        module = ModuleType(name)
        module.__dict__.update(contents | {"__path__": []})
        sys.modules[name] = module
