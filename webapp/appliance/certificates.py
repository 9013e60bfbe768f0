"""The appliance's certificates: an authority of its own, and the certificate that its daemons show.

Made at the first start in `tls/` of the data directory, so that clients whose default is TLS get in, and kept fresh by the
supervisor, at each start and once an hour. A new certificate is signed with the key that is there, so that a daemon, which reads
the files again when they change, never sees halves that do not fit; connections that are open stay. The authority is renewed with
its key and name as well: certificates of before and after are good for whoever trusts either form of it, while that one lasts.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from remoting.errors import SettingsError
from webapp.appliance import environment, secret_files
from webapp.appliance.layout import DataLayout

NAMES: Final = ("localhost", "127.0.0.1", "::1")

_DAY: Final = datetime.timedelta(days=1)
_LIFE: Final = 365 * _DAY
_RENEWED_BEFORE: Final = 30 * _DAY
_AUTHORITY_LIFE: Final = 10 * _LIFE
_CLOCKS_MAY_DIFFER: Final = _DAY
_SIGNATURE: Final = ec.ECDSA(hashes.SHA256())
# What is raised for bytes that were a key or a certificate once: at the first look, or when a part of it is looked at.
_DAMAGE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    InvalidSignature,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)


def keep_fresh(layout: DataLayout, hosts: Sequence[str], now: datetime.datetime) -> list[str]:
    """Make what is missing or soon too old; what was made, in words. `hosts` are further names of this machine.

    Raises SettingsError when a file of the authority is damaged, a host is no name, or the directory cannot be written.
    """
    try:
        authority, new_authority = _authority(layout, now)
        new_certificate = _certificate(layout, authority, (*NAMES, *hosts), now)
    except OSError as error:
        raise SettingsError(f"cannot keep certificates in {layout.tls}: {error.strerror}") from error
    return [*(["its authority"] if new_authority else []), *(["the certificate for TLS"] if new_certificate else [])]


class _Authority(NamedTuple):
    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


def check_own(host: str, certificate_path: str, key_path: str, now: datetime.datetime) -> None:
    """Look at a certificate of the owner's that browsers are shown for a host. Raises SettingsError when they would refuse it."""
    where = f"{certificate_path} with the key {key_path}"
    try:
        # an empty password, or the library would ask for one at the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_path, key_path, password="")
        certificate = x509.load_pem_x509_certificate(Path(certificate_path).read_bytes())
        names = _names_of(certificate)
    except (OSError, *_DAMAGE) as error:  # of ssl an OSError, too
        raise SettingsError(
            f"{where} cannot be used: they must be PEM files, the key without a password and the certificate's own ({error})"
        ) from error
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        raise SettingsError(
            f"{certificate_path} is good from {certificate.not_valid_before_utc:%Y-%m-%d} until "
            f"{certificate.not_valid_after_utc:%Y-%m-%d}, which is not now; renew it"
        )
    if not any(_is_meant(host, each) for each in names):
        raise SettingsError(
            f"{certificate_path} is for {', '.join(names) or 'no host'}, not for {host}: take one that names it, or the name "
            "that it is for"
        )


def _names_of(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [
        *found.get_values_for_type(x509.DNSName),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    ]


def _is_meant(host: str, name: str) -> bool:
    """Whether a certificate's name is that of the host; a star stands for the first part of a host's name."""
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        first, _, rest = host.lower().partition(".")
        return name.lower() in (host.lower(), f"*.{rest}" if first and rest else "")


def _authority(layout: DataLayout, now: datetime.datetime) -> tuple[_Authority, bool]:
    """The authority, and whether it was made now."""
    certificate_file, key_file = layout.tls_authority_file, layout.tls_authority_key_file
    if not key_file.exists():  # without its key it can sign nothing
        key = _new_key(key_file)
    else:
        key = _read_key(key_file)
        if certificate_file.exists():
            certificate = _read_authority(certificate_file, key_file, key)
            if certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - _LIFE - _RENEWED_BEFORE:
                return _Authority(certificate, key), False
    certificate = _sign_authority(key, now)
    _write(certificate_file, certificate)
    return _Authority(certificate, key), True


def _read_authority(certificate_file: Path, key_file: Path, key: EllipticCurvePrivateKey) -> x509.Certificate:
    certificate = _read_certificate(certificate_file)
    if certificate is None or not _is_signed_by(certificate, certificate, key):
        raise SettingsError(
            f"{certificate_file} is damaged or not of {key_file}; restore them, or delete both and start again to have another "
            "authority made, which clients that check certificates must be given"
        )
    return certificate


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate, key: EllipticCurvePrivateKey) -> bool:
    """Whether the issuer signed just these bytes, for this key."""
    try:
        certificate.verify_directly_issued_by(issuer)
        return certificate.public_key() == key.public_key()
    except _DAMAGE:
        return False


def _read_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise ValueError("another kind of key")
        # its halves are stored beside each other and may not fit any more
        key.public_key().verify(key.sign(b"", _SIGNATURE), b"", _SIGNATURE)
    except _DAMAGE as error:
        reason = str(error) or "its halves do not fit"
        raise SettingsError(
            f"{path} is damaged ({reason}); restore it, or delete it and start again to have another one made"
        ) from error
    return key


def _new_key(path: Path) -> EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    secret_files.write(path, text.decode().strip())
    return key


def _read_certificate(path: Path) -> x509.Certificate | None:
    """None when there is none that can be read."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (FileNotFoundError, *_DAMAGE):
        return None


def _write(path: Path, certificate: x509.Certificate) -> None:
    secret_files.write(path, certificate.public_bytes(Encoding.PEM).decode().strip())


def _sign_authority(key: EllipticCurvePrivateKey, now: datetime.datetime) -> x509.Certificate:
    name = _name("Logboom's own authority")
    return (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_MAY_DIFFER)
        .not_valid_after(now + _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _certificate(layout: DataLayout, authority: _Authority, names: Sequence[str], now: datetime.datetime) -> bool:
    """See that there is a good certificate; whether one was made."""
    wanted = _alternative_names(names)
    key = _read_key(layout.tls_key_file) if layout.tls_key_file.exists() else _new_key(layout.tls_key_file)
    present = _read_certificate(layout.tls_certificate_file)
    if present is not None and _is_good(present, key, authority, wanted, now):
        return False
    _write(layout.tls_certificate_file, _sign(key, authority, wanted, now))
    return True


def _is_good(
    certificate: x509.Certificate,
    key: EllipticCurvePrivateKey,
    authority: _Authority,
    wanted: x509.SubjectAlternativeName,
    now: datetime.datetime,
) -> bool:
    if not _is_signed_by(certificate, authority.certificate, key):
        return False
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except _DAMAGE:  # nothing that was made here
        return False
    return (
        names == wanted and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - _RENEWED_BEFORE
    )


def _sign(
    key: EllipticCurvePrivateKey, authority: _Authority, names: x509.SubjectAlternativeName, now: datetime.datetime
) -> x509.Certificate:
    issuer = authority.certificate
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]  # daemons show it when they dial, too
    return (
        x509.CertificateBuilder(issuer.subject, _name("Logboom"), key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_MAY_DIFFER)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(names: Sequence[str]) -> x509.SubjectAlternativeName:
    """Hosts as `LOGBOOM_ALLOWED_HOSTS` writes them: names, addresses, and .example.com for a domain with all below it."""
    found: dict[x509.GeneralName, None] = {}
    for name in names:
        host = name.strip("[]")
        try:
            found[x509.IPAddress(ipaddress.ip_address(host))] = None
            continue
        except ValueError:
            pass  # no address, so a name
        for each in (host[1:], f"*{host}") if host.startswith(".") else (host,) if host != "*" else ():
            found[x509.DNSName(_ascii(each))] = None
    return x509.SubjectAlternativeName(found)


def _ascii(host: str) -> str:
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise SettingsError(
            f"{environment.ALLOWED_HOSTS} names {host!r}, for which there can be no certificate: {error}"
        ) from error
