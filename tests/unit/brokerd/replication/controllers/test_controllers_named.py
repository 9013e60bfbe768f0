"""Controllers that join later are heard of from the ones that are known, and those that left are forgotten."""

from __future__ import annotations

from tests.unit.brokerd.replication.controllers.test_controller_session import BEAT, METADATA, A, B, Session

C = "127.0.0.1:3"
ALL = {"peers": f"n0:{A};n1:{B};n3:{C}"}


def test_a_controller_that_joined_gets_heartbeats_and_may_lead() -> None:
    session = Session()
    session.register()
    session.tick(2500)
    session.answer(METADATA, ALL)
    assert session.core.addresses == (A, B, C)
    session.oneway.clear()
    session.tick()
    assert [beat.address for beat in session.oneway if beat.code == BEAT] == [A, B, C], "at once, before it may lead"
    session.core.disconnected(A, session.now_ms)
    session.waiting.clear()
    session.tick()
    assert [request.address for request in session.waiting] == [A, B, C]
    session.answer(METADATA, ALL | {"controllerLeaderAddress": C})
    assert session.core.leader == C


def test_the_given_controllers_stay_and_others_leave() -> None:
    session = Session()
    session.tick()
    session.answer(METADATA, ALL)
    session.answer(METADATA, {"peers": f"n3:{C}"})
    assert session.core.addresses == (A, B, C), "the given ones are where to ask when nobody else is known"
    session.tick(200)
    session.answer(METADATA, {"peers": f"n0:{A}"})
    assert session.core.addresses == (A, B)


def test_what_is_no_address_or_too_much_is_left_out() -> None:
    session = Session()
    session.tick()
    session.answer(
        METADATA, {"peers": "n0;:;n1:nowhere;n2:127.0.0.1:99999;" + ";".join(f"x{n}:h:{n}" for n in range(1, 500))}
    )
    assert len(session.core.addresses) <= 2 + 64
    assert "nowhere" not in session.core.addresses
    session.answer(METADATA, {"peers": ""})
    assert len(session.core.addresses) > 2, "a controller that says nothing about it changes nothing"
