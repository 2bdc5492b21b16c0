"""Optional parts, a folder each, and the one list of what they add to the core.

The core runs without any of them and names none: a `vlmrl.registry.Catalogue` asks this table for what is not its own.
"""

from __future__ import annotations

from collections.abc import Mapping

PROVIDES: Mapping[str, Mapping[str, str]] = {
    "collector": {"episodes": "vlmrl.extras.agents.collect:of_episodes"},
    "generated world": {
        "prepare": "vlmrl.extras.toy.base:prepare",
        "world": "vlmrl.extras.toy.base:world",
        "default_world": "vlmrl.extras.toy.base:default_world",
        "untrained": "vlmrl.extras.toy.base:untrained",
    },
    "kind of toy pictures": {k: f"vlmrl.extras.agents.toy_{k}:{k.upper()}" for k in ("zoom", "stripes", "clip", "lake", "pages")},
    "evaluation of episodes": {
        "task": "vlmrl.extras.agents.suite_tasks:play_task",
        "task_of_run": "vlmrl.extras.agents.run_tasks:play_suite_task",
        "held_out": "vlmrl.extras.agents.run_tasks:play_rows",
    },
    "way to read prompts together": {"openings": "vlmrl.extras.agents.openings:generate"},
    "conversation": {"told": "vlmrl.extras.agents.conversation:told", "again": "vlmrl.extras.agents.again:TurnsAgain"},
    "layout": {"chains": "vlmrl.extras.agents.chains:CHAINS", "trees": "vlmrl.extras.agents.trie:TREES"},
    "backend for trees": {"merge": "vlmrl.extras.agents.tree_attention:merge", "two_call": "vlmrl.extras.agents.tree_attention:two_call"},
    "importer": {"rows": "vlmrl.extras.importers.foreign:ForeignRows"},
    "adapter": {
        "tasks": "vlmrl.extras.importers:tasks",
        "trl": "vlmrl.extras.importers:trl",
        "verl": "vlmrl.extras.importers:verl",
        "easyr1": "vlmrl.extras.importers:easyr1",
        "messages": "vlmrl.extras.importers:messages",
        "vlm_r1": "vlmrl.extras.importers:vlm_r1",
        "video_r1": "vlmrl.extras.importers:video_r1",
    },
    "container of rows": {"folder": "vlmrl.extras.importers.containers:resolve"},
    "format of rows": {
        "json": "vlmrl.extras.importers.json_array:elements",
        "csv": "vlmrl.extras.importers.delimited:records",
        "tsv": "vlmrl.extras.importers.delimited:records",
    },
    "names of columns": {"usual": "vlmrl.extras.importers.hints:USUAL"},
    "page": {
        "run": "vlmrl.extras.pages.view.save:write_page",
        "questions": "vlmrl.extras.pages.kept.asked:keep",
        "comparison": "vlmrl.extras.pages.view.save:write_comparison",
        "check": "vlmrl.extras.pages.documents.check:CheckRows",
        "answer": "vlmrl.extras.pages.drawn:draw_answer",
        "replay": "vlmrl.extras.agents.replay_page:write_replay",
    },
    "forecast of memory": {"plan": "vlmrl.extras.plan.ledger:foresee"},
    "section of a stage": {"distill": "vlmrl.extras.distill.section:DistillSection", "teacher_sft": "vlmrl.extras.distill.section:Imitate"},
    "kind of stage": {"distill": "vlmrl.extras.distill.stage:distill", "teacher_sft": "vlmrl.extras.distill.stage:teacher_sft"},
    "check of stages": {"distill": "vlmrl.extras.distill.check:check_sides"},
    "check of a GPU": {"plan": "vlmrl.extras.plan.recipe:warning"},
    "check of methods": {"trial": "vlmrl.extras.trial.theirs:try_methods"},
    "rollout engine": {"vllm": "vlmrl.extras.vllm.stage:VLLM"},
    "servers of a teacher": {"vllm": "vlmrl.extras.vllm.scorer:of_servers"},
    "engine of evaluations": {"vllm": "vlmrl.extras.vllm.evaluation:opened"},
    "rows of Python": {"suite": "vlmrl.extras.python.checked:suite"},
    "service of a run": {"judges": "vlmrl.extras.judges.services:of_run"},
    "served model": {"endpoint": "vlmrl.extras.judges.endpoint:ServedModel"},
    "judge of answers": {"thoughts": "vlmrl.extras.judges.thoughts:judged_records"},
    "training engine": {
        "fsdp": "vlmrl.extras.scale.fsdp:Fsdp",
        "zero2": "vlmrl.extras.scale.zero:Zero2",
        "zero3": "vlmrl.extras.scale.zero:Zero3",
    },
    "function of several ranks": {
        "join": "vlmrl.extras.scale.join:join",
        "passes": "vlmrl.extras.scale.lockstep:agreed",
        "stop_restarts": "vlmrl.extras.scale.launch:stop_restarts",
    },
    "optional part of a run": {
        "keep": "vlmrl.extras.pages.recorder:GroupRecorder",
        "keep.table": "vlmrl.extras.trackers.tables:send",
        "run.push_to_hub": "vlmrl.extras.publish.push:of_run",
        "run.threads": "vlmrl.extras.scale.measured:settle",
        "run.trackers": "vlmrl.extras.trackers.start:checked",
        "export.dtype": "vlmrl.extras.publish.dtype:chosen",
        "export.round": "vlmrl.extras.publish.dtype:round_weights",
        "stages.epochs": "vlmrl.extras.resume.epochs:as_steps",
        "stages.steps": "vlmrl.extras.resume.steps:moved",
        "stages.touched": "vlmrl.extras.touched.watch:watched",
        "checkpoint.asynchronous": "vlmrl.extras.scale.background:Background",
        "checkpoint.mirror": "vlmrl.extras.scale.mirror:Mirror",
        "train.offload_activations": "vlmrl.extras.scale.offload:offloaded",
        "train.sequence": "vlmrl.extras.scale.sharing:sharing",
    },
    "optimizer": {"adamw8bit": "vlmrl.extras.scale.adamw8bit:make", "muon": "vlmrl.extras.scale.muon:make"},
    "report beside a model": {"conform.json": "vlmrl.extras.families.verdict:read"},
    "model type": {"qwen3_5": "vlmrl.extras.families.qwen3_5:QWEN3_5"},
    "family": {"generic": "vlmrl.extras.families.family:given"},
}
"""Kind of a `Catalogue` -> name in a recipe -> `module:attribute`, imported when it is asked for."""

METHODS: Mapping[str, str] = {
    "environment": "vlmrl.extras.agents.worlds",
    "reward": "vlmrl.extras.judges.rewards",
    "reweight": "vlmrl.extras.distill.methods",
}
"""Slot -> package whose modules register methods of it when they are imported, which `vlmrl.methods` does."""
