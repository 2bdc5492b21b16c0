"""The main program of an environment worker: reads requests from a pipe, acts, writes what is seen to another.

A process holds several environments, by number. Exceptions of an environment are answered with their reason, and that environment is
dropped; whatever else goes wrong ends the process, which the parent notices. Screens travel as base64 in JSON.
"""

from __future__ import annotations

import base64
import importlib
import os
from collections.abc import Mapping
from typing import Any

from vlmrl.extras.agents.protocol import OUTCOMES, Environment, Explorable, Observation, Solvable, Transition, info_problem
from vlmrl.protocols import environment as registry
from vlmrl.rewards.run.worker import fault, lift_memory_limit, limit_cpu, limit_memory, serve

FOLDER = os.getcwd()


class ProtocolError(Exception):
    """An environment returned what no environment may return."""


def main(setup: Mapping[str, Any]) -> None:
    """Serve until the parent closes the pipe."""
    serve(setup, _Worker(setup["memory"]).answer)


class _Worker:
    """The environments that are open, by number."""

    def __init__(self, memory: int):
        self.memory = memory
        self.open: dict[int, Environment] = {}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What an operation gave, or a `reason` with a `detail`."""
        number, operation = int(request["place"]), str(request["do"])
        try:
            limit_cpu(request["deadline"])
            if operation == "open":
                return self._open(number, request)
            if operation == "close":
                held = self.open.pop(number, None)
                if held is not None:
                    held.close()
                return {}
            return self._act(self.open[number], operation, request)
        except MemoryError as error:
            reason, told = "memory", error
        except ProtocolError as error:
            reason, told = "protocol", error
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 (the border of environments: a fault, never a reward)
            reason, told = f"raised:{type(error).__name__}", error
        self.open.pop(number, None)
        return fault(reason, told)

    def _open(self, number: int, request: Mapping[str, Any]) -> dict[str, Any]:
        lift_memory_limit()
        for name in request["modules"]:
            importlib.import_module(name)
        self.open[number] = made = registry.bind(request["name"], request["arguments"])()
        limit_memory(self.memory)
        identity = dict(made.identity)
        if not all(isinstance(value, str) for pair in identity.items() for value in pair):
            raise ProtocolError(f"identity is {identity!r:.200}; it must map texts to texts")
        return {"identity": identity}

    def _act(self, held: Environment, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if operation == "reset":
            seen = held.reset(request["task"], request["seed"])
            best = held.optimum() if isinstance(held, Solvable) else None
            return {"seen": _observation(seen), "optimum": None if best is None else [float(best.reward), int(best.turns)]}
        if operation == "step":
            return _transition(held.step(request["action"]))
        if operation == "propose":
            return {"action": held.propose(request["n"]) if isinstance(held, Explorable) else None}
        if operation == "solve":
            return {"action": held.solve() if isinstance(held, Solvable) else None}
        raise ProtocolError(f"unknown operation '{operation}'")


def _observation(seen: Any) -> dict[str, Any]:
    if not isinstance(seen, Observation) or not isinstance(seen.text, str):
        raise ProtocolError(f"an environment shows an Observation, not {seen!r:.200}")
    if not all(isinstance(data, bytes) and data for data in seen.screens):
        raise ProtocolError("screens are files of pictures, as bytes")
    return {"text": seen.text, "state": seen.state, "screens": [base64.b64encode(data).decode("ascii") for data in seen.screens]}


def _transition(came: Any) -> dict[str, Any]:
    if not isinstance(came, Transition):
        raise ProtocolError(f"a step gives a Transition, not {came!r:.200}")
    reward = float(came.reward)
    if reward != reward or reward in (float("inf"), float("-inf")) or came.outcome not in OUTCOMES:
        raise ProtocolError(f"reward {came.reward!r} and outcome '{came.outcome}': a finite number, and one of {', '.join(OUTCOMES[1:])}")
    problem = info_problem(came.info)
    if problem is not None:
        raise ProtocolError(problem)
    info = {name: value if isinstance(value, str) else float(value) for name, value in came.info.items()}
    seen = None if came.observation is None else _observation(came.observation)
    return {"seen": seen, "reward": reward.hex(), "outcome": came.outcome, **({"info": info} if info else {})}
