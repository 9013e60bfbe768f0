"""Controllers that join later are heard of from the ones that are known, and those that left are forgotten."""

from __future__ import annotations

from tests.unit.brokerd.replication.controllers.test_controller_session import BEAT, METADATA, A, B, Talk

C = "127.0.0.1:3"
ALL = {"peers": f"n0:{A};n1:{B};n3:{C}"}


def test_a_controller_that_joined_gets_heartbeats_and_may_lead() -> None:
    talk = Talk()
    talk.register()
    talk.tick(2500)
    talk.answer(METADATA, ALL)
    assert talk.session.addresses == (A, B, C)
    talk.oneway.clear()
    talk.tick()
    assert [beat.address for beat in talk.oneway if beat.code == BEAT] == [A, B, C], "at once, before it may lead"
    talk.session.disconnected(A, talk.now_ms)
    talk.waiting.clear()
    talk.tick()
    assert [request.address for request in talk.waiting] == [A, B, C]
    talk.answer(METADATA, ALL | {"controllerLeaderAddress": C})
    assert talk.session.leader == C


def test_the_given_controllers_stay_and_others_leave() -> None:
    talk = Talk()
    talk.tick()
    talk.answer(METADATA, ALL)
    talk.answer(METADATA, {"peers": f"n3:{C}"})
    assert talk.session.addresses == (A, B, C), "the given ones are where to ask when nobody else is known"
    talk.tick(200)
    talk.answer(METADATA, {"peers": f"n0:{A}"})
    assert talk.session.addresses == (A, B)


def test_what_is_no_address_or_too_much_is_left_out() -> None:
    talk = Talk()
    talk.tick()
    talk.answer(
        METADATA, {"peers": "n0;:;n1:nowhere;n2:127.0.0.1:99999;" + ";".join(f"x{n}:h:{n}" for n in range(1, 500))}
    )
    assert len(talk.session.addresses) <= 2 + 64
    assert "nowhere" not in talk.session.addresses
    talk.answer(METADATA, {"peers": ""})
    assert len(talk.session.addresses) > 2, "a controller that says nothing about it changes nothing"
