"""Has Apache RocketMQ 5.3.3 write the files under `rocketmq-5.3.3/log*` and `rocketmq-5.3.3/batch`.

    python -m tests.golden.record

Run once; the files are committed, and tests/unit/brokerd/store/test_golden.py holds the code against them.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.record.properties import encode_properties
from tests.interop.apache import Apache, Session
from tests.support.cluster import eventually

GOLDEN: Final = Path(__file__).parent / "rocketmq-5.3.3"
SEGMENT_BYTES: Final = 1 << 16
LONG_GROUP: Final = "GID_" + "long" * 30
BATCH_SOURCE: Final = """
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;

public class Batch {
    public static void main(String[] arguments) throws Exception {
        Message first = new Message("TopicA", "tagA", "k1 k2", 7, "hello".getBytes(StandardCharsets.UTF_8), true);
        Message second = new Message("TopicA", "", "", 0, new byte[0], true);
        Message third = new Message("TopicA", "tagB", "", -1, "h\\u00e9".getBytes(StandardCharsets.UTF_8), false);
        System.out.write(MessageDecoder.encodeMessages(Arrays.asList(first, second, third)));
        System.out.flush();
    }
}
"""


def send(
    connection: SocketConnection, topic: str, body: bytes, *, queue_id: int = 0, **fields: Any
) -> Mapping[str, str]:
    """Send one message, or with `code` and `batch` several; the answer's fields."""
    properties = fields.get("properties", {"UNIQ_KEY": "U1", "TAGS": "tagA"})
    ext = {"a": "golden", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": str(fields.get("sys_flag", 0))}
    ext |= {"g": "1700000000000", "h": str(fields.get("flag", 0)), "i": encode_properties(properties).decode()}
    ext |= {"j": "0", "k": "false", "l": "16", "m": "true" if fields.get("batch") else "false"}
    code = codes.SEND_BATCH_MESSAGE if fields.get("batch") else codes.SEND_MESSAGE_V2
    return connection.call(code, ext, body, timeout_ms=5000).ext


def give_back(connection: SocketConnection, sent: Mapping[str, str]) -> None:
    """Have a message delivered again, which is the only way into a topic with so long a name; wait until it is."""
    ext = {"group": LONG_GROUP, "offset": str(int(sent["msgId"][-16:], 16)), "delayLevel": "1", "originTopic": "TopicA"}
    ext |= {"originMsgId": sent["msgId"], "unitMode": "false", "maxReconsumeTimes": "16"}
    connection.call(codes.CONSUMER_SEND_MSG_BACK, ext)
    place = {"topic": f"%RETRY%{LONG_GROUP}", "queueId": "0"}
    eventually("the message is back", lambda: connection.call(codes.GET_MAX_OFFSET, place).ext["offset"] != "0", 60)


def write_messages(host: str, port: int, batch: bytes) -> int:
    """One message of each kind, until the log is in its second file; a time in ms when all but the last had been sent."""
    with SocketConnection(f"{host}:{port}", timeout_ms=5000) as connection:
        send(connection, "TopicA", b"hello", properties={"UNIQ_KEY": "U1", "TAGS": "tagA", "KEYS": "k1 k2"}, flag=7)
        send(connection, "TopicA", b"-", properties={})
        send(connection, "TopicA", zlib.compress(b"compressed " * 20), sys_flag=0x301)
        send(connection, "TopicA", batch, batch=True, properties={})
        give_back(connection, send(connection, "TopicA", b"comes back to a topic of more than 127 bytes"))
        half = {"UNIQ_KEY": "H1", "TRAN_MSG": "true", "PGROUP": "golden"}
        answer = send(connection, "TopicA", b"in a transaction", sys_flag=4, properties=half)
        end = {"producerGroup": "golden", "topic": "TopicA", "tranStateTableOffset": answer["queueOffset"]}
        end |= {"commitLogOffset": str(int(answer["msgId"][-16:], 16)), "commitOrRollback": "8", "msgId": "H1"}
        end |= {"fromTransactionCheck": "false", "transactionId": "H1"}
        connection.call(codes.END_TRANSACTION, end, timeout_ms=5000)
        send(connection, "TopicA", b"large " * 7000)
        before_last_ms = time.time_ns() // 1_000_000
        send(connection, "TopicA", b"large " * 7000)
    return before_last_ms


def is_checkpointed(checkpoint: Path, since_ms: int) -> bool:
    """Whether a checkpoint vouches for messages of that time, in the log and in the queues; one is written every second."""
    return min(struct.unpack_from(">2q", checkpoint.read_bytes())) >= since_ms


def run(session: Session, target: Path, batch: bytes, *, ip: str, host: str) -> None:
    """A master under a controller, its messages, and what it left after SIGTERM."""
    name_server = session.name_server(with_controller=True)
    broker = session.broker(
        "broker-a",
        name_server.address,
        controllers=name_server.controller,
        properties={
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "flushDiskType": "SYNC_FLUSH",
            "brokerIP1": ip,
            "bindAddress": "::" if ":" in host else "127.0.0.1",
            "messageIndexEnable": "false",
        },
        wait=False,
    )
    port = int(broker.address.rpartition(":")[2])

    def prepared() -> bool:
        with SocketConnection(f"{host}:{port}", timeout_ms=2000) as connection:
            connection.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"%b"}' % LONG_GROUP.encode())
            send(connection, "TopicA", b"is it a master?")
        return True

    eventually("the broker is master", prepared, 90)
    before_last_ms = write_messages(host, port, batch)
    checkpoint = broker.store / "checkpoint"
    eventually("the checkpoint tells of the last message", lambda: is_checkpointed(checkpoint, before_last_ms))
    broker.process.terminate(60)
    name_server.process.kill()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in sorted((broker.store / "commitlog").iterdir()):
        (target / f"commitlog-{path.name}").write_bytes(path.read_bytes().rstrip(b"\0") + b"\0")
    for topic, name in (("TopicA", "TopicA"), (f"%RETRY%{LONG_GROUP}", "retry"), ("RMQ_SYS_TRANS_HALF_TOPIC", "half")):
        content = (broker.store / "consumequeue" / topic / "0" / ("0" * 20)).read_bytes()
        units = [content[at : at + 20] for at in range(0, len(content), 20)]
        kept = b"".join(unit for unit in units if any(unit))
        (target / f"consumequeue-{name}").write_bytes(kept)
    for name in ("checkpoint", "epochFileCheckpoint"):
        (target / name).write_bytes((broker.store / name).read_bytes())


def encoded_batch(apache: Apache, directory: Path) -> bytes:
    """What the Java client sends as the body of a batch."""
    source = directory / "Batch.java"
    source.write_text(BATCH_SOURCE)
    return subprocess.run(
        [apache.java, "-cp", f"{apache.jars}/*", str(source)], check=True, capture_output=True, timeout=120
    ).stdout


def main() -> None:
    apache = Apache.find()
    with tempfile.TemporaryDirectory() as work:
        batch = encoded_batch(apache, Path(work))
        (GOLDEN / "batch").write_bytes(batch)
        for name, ip, host in (("log", "127.0.0.1", "127.0.0.1"), ("log-ipv6", "::1", "[::1]")):
            with apache.session(Path(work) / name) as session:
                run(session, GOLDEN / name, batch, ip=ip, host=host)


if __name__ == "__main__":
    main()
