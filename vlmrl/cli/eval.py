"""The commands about evaluation: `eval`, `compare`, `suites`. Registered by `vlmrl.cli`; everything heavy is imported inside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.cli.names import Plugins, extra, say, suite_said
from vlmrl.errors import ConfigError, VlmrlError

if TYPE_CHECKING:
    from vlmrl.evals.ask.models import Model
    from vlmrl.evals.ask.run import Changes
    from vlmrl.evals.ask.suite import Suite
    from vlmrl.evals.ask.tasks import Task
    from vlmrl.run.ui import ProgressBar, Ui

PANEL = "What is asked otherwise than the suite says"
JUDGE = "A judge of thoughts: consistent with the answer, true to the picture?"
SERVED = "A served model instead of one loaded here"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("eval")(eval_)
    app.command("compare")(compare)
    app.command("suites")(suites)


def eval_(
    checkpoint: Annotated[Path, typer.Argument(help="Model folder such as <run>/final, or a finished run", show_default=False)],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="--rows: keys of its source, as in a recipe", show_default=False)
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="A suite by its name, or a YAML file; without it they are listed", show_default=False)
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="A file of rows, without any suite", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results  [default: suites/<model>-<suite> beside the model]", show_default=False)
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data, instead of the suite's or the file's", show_default=False)
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated", show_default=False)] = None,
    samples: Annotated[
        int | None, typer.Option(help="Answers per question, for pass@k and maj@n", rich_help_panel=PANEL, show_default=False, min=1)
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy", rich_help_panel=PANEL, show_default=False, min=0)] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus", rich_help_panel=PANEL, show_default=False, min=0, max=1)] = None,
    limit: Annotated[
        int | None, typer.Option(help="Rows of each task; subsets nest", rich_help_panel=PANEL, show_default=False, min=1)
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer", rich_help_panel=PANEL, show_default=False, min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of sampled answers", rich_help_panel=PANEL)] = 0,
    plugin: Plugins = None,
    rescore: Annotated[bool, typer.Option("--rescore", help="Score the answers again that are there; asks no model")] = False,
    endpoint: Annotated[
        str | None, typer.Option(help="URL up to /v1; the checkpoint gives the processor", rich_help_panel=SERVED, show_default=False)
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="Name of the model at the endpoint", rich_help_panel=SERVED, show_default=False)
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="What the served weights are called in tables", rich_help_panel=SERVED, show_default=False)
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="URL up to /v1 of a judge that reads the thoughts", rich_help_panel=JUDGE, show_default=False)
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Name of the judge's model", rich_help_panel=JUDGE, show_default=False)] = None,
    via: Annotated[str, typer.Option(help="native, or lmms: through lmms-eval, in a child process (docs/lmms-eval.md)")] = "native",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (bfloat16 on a GPU that has it, else float32), float32 or bfloat16")] = "auto",
    engine: Annotated[str, typer.Option(help="hf, or vllm: vLLM in this process (docs/rollout.md)")] = "hf",
) -> None:
    """Evaluate a model on a suite or on a file of rows; answers already there are not generated again. Under torchrun ranks share them.

    Example: vlmrl eval runs/toy_video/final --suite toy_video --limit 40
    """
    _check_asked_of(suite, rows, settings, task)
    asked = _Asked(checkpoint, engine, rescore=rescore, endpoint=endpoint, served=served_model, label=label, device=device, dtype=dtype)
    asked.check()
    given = {"--samples": samples, "--temperature": temperature, "--top-p": top_p, "--max-new-tokens": max_new_tokens}
    given |= {"--endpoint": endpoint, "--judge": judge, "--rescore": rescore or None, "--engine": None if engine == "hf" else engine}
    _check_harness(via, [name for name, value in given.items() if value is not None], judge, judge_model)
    from vlmrl.evals.ask.run import Changes
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.ui import Ui
    from vlmrl.train import dist

    quiet_transformers()
    dist.start()
    if engine == "vllm" and dist.world() > 1:
        raise ConfigError(f"--engine vllm runs in one process for now, and here are {dist.world()}; start it without torchrun")
    ui = Ui()
    if rows is not None:
        chosen, root = _suite_of_rows(asked.checkpoint, rows, settings or [], data_root, ui, plugin or [])
    else:
        chosen, root = _suite(str(suite), task, data_root, ui, plugin or [])
    by = "-lmms" if via == "lmms" else "-vllm" if engine == "vllm" else ""
    folder = out or checkpoint.absolute().parent / "suites" / f"{asked.name}-{chosen.id}{by}"
    if via == "lmms":
        _through_lmms(asked, chosen, folder, root, limit, ui)
        return
    changes = Changes(samples=samples, temperature=temperature, top_p=top_p, limit=limit, max_new_tokens=max_new_tokens, seed=seed)
    _run(asked, chosen, folder, root, changes, None if judge is None else {"url": judge, "model": judge_model}, ui)


@dataclass(frozen=True)
class _Asked:
    """Whose answers are evaluated: a checkpoint's, a served model's, or those that are there already."""

    checkpoint: Path
    engine: str
    rescore: bool
    endpoint: str | None
    served: str | None
    """Name of the model at the endpoint."""
    label: str | None
    device: str
    dtype: str

    @property
    def name(self) -> str:
        """In the name of the results' folder."""
        return self.label or self.checkpoint.absolute().name

    def check(self) -> None:
        """Raises ConfigError for options that do not fit together."""
        for name, value, known in (
            ("device", self.device, ("auto", "cpu", "cuda")),
            ("dtype", self.dtype, ("auto", "float32", "bfloat16")),
            ("engine", self.engine, ("hf", "vllm")),
        ):
            if value not in known:
                raise ConfigError(f"--{name}: expected one of {', '.join(known)}, got '{value}'")
        if not self.checkpoint.exists():
            raise ConfigError(f"{self.checkpoint}: no such file or folder")
        if (self.endpoint is None) != (self.served is None):
            raise ConfigError("--endpoint and --served-model belong together")
        if self.rescore and self.endpoint is not None:
            raise ConfigError("--rescore asks no model; leave out --endpoint")
        if self.engine == "vllm" and (self.rescore or self.endpoint is not None):
            raise ConfigError(f"--engine vllm answers in this process; leave out {'--rescore' if self.rescore else '--endpoint'}")

    def model(self, stack: ExitStack, tasks: Sequence[Task]) -> Model:
        """The model, released with `stack`."""
        from vlmrl.evals.ask.models import SERVED, RecordedModel, compute_dtype, model_folder
        from vlmrl.evals.ask.run import loaded
        from vlmrl.policy.load import load_processor

        if self.endpoint is None and not self.rescore:
            dtype = compute_dtype(self.device, self.dtype)
            return stack.enter_context(loaded(self.checkpoint, self.engine, tasks, device=self.device, dtype=dtype))
        bundle = load_processor(str(model_folder(self.checkpoint)))
        name = self.label or self.served or self.checkpoint.absolute().name
        if self.rescore:
            return RecordedModel(name=name, bundle=bundle)
        endpoint = {"url": self.endpoint, "model": self.served}
        return stack.enter_context(closing(SERVED["endpoint"](name=name, bundle=bundle, endpoint=endpoint)))


def known_suites() -> str:
    """One line with the names of our suites."""
    from vlmrl.evals.ask.suite import DEFINITIONS
    from vlmrl.paths import names as known

    names = known("suite", DEFINITIONS / "suites")
    return f"suites: {', '.join(names) or 'none here'} ('vlmrl suites' says what they are), or a YAML file"


def _check_asked_of(suite: str | None, rows: Path | None, settings: list[str] | None, tasks: list[str] | None) -> None:
    """Raises ConfigError unless there is one of a suite and a file of rows, with what belongs to it."""
    if suite is None and rows is None:
        raise ConfigError(f"--suite: which one? {known_suites()}; or --rows FILE, a file of rows without a suite")
    if suite is not None and rows is not None:
        raise ConfigError("--rows asks a file of rows without a suite; leave out --suite")
    if rows is None and settings:
        raise ConfigError(f"'{settings[0]}': KEY=VALUE belong to --rows; a suite's task says how its rows are read in its 'source'")
    if rows is not None and tasks:
        raise ConfigError("--task: the rows of --rows are one task; leave it out")


def _check_harness(via: str, given: list[str], judge: str | None, judge_model: str | None) -> None:
    """Raises ConfigError for options (`given`) that the harness does not take, and for half a judge."""
    if (judge is None) != (judge_model is None):
        raise ConfigError("--judge and --judge-model belong together")
    if via not in ("native", "lmms"):
        raise ConfigError(f"--via: expected one of native, lmms, got '{via}'")
    if via == "lmms" and given:
        raise ConfigError(f"--via lmms asks as the suite says; leave out {', '.join(given)}")


def _suite_of_rows(
    checkpoint: Path, rows: Path, settings: list[str], data_root: Path | None, ui: Ui, plugins: list[str]
) -> tuple[Suite, Path]:
    """The suite that asks a file of rows, which is read as `vlmrl check --rows` reads it, and where its paths begin."""
    from vlmrl.evals.ask.asking import asking_of
    from vlmrl.evals.ask.rows import rows_suite
    from vlmrl.run.check_rows import rows_config

    config = rows_config(rows, settings, media_root=data_root, model=None)
    root = Path(config.data.root)
    return rows_suite(config.stages[0].source, root, asking_of(checkpoint), plugins=plugins, say=ui.say), root


def _suite(name: str, tasks: list[str] | None, data_root: Path | None, ui: Ui, plugins: list[str]) -> tuple[Suite, Path]:
    """The suite, cut to the wanted tasks, and where its data are; the toy world is made where it is missing."""
    from vlmrl.evals.ask.suite import data_root_of, load_suite
    from vlmrl.registry import nearest

    suite = load_suite(suite_said(name), plugins)
    if tasks:
        known = [task.id for task in suite.tasks]
        for wanted in tasks:
            if wanted not in known:
                raise ConfigError(f"--task: suite '{suite.id}' has no task '{wanted}'{nearest(wanted, known)} (it has: {', '.join(known)})")
        suite = suite.model_copy(update={"tasks": tuple(task for task in suite.tasks if task.id in tasks)})
    if data_root is None and suite.data_root == "toy":
        from vlmrl.toy.base import default_world

        data_root = default_world(ui, [task.file for task in suite.tasks], suite.toy_world)
    return suite, data_root_of(suite, data_root)


def _run(asked: _Asked, suite: Suite, folder: Path, root: Path, changes: Changes, judge: dict[str, Any] | None, ui: Ui) -> None:
    from vlmrl.evals.ask.asking import asking_of
    from vlmrl.evals.ask.run import EvalCallbacks, evaluate_model
    from vlmrl.evals.ask.tasks import other_wording
    from vlmrl.evals.page import PAGES
    from vlmrl.train import dist

    bars: dict[str, ProgressBar] = {}
    with ExitStack() as outer, ExitStack() as stack:

        def progress(task: str, done: int, total: int) -> None:
            if task not in bars:
                stack.close()  # ends the bar of the task before
                bars[task] = stack.enter_context(ui.bar(task, total))
            bars[task].update(done)

        model = asked.model(outer, changes.all_of(suite))
        pictures = PAGES["evaluation"](folder, model.bundle.piece)
        watch = EvalCallbacks(progress=progress, answered=pictures.keep)
        for note in other_wording(asking_of(asked.checkpoint).prompt, suite.tasks):
            ui.say(f"note: {note}")
        result = evaluate_model(model, suite, folder, data_root=root, changes=changes, collective=dist, judge=judge, watch=watch)
    if dist.is_main():
        ui.say(f"report: {pictures.write_report()}")
        for name in (task.id for task in suite.tasks if task.environment is not None):
            ui.say(f"replay: {PAGES['replay'](folder / f'{name}.jsonl')}")
        ui.show(result)
        ui.say(str(folder))


def _through_lmms(asked: _Asked, suite: Suite, folder: Path, root: Path, limit: int | None, ui: Ui) -> None:
    from vlmrl.evals.ask.models import compute_dtype
    from vlmrl.evals.score.table import table

    dtype = compute_dtype(asked.device, asked.dtype)
    result = extra("vlmrl.extras.bridge.run.evaluate_suite_via_lmms")(
        asked.checkpoint, suite, out=folder, data_root=root, limit=limit, device=asked.device, dtype=dtype
    )
    rows = [["task", "metric", "value"]]
    for task, numbers in result.upstream.items():
        rows += [[task, name.removeprefix("upstream/"), f"{value:.3f}"] for name, value in numbers.items()]
    ui.show(table(rows, title=result.harness))
    ui.say(str(folder))


def compare(
    a: Annotated[Path, typer.Argument(help="Folder that `vlmrl eval` wrote, a run, or one file of records", show_default=False)],
    b: Annotated[Path | None, typer.Argument(help="The same of the model that is compared with it", show_default=False)] = None,
    published: Annotated[bool, typer.Option("--published", help="In place of B: the figures that papers print for A's tasks")] = False,
    tolerance: Annotated[float, typer.Option(help="How much a primary metric may drop", min=0)] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder for comparison.md, .json and .html", show_default=False)] = None,
    plugin: Plugins = None,
    force: Annotated[bool, typer.Option("--force", help="Compare in spite of unlike settings, and say so on top")] = False,
) -> None:
    """Compare two evaluations, question by question. Exit code 1 if B is significantly worse than A on the primary metric of a task.

    Example: vlmrl compare runs/base runs/new --out comparison
    """
    if (b is None) != published:
        raise ConfigError("compare needs a second evaluation, or --published in its place")
    from vlmrl.evals.page import PAGES
    from vlmrl.evals.score.compare import compare_folders
    from vlmrl.evals.score.published import beside_published
    from vlmrl.evals.score.runfiles import evaluation_at
    from vlmrl.plugins import import_plugins
    from vlmrl.run.ui import Ui

    import_plugins(plugin or (), "--plugin")
    ui = Ui()
    for given in filter(None, (a, b)):
        if (taken := evaluation_at(given)) != given:
            say(f"{given}: its last evaluation is compared, {taken}")
    if b is None:
        found = beside_published(a)
        if out is not None:
            found.write(out)
        ui.show(found)
        return
    result = compare_folders(a, b, tolerance=tolerance, force=force)
    if out is not None:
        result.write(out)
    ui.show(result)
    if out is not None and (a / "summary.json").is_file() and (b / "summary.json").is_file():
        ui.say(f"report: {PAGES['comparison'](result, out / 'comparison.html')}")
    if result.regressed:
        raise typer.Exit(1)


def suites(
    name: Annotated[str | None, typer.Argument(help="Show the tasks of this suite", show_default=False)] = None,
    data_root: Annotated[Path | None, typer.Option(help="Also say which rows are there", show_default=False)] = None,
) -> None:
    """List the suites, or the tasks of one: what is asked, how it is scored, how its rows are made.

    Example: vlmrl suites gui --data-root /data
    """
    from rich.console import Console
    from rich.table import Table

    from vlmrl.evals.ask.suite import DEFINITIONS, load_suite

    if name is None:
        table = Table("suite", "tasks", "what it is")
        for path in sorted((DEFINITIONS / "suites").glob("*.yaml")):
            one = load_suite(path)
            table.add_row(one.id, str(len(one.tasks)), one.title)
        Console().print(table)
        return
    from rich.text import Text

    table = Table("task", "answers", "primary", "rows")
    missing, made = 0, list[str]()
    tasks = load_suite(suite_said(name)).tasks
    for task in tasks:
        there = data_root is None or (data_root / task.file).exists()
        missing += not there
        rows = (task.file or "played") if there else f"{task.file} (missing)"
        table.add_row(*(Text(cell, overflow="fold") for cell in (task.id, " ".join(task.answer_types), task.primary, rows)))
        made.append(task.make_command() or "")
    console = Console()
    console.print(table)
    for protocol in dict.fromkeys(filter(None, (task.protocol for task in tasks))):
        console.print(Text(f"Asked and scored by protocol '{protocol}'."))
    if any(made):
        console.print("How rows are made:")
    for command in dict.fromkeys(filter(None, made)):
        console.print(Text(f"  {command}"), soft_wrap=True)  # a command that is cut or broken into lines cannot be copied
    if missing:
        raise VlmrlError(f"the rows of {missing} task(s) are not below {data_root}")
