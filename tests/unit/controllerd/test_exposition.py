"""A scrape of a running controller, read by Prometheus' own parser."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from remoting import codes
from tests.unit.controllerd.single import Single, single

PAGE = (Path(__file__).resolve().parents[3] / "docs/METRICS.md").read_text()


async def scraped(one: Single) -> dict[tuple[str, ...], float]:
    """(sample name, sorted label pairs without the common ones) -> value."""
    common = {"address", "group", "peer_id"}
    found = {}
    for family in text_string_to_metric_families(await one.scrape()):
        for sample in family.samples:
            assert common <= set(sample.labels)
            labels = (f"{name}={value}" for name, value in sorted(sample.labels.items()) if name not in common)
            found[(sample.name, *labels)] = sample.value
    return found


async def test_what_a_scrape_shows(tmp_path: Path) -> None:
    async with single(tmp_path) as one:
        before = await scraped(one)
        assert before["role",] == 3
        assert before["dledger_disk_usage",] > 0
        await one.register(1)
        await one.live(1)
        await one.register(2)
        assert (await one.elect(9, name="nobody")).code != codes.SUCCESS
        await one.elect(1)
        await one.elect(1)
        after = await scraped(one)
    group = ("broker_set=broker-a", "cluster=c")
    assert after[("active_broker_num", *group)] == 1
    requests = {name: after[name] for name in after if name[0] == "request_total"}
    assert requests["request_total", "request_handle_status=success", "request_type=CONTROLLER_APPLY_BROKER_ID"] == 2
    assert requests["request_total", "request_handle_status=success", "request_type=BROKER_HEARTBEAT"] == 1
    assert requests["request_total", "request_handle_status=failed", "request_type=CONTROLLER_ELECT_MASTER"] == 1
    assert requests["request_total", "request_handle_status=success", "request_type=CONTROLLER_ELECT_MASTER"] == 2
    assert after["request_latency_count", "request_type=CONTROLLER_ELECT_MASTER"] == 3
    assert after["request_latency_bucket", "le=+Inf", "request_type=CONTROLLER_ELECT_MASTER"] == 3
    assert after["dledger_op_total", "dLedger_operation_status=success", "dledger_operation=append"] == 5
    assert after["dledger_op_latency_count", "dledger_operation=append"] == 5
    assert after[("election_total", *group, "election_result=new_master_elected")] == 1
    assert after[("election_total", *group, "election_result=keep_current_master")] == 1
    other = ("broker_set=nobody", "cluster=c", "election_result=no_master_elected")
    assert after[("election_total", *other)] == 1
    assert after[("logboom_controller_master_epoch", *group)] == 1
    assert after[("logboom_controller_sync_state_set_size", *group)] == 1
    assert after["logboom_controller_masters_elected_total",] == 1
    assert after["logboom_controller_longest_election_us",] == 0, (
        "the brokers asked for these; the watcher found none due"
    )
    assert after[("logboom_controller_broker_silence_limit_seconds", "broker_id=1", *group)] == 60, (
        "the time-out it names"
    )
    assert 0 <= after[("logboom_controller_broker_silent_seconds", "broker_id=1", *group)] < 20
    assert after[("logboom_controller_broker_suspicion", "broker_id=1", *group)] == 0, (
        "it spoke once: nothing is known yet"
    )
    assert after["logboom_controller_event_loop_worst_delay_seconds",] >= 0
    assert after["logboom_controller_term",] >= 1


async def test_the_page_lists_what_a_scrape_gives_and_nothing_else(tmp_path: Path) -> None:
    async with single(tmp_path) as one:
        await one.register(1)
        await one.live(1)
        await one.elect(1)
        given = {re.sub(r"_(bucket|sum|count)$", "", name) for name, *_ in await scraped(one)}
    part = PAGE.partition("## Controllers")[2]
    assert given == set(re.findall(r"^\| `(\w+)`", part, re.MULTILINE))


async def test_the_listener_may_be_left_out(tmp_path: Path) -> None:
    async with single(tmp_path, "metrics.port=-1") as one:
        assert one.controller._exporter is None
