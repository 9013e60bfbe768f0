"""The limit on guesses of a password: per person and source a wait that grows, and so many per source in all.

The source is the device that a valid device cookie names (`webapp.accounts.devices`), or the session in which somebody proves
again who he is: who logged in here before is not kept out by others' guesses, wherever they come from. Without one it is the
address, of IPv6 its network of 64 bits.

An attempt is counted before the password is looked at, so parallel guesses cannot slip past; a success takes its own attempt and
the person's earlier ones from that source back out.
"""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from webapp.accounts.models import LoginAttempt
from webapp.errors import TooMany

WINDOW = timedelta(minutes=15)  # for a source in all; and the longest wait
REMEMBERED = timedelta(hours=12)  # of a person at a source
FREE = 5
FIRST_WAIT = timedelta(seconds=15)
PER_SOURCE = 30
KEPT = timedelta(days=1)


def begin(username: str, ip: str, device: str = "") -> LoginAttempt:
    """Count an attempt; raises TooMany, with the time when the next one is allowed, when there were too many failed ones."""
    username = username.strip().lower()[:150]
    source = device or source_of(ip)
    with transaction.atomic():
        now = timezone.now()
        _check_person(username, source, now)
        if not device:
            _check_source(source, now)
        LoginAttempt.objects.filter(at__lt=now - KEPT).delete()
        return LoginAttempt.objects.create(username=username, ip=source, at=now)


def succeeded(attempt: LoginAttempt) -> None:
    """The password was right."""
    LoginAttempt.objects.filter(username=attempt.username, ip=attempt.ip, at__lte=attempt.at).update(succeeded=True)


def source_of(ip: str) -> str:
    """What one can have many addresses in counts as one."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return ip
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return ip


def wait_after(failures: int) -> timedelta:
    """How long after the last of so many failed attempts the next one has to come."""
    if failures < FREE:
        return timedelta()
    return min(FIRST_WAIT * 2 ** min(failures - FREE, 16), WINDOW)


def _check_person(username: str, source: str, now: datetime) -> None:
    failed = LoginAttempt.objects.filter(username=username, ip=source, succeeded=False, at__gt=now - REMEMBERED)
    last = failed.order_by("-at").values_list("at", flat=True).first()
    if last is not None:
        _wait_until(last + wait_after(failed.count()), now)


def _check_source(source: str, now: datetime) -> None:
    failed = LoginAttempt.objects.filter(ip=source, succeeded=False, at__gt=now - WINDOW).order_by("-at")
    times = list(failed.values_list("at", flat=True)[:PER_SOURCE])
    if len(times) == PER_SOURCE:
        _wait_until(times[-1] + WINDOW, now)


def _wait_until(again: datetime, now: datetime) -> None:
    if again <= now:
        return
    wait_s = max(1, int((again - now).total_seconds()) + 1)
    minutes = -(-wait_s // 60)
    raise TooMany(
        f"Too many failed attempts. Try again at {again:%H:%M:%S} UTC (in {minutes} minute{'s' if minutes > 1 else ''}).",
        retry_after_s=wait_s,
    )
