"""The appliance's own certificates: who may read them, whom they convince, when they are made anew."""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from remoting.errors import ProtocolError, SettingsError
from remoting.transport.tls import TlsSettings, client_context, tls_server
from webapp.appliance import certificates
from webapp.appliance.layout import DataLayout

NOW = datetime.datetime.now(datetime.UTC)
BOTH = ["its authority", "the certificate for TLS"]
DAY = datetime.timedelta(days=1)


def shown(layout: DataLayout) -> x509.Certificate:
    return x509.load_pem_x509_certificate(layout.tls_certificate_file.read_bytes())


def contents(layout: DataLayout) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in layout.tls.iterdir()}


def changed(before: dict[str, bytes], layout: DataLayout) -> set[str]:
    return {name for name, content in contents(layout).items() if before.get(name) != content}


def convinces(layout: DataLayout, host: str, authority: Path | None = None) -> bool:
    """Whether a client that trusts the authority and checks the host's name finishes a handshake."""
    server = tls_server(
        TlsSettings(
            mode="permissive",
            certificate_path=str(layout.tls_certificate_file),
            key_path=str(layout.tls_key_file),
            ca_path=str(layout.tls_authority_file),
        )
    )
    assert server is not None
    layer = server.layer()
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(ProtocolError, OSError):  # a client that is not convinced says so, or goes
            while not layer.connected and (data := theirs.recv(65536)):
                layer.receive(data)
                theirs.sendall(layer.take_output())

    context = client_context(str(authority or layout.tls_authority_file), check_host=True)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, context.wrap_socket(ours, server_hostname=host):
            return True
    except ssl.SSLCertVerificationError:
        return False
    finally:
        thread.join(10)
        theirs.close()


def test_they_are_made_once_and_only_their_owner_may_read_them(layout: DataLayout) -> None:
    assert certificates.keep_fresh(layout, (), NOW) == BOTH
    made = contents(layout)
    assert set(made) == {"ca.pem", "ca.key", "server.pem", "server.key"}
    assert {file.stat().st_mode & 0o777 for file in layout.tls.iterdir()} == {0o600}
    assert certificates.keep_fresh(layout, (), NOW) == []
    assert contents(layout) == made


def test_a_client_that_checks_is_convinced_under_every_name(layout: DataLayout, tmp_path: Path) -> None:
    certificates.keep_fresh(layout, ["console.example", ".cluster.example", "192.0.2.7", "*", "[2001:db8::1]"], NOW)
    for host in ("localhost", "127.0.0.1", "::1", "console.example", "a.cluster.example", "192.0.2.7", "2001:db8::1"):
        assert convinces(layout, host), host
    assert not convinces(layout, "elsewhere.example")
    stranger = DataLayout(tmp_path / "another")
    certificates.keep_fresh(stranger, (), NOW)
    assert not convinces(layout, "localhost", stranger.tls_authority_file)


def test_the_certificate_is_renewed_a_month_before_its_end_and_keeps_its_key(layout: DataLayout) -> None:
    certificates.keep_fresh(layout, (), NOW)
    before = contents(layout)
    end = shown(layout).not_valid_after_utc
    assert datetime.timedelta(days=364) < end - NOW < datetime.timedelta(days=366)
    assert certificates.keep_fresh(layout, (), end - 31 * DAY) == []
    assert certificates.keep_fresh(layout, (), end - 29 * DAY) == ["the certificate for TLS"]
    assert changed(before, layout) == {"server.pem"}
    assert shown(layout).not_valid_after_utc > end + 300 * DAY
    assert certificates.keep_fresh(layout, (), end - 29 * DAY) == []


def test_one_that_is_not_valid_yet_is_made_anew(layout: DataLayout) -> None:
    """As after a start with a clock that was ahead."""
    certificates.keep_fresh(layout, (), NOW + 3000 * DAY)
    assert certificates.keep_fresh(layout, (), NOW) == BOTH
    assert convinces(layout, "localhost")


def test_the_authority_is_renewed_with_its_key(layout: DataLayout, tmp_path: Path) -> None:
    """Who has its file from before still trusts what is signed later, and the other way round."""
    certificates.keep_fresh(layout, (), NOW - 3300 * DAY)
    before, old = contents(layout), tmp_path / "old.pem"
    old.write_bytes(before["ca.pem"])
    assert certificates.keep_fresh(layout, (), NOW) == ["its authority", "the certificate for TLS"]
    assert changed(before, layout) == {"ca.pem", "server.pem"}
    assert convinces(layout, "localhost")
    assert convinces(layout, "localhost", old)


def test_new_names_are_taken_up(layout: DataLayout) -> None:
    certificates.keep_fresh(layout, (), NOW)
    before = contents(layout)
    assert certificates.keep_fresh(layout, ["console.example"], NOW) == ["the certificate for TLS"]
    assert changed(before, layout) == {"server.pem"}
    assert certificates.keep_fresh(layout, ["console.example"], NOW) == []
    names = shown(layout).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "console.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]


def test_a_host_that_cannot_be_a_name_is_refused(layout: DataLayout) -> None:
    with pytest.raises(SettingsError, match=r"LOGBOOM_ALLOWED_HOSTS names 'a\.\.b'"):
        certificates.keep_fresh(layout, ["a..b"], NOW)


@pytest.mark.parametrize(
    ("lost", "made"),
    [
        ({"server.pem"}, ["the certificate for TLS"]),
        ({"server.key"}, ["the certificate for TLS"]),
        ({"ca.pem"}, ["its authority"]),
        ({"ca.key"}, BOTH),
        ({"ca.pem", "ca.key", "server.pem", "server.key"}, BOTH),
    ],
)
def test_what_is_lost_is_made_anew(layout: DataLayout, lost: set[str], made: list[str]) -> None:
    certificates.keep_fresh(layout, (), NOW)
    for name in lost:
        (layout.tls / name).unlink()
    assert certificates.keep_fresh(layout, (), NOW) == made
    assert certificates.keep_fresh(layout, (), NOW) == []
    assert convinces(layout, "localhost")


def test_a_start_that_was_killed_in_between_is_finished(layout: DataLayout) -> None:
    certificates.keep_fresh(layout, (), NOW)
    for name in ("ca.pem", "server.pem", "server.key"):
        (layout.tls / name).unlink()
    assert certificates.keep_fresh(layout, (), NOW) == BOTH
    assert convinces(layout, "localhost")


def test_damage(layout: DataLayout, tmp_path: Path) -> None:
    certificates.keep_fresh(layout, (), NOW)
    layout.tls_certificate_file.write_text("damaged")
    assert certificates.keep_fresh(layout, (), NOW) == ["the certificate for TLS"]
    good = contents(layout)
    for name in ("ca.pem", "ca.key", "server.key"):
        (layout.tls / name).write_text("damaged")
        with pytest.raises(SettingsError, match=rf"{name} is damaged"):
            certificates.keep_fresh(layout, (), NOW)
        (layout.tls / name).write_bytes(good[name])
    stranger = DataLayout(tmp_path / "another")
    certificates.keep_fresh(stranger, (), NOW)
    layout.tls_authority_file.write_bytes(stranger.tls_authority_file.read_bytes())
    with pytest.raises(SettingsError, match=r"ca\.pem is damaged or not of .*ca\.key"):
        certificates.keep_fresh(layout, (), NOW)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "server.pem", "server.key"])
def test_whatever_byte_a_disk_changed_is_told_or_mended(layout: DataLayout, name: str) -> None:
    """Nothing else is raised: it would end the appliance, which asks every hour."""
    certificates.keep_fresh(layout, (), NOW)
    good = contents(layout)
    first, *lines, last = good[name].splitlines()
    stored = base64.b64decode(b"".join(lines))
    told = 0
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 1 << position % 8
        for other, content in good.items():
            (layout.tls / other).write_bytes(content)
        (layout.tls / name).write_bytes(b"\n".join([first, base64.b64encode(damaged), last]))
        said = refusal(layout)
        assert said is None or "is damaged" in said
        assert said is None or name in said
        told += said is not None
        if said is None:
            assert certificates.keep_fresh(layout, (), NOW) == []
            assert name == "server.pem" or convinces(layout, "localhost")
    if name == "ca.pem":
        assert told == len(stored)
    elif name == "server.pem":
        assert told == 0


def refusal(layout: DataLayout) -> str | None:
    try:
        certificates.keep_fresh(layout, (), NOW)
    except SettingsError as error:
        return str(error)
    return None


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(SettingsError, match="cannot keep certificates in"):
        certificates.keep_fresh(DataLayout(tmp_path / "data"), (), NOW)


# ---- one of the owner's


def test_an_owners_certificate_has_to_be_good_for_the_host(layout: DataLayout, tmp_path: Path) -> None:
    certificates.keep_fresh(layout, ("logs.example.com", ".wild.example.com"), NOW)
    certificate, key = str(layout.tls_certificate_file), str(layout.tls_key_file)
    for host in ("logs.example.com", "LOGS.example.com", "a.wild.example.com", "127.0.0.1", "::1", "0:0:0:0:0:0:0:1"):
        certificates.check_own(host, certificate, key, NOW)
    for host in ("other.example.com", "x.logs.example.com", "a.b.wild.example.com", "10.0.0.1"):
        with pytest.raises(SettingsError, match=f"not for {host}"):
            certificates.check_own(host, certificate, key, NOW)
    with pytest.raises(SettingsError, match="which is not now"):
        certificates.check_own("127.0.0.1", certificate, key, NOW + 400 * DAY)
    (tmp_path / "nothing.pem").write_text("nothing")
    for certificate_path, key_path in (
        (certificate, str(layout.tls_authority_key_file)),  # another one's key
        (certificate, str(tmp_path / "nothing.pem")),
        (str(tmp_path / "nothing.pem"), key),
        (str(tmp_path / "missing.pem"), key),
    ):
        with pytest.raises(SettingsError, match="cannot be used: they must be PEM files"):
            certificates.check_own("127.0.0.1", certificate_path, key_path, NOW)


def test_a_key_with_a_password_is_refused_and_not_asked_for(layout: DataLayout, tmp_path: Path) -> None:
    certificates.keep_fresh(layout, (), NOW)
    key = load_pem_private_key(layout.tls_key_file.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a password")))
    with pytest.raises(SettingsError, match="the key without a password"):
        certificates.check_own("127.0.0.1", str(layout.tls_certificate_file), str(locked), NOW)
