"""The command `secure`: let other machines reach an appliance, or undo that, while it runs or for its next start.

What is wanted is written into the data directory; a running appliance is told to start again with that. Stopping and starting are
those of `up`, so nothing acknowledged is lost, and clients find the brokers again through the name servers. Then the command
connects as clients do, from the address that they will use. Exit codes: 0 done and seen to work, 1 not, 2 bad options.
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remoting.errors import LogboomError, SettingsError
from remoting.transport.client import split_address
from webapp.appliance import certificates, environment, preflight, state
from webapp.appliance.layout import DataLayout
from webapp.appliance.outside import look_from_outside
from webapp.appliance.place import COMMAND, DEFAULT_DATA_DIR, SHELL_COMMAND
from webapp.appliance.plan import Kind, PortUse
from webapp.appliance.reach import Secure, add_console_options, host, join_address, secure_of
from webapp.appliance.terminal import Terminal
from webapp.appliance.up import AGAIN_SIGNAL

_LOOK_EVERY_S = 0.1


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    terminal = Terminal()
    try:
        given = vars(_parser().parse_args(arguments))
        data, undo, timeout_s = given.pop("data"), given.pop("undo", False), given.pop("timeout_s")
        wanted = secure_of(given.pop("host"), given)
        _check(wanted, undo=undo)
    except SystemExit as stop:
        return 2 if stop.code else 0
    except SettingsError as error:
        terminal.say(f"secure: {error}")
        return 2
    layout = DataLayout(data)
    try:
        is_running = _bring(layout, wanted, timeout_s, terminal)
        _tell(layout, wanted, is_running, terminal)
        faults = _look(layout, wanted, terminal) if is_running and wanted is not None else []
    except LogboomError as error:
        terminal.say(f"secure: {error}")
        return 1
    for fault in faults:
        terminal.say(f"  WRONG: {fault}")
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{COMMAND} secure",
        description="Let other machines reach the appliance: users, permissions and TLS on all ports, the console by HTTPS. "
        "One that runs starts again with that, and what it has acknowledged stays.",
        epilog="Exit code: 0 done, and seen to work as clients see it; 1 not; 2 bad options.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "host", nargs="?", type=host, default=None, help="the address or name of this machine that others use"
    )
    parser.add_argument(
        "--undo", action="store_true", help="listen on loopback alone again, and ask nobody who they are"
    )
    parser.add_argument(
        "--data",
        type=lambda text: Path(text).expanduser().absolute(),
        default=Path(os.environ.get(environment.DATA_DIR) or DEFAULT_DATA_DIR).absolute(),
        metavar="DIR",
        help="the data directory (default: LOGBOOM_DATA_DIR, else %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        type=float,
        default=180.0,
        metavar="SECONDS",
        help="how long the appliance may take to start again (default: 180)",
    )
    add_console_options(parser)
    return parser


def _check(wanted: Secure | None, *, undo: bool) -> None:
    """Raises SettingsError when what is asked for cannot be."""
    if undo == (wanted is not None):
        raise SettingsError(
            f"say either the address that others use, such as `{COMMAND} secure logs.example.com`, or --undo"
        )
    if wanted is None:
        return
    if wanted.certificate_path:
        certificates.check_own(
            wanted.host, wanted.certificate_path, wanted.key_path, datetime.datetime.now(datetime.UTC)
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(wanted.host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError as error:
        raise SettingsError(
            f"{wanted.host} is no address of this machine ({error.strerror or error}); `ip address` shows which it has"
        ) from error


def _bring(layout: DataLayout, wanted: Secure | None, timeout_s: float, terminal: Terminal) -> bool:
    """Write down what is wanted, and have it done; whether the appliance runs. Raises SettingsError."""
    remembered = preflight.read_remembered(layout)
    if remembered is None:
        raise SettingsError(
            f"there is no appliance in {layout.root}; `{SHELL_COMMAND} up --data {layout.root} --secure HOST` makes one"
        )
    deadline = time.monotonic() + timeout_s
    is_there = state.is_locked(layout.lock_file)
    running = _wait(layout, deadline, "to have started", None) if is_there else None
    if running is not None:
        preflight.check_space(layout)
        if wanted is not None:
            _check_ports(wanted, running)
    preflight.write_remembered(layout, remembered._replace(secure=wanted))
    if running is None:
        return False
    terminal.step(f"the appliance (process {running['pid']}) stops and starts again")
    os.kill(running["pid"], AGAIN_SIGNAL)
    again = _wait(layout, deadline, "to start again", running["started_at"])
    if (wanted is None) == bool(again["https"]):
        raise SettingsError("it could not start so, and runs again as it was before: see what `up` says")
    terminal.step("it runs again")
    return True


def _check_ports(wanted: Secure, running: Mapping[str, Any]) -> None:
    """Nothing that runs is stopped for a start that cannot be. Raises SettingsError."""
    daemons = [each["address"] for each in running["processes"] if each["kind"] in (Kind.CONTROLLER, Kind.BROKER)]
    ports = [split_address(each)[1] for each in (*daemons, *running["grpc"])]
    own = {*daemons, *running["grpc"]}
    if running.get("https"):
        secured_at, _ = split_address(running["https"])
        own |= {running["https"], *(join_address(secured_at, port) for port in ports)}
    if wanted.https_port in ports:
        raise SettingsError(f"port {wanted.https_port} is one of the appliance's own; choose another --https-port")
    for port in (*ports, wanted.https_port):
        is_own = join_address(wanted.host, port) in own
        if not is_own and not preflight.is_free(PortUse(wanted.host, port, "--https-port")):
            raise SettingsError(
                f"another program listens at {join_address(wanted.host, port)}, where the appliance would; stop that one, or "
                f"choose another {'--https-port' if port == wanted.https_port else 'address'}"
            )


def _wait(layout: DataLayout, deadline: float, what: str, not_since: str | None) -> Mapping[str, Any]:
    """What the supervisor tells once it runs, and was not started at that moment. Raises SettingsError."""
    while True:
        content = state.read(layout)
        if content is not None and content["state"] == "running" and content["started_at"] != not_since:
            return content
        has_ended = not state.is_locked(layout.lock_file)
        if has_ended or time.monotonic() > deadline:
            raise SettingsError(
                f"waited for the appliance {what}, and it {'ended' if has_ended else 'is not that far yet'}: see what `up` "
                f"says, and `{SHELL_COMMAND} status --data {layout.root}`; what is written down counts from its next start on"
            )
        time.sleep(_LOOK_EVERY_S)


def _tell(layout: DataLayout, wanted: Secure | None, is_running: bool, terminal: Terminal) -> None:
    when = "now" if is_running else "from its next start on"
    terminal.say()
    if wanted is None:
        terminal.say(
            f"Loopback alone, {when}. Users and permissions are kept, and count again when it is secured again."
        )
        return
    terminal.say(f"Others may reach the appliance at {wanted.host}, {when}. Clients need:")
    terminal.say(f"  certificates to trust  {layout.tls_authority_file}")
    if layout.first_user_file.exists() or not is_running:
        terminal.say(f"  an access key          the first super user's is in {layout.first_user_file} (NAME:SECRET)")
    else:
        terminal.say(
            "  an access key          that of a user of before; the console changes secrets under Client users"
        )
    terminal.say("                         further users: the console, Client users; or mqadmin createUser")
    terminal.say(f"  the console            https://{wanted.https}/")


def _look(layout: DataLayout, wanted: Secure, terminal: Terminal) -> list[str]:
    """What a client sees that should not be so."""
    content = state.read(layout)
    if content is None:
        return ["the appliance ended"]
    seen, faults = look_from_outside(layout, wanted, content)
    for each in seen:
        terminal.step(each)
    return faults
