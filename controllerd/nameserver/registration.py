"""A broker's registration from its bytes: header fields, and the topic table as JSON or compressed (pure).

Everything is bounded before it is taken: the inflated size, the number of topics, the length of each name. The original writes
integer keys of maps without quotes; those are read too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from controllerd.nameserver.records import (
    DEFAULT_TIMEOUT_MS,
    MAX_GROUPS,
    MAX_TOPICS,
    DataVersion,
    QueueData,
    Registration,
)
from remoting.bare_json import loads_bare
from remoting.disk import Bytes
from remoting.errors import InvalidParameter, ProtocolError

MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024
_MAX_TEXT: Final = 512
_INT: Final = struct.Struct(">i")


def decode_registration(ext: Mapping[str, str], body: Bytes) -> Registration:
    """The registration of a request 103. Raises InvalidParameter or ProtocolError that says what is wrong."""
    try:
        broker_id = int(ext["brokerId"])
        timeout_ms = int(ext.get("heartbeatTimeoutMillis") or DEFAULT_TIMEOUT_MS)
        checksum = int(ext.get("bodyCrc32") or 0)
        incarnation = int(ext.get("incarnation") or 0)
        cluster, name, address = (_bounded_text(ext[field]) for field in ("clusterName", "brokerName", "brokerAddr"))
    except (KeyError, ValueError) as error:
        raise InvalidParameter(f"the registration lacks or garbles a field: {error}") from error
    if checksum and zlib.crc32(body) & 0x7FFFFFFF != checksum:
        raise ProtocolError("the registration's body does not have the checksum of its header")
    if not 0 <= broker_id < 1 << 31 or not 1000 <= timeout_ms <= 3_600_000:
        raise InvalidParameter("brokerId must be 0 or more, and heartbeatTimeoutMillis between 1000 and 3600000")
    if len(body):
        compressed = ext.get("compressed") == "true"
        version, topics = _decode_compressed(body) if compressed else _decode_json(body)
    else:
        version, topics = DataVersion(), {}
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=_bounded_text(ext.get("haServerAddr", "")),
        grpc_address=_bounded_text(ext.get("grpcAddress", "")),
        zone=_bounded_text(ext.get("__ZONE_NAME", "")),
        timeout_ms=timeout_ms,
        data_version=version,
        topics=topics,
        is_complete=ext.get("complete") == "true",
        acting_master=ext["enableActingMaster"] == "true" if ext.get("enableActingMaster") else None,
        incarnation=incarnation,
    )


def decode_data_version(encoded: Bytes) -> DataVersion:
    return _data_version(_load(encoded))


def decode_topic_queues(body: Bytes) -> dict[str, QueueData]:
    """Broker name -> queues, out of a route document (request 217)."""
    entries = _load(body).get("queueDatas") or []
    if not isinstance(entries, list) or len(entries) > MAX_GROUPS:
        raise InvalidParameter(f"queueDatas must be a list of at most {MAX_GROUPS} broker groups")
    try:
        return {_bounded_text(entry["brokerName"]): _queue_data("of the route", entry) for entry in entries}
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidParameter(f"an entry of queueDatas lacks or garbles a field: {error}") from error


def _decode_json(body: Bytes) -> tuple[DataVersion, dict[str, QueueData]]:
    document = _load(body)
    wrapper = document.get("topicConfigSerializeWrapper") or {}
    table = wrapper.get("topicConfigTable") or {}
    if not isinstance(table, dict) or len(table) > MAX_TOPICS:
        raise InvalidParameter(f"topicConfigTable must be an object of at most {MAX_TOPICS} topics")
    return _data_version(wrapper.get("dataVersion") or {}), {
        topic: _queue_data(topic, config) for topic, config in table.items()
    }


def _queue_data(topic: str, config: Any) -> QueueData:
    try:
        attributes = config.get("attributes") or {}
        return QueueData(
            int(config["readQueueNums"]),
            int(config["writeQueueNums"]),
            int(config["perm"]),
            int(config.get("topicSysFlag") or 0),
            str(attributes.get("message.type") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidParameter(f"the configuration of topic {topic!r} lacks or garbles a field: {error}") from error


def _decode_compressed(body: Bytes) -> tuple[DataVersion, dict[str, QueueData]]:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise ProtocolError(f"the registration's body does not inflate: {error}") from error
    if inflater.unconsumed_tail:
        raise ProtocolError(f"the registration's body inflates to more than {MAX_INFLATED_BYTES} bytes")
    try:
        text, position = _take(data, 0)
        version = decode_data_version(text)
        (count,) = _INT.unpack_from(data, position)
        position += 4
        if not 0 <= count <= MAX_TOPICS:
            raise ProtocolError(f"a registration of {count} topics")
        topics = {}
        for _ in range(count):
            text, position = _take(data, position)
            topic, queue_data = _decode_topic_line(text.decode())
            topics[topic] = queue_data
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"undecodable registration: {error}") from error
    return version, topics


def _decode_topic_line(line: str) -> tuple[str, QueueData]:
    """name SP readQueueNums SP writeQueueNums SP perm SP filterType [SP attributes]"""
    words = line.split(" ", 5)
    try:
        attributes = orjson.loads(words[5]) if len(words) > 5 and words[5] else {}
        return words[0], QueueData(
            int(words[1]), int(words[2]), int(words[3]), 0, str(attributes.get("message.type") or "")
        )
    except (IndexError, ValueError, AttributeError) as error:
        raise ProtocolError(f"undecodable topic {line!r}: {error}") from error


def _bounded_text(text: str) -> str:
    if len(text) > _MAX_TEXT:
        raise InvalidParameter(f"names and addresses have at most {_MAX_TEXT} characters")
    return text


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(data, position)
    end = position + 4 + length
    if length < 0 or end > len(data):
        raise ProtocolError("a part of the registration is longer than the whole")
    return data[position + 4 : end], end


def _load(encoded: Bytes) -> dict[str, Any]:
    document = loads_bare(encoded)
    if not isinstance(document, dict):
        raise ProtocolError("a JSON object was expected")
    return document


def _data_version(document: Any) -> DataVersion:
    try:
        return DataVersion(
            int(document.get("counter") or 0),
            int(document.get("stateVersion") or 0),
            int(document.get("timestamp") or 0),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidParameter(f"undecodable dataVersion: {error}") from error
