from __future__ import annotations

from pathlib import Path

import pytest

from remoting.errors import SettingsError
from webapp.appliance.layout import DataLayout
from webapp.appliance.options import Options, Shape
from webapp.appliance.plan import PREPARED, Kind, Plan, RedisPart, RedisProbe, StopStage, make_plan
from webapp.appliance.reach import Secure

LAYOUT = DataLayout(Path("/data"))
EMBEDDED = RedisPart("Valkey", ("valkey-server", "conf"), RedisProbe(Path("/s"), "us", LAYOUT.redis_password_file))


def plan_of(
    options: Options | None = None,
    shape: Shape | None = None,
    redis: RedisPart = EMBEDDED,
) -> Plan:
    return make_plan(options or Options(), shape or Shape(), LAYOUT, "/python", redis, {"REDIS_URL": "redis://r/0"})


def test_the_default_appliance() -> None:
    plan = plan_of()
    assert [process.name for process in plan.processes] == [
        "redis",
        *("controller-n0", "controller-n1", "controller-n2"),
        *("broker-a-1", "broker-a-2", "broker-a-3"),
        *("web", "collector", "worker-default", "worker-reports", "beat", "spark"),
    ]
    assert plan.controllers == ("127.0.0.1:9876", "127.0.0.1:9877", "127.0.0.1:9878")
    assert plan.grpc_endpoints == ("127.0.0.1:8081", "127.0.0.1:8082", "127.0.0.1:8083")
    assert [use.port for process, use in plan.ports if process.kind is Kind.BROKER] == [
        *(10911, 10912, 8081),
        *(10921, 10922, 8082),
        *(10931, 10932, 8083),
    ]
    assert plan.env["LOGBOOM_DATA_DIR"] == "/data"
    assert plan.env["LOGBOOM_CONTROLLERS"] == "127.0.0.1:9876,127.0.0.1:9877,127.0.0.1:9878"
    assert plan.env["LOGBOOM_HTTP"] == "127.0.0.1:8000"
    assert plan.env["REDIS_URL"] == "redis://r/0"
    assert (plan.redis, plan.processes[0].argv, plan.processes[0].ports) == ("Valkey", ("valkey-server", "conf"), ())


def test_the_daemons_command_lines() -> None:
    plan = plan_of(Options(broker_settings=("a.b=1",), controller_settings=("c.d=2",)), Shape(1, 2, 2))
    by_name = {process.name: " ".join(process.argv) for process in plan.processes}
    tls = (
        "--set tls.mode=permissive --set tls.certificate_path=/data/tls/server.pem --set tls.key_path=/data/tls/server.key "
        "--set tls.ca_path=/data/tls/ca.pem"
    )
    assert by_name["controller-n0"] == (
        "/python -m controllerd --id n0 --peers n0=127.0.0.1:9876 --data /data/controllers/n0 "
        f"--cluster-secret /data/secrets/replication-secret {tls} --set c.d=2"
    )
    assert by_name["broker-b-2"] == (
        "/python -m brokerd --cluster DefaultCluster --name broker-b --listen 127.0.0.1:10941 --ha-listen 127.0.0.1:10942 "
        "--grpc-listen 127.0.0.1:8084 --controllers 127.0.0.1:9876 --data /data/brokers/broker-b-2 "
        f"--cluster-secret /data/secrets/replication-secret {tls} --set a.b=1"
    )


def test_for_other_machines() -> None:
    plan = plan_of(Options(secure=Secure("::2", 9443), broker_settings=("tls.check_host=false",)), Shape(1, 1, 1))
    by_name = {process.name: process.argv for process in plan.processes}
    for name in ("controller-n0", "broker-a-1"):
        settings = [word for word in by_name[name] if word.startswith(("tls.mode", "access."))]
        assert settings == [
            *("tls.mode=permissive", "tls.mode=enforcing"),
            *("access.authentication=true", "access.authorization=true"),
        ]
    assert "--also-on ::2" in " ".join(by_name["controller-n0"])
    assert by_name["broker-a-1"][8:13:2] == ("[::2]:10911", "127.0.0.1:10912", "[::2]:8081")
    assert by_name["broker-a-1"][-1] == "tls.check_host=false", "a person's word is the last"
    assert " --https [::2]:9443 --no-server-name" in " ".join(by_name["web"]), "with the certificate of the other port"
    own = plan_of(Options(secure=Secure("::2", 9443, "/own.pem", "/own.key")), Shape(1, 1, 1))
    [web] = (process.argv for process in own.processes if process.name == "web")
    assert " --https [::2]:9443 --https-certificate /own.pem --https-key /own.key " in " ".join(web)
    assert (plan.https, plan.name_servers, plan.controllers) == ("[::2]:9443", ("[::2]:9876",), ("127.0.0.1:9876",))
    assert plan.env["LOGBOOM_TLS_CA"] == "/data/tls/ca.pem"
    ports = {(use.host, use.port) for _, use in plan.ports}
    assert {("127.0.0.1", 9876), ("::2", 9876), ("::2", 10911), ("127.0.0.1", 10912), ("::2", 9443)} <= ports


def test_a_person_may_do_without_tls_or_with_another_certificate() -> None:
    """The last word on a setting counts."""
    words = next(
        process
        for process in plan_of(Options(broker_settings=("tls.mode=disabled",))).processes
        if process.kind is Kind.BROKER
    )
    assert [word for word in words.argv if word.startswith("tls.mode=")] == ["tls.mode=permissive", "tls.mode=disabled"]


def test_so_many_reports_run_side_by_side() -> None:
    plan = plan_of(Options(reports_at_once=5))
    worker = next(process for process in plan.processes if process.name == "worker-reports").argv
    assert worker[worker.index("--at-most") + 1] == "5"
    assert worker[worker.index("--most-memory-kib") + 1] == str(400 * 1024)
    assert plan.env["LOGBOOM_REPORTS_AT_ONCE"] == "5"


def test_daemons_wait_for_nothing_and_the_front_for_the_database() -> None:
    plan = plan_of()
    for process in plan.processes:
        if process.stop_stage is StopStage.FRONT:
            assert process.after == (PREPARED, "redis")
        else:
            assert process.after == ()


def test_with_another_redis_there_is_none_in_the_plan() -> None:
    plan = plan_of(redis=RedisPart("Redis 8.2.2 (REDIS_URL)"))
    assert plan.redis == "Redis 8.2.2 (REDIS_URL)"
    assert Kind.REDIS not in {process.kind for process in plan.processes}
    assert {process.after for process in plan.processes} == {(), (PREPARED,)}


def test_an_ipv6_console() -> None:
    plan = plan_of(Options(http_host="::1"))
    assert plan.http == "[::1]:8000"


def test_ports_that_overlap_are_refused_with_the_options_that_move_them() -> None:
    with pytest.raises(SettingsError, match="broker-a-1 and controller-n0 would both listen on port 8081"):
        plan_of(Options(controller_port=8081))
    with pytest.raises(
        SettingsError, match=r"web and controller-n0 .* 8000; move one with --http or --controller-port"
    ):
        plan_of(Options(controller_port=8000))
    with pytest.raises(SettingsError, match="above 65535; choose a lower --broker-port"):
        plan_of(Options(broker_port=65530))


def test_names_and_data_directories_are_unique() -> None:
    plan = plan_of(Options(), Shape(5, 3, 9))
    names = [process.name for process in plan.processes]
    assert len(set(names)) == len(names)
    directories = [
        process.argv[process.argv.index("--data") + 1] for process in plan.processes if "--data" in process.argv
    ]
    assert len(set(directories)) == 5 + 27
