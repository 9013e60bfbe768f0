"""Which processor of this broker answers which request, and what a replica does with those that are for its master.

Who answers a request is said by its row in `remoting/registry.py`; `remoting.registry.bind` holds the table against the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.processors.administration.groups import GroupProcessor
from brokerd.processors.administration.inspection import InspectionProcessor
from brokerd.processors.administration.messages import MessageProcessor
from brokerd.processors.administration.state import StateProcessor
from brokerd.processors.administration.timers import TimerProcessor
from brokerd.processors.administration.topics import TopicProcessor
from brokerd.processors.clients.assignments import AssignmentProcessor
from brokerd.processors.clients.connections import ConnectionProcessor
from brokerd.processors.clients.heartbeats import ClientProcessor
from brokerd.processors.clients.locks import LockProcessor
from brokerd.processors.clients.relay import RelayProcessor
from brokerd.processors.cold import each_cold
from brokerd.processors.offsets.committed import OffsetProcessor
from brokerd.processors.offsets.consumption import ConsumptionProcessor
from brokerd.processors.offsets.resets import ResetProcessor
from brokerd.processors.pop.handovers import HandoverProcessor
from brokerd.processors.pop.pop import PopProcessor
from brokerd.processors.pulling.bulk import BulkProcessor
from brokerd.processors.pulling.cold_line import ColdRequests
from brokerd.processors.pulling.pull import PullProcessor
from brokerd.processors.pulling.quick import QuickPulls
from brokerd.processors.sending.recalls import RecallProcessor
from brokerd.processors.sending.send_back import SendBackProcessor
from brokerd.processors.sending.transactions import TransactionProcessor
from brokerd.processors.sliced import Slices
from remoting import codes
from remoting.errors import NotMaster
from remoting.frame import Command
from remoting.registry import ROWS, By
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each


@dataclass(frozen=True, slots=True)
class Processors:
    """Everything that answers requests beside the senders. `fetch_waits` has those that wait for the tier, `slices` those that
    look at many queues, `cold_requests` those that read old messages; `quick_pulls` takes pulls undecoded, in C."""

    pull: PullProcessor
    bulk: BulkProcessor
    offsets: OffsetProcessor
    clients: ClientProcessor
    topics: TopicProcessor
    groups: GroupProcessor
    connections: ConnectionProcessor
    consumption: ConsumptionProcessor
    assignments: AssignmentProcessor
    inspection: InspectionProcessor
    resets: ResetProcessor
    relay: RelayProcessor
    messages: MessageProcessor
    pop: PopProcessor
    handovers: HandoverProcessor
    state: StateProcessor
    locks: LockProcessor
    transactions: TransactionProcessor
    send_back: SendBackProcessor
    recalls: RecallProcessor
    timers: TimerProcessor
    fetch_waits: FetchWaits
    slices: Slices
    cold_requests: ColdRequests
    quick_pulls: QuickPulls | None = None

    def connection_closed(self, connection: object) -> None:
        """Requests that wait on a closed connection are forgotten."""
        self.pull.connection_closed(connection)
        self.bulk.connection_closed(connection)
        self.pop.connection_closed(connection)
        self.fetch_waits.connection_closed(connection)
        self.slices.connection_closed(connection)


def handlers_of(processors: Processors) -> dict[int, Handler]:
    """Request code -> handler."""
    pull, offsets, clients = processors.pull, processors.offsets, processors.clients
    topics, groups, pop = processors.topics, processors.groups, processors.pop
    connections, consumption = processors.connections, processors.consumption
    assignments = processors.assignments
    cold, sliced = partial(each_cold, processors.fetch_waits), processors.slices.handler
    in_line = processors.cold_requests.in_line
    return {
        codes.PULL_MESSAGE: in_line(each(pull.handle)),
        codes.LITE_PULL_MESSAGE: in_line(each(pull.handle)),
        codes.BULK_READ: in_line(each(processors.bulk.handle)),
        codes.QUERY_CONSUMER_OFFSET: each(offsets.query),
        codes.UPDATE_CONSUMER_OFFSET: each(offsets.update),
        codes.SEARCH_OFFSET_BY_TIMESTAMP: cold(offsets.search),
        codes.GET_MAX_OFFSET: each(offsets.maximum),
        codes.GET_MIN_OFFSET: each(offsets.minimum),
        codes.GET_EARLIEST_MSG_STORETIME: cold(offsets.earliest),
        codes.QUERY_MESSAGE: each(processors.messages.query),
        codes.VIEW_MESSAGE_BY_ID: cold(processors.messages.view),
        codes.LOCK_BATCH_MQ: each(processors.locks.lock),
        codes.UNLOCK_BATCH_MQ: each(processors.locks.unlock),
        codes.HEART_BEAT: each(clients.heartbeat),
        codes.UNREGISTER_CLIENT: each(clients.unregister),
        codes.GET_CONSUMER_LIST_BY_GROUP: each(clients.consumer_ids),
        codes.CHECK_CLIENT_CONFIG: each(clients.check_subscription),
        codes.UPDATE_AND_CREATE_TOPIC: each(topics.put),
        codes.UPDATE_AND_CREATE_TOPIC_LIST: each(topics.put_list),
        codes.DELETE_TOPIC_IN_BROKER: each(topics.delete),
        codes.GET_ALL_TOPIC_CONFIG: each(topics.all),
        codes.GET_TOPIC_CONFIG: each(topics.one),
        codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: each(topics.system),
        codes.GET_TOPIC_STATS_INFO: sliced(topics.statistics),
        codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: each(groups.put),
        codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: each(groups.put_list),
        codes.DELETE_SUBSCRIPTIONGROUP: each(groups.delete),
        codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: each(groups.all),
        codes.GET_SUBSCRIPTIONGROUP_CONFIG: each(groups.one),
        codes.GET_CONSUMER_CONNECTION_LIST: each(connections.consumers),
        codes.GET_PRODUCER_CONNECTION_LIST: each(connections.producers),
        codes.GET_ALL_PRODUCER_INFO: each(connections.all_producers),
        codes.GET_CONSUME_STATS: sliced(consumption.group_progress),
        codes.GET_BROKER_CONSUME_STATS: sliced(consumption.all_progress),
        codes.QUERY_CONSUME_TIME_SPAN: sliced(consumption.time_span),
        codes.QUERY_CORRECTION_OFFSET: sliced(consumption.correction),
        codes.QUERY_TOPIC_CONSUME_BY_WHO: sliced(consumption.groups_of_topic),
        codes.QUERY_TOPICS_BY_CONSUMER: each(consumption.topics_of_group),
        codes.QUERY_SUBSCRIPTION_BY_CONSUMER: each(consumption.subscription),
        codes.UPDATE_AND_GET_GROUP_FORBIDDEN: each(groups.forbid),
        codes.INVOKE_BROKER_TO_RESET_OFFSET: sliced(processors.resets.reset),
        codes.CLONE_GROUP_OFFSET: each(processors.resets.clone),
        codes.GET_CONSUMER_RUNNING_INFO: each(processors.relay.running_info),
        codes.CONSUME_MESSAGE_DIRECTLY: cold(processors.relay.consume_directly),
        codes.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: each(processors.relay.consumer_status),
        codes.QUERY_ASSIGNMENT: each(assignments.query),
        codes.SET_MESSAGE_REQUEST_MODE: each(assignments.set_mode),
        codes.GET_ALL_MESSAGE_REQUEST_MODE: each(assignments.all_modes),
        codes.VIEW_BROKER_STATS_DATA: each(processors.inspection.figures),
        codes.QUERY_CONSUME_QUEUE: each(processors.inspection.queue),
        codes.GET_ALL_CONSUMER_OFFSET: each(offsets.all),
        codes.CONSUMER_SEND_MSG_BACK: cold(processors.send_back.send_back),
        codes.GET_ALL_DELAY_OFFSET: each(processors.send_back.delay_offsets),
        codes.RECALL_MESSAGE: each(processors.recalls.recall),
        codes.GET_TIMER_CHECK_POINT: each(processors.recalls.check_point),
        codes.GET_TIMER_METRICS: each(processors.recalls.metrics),
        codes.FIND_TIMERS: each(processors.timers.find),
        codes.RECALL_TIMERS: each(processors.timers.recall),
        codes.POP_MESSAGE: each(pop.pop),
        codes.PEEK_MESSAGE: each(pop.peek),
        codes.NOTIFICATION: each(pop.notify),
        codes.POLLING_INFO: each(pop.polling_info),
        codes.ACK_MESSAGE: each(pop.ack),
        codes.BATCH_ACK_MESSAGE: each(pop.batch_ack),
        codes.CHANGE_MESSAGE_INVISIBLETIME: each(pop.change_invisible_time),
        codes.END_TRANSACTION: each(processors.transactions.end),
        codes.RESUME_CHECK_HALF_MESSAGE: each(processors.transactions.resume),
        codes.GIVEN_UP_TRANSACTIONS: each(processors.transactions.given_up),
        codes.END_GIVEN_UP_TRANSACTION: each(processors.transactions.end_given_up),
        codes.HANDOVER_PASSED: each(processors.handovers.passed),
        codes.OPEN_GATE: each(processors.handovers.open),
        codes.BROKER_STATE: each(processors.state.handle),
    }


Otherwise = Callable[[RemotingConnection, Command], None]
# what a replica does with a question that its own handler answers less well than the master's
Await = Callable[[Handler, RemotingConnection, Command], None]

_MASTERS: Final = By.MASTER | By.MASTER_ASKED | By.MASTER_AWAITED


def refuse(connection: RemotingConnection, request: Command) -> None:
    """What a replica does with a request for the master."""
    connection.respond_error(request, NotMaster())


def on_master(
    table: Mapping[int, Handler],
    is_master: Callable[[], bool],
    pass_on: Otherwise = refuse,
    await_master: Await | None = None,
) -> dict[int, Handler]:
    """The same handlers; while this broker is a replica, those of the master's rows refuse, pass on, or wait for a master."""

    def otherwise_of(code: int) -> Otherwise:
        if ROWS[code].by is By.MASTER_AWAITED and await_master is not None:
            return partial(await_master, table[code])
        return pass_on if ROWS[code].by is By.MASTER_ASKED else refuse

    otherwise = {code: otherwise_of(code) for code in table if ROWS[code].by & _MASTERS}
    return {
        code: _guarded(handler, is_master, otherwise[code]) if code in otherwise else handler
        for code, handler in table.items()
    }


def _guarded(handler: Handler, is_master: Callable[[], bool], otherwise: Otherwise) -> Handler:
    def guarded(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        if is_master():
            handler(connection, requests)
            return
        for request in requests:
            otherwise(connection, request)

    return guarded
