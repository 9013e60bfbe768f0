"""Template filters and tags: how numbers, times and states look. Unknown is a dash, never 0."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django import template
from django.contrib.staticfiles import finders
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

DASH = mark_safe('<span class="unknown" title="not known">–</span>')
THIN = "\u202f"  # narrow, and no line breaks at it

# (tone, icon) of states; a state is always shown as text and icon, never by colour alone
_LOOKS = {
    ("good", "check"): ("healthy", "succeeded", "CONFIRMED", "accepted", "ready"),
    ("good", "crown"): ("leader", "master"),
    ("busy", "clock"): ("starting",),
    ("busy", "play"): ("running",),
    ("calm", "clock"): ("queued", "waiting"),
    ("calm", "stop"): ("stopped", "retired", "skipped", "held"),
    ("warn", "alert"): ("degraded", "UNKNOWN", "warning"),
    ("warn", "clock"): ("candidate", "backing-off"),
    ("warn", "lock"): ("fenced",),
    ("warn", "stop"): ("cancelled", "stopping"),
    ("bad", "cross"): ("down", "unreachable", "failed", "REFUSED", "refused", "critical", "error"),
}
_ANY_OTHER = ("calm", "dot")
TONES = {state: look for look, states in _LOOKS.items() for state in states}


# ---- numbers


@register.filter
def count(value: Any) -> str:
    """A whole number in groups of three digits."""
    if value is None or value == "":
        return DASH
    return f"{int(value):,}".replace(",", THIN)


@register.filter
def short(value: int) -> str:
    """A whole number where there is little room: three digits and a unit."""
    number = float(value)
    for unit in ("", "k", "M", "G"):
        if number < 999.5 or unit == "G":
            break
        number /= 1000
    return f"{number:.0f}{unit}" if not unit or number >= 99.95 else f"{number:.3g}{unit}"


@register.filter
def at_least(text: str, lacks: bool) -> str:
    """A number that is the least one, because a part of the sum is not known."""
    return f"at least {text}" if lacks and text != DASH else text


@register.filter
def rate(value: Any) -> str:
    """A number per second, with as many digits as help."""
    if value is None or value == "":
        return DASH
    number = float(value)
    if number >= 100 or number == 0:
        return count(round(number))
    return f"{number:.1f}" if number >= 1 else f"{number:.2f}"


@register.filter
def size(value: Any) -> str:
    """A number of bytes in binary units."""
    if value is None or value == "":
        return DASH
    number = float(value)
    if abs(number) < 1024:
        return f"{int(number)}{THIN}B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        number /= 1024
        if abs(number) < 1024 or unit == "PiB":
            break
    return f"{number:.1f}{THIN}{unit}"


@register.filter
def share(value: Any) -> str:
    """A part of a whole, from 0 to 1, as a bar with its number; `static/js/report.js` makes the same."""
    if value is None or value == "":
        return DASH
    part = float(value)
    percent = f"{100 * part:.{2 if 0 < part < 0.1 else 1}f}{THIN}%"
    return format_html(
        '<span class="share"><progress value="{}" aria-hidden="true"></progress>{}</span>', part, percent
    )


@register.filter
def dash(value: Any) -> Any:
    """The value, or a dash when it is not known."""
    return DASH if value is None or value == "" else value


# ---- times


# Every moment on a page is a `time` element of one of these two forms, in the viewer's zone; `static/js/times.js` makes the same.
# A value is a datetime, RFC 3339 text, or milliseconds since 1970.


@register.filter
def instant(value: Any) -> str:
    """A moment to the millisecond."""
    moment = _moment(value)
    if moment is None:
        return DASH
    local = timezone.localtime(moment)
    shown = format_html('{}<span class="ms">.{}</span>', f"{local:%Y-%m-%d %H:%M:%S}", _milliseconds(local))
    return _time_element(moment, shown)


@register.filter
def minute(value: Any) -> str:
    """A moment to the minute, for what happens by the minute or long ago."""
    moment = _moment(value)
    return DASH if moment is None else _time_element(moment, f"{timezone.localtime(moment):%Y-%m-%d %H:%M}")


@register.filter
def in_full(value: Any) -> str:
    """A moment with its weekday and zone, as text for a title."""
    moment = _moment(value)
    if moment is None:
        return "not known"
    local = timezone.localtime(moment)
    return f"{local:%a %Y-%m-%d %H:%M:%S}.{_milliseconds(local)} {timezone.get_current_timezone_name()}"


def _time_element(moment: datetime, shown: str) -> SafeString:
    utc = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return format_html('<time datetime="{}" title="{}">{}</time>', utc, in_full(moment), shown)


def _milliseconds(moment: datetime) -> str:
    return f"{moment.microsecond // 1000:03}"


@register.filter
def duration_ms(value: Any) -> str:
    """A length of time."""
    if value is None or value == "":
        return DASH
    ms = int(value)
    if ms < 1000:
        return f"{ms}{THIN}ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f}{THIN}s"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}{THIN}h {minutes}{THIN}min" if hours else f"{minutes}{THIN}min {seconds}{THIN}s"
    return f"{hours // 24} days"


@register.filter
def until(start: Any, end: Any) -> str:
    """How long from one moment to the other; to now when the other is absent."""
    first, last = _moment(start), _moment(end) or timezone.now()
    return DASH if first is None else duration_ms(max(0, int((last - first).total_seconds() * 1000)))


def _moment(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value / 1000, UTC)
    if isinstance(value, str) and value:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


# ---- words

_HISTORY_KINDS = {
    "fault": "faults",
    "election": "election",
    "leader": "controllers' leader",
    "no-master": "no master",
    "refused": "messages refused",
    "replica-down": "replica down",
    "out-of-sync": "out of sync",
    "leaderless": "controllers leaderless",
    "controller-down": "controller down",
    "process-down": "process down",
}


@register.filter
def history_kind(value: Any) -> str:
    """A kind of the history, for a person."""
    return _HISTORY_KINDS.get(str(value), str(value))


_CLIENT_METRICS = {
    "send": "sends",
    "delivery": "from the broker to the client",
    "await": "waits at the client",
    "process": "consumption",
    "span_send": "sends (traced)",
    "span_receive": "receives (traced)",
    "span_process": "consumption (traced)",
}


@register.filter
def client_metric(value: Any) -> str:
    """What clients measured, for a person."""
    return _CLIENT_METRICS.get(str(value), str(value))


# ---- states


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """An icon of the sprite; decoration unless it has a label."""
    address = asset("img/icons.svg")
    if label:
        return format_html(
            '<svg class="icon" role="img" aria-label="{}"><use href="{}#{}"/></svg>', label, address, name
        )
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}#{}"/></svg>', address, name)


@register.simple_tag
def state(value: Any, text: str = "") -> SafeString:
    """A state as icon and word."""
    if value is None or value == "":
        return DASH
    tone, name = TONES.get(str(value), _ANY_OTHER)
    words = text or str(value).replace("_", " ").lower()
    return format_html('<span class="state tone-{}">{}<span>{}</span></span>', tone, icon(name), words)


@register.filter
def tone(value: Any) -> str:
    """The tone of a state, for a class name."""
    return TONES.get(str(value), _ANY_OTHER)[0]


# ---- pieces


@register.simple_tag
def sparkline(history: Sequence[Sequence[Any]], column: int, width: int = 240, height: int = 48) -> SafeString:
    """One column of the rate history as a small filled curve, by the time of each row. A gap stays a gap."""
    points = [(row[0], row[column]) for row in history if len(row) > column]
    known = [float(value) for _, value in points if value is not None]
    if len(known) < 2:
        return mark_safe('<svg class="spark" aria-hidden="true"></svg>')
    top = max(known) or 1.0
    begin = points[0][0]
    step = width / max(1, points[-1][0] - begin)
    runs: list[list[str]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
            continue
        runs[-1].append(f"{(at - begin) * step:.1f},{height - 2 - float(value) / top * (height - 6):.1f}")
    lines = "".join(f'<polyline points="{" ".join(run)}"/>' for run in runs if len(run) > 1)
    areas = "".join(
        f'<polygon points="{run[0].split(",")[0]},{height} {" ".join(run)} {run[-1].split(",")[0]},{height}"/>'
        for run in runs
        if len(run) > 1
    )
    return mark_safe(
        f'<svg class="spark" viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">{areas}{lines}</svg>'
    )


@register.filter
def pretty_json(value: Any) -> str:
    """A value laid out as JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, default=str)


@register.filter
def get(mapping: Any, key: Any) -> Any:
    """A value of a mapping by a key that only the template knows."""
    return mapping.get(key) if hasattr(mapping, "get") else None


@register.filter
def get_all(mapping: Any, key: Any) -> list[Any]:
    """All values of a key, from a form's data or from stored values."""
    if hasattr(mapping, "getlist"):
        return list(mapping.getlist(key))
    value = mapping.get(key) if hasattr(mapping, "get") else None
    return list(value) if isinstance(value, list) else []


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """The page's query string with some parameters changed; None removes one. For links that sort, filter and turn pages."""
    parameters = context["query"].copy()
    for name, value in changes.items():
        parameters.pop(name, None)
        if value is not None:
            parameters[name] = str(value)
    encoded = parameters.urlencode()
    return f"?{encoded}" if encoded else "?"


@register.simple_tag
def asset(name: str) -> str:
    """The address of a static file, with a hash of its content so that browsers may keep it."""
    return f"{static(name)}?v={_content_hash(name)}"


@cache
def _content_hash(name: str) -> str:
    found = finders.find(name)
    assert isinstance(found, str), f"no static file {name}"
    with open(found, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:12]
