"""A protocol says how somebody else asks and scores: settings of tasks by name, in a YAML file (`evals/protocols/<name>.yaml`).

id: tempsamp_paper
title: as TempSamp-R1 evaluates
source: where this stands
settings: {extraction: first, media: {fps: 2.0}}          # of all its tasks
tasks:
  charades_sta: {scoring: {take: first, decimals: 0}}     # of one, over those of all
  activitynet_captions: {}

A suite or a task names it (`protocol: tempsamp_paper`). Its settings come over those of the task's own file, and what the suite says of the
task comes over both; each key is replaced as a whole. A protocol changes how a task is asked and scored, never which rows it has.
"""

from __future__ import annotations

from pathlib import Path

from vlmrl import paths
from vlmrl.config import tree
from vlmrl.config.tree import Node
from vlmrl.registry import nearest

FOLDER = paths.shipped("evals", "protocols")
KEYS = ("id", "title", "source", "settings", "tasks")
SETTINGS = (
    *("answer_format", "max_new_tokens", "samples", "temperature", "top_p", "metrics", "primary", "extraction", "scoring"),
    *("prompt", "max_prompt_tokens", "media"),
)
"""Keys of a task that a protocol may set."""


def protocol_settings(name: str, task: str, origin: str, problems: list[str], *, beside: Path) -> dict[str, Node]:
    """Read what a protocol sets of a task, by key; each node remembers its file and line. What is wrong is appended to `problems`.

    Args:
        name: of the protocol, or a YAML file.
        task: id of the task.
        origin: file and line that name the protocol.
        beside: folder of the suite, which is looked at before the working folder.
    """
    found = paths.find("protocol", name, beside=(beside,))
    if found is None:
        known = paths.names("protocol")
        problems.append(f"{origin}: no protocol '{name}'{nearest(name, known)}; ours are: {', '.join(known)}")
        return {}
    root = tree.read(found.path, problems).mapping or {}
    _unknown(root, KEYS, "", problems)
    tasks = root["tasks"].mapping if "tasks" in root else None
    if tasks is None:
        problems.append(f"{found.path}: tasks: is missing; it names the tasks that the protocol is for")
        return {}
    if task not in tasks:
        problems.append(
            f"{origin}: protocol '{name}' says nothing of task '{task}'{nearest(task, list(tasks))} (it has: {', '.join(tasks)})"
        )
        return {}
    settings: dict[str, Node] = {}
    # what it says of all its tasks first, what it says of this one over it
    for where, node in (("settings", root.get("settings")), (f"tasks.{task}", tasks[task])):
        own = {} if node is None or node.value is None else node.mapping
        if own is None:
            problems.append(f"{node.origin if node else origin}: {where}: expected a mapping of settings")
            continue
        _unknown(own, SETTINGS, f"{where}.", problems)
        settings |= own
    return settings


def _unknown(given: dict[str, Node], known: tuple[str, ...], where: str, problems: list[str]) -> None:
    problems += [
        f"{node.origin}: {where}{key}: unknown key '{key}'{nearest(key, list(known))} (a protocol has here: {', '.join(known)})"
        for key, node in given.items()
        if key not in known
    ]
