"""The command `eval`: a model on a suite or on rows, or results of another harness. Everything heavy is imported inside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.cli.names import Plugins, extra, given, panel, suite_said
from vlmrl.errors import ConfigError

if TYPE_CHECKING:
    from vlmrl.evals.ask.models import Model
    from vlmrl.evals.ask.run import Changes
    from vlmrl.evals.ask.suite import Suite
    from vlmrl.evals.ask.tasks import Task
    from vlmrl.run.ui import ProgressBar, Ui

PANEL = "What is asked otherwise than the suite says"
JUDGE = "A judge of thoughts: consistent with the answer, true to the picture?"
SERVED = "A served model instead of one loaded here"
IMPORTED = "Results of another harness, for vlmrl compare (docs/compare.md)"
_PLAIN: dict[str, Any] = {"show_default": False}
_OTHER, _SERVED, _JUDGE, _IMPORT = map(panel, (PANEL, SERVED, JUDGE, IMPORTED))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval")(eval_)


def eval_(
    ctx: typer.Context,
    checkpoint: Annotated[
        Path | None, typer.Argument(help="Model folder such as <run>/final, or a finished run", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="--rows: keys of its source, as in a recipe", show_default=False)
    ] = None,
    suite: Annotated[str | None, typer.Option(help="A suite by its name, or a YAML file; without it they are listed", **_PLAIN)] = None,
    rows: Annotated[Path | None, typer.Option(help="A file of rows, without any suite", **_PLAIN)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results  [default: suites/<model>-<suite> beside the model]", **_PLAIN)
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the data, instead of the suite's or the file's", **_PLAIN)] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated. --import: its name", **_PLAIN)] = None,
    samples: Annotated[int | None, typer.Option(help="Answers per question, for pass@k and maj@n", min=1, **_OTHER)] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy", min=0, **_OTHER)] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus", min=0, max=1, **_OTHER)] = None,
    limit: Annotated[int | None, typer.Option(help="Rows of each task; subsets nest", min=1, **_OTHER)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer", min=1, **_OTHER)] = None,
    seed: Annotated[int, typer.Option(help="Of sampled answers", rich_help_panel=PANEL)] = 0,
    plugin: Plugins = None,
    rescore: Annotated[bool, typer.Option("--rescore", help="Score the answers again that are there; asks no model")] = False,
    endpoint: Annotated[str | None, typer.Option(help="URL up to /v1; the checkpoint gives the processor", **_SERVED)] = None,
    served_model: Annotated[str | None, typer.Option(help="Name of the model at the endpoint", **_SERVED)] = None,
    label: Annotated[str | None, typer.Option(help="What the served weights are called in tables", **_SERVED)] = None,
    judge: Annotated[str | None, typer.Option(help="URL up to /v1 of a judge that reads the thoughts", **_JUDGE)] = None,
    judge_model: Annotated[str | None, typer.Option(help="Name of the judge's model", **_JUDGE)] = None,
    via: Annotated[str, typer.Option(help="native, or lmms: through lmms-eval, in a child process (docs/lmms-eval.md)")] = "native",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (bfloat16 on a GPU that has it, else float32), float32 or bfloat16")] = "auto",
    engine: Annotated[str, typer.Option(help="hf, or vllm: vLLM in this process (docs/rollout.md)")] = "hf",
    import_: Annotated[Path | None, typer.Option("--import", help="Its file; of lmms-eval also a folder of them", **_IMPORT)] = None,
    kind: Annotated[str | None, typer.Option(help="lmms-eval or vlmevalkit", **_IMPORT)] = None,
    join: Annotated[str, typer.Option(help="How answers find their --rows: id, or index from 0", rich_help_panel=IMPORTED)] = "id",
    model: Annotated[str | None, typer.Option(help="Name of the model", **_IMPORT)] = None,
    answer_format: Annotated[str | None, typer.Option(help="Answer format that was asked for", **_IMPORT)] = None,
    version: Annotated[str | None, typer.Option(help="Version of the other harness", **_IMPORT)] = None,
    primary: Annotated[str | None, typer.Option(help="Metric that stands for each task", **_IMPORT)] = None,
) -> None:
    """Evaluate a model on a suite or on a file of rows; answers already there are not generated again. Under torchrun ranks share them.

    Example: vlmrl eval runs/toy_video/final --suite toy_video --limit 40
    """
    if import_ is not None:
        if wrong := [*([str(checkpoint)] if checkpoint is not None else []), *given(ctx, _NOT_IMPORT)]:
            raise ConfigError(f"{wrong[0]}: --import reads results that are there; it asks no model")
        told = {"task": task, "model": model, "answer_format": answer_format, "version": version, "primary": primary}
        extra("vlmrl.extras.bridge.importers.command.import_")(import_, kind, out, rows=rows, join=join, plugins=plugin or [], **told)
        return
    if wrong := given(ctx, _OF_IMPORT):
        raise ConfigError(f"{wrong[0]}: belongs to --import")
    if checkpoint is None:
        raise ConfigError(
            "which model? give its folder, such as <run>/final, or a finished run; or results of another harness, --import FILE"
        )
    _check_asked_of(suite, rows, settings, task)
    asked = _Asked(checkpoint, engine, rescore=rescore, endpoint=endpoint, served=served_model, label=label, device=device, dtype=dtype)
    asked.check()
    _check_harness(via, given(ctx, _NOT_VIA_LMMS), judge, judge_model)
    from vlmrl.evals.ask.run import Changes

    changes = Changes(samples=samples, temperature=temperature, top_p=top_p, limit=limit, max_new_tokens=max_new_tokens, seed=seed)
    _evaluate(asked, (suite, rows), settings, data_root, task, plugin, out, via, changes, (judge, judge_model))


_OF_IMPORT = ("kind", "join", "model", "answer_format", "version", "primary")
_NOT_VIA_LMMS = ("samples", "temperature", "top_p", "max_new_tokens", "endpoint", "judge", "rescore", "engine")
_NOT_IMPORT = ("suite", "data_root", "limit", "seed", "served_model", "label", "judge_model", "via", "device", "dtype", *_NOT_VIA_LMMS)


def _evaluate(
    asked: _Asked,
    of: tuple[str | None, Path | None],
    settings: list[str] | None,
    data_root: Path | None,
    tasks: list[str] | None,
    plugins: list[str] | None,
    out: Path | None,
    via: str,
    changes: Changes,
    judge: tuple[str | None, str | None],
) -> None:
    """Ask what was chosen: a suite, or a file of rows."""
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.ui import Ui
    from vlmrl.train import dist

    quiet_transformers()
    dist.start()
    if asked.engine == "vllm" and dist.world() > 1:
        raise ConfigError(f"--engine vllm runs in one process for now, and here are {dist.world()}; start it without torchrun")
    ui, (suite, rows) = Ui(), of
    if rows is not None:
        chosen, root = _suite_of_rows(asked.checkpoint, rows, settings or [], data_root, ui, plugins or [])
    else:
        chosen, root = _suite(str(suite), tasks, data_root, ui, plugins or [])
    by = "-lmms" if via == "lmms" else "-vllm" if asked.engine == "vllm" else ""
    folder = out or asked.checkpoint.absolute().parent / "suites" / f"{asked.name}-{chosen.id}{by}"
    if via == "lmms":
        _through_lmms(asked, chosen, folder, root, changes.limit, ui)
        return
    _run(asked, chosen, folder, root, changes, None if judge[0] is None else {"url": judge[0], "model": judge[1]}, ui)


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
    return f"suites: {', '.join(names) or 'none here'} ('vlmrl list suites' says what they are), or a YAML file"


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
    """The suite that asks a file of rows, which is read as `vlmrl check FILE` reads it, and where its paths begin. Rows that cannot be read
    so are read as those that the checkpoint was trained on, else as `vlmrl new` would."""
    from vlmrl.errors import DataError
    from vlmrl.evals.ask.asking import asking_of
    from vlmrl.evals.ask.rows import rows_suite
    from vlmrl.run.check_rows import rows_config

    config = rows_config(rows, settings, media_root=data_root, model=None)
    root, source = Path(config.data.root), config.stages[0].source
    asking = asking_of(checkpoint)
    try:
        return rows_suite(source, root, asking, plugins=plugins, say=ui.say), root
    except DataError as error:
        found, lines = extra("vlmrl.extras.starter.source.source_of_model")(source, checkpoint, data_root, error)
    for line in lines:
        ui.say(line)
    return rows_suite(source.model_copy(update=found), root, asking, plugins=plugins, say=ui.say), root


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
        from vlmrl.run.optional import TOY

        data_root = TOY["default_world"](ui, [task.file for task in suite.tasks], suite.toy_world)
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
        watch = EvalCallbacks(progress=progress, answered=partial(PAGES["questions"], folder / "frames", model.bundle.piece))
        for note in other_wording(asking_of(asked.checkpoint).prompt, suite.tasks):
            ui.say(f"note: {note}")
        result = evaluate_model(model, suite, folder, data_root=root, changes=changes, collective=dist, judge=judge, watch=watch)
    if dist.is_main():
        ui.say(f"report: {PAGES['run'](folder)}")
        for name in (task.id for task in suite.tasks if task.environment is not None):
            ui.say(f"replay: {PAGES['replay'](folder / f'{name}.jsonl')}")
        ui.show(result)
        ui.say(str(folder))


def _through_lmms(asked: _Asked, suite: Suite, folder: Path, root: Path, limit: int | None, ui: Ui) -> None:
    from vlmrl.evals.ask.models import compute_dtype
    from vlmrl.evals.score.terminal import table

    dtype = compute_dtype(asked.device, asked.dtype)
    result = extra("vlmrl.extras.bridge.run.evaluate_suite_via_lmms")(
        asked.checkpoint, suite, out=folder, data_root=root, limit=limit, device=asked.device, dtype=dtype
    )
    rows = [["task", "metric", "value"]]
    for task, numbers in result.upstream.items():
        rows += [[task, name.removeprefix("upstream/"), f"{value:.3f}"] for name, value in numbers.items()]
    ui.show(table(rows, title=result.harness))
    ui.say(str(folder))
