"""The digest of a body, as the official client of each language computes and compares it."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.proxy.digests import digest_for
from brokerd.proxy.protobuf import definition

CRC32 = definition.DigestType.Value("CRC32")
MD5 = definition.DigestType.Value("MD5")

# What the sources of apache/rocketmq-clients compute for DigestType.CRC32, by the language that each names in `x-mq-language`
TEXTS: dict[str, Callable[[int], str]] = {
    "JAVA": lambda crc: f"{crc:x}".upper(),  # Long.toHexString(crc).toUpperCase()
    "GO": lambda crc: f"{crc:x}".upper(),  # strings.ToUpper(strconv.FormatInt(crc, 16))
    "DOTNET": lambda crc: f"{crc:X}",  # crc.ToString("X")
    "CPP": lambda crc: crc.to_bytes(4).hex().upper(),  # hex(htonl(crc))
    "PYTHON": lambda crc: format(crc, "08X"),
    "HTTP": str,  # Node.js: `${crc}`
}


def body_whose_crc(matches: Callable[[int], bool]) -> bytes:
    return next(body for n in itertools.count() if matches(zlib.crc32(body := b"body %d" % n)))


BODIES = {
    "any": body_whose_crc(lambda crc: 1 << 28 <= crc < 1 << 31),
    "the highest bit": body_whose_crc(lambda crc: crc >= 1 << 31),
    "a leading zero": body_whose_crc(lambda crc: 1 << 24 <= crc < 1 << 28),
    "two of them": body_whose_crc(lambda crc: 1 << 20 <= crc < 1 << 24),
    "three of them": body_whose_crc(lambda crc: 1 << 16 <= crc < 1 << 20),
    "no letter": body_whose_crc(lambda crc: f"{crc:08x}".isdecimal()),
    "empty": b"",
    "large": bytes(4 * 1024 * 1024),
}


def sent_digest(language: str, body: bytes) -> tuple[int, str]:
    digest = definition.SystemProperties.FromString(digest_for(language)(body)).body_digest
    return digest.type, digest.checksum


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("language", [*TEXTS, "RUST", "PHP", ""])
def test_a_client_computes_what_it_was_sent(language, body) -> None:
    kind, text = sent_digest(language, body)
    if kind == CRC32 and language != "RUST":  # which does not look
        assert text == TEXTS[language](zlib.crc32(body))
    elif kind == MD5:
        assert text == hashlib.md5(body).hexdigest().upper()


@pytest.mark.parametrize("language", ["JAVA", "GO", "DOTNET", "CPP", "PYTHON", "RUST"])
def test_no_large_body_is_hashed_for_those_who_read_a_crc(language) -> None:
    assert all(sent_digest(language, body)[0] == CRC32 for body in BODIES.values())


@pytest.mark.parametrize("language", ["HTTP", "PHP", ""])
def test_who_writes_it_otherwise_gets_what_is_written_alike_everywhere(language) -> None:
    assert all(sent_digest(language, body)[0] == MD5 for body in BODIES.values())


def test_a_view_of_a_body_has_the_digest_of_the_body() -> None:
    for language in ("JAVA", "CPP", ""):
        for body in BODIES.values():
            assert digest_for(language)(memoryview(body)) == digest_for(language)(body)


def test_the_installed_python_client_finds_no_message_damaged(tmp_path) -> None:
    messages = []
    for body in BODIES.values():
        message = definition.Message(body=body)
        message.system_properties.MergeFromString(digest_for("PYTHON")(body))
        message.system_properties.body_encoding = definition.Encoding.Value("IDENTITY")
        messages.append(message.SerializeToString())
        message.body += b"!"
        messages.append(message.SerializeToString())
    path = tmp_path / "messages"
    path.write_bytes(b"".join(len(each).to_bytes(4) + each for each in messages))
    code = (
        "import sys, rocketmq\n"
        "from rocketmq.grpc_protocol import definition_pb2\n"
        "from rocketmq.v5.model.message import Message\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    while length := file.read(4):\n"
        "        message = definition_pb2.Message.FromString(file.read(int.from_bytes(length, 'big')))\n"
        "        print(int(Message().fromProtobuf(message).corrupted), end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "01" * len(BODIES)
