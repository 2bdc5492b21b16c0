"""vlmrl from Python: what the commands check, train, eval, compare and ask do, as functions. `vlmrl` offers them by name (docs/python.md).

Errors are those of `vlmrl.errors`; `exit_code` of each is that of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl.config.load import ResolvedRecipe, load, load_mapping
from vlmrl.errors import ConfigError
from vlmrl.registry import Catalogue, Registry

if TYPE_CHECKING:
    from vlmrl.config.schema import Config
    from vlmrl.evals.ask.question import Answered
    from vlmrl.evals.ask.run import SuiteResult
    from vlmrl.evals.score.compare import FolderComparison
    from vlmrl.run.audit import AuditReport
    from vlmrl.run.ui import Ui
    from vlmrl.types import MediaKind

TRIALS: Catalogue[Callable[..., list[str]]] = Catalogue("check of methods")
"""What calls the methods of plug-ins before anything is trained: (config, registries) -> warnings. It raises where one cannot run."""
SIDES: Catalogue[Callable[..., None]] = Catalogue("check of stages")
"""Kind of a stage -> what looks at such stages with their rows: (report, config, model, data). It adds to the report."""
ROWS: Catalogue[Callable[..., Any]] = Catalogue("rows of Python")
"""Makes the `Suite` that asks them: (checkpoint, None, rows, keys of their source). It refuses a suite beside rows, and neither."""
Recipe = ResolvedRecipe | Mapping[str, Any] | str | Path


def load_recipe(recipe: Recipe, overrides: Sequence[str] = ()) -> ResolvedRecipe:
    """A checked recipe: `.config` has every value, `.text` the whole as YAML, `.hash` its digest.

    Args:
        recipe: a file, the name of one (`toy_video`), a mapping with the same keys, or one that is loaded already.
        overrides: as on the command line, `stages.rl.optim.lr=1e-6`.

    Raises:
        ConfigError: with every problem, each with its place.
        ValueError: overrides for a recipe that is loaded already.
    """
    from vlmrl.methods import method_problems

    if isinstance(recipe, ResolvedRecipe):
        if overrides:
            raise ValueError("this recipe is loaded already; give the overrides when it is loaded")
        return recipe
    if isinstance(recipe, Mapping):
        return load_mapping(recipe, list(overrides), also=method_problems)
    return load(recipe, list(overrides), also=method_problems)


def check(recipe: Recipe, overrides: Sequence[str] = (), *, page: str | Path | None = None, quiet: bool = False) -> AuditReport:
    """Check the data of a recipe: every medium, prompt and gold answer. No weights are loaded.

    Args:
        page: HTML file to write, with rows as the model sees them, worst first.
        quiet: say nothing on stdout.

    Returns:
        `.sources[i].rows`, `.good` and `.reasons` count, `.problems` is what would stop or spoil training, `.table()` prints in rich.

    Raises:
        ConfigError: the recipe is wrong, or a method of a plug-in cannot run.
        DataError: a file of rows is missing or cannot be read.
    """
    from vlmrl.methods import require_methods
    from vlmrl.run.ui import Ui

    loaded = load_recipe(recipe, overrides)
    notes = tried_methods(loaded, require_methods(loaded.config))
    report = audited(loaded.config, None if page is None else Path(page), Ui(quiet=quiet))
    report.notes += [f"warning: {note}" for note in notes]
    return report


def tried_methods(loaded: ResolvedRecipe, found: Mapping[str, Registry[Any]]) -> list[str]:
    """Call the methods of plug-ins on made-up groups, before anything is trained: one that cannot run would end a run in its first step.

    Args:
        found: the registries of the recipe's slots.

    Returns:
        What was raised that the made-up groups may be the cause of.

    Raises:
        ConfigError: some cannot run; each with its place in the recipe, and file and line of its code.
    """
    try:
        return TRIALS["trial"](loaded.config, found)
    except ConfigError as error:
        raise ConfigError([loaded.located(problem) for problem in error.problems]) from error


def audited(config: Config, page: Path | None, ui: Ui, *, rows: bool = False) -> AuditReport:
    """Read the data of a recipe and write the page. A toy model is not pretrained for this.

    Args:
        rows: the recipe stands for a file of rows alone: all gold answers are scored.
    """
    import tempfile

    from vlmrl.evals.page import PAGES
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.audit import audit
    from vlmrl.run.optional import TOY

    quiet_transformers()
    data, model = Path(config.data.root).expanduser(), config.model.path
    with tempfile.TemporaryDirectory() as scratch:
        if config.toy is not None and config.data.root == "toy":
            data = TOY["world"](config.toy.world, Path(config.toy.cache).expanduser(), ui)
        if config.toy is not None and config.model.path == "toy":
            model = scratch
            TOY["untrained"](config.toy, Path(scratch))
        shown = None if page is None else PAGES["check"](budget=config.data.max_prompt_tokens)
        report = audit(config, model=model, data=data, ui=ui, page=shown, all_gold=rows)
        for kind in sorted({stage.kind for stage in config.stages} & set(SIDES)):
            SIDES[kind](report, config, model, data)
    if page is not None and shown is not None:
        ui.say(f"rows to look at: {shown.write(page)}")
    return report


def train(recipe: Recipe, overrides: Sequence[str] = (), *, quiet: bool = False) -> Path:
    """Train, and return the run directory: `final/` in it is the model. The same call resumes an interrupted run.

    Args:
        quiet: say nothing on stdout.

    Raises:
        ConfigError: the recipe is wrong, or a method of a plug-in cannot run; nothing was started.
        VlmrlError: as the command; what was saved stays.
    """
    loaded = load_recipe(recipe, overrides)
    from vlmrl.methods import require_methods
    from vlmrl.run.optional import TOY
    from vlmrl.run.start import train_from
    from vlmrl.run.ui import Ui
    from vlmrl.train import dist

    dist.start(loaded.config.train.patience)
    ui = Ui(quiet=quiet or not dist.is_main())
    for note in tried_methods(loaded, require_methods(loaded.config)):
        ui.say(f"warning: {loaded.located(note)}")
    return train_from(loaded, TOY["prepare"](loaded.config, ui), ui)


def evaluate(
    checkpoint: str | Path,
    suite: str | Path | None = None,
    out: str | Path | None = None,
    *,
    rows: Any = None,
    data_root: str | Path | None = None,
    limit: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    **source: Any,
) -> SuiteResult:
    """Evaluate a checkpoint on a suite, or on rows. Answers that are in `out` already are not generated again.

    Args:
        checkpoint: a model folder such as `<run>/final`, or a finished run.
        suite: a file, or the name of one.
        out: folder of records, `summary.json` and `results.md`. None: `suites/<model>-<suite>` beside the model, as the command.
        rows: in place of a suite, as `vlmrl.grpo` takes them; `source` are then keys of their source (`answer_type="number"`).
        data_root: folder of the data, instead of the suite's; the generated world is made where it is missing.
        limit: rows of each task; subsets nest.
        samples: answers per question; several need a temperature.
        dtype: `auto` (bfloat16 on a GPU that has it, else float32), `float32` or `bfloat16`.

    Returns:
        `.summaries[task].metrics[name]` are values with 95% intervals, `.markdown()` the tables.

    Raises:
        ConfigError: suite or checkpoint cannot be used.
        DataError: rows or media of a task cannot be used.
    """
    from vlmrl.evals.ask.models import compute_dtype
    from vlmrl.evals.ask.run import Changes, evaluate_suite
    from vlmrl.evals.ask.suite import load_suite, suite_path
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.optional import TOY
    from vlmrl.run.ui import Ui

    quiet_transformers()
    model = Path(checkpoint)
    alone = rows is None and not source
    one = load_suite(suite_path(suite)) if alone and suite is not None else ROWS["suite"](model, suite, rows, source)
    if data_root is None and one.data_root == "toy":
        data_root = TOY["default_world"](Ui(quiet=True), [task.file for task in one.tasks], one.toy_world)
    return evaluate_suite(
        model,
        one,
        Path(out) if out is not None else model.absolute().parent / "suites" / f"{model.absolute().name}-{one.id}",
        data_root=None if data_root is None else Path(data_root),
        device=device,
        dtype=compute_dtype(device, dtype),
        changes=Changes(samples=samples, temperature=temperature, limit=limit, max_new_tokens=max_new_tokens, seed=seed),
    )


def compare(a: str | Path, b: str | Path, *, tolerance: float = 0.0, force: bool = False) -> FolderComparison:
    """Compare two evaluations question by question: `.regressed` names the tasks on whose primary metric B is significantly worse.

    Args:
        a, b: folders that `evaluate` wrote, runs (of which the last evaluation is meant), or files of records.
        tolerance: a primary metric may be worse by so much, in its own unit.
        force: compare in spite of unlike settings; `.warnings` then says which.

    Raises:
        Incomparable: the two were not asked the same.
        StorageError: a file is missing or damaged.
    """
    from vlmrl.evals.score.compare import compare_folders

    return compare_folders(Path(a), Path(b), tolerance=tolerance, force=force)


def ask(
    checkpoint: str | Path,
    question: str,
    *,
    images: Sequence[str | Path] = (),
    videos: Sequence[str | Path] = (),
    drawn: str | Path | None = None,
    recipe: str | None = None,
    answer_type: str | None = None,
    answer_format: str | None = None,
    frame: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
) -> Answered:
    """Ask a checkpoint about pictures and videos, with the pixels and the prompt that it was trained with.

    Args:
        videos: shown after the pictures.
        drawn: file (.png, .jpg) for the first medium as the model saw it, with the answer drawn on it.
        recipe: where none lies beside the checkpoint.
        answer_type, answer_format, frame, max_new_tokens: in place of what the recipe says.
        temperature: 0 is greedy.

    Returns:
        `.answer` (None if the text has none), `.thought`, `.text`, `.shown` (the media as the model saw them).

    Raises:
        ConfigError: checkpoint, question or a file cannot be used.
        MediaError, RowError: a medium cannot be decoded, or the prompt is too long.
    """
    from contextlib import closing

    from vlmrl.errors import ConfigError
    from vlmrl.evals.ask.asking import asking_of, chosen
    from vlmrl.evals.ask.models import LocalModel, compute_dtype
    from vlmrl.evals.ask.question import QuestionModel
    from vlmrl.evals.page import PAGES
    from vlmrl.policy.load import quiet_transformers

    media: list[tuple[MediaKind, Path]] = [*(("image", Path(path)) for path in images), *(("video", Path(path)) for path in videos)]
    if drawn is not None and not media:
        raise ConfigError("drawn: there is no picture and no video to draw on")
    path = Path(checkpoint)
    given = {"answer_type": answer_type, "answer_format": answer_format, "frame": frame}
    asking = chosen(asking_of(path, recipe), **given, max_new_tokens=max_new_tokens)
    quiet_transformers()
    model = LocalModel.load(path, device=device, dtype=compute_dtype(device, dtype))
    with closing(QuestionModel(model, asking)) as asker:
        said = asker.ask(question, media, temperature=temperature, seed=seed)
    if drawn is not None:
        PAGES["answer"](Path(drawn), said.sample, said.shown[0], said.answer)
    return said
