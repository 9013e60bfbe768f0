"""Pulls that are taken as they come: the answers are those of the handler, whatever changed since the same was asked before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

import pytest

from brokerd.consuming.read_place import PullSettings
from brokerd.members.consumer_groups import BROADCASTING, ClientInfo, ConsumerData, Subscription
from brokerd.metadata.configs import TopicConfig
from brokerd.processors.pulling import asked, quick
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION, FLAG_SUSPEND
from brokerd.processors.pulling.quick import QuickPulls
from brokerd.processors.pulling.standing import Standing
from brokerd.processors.pulling.terms import PullTerms
from brokerd.store.unit import UNIT_BYTES
from remoting import codes, frame
from remoting.frame import Command
from remoting.record.codec import decode_records
from remoting.transport.connection import Intake, RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.watch import UnfinishedSettings, Watch
from tests.support.client_bytes import encode_compact
from tests.support.native_library import native_library
from tests.support.pulls import pull_fields
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master

NEAR_BYTES = quick._OWN_BYTES + UNIT_BYTES * quick._NEAR_UNITS  # what stands of a reader who does not look far ahead


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> RemotingBroker:
    monkeypatch.setattr(RemotingBroker, "library", native_library())
    made = remoting_master()
    made.send(*map(str, range(40)), tag="x")
    made.send(*map(str, range(40, 50)), tag="y")
    return made


def quick_of(broker: RemotingBroker) -> QuickPulls:
    assert broker.quick is not None
    return broker.quick


def told(answer: Command | None) -> Any:
    return answer and (answer.code, answer.ext, bytes(answer.body), answer.remark)


def alike(broker: RemotingBroker, peer: Peer, code: int, fields: dict[str, Any]) -> bool:
    """Ask as it comes, and decoded: the answers are the same. Whether it was taken as it came."""
    before = broker.taken_quickly
    first = told(broker.ask(code, fields, peer=peer))
    is_quick = broker.taken_quickly > before
    own, broker.quick = broker.quick, None
    second = told(broker.ask(code, fields, peer=peer))
    broker.quick = own
    assert first == second
    return is_quick


def join(broker: RemotingBroker, peer: Peer, *, model: str = "CLUSTERING", version: int = 5, **topics: str) -> None:
    wanted = {topic: Subscription(topic, expression, "TAG", version) for topic, expression in topics.items()}
    info = ClientInfo("c1", "127.0.0.1:5000", "JAVA", "479")
    broker.clients.remoting_heartbeat(peer, info, [], [ConsumerData("g", message_model=model, subscriptions=wanted)])  # type: ignore[arg-type]


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> RemotingBroker:
    """All of it is in the tier only."""
    monkeypatch.setattr(RemotingBroker, "library", native_library())
    made = remoting_master(share=0.01)
    made.send(*map(str, range(40)))
    made.log.cold_ends["t", 0] = 40
    return made


def stand(broker: RemotingBroker, peer: Peer, offset: int) -> int:
    """Have a pull that is taken as it comes stand in line; its opaque."""
    assert broker.line is not None
    broker.ask(codes.PULL_MESSAGE, pull_fields(), peer=Peer(7))  # what it asks for is known from then on
    broker.others_done += 1
    broker.turns.run(5)
    broker.line.charge(0.001)  # of which the line rests for a tenth of a second
    before = broker.taken_quickly
    opaque = broker.send_request(codes.PULL_MESSAGE, pull_fields(offset), peer=peer)
    broker.turns.run(5)
    assert broker.taken_quickly > before
    assert opaque not in peer.answers
    return opaque


def forbid(broker: RemotingBroker, readable: str) -> None:
    answer = broker.answer(codes.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "g", "topic": "t", "readable": readable})
    assert answer.code in (0, codes.TOPIC_NOT_EXIST, codes.SERVICE_NOT_AVAILABLE), answer.remark


def delete_topic(broker: RemotingBroker, _peer: Peer) -> None:
    assert broker.answer(codes.DELETE_TOPIC_IN_BROKER, {"topic": "t"}).code == 0


def delete_group(broker: RemotingBroker, _peer: Peer) -> None:
    assert broker.answer(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}).code == 0


def reset(broker: RemotingBroker, _peer: Peer) -> None:
    fields = {"group": "g", "topic": "t", "timestamp": 0, "isForce": "true"}
    assert broker.answer(codes.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == 0


def switch(broker: RemotingBroker, is_master: bool) -> None:
    broker.is_master, broker.is_master_known = is_master, not is_master


# A change, and what a pull is answered then that brings its subscription
CHANGES: dict[str, tuple[Callable[[RemotingBroker, Peer], None], int]] = {
    "topic not readable": (lambda broker, _: broker.topic("t", perm=2), codes.NO_PERMISSION),
    "topic deleted": (delete_topic, codes.TOPIC_NOT_EXIST),
    "group deleted": (delete_group, codes.SUCCESS),
    "group disabled": (lambda broker, _: broker.group("g", consume_enable=False), codes.NO_PERMISSION),
    "group forbidden": (lambda broker, _: forbid(broker, "false"), codes.NO_PERMISSION),
    "a replica now": (lambda broker, _: switch(broker, False), codes.SYSTEM_BUSY),
    "reset": (reset, codes.PULL_OFFSET_MOVED),
    "another flag of the group": (lambda broker, _: broker.group("g", group_sys_flag=3), codes.SUCCESS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_counts_at_once(broker: RemotingBroker, change: str) -> None:
    peer = broker.peer
    for offset in (0, 3, 7):
        assert broker.answer(codes.PULL_MESSAGE, pull_fields(offset)).code == 0
    assert (broker.taken_quickly, quick_of(broker).known_count) == (3, 1)
    act, code = CHANGES[change]
    act(broker, peer)
    answer = broker.answer(codes.PULL_MESSAGE, pull_fields(9))
    assert answer.code == code
    if change == "another flag of the group":
        assert answer.ext["groupSysFlag"] == "3"
    if change == "reset":
        assert broker.answer(codes.PULL_MESSAGE, pull_fields(9)).code == 0, "it was told once"


def test_a_subscription_that_changes_counts_at_once(broker: RemotingBroker) -> None:
    peer = broker.peer

    def pull(version: int = 5) -> tuple[int, int]:
        answer = broker.answer(codes.PULL_MESSAGE, pull_fields(0, sysFlag=0, subVersion=version, maxMsgNums=1))
        return answer.code, int(answer.ext.get("nextBeginOffset", -1))

    assert pull() == (codes.SUBSCRIPTION_NOT_EXIST, -1)
    join(broker, peer, t="*")
    assert [pull(), pull()] == [(0, 1), (0, 1)]
    join(broker, peer, t="y", version=6)
    assert pull() == (0, 41)
    assert pull(7) == (codes.SUBSCRIPTION_NOT_LATEST, -1)
    join(broker, peer, u="*", version=7)
    assert pull() == (codes.SUBSCRIPTION_NOT_EXIST, -1)
    join(broker, peer, t="x", version=8)
    assert [pull(8), pull(8)] == [(0, 1), (0, 1)]
    broker.group("g", broadcast_enable=False)
    join(broker, peer, t="x", version=8, model=BROADCASTING)
    assert pull(8)[0] == codes.NO_PERMISSION
    join(broker, peer, t="x", version=8)
    assert pull(8) == (0, 1)
    broker.clients.connection_closed(peer)
    assert pull(8) == (codes.SUBSCRIPTION_NOT_EXIST, -1)


def test_who_names_its_subscriptions_by_fingerprint_is_another_one_than_who_does_not(broker: RemotingBroker) -> None:
    """The same words on two connections."""
    one, other = Peer(1), Peer(2)
    info = ClientInfo("c1", "127.0.0.1:1", "JAVA", "479")
    data = ConsumerData("g", subscriptions={"t": Subscription("t", "*", "TAG", 5)})
    broker.clients.remoting_heartbeat(one, info, [], [data], fingerprint=9)  # type: ignore[arg-type]
    for _ in range(2):
        fields = pull_fields(0, sysFlag=0, subVersion=6)
        assert broker.answer(codes.PULL_MESSAGE, fields, peer=one).code == 0
        assert broker.answer(codes.PULL_MESSAGE, fields, peer=other).code == codes.SUBSCRIPTION_NOT_LATEST


def any_change(rng: Random, broker: RemotingBroker, peer: Peer) -> None:
    match rng.randrange(18):
        case 0:
            broker.topic(rng.choice("tu"), queues=rng.choice((1, 2)), perm=rng.choice((2, 4, 6, 6)))
        case 1:
            broker.group("g", consume_enable=rng.random() < 0.7, broadcast_enable=rng.random() < 0.5)
        case 2:
            forbid(broker, rng.choice(("true", "false")))
        case 3 | 4:
            model = rng.choice(("CLUSTERING", "CLUSTERING", BROADCASTING))
            join(
                broker,
                peer,
                model=model,
                version=rng.randrange(4, 8),
                **{rng.choice("tu"): rng.choice(("*", "x", "y || z"))},
            )
        case 5:
            broker.clients.connection_closed(peer)
        case 6:
            switch(broker, rng.random() < 0.6)
        case 7:
            broker.pull_settings.change(PullSettings(slave_read=rng.random() < 0.5, lite_pull=rng.random() < 0.7))
        case 8:
            broker.log_end = rng.choice((0, 500, 5000, 1 << 40))
        case 9 if broker.is_master:
            delete_topic(broker, peer)
        case 10 if broker.is_master:
            delete_group(broker, peer)
        case 11:
            broker.group("g", read_broker_id=rng.randrange(3), read_broker_id_when_slow=rng.randrange(1, 4))
        case 12 | 13 | 14:  # all is well
            switch(broker, True)
            forbid(broker, "true")
            broker.topic("t", queues=2)
            broker.group("g")
            join(broker, peer, version=7, t="*", u="x")
        case _:
            if broker.is_master and broker.metadata.topic("t") is not None:
                broker.send(*map(str, range(rng.randrange(1, 40))), tag=rng.choice("xyz"))


@pytest.mark.parametrize("seed", range(12))
def test_answers_are_those_of_the_handler(broker: RemotingBroker, seed: int) -> None:
    rng, peer = Random(seed), broker.peer
    taken = 0
    for _ in range(150):
        any_change(rng, broker, peer)
        for _ in range(3):
            fields = pull_fields(
                rng.choice((0, 0, 3, 39, 45, 50, 90, 1000, -1)),
                topic=rng.choice("tttu"),
                queueId=rng.choice((0, 0, 0, 1)),
                sysFlag=rng.choice((0, FLAG_SUBSCRIPTION)),
                subscription=rng.choice(("*", "x", "y || z", "nobody")),
                subVersion=rng.choice((0, 5, 6)),
                maxMsgNums=rng.choice((32, 1, 5, 0)),
            )
            if rng.random() < 0.3:
                fields["maxMsgBytes"] = rng.choice((-1, 0, 100, 400, 1 << 20))
            taken += alike(broker, peer, rng.choice((codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE)), fields)
    assert taken > 50


def test_what_is_known_is_bounded(broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    known = quick_of(broker)
    monkeypatch.setattr(asked, "MAX_KNOWN", 10)
    for number in range(100):
        assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
        assert known.known_count == min(number + 1, 10)
    monkeypatch.setattr(asked, "MAX_KNOWN_BYTES", 20_000)
    for number in range(200):
        assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=f"{number:04000}"[:3000] + str(number))).code == 0
        assert known.known_count <= 10
    assert known.known_count <= 6
    assert broker.taken_quickly == 300


def test_of_more_requests_than_may_be_known_most_are(broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go round, so each comes after all others."""
    known, learned = quick_of(broker), 0
    terms_of = broker.pull.terms_of

    def count(*args: Any) -> PullTerms:
        nonlocal learned
        learned += 1
        return terms_of(*args)

    monkeypatch.setattr(asked, "MAX_KNOWN", 10)
    monkeypatch.setattr(broker.pull, "terms_of", count)
    for _ in range(40):
        for number in range(12):
            assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
    assert (broker.taken_quickly, known.known_count) == (480, 10)
    assert learned < 480 / 3
    broker.topic("t", queues=3)  # what is known does not pass any more
    learned = 0
    for _ in range(40):
        for number in range(10):
            assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
    assert learned < 400 / 3


def test_of_more_readers_than_may_stand_most_do(broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    class Counted(Standing):
        def __init__(self) -> None:
            nonlocal made
            made += 1
            super().__init__()

    monkeypatch.setattr(quick, "_MOST_STANDING_BYTES", 10 * NEAR_BYTES)
    monkeypatch.setattr(quick, "Standing", Counted)
    for _ in range(40):
        for number in range(12):
            assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
    assert 10 <= made < 20
    broker.topic("t", queues=3)
    for _ in range(2):
        for number in range(12):
            assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
    standing = quick_of(broker)._standing
    assert len(standing) == 10
    assert all(broker.quick._checks.still_passes(broker.peer, each.checked) for each in standing)


def test_what_stands_is_bounded(broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    known = quick_of(broker)
    monkeypatch.setattr(quick, "_MOST_STANDING_BYTES", 3 * NEAR_BYTES)
    for _ in range(2):
        for number in range(5):
            assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
            assert len(known._standing) <= 3
            assert all(terms.standing is not None for terms in known._standing)


def test_few_look_far_ahead_and_who_asks_densely_comes_first(
    broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = quick_of(broker)
    monkeypatch.setattr(quick, "_MOST_FAR_UNITS", 3 * quick._FAR_UNITS)
    for _ in range(2):
        for number in range(8):
            assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
    standing = list(known._standing)
    assert [terms.standing.sight.ahead_units for terms in standing if terms.standing] == [1024] * 3 + [128] * 5
    far, known._near = list(known._far), 0
    for _ in range(quick._ONE_OF):
        assert list(known._far) == far, "who began earlier keeps his place for a while"
        known._look_far(standing[5])
    known._look_far(standing[5])
    assert list(known._far) == [standing[1], standing[2], standing[5]]
    ahead = [terms.standing.sight.ahead_units for terms in standing if terms.standing]
    assert ahead == [128, 1024, 1024, 128, 128, 1024, 128, 128]
    assert standing[0].standing is not None
    assert standing[0].standing.sight.units == b"", "what it saw is gone"
    assert broker.answer(codes.PULL_MESSAGE, pull_fields(3, more=0)).code == 0
    broker.topic("t", queues=3)  # so nobody passes any more
    for number in range(8):
        assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
    assert not set(known._standing) & set(standing)
    assert not set(known._far) & set(standing)
    assert known._far_units == sum(known._far.values())
    assert known._standing_bytes == NEAR_BYTES * len(known._standing)


def test_who_goes_on_by_many_units_looks_farther_as_long_as_there_is_room(
    broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = quick_of(broker)
    monkeypatch.setattr(quick, "_MOST_FAR_UNITS", 12_000)
    for _ in range(2):
        for number in range(3):
            assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, more=number)).code == 0
    one, other, last = known._standing
    for terms, advance, expected in (
        (one, 32, {one: 1024, other: 1024, last: 1024}),
        (one, 64, {one: 2048, other: 1024, last: 1024}),
        (one, 800, {one: 8000, other: 1024, last: 1024}),
        (other, 800, {one: 8000, other: 1024, last: 1024}),  # for which there is no room
        (other, 64, {one: 8000, other: 2048, last: 1024}),
        (one, 32, {one: 8000, other: 2048, last: 1024}),
    ):
        known._look_far(terms, advance)
        assert dict(known._far) == expected
        assert known._far_units == sum(expected.values())
        assert [each.standing.sight.ahead_units for each in known._standing if each.standing] == [*expected.values()]


def test_nothing_that_does_not_pass_is_known(broker: RemotingBroker) -> None:
    for number in range(5):
        assert broker.answer(codes.PULL_MESSAGE, pull_fields(0, topic=f"nowhere{number}")).code == codes.TOPIC_NOT_EXIST
    assert (broker.taken_quickly, quick_of(broker).known_count) == (0, 0)


# ---- on a connection


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_reading = True

    def set_write_buffer_limits(self, _high: int, _low: int) -> None: ...

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "10.0.0.1", 40000

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.written += b"".join(parts)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def answers(self) -> list[Command]:
        answers: list[Command] = []
        assert frame.decode_frames(bytes(self.written), answers) == len(self.written)
        return answers


class Line:
    """A connection to the broker."""

    def __init__(self, broker: RemotingBroker, limits: ConnectionLimits | None = None) -> None:
        self.transport = Transport()
        intake = Intake(Watch(UnfinishedSettings()), quick=broker.quick)
        self.connection = RemotingConnection(broker.handlers, limits or ConnectionLimits(), intake=intake)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    async def finish(self) -> list[Command]:
        for _ in range(50):
            await asyncio.sleep(0)
        return self.transport.answers()


def frames(rng: Random, count: int) -> list[bytes]:
    """Pulls and other requests."""
    found = []
    for opaque in range(count):
        texts = {
            name: str(value) for name, value in pull_fields(rng.randrange(50), maxMsgNums=rng.randrange(1, 5)).items()
        }
        match rng.randrange(8):
            case 0:
                request = Command(codes.GET_MAX_OFFSET, opaque, {"topic": "t", "queueId": "0"})
            case 1:
                request = Command(codes.PULL_MESSAGE, opaque, texts | {"topic": "nowhere"})
            case _:
                request = Command(codes.PULL_MESSAGE, opaque, texts)
        is_compact = rng.random() < 0.3
        found.append(encode_compact(request) if is_compact else frame.encode_request(request.code, opaque, request.ext))
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_answers_come_in_order_however_frames_are_cut(broker: RemotingBroker, seed: int) -> None:
    rng = Random(seed)
    data = b"".join(frames(rng, 40))
    line = Line(broker)
    while data:
        cut = rng.choice((1, 7, 100, 1000, 5000))
        line.connection.data_received(data[:cut])
        data = data[cut:]
    answers = await line.finish()
    assert [answer.opaque for answer in answers] == list(range(40))
    assert {answer.code for answer in answers} == {0, codes.TOPIC_NOT_EXIST}


def written(header: str) -> bytes:
    """A frame with this header, whatever the order of what is in it."""
    data = header.encode()
    return (4 + len(data)).to_bytes(4) + len(data).to_bytes(4) + data


def any_order(members: dict[str, Any], separators: tuple[str, str]) -> list[bytes]:
    """The same request with each of its members first."""
    names = list(members)
    turned = [names[n:] + names[:n] for n in range(len(names))]
    return [written(json.dumps({name: members[name] for name in order}, separators=separators)) for order in turned]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " :  ")])
@pytest.mark.parametrize("code", [codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE])
async def test_a_pull_is_taken_as_it_comes_however_its_header_is_written(
    broker: RemotingBroker, separators: tuple[str, str], code: int
) -> None:
    texts = {name: str(value) for name, value in pull_fields(7, maxMsgNums=1).items()}
    members = {"code": code, "language": "PYTHON", "version": 1, "opaque": 5, "flag": 0, "extFields": texts}
    line, decoded = Line(broker), Line(broker)
    sent = any_order(members, separators)
    for data in sent:
        assert quick_of(broker).take(line.connection, data, 0) == len(data)
    decoded.connection._quick = None
    decoded.connection.data_received(b"".join(sent))
    assert list(map(told, await line.finish())) == list(map(told, await decoded.finish()))
    assert len(line.transport.answers()) == len(sent)


async def test_others_that_look_like_pulls_are_left(broker: RemotingBroker) -> None:
    line = Line(broker)
    texts = {"topic": "t", "queueId": "0", "code": "11"}
    members = {"remark": '"code":11', "code": codes.GET_MAX_OFFSET, "opaque": 5, "flag": 0, "extFields": texts}
    for data in [
        *any_order(members, (",", ":")),
        *any_order(members | {"extFields": texts | {"code": 11}}, (",", ":")),
    ]:
        for cut in (*range(12), len(data) // 2, len(data)):
            assert quick_of(broker).take(line.connection, data[:cut], 0) == 0
        line.connection.data_received(data)
    assert [(each.code, each.ext["offset"]) for each in await line.finish()] == [(0, "50")] * 10


async def test_who_waits_is_answered_when_a_message_comes(broker: RemotingBroker) -> None:
    line = Line(broker, ConnectionLimits(max_in_flight=3))
    fields = {name: str(value) for name, value in pull_fields(50, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND).items()}
    for opaque in range(5):
        line.connection.data_received(frame.encode_request(codes.PULL_MESSAGE, opaque, fields))
    assert await line.finish() == []
    assert (broker.pull.waiting_count, line.transport.is_reading) == (4, False)
    broker.send("new")
    broker.turns.run()
    answers = await line.finish()
    assert [answer.opaque for answer in answers] == [0, 1, 2, 3, 4], "the last one was read behind"
    assert [record.body for answer in answers for record in decode_records(answer.body)] == [b"new"] * 5
    assert line.transport.is_reading
    assert broker.pull.waiting_count == 0


async def test_who_closes_waits_no_more(broker: RemotingBroker) -> None:
    line = Line(broker)
    fields = {name: str(value) for name, value in pull_fields(50, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND).items()}
    line.connection.data_received(frame.encode_request(codes.PULL_MESSAGE, 1, fields))
    assert broker.pull.waiting_count == 1
    broker.pull.connection_closed(line.connection)
    assert broker.pull.waiting_count == 0


def test_offsets_are_committed_by_the_master_alone(broker: RemotingBroker) -> None:
    flags = FLAG_SUBSCRIPTION | FLAG_COMMIT
    for offset in (3, 7):
        assert broker.answer(codes.PULL_MESSAGE, pull_fields(10, sysFlag=flags, commitOffset=offset)).code == 0
        broker.turns.run(50)
        assert broker.metadata.consumer_offset("g", "t", 0) == offset
    broker.is_master = False
    assert broker.answer(codes.PULL_MESSAGE, pull_fields(10, sysFlag=flags, commitOffset=9)).code == 0
    broker.turns.run(50)
    assert broker.metadata.consumer_offset("g", "t", 0) == 7
    assert broker.taken_quickly == 3


def test_topics_stay_what_they_are() -> None:
    """What passes is known by the very objects that say so."""
    with pytest.raises(AttributeError):
        TopicConfig("t").perm = 2  # type: ignore[misc]


def test_who_asks_for_what_only_the_tier_has_stands_in_line_and_is_answered_as_ever(cold: RemotingBroker) -> None:
    peer = Peer()
    opaque = stand(cold, peer, 5)
    cold.turns.run(500)
    first = told(peer.answers[opaque])
    cold.quick = None
    assert first == told(cold.ask(codes.PULL_MESSAGE, pull_fields(5), peer=peer))
    assert [record.queue_offset for record in decode_records(peer.answers[opaque].body)] == list(range(5, 37))


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_while_it_stood_in_line_counts(cold: RemotingBroker, name: str) -> None:
    peer = Peer()
    opaque = stand(cold, peer, 0)
    change, _ = CHANGES[name]
    own, cold.quick = cold.quick, None
    change(cold, peer)
    cold.turns.run(500)
    first = told(peer.answers[opaque])
    if name == "reset":  # of which one of them is told
        assert first[0] == codes.PULL_OFFSET_MOVED
    else:
        assert first == told(cold.ask(codes.PULL_MESSAGE, pull_fields(0), peer=Peer(8)))
    cold.quick = own


def test_who_does_not_read_has_it_decoded_later_and_who_waited_too_long_is_told(cold: RemotingBroker) -> None:
    slow, late = Peer(), Peer(6)
    taken_back: list[Command] = []
    slow.take_back = taken_back.append  # type: ignore[attr-defined]
    opaque = stand(cold, slow, 0)
    slow.is_slow = True
    waits = stand(cold, late, 3)
    assert cold.line is not None
    cold.turns.run(500)
    ((request),) = taken_back
    assert (request.opaque, request.ext["queueOffset"]) == (opaque, "0")
    assert late.answers[waits].code == codes.SUCCESS
    cold.line.clock_s = lambda: cold.turns.time() + 0.0
    waits = stand(cold, late, 4)
    cold.line.clock_s = lambda: cold.turns.time() + 10
    cold.turns.run(1000)
    assert late.answers[waits].code == codes.SYSTEM_BUSY
    assert "pull_wait_ms" in str(late.answers[waits].remark)
