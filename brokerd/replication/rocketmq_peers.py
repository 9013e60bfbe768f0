"""Who may replicate without proving himself: the addresses in `replication.plain_peers` (pure)."""

from __future__ import annotations

import ipaddress
import re

from remoting.errors import SettingsError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class RocketmqPeers:
    """Addresses and networks, and names, which only count for a master that is dialled by them."""

    def __init__(self, text: str) -> None:
        """`text` is separated by commas; empty = nobody. Raises SettingsError."""
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for word in filter(None, (each.strip() for each in text.split(","))):
            try:
                self._networks.append(ipaddress.ip_network(word))
            except ValueError as error:
                if not _NAME.fullmatch(word) or word[0].isdecimal():
                    raise SettingsError(
                        f"replication.plain_peers: {word!r} is no address, network or host name ({error}); "
                        "write for example 10.0.0.7,10.1.0.0/16"
                    ) from error
                self._names.add(word.lower())

    def allows(self, host: str) -> bool:
        """Whether the peer at this address (or, for one that is dialled, of this name) may speak plainly."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host.lower() in self._names
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)


def host_of(address: str) -> str:
    """The host in host:port."""
    return address.rpartition(":")[0].strip("[]")
