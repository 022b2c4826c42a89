"""JSON as a tree of ``<details>`` elements: escaped, and limited in size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

OPEN_DEPTH = 2
MOST_NODES = 2_000
MOST_CHARS = 2_000


def json_tree(value: Any) -> SafeString:
    """The value as HTML. Items beyond ``MOST_NODES`` are left out, which is stated in the tree."""
    return _node(value, 0, _Budget(MOST_NODES))


class _Budget:
    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


def _node(value: Any, depth: int, budget: _Budget) -> SafeString:
    if not isinstance(value, dict | list) or not value:
        return _leaf(value)
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    lines = format_html_join("", "<li>{}{}</li>", _lines(items, isinstance(value, dict), depth, budget))
    kind = "{}" if isinstance(value, dict) else "[]"
    size = ngettext("%d item", "%d items", len(items)) % len(items)
    return format_html(
        '<details class="jq-json"{}><summary><code>{}</code> {}</summary><ul>{}</ul></details>',
        SafeString(" open") if depth < OPEN_DEPTH else "",
        kind,
        size,
        lines,
    )


def _lines(
    items: list[tuple[Any, Any]], named: bool, depth: int, budget: _Budget
) -> Iterator[tuple[SafeString, SafeString]]:
    for place, (name, value) in enumerate(items):
        if not budget.take():
            yield format_html("<em>{}</em>", _("… %d more, not shown") % (len(items) - place)), SafeString("")
            return
        label = json.dumps(name, ensure_ascii=False) if named else str(name)
        yield format_html('<span class="jq-json-name">{}</span> ', label), _node(value, depth + 1, budget)


def _leaf(value: Any) -> SafeString:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > MOST_CHARS:
        text = text[:MOST_CHARS] + _("… (%d characters)") % len(text)
    kind = "text" if isinstance(value, str) else "value"
    return format_html('<code class="jq-json-{}">{}</code>', kind, text)
