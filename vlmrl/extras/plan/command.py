"""The command `plan`: memory of a rank by part, time of a step by phase, and what to change. Registered by `vlmrl.cli`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlmrl.cli.names import extra, load_said, panel
from vlmrl.errors import ConfigError

if TYPE_CHECKING:
    from vlmrl.extras.plan.result import Plan
    from vlmrl.extras.plan.settings import Settings
    from vlmrl.extras.plan.slack import Slack

PANEL = "What is planned otherwise than the recipe says"
_GIVEN = panel(PANEL)
_LAUNCH = panel("The line that starts the run", show_default=True)
_GROUP = panel("The line that starts the run")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan")(plan_)


def plan_(
    recipe: Annotated[Path, typer.Argument(help="YAML recipe, or the name of one", show_default=False)],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides", show_default=False)] = None,
    gpus: Annotated[int, typer.Option(help="GPUs of the run, one rank each; with --nodes those of each machine", min=1)] = 1,
    gpu: Annotated[str, typer.Option(help="Type: h100, h200, a100, l40s, rtx4090 or a10")] = "h100",
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one machine, without --nodes", min=1)] = 8,
    nodes: Annotated[int | None, typer.Option(help="Machines", min=1, show_default=False)] = None,
    network: Annotated[float, typer.Option(help="GB/s between machines for one GPU, one direction", min=0.001)] = 40.0,
    stage: Annotated[str | None, typer.Option(help="Only this stage  [default: the one with the largest peak]", show_default=False)] = None,
    shape: Annotated[str | None, typer.Option(help="A published model in place of model.path, as qwen2.5-vl-7b", **_GIVEN)] = None,
    sharding: Annotated[str | None, typer.Option(help="none, ddp, fsdp, zero2 or zero3", **_GIVEN)] = None,
    shard_size: Annotated[int | None, typer.Option(help="Ranks that share one copy of the state", min=1, **_GIVEN)] = None,
    offload: Annotated[str | None, typer.Option(help="none, optimizer or all", **_GIVEN)] = None,
    recompute: Annotated[bool | None, typer.Option("--recompute/--no-recompute", help="Activations in backward", **_GIVEN)] = None,
    engine: Annotated[str | None, typer.Option(help="What generates: hf or vllm", **_GIVEN)] = None,
    prompt: Annotated[int | None, typer.Option(help="Tokens of the longest prompt", min=1, **_GIVEN)] = None,
    visual: Annotated[int | None, typer.Option(help="Placeholder tokens of a prompt; all but 64", min=0, **_GIVEN)] = None,
    answer: Annotated[int | None, typer.Option(help="Tokens of an answer", min=1, **_GIVEN)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, in bytes and seconds.")] = False,
    launch: Annotated[bool, typer.Option("--launch", help="Print the line that starts the run, and nothing else.", **_LAUNCH)] = False,
    with_: Annotated[str, typer.Option("--with", help="torchrun, accelerate, slurm, jobset or skypilot", **_LAUNCH)] = "torchrun",
    servers: Annotated[str | None, typer.Option(help="Rollout servers and GPUs of each, as 4x2", **_GROUP)] = None,
    teachers: Annotated[str | None, typer.Option(help="Servers of a teacher, as MODEL=2x4", **_GROUP)] = None,
    host: Annotated[str, typer.Option(help="Of several machines, the first: name or address, HOST or HOST:PORT", **_LAUNCH)] = "",
    restarts: Annotated[int, typer.Option(help="How often all processes start again after one has failed", min=0, **_LAUNCH)] = 3,
) -> None:
    """What a run needs before it is started: GB per GPU by part, seconds per step by phase, and what to change if it does not fit.

    Example: vlmrl plan video_tempsamp_3b --gpus 8 --gpu h100
    """
    if nodes is not None:
        gpus, gpus_per_node = gpus * nodes, gpus
    if launch:
        machines = max(1, gpus // gpus_per_node)
        if gpus > gpus_per_node and gpus % gpus_per_node:
            raise ConfigError(f"--gpus: {gpus} are not whole machines of {gpus_per_node}; say --gpus of each machine, and --nodes")
        of_each = gpus // machines
        extra("vlmrl.extras.scale.command.show")(
            str(recipe),
            overrides or [],
            gpus=of_each,
            nodes=machines,
            with_=with_,
            host=host,
            restarts=restarts,
            servers=servers,
            teachers=teachers,
            gpu=gpu,
        )
        return
    if (with_, host, restarts, servers, teachers) != ("torchrun", "", 3, None, None):
        raise ConfigError("--with, --host, --restarts, --servers and --teachers belong to --launch")
    from vlmrl.extras.plan.gpus import gpu_of
    from vlmrl.extras.plan.recipe import heaviest, shape_in
    from vlmrl.extras.plan.slack import slack_of

    cfg = load_said(recipe, overrides).config
    given = {"sharding": sharding, "shard_size": shard_size, "offload": offload, "recompute": recompute}
    card = gpu_of(gpu)
    slack = slack_of(card)
    given |= {"engine": engine, "prompt": prompt, "visual": visual, "answer": answer, "network": network * 1e9, "slack": slack.bytes}
    found = shape_in(cfg, shape)
    stages = [one for one in cfg.stages if stage in (None, one.name)]
    if not stages:
        raise ConfigError(f"--stage: no stage '{stage}' (there are: {', '.join(one.name for one in cfg.stages)})")
    name, worst = heaviest(cfg, stages, shape=found, gpu=card, gpus=gpus, gpus_per_node=gpus_per_node, given=given)
    if as_json:
        from vlmrl.extras.plan.advice import changes

        ways = [{"change": c.what, "peak": c.peak, "step_seconds": c.after.time.step, "fits": c.fits} for c in changes(worst, name)]
        typer.echo(json.dumps({"stage": name, **worst.json(), "slack_source": slack.source, "changes": ways}, indent=1))
        return
    show(name, worst, slack)


def show(name: str, found: Plan, slack: Slack) -> None:
    """Tables and advice on the terminal."""
    from rich.console import Console
    from rich.table import Table

    from vlmrl.evals.score.table import Paragraphs
    from vlmrl.extras.plan.advice import whole_group
    from vlmrl.extras.plan.recipe import gigabytes, verdict

    console, s, m, t = Console(), found.settings, found.memory, found.time
    console.print(Paragraphs([_title(name, s, m.shard)]), crop=False)
    left = Table("memory of a rank", "GB", title="computed, not measured", title_justify="left")
    for part, size in m.parts.items():
        left.add_row(part, gigabytes(size))
    left.add_section()
    for phase, size in m.phases.items():
        left.add_row(f"peak in {phase}", gigabytes(size), style="bold" if phase == m.worst else "")
    right = Table("time of a step", "s")
    for phase, seconds in t.phases.items():
        right.add_row(phase, f"{seconds:.2f}", style="bold" if phase == t.dominates else "")
    right.add_section()
    right.add_row("step", f"{t.step:.2f}")
    console.print(left, right)
    said = [*verdict(name, found), f"{gigabytes(slack.bytes)} GB of each phase are no tensors: {slack.source}"]
    if (once := whole_group(found, name)) is not None:
        after = f"{once.after.time.step:.1f} s a step and {gigabytes(once.peak)} GB"
        said.append(f"several micro-batches of a group compute its prompt again; {once.what} computes it once: {after}")
    console.print(Paragraphs(said), crop=False)


def _title(name: str, s: Settings, shard: int) -> str:
    p = s.parameters
    sharing = f"{s.sharding} over {shard}" if shard > 1 else s.sharding
    batches = ", ".join(str(row.tokens) for row in s.rows[:4]) + (", ..." if len(s.rows) > 4 else "")
    return (
        f"stage {name}: {(p.n_trained + p.n_frozen) / 1e9:.2f} B parameters, {p.n_trained / 1e9:.3g} B train; {s.gpus} x {s.gpu.name}, "
        f"{sharing}, {s.dtype}{', recomputation' if s.recompute else ''}; micro-batches of {batches} tokens"
    )
