"""The commands of pop scenarios: one broker's pop service over a log in memory, time moved by hand.

    topic NAME queues=N             group NAME [fifo] retry=N
    send [queue=N] BODY...          pop AS [n=32] [queue=-1] [inv=10000] [wait=0] [attempt=ID] [lease=CLIENT] [tag=X]
    ack BODY...                     change BODY inv=MS          forward BODY
    wait MS                         gone CLIENT                 back CLIENT
    stored TOPIC                    queue TOPIC [id=0]          records
    switch [cut=N]                  the master dies; the next one has the log without its last N records

A handle is remembered by its message's body; `old:BODY` is the one before the last change. Times are milliseconds since the
start.
"""

from __future__ import annotations

import orjson

from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import AckStatus, PopOutcome, PopStatus
from remoting.record.codec import decode_record
from tests.scenarios.runner import Command
from tests.support.pop_broker import PopBroker, Receive, body_of


class Interaction:
    """One scenario."""

    def __init__(self) -> None:
        self.broker = PopBroker(lease_grace_ms=2000).become_master()
        self.start_ms = self.broker.turns.wall_ms()
        self.handles: dict[str, str] = {}
        self.waiting: dict[str, Receive] = {}
        self.shown_records = 0

    def execute(self, command: Command) -> str:
        answer = getattr(self, f"do_{command.name}")(command)
        self.broker.turns.run()
        lines = [answer] if answer else []
        return "\n".join(lines + self._woken())

    def do_topic(self, command: Command) -> str:
        self.broker.topic(command.words[0], command.number("queues", 1))
        return ""

    def do_group(self, command: Command) -> str:
        self.broker.group(command.words[0], fifo="fifo" in command.words, retry_max_times=command.number("retry", 16))
        return ""

    def do_send(self, command: Command) -> str:
        self.broker.send(*command.words, queue_id=command.number("queue", 0), tag=command.option("tag", ""))
        return ""

    def do_pop(self, command: Command) -> str:
        group = self.broker.metadata.group(command.option("group", "g"))
        receive = self.broker.receive(
            command.number("n", 32),
            wait_ms=command.number("wait", 0),
            group=command.option("group", "g"),
            topic=command.option("topic", "t"),
            queue_id=command.number("queue", -1),
            invisible_time_ms=command.number("inv", 10_000),
            fifo=group is not None and group.fifo,
            attempt_id=command.option("attempt", ""),
            client_id=command.option("lease", ""),
            auto_renew="lease" in command.options,
            expression=command.option("tag", "*"),
        )
        if receive.waits:
            self.waiting[command.words[0]] = receive
            return f"{command.words[0]} waits"
        return self._outcome(command.words[0], receive.outcome)

    def do_ack(self, command: Command) -> str:
        return " ".join(
            f"{name} {status.name}"
            for name, status in zip(command.words, self.broker.ack(*map(self._handle, command.words)), strict=True)
        )

    def do_change(self, command: Command) -> str:
        name = command.words[0]
        outcome = self.broker.change(self._handle(name), command.number("inv"))
        if outcome.status == AckStatus.OK:
            self.handles[f"old:{name}"] = self.handles[name]
            self.handles[name] = outcome.receipt_handle
        return f"{name} {outcome.status.name}"

    def do_forward(self, command: Command) -> str:
        return f"{command.words[0]} {self.broker.forward(self._handle(command.words[0])).name}"

    def do_wait(self, command: Command) -> str:
        self.broker.turns.run(int(command.words[0]))
        return f"at {self._now()}"

    def do_gone(self, command: Command) -> str:
        self.broker.alive.discard(command.words[0])
        self.broker.pop_service.client_gone(command.words[0])
        return ""

    def do_back(self, command: Command) -> str:
        self.broker.alive.add(command.words[0])
        return ""

    def do_stored(self, command: Command) -> str:
        shown = []
        for record in self.broker.stored(command.words[0]):
            origin = record.property_map().get("DLQ_ORIGIN_TOPIC")
            shown.append(
                f"{record.queue_offset} {record.body.decode()} times={record.reconsume_times}"
                + (f" from={origin}" if origin else "")
            )
        return "\n".join(shown) or "nothing"

    def do_queue(self, command: Command) -> str:
        pop = self.broker.pop_service
        group, topic, queue_id = command.option("group", "g"), command.words[0], command.number("id", 0)
        queue = pop.ledger.queue(group, topic, queue_id)
        if queue is None:
            return "never popped"
        batches = [
            f"\n  popped={batch.pop_time_ms - self.start_ms} due={batch.due_ms - self.start_ms}"
            f" offsets={batch.remaining_offsets()}"
            for batch in queue.batches.values()
        ]
        return f"next={queue.next_offset} committed={queue.committed_offset()} in flight={queue.in_flight}" + "".join(
            batches
        )

    def do_records(self, _command: Command) -> str:
        records = [decode_record(each) for each in self.broker.log.bodies(POP_TOPIC)]
        new, self.shown_records = records[self.shown_records :], len(records)
        shown = []
        for record in new:
            body = orjson.loads(record.body)
            entries = body.get("b") or body.get("a") or body.get("c") or body.get("rows")
            line = f"{record.property_map()['TAGS']} {orjson.dumps(self._relative(entries)).decode()}"
            if released := body.get("r"):
                line += f" again {orjson.dumps(self._relative(released)).decode()}"
            shown.append(line)
        return "\n".join(shown) or "none"

    def do_switch(self, command: Command) -> str:
        cut = command.number("cut", 0)
        log = self.broker.log
        end_offset = log.positions[-1 - cut]
        lost = [decode_record(log.record_at(*unit[:2])) for unit in log.units_behind(end_offset)]
        self.broker.become_replica()
        self._woken()
        self.broker = PopBroker(log.copy(end_offset), self.broker.turns, lease_grace_ms=2000).become_master()
        return "\n".join(f"lost {each.topic} {each.property_map().get('TAGS', each.body.decode())}" for each in lost)

    # ---- inside

    def _now(self) -> int:
        return self.broker.turns.wall_ms() - self.start_ms

    def _handle(self, name: str) -> str:
        return self.handles.get(name, name)

    def _outcome(self, name: str, outcome: PopOutcome) -> str:
        if outcome.status != PopStatus.FOUND:
            return f"{name} {outcome.status.name}"
        shown = []
        for message in outcome.messages:
            body = body_of(message)
            self.handles[body] = message.receipt_handle
            shown.append(f"{body}#{message.delivery_attempt}")
        return f"{name} got {' '.join(shown)}"

    def _woken(self) -> list[str]:
        done = [name for name, receive in self.waiting.items() if not receive.waits]
        return [self._outcome(name, self.waiting.pop(name).outcome) for name in done]

    def _relative(self, value: object) -> object:
        """Times of records as milliseconds since the start."""
        if isinstance(value, list):
            return [self._relative(each) for each in value]
        if isinstance(value, int) and not isinstance(value, bool) and value >= self.start_ms:
            return value - self.start_ms
        return value
