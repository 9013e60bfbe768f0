"""What tools look into: counted figures (315), and the units of a consume queue (321)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from brokerd.members.consumer_groups import ConsumerGroup
from brokerd.processors import fields
from brokerd.processors.bodies import encode
from brokerd.statistics.figures import DAY_S, HOUR_S, MINUTE_S, Figure, Statistics
from brokerd.store.store_reads import StoreReads
from brokerd.store.unit import BLANK_SIZE, Unit
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

MAX_UNITS: Final = 4096
_WINDOWS: Final = {"statsDay": DAY_S, "statsHour": HOUR_S, "statsMinute": MINUTE_S}


@dataclass(frozen=True, slots=True)
class InspectionProcessor:
    statistics: Statistics
    cluster: str
    now_s: Callable[[], float]
    units: StoreReads
    consumer_group: Callable[[str], ConsumerGroup | None]

    # ---- figures

    def figures(self, connection: RemotingConnection, request: Command) -> None:
        """Code 315: what was counted under a name and a key, in the last minute, hour and day."""
        name, key = fields.text(request.ext, "statsName"), fields.text(request.ext, "statsKey")
        figure = self._figure(name, key)
        if figure is None:
            raise RequestError(codes.SYSTEM_ERROR, f"nothing was counted here as {name[:80]} of {key[:400]}")
        now_s = self.now_s()
        body = {
            window: {"avgpt": rate.mean, "sum": rate.total, "tps": rate.per_second}
            for window, span_s in _WINDOWS.items()
            for rate in (figure.rate(span_s, now_s, of_bytes=name.endswith("_SIZE")),)
        }
        connection.respond(request, body=encode(body))

    def _figure(self, name: str, key: str) -> Figure | None:
        """The protocol's names: the parts of a key are joined by @."""
        statistics = self.statistics
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            return statistics.topic_put.get(key)
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            figure = statistics.broker_put if name == "BROKER_PUT_NUMS" else statistics.broker_get
            return figure if key == self.cluster else None
        first, _, rest = key.partition("@")
        if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            return statistics.group_get.get((first, rest))
        if name == "SNDBCK_PUT_NUMS":
            return statistics.sent_back.get((first, rest))
        if name == "GROUP_GET_LATENCY" and first.isdecimal() and len(first) < 10:
            topic, _, group = rest.partition("@")
            return statistics.group_read.get((topic, group, int(first)))
        return None

    # ---- queues

    def queue(self, connection: RemotingConnection, request: Command) -> None:
        """Code 321: where the messages of a queue are in the log, from an index on."""
        ext = request.ext
        topic, queue_id = fields.text(ext, "topic"), fields.integer(ext, "queueId", high=fields.MAX_INT)
        if queue_id not in self.units.queue_ids(topic):
            raise RequestError(codes.SYSTEM_ERROR, f"queue {queue_id} of topic {topic} holds nothing on this broker")
        low, high = self.units.min_offset(topic, queue_id), self.units.max_offset(topic, queue_id)
        index = fields.integer(ext, "index")
        count = min(fields.integer(ext, "count", high=fields.MAX_INT), MAX_UNITS)
        body: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low, "queueData": []}
        if low <= index < high:
            units = self.units.read_units(topic, queue_id, index, count)
            body["queueData"] = [_unit_json(unit) for unit in units]
        if group := ext.get("consumerGroup"):
            body |= self._subscription(group, topic)
        connection.respond(request, body=encode(body))

    def _subscription(self, group: str, topic: str) -> dict[str, Any]:
        present = self.consumer_group(group)
        found = present.subscriptions.get(topic) if present is not None else None
        if found is None:
            return {"filterData": f"{group}@{topic} is not online!"}
        return {
            "subscriptionData": {
                "expressionType": found.expression_type,
                "subString": found.expression,
                "subVersion": found.version,
                "topic": topic,
            }
        }


def _unit_json(unit: Unit) -> dict[str, Any]:
    physical_offset, size, tags_code = unit
    found = {"eval": False, "physicOffset": physical_offset, "physicSize": size, "tagsCode": tags_code}
    return found | ({"msg": "a gap: no message is here"} if size == BLANK_SIZE else {})
