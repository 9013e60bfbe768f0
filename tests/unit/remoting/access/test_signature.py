"""Signatures of requests and calls, against values that Python's own HMAC gives and against what clients are known to send."""

from __future__ import annotations

import hmac
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting import frame
from remoting.access.signature import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    GrpcSignature,
    SigningKey,
    access_key,
    date_age_ms,
    is_date_signed_by,
    is_signed_by,
    read_authorization,
    sign,
)
from remoting.frame import Command

SECRET = b"12345678"
KEY = SigningKey(SECRET)


def expected(content: bytes) -> str:
    return b64encode(hmac.digest(SECRET, content, "sha1")).decode()


def test_values_are_covered_in_the_order_of_their_keys_then_the_body() -> None:
    ext = {"topic": "T", "AccessKey": "key", "b": "2", "SecurityToken": "token", SIGNATURE: "not covered"}
    assert sign(KEY, ext, b"body") == expected(b"keytoken2Tbody")  # upper case sorts first
    assert sign(KEY, ext, memoryview(b"body")) == expected(b"keytoken2Tbody")
    assert sign(KEY, {}, b"") == expected(b"")


@given(
    st.lists(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=12), max_size=4),
    st.binary(max_size=20_000),
    st.sampled_from([None, "a", "_UNIQUE_KEY_QUERY"]),
)
def test_any_entries_are_covered_alike_however_often_they_come(
    entries: list[dict[str, str]], body: bytes, leave_out: str | None
) -> None:
    for ext in (*entries, *({"k" * 2000: "v", "b": "1"}, {}, {SIGNATURE: "x", "a": "b"}), *entries):
        values = "".join(ext[name] for name in sorted(ext) if name not in (SIGNATURE, leave_out))
        want = expected(values.encode("utf-8", "surrogatepass") + body)
        for order in (ext, dict(reversed(ext.items()))):
            assert sign(KEY, order, body, leave_out=leave_out) == want
            assert sign(KEY, order, memoryview(body), leave_out=leave_out) == want


@pytest.mark.parametrize(("version", "covered"), [(399, b"key1body"), (400, b"keyflag1body"), (479, b"keyflag1body")])
def test_clients_up_to_4_9_3_leave_an_entry_out(version: int, covered: bytes) -> None:
    ext = {ACCESS_KEY: "key", "_UNIQUE_KEY_QUERY": "flag", "a": "1", SIGNATURE: expected(covered)}
    assert is_signed_by(Command(12, ext=ext, body=b"body", version=version), KEY)


def test_a_signed_request_is_accepted_and_any_change_is_not() -> None:
    signed = Credentials("key", SECRET).sign({"topic": "T"}, b"body")
    assert is_signed_by(Command(310, ext=signed, body=b"body"), KEY)
    assert not is_signed_by(Command(310, ext=signed, body=b"bodY"), KEY)
    assert not is_signed_by(Command(310, ext=signed | {"topic": "U"}, body=b"body"), KEY)
    assert not is_signed_by(Command(310, ext=signed, body=b"body"), SigningKey(b"another secret"))
    assert not is_signed_by(Command(310, ext=signed | {SIGNATURE: ""}, body=b"body"), KEY)
    assert not is_signed_by(Command(310, ext=signed | {SIGNATURE: "\ud800ü"}, body=b"body"), KEY)


def test_numbers_and_booleans_are_covered_as_clients_print_them() -> None:
    signature = expected(b"key" + b"7" + b"-12" + b"true")
    header = (
        b'{"code":11,"opaque":1,"flag":0,"version":479,"extFields":{"AccessKey":"key","a":7,"b":-12,"c":true,"d":null,'
        b'"Signature":"' + signature.encode() + b'"}}'
    )
    commands: list[Command] = []
    frame.decode_frames(frame._frame(header, b""), commands)
    assert is_signed_by(commands[0], KEY)


def test_empty_entries_are_anonymous() -> None:
    assert access_key(Command(34, ext={ACCESS_KEY: "", SIGNATURE: "", "OnsChannel": ""})) == ""
    assert access_key(Command(34)) == ""


def test_credentials_do_not_show_their_secret() -> None:
    assert "12345678" not in repr(Credentials("key", SECRET))


DATE = "20260101T101112Z"
DIGEST = hmac.digest(SECRET, DATE.encode(), "sha1")


@pytest.mark.parametrize("digits", [DIGEST.hex(), DIGEST.hex().upper()])
@pytest.mark.parametrize("credential", ["key", "key/", "key//Rocketmq", "key/region/service"])
def test_authorization_headers_of_all_clients(credential: str, digits: str) -> None:
    header = f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={digits}"
    signature = read_authorization(header)
    assert signature == GrpcSignature("key", DIGEST)
    assert is_date_signed_by(DATE, signature, KEY)
    assert not is_date_signed_by(DATE, signature, SigningKey(b"other"))
    assert not is_date_signed_by("20260101T101113Z", signature, KEY)


@pytest.mark.parametrize(
    "header", ["", "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=" + "0" * 40]
)
def test_headers_that_name_nobody(header: str) -> None:
    assert read_authorization(header) is None


@pytest.mark.parametrize(
    "header",
    [
        "nonsense",
        "MQv2-HMAC-SHA1 Credential",
        "MQv2-HMAC-SHA1 Credential=key, Signature=xyz",
        "MQv2-HMAC-SHA1 Credential=key, Signature=abc",
        "MQv2-HMAC-SHA1 Credential=" + "k" * 300 + ", Signature=ab",
        "MQv2-HMAC-SHA1 " + "a=b," * 2000,
    ],
)
def test_headers_that_cannot_be_read(header: str) -> None:
    with pytest.raises(ValueError, match=r"authorization header"):
        read_authorization(header)


@given(st.binary(max_size=200), st.lists(st.binary(max_size=200), max_size=3))
def test_a_key_is_hmac(secret: bytes, parts: list[bytes]) -> None:
    key = SigningKey(secret)
    for _ in range(2):  # a digest leaves the key as it was
        assert key.digest(*parts) == hmac.digest(secret, b"".join(parts), "sha1")


def test_a_truncated_signature_is_none() -> None:
    for digest in (b"", DIGEST[:19]):
        assert not is_date_signed_by(DATE, GrpcSignature("key", digest), KEY)


def test_ages_of_dates() -> None:
    noon_ms = 1_767_268_800_000  # 2026-01-01T12:00:00Z
    assert date_age_ms("20260101T120000Z", noon_ms + 5) == 5
    assert date_age_ms("2026-01-01T13:00:00+01:00", noon_ms) == 0
    assert date_age_ms("2026-01-01T12:00:01.500+00:00", noon_ms) == 1500
    assert date_age_ms("yesterday", noon_ms) is None
