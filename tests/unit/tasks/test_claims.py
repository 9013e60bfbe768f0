from __future__ import annotations

from tasks.claims import Claims
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


def test_a_claim_ends_by_itself_unless_it_is_extended(redis: FakeRedis) -> None:
    claims = Claims(redis)
    claim = claims.take("x", 10)
    assert claim is not None
    redis.now_ms = 9_000
    assert claim.extend()
    redis.now_ms = 18_000
    assert claims.is_held("x")
    redis.now_ms = 19_000
    assert not claims.is_held("x")
    assert not claim.extend()


def test_who_lost_a_claim_neither_extends_nor_ends_that_of_the_next(redis: FakeRedis) -> None:
    claims = Claims(redis)
    lost = claims.take("x", 1)
    assert lost is not None
    redis.now_ms = 2_000
    assert claims.take("x", 10) is not None
    assert not lost.extend()
    lost.release()
    assert claims.is_held("x")


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
