from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, RedisError

from tasks.claims import Claims
from tests.support.cluster import eventually
from tests.support.leash import leashed
from tests.support.redis import embedded
from tests.unit.tasks.fake_redis import FakeRedis


def test_only_one_holds_a_name_until_it_is_given_back(redis: FakeRedis) -> None:
    claims = Claims(redis)
    first = claims.take("report:1", 10)
    assert first is not None
    assert claims.take("report:1", 10) is None
    assert claims.take("report:2", 10) is not None
    first.release()
    assert not claims.is_held("report:1")
    assert claims.take("report:1", 10) is not None


def test_a_claim_ends_by_itself_unless_it_is_kept(redis: FakeRedis) -> None:
    claims = Claims(redis)
    claim = claims.take("x", 10)
    assert claim is not None
    redis.now_ms = 9_000
    assert claim.keep()
    redis.now_ms = 18_000
    assert claims.is_held("x")
    redis.now_ms = 19_000
    assert not claims.is_held("x")


def test_who_lost_a_claim_neither_keeps_nor_ends_that_of_the_next(redis: FakeRedis) -> None:
    claims = Claims(redis)
    lost = claims.take("x", 1)
    assert lost is not None
    redis.now_ms = 2_000
    assert claims.take("x", 10) is not None
    assert not lost.keep()
    lost.release()
    assert claims.is_held("x")


def test_a_claim_that_redis_forgot_is_taken_again_by_its_owner(redis: FakeRedis) -> None:
    claims = Claims(redis)
    claim = claims.take("x", 10)
    assert claim is not None
    redis.restart()
    assert claim.keep()
    assert claims.take("x", 10) is None
    redis.restart()
    other = claims.take("x", 10)
    assert other is not None
    assert not claim.keep(), "it is another's now"
    other.release()
    assert claim.keep()
    claim.release()
    assert not claims.is_held("x")


def test_a_release_that_does_not_reach_redis_fails_nobody(
    redis: FakeRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def down(*_: object) -> None:
        raise ConnectionError("refused")

    with Claims(redis).held("x", 10) as claim:
        assert claim is not None
        monkeypatch.setattr(redis, "get", down)
    assert "not given back: refused" in caplog.text


def test_a_missing_claim_is_counted_from_the_first_look_and_anew_after_a_loss(redis: FakeRedis) -> None:
    claims = Claims(redis)
    assert claims.missing_for_s("x") == 0
    redis.now_ms = 9_000
    assert claims.missing_for_s("x") == 9
    redis.restart()
    assert claims.missing_for_s("x") == 0
    redis.now_ms = 20_000
    claim = claims.take("x", 10)
    assert claim is not None
    assert claims.missing_for_s("x") == 0
    claim.release()
    redis.now_ms = 30_000
    assert claims.missing_for_s("x") == 0, "it was held in between"


def test_the_real_redis_forgets_and_the_owner_remembers(tmp_path: Path) -> None:
    with real_redis(tmp_path) as client:
        claim = Claims(client).take("report:1", 10)
        assert claim is not None
        assert claim.keep()
    with pytest.raises(ConnectionError):
        claim.keep()
    with real_redis(tmp_path) as client:
        assert not Claims(client).is_held("report:1")
        assert claim.keep()
        assert Claims(client).take("report:1", 10) is None
        assert 0 < client.pttl("logboom:claim:report:1") <= 10_000
        assert Claims(client).missing_for_s("report:2") == 0
        claim.release()
        assert not Claims(client).is_held("report:1")


@contextmanager
def real_redis(directory: Path) -> Iterator[Any]:
    server = embedded(directory)
    with subprocess.Popen(leashed(server.argv), stdout=subprocess.DEVNULL) as process:
        client = Redis.from_url(server.url)
        try:
            eventually("Redis answers", lambda: answers(client))
            yield client
        finally:
            process.kill()


def answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


def test_a_block_gives_back_also_when_it_fails(redis: FakeRedis) -> None:
    claims = Claims(redis)
    try:
        with claims.held("x", 10) as claim:
            assert claim is not None
            with claims.held("x", 10) as second:
                assert second is None
            assert claims.is_held("x")
            raise KeyError
    except KeyError:
        pass
    assert not claims.is_held("x")
