from __future__ import annotations

from tests.support.pop_broker import master


def test_a_queue_that_one_of_two_groups_never_received_must_stay_readable() -> None:
    broker = master()
    broker.topic("wide", 8)
    reader, other = "reads-all-of-the-queues-" + "x" * 66, "reads-only-two-of-the-eight-" + "y" * 62
    for name in (reader, other):
        broker.group(name)
    for queue_id in range(8):
        broker.send("a", "b", topic="wide", queue_id=queue_id)
        broker.metadata.commit_offset(reader, "wide", queue_id, 2, None)
    broker.turns.run(10)
    broker.metadata.commits.flush()
    assert broker.progress.unread_queues("wide") == 0
    for queue_id in (0, 1):
        broker.metadata.commit_offset(other, "wide", queue_id, 2, None)
    broker.metadata.commits.flush()
    broker.turns.run(10)
    assert broker.progress.unread_queues("wide") == 8
