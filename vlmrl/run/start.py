"""A run from recipe to report: open the directory, restore, go through the stages, evaluate between them, export, report.

Everything durable that happens here is either a function of the recipe (exports, evaluation records: kept when they are already
there and as they were written) or in a checkpoint, so the same command after a crash goes on where it was. What a stage is and does,
its kind knows (`run.kinds`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vlmrl import faults
from vlmrl.config.load import ResolvedRecipe
from vlmrl.config.schema import Config, validate
from vlmrl.errors import ConfigError, VlmrlError
from vlmrl.methods import method_doubts, method_problems
from vlmrl.policy.load import quiet_transformers
from vlmrl.registry import Catalogue
from vlmrl.run import build, kinds  # noqa: F401 (registers the kinds of the package)
from vlmrl.run.about import about
from vlmrl.run.engines import close_engines, own_allocator
from vlmrl.run.evaluate import eval_notes, eval_problems, evaluate_stage, remember_stage
from vlmrl.run.export import export, link
from vlmrl.run.finished import lost_of_finished
from vlmrl.run.machine import settled, told
from vlmrl.run.open_stage import check_rewards
from vlmrl.run.optional import OPTIONAL, SecondPlace
from vlmrl.run.results import check_evaluations, show_results
from vlmrl.run.resume import reopen, verify
from vlmrl.run.rundir import Options, RunDir, open_run
from vlmrl.run.session import Places, Service, Session, fixed_options, open_session
from vlmrl.run.ui import Ui
from vlmrl.train import dist

COMPILED = Path("~/.cache/vlmrl/inductor")
"""Where torch keeps what it compiles, unless the user says otherwise."""
SERVICES: Catalogue[Callable[[Path, int, Callable[[], bool]], AbstractContextManager[Service]]] = Catalogue("service of a run")
"""What is opened around a run's stages, of its directory, the rank, and what says whether the run is asked to stop."""


def train_from(loaded: ResolvedRecipe, places: Places, ui: Ui, *, profile_steps: int = 0) -> Path:
    """Run a recipe to its end and return the run directory. The same call resumes an interrupted run.

    With `profile_steps`, that many steps of each stage are traced (`run.profile`); what is trained stays the same.

    Raises:
        VlmrlError: with the exit code of its kind; what was saved stays.
    """
    cfg = loaded.config
    set_torch(cfg)
    dist.start(cfg.train.patience, offloads=cfg.train.offload != "none")
    problems = [*validate(cfg), *method_problems(cfg), *eval_problems(cfg)]
    if problems:
        raise ConfigError(problems)
    for text in method_doubts(cfg):
        ui.say(f"warning: {text}")
    for text in eval_notes(cfg):
        ui.say(text)
    quiet_transformers()
    main = dist.is_main()
    given = loaded.hash
    if any(stage.epochs for stage in cfg.stages):
        loaded = OPTIONAL["stages.epochs"](loaded, places.data, ui.say)
    asked, loaded = loaded, settled(loaded, places.model)

    def options(of: ResolvedRecipe) -> Options:
        return Options(of.text, of.hash, fixed_options(of.config))

    def threads(run: Path) -> None:
        if said := OPTIONAL["run.threads"](cfg, run, places.model):
            ui.say(said)

    def go_on(run: RunDir, began: Mapping[str, Any]) -> Options:
        threads(run.path)
        now = options(settled(asked, places.model, began))
        return now if now.fixed == began else now._replace(began=OPTIONAL["stages.steps"](run, began, now.fixed, cfg))

    if not (Path(cfg.run.root) / cfg.run.name / "run.json").exists():
        threads(Path(cfg.run.root) / cfg.run.name)
    mirror: SecondPlace | None = None
    if cfg.checkpoint.mirror is not None:
        mirror = OPTIONAL["checkpoint.mirror"](cfg.checkpoint.mirror, cfg.run.name)
    with open_run(
        cfg.run.root,
        cfg.run.name,
        options(loaded),
        settle=go_on,
        fetch=None if mirror is None else mirror.pull,
        run_synchronized=dist.run_synchronized,
        is_main=main,
    ) as run:
        loaded = settled(asked, places.model, dist.gather(run.fixed)[0])
        cfg = loaded.config
        for note in [*run.notes, *told(asked.config, cfg, resumed=run.resumed)]:
            ui.say(note)
        publisher = None if cfg.run.push_to_hub is None else OPTIONAL["run.push_to_hub"](cfg, run, ui.say)
        lost = dist.gather(dist.on_main(lambda: lost_of_finished(run, cfg, ui.say)))[0] if run.finished else None
        if lost == []:
            ui.say(f"{run.path} is already finished")
            dist.on_main(lambda: _conclude(run, given, ui, publisher))
            return run.path
        session = open_session(cfg, loaded.hash, places, run, ui)
        session.mirror, session.publisher = mirror, publisher
        if publisher is not None:
            dist.on_main(publisher.open)
        if lost:
            reopen(session, lost)
        session.profile_steps = profile_steps
        _to_the_end(session)
        dist.on_main(run.finish)
        dist.on_main(lambda: _conclude(run, given, ui, publisher))
        return run.path


def _to_the_end(s: Session) -> None:
    """Open what stands around the stages, run them, and close everything, also where they fail."""
    try:
        with ExitStack() as opened:
            for service in SERVICES.values():
                s.services.append(opened.enter_context(service(s.run.path, dist.rank(), lambda: s.run.stop_requested)))
            _stages(s)
    finally:
        _let_end(s)
        if s.publisher is not None and dist.is_main():
            s.publisher.close()
        close_engines(s)
        s.tracker.close()
        s.store.close()


def _conclude(run: RunDir, given: str, ui: Ui, publisher: Any) -> None:
    """Show what a finished run has come to, upload it, and keep that this went well for a start with the recipe of the hash `given`."""
    come_to = show_results(run.path, ui)
    if publisher is not None:
        publisher.end()
    check_evaluations(run.path)
    run.finish(recipe=given, come_to=come_to)


def set_torch(cfg: Config) -> None:
    """What holds for the whole process, before anything touches a device.

    What is compiled is kept beside the caches, for the other ranks and the next start.

    Segments of the device's memory that can grow: rows of every length and caches that come and go leave no holes that nothing fits into.
    An engine with an allocator of its own refuses them.
    """
    if not ({"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ) or own_allocator(cfg)):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(COMPILED.expanduser()))
    if cfg.run.threads:
        torch.set_num_threads(cfg.run.threads)
    if cfg.run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products on CUDA have no fixed order without it
    torch.use_deterministic_algorithms(cfg.run.deterministic, warn_only=True)
    # on by default with the former: a write to every fresh tensor, to find reads of what nobody wrote
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (a property of the module, which has no type)


def _let_end(s: Session) -> None:
    """A run that stops with an error lets a checkpoint that is being written end; what that one fails with is said."""
    if s.background is not None:
        try:
            s.background.settle(wait=True)
        except (VlmrlError, OSError, RuntimeError) as error:  # another one is being raised
            s.ui.say(f"checkpoint not saved: {error}")


def _stages(s: Session) -> None:
    """Verify what the run goes on from; try the rewards; evaluate; then each stage: build and run it, export, evaluate."""
    verify(s)
    s.open_policy()
    check_rewards(s)
    if s.state.stage == 0 and s.cfg.eval.at_start:
        if s.state.step == 0:
            evaluate_stage(s, "base", s.policy, s.vision)
        elif (s.run.eval / "base.jsonl").exists():  # a recipe may ask nothing, and a failed evaluation leaves no records
            remember_stage(s, "base")
    for index in range(s.state.stage, len(s.cfg.stages)):
        cfg = s.cfg.stages[index]
        if s.state.stage != index:
            s.state.start_stage(index)
        kinds.run_stage(s, cfg)
        dist.doing(f"export of '{cfg.name}'")
        with s.clock.phase("export"):
            folder = s.stage_folder(index)
            _export(s, folder)
            s.take_in(folder)
        if s.publisher is not None and index < len(s.cfg.stages) - 1:
            dist.on_main(partial(s.publisher.stage, folder, cfg.name))
        faults.point("stage.exported")
        evaluate_stage(s, cfg.name, s.policy, s.vision)
        faults.point("stage.finished")
        s.base, s.restored = str(folder), None
    dist.on_main(lambda: link(Path(s.base), s.run.path / "final"))
    s.tracker.log(s.clock.metrics(), stage="run", step=s.state.step, global_step=s.state.global_step)


def _export(s: Session, folder: Path) -> None:
    """The stage's weights as a folder whose digest the run remembers."""
    known = s.identity.exports.get(folder.relative_to(s.run.path).as_posix())
    last = folder == s.stage_folder(len(s.cfg.stages) - 1)  # others begin from the rest
    seal = export(s.policy, folder, known, about(s), dtype=s.export_dtype if last else torch.float32)
    dist.on_main(lambda: s.identity.made(folder, seal))
