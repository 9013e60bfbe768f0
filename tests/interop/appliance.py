"""A whole appliance of ours, three controllers and a group of three brokers, and the original's tool connected to it."""

from __future__ import annotations

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from tests.interop.apache import Session
from tests.interop.mqadmin import Tool
from tests.support.cluster import Cluster, eventually

CLUSTER = "DefaultCluster"
GROUP = "broker-a"


class Appliance:
    """The running cluster, the tool, and what the checks share."""

    def __init__(self, cluster: Cluster, session: Session, tool: Tool) -> None:
        self.cluster = cluster
        self.session = session
        self.tool = tool

    @property
    def master(self) -> str:
        return self.cluster.broker_addresses[self.cluster.master()]

    @property
    def controller(self) -> str:
        return self.cluster.controller_addresses[0]

    def topic(self, name: str, queues: int = 4, *options: str) -> str:
        """Make a topic and wait until every name server routes it."""
        made = self.tool("updateTopic", "-t", name, "-c", CLUSTER, "-r", str(queues), "-w", str(queues), *options)
        self.wait_routed(name)
        return made

    def wait_routed(self, name: str) -> None:
        def routed() -> bool:
            return all(self._knows(address, name) for address in self.cluster.controller_addresses)

        eventually(f"{name} is routed", routed)

    @staticmethod
    def _knows(name_server: str, topic: str) -> bool:
        return ask(name_server, codes.GET_ROUTEINFO_BY_TOPIC, topic=topic).code == codes.SUCCESS

    def group(self, name: str) -> str:
        return self.tool("updateSubGroup", "-g", name, "-c", CLUSTER, "-s", "true")

    def send(self, topic: str, body: str, *options: str) -> str:
        """Send one message through the tool; its unique id."""
        printed = self.tool("sendMessage", "-t", topic, "-p", body, *options)
        [line] = rows(printed, GROUP)
        assert line[2] == "SEND_OK"
        return line[3]

    def consume(self, group: str, topic: str) -> None:
        """A push consumer of the group consumes the topic to its end and commits that."""
        self.tool.consumer(group, topic)

        def done() -> bool:
            table = progress(self.tool, group)
            return bool(table[topic]) and all(row.difference == 0 for row in table[topic])

        eventually(f"{group} consumed {topic}", done, 60)

    def filled(self, topic: str, group: str) -> None:
        """A topic of two queues with two messages in each, which the group has consumed."""
        self.topic(topic, 2)
        self.group(group)
        for queue_id in ("0", "1", "0", "1"):
            self.send(topic, "x", "-b", GROUP, "-i", queue_id)
        self.consume(group, topic)
        self.tool.stop_clients()


_ANY_ANSWER = tuple(range(4096))


def ask(address: str, code: int, **fields: str) -> Command:
    """One request of our own client; its answer, whatever that says."""
    with SocketConnection(address) as connection:
        return connection.call(code, fields, accept=_ANY_ANSWER)


class Queue:
    """A row of consumerProgress."""

    def __init__(self, words: list[str]) -> None:
        self.queue_id, self.end, self.consumed, self.difference = (int(word) for word in words[2:6])


def rows(printed: str, first: str) -> list[list[str]]:
    """The words of the printed lines whose first word is given."""
    return [words for line in printed.splitlines() if (words := line.split()) and words[0] == first]


def progress(tool: Tool, group: str) -> dict[str, list[Queue]]:
    """consumerProgress by topic; a topic that is not there has no rows."""
    found: dict[str, list[Queue]] = _Rows()
    for line in tool.printed("consumerProgress", "-g", group, "-n", tool.name_servers).splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == GROUP:
            found[words[0]].append(Queue(words))
    return found


class _Rows(dict[str, list[Queue]]):
    def __missing__(self, topic: str) -> list[Queue]:
        return self.setdefault(topic, [])
