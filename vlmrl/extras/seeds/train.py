"""`vlmrl train --seeds`: one run after another, each in a process of its own, because the settings of torch are those of a process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

import typer

from vlmrl.cli.names import load_said, say
from vlmrl.errors import ConfigError, Preempted

STOPPING = (signal.SIGTERM, signal.SIGINT)
"""What asks a run to save and stop."""


def train_seeds(recipe: str, overrides: Sequence[str], seeds: str, options: Sequence[str]) -> None:
    """Train a recipe once per seed. A run that is finished stays as it is, so the same command goes on where it stopped.

    Args:
        recipe: file or name.
        overrides: of all runs; none of them sets `run.seed`.
        seeds: as `0,1,2`.
        options: of `vlmrl train`, for each run.

    Raises:
        ConfigError: the seeds are no list of numbers, or the recipe has problems.
        typer.Exit: with the code of the run that ended with an error; those behind it are not begun.
    """
    numbers = seeds_of(seeds)
    if "WORLD_SIZE" in os.environ:
        raise ConfigError("--seeds starts the processes itself; for several GPUs say --gpus N in place of torchrun")
    if any(word.partition("=")[0].strip() == "run.seed" for word in overrides):
        raise ConfigError("run.seed: --seeds sets it for each run; leave one of them out")
    config = load_said(recipe, list(overrides)).config  # its methods are checked by the first run: here torch would only take memory
    if config.toy is not None:
        world = f"world (toy.world.seed={config.toy.world.seed})"
        say(f"all seeds share the generated {world} and the base model (toy.base_seed={config.toy.base_seed})")
    names = {seed: f"{config.run.name}-s{seed}" for seed in numbers}
    for place, (seed, name) in enumerate(names.items(), 1):
        say(f"seed {seed} ({place} of {len(names)}): run.name={name}")
        own = [f"run.name={name}", f"run.seed={seed}"]
        code = _run([sys.executable, "-m", "vlmrl", "train", recipe, *overrides, *own, *options])
        if code:
            say(f"seed {seed} ended with exit code {code}; the same command goes on from here")
            raise typer.Exit(code)
    runs = [f"{config.run.root}/{name}" for name in names.values()]
    typer.echo(f"runs:     {shlex.join(runs)}")
    typer.echo(f"compare:  vlmrl compare OTHER... -- {shlex.join(runs)}   (the runs of another method, with the same seeds)")


def seeds_of(text: str) -> list[int]:
    """The numbers of `0,1,2`.

    Raises:
        ConfigError: it is none, or a seed stands in it twice.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"\d+", word) for word in words):
        raise ConfigError(f"--seeds: expected whole numbers with commas between them, as 0,1,2; got '{text}'")
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"--seeds: a seed stands twice in {text}")
    return numbers


def _run(words: Sequence[str]) -> int:
    """Run a child to its end; a signal that asks us to stop is for it, and its exit code is ours."""
    children, asked = list[subprocess.Popen[bytes]](), list[int]()

    def hand_on(number: int, frame: FrameType | None) -> None:
        # Ctrl-C reaches the whole group of the terminal; a second one would end the run before it has saved.
        asked.append(number)
        for child in children:
            if number != signal.SIGINT or not sys.stdin.isatty():
                child.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in STOPPING}
    try:
        if not asked:
            children.append(subprocess.Popen(words))
        code = children[0].wait() if children else Preempted.exit_code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
