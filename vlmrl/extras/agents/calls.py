"""Tool calls in answers: `<tool_call>{"name": "zoom", "arguments": {"box": [0, 0, 500, 500]}}</tool_call>`, the form of Qwen's templates.

A turn is one call or the final answer. What is neither is told why in a sentence, which the policy reads at its next turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from vlmrl.answers.tags import FREE, answer_view, parse

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(re.escape(OPEN) + r"(.*?)(?:" + re.escape(CLOSE) + r"|$)", re.DOTALL)
_LONGEST = 4096
"""Characters of a call."""


class Unusable(Exception):
    """The policy's turn is neither a call that can be made nor an answer. The message is a sentence for the policy."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool and its arguments, as they were written."""

    name: str
    arguments: Mapping[str, Any]

    def text(self) -> str:
        """As a policy writes it."""
        return f"{OPEN}{json.dumps({'name': self.name, 'arguments': dict(self.arguments)})}{CLOSE}"


@dataclass(frozen=True)
class Final:
    """The final answer."""

    text: str


def read_turn(text: str, answer_format: str) -> Call | Final:
    """What a policy does with a turn. A call may stand in the answer's tags, or alone behind the thought; calls in a thought do not count.

    Raises:
        Unusable: it does nothing that can be done.
    """
    answer = None if answer_format == FREE else parse(text, answer_format).answer
    body = answer_view(text) if answer is None else answer
    calls = _CALL.findall(body)
    if len(calls) > 1:
        raise Unusable(f"There are {len(calls)} tool calls in one turn. Make one, then look at what it shows.")
    if calls:
        return _call(calls[0])
    if answer is None and answer_format != FREE:
        raise Unusable("This is neither a tool call nor an answer in <answer></answer>.")
    return Final(body)


def _call(text: str) -> Call:
    if len(text) > _LONGEST:
        raise Unusable(f"The tool call has more than {_LONGEST} characters.")
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unusable(f'The tool call is not JSON of the form {OPEN}{{"name": ..., "arguments": {{...}}}}{CLOSE}.')
    call = cast("dict[str, Any]", value)
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict) or set(call) != {"name", "arguments"}:
        raise Unusable("A tool call has a name, which is a text, and arguments, which are an object, and nothing else.")
    return Call(name=name, arguments=cast("dict[str, Any]", arguments))


def number(arguments: Mapping[str, Any], name: str) -> float:
    """An argument that is a finite number.

    Raises:
        Unusable: it is missing or something else.
    """
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise Unusable(f"The argument '{name}' must be a number.")
    return float(value)


def whole(arguments: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """An argument that is a whole number within bounds, `default` where it is not given.

    Raises:
        Unusable: it is something else.
    """
    value = arguments.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Unusable(f"The argument '{name}' must be a whole number from {least} to {most}.")
    return value
