"""Addresses of brokers as gRPC clients take them (pure)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from brokerd.proxy.protobuf import definition
from remoting.transport.client import split_address

_IPV4, _IPV6, _DOMAIN_NAME = (definition.AddressScheme.Value(name) for name in ("IPv4", "IPv6", "DOMAIN_NAME"))
_MAX_ADDRESSES: Final = 16


def endpoints(addresses: Sequence[str]) -> Any:
    """The endpoints of host:port addresses, in their order.

    A client tries several addresses in turn, so it survives the loss of the first one by itself. Several are only allowed as
    literal addresses of one family; a host name stands alone (a client fails on a second one).
    """
    answer = definition.Endpoints()
    parsed = [split_address(address) for address in addresses[:_MAX_ADDRESSES]]
    versions = {_version(host) for host, _ in parsed}
    if versions == {4} or versions == {6}:
        answer.scheme = _IPV4 if versions == {4} else _IPV6
    else:
        answer.scheme = _DOMAIN_NAME
        del parsed[1:]
    for host, port in parsed:
        answer.addresses.add(host=host, port=port)
    return answer


def _version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0
