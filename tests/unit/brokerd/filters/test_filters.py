"""Subscriptions: tags and the SQL92 subset, table by table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.filters import sql
from brokerd.filters.message_filter import compile_filter, split_tags
from brokerd.filters.sql_tokens import SqlError
from remoting import codes
from remoting.errors import RequestError
from remoting.java_hash import java_hash
from remoting.record.codec import encode_record
from remoting.record.fields import offsets_of, properties_of, queue_offset_of, store_timestamp_of
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties

PROPERTIES = {"a": "5", "b": "text", "c": "-2.5", "yes": "true", "no": "FALSE", "quote": "it's", "exp": "1e3"}


def matches(expression: str) -> bool:
    return sql.parse(expression).matches(PROPERTIES)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 5",
        "a = 5L",
        "a = 5.0",
        "5 = a",
        "a = '5'",
        "b = 'text'",
        "b <> 'x'",
        "b <> 5",
        "a > 4",
        "a >= 5 AND a <= 5",
        "a < 6",
        "a > c",
        "c < -2",
        "c = -2.5",
        "-a = -5",
        "+a = 5",
        "- -5 = a",
        "exp = 1000",
        "a = 0.5e1",
        "a between 5 and 5",
        "a NOT BETWEEN 6 AND 9",
        "a BETWEEN c AND 9",
        "b IN ('x', 'text')",
        "b NOT IN ('x')",
        "b CONTAINS 'ex'",
        "b NOT CONTAINS 'z'",
        "b STARTSWITH 'te'",
        "b ENDSWITH 'xt'",
        "b NOT ENDSWITH 'x'",
        "quote = 'it''s'",
        "missing IS NULL",
        "a IS NOT NULL",
        "TRUE",
        "yes",
        "NOT no",
        "yes = TRUE",
        "no = FALSE",
        "no <> TRUE",
        "NOT (a = 6)",
        "a = 6 OR b = 'text'",
        "a = 5 OR a = 1 AND a = 2",
        "(a = 5 OR a = 1) AND b = 'text'",
        "missing = 1 OR a = 5",
        "NOT (missing = 1 AND a = 6)",
        "a = 5 -- the rest is a comment",
        "a /* five */ = 5",
        "a = 5 = TRUE",
        "a Is nOt NuLl",
        "0.0 = 0",
        "(missing = 1) IS NULL",
    ],
)
def test_what_matches(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 6",
        "a <> 5",
        "A = 5",
        "b = 5",
        "missing = 1",
        "missing <> 1",
        "NOT (missing = 1)",
        "missing > 1 OR a = 6",
        "missing IN ('x')",
        "missing NOT IN ('x')",
        "missing NOT CONTAINS 'x'",
        "missing BETWEEN 1 AND 2",
        "NULL",
        "a = NULL",
        "FALSE",
        "no",
        "b",
        "b > 5",
        "NOT (b > 5)",
        "b > quote",
        "a BETWEEN 6 AND 9",
        "a BETWEEN b AND 9",
        "b NOT IN ('text')",
        "yes = 5",
        "a IS NULL",
    ],
)
def test_what_does_not_match(expression: str) -> None:
    assert not matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "   ",
        "-- nothing",
        "a =",
        "= 5",
        "a = 5 AND",
        "a = 5 b = 6",
        "(a = 5",
        "a = 5)",
        "a = 'open",
        "a LIKE 'x'",
        "a + 1 = 6",
        "a > 'text'",
        "a > TRUE",
        "'x' < 'y'",
        "a BETWEEN 9 AND 1",
        "a BETWEEN 'a' AND 'b'",
        "a BETWEEN 1",
        "a IN (1, 2)",
        "a IN ()",
        "a IN 'x'",
        "5 IN ('x')",
        "'x' CONTAINS 'y'",
        "a CONTAINS b",
        "a CONTAINS 5",
        "a IS 5",
        "a NOT 5",
        "5",
        "'text'",
        "NOT 5",
        "a = 5 AND 'x'",
        "-'x' = 5",
        "a ! 5",
        "a = " + "9" * 41,
        "(" * 33 + "a = 5" + ")" * 33,
        "NOT " * 33 + "TRUE",
        "a = 5" + " = TRUE" * 4,
    ],
)
def test_what_is_refused(expression: str) -> None:
    with pytest.raises(SqlError):
        sql.parse(expression)
    with pytest.raises(RequestError) as caught:
        compile_filter("SQL92", expression)
    assert caught.value.code == codes.SUBSCRIPTION_PARSE_FAILED


def test_long_chains_do_not_nest() -> None:
    assert matches(" OR ".join(["a = 6"] * 127 + ["a = 5"]))
    assert matches(" AND ".join(["a = 5"] * 128))


@pytest.mark.parametrize(
    ("expression", "conditions"),
    [
        ("TRUE", 1),
        ("a = 5", 1),
        ("a = 5 AND b = 'x' OR c < 1", 3),
        ("(yes OR no) AND (((a IS NOT NULL)))", 3),
        ("NOT NOT yes", 2),
        ("NOT (a = 5 OR b NOT IN ('x', 'y'))", 3),
        ("a BETWEEN 1 AND 9 = TRUE", 2),
    ],
)
def test_conditions_are_counted(expression: str, conditions: int) -> None:
    assert sql.parse(expression).conditions == conditions


@pytest.mark.parametrize(
    "expression",
    [
        " OR ".join(["a<1"] * 129),
        " OR ".join(["a<1"] * 2300),
        " AND ".join(["yes"] * 129),
        " OR ".join(["FALSE"] * 129),
        " OR ".join(["((NULL))"] * 129),
        " OR ".join(["NOT NOT no"] * 65),
        " OR ".join(["(" * 9 + "a = 1" + ")" * 9] * 129),
        "(" * 20 + " OR ".join(["a = 1 = FALSE"] * 65) + ")" * 20,
        " OR ".join(["NOT " * 31 + "yes"] * 5),
        " OR ".join(["a IS NULL"] * 129),
        " OR ".join(["b IN ('x')"] * 129),
        " OR ".join(["b CONTAINS 'x'"] * 129),
        " OR ".join(["a BETWEEN 1 AND 2"] * 129),
    ],
)
def test_too_many_conditions_are_refused(expression: str) -> None:
    with pytest.raises(RequestError, match="more than 128 conditions") as caught:
        compile_filter("SQL92", expression)
    assert caught.value.code == codes.SUBSCRIPTION_PARSE_FAILED


def test_lists_are_bounded_all_together() -> None:
    def listed(count: int) -> str:
        return "b IN (" + ",".join(["'x'"] * count) + ")"

    assert not matches(listed(1024))
    assert not matches(f"{listed(512)} OR {listed(512)}")
    for expression in (listed(1025), listed(3000), f"{listed(512)} AND {listed(513)}"):
        with pytest.raises(RequestError, match="more than 1024 texts in lists of IN") as caught:
            compile_filter("SQL92", expression)
        assert caught.value.code == codes.SUBSCRIPTION_PARSE_FAILED


def test_the_deepest_expression_is_evaluated() -> None:
    text = "a = 5"
    for _ in range(30):
        text = f"NOT ({text} = TRUE = TRUE)" if len(text) % 2 else f"({text} = TRUE IS NOT NULL = TRUE)"
    with pytest.raises(SqlError, match="nesting"):
        sql.parse(f"(((({text}))))")
    assert matches(f"{'(' * 31}a = 5{' = TRUE)' * 31}")


@given(st.text(alphabet="ab'()=<>ANDORNTIS 015.-,\x00é", max_size=40), st.dictionaries(st.text(max_size=3), st.text()))
def test_any_text_parses_or_is_refused(text: str, properties: dict[str, str]) -> None:
    try:
        parsed = sql.parse(text)
    except SqlError:
        return
    parsed.matches(properties)


@pytest.mark.parametrize("expression", ["*", "", "||", "  ", " || "])
def test_everything(expression: str) -> None:
    everything = compile_filter("TAG", expression)
    assert everything.tags_codes is None
    assert everything.admits(b"")


def test_tags_are_compared_exactly_after_their_hash() -> None:
    assert java_hash("Aa") == java_hash("BB")
    found = compile_filter("", " Aa||b ||")
    assert split_tags(" Aa||b ||") == {"Aa", "b"}
    assert found.tags_codes == {java_hash("Aa"), java_hash("b")}
    assert found.admits(encode_properties({"TAGS": "Aa"}))
    assert found.admits(encode_properties({"KEYS": "k", "TAGS": "b"}))
    assert not found.admits(encode_properties({"TAGS": "BB"}))
    assert not found.admits(encode_properties({"KEYS": "k"}))
    assert not found.admits(encode_properties({"MYTAGS": "b"}))


def test_other_types_and_endless_expressions_are_refused() -> None:
    for kind, expression in (("LUA", "x"), ("TAG", "x" * 20000), ("SQL92", "a = 5 AND " * 2000)):
        with pytest.raises(RequestError) as caught:
            compile_filter(kind, expression)
        assert caught.value.code == codes.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize("born", ["1.2.3.4", "2001:db8::1"])
@pytest.mark.parametrize("store", ["1.2.3.4", "2001:db8::1"])
@pytest.mark.parametrize("topic", [b"t", b"%RETRY%" + b"x" * 200])
def test_single_fields_of_records(born: str, store: str, topic: bytes) -> None:
    properties = encode_properties({"TAGS": "x", "a": "5"})
    record = encode_record(
        topic=topic,
        queue_id=1,
        queue_offset=77,
        physical_offset=1234,
        body=b"body",
        properties=properties,
        born_timestamp_ms=5,
        born_host=pack_host(born, 1),
        store_timestamp_ms=6,
        store_host=pack_host(store, 2),
        reconsume_times=9,
    )
    assert offsets_of(record) == (77, 1234, 9)
    assert queue_offset_of(record) == 77
    assert store_timestamp_of(record) == 6
    assert properties_of(record) == properties
    assert properties_of(memoryview(record)) == properties
    assert compile_filter("SQL92", "a = 5").admits(properties_of(record))
