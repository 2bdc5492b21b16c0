"""Optional parts, a folder each, and the one list of what they add to the core.

The core runs without any of them and names none: a `vlmrl.registry.Catalogue` asks this table for what is not its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PROVIDES: Mapping[str, Mapping[str, str]] = {
    "collector": {"episodes": "vlmrl.run.world:of_episodes"},
    "kind of toy pictures": {"zoom": "vlmrl.toy.zoom:ZOOM"},
    "evaluation of episodes": {
        "task": "vlmrl.evals.ask.episode_tasks:play_task",
        "task_of_run": "vlmrl.run.played:play_suite_task",
        "held_out": "vlmrl.run.played:play_rows",
    },
    "layout": {"chains": "vlmrl.policy.chains:CHAINS", "trees": "vlmrl.policy.trie:TREES"},
    "backend for trees": {"merge": "vlmrl.policy.tree_attention:merge", "two_call": "vlmrl.policy.tree_attention:two_call"},
    "importer": {"rows": "vlmrl.data.adapters.foreign:ForeignRows"},
    "adapter": {
        "tasks": "vlmrl.data.adapters:tasks",
        "trl": "vlmrl.data.adapters:trl",
        "verl": "vlmrl.data.adapters:verl",
        "easyr1": "vlmrl.data.adapters:easyr1",
        "messages": "vlmrl.data.adapters:messages",
        "vlm_r1": "vlmrl.data.adapters:vlm_r1",
        "video_r1": "vlmrl.data.adapters:video_r1",
    },
    "container of rows": {"folder": "vlmrl.data.containers:resolve"},
    "format of rows": {
        "json": "vlmrl.data.json_array:elements",
        "csv": "vlmrl.data.delimited:records",
        "tsv": "vlmrl.data.delimited:records",
    },
    "page": {
        "run": "vlmrl.evals.pages.run_page:write_report",
        "evaluation": "vlmrl.evals.pages.pictures:PictureRecorder",
        "comparison": "vlmrl.evals.pages.eval_page:write_comparison",
        "check": "vlmrl.evals.pages.check_page:CheckRows",
        "answer": "vlmrl.evals.pages.drawn:draw_answer",
        "replay": "vlmrl.evals.pages.replay_page:write_replay",
    },
    "forecast of memory": {"plan": "vlmrl.run.memory_plan:foresee"},
    "check of a GPU": {"plan": "vlmrl.plan.recipe:warning"},
    "rollout engine": {"vllm": "vlmrl.run.vllm_engine:VLLM"},
    "engine of evaluations": {"vllm": "vlmrl.evals.ask.vllm_model:opened"},
    "service of a run": {"judges": "vlmrl.rewards.remote.services:of_run"},
    "served model": {"endpoint": "vlmrl.evals.ask.endpoint:ServedModel"},
    "judge of answers": {"thoughts": "vlmrl.evals.score.thoughts:judged_records"},
    "training engine": {
        "fsdp": "vlmrl.train.shard.fsdp:Fsdp",
        "zero2": "vlmrl.train.shard.zero:Zero2",
        "zero3": "vlmrl.train.shard.zero:Zero3",
    },
    "function of several ranks": {
        "join": "vlmrl.train.shard.join:join",
        "passes": "vlmrl.train.shard.lockstep:agreed",
        "stop_restarts": "vlmrl.run.launch:stop_restarts",
    },
    "optional part of a run": {
        "checkpoint.asynchronous": "vlmrl.run.background:Background",
        "checkpoint.mirror": "vlmrl.run.mirror:Mirror",
        "train.offload_activations": "vlmrl.policy.offload:offloaded",
        "train.sequence": "vlmrl.train.shard.sequence:sharing",
    },
    "optimizer": {"adamw8bit": "vlmrl.train.shard.adamw8bit:make", "muon": "vlmrl.train.shard.muon:make"},
    "report beside a model": {"conform.json": "vlmrl.families.verdict:read"},
    "family": {"generic": "vlmrl.extras.families.family:given"},
}
"""Kind of a `Catalogue` -> name in a recipe -> `module:attribute`, imported when it is asked for."""

METHODS: Sequence[str] = ("vlmrl.envs.worlds",)
"""Packages whose modules register methods when they are imported, which `vlmrl.methods` does."""
