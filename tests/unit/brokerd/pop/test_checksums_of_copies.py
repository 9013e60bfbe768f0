"""A record's checksum is not its message's: whatever stores or shows a message again leaves it behind."""

from __future__ import annotations

import pytest

from brokerd.delay.rules import Target, bare, deliver
from brokerd.pop import copies
from brokerd.pop.requests import PoppedMessage
from brokerd.processors.pop.answers import with_deliveries, with_handle
from brokerd.retry.rules import decide_copy
from brokerd.store.draft import Draft
from brokerd.transactions.records import commit_draft, given_up_draft, successor_draft
from remoting.names import RETRY_PREFIX
from remoting.record.checksum import is_intact, reserve, seal
from remoting.record.codec import decode_record, encode_record
from remoting.record.properties import encode_properties
from tests.unit.brokerd.store.stores import BORN_HOST, STORE_HOST

PROPERTIES = {"UNIQ_KEY": "U", "TAGS": "a", "1ST_POP_TIME": "5", "DELAY": "4", "REAL_TOPIC": "T", "REAL_QID": "0"}
ENCODED = seal(
    encode_record(
        topic=f"{RETRY_PREFIX}g".encode(), queue_id=0, queue_offset=3, physical_offset=500, body=b"body",
        properties=reserve(encode_properties(PROPERTIES)), born_timestamp_ms=1, born_host=BORN_HOST, store_timestamp_ms=2,
        store_host=STORE_HOST,
    )
)  # fmt: skip
RECORD = decode_record(ENCODED)
COPIES = {
    "again": Draft.again(RECORD),
    "delivered": deliver(RECORD, Target("T", 0)),
    "delivered bare": bare(deliver(RECORD, Target("T", 0))),
    "committed": commit_draft(RECORD, RECORD.property_map()),
    "given up": given_up_draft(RECORD),
    "checked": successor_draft(RECORD, 3, 1),
    "popped in vain": copies.retry_copy("g", RECORD.topic, ENCODED, 2, 5),
    "sent back": decide_copy("g", ENCODED, 1, 16),
    "dead": decide_copy("g", ENCODED, -1, 16),
}


def test_the_message_is_sealed() -> None:
    assert is_intact(ENCODED)
    assert ENCODED.count(b"__CRC32#") == 1


@pytest.mark.parametrize("name", COPIES)
def test_no_copy_has_it(name: str) -> None:
    draft = COPIES[name]
    assert draft is not None
    assert b"__CRC32#" not in draft.properties
    assert b"UNIQ_KEY\x01U\x02" in draft.properties


@pytest.mark.parametrize(
    "encoded", [ENCODED, RECORD._replace(properties=b"TAGS\x01a\x02").encode()], ids=["sealed", "plain"]
)
def test_what_comes_again_shows_its_count_and_is_intact(encoded: bytes) -> None:
    shown = with_deliveries(PoppedMessage(encoded, "T", 0, 0, 3, "1 2 3 4 5 6 7 8 3", 4))
    assert is_intact(shown)
    assert decode_record(shown).reconsume_times == 3
    assert decode_record(shown)._replace(reconsume_times=0, properties=b"") == decode_record(encoded)._replace(
        properties=b""
    )
    first = PoppedMessage(encoded, "T", 0, 0, 3, "1 2 3 4 5 6 7 8 3", 1)
    assert with_deliveries(first) is encoded


def test_a_copy_is_known_by_what_it_has_from_its_original() -> None:
    draft = copies.dead_letter("g", RECORD.topic, ENCODED, 2)
    stored = RECORD._replace(
        topic=draft.topic, properties=reserve(draft.properties)[:-20], reconsume_times=2, physical_offset=9000
    )
    assert copies.is_copy(decode_record(stored.encode()), draft)
    sealed = stored._replace(properties=reserve(draft.properties))
    assert copies.is_copy(decode_record(seal(sealed.encode())), draft)
    assert not copies.is_copy(decode_record(stored._replace(body=b"other").encode()), draft)
    assert not copies.is_copy(decode_record(stored._replace(reconsume_times=3).encode()), draft)


def test_what_is_changed_on_its_way_to_a_client_is_sent_without() -> None:
    """It would not fit the bytes that the client gets."""
    shown = decode_record(with_handle(PoppedMessage(ENCODED, "T", 2, 0, 3, "1 2 3 4 5 6 7 8 3", 2)))
    assert b"__CRC32#" not in shown.properties
    assert shown.topic == "T"
    assert shown.property_map().items() >= {"UNIQ_KEY": "U", "POP_CK": "1 2 3 4 5 6 7 8"}.items()
