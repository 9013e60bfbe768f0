"""Which request codes this broker answers, by which handler, and which of them only the master answers.

One table: the server's handlers are made from it, and a test holds the documentation and the list of codes against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from brokerd.processors.assignments import AssignmentProcessor
from brokerd.processors.clients import ClientProcessor
from brokerd.processors.connections import ConnectionProcessor
from brokerd.processors.consumption import ConsumptionProcessor
from brokerd.processors.groups import GroupProcessor
from brokerd.processors.inspection import InspectionProcessor
from brokerd.processors.locks import LockProcessor
from brokerd.processors.messages import MessageProcessor
from brokerd.processors.offsets import OffsetProcessor
from brokerd.processors.pop import PopProcessor
from brokerd.processors.pop_looking import PopLookingProcessor
from brokerd.processors.pull import PullProcessor
from brokerd.processors.relay import RelayProcessor
from brokerd.processors.resets import ResetProcessor
from brokerd.processors.send_back import SendBackProcessor
from brokerd.processors.state import StateProcessor
from brokerd.processors.topics import TopicProcessor
from brokerd.processors.transactions import TransactionProcessor
from remoting import codes
from remoting.errors import NotMaster
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each


@dataclass(frozen=True, slots=True)
class Entry:
    """One request code. With `master_only`, a replica answers SERVICE_NOT_AVAILABLE, or with `passed_on` asks its master."""

    code: int
    handler: Handler
    master_only: bool = False
    passed_on: bool = False


@dataclass(frozen=True, slots=True)
class Processors:
    """Everything that answers requests beside the senders."""

    pull: PullProcessor
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
    pop_looking: PopLookingProcessor
    state: StateProcessor
    locks: LockProcessor
    transactions: TransactionProcessor
    send_back: SendBackProcessor

    def connection_closed(self, connection: object) -> None:
        """Requests that wait on a closed connection are forgotten."""
        self.pull.connection_closed(connection)
        self.pop.connection_closed(connection)
        self.pop_looking.connection_closed(connection)


def entries(processors: Processors) -> Sequence[Entry]:
    """The table."""
    pull, offsets, clients = processors.pull, processors.offsets, processors.clients
    topics, groups, pop = processors.topics, processors.groups, processors.pop
    connections, consumption = processors.connections, processors.consumption
    assignments = processors.assignments
    return (
        Entry(codes.PULL_MESSAGE, each(pull.handle)),
        Entry(codes.LITE_PULL_MESSAGE, each(pull.handle)),
        Entry(codes.QUERY_CONSUMER_OFFSET, each(offsets.query)),
        Entry(codes.UPDATE_CONSUMER_OFFSET, each(offsets.update), master_only=True),
        Entry(codes.SEARCH_OFFSET_BY_TIMESTAMP, each(offsets.search)),
        Entry(codes.GET_MAX_OFFSET, each(offsets.maximum)),
        Entry(codes.GET_MIN_OFFSET, each(offsets.minimum)),
        Entry(codes.GET_EARLIEST_MSG_STORETIME, each(offsets.earliest)),
        Entry(codes.QUERY_MESSAGE, each(processors.messages.query)),
        Entry(codes.VIEW_MESSAGE_BY_ID, each(processors.messages.view)),
        Entry(codes.LOCK_BATCH_MQ, each(processors.locks.lock)),
        Entry(codes.UNLOCK_BATCH_MQ, each(processors.locks.unlock)),
        Entry(codes.HEART_BEAT, each(clients.heartbeat)),
        Entry(codes.UNREGISTER_CLIENT, each(clients.unregister)),
        Entry(codes.GET_CONSUMER_LIST_BY_GROUP, each(clients.consumer_ids)),
        Entry(codes.CHECK_CLIENT_CONFIG, each(clients.check_subscription)),
        Entry(codes.UPDATE_AND_CREATE_TOPIC, each(topics.put), passed_on=True),
        Entry(codes.UPDATE_AND_CREATE_TOPIC_LIST, each(topics.put_list), passed_on=True),
        Entry(codes.DELETE_TOPIC_IN_BROKER, each(topics.delete), passed_on=True),
        Entry(codes.GET_ALL_TOPIC_CONFIG, each(topics.all)),
        Entry(codes.GET_TOPIC_CONFIG, each(topics.one)),
        Entry(codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, each(topics.system)),
        Entry(codes.GET_TOPIC_STATS_INFO, each(topics.statistics)),
        Entry(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, each(groups.put), passed_on=True),
        Entry(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, each(groups.put_list), passed_on=True),
        Entry(codes.DELETE_SUBSCRIPTIONGROUP, each(groups.delete), passed_on=True),
        Entry(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, each(groups.all)),
        Entry(codes.GET_SUBSCRIPTIONGROUP_CONFIG, each(groups.one)),
        Entry(codes.GET_CONSUMER_CONNECTION_LIST, each(connections.consumers)),
        Entry(codes.GET_PRODUCER_CONNECTION_LIST, each(connections.producers)),
        Entry(codes.GET_ALL_PRODUCER_INFO, each(connections.all_producers)),
        Entry(codes.GET_CONSUME_STATS, each(consumption.group_progress)),
        Entry(codes.GET_BROKER_CONSUME_STATS, each(consumption.all_progress)),
        Entry(codes.QUERY_CONSUME_TIME_SPAN, each(consumption.time_span)),
        Entry(codes.QUERY_CORRECTION_OFFSET, each(consumption.correction)),
        Entry(codes.QUERY_TOPIC_CONSUME_BY_WHO, each(consumption.groups_of_topic)),
        Entry(codes.QUERY_TOPICS_BY_CONSUMER, each(consumption.topics_of_group)),
        Entry(codes.QUERY_SUBSCRIPTION_BY_CONSUMER, each(consumption.subscription)),
        Entry(codes.UPDATE_AND_GET_GROUP_FORBIDDEN, each(groups.forbid), passed_on=True),
        Entry(codes.INVOKE_BROKER_TO_RESET_OFFSET, each(processors.resets.reset), passed_on=True),
        Entry(codes.CLONE_GROUP_OFFSET, each(processors.resets.clone), passed_on=True),
        Entry(codes.GET_CONSUMER_RUNNING_INFO, each(processors.relay.running_info)),
        Entry(codes.CONSUME_MESSAGE_DIRECTLY, each(processors.relay.consume_directly)),
        Entry(codes.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, each(processors.relay.consumer_status)),
        Entry(codes.QUERY_ASSIGNMENT, each(assignments.query)),
        Entry(codes.SET_MESSAGE_REQUEST_MODE, each(assignments.set_mode), passed_on=True),
        Entry(codes.GET_ALL_MESSAGE_REQUEST_MODE, each(assignments.all_modes)),
        Entry(codes.VIEW_BROKER_STATS_DATA, each(processors.inspection.figures)),
        Entry(codes.QUERY_CONSUME_QUEUE, each(processors.inspection.queue)),
        Entry(codes.GET_ALL_CONSUMER_OFFSET, each(processors.inspection.all_offsets)),
        Entry(codes.CONSUMER_SEND_MSG_BACK, each(processors.send_back.send_back), master_only=True),
        Entry(codes.GET_ALL_DELAY_OFFSET, each(processors.send_back.delay_offsets)),
        Entry(codes.POP_MESSAGE, each(pop.pop), master_only=True),
        Entry(codes.PEEK_MESSAGE, each(processors.pop_looking.peek), master_only=True),
        Entry(codes.NOTIFICATION, each(processors.pop_looking.notify), master_only=True),
        Entry(codes.POLLING_INFO, each(processors.pop_looking.polling_info), master_only=True),
        Entry(codes.ACK_MESSAGE, each(pop.ack), master_only=True),
        Entry(codes.BATCH_ACK_MESSAGE, each(pop.batch_ack), master_only=True),
        Entry(codes.CHANGE_MESSAGE_INVISIBLETIME, each(pop.change_invisible_time), master_only=True),
        Entry(codes.END_TRANSACTION, each(processors.transactions.end)),
        Entry(codes.RESUME_CHECK_HALF_MESSAGE, each(processors.transactions.resume)),
        Entry(codes.BROKER_STATE, each(processors.state.handle)),
    )


Otherwise = Callable[[RemotingConnection, Command], None]


def refuse(connection: RemotingConnection, request: Command) -> None:
    """What a replica does with a request for the master."""
    connection.respond_error(request, NotMaster())


def handlers(table: Sequence[Entry], is_master: Callable[[], bool], pass_on: Otherwise = refuse) -> dict[int, Handler]:
    """The server's handlers. Codes that are in no table are answered as not supported by the connection itself."""
    found = {}
    for entry in table:
        otherwise = pass_on if entry.passed_on else refuse
        guarded = entry.master_only or entry.passed_on
        found[entry.code] = _on_master(entry.handler, is_master, otherwise) if guarded else entry.handler
    return found


def _on_master(handler: Handler, is_master: Callable[[], bool], otherwise: Otherwise) -> Handler:
    def guarded(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        if is_master():
            handler(connection, requests)
            return
        for request in requests:
            otherwise(connection, request)

    return guarded
