"""Checks whether lmms-eval can be used here, and undoes what importing and running it changes in the process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from PIL import ImageFile

from vlmrl.compat import ensure_torchvision
from vlmrl.errors import ConfigError

LEAST, BELOW = (0, 7, 2), (0, 8, 0)
"""Supported versions of lmms-eval: from, up to but not including."""
NEEDED = ("accelerate", "datasets", "evaluate", "loguru", "pytablewriter", "pytz", "sacrebleu", "tenacity")
"""What lmms-eval imports in every run and vlmrl does not bring (transformers and torch aside)."""
INSTALL = f"pip install --no-deps lmms-eval==0.7.3 && pip install {' '.join(NEEDED)}"
"""A plain install of lmms-eval replaces torchvision and math-verify by versions that do not work."""

_PROBE = """
import inspect, json
import vlmrl  # as in `lmms_eval --model vlmrl`, which finds the package by its entry point
import lmms_eval.evaluator
print(json.dumps({"parallel": "process_docs_parallel" in inspect.signature(lmms_eval.evaluator.simple_evaluate).parameters}))
"""
_SECONDS = 300
"""Longest that the probe may take; importing the evaluator takes seconds, on a cold disk more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of what was examined."""

    item: str
    found: str
    status: Literal["ok", "absent", "problem"] = "ok"
    advice: str = ""


def require() -> str:
    """The version of lmms-eval that is installed. Imports nothing of it.

    Raises:
        ConfigError: it is missing, has another version than those supported, or something that it needs is missing.
    """
    version = _version("lmms_eval")
    if version is None:
        raise ConfigError(f"lmms-eval is not installed; `{INSTALL}`")
    if not LEAST <= _numbers(version) < BELOW:
        raise ConfigError(f"lmms-eval {version} is installed; supported is 0.7.2 <= version < 0.8: `{INSTALL}`")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"lmms-eval {version} needs {', '.join(missing)}; `pip install {' '.join(missing)}`")
    return version


def findings() -> list[Finding]:
    """What lmms-eval needs and what this environment has. The evaluator is imported in a child, so nothing changes here."""
    version = _version("lmms_eval")
    if version is None:
        return [Finding(item="lmms-eval", found="not installed", status="absent", advice=f"evaluation through lmms-eval; {INSTALL}")]
    fits = LEAST <= _numbers(version) < BELOW
    out = [Finding(item="lmms-eval", found=version, status="ok" if fits else "problem", advice="" if fits else INSTALL)]
    out += [_torchvision(), _math_verify(), _antlr()]
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        out.append(Finding(item="lmms_eval.evaluator", found=reason[0][:200], status="problem", advice=INSTALL))
        return out
    out.append(Finding(item="lmms_eval.evaluator", found="imports"))
    parallel = json.loads(done.stdout.strip().splitlines()[-1])["parallel"]
    found = "present, set to 1 by the bridge" if parallel else "absent (lmms-eval 0.7.2)"
    out.append(Finding(item="process_docs_parallel", found=found))
    return out


def _torchvision() -> Finding:
    """A torchvision whose operators do not load breaks the import of the evaluator, unless the shim is in place."""
    try:
        state = ensure_torchvision()
    except RuntimeError as error:
        return Finding(item="torchvision", found=f"broken: {error}"[:200], status="problem", advice="uninstall it, or run scripts/setup.sh")
    return Finding(item="torchvision", found=state)


def _math_verify() -> Finding:
    version = _version("math-verify")
    if version is None:
        return Finding(item="math-verify", found="not installed", status="absent", advice="pip install 'math-verify[antlr4_13_2]==0.9.0'")
    good = _numbers(version) >= (0, 9, 0)
    advice = "" if good else "a plain install of lmms-eval puts the broken 0.1.0 here: pip install 'math-verify[antlr4_13_2]==0.9.0'"
    return Finding(item="math-verify", found=version, status="ok" if good else "problem", advice=advice)


def _antlr() -> Finding:
    version = _version("antlr4-python3-runtime")
    good = version is not None and _numbers(version) >= (4, 9, 0)
    advice = "" if good else "math-verify needs 4.9.3, 4.11 or 4.13.2; 4.7.2 is that of latex2sympy2, which cannot be there with it"
    return Finding(item="antlr4-python3-runtime", found=version or "not installed", status="ok" if good else "problem", advice=advice)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """(0, 7, 3) of `0.7.3.post1`."""
    out: list[int] = []
    for part in version.split(".")[:3]:
        if not part.isdigit():
            break
        out.append(int(part))
    return tuple([*out, 0, 0, 0][:3])


@contextmanager
def preserved(module: torch.nn.Module | None = None) -> Iterator[None]:
    """Import and run lmms-eval inside this block; afterwards the process is as before.

    Put back: the global random generators (`simple_evaluate` seeds them), train mode of every submodule of `module` (which is in
    evaluation mode inside), warning filters and loguru's handlers (both reset at import), the time-out of process groups (raised to a
    day at import) and Pillow's strictness about cut images. Not put back, because a second run relies on them: upstream's patches of
    file locks and of `ssl.SSLContext`; evaluate in a child (`run.evaluate_offline`) where those matter.
    """
    modes = [] if module is None else [(part, part.training) for part in module.modules()]
    if module is not None:
        module.eval()
    with ExitStack() as stack:
        stack.callback(lambda: [setattr(part, "training", mode) for part, mode in modes])
        stack.enter_context(_generators())
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(_loguru())
        stack.enter_context(_process_group_timeout())
        stack.enter_context(strict_pillow())
        yield


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Cut images are errors inside, as media decoding demands; some upstream tasks switch that off when they are imported."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


@contextmanager
def _generators() -> Iterator[None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def _loguru() -> Iterator[None]:
    """Handlers are set aside, so that upstream's `logger.remove()` cannot stop them; warnings and errors go to stderr meanwhile.

    loguru has no public way to do this: a removed handler is closed and cannot come back.
    """
    from loguru import logger

    core: Any = logger._core  # type: ignore[attr-defined]
    kept, level = core.handlers, core.min_level
    core.handlers, core.min_level = {}, float("inf")
    try:
        logger.add(sys.stderr, level="WARNING")
        yield
    finally:
        logger.remove()
        core.handlers, core.min_level = kept, level


@contextmanager
def _process_group_timeout() -> Iterator[None]:
    import torch.distributed

    if not torch.distributed.is_available():
        yield
        return
    place: Any = torch.distributed.distributed_c10d
    before = place.default_pg_timeout
    try:
        yield
    finally:
        place.default_pg_timeout = before
