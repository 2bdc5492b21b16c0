"""Conversations with rollout servers: a turn goes where the turns before it were read, while that server is there and has room."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence

import pytest

from tests.support import tiny
from tests.support.rollout_stand_in import Served
from tests.unit.extras.vllm.test_rollout_client import SETTINGS, _quick, ids, loaded, requests, served, wanted
from vlmrl.extras.agents.episodes import SessionEngine
from vlmrl.protocols import MultiTurnSession
from vlmrl.types import Request

__all__ = ["_quick", "loaded", "requests"]
CONVERSATIONS = 8


def turn(requests: Sequence[Request], number: int, among: Sequence[int] = range(CONVERSATIONS)) -> list[Request]:
    """A turn of each conversation; its seed says which one it is of."""
    return [
        dataclasses.replace(requests[0], seeds=(100 * number + n,), ks=(n,), conversations=(n,), alike=((n + 50,),), goes_on=True)
        for n in among
    ]


def places(servers: Sequence[Served], number: int) -> list[set[int]]:
    """Conversations that each server was asked for in a turn."""
    return [{seed - 100 * number for ask in one.engine.asks for seed in ask.seeds if 0 <= seed - 100 * number < 100} for one in servers]


def asked_at_once(session: MultiTurnSession, servers: Sequence[Served], wanted: Sequence[Request]) -> None:
    """All of them are with a server before the first is answered, so each has its share."""
    before = sum(len(one.engine.asks) for one in servers)
    for one in servers:
        one.engine.free.clear()

    def let_go() -> None:
        until = time.monotonic() + 20
        while sum(len(one.engine.asks) for one in servers) < before + len(wanted) and time.monotonic() < until:
            time.sleep(0.01)
        for one in servers:
            one.engine.free.set()

    thread = threading.Thread(target=let_go)
    thread.start()
    session.generate(wanted, SETTINGS)
    thread.join()


def test_a_conversation_stays_with_its_server(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded, 2, at_once=8) as (engine, servers):
        assert isinstance(engine, SessionEngine)
        engine.sync()
        with engine.session() as session:
            for number in range(4):
                asked_at_once(session, servers, turn(requests, number)[:: 1 if number % 2 else -1])
        first = places(servers, 0)
        assert [len(one) for one in first] == [4, 4]
        assert [places(servers, number) for number in range(4)] == [first] * 4
        with engine.session() as session:
            assert session.homes == {}, "another session knows nothing of it"
            asked_at_once(session, servers, turn(requests, 5))
            assert session.homes.keys() == {*range(8), *range(50, 58)}, "also of those that have not forked yet"
            session.forget([0, 51])
            assert session.homes.keys() == {*range(1, 8), *range(50, 58)} - {51}


def test_a_server_with_time_takes_what_another_has_no_room_for(loaded: tiny.Tiny, requests: list[Request]) -> None:
    """All conversations that are left belong to one server; the other one helps."""
    with served(loaded, 2, at_once=8) as (engine, servers):
        engine.sync()
        with engine.session() as session:
            asked_at_once(session, servers, turn(requests, 0))
            mine = sorted(places(servers, 0)[0])
            asked_at_once(session, servers, turn(requests, 1, mine))
        assert [len(one) for one in places(servers, 1)] == [2, 2]


def test_conversations_of_a_lost_server_go_on_elsewhere(loaded: tiny.Tiny, requests: list[Request]) -> None:
    with served(loaded, 2, at_once=8) as (engine, (dying, other)):
        engine.sync()
        with engine.session() as session:
            asked_at_once(session, (dying, other), turn(requests, 0))
            dying.kill()
            for number in (1, 2):
                asked = turn(requests, number)
                assert ids(session.generate(asked, SETTINGS)) == wanted(engine, asked)
                assert places([other], number) == [set(range(CONVERSATIONS))]
            assert set(session.homes.values()) == {other.address}


def test_without_a_session_turns_go_anywhere(loaded: tiny.Tiny, requests: list[Request]) -> None:
    """The control: the same conversations in the other order, without a session."""
    with served(loaded, 2, at_once=8) as (engine, servers):
        engine.sync()

        class Plain:
            def generate(self, wanted, settings):
                return engine.generate(wanted, settings)

        for number in range(12):
            asked_at_once(Plain(), servers, turn(requests, number)[:: 1 if number % 2 else -1])  # pyright: ignore[reportArgumentType]
        assert any(places(servers, number) != places(servers, 0) for number in range(1, 12))


@pytest.mark.parametrize("answers", [1, 3])
def test_a_group_that_begins_alike_is_one_request(loaded: tiny.Tiny, requests: list[Request], answers: int) -> None:
    """First turns of a task are asked together, so that its attempts stay together."""
    with served(loaded, 2, at_once=8) as (engine, _):
        engine.sync()
        with engine.session() as session:
            group = dataclasses.replace(
                requests[0], seeds=tuple(range(answers)), ks=tuple(range(answers)), conversations=tuple(range(answers))
            )
            session.generate([group], SETTINGS)
            home = session.homes[0]
            assert session.homes == dict.fromkeys(range(answers), home)
