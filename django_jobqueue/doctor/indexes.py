"""Our indexes: whether each that the models declare is there, valid, on every part, and what it should be."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connections, models, transaction
from django.db.models import UniqueConstraint

from ..engine.databases import execute, rows
from ..partitions import PARENT
from .findings import Finding, Level, Limits

FIX = "manage.py jobs doctor --fix"
APP = "jobqueue"

# ----------------------------------------------------------------------------------------------- what there should be

_CREATE = re.compile(
    r'^CREATE (?P<unique>UNIQUE )?INDEX "(?P<name>[^"]+)" ON "(?P<table>[^"]+)" (?P<rest>.*)$', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Declared:
    """An index, or a constraint that is one, as a model declares it."""

    name: str
    table: str
    unique: bool
    rest: str  # of its definition, after the table's name
    constraint: str = ""  # what makes a constraint of the index

    def create(self, *, name: str = "", table: str = "", how: str = "CONCURRENTLY ", only: str = "") -> str:
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        return f'CREATE {kind} {how}"{name or self.name}" ON {only}"{table or self.table}" {self.rest}'

    def part_name(self, part: str) -> str:
        """The name of its piece on a part of the table; short enough, and unique however long the part's name."""
        digest = hashlib.sha256(f"{part} {self.name}".encode()).hexdigest()[:10]
        return f"{self.name[:50]}_{digest}"


def our_models() -> list[type[models.Model]]:
    found = apps.get_app_config(APP).get_models(include_auto_created=True)
    return [model for model in found if not model._meta.proxy and model._meta.managed]


def declared_indexes(using: str) -> list[Declared]:
    """By name, as Django would create them."""
    found = []
    editor: Any = connections[using].schema_editor(collect_sql=True)
    for model in our_models():
        statements = [statement for statement in editor._model_indexes_sql(model) if statement is not None]
        for constraint in model._meta.constraints:
            if isinstance(constraint, UniqueConstraint) and constraint.condition is not None:
                statements.append(constraint.create_sql(model, editor))
            elif isinstance(constraint, UniqueConstraint):
                found.append(_plain_unique(model, constraint))
        found += [_parsed(str(statement)) for statement in statements]
    return found


def _parsed(sql: str) -> Declared:
    match = _CREATE.match(sql)
    if match is None:
        raise ValueError(f"Django wrote an index in a way that is not understood: {sql}")
    return Declared(match["name"], match["table"], bool(match["unique"]), match["rest"])


def _plain_unique(model: type[models.Model], constraint: UniqueConstraint) -> Declared:
    columns = ", ".join(f'"{model._meta.get_field(name).column}"' for name in constraint.fields)  # type: ignore[union-attr]
    table = model._meta.db_table
    makes = f'ALTER TABLE "{table}" ADD CONSTRAINT "{constraint.name}" UNIQUE USING INDEX "{constraint.name}"'
    return Declared(constraint.name, table, True, f"({columns})", makes)


# ------------------------------------------------------------------------------------------------------ what there is

# The indexes of our tables and of the parts of the job table; an index of a part may be a piece of the table's.
INDEXES = """
SELECT t.relname, i.relname, x.indisvalid, x.indisunique, x.indisprimary, p.relname,
    EXISTS (SELECT 1 FROM pg_stat_progress_create_index b WHERE b.index_relid = i.oid),
    EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conindid = i.oid)
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
LEFT JOIN pg_inherits h ON h.inhrelid = i.oid LEFT JOIN pg_class p ON p.oid = h.inhparent
WHERE t.oid = ANY(%s::regclass[])
    OR t.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'jobqueue_job'::regclass)
"""
PARTS = """
SELECT c.relname FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
WHERE h.inhparent = 'jobqueue_job'::regclass AND c.relkind = 'r' ORDER BY 1
"""


class Index(NamedTuple):
    table: str
    name: str
    valid: bool
    unique: bool
    primary: bool
    piece_of: str | None
    being_built: bool
    of_constraint: bool


class Catalog:
    """The indexes that exist, at one moment."""

    def __init__(self, using: str) -> None:
        tables = [f'"{model._meta.db_table}"' for model in our_models()]
        self.using = using
        self.indexes = [Index(*row) for row in rows(using, INDEXES, [tables])]
        self.parts = [row[0] for row in rows(using, PARTS)]
        self.named = {index.name: index for index in self.indexes}

    def piece(self, declared: Declared, part: str) -> Index | None:
        found = (i for i in self.indexes if i.table == part and i.piece_of == declared.name)
        return next(found, None)


def indexes(using: str, limits: Limits) -> Iterator[Finding]:
    catalog = Catalog(using)
    declared = declared_indexes(using)
    for wanted in declared:
        yield from _judged(catalog, wanted)
    yield from _leftovers(catalog, {wanted.name for wanted in declared}, declared)
    yield from _primary_keys(catalog)


def _judged(catalog: Catalog, wanted: Declared) -> Iterator[Finding]:
    index = catalog.named.get(wanted.name)
    if wanted.table == PARENT:
        pieces = {part: catalog.piece(wanted, part) for part in catalog.parts}
        if index is None or not index.valid or any(piece is None or not piece.valid for piece in pieces.values()):
            yield _partitioned(catalog, wanted, index, pieces)
    elif index is None:
        yield _missing(catalog.using, wanted)
    elif not index.valid and not index.being_built:
        yield _invalid(catalog.using, wanted)
    elif wanted.constraint and not index.of_constraint:
        yield _only_an_index(catalog.using, wanted)


def _missing(using: str, wanted: Declared) -> Finding:
    sql = (wanted.create(), wanted.constraint) if wanted.constraint else (wanted.create(),)
    return _finding(using, "missing_index", wanted, f"The index {wanted.name} is missing", sql)


def _invalid(using: str, wanted: Declared) -> Finding:
    text = f"The index {wanted.name} is invalid"
    return _finding(using, "invalid_index", wanted, text, (f'REINDEX INDEX CONCURRENTLY "{wanted.name}"',))


def _only_an_index(using: str, wanted: Declared) -> Finding:
    return _finding(using, "missing_constraint", wanted, f"{wanted.name} is no constraint yet", (wanted.constraint,))


def _partitioned(catalog: Catalog, wanted: Declared, index: Index | None, pieces: dict[str, Index | None]) -> Finding:
    """The table's own first, without building anything; then each part's, without stopping anybody; then together.

    The table's becomes valid by itself when the last piece is attached.
    """
    sql = [] if index is not None else [wanted.create(how="", only="ONLY ")]
    broken = [part for part, piece in pieces.items() if piece is None or not piece.valid]
    for part in broken:
        piece = pieces[part]
        if piece is not None:
            sql.append(f'REINDEX INDEX CONCURRENTLY "{piece.name}"')
            name = piece.name
        else:
            name = wanted.part_name(part)
            if name in catalog.named:
                sql.append(f'DROP INDEX CONCURRENTLY "{name}"')
            sql.append(wanted.create(name=name, table=part))
        sql.append(f'ALTER INDEX "{wanted.name}" ATTACH PARTITION "{name}"')
    what = "missing" if index is None or any(pieces[part] is None for part in broken) else "invalid"
    where = "" if index is None else f" on {', '.join(broken[:5])}{' and others' if len(broken) > 5 else ''}"
    return _finding(
        catalog.using, f"{what}_index", wanted, f"The index {wanted.name} is {what}{where}", tuple(sql), parts=broken
    )


def _finding(using: str, code: str, wanted: Declared, title: str, sql: tuple[str, ...], **facts: Any) -> Finding:
    law = (
        "It is a law of the queue: without it, two jobs may do what only one may."
        if wanted.unique
        else "Without it, verbs read whole tables."
    )
    return Finding(
        code,
        Level.ERROR,
        title,
        f"{law} It was dropped, or its CREATE INDEX CONCURRENTLY failed. It is built again without stopping anybody.",
        FIX,
        {"index": wanted.name, "table": wanted.table, **facts},
        using,
        sql=sql,
    )


def _leftovers(catalog: Catalog, names: set[str], declared: list[Declared]) -> Iterator[Finding]:
    """Invalid indexes that nobody declared: what a cancelled build left behind."""
    ours = names | {wanted.part_name(part) for wanted in declared for part in catalog.parts}
    for index in catalog.indexes:
        if index.valid or index.being_built or index.primary or index.piece_of or index.name in names:
            continue
        half_done = index.name in ours
        drop = f'DROP INDEX CONCURRENTLY "{index.name}"'
        yield Finding(
            "leftover_index",
            Level.WARNING,
            f"{index.name} on {index.table} is an invalid leftover",
            "A build of it was cancelled or failed. Every write keeps it up to date and no query can use it."
            + (" It is built anew besides." if half_done else ""),
            FIX,
            {"index": index.name, "table": index.table},
            catalog.using,
            sql=() if half_done else (drop,),
        )


def _primary_keys(catalog: Catalog) -> Iterator[Finding]:
    having = {index.table for index in catalog.indexes if index.primary and index.valid}
    for model in our_models():
        table = model._meta.db_table
        if table not in having:
            key = f'"{model._meta.pk.column}"' + (', "queue_id"' if table == PARENT else "")
            sql = f'ALTER TABLE "{table}" ADD CONSTRAINT "{table}_pkey" PRIMARY KEY ({key})'
            yield Finding(
                "missing_primary_key",
                Level.ERROR,
                f"{table} has no primary key",
                "Nothing finds its rows, and nothing keeps them apart. Building it stops all writes while it lasts.",
                f"{sql};",
                {"table": table},
                catalog.using,
            )


# -------------------------------------------------------------------------------------------------------- definitions

DEFINITIONS = """
SELECT i.relname, pg_get_indexdef(i.oid) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
WHERE x.indrelid = ANY(%s::regclass[])
"""


def index_definitions(using: str, limits: Limits) -> Iterator[Finding]:
    """Indexes that have the right name and are another index, by what the server itself makes of the declaration."""
    declared = declared_indexes(using)
    there = _definitions(using, {wanted.table for wanted in declared})
    expected = _as_the_server_says(using, declared)
    for wanted in declared:
        if wanted.name in there and there[wanted.name] != expected[wanted.name]:
            yield _other(using, wanted, there[wanted.name], expected[wanted.name])


def _definitions(using: str, tables: Iterable[str]) -> dict[str, str]:
    found = rows(using, DEFINITIONS, [[f'"{table}"' for table in tables]])
    return {name: _AFTER_TABLE.sub(r"\g<unique>", definition) for name, definition in found}


_AFTER_TABLE = re.compile(r"^CREATE (?P<unique>UNIQUE )?INDEX .*? ON (?:ONLY )?.*? (?=USING )")


def _as_the_server_says(using: str, declared: list[Declared]) -> dict[str, str]:
    """The same indexes on empty copies of the tables, which are gone at once."""
    copies = {wanted.table: f"{wanted.table}_as_declared" for wanted in declared}
    sql = [f'CREATE TEMPORARY TABLE "{copy}" (LIKE "{table}")' for table, copy in copies.items()]
    sql += [wanted.create(how="", table=copies[wanted.table]) for wanted in declared]
    with transaction.atomic(using=using):
        execute(using, "; ".join(sql))
        expected = _definitions(using, copies.values())
        transaction.set_rollback(True, using=using)
    return expected


def _other(using: str, wanted: Declared, there: str, expected: str) -> Finding:
    """The right one is built beside it, and takes its name when it is complete; a law is never without its index."""
    new = replace(wanted, name=f"{wanted.name}_new")
    sql = [f'DROP INDEX IF EXISTS "{new.name}"']
    if wanted.table == PARENT:
        sql.append(new.create(how="", only="ONLY "))
        for (part,) in rows(using, PARTS):
            sql += [
                f'DROP INDEX IF EXISTS "{new.part_name(part)}"',
                new.create(name=new.part_name(part), table=part),
                f'ALTER INDEX "{new.name}" ATTACH PARTITION "{new.part_name(part)}"',
            ]
    else:
        sql.append(new.create())
    drop = f'ALTER TABLE "{wanted.table}" DROP CONSTRAINT "{wanted.name}"' if wanted.constraint else ""
    sql += [drop or f'DROP INDEX "{wanted.name}"', f'ALTER INDEX "{new.name}" RENAME TO "{wanted.name}"']
    sql += [wanted.constraint] if wanted.constraint else []
    return Finding(
        "other_index",
        Level.ERROR,
        f"{wanted.name} is not the index that the models declare",
        f"It is {there}; it should be {expected}. Verbs rely on it.",
        FIX,
        {"index": wanted.name, "table": wanted.table, "is": there, "should_be": expected},
        using,
        sql=tuple(sql),
    )


LOOKS = (indexes, index_definitions)
