from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from brokerd.composition.settings import parse as parse_broker
from remoting.errors import SettingsError
from webapp.appliance.options import Options, Shape, Tier, parse_options, settle_shape, settle_tier, tier_of


def test_defaults() -> None:
    options = parse_options([])
    assert options == Options()
    assert settle_shape(options, None) == Shape(controllers=3, groups=1, replicas=3)


def test_everything_can_be_moved() -> None:
    options = parse_options(
        shlex.split(
            "--controllers 1 --replicas 2 --groups 4 --data /x/y --http [::1]:9000 --controller-port 1 --broker-port 2 "
            "--grpc-port 3 --redis-server /opt/redis-server --broker-set flush.mode=async --broker-set a.b=c --timeout 5 "
            "--reports-at-once 2"
        )
    )
    assert options.data_dir == Path("/x/y")
    assert (options.http_host, options.http_port) == ("::1", 9000)
    assert (options.controller_port, options.broker_port, options.grpc_port) == (1, 2, 3)
    assert options.redis_server == Path("/opt/redis-server")
    assert options.broker_settings == ("flush.mode=async", "a.b=c")
    assert options.reports_at_once == 2
    assert settle_shape(options, None) == Shape(controllers=1, groups=4, replicas=2)


def test_development_is_something_that_brokers_understand_and_can_be_overruled() -> None:
    settings = parse_options(["--development"]).broker_settings
    words = [word for each in settings for word in ("--set", each)]
    assert parse_broker(["--data", "/x", *words]).send.auto_create_topics
    assert not parse_broker(["--data", "/x"]).send.auto_create_topics
    overruled = parse_options(["--broker-set", "send.auto_create_topics=false", "--development"]).broker_settings
    assert overruled[-1] == "send.auto_create_topics=false"


def test_a_tier_is_something_that_brokers_understand() -> None:
    given = ["--tier", "s3://bucket/prefix", "--tier-options", "/x/options.json", "--broker-set", "a.b=c"]
    settings = settle_tier(parse_options(given), None).broker_settings
    assert settings == ("tiers.url=s3://bucket/prefix", "tiers.options_path=/x/options.json", "a.b=c")
    words = [word for each in settings[:2] for word in ("--set", each)]
    tiers = parse_broker(["--data", "/x", *words]).tiers
    assert (tiers.url, tiers.options_path) == ("s3://bucket/prefix", "/x/options.json")


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ("", "s3://before/x"),
        ("--tier s3://now/x", "s3://now/x"),
        ("--no-tier", None),
        ("--broker-set tiers.url=s3://mine/x", "s3://mine/x"),
        ("--broker-set tiers.url=", None),
    ],
)
def test_a_tier_is_that_of_earlier_starts_unless_somebody_says_more(arguments: str, url: str | None) -> None:
    options = settle_tier(parse_options(arguments.split()), Tier("s3://before/x", "/x/options.json"))
    found = tier_of(options.broker_settings)
    assert (found.url if found is not None else None) == url


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/prefix", "az://container?sig=secret"])
def test_a_tiers_address_has_no_secrets(url: str) -> None:
    with pytest.raises(SettingsError, match=r"nothing secret.*tiers\.options_path"):
        parse_broker(["--data", "/x", "--set", f"tiers.url={url}"])


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("--tier /srv/tier", "not a URL, such as file:///srv/tier"),
        ("--tier s3://a/b --no-tier", "opposite of each other"),
        ("--tier-options /x", "say which one: --tier s3://bucket/prefix"),
        ("--controllers 2", "1, 3 or 5"),
        ("--controllers x", "1, 3 or 5"),
        ("--replicas 0", "from 1 to 9"),
        ("--replicas 10", "from 1 to 9"),
        ("--replicas -1", "whole number|expected one argument"),
        ("--groups 27", "from 1 to 26"),
        ("--http 8000", "not HOST:PORT"),
        ("--http 127.0.0.1:0", "from 1 to 65535"),
        ("--http 0.0.0.0:8000", "not a loopback address.*TLS"),
        ("--http example.org:8000", "not a loopback address"),
        ("--grpc-port 65536", "from 1 to 65535"),
        ("--broker-set nonsense", "not KEY=VALUE"),
        ("--broker-set =1", "not KEY=VALUE"),
        ("--repl 3", "unrecognized arguments.*--help"),
        ("stray", "unrecognized arguments"),
    ],
)
def test_a_bad_option_is_refused_with_the_rule(arguments: str, rule: str) -> None:
    with pytest.raises(SettingsError, match=rule):
        parse_options(arguments.split())


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_options(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for option in shlex.split(
        "--controllers --replicas --groups --data --http --controller-port --broker-port --grpc-port --redis-server "
        "--controller-set --broker-set --reports-at-once --timeout LOGBOOM_ADMIN_PASSWORD REDIS_URL JAVA_HOME"
    ):
        assert option in text


def test_a_later_start_keeps_the_size() -> None:
    remembered = Shape(controllers=1, groups=2, replicas=5)
    assert settle_shape(Options(), remembered) == remembered
    assert settle_shape(Options(replicas=3, controllers=1), remembered) == Shape(controllers=1, groups=2, replicas=3)


def test_the_number_of_controllers_cannot_change() -> None:
    with pytest.raises(SettingsError, match="made with 1 controller"):
        settle_shape(Options(controllers=3), Shape(controllers=1))
