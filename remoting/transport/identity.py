"""What a program dials with: how it signs its requests, and the TLS that it speaks."""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass

from remoting.access.component import ComponentCredentials, ComponentKey
from remoting.access.signature import SignsRequests


@dataclass(frozen=True, slots=True)
class Identity:
    """None = unsigned, or in plaintext."""

    credentials: SignsRequests | None = None
    tls: ssl.SSLContext | None = None


NOBODY = Identity()


def component_identity(cluster_secrets: Sequence[bytes], tls: ssl.SSLContext | None) -> Identity:
    """That of a component, which signs under the first of the cluster's secrets, if there are any."""
    if not cluster_secrets:
        return Identity(tls=tls)
    return Identity(ComponentCredentials(ComponentKey(cluster_secrets[0]), secrets.token_bytes, _wall_ms), tls)


def socket_address(name: tuple[str, int] | None) -> str:
    """One end of a connection as both of its ends write it; "" when the socket has none."""
    if not name:
        return ""
    host = name[0].partition("%")[0]  # each machine has its own names for its interfaces
    return f"{host.removeprefix('::ffff:')}:{name[1]}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
