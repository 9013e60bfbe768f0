"""BROKER_STATE of many queues takes many turns of the loop, and says what a look at everything would."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from brokerd.processors.administration import lag_survey, state
from brokerd.processors.administration.lag_survey import LagSurvey
from brokerd.processors.administration.state import StateProcessor
from brokerd.processors.administration.topic_states import TopicStates
from remoting import codes
from remoting.errors import StorageError
from remoting.facts.broker_state import KNOWN_TOPICS, SAME_TOPICS, TOLD_TOPICS, BrokerState
from remoting.facts.codec import decode
from remoting.facts.lag import topic_lags
from tests.support.remoting_broker import RemotingBroker, remoting_master

TOPICS = [f"t{number}" for number in range(12)]


@pytest.fixture
def broker() -> RemotingBroker:
    made = remoting_master()
    for name in TOPICS[:8]:
        made.topic(name, queues=3)
    made.group("other")
    return made


def fresh(broker: RemotingBroker) -> BrokerState:
    """A look at everything, at once, by somebody who remembers nothing."""
    known = broker.processors.state
    walk = StateProcessor(known._parts, broker.turns.call_soon).walk()
    for _ in walk.steps():
        pass
    return walk.state()


def told(broker: RemotingBroker) -> BrokerState:
    return decode(BrokerState, broker.answer(codes.BROKER_STATE).body)


def deleted(broker: RemotingBroker, topic: str) -> None:
    broker.metadata.delete_topic(topic, lambda _: None)


def change(broker: RemotingBroker, rng: random.Random) -> None:
    topic, group = rng.choice(TOPICS), rng.choice(["g", "other"])
    config = broker.metadata.topic(topic)
    if config is None:
        broker.topic(topic, queues=rng.randint(1, 4))
        return
    match rng.randrange(7):
        case 0 | 1 | 2:
            broker.turns.pass_s(0.01)
            broker.send("x", topic=topic, queue_id=rng.randrange(config.read_queue_nums))
        case 3:
            broker.receive(2)
            broker.send("y", topic="t")
        case 4:
            queue_id = rng.randrange(config.read_queue_nums)
            broker.metadata.commit_offset(group, topic, queue_id, broker.log.max_offset(topic, queue_id), None)
            broker.metadata.commits.flush()
        case 5:
            broker.topic(topic, queues=config.read_queue_nums + rng.randrange(2))
        case 6 if rng.random() < 0.2:
            deleted(broker, topic)


def test_what_is_remembered_is_what_a_look_finds(broker: RemotingBroker) -> None:
    rng = random.Random(1)
    for _ in range(120):
        for _ in range(rng.randrange(3)):
            change(broker, rng)
        broker.turns.run()
        assert told(broker) == fresh(broker)


def test_who_knows_the_topics_is_told_of_them_only_when_they_changed(broker: RemotingBroker) -> None:
    rng = random.Random(3)
    known = broker.answer(codes.BROKER_STATE)
    topics, left_out = decode(BrokerState, known.body).topics, 0
    for _ in range(120):
        if rng.random() < 0.6:
            change(broker, rng)
        broker.turns.run()
        answer = broker.answer(codes.BROKER_STATE, {KNOWN_TOPICS: known.ext[TOLD_TOPICS]})
        if SAME_TOPICS in answer.ext:
            assert decode(BrokerState, answer.body) == replace(fresh(broker), topics=())
            left_out += 1
        else:
            topics = decode(BrokerState, answer.body).topics
        known = answer
        assert topics == fresh(broker).topics
    assert left_out > 10
    assert SAME_TOPICS not in broker.answer(codes.BROKER_STATE, {KNOWN_TOPICS: "0.1"}).ext


def test_another_master_epoch_is_another_log(broker: RemotingBroker) -> None:
    broker.send("a", topic="t")
    states, config = broker.processors.state._topic_states, broker.metadata.topic("t")
    assert config is not None
    before = states.of(config, 3)
    assert states.of(config, 3) is before
    assert states.of(config, 4) is not before, "another message may be the last one"


def changing(broker: RemotingBroker, rng: random.Random, opaque: int) -> list[str]:
    """Change something in every turn until that is answered; the topics that are still there, or again, after each."""
    seen: list[str] = []

    def between() -> None:
        change(broker, rng)
        seen.append(" ".join(name for name in TOPICS if broker.metadata.topic(name) is not None))
        if opaque not in broker.peer.answers:
            broker.turns.call_soon(between)

    broker.turns.call_soon(between)
    broker.turns.run(1000)  # changes take time
    return seen


def test_who_asks_while_things_change_is_told_of_all(broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    longest = 0
    for _ in range(40):
        with monkeypatch.context() as patch:
            patch.setattr(state, "QUEUES_AT_ONCE", 5)
            opaque = broker.send_request(codes.BROKER_STATE, {}, b"", broker.peer)
            seen = changing(broker, rng, opaque)
        longest = max(longest, len(seen))
        answer = decode(BrokerState, broker.peer.answers[opaque].body)
        topics = {each.name: {queue.queue_id: queue.max_offset for queue in each.queues} for each in answer.topics}
        assert all(name in topics for name in TOPICS if all(name in each.split() for each in seen))
        for group in answer.groups:
            for consumed in group.topics:
                for queue in consumed.queues:
                    ends = topics.get(consumed.topic, {})
                    assert (queue.consumer_offset or 0) <= ends.get(queue.queue_id, 1 << 62)
    assert longest > 5, "an answer takes several turns"
    assert told(broker) == fresh(broker)


def test_who_asks_meanwhile_hears_of_what_was_there_then(
    broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "QUEUES_AT_ONCE", 5)
    opaques = [broker.send_request(codes.BROKER_STATE, {}, b"", broker.peer)]
    broker.send("a", "b", topic="t")
    opaques += [broker.send_request(codes.BROKER_STATE, {}, b"", broker.peer) for _ in range(3)]
    assert not broker.peer.answers
    broker.turns.run()
    later = [decode(BrokerState, broker.peer.answers[each].body) for each in opaques][1:]
    assert all(each == later[0] for each in later)
    assert later[0] == fresh(broker)


def test_lags_are_those_of_the_last_whole_look(broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_survey, "QUEUES_AT_ONCE", 5)
    broker.metadata.commit_offset("g", "t", 0, 0, None)
    broker.metadata.commits.flush()
    broker.send("a", "b", topic="t")
    survey = LagSurvey(broker.processors.state.walk, broker.turns)
    assert survey.lags() == (), "the first look is under way"
    broker.turns.run()
    first = list(survey.lags())
    assert first == list(topic_lags(fresh(broker)))
    assert [each.lag.messages for each in first] == [2]
    broker.send("c", topic="t")
    assert survey.lags() == first
    broker.turns.run(1000)
    assert survey.lags() == first
    broker.turns.run()
    assert [each.lag.messages for each in survey.lags()] == [3]


def test_who_asks_hears_of_what_cannot_be_read(broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> int:
        raise StorageError("the disk does not answer")

    ranges = broker.processors.state._parts.consumption.ranges
    with monkeypatch.context() as patch:
        patch.setattr(state, "QUEUES_AT_ONCE", 5)
        opaques = [broker.send_request(codes.BROKER_STATE, {}, b"", broker.peer) for _ in range(3)]
        broker.send("a", topic="t")
        patch.setattr(ranges, "store_timestamp", unreadable)
        broker.turns.run()
    answers = [broker.peer.answers[each] for each in opaques]
    assert [(each.code, each.remark) for each in answers] == [(codes.SYSTEM_ERROR, "the disk does not answer")] * 3
    assert told(broker) == fresh(broker)


def test_while_nothing_is_written_topics_are_looked_at_now_and_then(
    broker: RemotingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    states, of = broker.processors.state._topic_states, TopicStates.of
    monkeypatch.setattr(
        TopicStates, "of", lambda self, config, epoch: (looks.append(config.name), of(self, config, epoch))[1]
    )
    first = told(broker)
    looks.clear()
    for _ in range(30):
        assert told(broker).topics == first.topics
    assert looks.count("t1") == 2
    broker.send("x", topic="t1")
    assert told(broker).topics != first.topics
    assert looks.count("t1") == 3
    assert states.unchanged("another moment") is None
