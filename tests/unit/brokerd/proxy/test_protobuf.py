"""Importing the shipped protobuf modules runs nothing of the client that ships them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from brokerd.proxy.protobuf import definition, service


def run(code: str, home: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_client_no_grpc_and_no_log_directory(tmp_path) -> None:
    output = run(
        "import sys\n"
        "from brokerd.proxy.protobuf import definition, service\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('rocketmq', 'grpc', 'opentelemetry')))",
        tmp_path,
    )
    assert output == "[]"
    assert list(tmp_path.iterdir()) == []


def test_an_ordinary_import_of_the_client_works_before_and_after(tmp_path) -> None:
    for order in (
        "from brokerd.proxy.protobuf import service as ours\nimport rocketmq",
        "import rocketmq\nfrom brokerd.proxy.protobuf import service as ours",
    ):
        output = run(
            f"{order}\n"
            "from rocketmq.grpc_protocol import service_pb2 as theirs\n"
            "sent = ours.QueryRouteRequest(topic={'name': 'T'}).SerializeToString()\n"
            "print(theirs.QueryRouteRequest.FromString(sent).topic.name, rocketmq.Producer.__name__)",
            tmp_path,
        )
        assert output == "T Producer"


def test_messages_survive_a_round_trip_and_keep_unknown_fields() -> None:
    message = definition.Message(body=b"x", user_properties={"a": "b"})
    message.system_properties.keys.extend(["k1", "k2"])
    encoded = message.SerializeToString() + b"\xfa\x3e\x03new"
    copy = definition.Message()
    copy.CopyFrom(definition.Message.FromString(encoded))
    assert copy.SerializeToString().endswith(b"\xfa\x3e\x03new")
    assert service.SendMessageRequest(messages=[copy]).messages[0].user_properties == {"a": "b"}
