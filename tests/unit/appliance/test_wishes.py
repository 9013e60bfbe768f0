"""The files that say what is wanted of broker groups: written whole or not at all, checked when they are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from webapp import wishes
from webapp.wishes import Busy, GroupWish, Wish, WishUnreadable, alone, decode_wish, encode_wish, read_wish, read_wishes

MOUNTED = GroupWish("c", "broker-a", Wish.MOUNTED, "0badcafe", given_up=True)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "groups"
    assert read_wish(directory, "broker-a") is None
    assert read_wishes(directory) == {}
    wishes.write_wish(directory, MOUNTED)
    wishes.write_wish(directory, MOUNTED._replace(group="broker-b", wish=Wish.DOWN))
    assert read_wish(directory, "broker-a") == MOUNTED
    assert read_wishes(directory).keys() == {"broker-a", "broker-b"}
    assert (directory / "broker-a.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in directory.iterdir()) == ["broker-a.json", "broker-b.json"], "no draft is left"
    wishes.remove_wish(directory, "broker-a")
    assert read_wish(directory, "broker-a") is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"version": 2}, "its version is not 1"),
        ({"wish": "up"}, "'up' is not a valid Wish"),
        ({"id": "../../x"}, "nothing that was written"),
        ({"id": 7}, "nothing that was written"),
        ({"id": ""}, "it wants a mount, and names none"),
        ({"given_up": 1}, "nothing that was written"),
        ({"group": "broker-b"}, "it is of another group"),
        ({"cluster": "a/b"}, "it is of another group"),
        ({"more": 1}, "in the place of"),
    ],
)
def test_what_nobody_wrote_is_refused(tmp_path: Path, changed: dict[str, object], sentence: str) -> None:
    content = json.dumps({**json.loads(encode_wish(MOUNTED)), **changed})
    with pytest.raises(ValueError, match=sentence):
        decode_wish(content.encode(), "broker-a")
    (tmp_path / "broker-a.json").write_text(content)
    with pytest.raises(WishUnreadable, match="Remove the file"):
        read_wish(tmp_path, "broker-a")
    assert isinstance(read_wishes(tmp_path)["broker-a"], WishUnreadable)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'"x"', b" " * 70_000], ids=["empty", "list", "cut", "text", "long"]
)
def test_a_file_of_anything_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"version|Expecting|bytes"):
        decode_wish(content, "broker-a")


def test_one_at_a_time(tmp_path: Path) -> None:
    with alone(tmp_path, "broker-a"):
        with pytest.raises(Busy, match="broker-a"), alone(tmp_path, "broker-a"):
            raise AssertionError("two at once")
        with alone(tmp_path, "broker-b"):
            pass
    with alone(tmp_path, "broker-a"):
        pass
