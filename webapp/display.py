"""Template filters and tags: how numbers, times and states look. Unknown is a dash, never 0."""

from __future__ import annotations

from django import template

register = template.Library()
