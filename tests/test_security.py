"""SECURITY.md says what is true: each promise names tests that exist, and the lists in it are those of the code."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.support.documents import tables
from tests.test_layering import FILES, forget, imports, is_under, module
from vlmrl import protocols
from vlmrl.methods import registries

ROOT = Path(__file__).parents[1]
(TABLE,) = [table for table in tables("SECURITY.md") if table.header[0] == "What comes in"]
PROMISES = {row[0]: row for row in TABLE.rows}
TESTS = re.compile(r"`(test_\w+)`")

CLIENTS = {
    *("httpx", "httpcore", "fsspec", "huggingface_hub", "urllib.request", "http.client", "socket"),
    *("requests", "aiohttp", "websockets", "smtplib", "ftplib", "trackio", "swanlab", "mlflow", "wandb"),
}
"""What can reach another machine."""
REACHES = {
    "extras.judges": "judges, reward models, a served model that is evaluated",
    "extras.vllm": "rollout servers",
    "extras.agents.worlds.android_world": "servers of an environment",
    "extras.agents.worlds.openenv": "servers of an environment",
    "extras.scale.mirror": "`checkpoint.mirror`",
    "extras.trackers": "trackers of `run.trackers`",
    "extras.publish.hub": "`vlmrl publish`",
    "policy.found": "models on the Hugging Face hub",
    "extras.scale.beacon": "ranks of one job",
    "extras.scale.watchdog": "ranks of one job",
    "extras.scale.launch": "ranks of one job",
}
"""Module -> how the row of the network calls what it reaches."""
STAYS = {
    "run.listing": "the name of this machine",
    "run.rundir": "the name of this machine",
    "media.workers": "a pair of sockets to a process of its own",
    "run.audit_pool": "a pair of sockets to a process of its own",
    "web.listen": "is asked, and asks nobody",
    "extras.families.conform.shards": "asks for a free port of this machine, for two ranks on it",
    "extras.starter.models": "reads the hub's cache on this machine",
}
"""Modules with sockets that reach nobody."""


@functools.cache
def defined() -> dict[str, int]:
    """Names of test functions, and how often each is there."""
    found: dict[str, int] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = found.get(node.name, 0) + 1
    return found


@pytest.mark.parametrize("row", list(PROMISES))
def test_each_promise_names_tests_that_exist(row: str) -> None:
    names = TESTS.findall(PROMISES[row][2])
    assert names, "a promise without a test"
    there = defined()
    assert [name for name in names if there.get(name) != 1] == [], "no test has that name, or several have"


def test_rewards_that_ask_a_service_are_named() -> None:
    """And no others: those that decide by rule are computed here."""
    registries()
    asking = {n for n in protocols.reward.names() if protocols.reward.get(n).extra.get("service")}
    named = {mark for mark in re.findall(r"`(\w+)`", PROMISES["Rewards"][1])}
    assert {n for n in asking if protocols.reward.get(n).ours} == named


def test_only_these_modules_reach_the_network() -> None:
    told = PROMISES["Network"][1]
    assert [phrase for phrase in REACHES.values() if phrase not in told] == []
    words = {client.partition(".")[0] for client in CLIENTS}
    reach = {
        module(path)
        for path in FILES
        if any(word in path.read_text(encoding="utf-8") for word in words)
        for _, name in imports(path)
        if any(name == client or name.startswith(f"{client}.") for client in CLIENTS)
    }
    forget()
    assert sorted(one for one in reach if not is_under(one, {*REACHES, *STAYS})) == []
    assert [known for known in (*REACHES, *STAYS) if not any(is_under(one, {known}) for one in reach)] == [], "said of nobody any more"
