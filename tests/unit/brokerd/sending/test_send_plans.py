"""What the send path remembers of the messages before changes nothing of the next ones, and is little."""

from __future__ import annotations

from itertools import product

from brokerd.sending.batch_kernel import BatchPlans, lay_out_batch
from brokerd.sending.kernel import Kernel
from brokerd.sending.rules import MAX_KEPT_BYTES
from brokerd.sending.unique_ids import UniqueIds
from remoting import codes
from remoting.record.codec import decode_record
from remoting.record.layout import MIDDLE_V4
from remoting.record.properties import encode_properties
from tests.support.client_bytes import encode_batch_body
from tests.unit.brokerd.sending.test_send import Broker, Connection, request


def test_what_one_batch_was_like_changes_nothing_of_the_next() -> None:
    """Same numbers and sizes, other properties or keys: whatever was laid out before, the outcome is that of a first batch."""

    def body(tag: str, unique: str = "UNIQ_KEY", flag: int = 0) -> bytes:
        return encode_batch_body(
            [(flag, b"%05d" % n, f"{unique}\x01K{n:07d}\x02TAGS\x01{tag}\x02".encode()) for n in range(5)]
        )

    bodies = [
        body("a"),
        body("b"),
        body("a"),
        body("b", flag=7),
        body("a", "UNIQ_KEX"),
        body("a").replace(b"K", b"?", 9),
    ]
    place = ("T", b"\x01T", 3, 40, 1000, 5, MIDDLE_V4.pack(0, 1, bytes(8), 4, bytes(8), 0, 0))
    plans = BatchPlans(b"\x01T")
    for each, seals in product((*bodies, *reversed(bodies)), (False, True)):
        rest = (*place, seals, UniqueIds(0))
        assert lay_out_batch(each, plans, *rest) == lay_out_batch(each, BatchPlans(b"\x01T"), *rest)
    rest = (*place, True, UniqueIds(0))
    assert lay_out_batch(bodies[0], plans, *rest) != lay_out_batch(bodies[1], plans, *rest)
    unnamed = lay_out_batch(bodies[4], plans, *rest)
    assert unnamed is not None
    assert unnamed.named == 5


def test_long_properties_are_stored_and_not_kept() -> None:
    broker = Broker()
    assert isinstance(broker.kernel, Kernel)
    target = broker.kernel._targets["T"]
    long, short = ({"UNIQ_KEY": "A" * 32, "K": "x" * length} for length in (MAX_KEPT_BYTES, 1))
    connection = Connection()
    for kept, properties in enumerate((long, short)):
        items = [(0, body, encode_properties(properties)) for body in (b"b", b"c")]
        batch = request(2, encode_batch_body(items), short, m="true")
        broker.handle(connection, [request(1, properties=properties), batch])
        assert (len(target.plans._plans), target.pattern.head != b"\0") == (kept, bool(kept))
    broker.acknowledger.complete()
    assert [answer.code for answer in connection.answers] == [codes.SUCCESS] * 4
    lengths = [len(decode_record(record).properties) for record in broker.records()]
    assert [length > MAX_KEPT_BYTES for length in lengths] == [True] * 3 + [False] * 3
