"""The checks in front of handlers: off they are not there at all; on, who is refused and why."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from secrets import token_bytes
from typing import Any

import pytest

from remoting import codes
from remoting.access.component import INNER_USER, ComponentCredentials, ComponentKey
from remoting.access.decision import Demand
from remoting.access.model import ALL, CUSTOM, GROUP, PUB, TOPIC, AccessState, Entry, User, resource
from remoting.access.sealing import seal
from remoting.access.signature import SIGNATURE, Credentials, covered
from remoting.errors import LogboomError, RequestError, SettingsError
from remoting.frame import Command
from remoting.guarding.guard import AccessSettings, Guard

SECRET, OTHER = b"0123456789abcdef", b"fedcba9876543210"
HERE = "10.0.0.1"
OWN = "10.0.0.9:10911"
NOW_MS = 1_767_268_800_000


def user(name: str, user_type: str = "Normal", status: str = "enable", secret: bytes = SECRET) -> User:
    return User(name, seal(secret, name, f"{name}'s password", name.encode().ljust(12)[:12]), user_type, status)


def make_guard(
    *, authorization: bool = True, max_date_age_s: int = 0, secrets: Sequence[bytes] = (SECRET,), own_address: str = ""
) -> Guard:
    settings = AccessSettings(authentication=True, authorization=authorization, max_date_age_s=max_date_age_s)
    guard = Guard(settings, "c", secrets, lambda: NOW_MS, own_address)
    users = {each.name: each for each in (user("u"), user("root", "Super"), user("off", status="disable"))}
    entries = (Entry(resource("Topic:T"), (PUB,), "Allow"), Entry(resource("Group:g"), (ALL,), "Allow", (HERE,)))
    guard.update(AccessState(1, users, {"u": {CUSTOM: entries}}))
    return guard


def request(
    name: str, code: int = codes.SEND_MESSAGE_V2, ext: dict[str, str] | None = None, body: bytes = b"b"
) -> Command:
    signed = Credentials(name, f"{name}'s password".encode()).sign(ext or {"b": "T"}, body)
    return Command(code, ext=signed, body=body)


class Connection:
    peer_host = HERE
    own_address = OWN
    peer = "10.0.0.1:5"

    def __init__(self) -> None:
        self.errors: list[LogboomError] = []
        self.user = ""

    def prove(self, user: str) -> None:
        self.user = user

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.errors.append(error)


def component(secret: bytes = SECRET, off_ms: int = 0) -> ComponentCredentials:
    return ComponentCredentials(ComponentKey(secret), token_bytes, lambda: NOW_MS + off_ms)


def refused(guard: Guard, command: Command, host: str = HERE, here: str = OWN) -> str:
    with pytest.raises(RequestError) as caught:
        guard.check(command, host, here)
    assert caught.value.code == codes.NO_PERMISSION
    return caught.value.message


def test_off_the_handlers_are_the_very_same() -> None:
    guard = Guard(AccessSettings(), "c", (), lambda: 0)
    handlers: dict[int, Any] = {10: print}
    assert guard.protect(handlers) is handlers


def test_settings_that_contradict_one_another() -> None:
    with pytest.raises(SettingsError, match=r"access\.authentication=true"):
        Guard(AccessSettings(authorization=True), "c", (SECRET,), lambda: 0)
    with pytest.raises(SettingsError, match="openssl rand"):
        Guard(AccessSettings(authentication=True), "c", (), lambda: 0)


def test_of_one_run_the_refused_are_answered_and_the_others_handled() -> None:
    guard, connection, handled = make_guard(), Connection(), []
    protected = guard.protect({codes.SEND_MESSAGE_V2: lambda _connection, requests: handled.append(list(requests))})
    allowed, other = request("u"), request("u", ext={"b": "U"})
    protected[codes.SEND_MESSAGE_V2](connection, [allowed, other, allowed])  # type: ignore[arg-type]
    assert handled == [[allowed, allowed]]
    assert [each.code for each in connection.errors] == [codes.NO_PERMISSION]
    assert guard.refused == 1
    protected[codes.SEND_MESSAGE_V2](connection, [other])  # type: ignore[arg-type]
    assert len(handled) == 1


def test_raft_messages_pass_because_their_connection_was_introduced() -> None:
    handlers: dict[int, Any] = {codes.RAFT_MESSAGE: print, codes.RAFT_HELLO: print}
    protected = make_guard().protect(handlers)
    assert protected[codes.RAFT_MESSAGE] is print
    assert protected[codes.RAFT_HELLO] is not print


def test_who_is_refused() -> None:
    guard = make_guard()
    assert guard.check(request("u"), HERE, OWN) == "u"
    assert "signed requests only" in refused(guard, Command(310, ext={"b": "T"}))
    assert "signed requests only" in refused(guard, Command(310, ext={"b": "T", "AccessKey": "", "Signature": ""}))
    wrong = [refused(guard, request(name)) for name in ("nobody", "off")]
    changed = request("u")
    changed.body = b"another"
    wrong.append(refused(guard, changed))
    assert all("do not fit" in text for text in wrong)  # whether such a user exists is nobody's business
    assert "no permission" in refused(guard, request("u", ext={"b": "U"}))


def test_what_is_remembered_is_forgotten_when_permissions_change() -> None:
    guard = make_guard()
    guard.check(request("u"), HERE, OWN)
    guard.update(AccessState(2, guard.state.users, {}))
    refused(guard, request("u"))
    guard.update(AccessState(3, {"u": user("u", status="disable")}, {}))
    assert "do not fit" in refused(guard, request("u"))


def test_addresses_count() -> None:
    guard = make_guard()
    demand = Demand(GROUP, "g", ("Sub",))
    guard.demand("u", demand, HERE)
    with pytest.raises(RequestError):
        guard.demand("u", demand, "10.0.0.2")


def test_inner_requests_are_for_components_alone() -> None:
    guard = make_guard(secrets=(OTHER, SECRET))
    for secret in (SECRET, OTHER):  # while the secret is being changed
        sign = component(secret).signer([OWN])
        for code in (codes.PROXY_CALL, codes.UPDATE_BROKER_CONFIG):
            assert guard.check(Command(code, ext=sign(code, {}, b"", False)), HERE, OWN) == INNER_USER
    assert "components" in refused(guard, request("root", codes.PROXY_CALL))
    assert "components" in refused(guard, request("root", codes.ACCESS_STATE))
    forged = component(b"some other secret").signer([OWN])(codes.CLUSTER_VIEW, {}, b"", False)
    assert "component" in refused(guard, Command(codes.CLUSTER_VIEW, ext=forged))


def test_what_a_component_asked_counts_once_here_and_now() -> None:
    guard = make_guard()
    sign = component().signer(["10.0.0.9:10911", "b.example:10911"])
    first, second = (sign(codes.CLUSTER_VIEW, {}, b"", False) for _ in range(2))
    assert "is for" in refused(guard, Command(codes.CLUSTER_VIEW, ext=first), here="10.0.0.8:10911")
    assert guard.check(Command(codes.CLUSTER_VIEW, ext=second), HERE, OWN) == INNER_USER
    assert "before" in refused(guard, Command(codes.CLUSTER_VIEW, ext=second))
    assert "before" in refused(guard, Command(codes.CLUSTER_VIEW, ext=first))  # overtaken: somebody held it back
    for off_ms, word in ((300_001, "ahead of"), (-300_001, "behind")):
        late = component(off_ms=off_ms).signer([OWN])(codes.CLUSTER_VIEW, {}, b"", False)
        assert word in refused(guard, Command(codes.CLUSTER_VIEW, ext=late))


def test_a_component_may_dial_the_name_that_is_known() -> None:
    guard = make_guard(own_address="b.example:10911")
    signed = component().signer(["172.17.0.1:30911", "b.example:10911"])(codes.CLUSTER_VIEW, {}, b"", False)
    assert guard.check(Command(codes.CLUSTER_VIEW, ext=signed), HERE, "10.0.0.9:10911") == INNER_USER


def test_the_scheme_of_clients_makes_nobody_a_component() -> None:
    guard = make_guard()
    for secret in (SECRET, hmac.digest(SECRET, b"logboom inner credential", "sha256").hex().encode()):
        signed = Credentials(INNER_USER, secret).sign({}, b"")
        assert "component" in refused(guard, Command(codes.CLUSTER_VIEW, ext=signed))


def test_a_user_called_like_the_components_is_none() -> None:
    guard = make_guard()
    guard.update(AccessState(1, {INNER_USER: user(INNER_USER, "Super")}, {}))
    refused(guard, request(INNER_USER))


def test_without_authorization_users_may_everything_but_manage_users() -> None:
    guard = make_guard(authorization=False)
    assert guard.check(request("u", ext={"b": "U"}), HERE, OWN) == "u"
    assert "super user" in refused(guard, request("u", codes.AUTH_CREATE_USER, {"username": "x"}))
    assert guard.check(request("root", codes.AUTH_CREATE_USER, {"username": "x"}), HERE, OWN) == "root"


def test_a_secret_sealed_under_a_lost_key_lets_nobody_in() -> None:
    guard = make_guard()
    guard.update(AccessState(1, {"u": user("u", "Super", secret=OTHER)}, {}))
    assert "do not fit" in refused(guard, request("u"))
    # an empty secret is no way in either
    signed = Credentials("u", b"").sign({"b": "T"}, b"")
    assert "do not fit" in refused(guard, Command(310, ext=signed))
    signed = Credentials("nobody", b"").sign({"b": "T"}, b"")
    assert "do not fit" in refused(guard, Command(310, ext=signed))


def test_routes_may_be_open_to_the_unsigned_alone() -> None:
    guard = make_guard()
    settings = AccessSettings(authentication=True, authorization=True, open_routes=True)
    open_guard = Guard(settings, "c", (SECRET,), lambda: 0)
    open_guard.update(guard.state)
    asked = Command(codes.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "U"})
    assert "signed requests only" in refused(guard, asked)
    assert open_guard.check(asked, HERE, OWN) == ""
    assert "may not" in refused(open_guard, request("u", codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "U"}))
    assert "signed requests only" in refused(open_guard, Command(codes.CLUSTER_VIEW))


def metadata(name: str, password: str, date: str = "20260101T120000Z") -> dict[str, str]:
    digest = hmac.digest(password.encode(), date.encode(), "sha1").hex()
    header = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={digest}"
    return {"authorization": header, "x-mq-date-time": date}


def call_refused(guard: Guard, fields: dict[str, str]) -> str:
    with pytest.raises(RequestError) as caught:
        guard.check_call(fields)
    assert caught.value.code == codes.NO_PERMISSION
    return caught.value.message


def test_grpc_calls() -> None:
    guard = make_guard()
    signed = metadata("u", "u's password")
    assert guard.check_call(signed) == "u"
    assert "signed calls only" in call_refused(guard, {})
    assert "signed calls only" in call_refused(guard, metadata("", ""))
    assert "missing" in call_refused(guard, {"authorization": signed["authorization"]})
    assert "do not fit" in call_refused(guard, metadata("u", "wrong"))
    assert "do not fit" in call_refused(guard, metadata("nobody", ""))
    assert "do not fit" in call_refused(guard, metadata("off", "off's password"))
    assert "do not fit" in call_refused(guard, metadata(INNER_USER, SECRET.decode()))
    assert "hexadecimal" in call_refused(
        guard, signed | {"authorization": "A Credential=u, Signature=" + b64encode(b"x").decode()}
    )


def test_no_request_of_remoting_makes_a_grpc_call() -> None:
    """Both are signed by the same secret, remoting's over text that its sender chose: who overheard one would have that user's
    rights over gRPC for good."""
    guard = make_guard()
    overheard = request("u")
    assert guard.check(overheard, HERE, OWN) == "u"
    text = "".join(covered(overheard.ext, None)) + overheard.body.decode()
    digest = b64decode(overheard.ext[SIGNATURE]).hex()
    authorization = f"MQv2-HMAC-SHA1 Credential=u, SignedHeaders=x-mq-date-time, Signature={digest}"
    assert "no date" in call_refused(guard, {"authorization": authorization, "x-mq-date-time": text})


@pytest.mark.parametrize(
    ("date", "taken"),
    [
        ("20260101T120000Z", True),
        ("25690101T120000Z", True),
        ("2026-01-01T12:00:00Z", True),
        ("2026-01-01T12:00:00.123456+08:00", True),
        ("2026-01-01T12:00:00.1-0800", True),
        ("u20260101T120000Z", False),
        ("20260101T120000Z\n", False),
        ("20260101T120000", False),
        ("20260101T120000Zu", False),
        ("٢٠٢٦0101T120000Z", False),
        ("now", False),
    ],
)
def test_what_a_call_signs_has_the_form_of_a_date(date: str, taken: bool) -> None:
    fields = metadata("u", "u's password", date)
    if taken:
        assert make_guard().check_call(fields) == "u"
    else:
        assert "no date" in call_refused(make_guard(), fields)


def test_old_calls_are_refused_when_a_limit_is_set() -> None:
    guard = make_guard(max_date_age_s=300)
    assert guard.check_call(metadata("u", "u's password", "20260101T120459Z")) == "u"
    assert "too far off" in call_refused(guard, metadata("u", "u's password", "20260101T115400Z"))
    assert "too far off" in call_refused(guard, metadata("u", "u's password", "20261399T999999Z"))


def test_topics_of_types_are_told_apart() -> None:
    guard = make_guard()
    with pytest.raises(RequestError):
        guard.demand("u", Demand(TOPIC, "g", ("Sub",)), HERE)
