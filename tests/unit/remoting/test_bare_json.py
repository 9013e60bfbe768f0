"""Integer keys without quotes, and that strings which look like such keys stay as they are."""

from __future__ import annotations

import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.bare_json import loads_bare
from remoting.errors import ProtocolError


def test_bare_keys() -> None:
    assert loads_bare(b'{0:"a:1", -2 : {7:8},"x":[{1:2},{3:4}]}') == {
        "0": "a:1",
        "-2": {"7": 8},
        "x": [{"1": 2}, {"3": 4}],
    }
    assert loads_bare(b'{"x":{1:"a,5:{1:\\"2:"}}') == {"x": {"1": 'a,5:{1:"2:'}}


def test_objects_as_keys() -> None:
    body = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"offset":1},{"queueId":1,"n":{2:3}} : 5}, "x":[]}'
    )
    assert loads_bare(body) == {
        "offsetTable": {
            '{"brokerName":"b","queueId":0,"topic":"t"}': {"offset": 1},
            '{"queueId":1,"n":{"2":3}}': 5,
        },
        "x": [],
    }


@pytest.mark.parametrize(
    "content", [b"{" * 60, b'{{{"a":1}:2}:3}', b"[" * 200, b"}", b"]", b'{{"a":1}}', b'{"a', b'{"a\\']
)
def test_nesting_is_bounded(content: bytes) -> None:
    with pytest.raises(ProtocolError, match="undecodable JSON"):
        loads_bare(content)


def tables(inner: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(texts | st.integers(-9, 99).map(str), inner, max_size=4)


texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | texts,
    lambda inner: st.lists(inner, max_size=4) | tables(inner),
    max_leaves=12,
)


def bare(value: object) -> str:
    """The same value with bare integer keys, as the original writes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{bare_key(key)}:{bare(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(bare(each) for each in value) + "]"
    return orjson.dumps(value).decode()


def bare_key(key: str) -> str:
    return key if re.fullmatch("-?[0-9]+", key) else orjson.dumps(key).decode()


@given(tables(values))
def test_whatever_is_written_bare_is_read_back(value: dict[str, object]) -> None:
    assert loads_bare(bare(value).encode()) == value


@given(st.binary(max_size=60))
def test_anything_else_is_refused(content: bytes) -> None:
    try:
        loads_bare(content)
    except ProtocolError as error:
        assert "undecodable JSON" in str(error)  # noqa: PT017


@pytest.mark.parametrize("content", [b"", b"{1:}", b"{1 2:3}", b"{1.5:2}"])
def test_broken_json(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        loads_bare(content)
