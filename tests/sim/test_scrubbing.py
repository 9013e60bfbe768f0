"""Rot that nobody reads is found by the scrubber of a whole simulated cluster, and repaired in place, without a switch."""

from __future__ import annotations

from tests.sim.test_suspects import flip, healthy


def test_old_records_that_rot_on_master_and_replica_are_repaired_in_place() -> None:
    cluster = healthy(0)
    assert cluster is not None
    for client in cluster.clients:
        client.stop()
    cluster.world.run(500)
    master = cluster.master()
    assert master is not None
    replica = next(each for each in cluster.brokers if each is not master)
    master._sync_is_due = True  # nobody comes in the middle of a repair: the flusher waits for its turn
    with master.core.store.commitlog.turns.contents:
        assert not any(master._in_the_middle("commitlog/0") for _ in range(50))
    assert any(master._in_the_middle("commitlog/0") for _ in range(50))
    master._sync_is_due = False
    elections, lives = cluster.truth.elections, [each.life for each in cluster.brokers]
    spots = [(master, 100), (replica, 2500)]
    right = [broker.core.store.commitlog.read(at, 1) for broker, at in spots]
    for broker, at in spots:
        flip(cluster, broker, at)

    def is_repaired() -> bool:
        return [broker.core.store.commitlog.read(at, 1) for broker, at in spots] == right

    assert not is_repaired()
    assert cluster.world.run_until(is_repaired, 20_000, every=20)
    assert all(broker.repairs.scrubber.repairer.ledger.ranges_repaired == 1 for broker, _ in spots)
    assert cluster.truth.elections == elections
    assert [each.life for each in cluster.brokers] == lives
