"""The run as one page: a table, and for each scenario a timeline of sends, faults and roles. One file, nothing to load (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from math import ceil
from pathlib import Path
from typing import Any, Final

from tests.chaos.report import summary

_WIDTH: Final = 1120
_LEFT: Final = 64
_RIGHT: Final = 16
_TOP: Final = 34
_PLOT: Final = 132
_LANE: Final = 17
_GAP: Final = 14
_TICKS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)

_STYLE: Final = Path(__file__).with_name("timeline.css").read_text()

_LEGEND: Final = (
    ("--ok", "sends acknowledged a second"),
    ("--failed", "failed"),
    ("--unknown", "outcome unknown"),
    ("--fault-edge", "fault in force"),
    ("--chief", "master"),
    ("--other", "replica"),
    ("--leader", "leading controller"),
    ("--follower", "following controller"),
    ("--silent", "does not answer"),
)
_HEADS: Final = (
    *("scenario", "what", "faults", "ok", "failed", "unknown", "lost", "again"),
    *("RTO p50", "RTO max", "limit", "gRPC", "rejoin", "elections", ""),
)


def page(document: Mapping[str, Any]) -> str:
    """The whole page."""
    options = document["options"]
    told = (
        f"{document['started']} · seed {options['seed']} · {options['rounds']} × "
        f"({options['fault_s']:g} s fault + {options['heal_s']:g} s healthy)"
        + "".join(f" · {each}" for each in options["broker_settings"])
    )
    legend = "".join(f'<span><i style="background:var({name})"></i>{escape(text)}</span>' for name, text in _LEGEND)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Chaos run, seed {options['seed']}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>Chaos run</h1><p class="sub">{escape(told)}</p>{_tiles(document)}{_table(document["scenarios"])}'
        f'<div class="legend">{legend}</div>{"".join(map(_card, document["scenarios"]))}</main></body></html>\n'
    )


def _tiles(document: Mapping[str, Any]) -> str:
    total = summary(document)
    all_passed = total["passed"] == total["scenarios"]
    tiles = (
        (f"{total['passed']} / {total['scenarios']}", "scenarios passed", "good" if all_passed else "bad"),
        (f"{total['faults']:,}", "faults injected", ""),
        (f"{total['operations']:,}", "sends tried", ""),
        (f"{total['acknowledged']:,}", "acknowledged", ""),
        (f"{total['lost']:,}", "acknowledged and lost", "good" if not total["lost"] else "bad"),
    )
    body = "".join(
        f'<div class="tile"><b class="{kind}">{value}</b><span>{text}</span></div>' for value, text, kind in tiles
    )
    return f'<div class="tiles">{body}</div>'


def _table(scenarios: Sequence[Mapping[str, Any]]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in _HEADS)
    rows = []
    for each in scenarios:
        cells = [
            f'<a href="#{escape(each["scenario"])}">{escape(each["scenario"])}</a>',
            escape(each["title"]),
            *(f"{each[name]:,}" for name in ("faults", "ok", "failed", "unknown")),
            f'<span class="{"bad" if each["lost"] else ""}">{each["lost"]}</span>',
            f"{each['duplicated']:,}",
            *(
                _seconds(each[name])
                for name in ("rto_p50_s", "rto_max_s", "rto_limit_s", "grpc_pause_max_s", "rejoin_max_s")
            ),
            f"{max(each['elections'], 0)}",
            _chip(each),
        ]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return (
        f'<div class="card scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _chip(scenario: Mapping[str, Any]) -> str:
    return f'<span class="chip {"good" if scenario["passed"] else "bad"}">{"passed" if scenario["passed"] else "failed"}</span>'


def _card(scenario: Mapping[str, Any]) -> str:
    facts = " · ".join(
        (
            *(f"<b>{scenario[name]:,}</b> {name}" for name in ("ok", "failed", "unknown", "lost")),
            f"RTO <b>{_seconds(scenario['rto_max_s'])}</b> (limit {_seconds(scenario['rto_limit_s'])})",
            f"gRPC client paused <b>{_seconds(scenario['grpc_pause_max_s'])}</b>",
            f"whole again after <b>{_seconds(scenario['rejoin_max_s'])}</b>",
        )
    )
    problems = "".join(
        f'<div class="problems"><b>{escape(name)}</b> {escape(problem)}</div>'
        for name, found in scenario["problems"].items()
        for problem in found
    )
    evidence = "".join(
        f"<li{'' if item['in_force'] else ' class=no'}>{escape(window['name'])}: {escape(item['what'])}</li>"
        for window in scenario["windows"]
        for item in window["evidence"]
    )
    drawn = "".join(
        f"<li>{escape(window['name'])}, {window['start_s']:.2f} to {window['end_s']:.2f} s: "
        f"{escape(json.dumps(window['details']))}</li>"
        for window in scenario["windows"]
    )
    return (
        f'<section class="card" id="{escape(scenario["scenario"])}"><div class="head"><h2><span class="id">'
        f"{escape(scenario['scenario'])}</span>{escape(scenario['title'])}</h2>{_chip(scenario)}</div>"
        f'<p class="facts">{facts}</p>{problems}<div class="scroll">{_picture(scenario)}</div>'
        f"<details><summary>what was injected, and how it is known that it was in force</summary>"
        f"<ul>{drawn}{evidence}</ul></details></section>"
    )


class _Scale:
    """Seconds to pixels."""

    def __init__(self, length_s: float) -> None:
        self.length_s = max(length_s, 1.0)

    def x(self, at_s: float) -> float:
        inside = min(max(at_s, 0.0), self.length_s)
        return round(_LEFT + inside / self.length_s * (_WIDTH - _LEFT - _RIGHT), 1)


def _picture(scenario: Mapping[str, Any]) -> str:
    scale = _Scale(scenario["length_s"])
    lanes = scenario["lanes"]
    bottom = _TOP + _PLOT + _GAP + _LANE * (len(lanes) + 1) + 6
    parts = [
        *_fault_bands(scenario, scale, bottom),
        *_axis(scale, bottom),
        *_rates(scenario["rates"], scale),
        *_lanes(lanes, scale),
        *_sets(scenario, scale, len(lanes)),
        *_end_of_sends(scenario, scale),
        *_masters(scenario, scale, bottom),
    ]
    label = f"Timeline of {scenario['scenario']}: {scenario['title']}"
    return f'<svg viewBox="0 0 {_WIDTH} {bottom + 22}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _fault_bands(scenario: Mapping[str, Any], scale: _Scale, bottom: float) -> list[str]:
    parts = []
    for window in scenario["windows"]:
        left, right = scale.x(window["start_s"]), scale.x(window["end_s"])
        told = escape(f"{window['name']}: {json.dumps(window['details'])}")
        parts.append(
            f'<rect x="{left}" y="{_TOP - 6}" width="{max(right - left, 1):.1f}" height="{bottom - _TOP + 6}" '
            f'fill="var(--fault)"><title>{told}</title></rect>'
        )
        parts += [
            f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{bottom}" stroke="var(--fault-edge)"/>' for x in (left, right)
        ]
        parts.append(f'<text class="fault-name" x="{left + 5}" y="{_TOP + 6}">{escape(_headline(window))}</text>')
    return parts


def _headline(window: Mapping[str, Any]) -> str:
    """The fault in a few words."""
    details = window["details"]
    words = []
    for name in ("killed", "frozen", "cut", "80 % loss", "2 s late", "clock", "elected", "full"):
        if name in details:
            what = details[name]
            listed = list(what) if isinstance(what, (list, tuple, dict)) else [what]
            shown = ", ".join(map(str, listed[:3])) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
            words.append(f"{name} {shown}")
    return "; ".join(words) or str(window["name"])


def _axis(scale: _Scale, bottom: float) -> list[str]:
    step = next(tick for tick in _TICKS if scale.length_s / tick <= 14 or tick == _TICKS[-1])
    parts = []
    for second in range(0, int(scale.length_s) + 1, step):
        x = scale.x(second)
        parts.append(f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}" stroke="var(--line)" stroke-width=".6"/>')
        parts.append(f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{second} s</text>')
    return parts


def _rates(rates: Mapping[str, Any], scale: _Scale) -> list[str]:
    step_s = rates["step_s"]
    base = _TOP + _PLOT
    # a burst (a client that is refused at once, again and again) must not press everything else flat
    usual = sorted(rates["ok"])[int(len(rates["ok"]) * 0.98)] if rates["ok"] else 1.0
    top = max(_nice(usual * 1.15), 4)

    def y(value: float) -> float:
        return round(base - min(value, top) / top * (_PLOT - 16), 1)

    parts = [
        f'<text x="{_LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>'
        f'<line x1="{_LEFT}" y1="{y(value)}" x2="{_WIDTH - _RIGHT}" y2="{y(value)}" stroke="var(--line)" stroke-width=".6"/>'
        for value in (0, top / 2, top)
    ]
    points = [(scale.x((place + 0.5) * step_s), y(value)) for place, value in enumerate(rates["ok"])]
    line = " ".join(f"{x},{height}" for x, height in points)
    if points:
        parts.append(f'<polygon points="{points[0][0]},{base} {line} {points[-1][0]},{base}" fill="var(--ok-soft)"/>')
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="var(--ok)" stroke-width="1.6" stroke-linejoin="round"/>'
        )
    for place in range(len(rates["ok"])):
        left, right = scale.x(place * step_s), scale.x((place + 1) * step_s)
        floor = float(base)
        for name in ("failed", "unknown"):
            value = rates[name][place]
            if value:
                height = max(base - y(value), 2.0)
                floor -= height
                parts.append(
                    f'<rect x="{left + 0.4:.1f}" y="{floor:.1f}" width="{max(right - left - 0.8, 1):.1f}" height="{height:.1f}" '
                    f'fill="var(--{name})" opacity=".85"><title>{value * step_s:g} {name} at {place * step_s:g} s</title></rect>'
                )
    return parts


def _nice(value: float) -> float:
    """A round number not below the value."""
    unit = 1.0
    while unit * 10 < value:
        unit *= 10
    return next((unit * step for step in (1, 2, 4, 5, 6, 8, 10) if unit * step >= value), ceil(value))


def _lanes(lanes: Mapping[str, Sequence[Mapping[str, Any]]], scale: _Scale) -> list[str]:
    colours = {
        "master": "--chief",
        "replica": "--other",
        "leader": "--leader",
        "follower": "--follower",
        "silent": "--silent",
    }
    parts = []
    for number, (node, segments) in enumerate(lanes.items()):
        top = _TOP + _PLOT + _GAP + number * _LANE
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end">{escape(node)}</text>')
        for each in segments:
            left, right = scale.x(each["start_s"]), scale.x(each["end_s"])
            parts.append(
                f'<rect x="{left}" y="{top}" width="{max(right - left, 0.8):.1f}" height="{_LANE - 5}" rx="2" '
                f'fill="var({colours[each["state"]]})"><title>{escape(node)}: {each["state"]} from {each["start_s"]:.2f} s '
                f"to {each['end_s']:.2f} s</title></rect>"
            )
    return parts


def _sets(scenario: Mapping[str, Any], scale: _Scale, number: int) -> list[str]:
    """How many members the sync-state set had; the names are in the tip."""
    top = _TOP + _PLOT + _GAP + number * _LANE
    sets = scenario["sets"]
    parts = [f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end">in sync</text>']
    ends_s = [*(each["at_s"] for each in sets[1:]), scenario["length_s"]]
    for each, end_s in zip(sets, ends_s, strict=False):
        left, right = scale.x(each["at_s"]), scale.x(end_s)
        size = len(each["members"])
        parts.append(
            f'<rect x="{left}" y="{top}" width="{max(right - left, 0.8):.1f}" height="{_LANE - 5}" rx="2" fill="var(--ok)" '
            f'opacity="{min(0.12 + 0.14 * size, 0.7):.2f}"><title>{escape(", ".join(each["members"]))}</title></rect>'
        )
        if right - left > 14:
            parts.append(f'<text class="count" x="{left + 5}" y="{top + 10}">{size}</text>')
    return parts


def _end_of_sends(scenario: Mapping[str, Any], scale: _Scale) -> list[str]:
    """From here on consumers catch up, and everything is read back."""
    x = scale.x(scenario["sends_end_s"])
    return [
        f'<line x1="{x}" y1="{_TOP + 8}" x2="{x}" y2="{_TOP + _PLOT}" stroke="var(--soft)" stroke-dasharray="1 3"/>',
        f'<text x="{x + 5}" y="{_TOP + 18}">sends end; read back</text>',
    ]


def _masters(scenario: Mapping[str, Any], scale: _Scale, bottom: float) -> list[str]:
    """A mark where each master was first named."""
    parts = []
    last_x = float(_WIDTH)
    for each in reversed(scenario["masters"]):
        x = scale.x(each["at_s"])
        told = f"{each['node']}, epoch {each['epoch']}"
        parts.append(
            f'<line x1="{x}" y1="{_TOP - 14}" x2="{x}" y2="{bottom}" stroke="var(--chief)" stroke-dasharray="3 3">'
            f"<title>{escape(told)}</title></line>"
        )
        if last_x - x > 46:  # where many follow one another the lines tell enough
            parts.append(
                f'<text class="role" x="{x + 4}" y="{_TOP - 18}">{escape(each["node"])} e{each["epoch"]}</text>'
            )
            last_x = x
    return parts
