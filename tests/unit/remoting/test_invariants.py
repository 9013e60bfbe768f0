from __future__ import annotations

import pytest

from remoting.invariants import monotonic, what_broke


def test_a_position_only_grows() -> None:
    assert monotonic(3, 3, "the end") == 3
    with pytest.raises(AssertionError, match="the end fell from 3 to 2"):
        monotonic(3, 2, "the end")


def caught(work: object) -> BaseException:
    try:
        work()
    except AssertionError as error:
        return error
    raise ValueError("nothing broke")


def test_what_broke_is_told_by_its_words_or_by_its_place() -> None:
    class Log:
        end_offset = 3

        def settled(self, end_offset: int) -> None:
            if end_offset > self.end_offset:
                raise AssertionError

    assert what_broke(caught(lambda: monotonic(3, 2, "the end"))) == "the end fell from 3 to 2"
    told = what_broke(caught(lambda: Log().settled(4)))
    assert told.startswith("AssertionError in ")
    assert "Log.settled, line " in told
    assert told.endswith(" of test_invariants.py")
    assert what_broke(KeyError()) == "KeyError"
