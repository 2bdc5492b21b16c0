"""The rollout journal: an append-only file of finished groups, so that a crash loses no rollout and a resumed step trains on the same ones.

One file per step and rank. A record is a line `<length> <crc32> <JSON>` (two times eight hex digits); the first says which step
and rank the file belongs to, and each one after carries its sequence number. What a crash tore off, from the first record that
does not check on, is cut away at replay: those groups are simply generated again, from the same seeds.
Floats are written in hexadecimal, so they come back bit for bit, infinities and NaN included.

A record says what its answers were sampled and scored for (`inputs`: media keys, hashes of question, prompt ids and gold answer), so
that they are never trained under other pixels, another question or another answer (`rollout.collect`).
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.errors import CheckpointError
from vlmrl.types import Group, Guidance, Prompt, Rollout, ScoredGroup, Scores

SCHEMA = 4
"""Version of the records; only this one is read. Those of schema 3 do not say what their answers were sampled for."""
SYNC_SECONDS = 1.0
_HEADER = 18
_NAME = re.compile(r"step-(\d{8})\.rank-(\d+)\.journal")


class Journal:
    """The journal of one step on one rank. Opening it reads what is there and cuts off a torn tail.

    Attributes:
        dropped_bytes: length of the tail that was cut off.
    """

    def __init__(self, folder: Path, global_step: int, rank: int = 0, *, clock: Callable[[], float] = time.monotonic):
        """Open or create the journal of a step.

        Raises:
            CheckpointError: the file is of another version, or was renamed from another step or rank.
            StorageError: the disk refused.
        """
        self.path = folder / f"step-{global_step:08d}.rank-{rank}.journal"
        self._clock = clock
        self._records: list[dict[str, Any]] = []
        fs.mkdir(folder)
        raw = self.path.read_bytes() if self.path.exists() else b""
        good = self._read(raw, {"global_step": global_step, "rank": rank})
        self.dropped_bytes = len(raw) - good
        if self.dropped_bytes:
            fs.truncate(self.path, good)  # or what is appended would stand behind a torn line, and never be read
        if good == 0:
            fs.append(self.path, _framed({"journal": SCHEMA, "global_step": global_step, "rank": rank}))
            fs.fsync_dir(folder)  # the file's name must outlive a crash as well
        self.sync()

    def replay(self) -> list[dict[str, Any]]:
        """List the records so far, in the order in which they were appended, without their sequence numbers."""
        return list(self._records)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one finished group; durable within a second of appending, at the latest at `sync` or `finish`.

        Args:
            record: JSON values with text keys; needs `group` and `sample` (ids), and may not use `seq`.

        Raises:
            StorageError: the disk refused; the journal then ends with the record before.
        """
        if not (isinstance(record.get("group"), str) and isinstance(record.get("sample"), str)) or "seq" in record:
            raise ValueError(f"a journal record needs texts 'group' and 'sample' and no 'seq'; it has {sorted(record)}")
        line = _framed({**record, "seq": len(self._records)})
        fs.append(self.path, line)
        # as it would be read back: what this process replays is what one after a crash does
        self._records.append(_without_seq(json.loads(line[_HEADER:])))
        # at most a second of groups can be lost, and these are sampled again from their seeds
        if self._clock() - self._synced >= SYNC_SECONDS:
            self.sync()

    def add_missing(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the records of groups that it does not have."""
        there = {record["group"] for record in self._records}
        for record in records:
            if record["group"] not in there:
                self.append(record)

    def sync(self) -> None:
        """Make all records durable. Call it before a wait that may be longer than a second."""
        fs.sync(self.path)
        self._synced = self._clock()

    def finish(self) -> None:
        """Make the journal durable at the end of collection."""
        self.sync()

    def _read(self, raw: bytes, identity: Mapping[str, int]) -> int:
        """Fill `_records` from the valid start of the file and return its length."""
        good = 0
        for number, (payload, end) in enumerate(_frames(raw)):
            if number == 0:
                _check_header(self.path, payload, identity)
            elif payload.get("seq") != number - 1:
                break  # a whole record in a wrong place: nothing behind it is trusted
            else:
                self._records.append(_without_seq(payload))
            good = end
        return good


def drop_before(folder: Path, global_step: int) -> int:
    """Delete the journals of steps before `global_step`, of all ranks: call it with the step of a checkpoint that is committed.

    Returns:
        Number of files deleted.
    """
    doomed = [p for p in sorted(folder.iterdir()) if (m := _NAME.fullmatch(p.name)) and int(m[1]) < global_step] if folder.is_dir() else []
    for path in doomed:
        fs.unlink(path)
    return len(doomed)


def rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    """Turn a rollout into JSON values."""
    routes = {"routes": list(rollout.routes)} if rollout.routes else {}  # records without them are those of earlier versions
    return routes | {
        "k": rollout.k,
        "ids": list(rollout.ids),
        "logprobs": [float(x).hex() for x in rollout.logprobs],
        "text": rollout.text,
        "finish": rollout.finish,
        "policy_version": rollout.policy_version,
        "provenance": rollout.provenance,
        "guidance": None if rollout.guidance is None else dataclasses.asdict(rollout.guidance),
    }


def rollout_from_json(value: Mapping[str, Any]) -> Rollout:
    """Make the rollout that `rollout_to_json` was given, bit for bit.

    Raises:
        CheckpointError: keys are missing or unknown.
    """
    value = {"routes": (), **value}
    _strict(value, Rollout)
    guidance: Guidance | None = None
    if value["guidance"] is not None:
        _strict(value["guidance"], Guidance)
        guidance = Guidance(**value["guidance"])
    logprobs = tuple(float.fromhex(x) for x in value["logprobs"])
    sampled = {"ids": tuple(value["ids"]), "logprobs": logprobs, "routes": tuple(value["routes"])}
    return Rollout(**{**value, **sampled, "guidance": guidance})


def scores_to_json(scores: Scores) -> dict[str, Any]:
    """Turn scores into JSON values; a reward that could not judge stays null."""
    return {
        "columns": list(scores.columns),
        "weights": [float(w).hex() for w in scores.weights],
        "rewards_GK": [[None if r is None else float(r).hex() for r in row] for row in scores.rewards_GK],
        "reasons": dict(scores.reasons),
    }


def scores_from_json(value: Mapping[str, Any]) -> Scores:
    """Make the scores that `scores_to_json` was given, bit for bit (integers as floats).

    Raises:
        CheckpointError: keys are missing or unknown.
    """
    _strict(value, Scores)
    return Scores(
        columns=tuple(value["columns"]),
        weights=tuple(float.fromhex(w) for w in value["weights"]),
        rewards_GK=tuple(tuple(None if r is None else float.fromhex(r) for r in row) for row in value["rewards_GK"]),
        reasons=dict(value["reasons"]),
    )


def scored_record(scored: ScoredGroup, notes: Mapping[str, int]) -> dict[str, Any]:
    """Make the record of a finished group."""
    unguided = scored.unguided
    return _record(scored.group) | {
        "scores": scores_to_json(scored.scores),
        "unguided": None if unguided is None else [[None if v is None else float(v).hex(), n] for v, n in unguided],
        "notes": dict(notes),
    }


def sampled_record(group: Group) -> dict[str, Any]:
    """Make the record of a group that waits for its scores: what was sampled, before the strategy adds rollouts of its own."""
    return _record(group) | {"scores": None, "unguided": None, "notes": {}}


def _record(group: Group) -> dict[str, Any]:
    return {
        "group": group.id,
        "sample": group.prompt.sample.id,
        "inputs": group.prompt.inputs(),
        "rollouts": [rollout_to_json(r) for r in group.rollouts],
    }


def changed_inputs(record: Mapping[str, Any], prompt: Prompt) -> list[str]:
    """List which of media, question, prompt and gold are not those that a record's answers were sampled and scored for; none if all are."""
    before, now = record["inputs"], prompt.inputs()
    return [part for part in now if before[part] != now[part]]


def rollouts_of(record: Mapping[str, Any]) -> tuple[Rollout, ...]:
    """Read the rollouts of a record."""
    return tuple(rollout_from_json(value) for value in record["rollouts"])


def scored_group(record: Mapping[str, Any], prompt: Prompt) -> ScoredGroup:
    """Make the group that `scored_record` was given, bit for bit, except its prompts with hints (`Group.guided`): those are not in it."""
    unguided = record["unguided"]
    return ScoredGroup(
        group=Group(id=record["group"], prompt=prompt, rollouts=rollouts_of(record)),
        scores=scores_from_json(record["scores"]),
        unguided=None if unguided is None else tuple((None if v is None else float.fromhex(v), n) for v, n in unguided),
    )


def _strict(value: Mapping[str, Any], kind: type[Rollout] | type[Scores] | type[Guidance]) -> None:
    expected = set(kind.__dataclass_fields__)
    if set(value) != expected:
        missing, unknown = sorted(expected - set(value)), sorted(set(value) - expected)
        raise CheckpointError(
            f"journal record of a {kind.__name__}: missing {missing}, unknown {unknown}; it was written by another version"
        )


def _framed(record: Mapping[str, Any]) -> bytes:
    # floats come as hexadecimal text, so a NaN that is met here is a mistake of the caller
    payload = json.dumps(record, sort_keys=True, allow_nan=False).encode()
    return b"%08x %08x " % (len(payload), zlib.crc32(payload)) + payload + b"\n"


def _frames(raw: bytes) -> list[tuple[dict[str, Any], int]]:
    """Read (record, end of its line) for each record up to the first whose length or checksum is wrong."""
    out: list[tuple[dict[str, Any], int]] = []
    place = 0
    while match := re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ").match(raw, place):
        start = place + _HEADER
        end = start + int(match[1], 16) + 1  # with the line's end
        payload = raw[start : end - 1]
        if raw[end - 1 : end] != b"\n" or zlib.crc32(payload) != int(match[2], 16):
            break
        out.append((json.loads(payload), end))
        place = end
    return out


def _check_header(path: Path, header: Mapping[str, Any], identity: Mapping[str, int]) -> None:
    written = header.get("journal", 0)
    if written > SCHEMA:
        raise CheckpointError(f"{path}: written with journal schema {written}, this version reads {SCHEMA}; upgrade vlmrl")
    if written < SCHEMA:
        raise CheckpointError(
            f"{path}: written with journal schema {written}, this version reads {SCHEMA}: it does not say what its answers were sampled "
            "for; go on with the version that wrote it until the next checkpoint, or delete this file (its step is then sampled again)"
        )
    found = {key: header.get(key) for key in identity}
    if found != identity:
        raise CheckpointError(f"{path}: belongs to {found}, not to {dict(identity)}; it was renamed or copied from another journal")


def _without_seq(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "seq"}
