"""How an appliance is reached: on loopback alone, or by other machines, with users, permissions and TLS everywhere (pure)."""

from __future__ import annotations

import argparse
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remoting.errors import SettingsError
from webapp.appliance.bounds import bounded

LOOPBACK = "127.0.0.1"
HTTPS_PORT = 8443

_HOST_NAME = re.compile(r"(?=.{1,253}$)(?!-)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*")


@dataclass(frozen=True, slots=True)
class Secure:
    """Other machines may reach the appliance at this address of it; remembered in the data directory.

    The console shows `certificate_path` with the key of `key_path`, or, when they are empty, what the appliance makes itself.
    """

    host: str
    https_port: int = HTTPS_PORT
    certificate_path: str = ""
    key_path: str = ""

    @property
    def https(self) -> str:
        """Where browsers find the console."""
        return join_address(self.host, self.https_port)


SECURED = (
    "tls.mode=enforcing",
    "tls.dial=true",
    "tls.check_host=true",
    "access.authentication=true",
    "access.authorization=true",
)
"""What every daemon of an appliance is told that others may reach."""


def secure_of(host: str | None, given: dict[str, Any]) -> Secure | None:
    """What was asked for, taken out of what was given. Raises SettingsError."""
    port, certificate, key = (given.pop(name, None) for name in ("https_port", "console_certificate", "console_key"))
    if (certificate is None) != (key is None):
        raise SettingsError("--console-certificate and --console-key belong together; give both, or none")
    if host is None:
        if port is not None or certificate is not None:
            raise SettingsError(
                "--https-port, --console-certificate and --console-key are for an appliance that others may reach; "
                "say at which address of this machine"
            )
        return None
    return Secure(host, HTTPS_PORT if port is None else port, str(certificate or ""), str(key or ""))


def add_console_options(parser: argparse._ActionsContainer) -> None:
    """How browsers get in from other machines."""
    parser.add_argument(
        "--https-port",
        type=bounded(1, 65535),
        metavar="PORT",
        help=f"port of the console by HTTPS (default: {HTTPS_PORT})",
    )
    for name, what in (
        (
            "certificate",
            "the certificate that the console shows, with its chain (default: one that the appliance makes)",
        ),
        ("key", "its private key"),
    ):
        parser.add_argument(
            f"--console-{name}",
            type=lambda text: Path(text).expanduser().absolute(),
            metavar="FILE",
            help=f"{what}: a PEM file",
        )


def host(text: str) -> str:
    """An address or name that other machines can use. Raises argparse.ArgumentTypeError."""
    name = text.strip("[]")
    try:
        if ipaddress.ip_address(name).is_unspecified:
            raise argparse.ArgumentTypeError(f"{text!r} is every address and none; name the one that others shall use")
    except ValueError:
        if not _HOST_NAME.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{text!r} is neither an address nor a host name") from None
    return name


def join_address(host: str, port: int) -> str:
    """host:port, as addresses are written."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
