"""Signatures of components: what they cover, and what nobody can make of one."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import assume, given
from hypothesis import strategies as st

from remoting.access import component
from remoting.access.component import ComponentCredentials, ComponentKey, objection, read_claims
from remoting.access.signature import SIGNATURE
from remoting.frame import Command

KEY = ComponentKey(b"0123456789abcdef")
ONEWAY = 2
ext_entries = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4)
requests = st.tuples(st.integers(0, 2**31 - 1), ext_entries, st.binary(max_size=20), st.booleans())


def signed(code: int, ext: Mapping[str, str], body: bytes, oneway: bool) -> dict[str, str]:
    credentials = ComponentCredentials(KEY, lambda count: b"\7" * count, lambda: 1000)
    return credentials.signer(["10.0.0.1:9876", "n0.example:9876"])(code, ext, body, oneway)


def request(code: int, ext: dict[str, str], body: bytes, oneway: bool) -> Command:
    return Command(code, ext=ext, body=body, flag=ONEWAY if oneway else 0)


@given(
    st.dictionaries(st.text(max_size=140), st.text(max_size=140) | st.text("ab\x7f", max_size=140), max_size=6),
    st.text(min_size=1, max_size=140),
)
def test_what_is_covered_is_the_same_however_it_is_put_together(ext: dict[str, str], head: str) -> None:
    names = sorted(name for name in ext if name != SIGNATURE)
    texts = [head, *(text for name in names for text in (name, ext[name]))]
    begin = (77).to_bytes(4, "big") + b"\1" + len(texts).to_bytes(4, "big")
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    whole = begin + b"".join(len(each).to_bytes(4, "big") + each for each in encoded)
    assert component._covered(head, component.Signed(77, True, ext, b"")) == whole


@given(requests)
def test_what_was_signed_is_believed(asked: tuple[int, dict[str, str], bytes, bool]) -> None:
    code, ext, body, oneway = asked
    claims = read_claims(request(code, signed(code, ext, body, oneway), body, oneway), [ComponentKey(b"other"), KEY])
    assert claims == (1000, "07" * 16, 1, ("10.0.0.1:9876", "n0.example:9876"))


@given(requests, requests)
def test_a_signature_is_of_one_request_alone(
    asked: tuple[int, dict[str, str], bytes, bool], other: tuple[int, dict[str, str], bytes, bool]
) -> None:
    assume(asked != other and SIGNATURE not in asked[1].keys() | other[1].keys())
    mine = signed(*asked)
    code, ext, body, oneway = other
    assume(
        {**ext, "AccessKey": mine["AccessKey"]} != {**asked[1], "AccessKey": mine["AccessKey"]}
        or other[0:1] + other[2:] != asked[0:1] + asked[2:]
    )
    forged = {**ext, "AccessKey": mine["AccessKey"], SIGNATURE: mine[SIGNATURE]}
    assert read_claims(request(code, forged, body, oneway), [KEY]) is None


def test_the_same_bytes_in_other_fields_are_another_request() -> None:
    mine = signed(1, {"a": "xy", "b": "z"}, b"body", False)
    for ext, body in (
        ({"a": "x", "b": "yz"}, b"body"),
        ({"a": "xyz"}, b"body"),
        ({"b": "xy", "c": "z"}, b"body"),
        ({"a": "xy", "b": "zb"}, b"ody"),
    ):
        assert (
            read_claims(
                request(1, {**mine, **ext} if len(ext) == 2 else {**ext, SIGNATURE: mine[SIGNATURE]}, body, False),
                [KEY],
            )
            is None
        )


@given(st.integers(0, 400), st.characters(codec="ascii"))
def test_every_character_of_a_signature_counts(position: int, character: str) -> None:
    mine = signed(1, {}, b"", False)
    text = mine[SIGNATURE]
    position %= len(text)
    assume(text[position] != character)
    mine[SIGNATURE] = text[:position] + character + text[position + 1 :]
    assert read_claims(request(1, mine, b"", False), [KEY]) is None


def test_texts_that_are_no_signature() -> None:
    for text in ("", "component", "component 1 2 3 4 5", "x" * 100_000, "component " + "9" * 400, "é" * 200):
        assert read_claims(request(1, {"AccessKey": "logboom-inner", SIGNATURE: text}, b"", False), [KEY]) is None


def test_where_and_when_a_request_counts() -> None:
    claims = read_claims(request(1, signed(1, {}, b"", False), b"", False), [KEY])
    assert claims is not None
    assert not objection(claims, {"10.0.0.1:9876"}, 1000)
    assert not objection(claims, {"n0.example:9876", "0.0.0.0:9876"}, 301_000)
    assert "is for 10.0.0.1:9876 or n0.example:9876" in objection(claims, {"10.0.0.2:9876"}, 1000)
    assert "301 s behind" in objection(claims, {"10.0.0.1:9876"}, 302_001)
