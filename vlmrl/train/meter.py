"""What a step cost and how the run is doing: time by phase, tokens, work that caches did or saved, and alarms.

`tokens/*` depend on the rows alone and are equal in a resumed run; `time/*`, `memory/*`, `work/*` and `cache/*` depend on the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.profiler import record_function

from vlmrl.policy.forward import LAYOUTS, TURNS
from vlmrl.policy.pack import Row
from vlmrl.train import dist


class Clock:
    """Adds up seconds by phase since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; phases must not nest. A profiler that runs shows the block under this name."""
        began = time.perf_counter()
        try:
            with record_function(f"phase: {name}"):
                yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def metrics(self) -> dict[str, float]:
        """Report `time/<phase>` and `time/step_total`, in seconds."""
        return {f"time/{name}": value for name, value in self.seconds.items()} | {"time/step_total": time.perf_counter() - self._began}


class TokenCounter:
    """Tokens of the rows that a step trains on, over all ranks."""

    def __init__(self) -> None:
        self._here: dict[str, int] = {}

    def add(self, rows: Sequence[Row], max_tokens: int, *, layout: str = "shared_prefix") -> None:
        """Count one minibatch of this rank. `max_tokens` is the budget of a micro-batch, which decides what is padded. `layout`: the one
        that it trains in."""
        # by object: the rows of a group may be trained under several prompts, with and without a hint
        prompts = {(row.group, id(row.prompt)): len(row.prompt.ids) for row in rows}
        counts = {
            "tokens/prompt": sum(prompts.values()),
            "tokens/response": sum(len(row.response) for row in rows),
            "repeat": repeated(rows, max_tokens),
        } | ({layout: packed(rows, max_tokens)} if layout in TURNS else {})
        self._here = {name: self._here.get(name, 0) + n for name, n in counts.items()}

    def read(self, forward: int) -> dict[str, float]:
        """Report the counts since the last call, summed over all ranks, which must all call this.

        `tokens/prompt` (each prompt once per minibatch), `tokens/response`, `tokens/forward` (what went through the model in the
        update, given for this rank) and `tokens/saved`, what the layout `repeat` would have run more. With chains or trees also
        `tokens/saved_by_chains` or `tokens/saved_by_trees`, what `shared_prefix` would have run more with a row per turn.
        """
        here, self._here = self._here | {"tokens/forward": forward}, {}
        total: dict[str, int] = {}
        for of_rank in dist.gather(here):
            for name, n in of_rank.items():
                total[name] = total.get(name, 0) + n
        saved = total.pop("repeat", 0) - total["tokens/forward"]
        more = {f"tokens/saved_by_{name}": float(total[name] - total["tokens/forward"]) for name in TURNS if name in total}
        names = ("tokens/prompt", "tokens/response", "tokens/forward")
        return {name: float(total.get(name, 0)) for name in names} | {"tokens/saved": float(saved)} | more


def repeated(rows: Sequence[Row], max_tokens: int) -> int:
    """Count the tokens, padding included, that the layout `repeat` runs for these rows."""
    lengths = [len(row.prompt.ids) + len(row.response) for row in rows]
    return sum(max(lengths[place] for place in part) * len(part) for part in LAYOUTS["repeat"].split(rows, max_tokens))


def packed(rows: Sequence[Row], max_tokens: int) -> int:
    """Count the tokens that the layout `shared_prefix` runs for these rows."""
    total = 0
    for part in LAYOUTS["shared_prefix"].split(rows, max_tokens):
        prompts = {(rows[place].group, id(rows[place].prompt)): len(rows[place].prompt.ids) for place in part}
        total += sum(prompts.values()) + sum(len(rows[place].response) for place in part)
    return total


class Counters:
    """Running counts of the process, read as what was added since the last reading."""

    def __init__(self, sources: Mapping[str, Callable[[], float]]):
        self._sources = dict(sources)
        self._last = {name: count() for name, count in self._sources.items()}

    def add(self, name: str, count: Callable[[], float]) -> None:
        """Add a count to those that are read; it begins at its value now."""
        self._sources[name] = count
        self._last[name] = count()

    def read(self) -> dict[str, float]:
        """Report what each source counted since the last call."""
        now = {name: count() for name, count in self._sources.items()}
        out = {name: float(value - self._last[name]) for name, value in now.items()}
        self._last = now
        return out


# ---- alarms ------------------------------------------------------------------------------------------------------------
#
# About a run that goes on but no longer learns what it should: said once in a while, never a stop. They are pure functions of the last
# logged steps. The window is not part of the run's state: it changes nothing that is trained or logged, so a resumed run is the same
# without it, and simply watches anew. Each rule gives alarm -> text, and nothing where all is well.

EARLY = 3
"""Steps after which it is said that nothing can be learned."""
NO_SIGNAL = (
    "there is nothing to learn from; look at answers and their scores, raise rollout.num_generations or rollout.temperature, take easier "
    "rows, or start from a model that solves some of them"
)
WINDOW = 50
"""Steps that are looked at."""
EDGE = 10
"""Steps at either end of the window that are compared with each other."""
FAULTY_STEPS = 3
"""So many of the last `EDGE` steps need a fault before a rise is one."""
TRUNCATED = 0.3
READABLE = 0.5
APART = 0.1
"""Mean |trainer - sampler| log-prob of a token. Rounding makes about 1e-6 in float32 and 0.005 to 0.03 in bfloat16."""
LONGER = 2.0

Window = Sequence[Mapping[str, float]]


def constant_columns(window: Window) -> dict[str, str]:
    """Find reward columns whose mean has not changed within a full window: nothing can be learned from them."""
    if len(window) < WINDOW:
        return {}
    out: dict[str, str] = {}
    for key in window[-1]:
        if key.startswith("rewards/") and key.endswith("/mean"):
            values = [step.get(key) for step in window[-WINDOW:]]
            if all(value == values[-1] for value in values):
                name = key.removeprefix("rewards/").removesuffix("/mean")
                out[f"constant/{name}"] = (
                    f"reward '{name}' has been {values[-1]:.3g} on average for {WINDOW} steps without any change: it teaches nothing; "
                    "look at some answers, at the row's gold, and at its weight"
                )
    return out


def silent_columns(window: Window) -> dict[str, str]:
    """Find reward columns that have judged no rollout since the run was started, or within a window: they count for nothing."""
    if len(window) < EARLY:
        return {}
    keys = [key for key in window[-1] if key.startswith("rewards/") and key.endswith("/judged")]
    names = [key.split("/")[1] for key in keys if all(step.get(key) == 0.0 for step in window)]
    text = "it gave None for each, which means 'cannot judge'; see whether it is for rows like these, and what it reads of them"
    return {f"silent/{name}": f"reward '{name}' has judged no rollout of the last {len(window)} steps: {text}" for name in names}


def no_signal(window: Window) -> dict[str, str]:
    """Report that in no group answers differed in worth: the policy gradient of all these steps is zero."""
    last = window[-EDGE:]
    if len(last) < EARLY or any(step.get("groups_with_signal") != 0.0 for step in last):
        return {}
    return {"signal": f"no group of the last {len(last)} steps had answers that differ in reward ({_means(last)}): {NO_SIGNAL}"}


def no_given_rows(window: Window) -> dict[str, str]:
    """Report that the strategy adds a row to groups (ground truth, demonstration) and no group got one: they train without it."""
    last = window[-EDGE:]
    if len(last) < EARLY or any(step.get("rollout/given_rows") != 0.0 for step in last):
        return {}
    text = f"no group of the last {len(last)} steps got the row that rollout.strategy adds"
    if (share := last[-1].get("completions/format_rate")) is not None:
        text += f", with {share:.0%} of the answers well-formed"
    return {"given": f"{text}; its options say what it adds then"}


def _means(window: Window) -> str:
    """Write the mean of each reward over steps."""
    keys = [key for key in window[-1] if key.startswith("rewards/") and key.endswith("/mean")]
    return ", ".join(f"{key.split('/')[1]} {sum(step.get(key, 0.0) for step in window) / len(window):.3g} on average" for key in keys)


def rising_faults(window: Window) -> dict[str, str]:
    """Report that more rewards fail than did: at least twice as many in the last steps as in the first ones, and in several steps."""
    if len(window) < 2 * EDGE:
        return {}
    per_step = [sum(value for key, value in step.items() if key.startswith("fault/reward/")) for step in window]
    earlier, now = sum(per_step[:EDGE]), sum(per_step[-EDGE:])
    if sum(n > 0 for n in per_step[-EDGE:]) < FAULTY_STEPS or now < 2 * earlier:
        return {}
    last = next(step for step, n in zip(reversed(window), reversed(per_step), strict=True) if n > 0)
    kinds = ", ".join(sorted(k.removeprefix("fault/reward/") for k, v in last.items() if k.startswith("fault/reward/") and v > 0))
    text = f"rewards fail more often: {now:g} rollouts in the last {EDGE} steps, {earlier:g} in the first {EDGE} of {len(window)}"
    return {"faults": f"{text} ({kinds})"}


def apart(window: Window) -> dict[str, str]:
    """Report that the sampler's log-probs are not the trainer's: the rollouts are of another policy than the one that they train."""
    gaps = [step["sampling/logp_gap"] for step in window[-EARLY:] if "sampling/logp_gap" in step]
    if len(gaps) < EARLY or min(gaps) <= APART:
        return {}
    gap = sum(gaps) / len(gaps)
    text = f"log-probs of the sampler and the trainer differ by {gap:.2g} on average, more than rounding makes (0.03 in bfloat16)"
    if age := window[-1].get("rollout/staleness"):
        return {"apart": f"{text}: the answers are {age:g} updates old; lower rollout.staleness or optim.lr if this lasts"}
    advice = "set importance_correction, and find out with model.dtype: float32 or another model.prefix_backend where it comes from"
    return {"apart": f"{text}: {advice}"}


def truncated(window: Window) -> dict[str, str]:
    """Report that a large share of the answers is cut off at the limit of length."""
    share = _mean(window[-EDGE:], "completions/clipped_ratio")
    if share is None or share <= TRUNCATED:
        return {}
    return {"truncated": f"{share:.0%} of the answers of the last {EDGE} steps are cut off; raise rollout.max_new_tokens or reward brevity"}


def unreadable(window: Window) -> dict[str, str]:
    """Report that few answers can be read out of the texts: what is scored is the format and not the task."""
    share = _mean(window[-EDGE:], "completions/parse_rate")
    if share is None or share >= READABLE:
        return {}
    return {"unreadable": f"only {share:.0%} of the texts of the last {EDGE} steps hold an answer that can be read; look at some of them"}


def longer(window: Window) -> dict[str, str]:
    """Report that answers have become much longer within the window."""
    if len(window) < 2 * EDGE:
        return {}
    earlier, now = (_mean(part, "completions/mean_length") for part in (window[:EDGE], window[-EDGE:]))
    if earlier is None or now is None or earlier <= 0 or now <= LONGER * earlier:
        return {}
    return {"longer": f"answers grew from {earlier:.0f} to {now:.0f} tokens on average within {len(window)} steps"}


RULES: tuple[Callable[[Window], dict[str, str]], ...] = (
    constant_columns,
    silent_columns,
    no_signal,
    no_given_rows,
    rising_faults,
    apart,
    truncated,
    unreadable,
    longer,
)


@dataclass(kw_only=True)
class AlarmMonitor:
    """Applies the rules to each step, and says an alarm again only after a window has passed."""

    window: list[Mapping[str, float]] = field(default_factory=list)
    said: dict[str, int] = field(default_factory=dict)
    steps: int = 0

    def see(self, metrics: Mapping[str, float]) -> list[str]:
        """Take a step's logged values, and return the texts of the alarms that are due."""
        self.steps += 1
        self.window = [*self.window, dict(metrics)][-WINDOW:]
        out: list[str] = []
        for rule in RULES:
            for name, text in rule(self.window).items():
                if self.steps - self.said.get(name, -WINDOW) >= WINDOW:
                    self.said[name] = self.steps
                    out.append(text)
        return out


def _mean(steps: Window, key: str) -> float | None:
    """Average over `EDGE` steps; None where there are fewer or one does not have the value."""
    values = [step[key] for step in steps if key in step]
    return sum(values) / EDGE if len(values) == EDGE else None
