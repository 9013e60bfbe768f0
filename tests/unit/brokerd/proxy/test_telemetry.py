"""What is said on telemetry streams: commands, questions and their answers, and settings that changed."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.members.registry import ClientRegistry
from brokerd.members.streams import CommandStream, Told
from brokerd.metadata.configs import GroupConfig
from brokerd.metadata.tables import Change
from brokerd.proxy import commands
from brokerd.proxy.calls import Peer
from brokerd.proxy.commands import MAX_QUESTIONS_OF_CLIENT
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.settings_merge import merge
from brokerd.proxy.status import Code
from brokerd.store.draft import Draft, encode_draft
from remoting import codes
from remoting.errors import LogboomError, RequestError, RequestTimeout
from remoting.record.codec import Record, decode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_COMPRESSED
from remoting.record.properties import encode_properties
from tests.support.open_guard import yes
from tests.unit.brokerd.proxy.calls import METADATA, FakeCall
from tests.unit.brokerd.proxy.conftest import Bench
from tests.unit.brokerd.proxy.test_methods import consumer, producer, settings_of

HOST = pack_host("10.0.0.2", 10911)


class Client:
    """A client with an open stream; `said` are the commands that came after the answer to its settings."""

    def __init__(self, bench: Bench, settings: Any, *, connection: str = "one", **headers: str) -> None:
        self.bench = bench
        self.options = {
            "peer": Peer("1.2.3.4:5", b"", connection),
            "metadata": {**METADATA, **{name.replace("_", "-"): value for name, value in headers.items()}},
        }
        self.call = bench.begin("Telemetry", settings_of(settings), **self.options)
        assert len(self.call.answers) == 1

    @property
    def said(self) -> list[Any]:
        return [service.TelemetryCommand.FromString(answer) for answer in self.call.answers[1:]]

    def answer(self, **fields: Any) -> None:
        assert self.bench.begin("Telemetry", service.TelemetryCommand(**fields), **self.options).answers == []


@pytest.fixture
def bench() -> Bench:
    return Bench(ClientRegistry(lambda: 0, lambda: 0, yes))


def stream_of(bench: Bench, group: str = "G") -> CommandStream:
    member = bench.methods.telemetry.clients.grpc_member(group, "client-1")
    assert member is not None
    assert member.stream is not None
    return member.stream


def half(topic: str = "Normal", body: bytes = b"body", sys_flag: int = 0) -> Record:
    properties = {"UNIQ_KEY": "m-1", "TAGS": "t", "KEYS": "k", "TRAN_MSG": "true", "PGROUP": topic, "own": "1"}
    properties |= {"CHECK_IMMUNITY_TIME_IN_SECONDS": "40", "TRANSACTION_CHECK_TIMES": "1"}
    draft = Draft(topic, 2, body, encode_properties(properties), 1_700_000_000_000, HOST, sys_flag=sys_flag)
    return decode_record(encode_draft(draft, 7, 4711, 1_700_000_000_500, HOST))


# ---- orphans


def test_a_producer_is_asked_with_the_whole_message(bench) -> None:
    client = Client(bench, producer("Normal"))
    [stream] = bench.methods.telemetry.clients.producer_streams("Normal", "Normal")
    assert stream.recover_orphan(half(), "T1-x")
    [said] = client.said
    command = said.recover_orphaned_transaction_command
    message, system = command.message, command.message.system_properties
    assert (command.transaction_id, message.topic.name, message.body) == ("T1-x", "Normal", b"body")
    assert (system.message_id, system.tag, list(system.keys)) == ("m-1", "t", ["k"])
    assert dict(message.user_properties) == {"own": "1"}
    assert system.message_type == definition.MessageType.Value("TRANSACTION")
    assert system.body_encoding == definition.Encoding.Value("IDENTITY")
    assert system.body_digest.checksum
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (2, 7, 1)
    assert system.orphaned_transaction_recovery_duration.seconds == 40


def test_a_producer_hears_its_own_name_of_the_topic(bench) -> None:
    bench.broker.add_topic("ns%Normal")
    settings = producer()
    settings.publishing.topics.add(resource_namespace="ns", name="Normal")
    client = Client(bench, settings)
    [stream] = bench.methods.telemetry.clients.producer_streams("ns%Normal", "ns%Normal")
    assert stream.recover_orphan(half("ns%Normal", sys_flag=SYS_COMPRESSED), "T1-x")
    message = client.said[0].recover_orphaned_transaction_command.message
    assert (message.topic.resource_namespace, message.topic.name) == ("ns", "Normal")
    assert message.system_properties.body_encoding == definition.Encoding.Value("GZIP")


def test_streams_that_are_closed_or_not_read_are_not_asked(bench) -> None:
    clients = bench.methods.telemetry.clients
    first, second = Client(bench, producer("Normal")), Client(bench, producer("Normal"), connection="two")
    assert len(clients.producer_streams("Normal", "Normal")) == 2
    first.call.live = False
    second.call.writable = False
    assert clients.producer_streams("Normal", "Normal") == []
    second.call.writable = True
    assert len(clients.producer_streams("Normal", "Normal")) == 1
    again = Client(bench, producer("Normal"))
    streams = clients.producer_streams("Normal", "Normal")
    assert len(streams) == 2, "a client that opens another stream is asked there"
    assert all(stream.recover_orphan(half(), "T1-x") for stream in streams)
    assert (len(again.said), len(second.said), first.said) == (1, 1, [])


# ---- questions


class Answers(list[Told | LogboomError]):
    @property
    def code(self) -> int:
        [answer] = self
        assert isinstance(answer, RequestError)
        return answer.code


def test_a_client_prints_its_threads(bench) -> None:
    client, answers = Client(bench, consumer()), Answers()
    stream_of(bench).print_threads(1000, answers.append)
    nonce = client.said[0].print_thread_stack_trace_command.nonce
    assert len(nonce) == 32
    trace = service.ThreadStackTrace(nonce=nonce, thread_stack_trace="main")
    client.answer(thread_stack_trace=trace, status=definition.Status(code=Code.OK))
    assert answers == [Told(Code.OK, "main")]
    client.answer(thread_stack_trace=trace)
    assert len(answers) == 1


def test_a_client_consumes_one_message(bench) -> None:
    client, answers = Client(bench, consumer()), Answers()
    stream_of(bench).verify_message(half(), 1000, answers.append)
    command = client.said[0].verify_message_command
    assert (command.message.body, command.message.topic.name) == (b"body", "Normal")
    result = service.VerifyMessageResult(nonce=command.nonce)
    client.answer(verify_message_result=result, status=definition.Status(code=60000, message="no"))
    assert answers == [Told(60000, "no")]


def test_nobody_answers_for_another(bench) -> None:
    client, answers = Client(bench, consumer()), Answers()
    elsewhere, another = (
        Client(bench, consumer(), connection="two"),
        Client(bench, consumer(), x_mq_client_id="client-2"),
    )
    client.call.answers, again = [b""], stream_of(bench)
    again.print_threads(1000, answers.append)
    [asked] = [each for each in (client, elsewhere) if each.said]
    nonce = asked.said[0].print_thread_stack_trace_command.nonce
    trace = service.ThreadStackTrace(nonce=nonce, thread_stack_trace="forged")
    for other in {client, elsewhere, another} - {asked}:
        other.answer(thread_stack_trace=trace)
    asked.answer(thread_stack_trace=service.ThreadStackTrace(nonce="0" * 32))
    assert answers == []
    asked.answer(thread_stack_trace=trace)
    assert len(answers) == 1


def test_who_cannot_says_so_in_its_own_way(bench) -> None:
    client, answers = Client(bench, consumer()), Answers()
    stream_of(bench).verify_message(half(), 1000, answers.append)
    back = service.VerifyMessageCommand(nonce=client.said[0].verify_message_command.nonce)
    client.answer(verify_message_command=back, status=definition.Status(code=50100))
    assert answers == [Told(50100, "")]


def test_silence_costs_the_asker_a_time_out_and_frees_the_place(bench) -> None:
    Client(bench, consumer())
    stream, answers = stream_of(bench), Answers()
    for _ in range(MAX_QUESTIONS_OF_CLIENT):
        stream.print_threads(1000, answers.append)
    assert answers == []
    refused = Answers()
    stream.print_threads(1000, refused.append)
    assert refused.code == codes.SYSTEM_BUSY
    bench.turns.run(1000)
    assert len(answers) == MAX_QUESTIONS_OF_CLIENT
    assert all(isinstance(each, RequestTimeout) for each in answers)
    assert len(bench.methods.telemetry.questions) == 0
    stream.print_threads(1000, refused.append)
    assert len(refused) == 1


def test_questions_of_all_clients_are_bounded(bench, monkeypatch) -> None:
    monkeypatch.setattr(commands, "MAX_QUESTIONS", 1)
    Client(bench, consumer())
    waiting, refused = Answers(), Answers()
    stream_of(bench).print_threads(1000, waiting.append)
    stream_of(bench).print_threads(1000, refused.append)
    assert (len(waiting), refused.code) == (0, codes.SYSTEM_BUSY)


def test_who_goes_answers_nothing_any_more(bench) -> None:
    client, answers = Client(bench, consumer()), Answers()
    stream = stream_of(bench)
    stream.print_threads(1000, answers.append)
    bench.methods.telemetry.questions.connection_closed("two")
    assert answers == []
    bench.methods.telemetry.questions.connection_closed("one")
    assert answers.code == codes.SYSTEM_ERROR
    client.call.live = False
    gone = Answers()
    stream.print_threads(1000, gone.append)
    assert gone.code == codes.SYSTEM_ERROR


def test_a_broker_that_stops_answers_whoever_asked(bench) -> None:
    Client(bench, consumer())
    answers = Answers()
    stream_of(bench).print_threads(1000, answers.append)
    bench.methods.telemetry.questions.stop()
    assert answers.code == codes.SYSTEM_ERROR


# ---- settings that changed


def test_consumers_hear_of_their_groups_new_settings(bench) -> None:
    clients = [Client(bench, consumer(group), connection=group) for group in ("G", "Other")]
    publisher = Client(bench, producer("Normal"), connection="p")
    bench.broker.group_table["G"] = GroupConfig("G", fifo=True, retry_max_times=4)
    bench.methods.telemetry.metadata_changed(Change(groups_put=("G",)))
    bench.turns.run()
    [told] = clients[0].said
    assert told.status.code == Code.OK
    assert (told.settings.backoff_policy.max_attempts, told.settings.subscription.fifo) == (5, True)
    assert [entry.topic.name for entry in told.settings.subscription.subscriptions] == ["Normal"]
    assert len(told.settings.backoff_policy.customized_backoff.next) == 18
    assert clients[1].said == publisher.said == []
    bench.methods.telemetry.metadata_changed(Change(groups_put=("G", "Other")))
    bench.turns.run()
    assert (len(clients[0].said), clients[1].said) == (1, []), "nothing is different for either"
    del bench.broker.group_table["G"]
    bench.methods.telemetry.metadata_changed(Change(groups_deleted=("G",)))
    bench.turns.run()
    assert clients[0].said[-1].settings.backoff_policy.max_attempts == 17


def test_a_master_leaves_the_clients_of_replicas_to_these(bench) -> None:
    """They know the same groups, and do not go away with it."""
    call = FakeCall(settings_of(consumer("G")), metadata={**METADATA, "x-mq-language": "JAVA"})
    bench.methods.forwarded_handlers["Telemetry"]([call])
    bench.broker.group_table["G"] = GroupConfig("G", retry_max_times=4)
    bench.methods.telemetry.metadata_changed(Change(groups_put=("G",)))
    bench.turns.run()
    bench.methods.telemetry.move_away()
    assert call.answers == []
    stream_of(bench).print_threads(1000, [].append)
    assert len(call.answers) == 1


def test_many_clients_are_told_in_several_turns(bench) -> None:
    clients = [Client(bench, consumer("G"), connection=f"c{number}") for number in range(200)]
    bench.broker.group_table["G"] = GroupConfig("G", retry_max_times=4)
    bench.methods.telemetry.metadata_changed(Change(rebuilt=True))
    bench.methods.telemetry.metadata_changed(Change(topics_put=("Normal",)))
    bench.methods.telemetry._tell_some()
    assert sum(len(client.said) for client in clients) == 64
    bench.turns.run()
    assert all(len(client.said) == 1 for client in clients)


def test_settings_that_are_too_long_to_keep_are_answered_and_not_told_again(bench) -> None:
    settings = consumer()
    settings.user_agent.hostname = "h" * 70_000
    client = Client(bench, settings)
    bench.broker.group_table["G"] = GroupConfig("G", retry_max_times=4)
    bench.methods.telemetry.metadata_changed(Change(groups_put=("G",)))
    bench.turns.run()
    assert client.said == []


# ---- leaving


def test_java_is_asked_to_reconnect_before_the_broker_goes(bench) -> None:
    java = Client(bench, consumer(), connection="j", x_mq_language="JAVA")
    others = [Client(bench, consumer(), connection=name, x_mq_language=name) for name in ("HTTP", "GO", "PYTHON")]
    bench.methods.telemetry.move_away()
    assert [said.reconnect_endpoints_command.nonce != "" for said in java.said] == [True]
    assert [other.said for other in others] == [[], [], []]


# ---- metrics


@pytest.mark.parametrize(
    ("language", "client_type", "told"),
    [
        ("PYTHON", "PUSH_CONSUMER", False),
        ("PYTHON", "SIMPLE_CONSUMER", True),
        ("PYTHON", "PRODUCER", True),
        ("JAVA", "PUSH_CONSUMER", True),
        ("GOLANG", "PRODUCER", False),
        ("CPP", "SIMPLE_CONSUMER", False),
    ],
)
def test_metrics_are_asked_for_where_no_reader_breaks_on_it(language, client_type, told) -> None:
    settings = producer("Normal") if client_type == "PRODUCER" else consumer()
    settings.client_type = definition.ClientType.Value(client_type)
    settings.user_agent.language = definition.Language.Value(language)
    assert not merge(settings, None, takes_metrics=True).metric.on, "it did not say where it reached us"
    settings.access_point.scheme = definition.AddressScheme.Value("IPv4")
    settings.access_point.addresses.add(host="10.0.0.1", port=8081)
    settings.access_point.addresses.add(host="10.0.0.2", port=8082)
    merged = merge(settings, None, takes_metrics=True)
    assert merged.metric.on == told
    assert [address.port for address in merged.metric.endpoints.addresses] == ([8081] if told else [])
    assert not merge(settings, None).metric.on
