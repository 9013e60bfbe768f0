"""The command `up`: check, start, tell, and stay until told to stop.

Order: options, data directory and its lock, size, Redis, Java, ports; then the supervisor runs the plan while the console's
database is prepared beside it. Exit codes: 0 stopped as asked, 1 could not start, 2 bad options.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from remoting.errors import LogboomError, SettingsError
from webapp.appliance import (
    certificates,
    environment,
    first_user,
    java,
    native,
    preflight,
    probes,
    redis_binary,
    redis_server,
    secret_files,
)
from webapp.appliance.environment import Environment
from webapp.appliance.group_keeper import GroupKeeper
from webapp.appliance.healthy import wait_healthy
from webapp.appliance.layout import DataLayout
from webapp.appliance.options import Options, parse_options, settle_shape, settle_tier
from webapp.appliance.place import DEFAULT_DATA_DIR, PROJECT_DIR, SHELL_COMMAND
from webapp.appliance.plan import PREPARED, Plan, RedisPart, RedisProbe, make_plan
from webapp.appliance.processes import dying_with_this_process
from webapp.appliance.supervisor import Supervisor
from webapp.appliance.terminal import Terminal

AGAIN_SIGNAL = signal.SIGUSR1
"""Has a running appliance stop and start again, with what its data directory says now."""

CERTIFICATES_EVERY_S = 3600.0


class End(Enum):
    """Why an appliance ended that had started."""

    STOPPED = "stopped"
    AGAIN = "again"


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    terminal = Terminal()
    try:
        options = parse_options(arguments)
    except SettingsError as error:
        terminal.say(f"up: {error}")
        return 2
    layout = DataLayout(options.data_dir)
    try:
        preflight.check_system()
        preflight.make_directories(layout)
        lock = preflight.InstanceLock(layout)
        try:
            own_ca = os.environ.get(environment.TLS_CA, "")
            ready = _make_ready(options, layout, terminal, own_ca)
            while asyncio.run(_run(ready, layout, terminal)) is End.AGAIN:
                # what was changed in the data directory counts from now on
                options = replace(options, secure=None, tier=None, no_tier=False)
                ready = _make_ready_again(options, layout, terminal, own_ca, ready.remembered)
            return 0
        finally:
            lock.close()
    except LogboomError as error:
        terminal.say(f"up: {error}")
        return 1
    except KeyboardInterrupt:  # before anything was started; later it is a signal like any other
        return 1


class Ready(NamedTuple):
    """What is started: the plan, the options with what is remembered, that itself, and whether the first user was drawn now."""

    plan: Plan
    options: Options
    remembered: preflight.Remembered
    has_new_user: bool


def _make_ready_again(
    options: Options, layout: DataLayout, terminal: Terminal, own_ca: str, before: preflight.Remembered
) -> Ready:
    """As `_make_ready`; what ran before is better than nothing when what was changed since cannot be started."""
    try:
        return _make_ready(options, layout, terminal, own_ca)
    except LogboomError as error:
        terminal.say(f"up: {error}")
        terminal.step("starting again as it was before")
        preflight.write_remembered(layout, before)
        return _make_ready(options, layout, terminal, own_ca)


def _make_ready(options: Options, layout: DataLayout, terminal: Terminal, own_ca: str) -> Ready:
    """Everything that can refuse a start."""
    signal.signal(AGAIN_SIGNAL, signal.SIG_IGN)  # until there is something to begin again
    layout.supervisor_file.unlink(missing_ok=True)  # what an instance before this one left behind
    preflight.check_space(layout)
    remembered = preflight.read_remembered(layout)
    shape = settle_shape(options, remembered.shape if remembered is not None else None)
    options = settle_tier(options, remembered.tier if remembered is not None else None)
    if options.secure is None and remembered is not None:
        options = replace(options, secure=remembered.secure)
    if options.secure is not None and options.secure.certificate_path:
        own = options.secure
        certificates.check_own(own.host, own.certificate_path, own.key_path, datetime.datetime.now(datetime.UTC))
    terminal.say(
        f"Logboom: {shape.controllers} controller(s), {shape.groups} broker group(s) of {shape.replicas}; "
        f"data in {layout.root}{'' if remembered else ' (new)'}{f'; tier {options.tier.url}' if options.tier else ''}"
        f"{f'; for other machines at {options.secure.host}' if options.secure else ''}"
    )
    handed_down = {}
    redis, handed_down[environment.REDIS_URL] = _redis(options, layout)
    terminal.step(f"Redis: {redis.what}")
    found = java.find_or_install(os.environ, terminal.step)
    if found.home is not None:
        handed_down[environment.JAVA_HOME] = found.home
    if found.problem is not None:
        handed_down[environment.JAVA_PROBLEM] = found.problem
        terminal.step(found.problem)
    native.build(options.broker_settings, terminal.step)
    secret_files.read_or_create(layout.replication_secret_file)
    _keep_certificates_fresh(options, layout, terminal)
    # for the probes, which ask the daemons from this process
    os.environ[environment.CLUSTER_SECRET] = str(layout.replication_secret_file)
    os.environ[environment.TLS_CA] = own_ca if options.secure is None else str(layout.tls_authority_file)
    has_new_user = options.has_authentication and first_user.draw(layout)
    plan = make_plan(options, shape, layout, sys.executable, redis, handed_down)
    preflight.check_ports(plan)
    remembered = preflight.Remembered(shape, options.tier, options.secure)
    preflight.write_remembered(layout, remembered)
    _allow_many_files()
    return Ready(plan, options, remembered, has_new_user)


def _redis(options: Options, layout: DataLayout) -> tuple[RedisPart, str]:
    """The Redis to use, and its address. Raises SettingsError."""
    if external := os.environ.get(environment.REDIS_URL):
        return RedisPart(redis_server.check_external(external)), external
    server = redis_binary.choose(options.redis_server)
    embedded = redis_server.prepare_embedded(layout, server)
    doubt = "" if server.is_mended else ", not known to hold the fixes of CVE-2025-21605 and CVE-2025-49844"
    probe = RedisProbe(embedded.socket, redis_server.USER, layout.redis_password_file)
    return RedisPart(f"{server}{doubt}", embedded.argv, probe), embedded.url


async def _run(ready: Ready, layout: DataLayout, terminal: Terminal) -> End:
    plan, options = ready.plan, ready.options
    # a password for the first start is nothing to hand around
    environ = {name: value for name, value in os.environ.items() if name != environment.ADMIN_PASSWORD}
    supervisor = Supervisor(plan, layout, environ, terminal, probes.ask, probes.is_master)
    keeper = GroupKeeper(plan, layout, supervisor, terminal.step)
    loop = asyncio.get_running_loop()
    ending = _Ending(supervisor, terminal)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # started with nohup: a closed terminal is no reason to stop
        loop.add_signal_handler(number, ending.stop)
    loop.add_signal_handler(AGAIN_SIGNAL, ending.begin_again)
    failure: LogboomError | None = None
    async with asyncio.TaskGroup() as tasks:
        keeper.begin()
        running = tasks.create_task(supervisor.run(), name="supervisor")
        following = tasks.create_task(keeper.run(), name="follow what is wanted of broker groups")
        telling = tasks.create_task(_bring_up(supervisor, ready, layout, terminal), name="start")
        renewing = tasks.create_task(_renew_certificates(options, layout, terminal), name="renew certificates")
        running.add_done_callback(lambda _: (renewing.cancel(), following.cancel()))
        await asyncio.wait([running, telling], return_when=asyncio.FIRST_COMPLETED)
        if not telling.done():
            telling.cancel()
            await asyncio.wait([telling])
        elif not telling.cancelled():
            failure = telling.result()
            if failure is not None:
                supervisor.stop()
    if failure is not None:
        raise failure
    terminal.step("everything is stopped")
    return ending.end


async def _renew_certificates(options: Options, layout: DataLayout, terminal: Terminal) -> None:
    """For as long as the appliance runs. Daemons and the console read what is new by themselves."""
    while True:
        await asyncio.sleep(CERTIFICATES_EVERY_S)
        try:
            _keep_certificates_fresh(options, layout, terminal)
        except SettingsError as error:
            terminal.step(str(error))


def _keep_certificates_fresh(options: Options, layout: DataLayout, terminal: Terminal) -> None:
    """Make those that end soon or do not fit. Raises SettingsError."""
    own = () if options.secure is None else (options.secure.host,)
    hosts = tuple(dict.fromkeys((*Environment.read(os.environ).allowed_hosts, *own)))
    if made := certificates.keep_fresh(layout, hosts, datetime.datetime.now(datetime.UTC)):
        terminal.step(f"made {' and '.join(made)} in {layout.tls}")


class _Ending:
    """What signals make of a running appliance."""

    def __init__(self, supervisor: Supervisor, terminal: Terminal) -> None:
        self.end = End.STOPPED
        self._supervisor = supervisor
        self._terminal = terminal

    def stop(self) -> None:
        """Somebody wants it to end; at the second time at once."""
        self.end = End.STOPPED
        self._terminal.step(
            "killing what still runs" if self._supervisor.is_stopping() else "stopping; once more Ctrl-C kills"
        )
        self._supervisor.stop()

    def begin_again(self) -> None:
        """What it was started with has changed."""
        if not self._supervisor.is_stopping():
            self.end = End.AGAIN
            self._terminal.step("stopping, to start again with what was changed")
            self._supervisor.stop()


async def _bring_up(
    supervisor: Supervisor, ready: Ready, layout: DataLayout, terminal: Terminal
) -> LogboomError | None:
    """Prepare the database, wait until all is healthy, say where everything is; a failure ends the whole start."""
    plan, options = ready.plan, ready.options
    try:
        admin = await _prepare(plan)
    except SettingsError as error:
        return error
    terminal.step("the console's database is up to date")
    supervisor.open_gate(PREPARED)
    try:
        async with asyncio.timeout(options.timeout_s):
            await supervisor.wait_all_ready()
            lacking = await wait_healthy(plan)
        if lacking:
            terminal.step("healthy but for the tier: messages stay here, and sends go on")
            for each in lacking:
                terminal.say(f"           {each}")
        else:
            terminal.step("healthy")
    except TimeoutError:
        _tell_what_lacks(supervisor, options, terminal)
    except asyncio.CancelledError:
        _tell_admin(admin, terminal)  # a start that is interrupted must show it, too: it is never shown again
        raise
    if options.has_authentication:
        await first_user.tell(layout, plan.controllers, terminal, is_new=ready.has_new_user)
    _tell_where(plan, layout, admin, terminal)
    supervisor.announce_running()
    terminal.say("Ctrl-C stops everything.")
    return None


async def _prepare(plan: Plan) -> dict[str, str] | None:
    """Migrate the console's database in a process of its own; return the first admin if it was made now."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "webapp.appliance.prepare"),
        cwd=PROJECT_DIR,
        env={**os.environ, **plan.env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=dying_with_this_process(),
    )
    try:
        said, complained = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        lines = [line for line in complained.decode(errors="replace").splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit code {process.returncode}"
        raise SettingsError(f"the console's database cannot be brought up to date: {reason}")
    admin: dict[str, str] | None = json.loads(said)["admin"]
    return admin


def _tell_what_lacks(supervisor: Supervisor, options: Options, terminal: Terminal) -> None:
    lacking = supervisor.not_ready()
    terminal.step(
        f"not healthy after {options.timeout_s} s; what runs keeps running, and the rest is tried again and again"
    )
    for name, reason, log_file in lacking:
        terminal.say(f"           {name}: {reason} (log: {log_file})")
    if not lacking:
        terminal.say(
            "           every process runs, but the console does not call the cluster healthy; its first page says why"
        )


def _tell_where(plan: Plan, layout: DataLayout, admin: dict[str, str] | None, terminal: Terminal) -> None:
    terminal.say()
    if plan.https is None:
        terminal.say(f"  console and REST    http://{plan.http}/ (https:// as well)")
    else:
        terminal.say(f"  console and REST    https://{plan.http}/")
        terminal.say(f"  other machines      https://{plan.https}/")
    _tell_admin(admin, terminal)
    terminal.say(f"  gRPC clients        {plan.grpc_endpoints[0]}")
    terminal.say(
        f"  remoting clients    name servers {';'.join(plan.name_servers)}  (Java 4.x and 5.x, Go, C++, Node, mqadmin)"
    )
    terminal.say(
        f"  topics              {SHELL_COMMAND} topic create NAME, or the console; --development makes them by sending"
    )
    terminal.say(f"  TLS                 clients that check certificates must trust {layout.tls_authority_file}")
    terminal.say(f"  logs                {layout.logs}")
    if layout.root != DEFAULT_DATA_DIR:
        terminal.say(f"  other commands      {environment.DATA_DIR}={layout.root} {SHELL_COMMAND} ...")
    terminal.say()


def _tell_admin(admin: dict[str, str] | None, terminal: Terminal) -> None:
    if admin is not None:
        terminal.say(
            f"  log in as           {admin['name']}, password {admin['password']}  (shown this once; change it under Account)"
        )


def _allow_many_files() -> None:
    """Brokers hold a file per segment and a socket per client; processes inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
