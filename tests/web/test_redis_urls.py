from __future__ import annotations

from pathlib import Path

import pytest
from kombu.utils.url import url_to_parts
from redis.connection import parse_url

from webapp import redis_urls


@pytest.mark.parametrize("url", ["redis://:secret@host:6379/2", "rediss://user:secret@host/0"])
def test_celery_reads_the_address_of_a_port_as_it_is(url: str) -> None:
    assert redis_urls.for_celery(url) == url


def test_a_socket_means_the_same_to_celery() -> None:
    socket, user, password = Path("/a b/c%d/redis.sock"), "us", "p@ss/:?"
    url = redis_urls.of_socket(socket, user, password)
    told = parse_url(url)
    assert (told["path"], told["username"], told["password"], told["db"]) == (str(socket), user, password, 0)
    _, _, _, told_user, told_password, path, options = url_to_parts(
        redis_urls.for_celery(url.replace("db=0", "db=3")).removeprefix("redis+")
    )
    assert (f"/{path}", told_user, told_password, options) == (str(socket), user, password, {"virtual_host": "3"})
