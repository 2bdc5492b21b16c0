"""All promises of a model, one after the other, and what they admit it to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.errors import ConfigError
from vlmrl.extras.families.conform import company, engine, exact, headers, inputs, refused, shards, turns, whole
from vlmrl.extras.families.conform.check import Check
from vlmrl.extras.families.conform.float64 import throughout
from vlmrl.extras.families.conform.subject import Tried
from vlmrl.extras.families.verdict import installed
from vlmrl.families.base import REPORT

Promise = Callable[[Tried], list[Check]]
PROMISES: dict[str, tuple[str, tuple[Promise, ...], tuple[Promise, ...]]] = {
    "P1": ("ids are the chat template's", (inputs.ids,), ()),
    "P2": ("placeholders are features, and known from headers", (inputs.counts, headers.planned, headers.shards), ()),
    "P3": ("pixels depend on no container, rows on no company", (inputs.pixels,), (company.in_prompt, company.in_batch)),
    "P4": ("features handed over give the logits of pixels", (), (inputs.handed_over,)),
    "P5": ("positions are the core's", (inputs.positions, inputs.forgotten), ()),
    "P6": ("repeat: a padded batch is its rows alone", (), (exact.padded,)),
    "P7": ("fork: a forked cache is rows alone", (), (exact.forked,)),
    "P8": ("shared_prefix: a packed row is rows alone", (exact.recomputed,), (exact.packed,)),
    "P9": ("decoding is model.generate's", (exact.decoded,), ()),
    "P10": ("the head gives the model's logits", (), (exact.head,)),
    "P11": ("parts, adapters, export", (whole.parts, whole.frozen, whole.targets), ()),
    "P12": ("a packed row chooses the experts of rows alone", (whole.experts,), ()),
    "P13": ("the switch for thinking", (whole.thinking,), ()),
    "P15": ("control tokens in a text are refused", (refused.control_tokens,), ()),
    "P16": ("an update of shards is that of one process", (shards.sharded,), ()),
    "P17": ("conversations are laid out and kept, and answers alone are scored", (), (turns.laid_out,)),
}
"""Number -> (what is promised, checks of the model as it is, checks of the model with all of its arithmetic in float64)."""
ENGINES: dict[str, dict[str, tuple[str, tuple[Promise, ...], tuple[Promise, ...]]]] = {
    "vllm": {"P14": (engine.ABOUT, (engine.served,), ()), "P18": (engine.CLIPS, (), ())}
}
"""Engine -> the promises that are tried with it alone, where it is asked for. Those of P18 are checked with P14."""
NOT_RUN = dict.fromkeys(ENGINES["vllm"], "needs --engine vllm, in an environment that has it")
LAYOUTS = {"repeat": "P6", "fork": "P7", "shared_prefix": "P8"}


def tried_with(served: str | None) -> dict[str, tuple[str, tuple[Promise, ...], tuple[Promise, ...]]]:
    """All promises, with those of an engine.

    Raises:
        ConfigError: no such engine.
    """
    if served is not None and served not in ENGINES:
        raise ConfigError(f"--engine: no engine '{served}'; there is {', '.join(ENGINES)}")
    return PROMISES | (ENGINES[served] if served is not None else {})


def wanted(only: str | None, served: str | None = None) -> list[str]:
    """Promises by number, from a list with commas; none for all of them.

    Raises:
        ConfigError: no such promise.
    """
    chosen = [one.strip() for one in (only or "").split(",") if one.strip()]
    known = tried_with(served)
    unknown = [one for one in chosen if one not in known]
    if unknown:
        raise ConfigError(f"--only: no promise {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured."""

    name: str
    facts: dict[str, Any]
    versions: dict[str, str]
    float64: bool
    checks: tuple[Check, ...]
    seconds: dict[str, float]

    @property
    def about(self) -> dict[str, str]:
        """What was tried -> what is promised."""
        return {key: one for key, (one, _, _) in {**PROMISES, **ENGINES["vllm"]}.items() if key in self.seconds}

    def failed(self, promise: str | None = None) -> list[Check]:
        """Checks that are not kept, of one promise or of all."""
        return [c for c in self.checks if not c.ok and promise in (None, c.promise)]

    @property
    def layouts(self) -> list[str]:
        """Layouts that were tried and whose promise is kept in all cases."""
        return [layout for layout, promise in LAYOUTS.items() if promise in self.seconds and not self.failed(promise)]

    def json(self) -> dict[str, Any]:
        """As it is written beside the model."""
        promises = {
            key: {"kept": not self.failed(key), "about": about, "seconds": round(self.seconds[key], 2)} for key, about in self.about.items()
        }
        return {
            "name": self.name,
            "versions": self.versions,
            "float64": self.float64,
            "facts": self.facts,
            "layouts": self.layouts,
            "promises": promises | {key: {"kept": None, "about": why} for key, why in NOT_RUN.items() if key not in self.seconds},
            "checks": [asdict(c) | {"ok": c.ok, "value": c.value if c.value == c.value else None} for c in self.checks],
        }

    def write(self, folder: Path) -> Path:
        """Beside the model."""
        fs.write_text(folder / REPORT, json.dumps(self.json(), indent=1) + "\n")
        return folder / REPORT


def conform(tried: Tried, name: str, only: Sequence[str] = (), served: str | None = None) -> Report:
    """Run the promises, or some of them; with those of an engine where one is named.

    Raises:
        ConfigError: the engine is not there, or has no weights to load.
    """
    checks: list[Check] = []
    seconds: dict[str, float] = {}
    for key, (_, plain, wide) in tried_with(served).items():
        if only and key not in only:
            continue
        begin = time.monotonic()
        for promise in plain:
            checks += promise(tried)
        with throughout(tried.exact):
            for promise in wide:
                checks += promise(tried)
        seconds[key] = time.monotonic() - begin
    return Report(
        name=name,
        facts=asdict(tried.facts) | {"recurrent": len(tried.subject.recurrent)},
        versions={name: installed(name) for name in ("transformers", "torch", *([served] if served else []))},
        float64=tried.exact,
        checks=tuple(checks),
        seconds=seconds,
    )
