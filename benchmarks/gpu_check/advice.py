"""What the lines say about a recipe on this machine: the overrides to take, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.gpu_check.base import Line

SPARE = 0.85
"""Share of what is left beside the state that activations may take."""
ORDER = ("flash", "flex", "two_call", "merge", "dense")
"""Backends from the fastest, for the case that the default one failed."""
STEP = 1024


def advise(lines: Sequence[Line], *, cuda: bool) -> list[tuple[str, str]]:
    """(override of a recipe, why)."""
    by_name = {line.name: line for line in lines}
    out = [_dtype(by_name, cuda), _backend(by_name, cuda)]
    if any(name.startswith("size.") for name in by_name):
        out += [*_memory(by_name, cuda), _engine(by_name)]
    failed = [name for name, line in by_name.items() if name.startswith("resume.") and line.status == "FAIL"]
    if failed:
        out.append(
            ("run.deterministic=true", f"and still not exact here ({', '.join(failed)}): a resumed run will differ from an unbroken one")
        )
    return [item for item in out if item is not None]


def _dtype(lines: Mapping[str, Line], cuda: bool) -> tuple[str, str] | None:
    if not cuda:
        return ("model.dtype=float32", "on a CPU bfloat16 is slower")
    half = [line for name, line in lines.items() if name in ("steps.bfloat16",) or name.startswith("logprobs.bfloat16")]
    if not half:
        return None
    if all(line.status == "ok" for line in half):
        return ("model.dtype=bfloat16", "its steps and log-probs are within their limits")
    return ("model.dtype=float32", f"bfloat16 failed: {', '.join(line.name for line in half if line.status == 'FAIL')}")


def _backend(lines: Mapping[str, Line], cuda: bool) -> tuple[str, str] | None:
    """`auto` where what it takes is sound, else the fastest that is."""
    label = "bfloat16" if cuda else "float32"
    state = {name: lines[f"attention.{name}.{label}"].status for name in ORDER if f"attention.{name}.{label}" in lines}
    if not state:
        return None
    for name in ("types", "lengths"):
        for backend in state:
            other = lines.get(f"{name}.{backend}")
            if other is not None and other.status == "FAIL":
                state[backend] = "FAIL"
    taken = ("merge",) if not cuda else ("flash", "flex")
    first = next((name for name in taken if state.get(name) in ("ok", "FAIL")), "")
    if state.get(first) == "ok":
        return ("model.prefix_backend=auto", f"takes {first}, which is sound here")
    sound = next((name for name in ORDER if state.get(name) == "ok"), None)
    if sound is None:
        return ("model.prefix_backend=dense", "no backend is sound here; read the lines of the check attention first")
    return (f"model.prefix_backend={sound}", f"{first or 'the default'} failed")


def _memory(lines: Mapping[str, Line], cuda: bool) -> list[tuple[str, str] | None]:
    """Recomputation and token budget, from the peaks of updates."""
    if not cuda:
        return [("model.gradient_checkpointing=false", "the toy model is small; what a GPU needs is measured on a GPU")]
    updates = {name.removeprefix("size.update-"): line for name, line in lines.items() if name.startswith("size.update-")}
    plain = [line for name, line in updates.items() if not name.endswith(".recomputed")]
    again = [line for name, line in updates.items() if name.endswith(".recomputed")]
    recompute = not plain or not all(line.value("fits") is True for line in plain)
    out: list[tuple[str, str] | None] = [
        (
            f"model.gradient_checkpointing={str(recompute).lower()}",
            "the longest prompt " + ("does not fit" if recompute else "fits") + " without it",
        )
    ]
    total = next((float(v) for name, line in lines.items() if name.startswith("environment.device-") and (v := line.value("memory"))), None)
    measured = [line for line in (again if recompute else plain) if line.value("fits") is True]
    if total is None or not measured:
        return out
    largest = max(measured, key=lambda line: float(line.value("tokens") or 0))
    peak, state, tokens = (float(largest.value(name) or 0) for name in ("peak", "state", "tokens"))
    per_token = max(1e-9, (peak - state) / tokens)
    budget = max(STEP, int(SPARE * (total - state) / per_token) // STEP * STEP)
    reason = f"{1024 * per_token:.2f} MiB a token above {state:.0f} GiB of state, of {total:.0f} GiB"
    return [*out, (f"stages.rl.max_tokens_per_microbatch={budget}", reason)]


def _engine(lines: Mapping[str, Line]) -> tuple[str, str] | None:
    speeds = [(name, line.value("decoded tokens/s")) for name, line in lines.items() if name.startswith("size.rollout-")]
    known = [f"{float(speed):.0f} tokens/s at {name.removeprefix('size.rollout-')}" for name, speed in speeds if speed is not None]
    return ("stages.rl.rollout.engine=hf", f"decodes {', '.join(known)} prompt tokens") if known else None
