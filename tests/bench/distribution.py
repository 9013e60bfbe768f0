"""A distribution of times as a picture: what part took at most so long, on a logarithmic scale. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

import numpy as np

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 28, 44, 44
_COLOURS: Final = ("#0b6e63", "#b35c00", "#5b4fa2")
_MARKS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000)
_PARTS: Final = (0, 0.25, 0.5, 0.75, 0.99, 1)
_POINTS: Final = 120


def svg(title: str, curves: Mapping[str, Any]) -> str:
    """A picture with a curve for each of these samples, in milliseconds; what is below the first mark is drawn there."""
    largest_ms = max(float(np.max(each)) for each in curves.values())
    marks_ms = [mark for n, mark in enumerate(_MARKS_MS) if n < 4 or _MARKS_MS[n - 1] < largest_ms]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for mark_ms in marks_ms:
        x = _x(mark_ms, marks_ms[-1])
        lines.append(f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_words(mark_ms)}</text>')
    for part in _PARTS:
        y = _y(part)
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        if part != 1:
            lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * part:g} %</text>')
    for number, (name, values) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        lines.append(f'<path d="{_path(values, marks_ms[-1])}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = _LEFT + number * (_WIDTH - _LEFT) // len(curves)
        lines.append(f'<text x="{at}" y="36" fill="{colour}">{escape(name)}</text>')
    lines.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">at most so late</text>')
    return "\n".join([*lines, "</svg>", ""])


def _path(values: Any, most_ms: float) -> str:
    """Steps of equal parts, and finer ones where few are latest."""
    parts = np.concatenate([np.linspace(0, 0.98, _POINTS // 2), 1 - np.geomspace(0.02, 0.0005, _POINTS // 2), [1]])
    found = zip(np.percentile(values, 100 * parts), parts, strict=True)
    return "M" + "L".join(f"{_x(value, most_ms):.1f} {_y(part):.1f}" for value, part in found)


def _x(value_ms: float, most_ms: float) -> float:
    inside = min(max(value_ms, _MARKS_MS[0]), most_ms)
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * float(np.log(inside / _MARKS_MS[0]) / np.log(most_ms / _MARKS_MS[0]))


def _y(part: float) -> float:
    return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _words(mark_ms: int) -> str:
    return f"{mark_ms} ms" if mark_ms < 1000 else f"{mark_ms // 1000} s"
