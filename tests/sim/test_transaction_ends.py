"""The end of a transaction at a master that is cut off from its group: what its producer is told is so on the next master."""

from __future__ import annotations

import pytest

from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.transactions import service
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.settings import TransactionSettings
from remoting import codes
from remoting.errors import RequestError
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_TRANSACTION_PREPARED
from remoting.record.properties import encode_properties
from tests.sim import broker as simulated
from tests.sim.cluster import SimCluster, Story
from tests.sim.transactors import TRANSACTION_TOPIC
from tests.support.open_guard import anybody_may

CLIENTS = frozenset(
    {
        "p0",
        "p1",
        "p2",
        "p3",
        "g0",
        "g1",
        "g2",
        "g3",
        "popper",
        "ordered",
        "transactor",
        "delayer",
        "backer",
        "owner",
        "admin",
    }
)
IMPATIENT = TransactionSettings(timeout_ms=0, check_interval_ms=300)


class Answer:
    """What a commit that an isolated master took is answered, and what became of it when the others went on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(simulated, "TRANSACTIONS", IMPATIENT)
        cluster = SimCluster(Story(0, "calm", without_clients=CLIENTS))
        world = cluster.world
        for node in cluster.nodes:
            node.start()
        assert world.run_until(lambda: cluster.master() is not None, 20_000)
        cluster._create()
        assert world.run_until(lambda: cluster.all_in_set() and len(cluster.brokers) == 3, 5_000)
        monkeypatch.setattr(cluster.injector, "later", lambda *_: None)
        master = cluster.master()
        assert master is not None
        properties = encode_properties({"UNIQ_KEY": "K", "TRAN_MSG": "true", "PGROUP": "silent"})
        host = pack_host("10.1.0.2", 40_000)
        draft = Draft(TRANSACTION_TOPIC, 0, b"pay", properties, 1, host, sys_flag=SYS_TRANSACTION_PREPARED)
        halves: list[SendOutcome] = []
        master.core.sender.send([draft], halves.extend)
        master.after_event()
        world.run(200)
        [half] = halves
        assert half.status is PutStatus.PUT_OK
        for node in cluster.nodes:
            if node is not master:
                cluster.network.cut(node.name, master.name)
                cluster.network.cut(master.name, node.name)
        answers: list[RequestError | None] = []
        end = EndTransaction("silent", half.queue_offset, half.physical_offset, Outcome.COMMIT)
        master.core.transactions.end(end, answers.append, anybody_may)
        world.run(5_000)
        cluster.network.heal()
        world.run(15_000)
        [self.error] = answers
        successor = cluster.master()
        assert successor is not None
        self.delivered = successor.core.store.max_offset(TRANSACTION_TOPIC, 0)
        self.given_up = successor.core.transactions.given_up.page(None, 10).items


def test_a_commit_that_the_next_master_does_not_have_is_not_answered_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(monkeypatch)
    assert answer.error is not None
    assert answer.error.code in (codes.FLUSH_SLAVE_TIMEOUT, codes.SERVICE_NOT_AVAILABLE)
    assert "it is not known whether the transaction is ended" in str(answer.error)
    assert not answer.delivered
    assert [(each.producer_group, each.decision) for each in answer.given_up] == [("silent", None)]


def test_the_story_finds_a_time_out_that_is_answered_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_unless_acknowledged", lambda status: None)
    answer = Answer(monkeypatch)
    assert answer.error is None
    assert not answer.delivered, "who was told that it is committed is wrong"
