"""What the algorithm between rewards and gradient costs: every registered advantage, shaping, selection, credit and the packing.

    python -m benchmarks.parts.algorithms [--rollouts 4096 --tokens 2048 --group 16 --repeats 5]

One process, one thread, no model. Every method gets the same step: groups of `group` rollouts in four tasks, three reward columns,
answers of uneven length up to `tokens`, all optional inputs filled. A method with a memory is timed with the update of its memory.
Writes docs/benchmarks/algorithms.md.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import ROOT, command_line, how_measured
from vlmrl.algo import registries
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.policy.pack import Row

COLUMNS = ("exact", "iou", "format")
PROMPT_TOKENS = 1024
MICRO_TOKENS = 16384
LIMIT_MS = 1000.0
"""What no method may take."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Milliseconds of one call: median, least and greatest."""

    slot: str
    name: str
    median: float
    low: float
    high: float


def make_inputs(rollouts: int, tokens: int, group: int, seed: int) -> tuple[AdvantageInputs, torch.Tensor]:
    """A step of random rewards and lengths, and the mask of its answers [N, T]. Every fifth rollout shares its answer's beginning."""
    draw = torch.Generator().manual_seed(seed)
    group_N = torch.arange(rollouts) // group
    exact_N = (torch.rand(rollouts, generator=draw) < 0.4).double()
    rewards_NK = torch.stack([exact_N, torch.rand(rollouts, generator=draw).double(), torch.ones(rollouts).double()], dim=1)
    length_N = torch.randint(tokens // 8, tokens + 1, (rollouts,), generator=draw)
    ids_NT = torch.randint(0, 32000, (rollouts, tokens), generator=draw)
    shared_N = torch.arange(rollouts) % 5 == 0
    ids_NT[shared_N, : tokens // 4] = ids_NT[0, : tokens // 4]
    x = AdvantageInputs(
        reward_N=rewards_NK.sum(1),
        rewards_NK=rewards_NK,
        valid_N=torch.ones(rollouts, dtype=torch.bool),
        group_N=group_N,
        task_N=group_N % 4,
        on_policy_N=torch.arange(rollouts) % group != group - 1,
        length_N=length_N,
        columns=COLUMNS,
        tasks=("counting", "boxes", "time", "choice"),
        weights_K=torch.ones(3, dtype=torch.float64),
        memory={},
        provided={
            "answer_N": torch.randint(0, 4, (rollouts,), generator=draw),
            "logp_N": -torch.rand(rollouts, generator=draw).double() * 50,
            "baseline_N": torch.rand(rollouts // group + 1, generator=draw).double()[group_N],
            "truncated_N": length_N == tokens,
            "progress": torch.tensor(0.5, dtype=torch.float64),
            "trajectory_N": torch.arange(rollouts),
            "consistency_N": torch.rand(rollouts, generator=draw).double(),
            "ids_NT": ids_NT,
            "turn_N": torch.zeros(rollouts, dtype=torch.int64),
            "state_N": group_N,
            "node_N": torch.arange(rollouts),
            "sample_N": group_N,
            "question_N": torch.zeros(rollouts, dtype=torch.int64),
            "reliance_N": torch.rand(rollouts, generator=draw).double(),
            "belief_N": torch.rand(rollouts, generator=draw).double(),
            "paragraph_NT": (torch.arange(tokens) // (tokens // 4)).expand(rollouts, tokens),
            "logp_NT": -torch.rand(rollouts, tokens, generator=draw) * 5,
            "logp_ref_NT": -torch.rand(rollouts, tokens, generator=draw) * 5,
            "entropy_NT": torch.rand(rollouts, tokens, generator=draw) * 2,
        },
    )
    return x, torch.arange(tokens)[None] < length_N[:, None]


def arguments_of(registry: Any, name: str) -> dict[str, Any]:
    """What a method must be given: a column for each required argument, the largest reward for those that ask for it."""
    given: dict[str, Any] = {p.name: COLUMNS[0] for p in registry.get(name).parameters.values() if p.required}
    known = registry.get(name).parameters
    return given | {key: value for key, value in {"r_max": 3.0, "length": 1024}.items() if key in known}


def timed(call: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Milliseconds of a call: median, least, greatest. One call before does not count."""
    call()
    seconds: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3, min(seconds) * 1e3, max(seconds) * 1e3


def advantage_call(name: str, x: AdvantageInputs) -> Callable[[], object]:
    """One step of an advantage: with the state of the step before and its update, where it has a memory."""
    entry, arguments = registries.advantage.get(name), arguments_of(registries.advantage, name)
    method, update = registries.advantage.bind(name, arguments), entry.extra.get("remembers")
    if update is None:
        return lambda: method(x)
    known = inspect.signature(update).parameters
    own = {key: value for key, value in arguments.items() if key in known}
    before = update({}, x, **own)
    later = replace(x, memory={key: torch.tensor(value, dtype=torch.float64) for key, value in before.items()})
    return lambda: (method(later), update(before, later, **own))


def method_calls(x: AdvantageInputs, mask_NT: torch.Tensor) -> list[tuple[str, str, Callable[[], object]]]:
    """(slot, name, one call) of every registered method that sees a whole step."""
    calls: list[tuple[str, str, Callable[[], object]]] = []
    calls += [("advantage", name, advantage_call(name, x)) for name in registries.advantage.names()]
    for name in registries.reward_shaping.names():
        shape = registries.reward_shaping.bind(name, arguments_of(registries.reward_shaping, name))
        calls.append(("shape", name, lambda shape=shape: shape(x.rewards_NK, x.valid_N, x)))
    for name in registries.rollout_filter.names():
        select = registries.rollout_filter.bind(name, arguments_of(registries.rollout_filter, name))
        calls.append(("select", name, lambda select=select: select(x)))
    adv_N = registries.advantage.bind("grpo", {})(x)
    for name in registries.credit.names():
        credit = registries.credit.bind(name, arguments_of(registries.credit, name))
        calls.append(("credit", name, lambda credit=credit: credit(x, adv_N, mask_NT)))
    for name in registries.reducer.names():
        reducer = registries.reducer.bind(name, arguments_of(registries.reducer, name))
        calls.append(("reduce", name, lambda reducer=reducer: reducer(mask_NT)))
    return calls


def rows_of(x: AdvantageInputs, group: int) -> list[Row]:
    """The rollouts as rows with a text prompt per group."""
    from vlmrl.types import Prompt, Sample

    ids, lengths = x.provided["ids_NT"].tolist(), x.length_N.tolist()
    samples = [
        Sample(id=str(n), task="t", answer_type="exact_text", question="?", media=(), answer="", gt={}) for n in range(0, len(ids), group)
    ]
    prompts = [Prompt(sample=one, ids=tuple(range(PROMPT_TOKENS)), media=(), spans=(), answer_format="think_answer") for one in samples]
    return [Row(index=n, group=n // group, prompt=prompts[n // group], response=tuple(ids[n][:length])) for n, length in enumerate(lengths)]


def packing_calls(rows: Sequence[Row]) -> list[tuple[str, str, Callable[[], object]]]:
    """Splitting a step into micro-batches and making their tensors, one at a time as the update does."""
    from vlmrl.policy.forward import LAYOUTS
    from vlmrl.policy.pack import PositionSpec, response_mask
    from vlmrl.train.stage.providers.tokens import response_ids

    cpu = torch.device("cpu")
    spec = PositionSpec(merge_size=2, tokens_per_second=2.0, rule="max")
    width = max(len(row.response) for row in rows)

    def all_of(name: str) -> None:
        layout = LAYOUTS[name]
        for places in layout.split(rows, MICRO_TOKENS):
            layout.pack([rows[place] for place in places], spec, cpu, pad_id=0)

    calls: list[tuple[str, str, Callable[[], object]]] = [("packing", name, lambda name=name: all_of(name)) for name in LAYOUTS]
    return [*calls, ("packing", "mask and ids of the answers", lambda: (response_mask(rows), response_ids(rows, width)))]


def document(costs: Sequence[Cost], args: argparse.Namespace) -> str:
    """The page."""
    lines = [
        "# What the algorithm costs",
        "",
        f"Milliseconds for one step of {args.rollouts:,} rollouts of up to {args.tokens:,} tokens (groups of {args.group}): one thread,",
        "no model.",
        f"Median of {args.repeats} calls, least and greatest in brackets.",
        "",
    ]
    for slot in dict.fromkeys(cost.slot for cost in costs):
        lines += [f"## {slot}", "", "| method | ms |", "| --- | --- |"]
        lines += [f"| {c.name} | {c.median:.1f} ({c.low:.1f}..{c.high:.1f}) |" for c in costs if c.slot == slot]
        lines.append("")
    slow = [f"{c.slot} {c.name}" for c in costs if c.median > LIMIT_MS]
    lines += [
        f"Over {LIMIT_MS:.0f} ms: {', '.join(slow) if slow else 'none'}.",
        "",
        f"Packing counts all micro-batches of the step, with prompts of {PROMPT_TOKENS:,} tokens and {MICRO_TOKENS:,} tokens in a packed",
        "row; the update makes them one at a time, so this is spread over its forward and backward passes.",
        "",
        *how_measured(command_line(), libraries=("torch",)),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", type=Path, default=ROOT / "docs/benchmarks/algorithms.md")
    args = parser.parse_args()
    from vlmrl import fs
    from vlmrl.methods import registries as load_all

    load_all()
    torch.set_num_threads(1)
    x, mask_NT = make_inputs(args.rollouts, args.tokens, args.group, seed=0)
    costs: list[Cost] = []
    for slot, name, call in [*method_calls(x, mask_NT), *packing_calls(rows_of(x, args.group))]:
        median, low, high = timed(call, args.repeats)
        costs.append(Cost(slot=slot, name=name, median=median, low=low, high=high))
        print(f"{slot} {name}: {median:.1f} ms", flush=True)
    fs.mkdir(args.write.parent)
    fs.write_text(args.write, document(costs, args))
    print(args.write)


if __name__ == "__main__":
    main()
