"""Secrets at rest."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.access.sealing import CannotOpen, seal, unseal

SECRET, OTHER, NONCE = b"0123456789abcdef", b"fedcba9876543210", bytes(range(12))


@given(st.text(max_size=100), st.binary(min_size=12, max_size=12))
def test_what_is_sealed_is_opened_again(password: str, nonce: bytes) -> None:
    try:
        password.encode()
    except UnicodeEncodeError:
        return
    assert unseal([OTHER, SECRET], "alice", seal(SECRET, "alice", password, nonce)) == password


def test_it_shows_nothing_of_the_password_and_differs_each_time() -> None:
    sealed = seal(SECRET, "alice", "p" * 64, NONCE)
    hidden = b64decode(sealed)[12:]
    assert len(hidden) == 64 + 16
    assert len(set(hidden)) > 30
    assert hidden[:32] != hidden[32:]
    assert seal(SECRET, "alice", "p" * 64, NONCE[::-1]) != sealed


def test_it_opens_for_nobody_else_and_not_after_a_change() -> None:
    sealed = seal(SECRET, "alice", "password", NONCE)
    with pytest.raises(CannotOpen, match="another cluster secret"):
        unseal([OTHER], "alice", sealed)
    with pytest.raises(CannotOpen):
        unseal([SECRET], "bob", sealed)
    content = bytearray(b64decode(sealed))
    for position in range(len(content)):
        changed = bytes(content[:position]) + bytes([content[position] ^ 1]) + bytes(content[position + 1 :])
        with pytest.raises(CannotOpen):
            unseal([SECRET], "alice", b64encode(changed).decode())
    with pytest.raises(CannotOpen):
        unseal([SECRET], "alice", "not base64!")
