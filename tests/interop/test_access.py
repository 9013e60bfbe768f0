"""Users, permissions and TLS with the original's own tool and clients: mqadmin, the Java client, the official Python client."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from remoting.client.access_admin import AccessAdmin
from remoting.client.blocking import AdminClient
from remoting.transport.tls import client_context
from tests.interop import programs
from tests.interop.apache import Apache, CommandFailed, Session, Unavailable
from tests.interop.mqadmin import Tool
from tests.interop.programs import Outcome, Program
from tests.interop.test_cpp_client import CHECKS as CPP
from tests.interop.test_node_client import CHECKS as NODE
from tests.support.certificates import Authority
from tests.support.cluster import Cluster, eventually

SECRET = "a secret of alice"
CHECKS = ("send", "batch-and-keys", "receive", "refused-topic", "refused-secret", "refused-unsigned")
ON = ("access.authentication=true", "access.authorization=true")
_SOURCE = Path(__file__).parent / "java" / "access" / "AccessChecks.java"


class Secured:
    """A cluster that takes signed requests of TLS connections, and plaintext ones unless `mode` is enforcing."""

    def __init__(self, root: Path, mode: str) -> None:
        authority = Authority(root / "certificates")
        shown = authority.sign("server")
        tls = (
            *(f"tls.mode={mode}", f"tls.certificate_path={shown.certificate}", f"tls.key_path={shown.key}"),
            *(f"tls.ca_path={authority.ca}", "tls.dial=true", "tls.check_host=true"),
        )
        self.authority = authority
        self.cluster = Cluster(
            root,
            controllers=3,
            replicas=2,
            broker_settings=(*ON, *tls),
            controller_settings=(*ON, *tls),
            tls=client_context(str(authority.ca)),
        )

    def start(self) -> None:
        self.cluster.start()
        self.first_user = eventually("the first user is made", self._first_user)
        for topic in ("orders", "invoices"):
            self.cluster.admin.create_topic(topic, 4)

    def wait_for_copies(self) -> None:
        """Wait until every broker has the controllers' users and permissions."""
        version = self.cluster.admin.cluster_view().access_version
        wanted = f'\\"version\\":{version}'.encode()
        copies = [self.cluster.data / f"b{number}" / "access.json" for number in range(len(self.cluster.brokers))]
        eventually("the brokers have it", lambda: all(wanted in each.read_bytes() for each in copies if each.exists()))

    def _first_user(self) -> str:
        found = [each.read_text().strip() for each in self.cluster.data.glob("n*/first-user")]
        return found[0] if len(found) == 1 and AccessAdmin(self.cluster.admin).users() else ""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"), "permissive")
    with secured.cluster:
        secured.start()
        yield secured


class Signing:
    """The original's tool, whose requests are signed."""

    def __init__(self, session: Session, tool: Tool) -> None:
        self._session = session
        self.mqadmin = tool

    def sign_as(self, name: str, secret: str) -> None:
        """From the next command on."""
        file = self._session.directory / "conf" / "tools.yml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"accessKey: {name}\nsecretKey: {secret}\n")

    def allow(self, user: str, resource: str, actions: str, *more: str) -> str:
        words = ("-c", "DefaultCluster", "-s", f"User:{user}", "-r", resource, "-a", actions, "-d", "Allow", *more)
        return self.mqadmin("createAcl", *words)


@pytest.fixture
def signing(session: Session, secured: Secured) -> Iterator[Signing]:
    """mqadmin as the first user."""
    with Tool.start(session, ";".join(secured.cluster.controller_addresses)) as tool:
        signing = Signing(session, tool)
        signing.sign_as(*secured.first_user.split(":", 1))
        yield signing


@pytest.fixture
def alice(signing: Signing) -> None:
    """May send to and read orders, as a member of workers*."""
    printed = signing.mqadmin("createUser", "-c", "DefaultCluster", "-u", "alice", "-p", SECRET, "-t", "Normal")
    assert "success" in printed
    assert "success" in signing.allow("alice", "Topic:orders", "Pub,Sub")
    assert "success" in signing.allow("alice", "Group:workers*", "Sub")


def test_mqadmin_manages_users(signing: Signing, secured: Secured) -> None:
    master = secured.cluster.broker_addresses[secured.cluster.master()]
    name, secret = secured.first_user.split(":", 1)
    cluster = ("-c", "DefaultCluster")
    for _ in range(2):  # as when several broker groups bring the same
        printed = signing.mqadmin("createUser", *cluster, "-u", "bob", "-p", "bob's secret", "-t", "Normal")
        assert "create user to" in printed
        assert "success" in printed
    listed = signing.mqadmin("listUser", *cluster)
    assert name in listed
    assert "bob" in listed
    shown = signing.mqadmin("getUser", "-b", master, "-u", "bob")
    assert "bob's secret" in shown
    assert "Normal" in shown
    signing.mqadmin("updateUser", *cluster, "-u", "bob", "-s", "disable")
    assert "disable" in signing.mqadmin("getUser", "-b", master, "-u", "bob")
    signing.mqadmin("updateUser", *cluster, "-u", "bob", "-s", "enable")
    signing.mqadmin("updateUser", *cluster, "-u", "bob", "-p", "another one")
    printed = signing.mqadmin("copyUser", "-f", master, "-t", master, "-u", "bob")
    assert "copy user of bob" in printed
    assert "another one" in signing.mqadmin("getUser", "-b", master, "-u", "bob")
    with pytest.raises(CommandFailed, match="there is no user carol"):
        signing.mqadmin("updateUser", *cluster, "-u", "carol", "-p", "carol's secret")
    # bob may look at nothing and make nobody
    signing.sign_as("bob", "another one")
    with pytest.raises(CommandFailed, match="may not"):
        signing.mqadmin("createUser", "-b", master, "-u", "eve", "-p", "eve's secret", "-t", "Super")
    signing.sign_as(name, secret + "x")
    with pytest.raises(CommandFailed, match="do not fit"):
        signing.mqadmin("listUser", "-b", master)
    signing.sign_as(name, secret)
    for _ in range(2):
        assert "success" in signing.mqadmin("deleteUser", *cluster, "-u", "bob")
    assert "bob" not in signing.mqadmin("listUser", *cluster)


def test_mqadmin_manages_permissions(signing: Signing, secured: Secured) -> None:
    master = secured.cluster.broker_addresses[secured.cluster.master()]
    cluster = ("-c", "DefaultCluster")
    broker = ("-b", master)
    signing.mqadmin("createUser", *cluster, "-u", "dora", "-p", "dora's secret", "-t", "Normal")
    assert "success" in signing.allow("dora", "Topic:a*,Group:g", "Pub,Sub", "-i", "10.0.0.0/8,127.0.0.1")
    shown = signing.mqadmin("getAcl", *broker, "-s", "User:dora")
    for word in ("User:dora", "Custom", "Topic:a*", "Group:g", "Pub", "Sub", "10.0.0.0/8", "Allow"):
        assert word in shown
    signing.mqadmin(
        "updateAcl", *cluster, "-s", "User:dora", "-r", "Topic:a*", "-a", "Sub", "-d", "Deny", "-i", "127.0.0.1"
    )
    listed = signing.mqadmin("listAcl", *cluster, "-s", "dora")
    assert "Deny" in listed
    assert "Group:g" in listed
    assert "Group:g" not in signing.mqadmin("listAcl", *broker, "-r", "Topic")
    assert "copy acl of User:dora" in signing.mqadmin("copyAcl", "-f", master, "-t", master, "-s", "User:dora")
    assert signing.mqadmin("listAcl", *cluster, "-s", "dora") == listed
    signing.mqadmin("deleteAcl", *cluster, "-s", "User:dora", "-r", "Topic:a*")
    assert "Topic:a*" not in signing.mqadmin("getAcl", *broker, "-s", "User:dora")
    with pytest.raises(CommandFailed, match="there is no user nobody"):
        signing.allow("nobody", "Topic:a", "Pub")
    with pytest.raises(CommandFailed, match="resource is Topic:NAME"):
        signing.allow("dora", "Disk:a", "Pub")
    signing.mqadmin("deleteAcl", *cluster, "-s", "User:dora")
    signing.mqadmin("deleteUser", *cluster, "-u", "dora")


@pytest.fixture(scope="module")
def java_client(apache: Apache, tmp_path_factory: pytest.TempPathFactory) -> Program:
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("the program around the Java client needs a compiler: install a JDK (default-jdk-headless)")
    classes = tmp_path_factory.mktemp("classes")
    jars = f"{apache.jars}/*"
    subprocess.run([compiler, "-nowarn", "-d", str(classes), "-cp", jars, str(_SOURCE)], check=True, timeout=120)
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={classes}")
    return Program([apache.java, *options, "-cp", f"{classes}:{jars}"], {})


def run_java(client: Program, secured: Secured, directory: Path, group: str, *options: str) -> Outcome:
    servers = ";".join(secured.cluster.controller_addresses)
    words = (*options, "AccessChecks", servers, "alice", SECRET, "orders", "invoices", group)
    return client.run(words, directory)


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize("tls", ["false", "true"])
def test_a_java_client_signs_and_is_refused_what_it_may_not(
    java_client: Program, secured: Secured, tmp_path: Path, tls: str
) -> None:
    outcome = run_java(java_client, secured, tmp_path, f"workers-{tls}", f"-Dtls.enable={tls}")
    for check in CHECKS:
        outcome.expect(check)


def test_a_java_client_checks_our_certificate_and_shows_its_own_where_nothing_else_is_taken(
    apache: Apache, java_client: Program, tmp_path: Path
) -> None:
    secured = Secured(tmp_path / "cluster", "enforcing")
    with secured.cluster, apache.session(tmp_path / "apache") as session:
        secured.start()
        admin = AccessAdmin(secured.cluster.admin)
        admin.create_user("alice", SECRET, "Normal", "enable")
        for resource, actions in (("Topic:orders", ["Pub", "Sub"]), ("Group:workers*", ["Sub"])):
            admin.put_permission("alice", {"resource": resource, "actions": actions, "decision": "Allow"})
        secured.wait_for_copies()
        properties = session.directory / "tls.properties"
        properties.write_text(
            f"tls.test.mode.enable=false\ntls.client.authServer=true\ntls.client.trustCertPath={secured.authority.ca}\n"
        )
        options = ("-Dtls.enable=true", "-Dtls.test.mode.enable=false", f"-Dtls.config.file={properties}")
        outcome = run_java(java_client, secured, tmp_path / "java", "workers", *options)
        for check in CHECKS:
            outcome.expect(check)
        outcome = run_java(java_client, secured, tmp_path / "plain", "workers", "-Dtls.enable=false")
        assert outcome.results["send"]


CPP_EXPECTED = ("send-sync", "send-oneway", "send-orderly", "push-concurrent", "push-orderly", "pull", "retry")
GO = ("send-sync", "send-batch", "push-concurrent", "push-orderly", "transaction", "request-reply")


def signing_program(program: Program, user: str, secret: str) -> Program:
    return Program(program.command, {**program.environment, "ACCESS_KEY": user, "SECRET_KEY": secret})


def found(make: Callable[[], Program]) -> Program:
    try:
        return make()
    except Unavailable as reason:
        pytest.skip(str(reason))


def allow_names(secured: Secured, prefix: str, topics: Sequence[str], queues: int = 2) -> str:
    """A user who may use what begins with the prefix, and the topics; the name servers."""
    admin = AccessAdmin(secured.cluster.admin)
    admin.create_user(f"{prefix}user", SECRET, "Normal", "enable")
    for resource, actions in (
        (f"Topic:{prefix}*", ["Pub", "Sub"]),
        (f"Group:{prefix}*", ["Sub"]),
        ("Topic:DefaultCluster_REPLY_TOPIC", ["Pub"]),
    ):
        admin.put_permission(f"{prefix}user", {"resource": resource, "actions": actions, "decision": "Allow"})
    for topic in topics:
        secured.cluster.admin.create_topic(f"{prefix}-{topic}", queues)
    for address in secured.cluster.controller_addresses:
        name_server = AdminClient([address], identity=secured.cluster.identity)
        for topic in topics:
            eventually("the topic's route", functools.partial(name_server.queue_offsets, f"{prefix}-{topic}"))
    secured.wait_for_copies()
    return ";".join(secured.cluster.controller_addresses)


def test_the_cpp_client_signs(secured: Secured, tmp_path: Path) -> None:
    program = signing_program(found(programs.cpp), "cppuser", SECRET)
    servers = allow_names(secured, "cpp", CPP)
    master = secured.cluster.broker_addresses[secured.cluster.master()]
    outcome = program.run([servers, "cpp", master], tmp_path)
    for check in CPP_EXPECTED:
        outcome.expect(check)


def test_the_node_client_signs(secured: Secured, tmp_path: Path) -> None:
    program = signing_program(found(programs.node), "nodeuser", SECRET)
    servers = allow_names(secured, "node", NODE)
    outcome = program.run([servers, "node"], tmp_path)
    for check in NODE:
        outcome.expect(check)


def test_the_go_client_signs(secured: Secured, tmp_path: Path) -> None:
    program = signing_program(found(lambda: programs.go(tmp_path)), "gouser", SECRET)
    servers = allow_names(secured, "go", GO, queues=4)  # its tool does not sign, so the topics are made here
    master = secured.cluster.broker_addresses[secured.cluster.master()]
    outcome = program.run([servers, master, "go", *GO], tmp_path)
    for check in GO:
        outcome.expect(check)


_PYTHON = """
import os
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

endpoints, topic = os.environ["ENDPOINTS"], os.environ["TOPIC"]

def configuration(secret):
    return ClientConfiguration(endpoints, Credentials("alice", secret), request_timeout=5)

def send(secret, topic):
    producer = Producer(configuration(secret), (topic,))
    try:
        producer.startup()
        message = Message()
        message.topic, message.body = topic, b"hello"
        return producer.send(message).message_id
    finally:
        producer.shutdown()

def attempt(name, action):
    try:
        print("passed" if action() else "failed", name, flush=True)
    except Exception as error:
        print("failed", name, type(error).__name__, error, flush=True)

def refused(action):
    try:
        action()
    except Exception as error:
        if "failed to fetch topic" in str(error):  # this client keeps the reason to itself
            return True
        raise
    return False

def receive():
    consumer = SimpleConsumer(configuration(os.environ["SECRET"]), "workers-grpc", {topic: FilterExpression()})
    consumer.startup()
    try:
        for _ in range(30):
            messages = consumer.receive(16, 20)
            for message in messages or ():
                consumer.ack(message)
            if messages:
                return True
        return False
    finally:
        consumer.shutdown()

attempt("send", lambda: send(os.environ["SECRET"], topic))
attempt("receive", receive)
attempt("refused-topic", lambda: refused(lambda: send(os.environ["SECRET"], "invoices")))
attempt("refused-secret", lambda: refused(lambda: send("wrong", topic)))
os._exit(0)
"""


@pytest.mark.usefixtures("alice")
def test_the_official_python_client_signs(secured: Secured, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "ENDPOINTS": ";".join(secured.cluster.grpc_addresses),
        "TOPIC": "orders",
        "SECRET": SECRET,
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PYTHON)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    for check in ("send", "receive", "refused-topic", "refused-secret"):
        assert f"passed {check}" in done.stdout, done.stdout[-6000:]
    told = "".join(broker.log_text() for broker in secured.cluster.brokers)
    for reason in ("alice may not Pub/Sub/Get on Topic:invoices", "the access key alice and the signature do not fit"):
        assert "refused a call of QueryRoute by 127.0.0.1:" in told
        assert reason in told
