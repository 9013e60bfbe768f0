"""docs/PROTOCOL.md, made from the registry of request codes: `python -m tests.support.protocol_page` writes it anew."""

from __future__ import annotations

from pathlib import Path

from remoting.registry import ROWS, By, Row

PAGE = Path(__file__).resolve().parents[2] / "docs/PROTOCOL.md"

WHO = {
    By.BROKER: "any broker",
    By.MASTER: "the master",
    By.MASTER_ASKED: "the master, whom a replica asks",
    By.MASTER_AWAITED: "the master, whom a replica asks or awaits",
    By.CONTROLLER: "any controller",
    By.LEADER: "the controller that leads",
    By.NAME_SERVER: "any name server",
    By.CLIENT: "clients",
}

HEAD = """\
# Protocol

Every request of RocketMQ's remoting protocol that Logboom knows, made from `remoting/registry.py` by
`python -m tests.support.protocol_page`; change it there. Any other code is answered with response code 3, ` request type N not
supported`. Codes from 12000 on are our own.

**Who answers.** "Any broker": what takes a master, a replica refuses with its own answer. "The master": a replica answers
SERVICE_NOT_AVAILABLE (14). "Or awaits": while it knows no master, a replica holds the request, up to 6 seconds, and then
answers that, too (`brokerd/processors/offsets/awaited.py`): what it has itself may be old or nothing, and of a refusal Java
clients before version 5 and those in C++ make that the group never consumed. With fixed roles it answers with what it has,
while its master is away. "The controller that leads": the others answer CONTROLLER_NOT_LEADER (2007). Every controller is a name
server. Clients are asked by brokers.

**What it needs.** With `access.authorization` ([SECURITY.md](SECURITY.md)): a kind of resource, the field that names it, and the
actions, one of which must be allowed. A field that is absent demands nothing; when all are, the demand is on the Cluster. Retry
and dead-letter topics belong to their Group.

**Fields of our own.** A broker's heartbeat (904) says `hasRoom`, `true` or `false`: whether its disk takes messages, and
`disk`, `works`, `slow` or `stands`: how its log becomes durable. Who does not say it is left alone. END_TRANSACTION (37) of a
transaction that began over gRPC must bring the `transactionId` that the check (39) told, or that the producer was answered; of
others it is ignored. PROXY_CALL (12003) carries gRPC calls from replicas to their master by `method`; `$sends` carries several
SendMessage calls (`brokerd/proxy/bundles.py`; a master that does not know it gets them one by one), and `$more` asks for the
rest of an answer; `$push` goes the other way, with what the master says on a client's telemetry stream, `$answer` brings what
the client answers, and `$stream_closed` that nobody listens there any more. HANDOVER_PASSED (12030) asks, with `topic`,
`version` and `initMode` (0 or 1, as a pop's), whether `consumerGroup` has `passed` that version of the topic's placement in the
queues here, and whether anything from before it is `left`; without a group only the latter. OPEN_GATE (12031) lets ordered
groups wait no more for what of `topic` lies in the broker group `brokerName`.

**Messages for a moment.** A send with `TIMER_DELAY_SEC`, `TIMER_DELAY_MS` or `TIMER_DELIVER_MS` (the first that is there
counts; a delay level beats them), or with `delivery_timestamp` over gRPC, is delivered then, and one whose moment has passed
at once. The setting `timers.max_ahead_s` bounds how far ahead that may be, and `timers.max_per_slot`, where it is set, how
many may be due in one second: a send for a full one is answered FLOW_CONTROL (215), over gRPC TOO_MANY_REQUESTS. The original
answers SYSTEM_ERROR (1), with which its producers try again at once, for the second that is still full; with 215 they do not.
Just after a start of a broker with many timers it is SYSTEM_BUSY (2) instead, until what waits is counted. The answer has a
`recallHandle`, which RECALL_MESSAGE (370) and gRPC's `RecallMessage` take until the message is delivered; a handle that was
altered, one of another broker group, and a second recall are refused (604, BAD_REQUEST). Messages of a batch may each have a
moment, the batch has none. GET_TIMER_METRICS (61) counts what waits for each topic; while entries are still being counted, as
after a start, the remark says how many. FIND_TIMERS (12040) lists what waits for `topic` (any without) and is due in
[`fromMs`, `toMs`), `count` in an answer, in the order in which the broker comes to them; it looks at a bounded number of
timers, and `next` of its answer is the `after` of the request that goes on, also when nothing was found so far. With `key` it
lists all records of messages with that key or id instead. What waits in the tier is among it (`is_in_tier`); of what the object
store does not give `unread_in_tier` says how many timers that may be, and `problem` why. RECALL_TIMERS (12041) takes back what
its body names (`timers`: topic, unique_key, place, due_ms, as they were listed), for whom `by` names, and says of each what
became of it.

**The state of a broker with many topics.** An answer to BROKER_STATE (12002) names the topics that it tells of in its header,
`topics`. Who repeats that as `knownTopics` gets a document without topics, and `sameTopics`, while they and their queues are the
same.

**gRPC** is another port: every method of `apache.rocketmq.v2.MessagingService`, on every broker, where a replica has the master
answer what only that can. A recall of what another broker group holds is passed on to that group. What is of lite topics is
declined with UNSUPPORTED. The same port takes what clients export of themselves: `Export` of OpenTelemetry's `MetricsService` and
`TraceService`, protocol version 1 ([METRICS.md](METRICS.md)).

| code | name | who answers | what it needs |
|---|---|---|---|
"""


def line(row: Row) -> str:
    who = ", ".join(WHO[by] for by in row.by)
    return f"| {row.code} | {row.name} | {who} | {row.need.text} |\n"


def page() -> str:
    return HEAD + "".join(line(ROWS[code]) for code in sorted(ROWS))


if __name__ == "__main__":
    PAGE.write_text(page())
