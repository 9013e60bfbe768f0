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
from typing import Any

from remoting.errors import LogboomError, SettingsError
from remoting.facts.words import Health
from webapp.appliance import certificates, environment, java, native, preflight, probes, redis_server, secret_files
from webapp.appliance.environment import Environment
from webapp.appliance.group_keeper import GroupKeeper
from webapp.appliance.layout import DataLayout
from webapp.appliance.options import Options, parse_options, settle_shape, settle_tier
from webapp.appliance.place import DEFAULT_DATA_DIR, PROJECT_DIR, SHELL_COMMAND
from webapp.appliance.plan import HOST, PREPARED, Plan, make_plan
from webapp.appliance.processes import dying_with_this_process
from webapp.appliance.supervisor import Supervisor
from webapp.appliance.terminal import Terminal

_FIRST_USER = "admin"

HEALTH_EVERY_S = 0.2
CERTIFICATES_EVERY_S = 3600.0


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
            plan = _make_ready(options, layout, terminal)
            return asyncio.run(_run(plan, options, layout, terminal))
        finally:
            lock.close()
    except LogboomError as error:
        terminal.say(f"up: {error}")
        return 1
    except KeyboardInterrupt:  # before anything was started; later it is a signal like any other
        return 1


def _make_ready(options: Options, layout: DataLayout, terminal: Terminal) -> Plan:
    """Everything that can refuse a start, and the plan."""
    layout.supervisor_file.unlink(missing_ok=True)  # what an instance before this one left behind
    preflight.check_space(layout)
    remembered = preflight.read_remembered(layout)
    shape = settle_shape(options, remembered.shape if remembered is not None else None)
    options = settle_tier(options, remembered.tier if remembered is not None else None)
    terminal.say(
        f"Logboom: {shape.controllers} controller(s), {shape.groups} broker group(s) of {shape.replicas}; "
        f"data in {layout.root}{'' if remembered else ' (new)'}{f'; tier {options.tier.url}' if options.tier else ''}"
    )
    handed_down = {}
    redis_argv = None
    external_redis = os.environ.get(environment.REDIS_URL)
    if external_redis:
        redis_server.check_external(external_redis)
    else:
        redis_argv, handed_down[environment.REDIS_URL] = redis_server.prepare_embedded(layout, HOST, options.redis_port)
    found = java.find_or_install(os.environ, terminal.step)
    if found.home is not None:
        handed_down[environment.JAVA_HOME] = found.home
    if found.problem is not None:
        handed_down[environment.JAVA_PROBLEM] = found.problem
        terminal.step(found.problem)
    native.build(options.broker_settings, terminal.step)
    secret_files.read_or_create(layout.replication_secret_file)
    _keep_certificates_fresh(layout, terminal)
    # for the probes, which ask the daemons from this process
    os.environ[environment.CLUSTER_SECRET] = str(layout.replication_secret_file)
    if options.has_authentication and not layout.first_user_file.exists():
        password = secret_files.read_or_create(layout.first_user_file, prefix=f"{_FIRST_USER}:").partition(":")[2]
        terminal.say(f"Clients sign as      {_FIRST_USER}, secret key {password}  (shown this once; a super user)")
    plan = make_plan(options, shape, layout, sys.executable, redis_argv, handed_down)
    preflight.check_ports(plan)
    preflight.write_remembered(layout, preflight.Remembered(shape, options.tier))
    _allow_many_files()
    return plan


async def _run(plan: Plan, options: Options, layout: DataLayout, terminal: Terminal) -> int:
    # a password for the first start is nothing to hand around
    environ = {name: value for name, value in os.environ.items() if name != environment.ADMIN_PASSWORD}
    supervisor = Supervisor(plan, layout, environ, terminal, probes.ask, probes.is_master)
    keeper = GroupKeeper(plan, layout, supervisor, terminal.step)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # started with nohup: a closed terminal is no reason to stop
        loop.add_signal_handler(number, _stop, supervisor, terminal)
    failure: LogboomError | None = None
    async with asyncio.TaskGroup() as tasks:
        keeper.begin()
        running = tasks.create_task(supervisor.run(), name="supervisor")
        following = tasks.create_task(keeper.run(), name="follow what is wanted of broker groups")
        telling = tasks.create_task(_bring_up(supervisor, plan, options, layout, terminal), name="start")
        renewing = tasks.create_task(_renew_certificates(layout, terminal), name="renew certificates")
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
    return 0


async def _renew_certificates(layout: DataLayout, terminal: Terminal) -> None:
    """For as long as the appliance runs; daemons read what is new by themselves."""
    while True:
        await asyncio.sleep(CERTIFICATES_EVERY_S)
        try:
            _keep_certificates_fresh(layout, terminal)
        except SettingsError as error:
            terminal.step(str(error))


def _keep_certificates_fresh(layout: DataLayout, terminal: Terminal) -> None:
    hosts = Environment.read(os.environ).allowed_hosts
    if made := certificates.keep_fresh(layout, hosts, datetime.datetime.now(datetime.UTC)):
        terminal.step(f"made {' and '.join(made)} in {layout.tls}")


def _stop(supervisor: Supervisor, terminal: Terminal) -> None:
    terminal.step("killing what still runs" if supervisor.is_stopping() else "stopping; once more Ctrl-C kills")
    supervisor.stop()


async def _bring_up(
    supervisor: Supervisor,
    plan: Plan,
    options: Options,
    layout: DataLayout,
    terminal: Terminal,
) -> LogboomError | None:
    """Prepare the database, wait until all is healthy, say where everything is; a failure ends the whole start."""
    try:
        admin = await _prepare(plan)
    except SettingsError as error:
        return error
    terminal.step("the console's database is up to date")
    supervisor.open_gate(PREPARED)
    try:
        async with asyncio.timeout(options.timeout_s):
            await supervisor.wait_all_ready()
            await _wait_healthy(plan)
        terminal.step("healthy")
    except TimeoutError:
        _tell_what_lacks(supervisor, options, terminal)
    except asyncio.CancelledError:
        _tell_admin(admin, terminal)  # a start that is interrupted must show it, too: it is never shown again
        raise
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


async def _wait_healthy(plan: Plan) -> None:
    while True:
        if await _verdict(plan) == Health.HEALTHY:
            return
        await asyncio.sleep(HEALTH_EVERY_S)


async def _verdict(plan: Plan) -> Any:
    try:
        return (await probes.http_get_json(plan.http, "/api/v1/health")).get("status")
    except (OSError, ValueError):
        return None


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
    terminal.say(f"  console and REST    http://{plan.http}/")
    _tell_admin(admin, terminal)
    terminal.say(f"  gRPC clients        {plan.grpc_endpoints[0]}")
    terminal.say(
        f"  remoting clients    name servers {';'.join(plan.controllers)}  (Java 4.x and 5.x, Go, C++, Node, mqadmin)"
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
