"""Cutting one condition, lock or order out of the text of a SQL statement.

The text may be a fragment, and may contain single characters that stand for what is filled in later; keywords are those
in capital letters. Nothing here knows Python or the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

AND = "AND term"
SKIP_LOCKED = "SKIP LOCKED"
FOR_UPDATE = "FOR UPDATE"
ORDER_BY = "ORDER BY"

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|%\(\w+\)s|%s|[A-Za-z_]\w*|[(),;]|\S")
_POSITIONAL = re.compile(r"%s(?:::[a-z0-9_]+(?:\[\])?)?")
_SKIP_LOCKED = re.compile(r"\s*\bSKIP LOCKED\b")
_FOR_UPDATE = re.compile(r"\s*\bFOR (?:NO KEY UPDATE|UPDATE|SHARE|KEY SHARE)\b(?: OF \S+)?(?: SKIP LOCKED| NOWAIT)?")
_OPEN, _CLOSE = {"(", "CASE"}, {")", "END"}
_BEFORE_A_TERM = {"WHERE", "ON", "HAVING", "WHEN", "THEN", "ELSE", "OR", "SELECT", "RETURNING", ",", ";"}
_AFTER_A_TERM = {
    "AND", "OR", "WHERE", "ORDER", "GROUP", "HAVING", "LIMIT", "OFFSET", "FOR", "FROM", "RETURNING", "UNION", "JOIN",
    "LEFT", "CROSS", "ON", "WHEN", "THEN", "ELSE", "AS", "WINDOW", ",", ";",
}  # fmt: skip
_AFTER_AN_ORDER = {"LIMIT", "OFFSET", "FETCH", "FOR", "RETURNING", "UNION", "ROWS", "RANGE", "ON", ";"}


@dataclass(frozen=True)
class Cut:
    """What is taken out of a text, and what stands in its place."""

    kind: str
    start: int
    end: int
    instead: str = ""

    def applied_to(self, text: str) -> str:
        return text[: self.start] + self.instead + text[self.end :]


@dataclass(frozen=True)
class _Token:
    text: str
    start: int
    end: int
    depth: int  # an opening parenthesis and its closing one are as deep as what is between them


def cuts(text: str) -> list[Cut]:
    """Every cut of this text, in the order of their beginnings."""
    tokens = _tokens(text)
    quoted = [(token.start, token.end) for token in tokens if token.text[0] in "'\""]
    found = [
        *(Cut(SKIP_LOCKED, match.start(), match.end()) for match in _SKIP_LOCKED.finditer(text)),
        *(Cut(FOR_UPDATE, match.start(), match.end()) for match in _FOR_UPDATE.finditer(text)),
        *_orders(tokens),
        *_terms(text, tokens),
    ]
    outside = [cut for cut in found if not any(start <= cut.start < end for start, end in quoted)]
    return sorted(outside, key=lambda cut: (cut.start, cut.end))


def _tokens(text: str) -> list[_Token]:
    """The words, strings and signs; the AND of a BETWEEN joins no terms, so it counts as part of that."""
    tokens, depth = [], 0
    between: set[int] = set()
    for match in _TOKEN.finditer(text):
        word = match.group()
        depth += word in _OPEN
        if word == "BETWEEN":
            between.add(depth)
        elif word == "AND" and depth in between:
            between.remove(depth)
            word = "BETWEEN"
        tokens.append(_Token(word, match.start(), match.end(), depth))
        depth -= word in _CLOSE
    return tokens


def _orders(tokens: list[_Token]) -> Iterator[Cut]:
    for place, token in enumerate(tokens[:-1]):
        if token.text == "ORDER" and tokens[place + 1].text == "BY":
            end = _end(tokens, place + 2, token.depth, _AFTER_AN_ORDER)
            yield Cut(ORDER_BY, token.start, tokens[end - 1].end)


def _terms(text: str, tokens: list[_Token]) -> Iterator[Cut]:
    """Each operand of AND, with the AND that joins it to its neighbour."""
    for place, token in enumerate(tokens):
        if token.text != "AND":
            continue
        end = _end(tokens, place + 1, token.depth, _AFTER_A_TERM)
        if end > place + 1:
            term = text[token.end : tokens[end - 1].end]
            yield Cut(AND, token.start, tokens[end - 1].end, _same_parameters("AND {}", term))
        begin = _begin(tokens, place - 1, token.depth)
        if begin < place and end > place + 1 and not _is_and(tokens, begin - 1):
            term = text[tokens[begin].start : token.start]
            yield Cut(AND, tokens[begin].start, token.end, _same_parameters("{} AND", term))


def _end(tokens: list[_Token], place: int, depth: int, stops: set[str]) -> int:
    """The place behind the last token of what begins here."""
    while place < len(tokens):
        token = tokens[place]
        if token.depth < depth or (token.depth == depth and token.text in _CLOSE):
            break
        if token.depth == depth and token.text in stops and not _is_distinct_from(tokens, place):
            break
        place += 1
    return place


def _begin(tokens: list[_Token], place: int, depth: int) -> int:
    """The place of the first token of what ends here."""
    while place >= 0:
        token = tokens[place]
        if token.depth < depth or (token.depth == depth and token.text in _OPEN | _BEFORE_A_TERM | {"AND"}):
            break
        place -= 1
    return place + 1


def _is_and(tokens: list[_Token], place: int) -> bool:
    return place >= 0 and tokens[place].text == "AND"


def _is_distinct_from(tokens: list[_Token], place: int) -> bool:
    return tokens[place].text == "FROM" and tokens[place - 1].text == "DISTINCT"


def _same_parameters(joined: str, term: str) -> str:
    """A term that is always true and takes the positional parameters of this one; none, if it has none."""
    taken = [f"({parameter})::text IS NULL OR" for parameter in _POSITIONAL.findall(term)]
    return joined.format(f"({' '.join(taken)} true)") if taken else ""
