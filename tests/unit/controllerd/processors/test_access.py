"""Secrets that controllers seal: under the first of the cluster's secrets, also what was sealed before it came."""

from __future__ import annotations

import pytest

from controllerd.processors.access import Sealer
from remoting.access.model import User
from remoting.access.sealing import seal, unseal
from remoting.errors import RequestError

OLD, NEW = b"0123456789abcdef", b"fedcba9876543210"


def sealer(*secrets: bytes) -> Sealer:
    return Sealer(secrets, lambda secret, owner, password: seal(secret, owner, password, bytes(12)))


def test_without_a_secret_nothing_is_kept() -> None:
    with pytest.raises(RequestError, match="--cluster-secret"):
        sealer().seal("alice", "password")


def test_while_the_secret_is_being_changed_what_was_sealed_before_is_sealed_anew() -> None:
    user = User("alice", sealer(OLD).seal("alice", "password"))
    assert sealer(OLD).sealed_anew(user) is None
    assert sealer(OLD, NEW).sealed_anew(user) is None
    anew = sealer(NEW, OLD).sealed_anew(user)
    assert anew is not None
    assert unseal([NEW], "alice", anew) == "password"
    assert sealer(NEW, OLD).sealed_anew(User("alice", anew)) is None
    assert sealer(NEW, b"a third secret, no more").sealed_anew(user) is None
    assert sealer(NEW).open(user) is None
