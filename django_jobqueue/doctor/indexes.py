"""Indexes: whether each one that the models declare exists, is valid on every partition, and is defined as declared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connections, models, transaction
from django.db.models import UniqueConstraint

from ..engine.databases import execute, rows
from ..partitions import PARENT
from .findings import Finding, Level, Limits

FIX = "manage.py jobs doctor --fix"
APP = "jobqueue"

# -------------------------------------------------------------------------------------------------- declared indexes

_CREATE = re.compile(
    r'^CREATE (?P<unique>UNIQUE )?INDEX "(?P<name>[^"]+)" ON "(?P<table>[^"]+)" (?P<rest>.*)$', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Declared:
    """An index that a model declares, or a unique constraint, which is an index too."""

    name: str
    table: str
    unique: bool
    rest: str  # of its definition, after the name of the table
    constraint: str = ""  # the statement that makes the index a constraint

    def create(self, *, name: str = "", table: str = "", how: str = "CONCURRENTLY ", only: str = "") -> str:
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        return f'CREATE {kind} {how}"{name or self.name}" ON {only}"{table or self.table}" {self.rest}'

    def part_name(self, part: str) -> str:
        """The name of the index on a partition: unique, and not too long even if the partition's name is long."""
        digest = hashlib.sha256(f"{part} {self.name}".encode()).hexdigest()[:10]
        return f"{self.name[:50]}_{digest}"


def our_models() -> list[type[models.Model]]:
    every_model = apps.get_app_config(APP).get_models(include_auto_created=True)
    return [model for model in every_model if not model._meta.proxy and model._meta.managed]


def declared_indexes(using: str) -> list[Declared]:
    """The indexes as Django would create them."""
    return [index for model in our_models() for index in _declared_of(model, using)]


@cache  # Django asks the server about collations
def _declared_of(model: type[models.Model], using: str) -> list[Declared]:
    declared = []
    editor: Any = connections[using].schema_editor(collect_sql=True)
    statements = [statement for statement in editor._model_indexes_sql(model) if statement is not None]
    for constraint in model._meta.constraints:
        if isinstance(constraint, UniqueConstraint) and constraint.condition is not None:
            statements.append(constraint.create_sql(model, editor))
        elif isinstance(constraint, UniqueConstraint):
            declared.append(_plain_unique(model, constraint))
    return declared + [_parsed(str(statement)) for statement in statements]


def _parsed(sql: str) -> Declared:
    match = _CREATE.match(sql)
    if match is None:
        raise ValueError(f"Django wrote an index in a form that the doctor cannot parse: {sql}")
    return Declared(match["name"], match["table"], bool(match["unique"]), match["rest"])


def _plain_unique(model: type[models.Model], constraint: UniqueConstraint) -> Declared:
    columns = ", ".join(f'"{model._meta.get_field(name).column}"' for name in constraint.fields)  # type: ignore[union-attr]
    table = model._meta.db_table
    makes = f'ALTER TABLE "{table}" ADD CONSTRAINT "{constraint.name}" UNIQUE USING INDEX "{constraint.name}"'
    rest = f"({columns}){'' if constraint.nulls_distinct is not False else ' NULLS NOT DISTINCT'}"
    return Declared(constraint.name, table, True, rest, makes)


# -------------------------------------------------------------------------------------------------- existing indexes

# The indexes of our tables and of the partitions of the job table. One of a partition may belong to one of the table.
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
WHERE h.inhparent = 'jobqueue_job'::regclass ORDER BY 1
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
        return next((i for i in self.indexes if i.table == part and i.piece_of == declared.name), None)


def indexes(using: str, limits: Limits) -> Iterator[Finding]:
    catalog = Catalog(using)
    declared = declared_indexes(using)
    for index in declared:
        yield from _compared(catalog, index)
    yield from _leftovers(catalog, {index.name for index in declared}, declared)
    yield from _primary_keys(catalog)


def _compared(catalog: Catalog, declared_index: Declared) -> Iterator[Finding]:
    index = catalog.named.get(declared_index.name)
    if declared_index.table == PARENT:
        pieces = {part: catalog.piece(declared_index, part) for part in catalog.parts}
        if index is None or not index.valid or any(piece is None or not piece.valid for piece in pieces.values()):
            yield _partitioned(catalog, declared_index, index, pieces)
    elif index is None:
        yield _missing(catalog.using, declared_index)
    elif not index.valid and not index.being_built:
        yield _invalid(catalog.using, declared_index)
    elif declared_index.constraint and not index.of_constraint:
        yield _only_an_index(catalog.using, declared_index)


def _missing(using: str, declared_index: Declared) -> Finding:
    sql = (
        (declared_index.create(), declared_index.constraint)
        if declared_index.constraint
        else (declared_index.create(),)
    )
    return _finding(using, "missing_index", declared_index, f"The index {declared_index.name} is missing", sql)


def _invalid(using: str, declared_index: Declared) -> Finding:
    text = f"The index {declared_index.name} is invalid"
    return _finding(
        using, "invalid_index", declared_index, text, (f'REINDEX INDEX CONCURRENTLY "{declared_index.name}"',)
    )


def _only_an_index(using: str, declared_index: Declared) -> Finding:
    return _finding(
        using,
        "missing_constraint",
        declared_index,
        f"{declared_index.name} is an index, but not a constraint yet",
        (declared_index.constraint,),
    )


def _partitioned(
    catalog: Catalog, declared_index: Declared, index: Index | None, pieces: dict[str, Index | None]
) -> Finding:
    """Create the index of the table without building it, then build it on each partition without blocking writes.

    Each is attached to the index of the table, which becomes valid when the last one is attached.
    """
    sql = [] if index is not None else [declared_index.create(how="", only="ONLY ")]
    broken = [part for part, piece in pieces.items() if piece is None or not piece.valid]
    for part in broken:
        piece = pieces[part]
        if piece is not None:
            sql.append(f'REINDEX INDEX CONCURRENTLY "{piece.name}"')
            name = piece.name
        else:
            name = declared_index.part_name(part)
            if name in catalog.named:
                sql.append(f'DROP INDEX CONCURRENTLY "{name}"')
            sql.append(declared_index.create(name=name, table=part))
        sql.append(f'ALTER INDEX "{declared_index.name}" ATTACH PARTITION "{name}"')
    what = "missing" if index is None or any(pieces[part] is None for part in broken) else "invalid"
    where = "" if index is None else f" on {', '.join(broken[:5])}{' and others' if len(broken) > 5 else ''}"
    return _finding(
        catalog.using,
        f"{what}_index",
        declared_index,
        f"The index {declared_index.name} is {what}{where}",
        tuple(sql),
        parts=broken,
    )


def _finding(
    using: str, code: str, declared_index: Declared, title: str, sql: tuple[str, ...], **facts: Any
) -> Finding:
    meaning = (
        "It enforces a rule of the queue: without it, two jobs can wait or run where only one may."
        if declared_index.unique
        else "Without it, queries read whole tables."
    )
    return Finding(
        code,
        Level.ERROR,
        title,
        f"{meaning} It was dropped, or its CREATE INDEX CONCURRENTLY failed. Building it again does not block writes.",
        FIX,
        {"index": declared_index.name, "table": declared_index.table, **facts},
        using,
        sql=sql,
    )


def _leftovers(catalog: Catalog, names: set[str], declared: list[Declared]) -> Iterator[Finding]:
    """Invalid indexes that no model declares: a cancelled build left them behind."""
    ours = names | {declared_index.part_name(part) for declared_index in declared for part in catalog.parts}
    for index in catalog.indexes:
        if index.valid or index.being_built or index.primary or index.piece_of or index.name in names:
            continue
        half_done = index.name in ours
        drop = f'DROP INDEX CONCURRENTLY "{index.name}"'
        yield Finding(
            "leftover_index",
            Level.WARNING,
            f"{index.name} on {index.table} is an invalid leftover index",
            "Its build was cancelled or failed. Every write keeps it up to date, but no query can use it."
            + (" The finding about the missing index builds it again." if half_done else ""),
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
                "Rows are not found by their id, and two rows can have the same id. Building it blocks all writes.",
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
    """Indexes with the right name and another definition than the server gives the declared index."""
    declared = declared_indexes(using)
    existing = _definitions(using, {declared_index.table for declared_index in declared})
    expected = _as_the_server_says(using, declared)
    for declared_index in declared:
        if declared_index.name in existing and existing[declared_index.name] != expected[declared_index.name]:
            yield _other(using, declared_index, existing[declared_index.name], expected[declared_index.name])


def _definitions(using: str, tables: Iterable[str]) -> dict[str, str]:
    definitions = rows(using, DEFINITIONS, [[f'"{table}"' for table in tables]])
    return {name: _AFTER_TABLE.sub(r"\g<unique>", definition) for name, definition in definitions}


_AFTER_TABLE = re.compile(r"^CREATE (?P<unique>UNIQUE )?INDEX .*? ON (?:ONLY )?.*? (?=USING )")


def _as_the_server_says(using: str, declared: list[Declared]) -> dict[str, str]:
    """The definitions of the same indexes on empty copies of the tables; the copies are rolled back."""
    copies = {declared_index.table: f"{declared_index.table}_as_declared" for declared_index in declared}
    sql = [f'CREATE TEMPORARY TABLE "{copy}" (LIKE "{table}")' for table, copy in copies.items()]
    sql += [declared_index.create(how="", table=copies[declared_index.table]) for declared_index in declared]
    with transaction.atomic(using=using):
        execute(using, "; ".join(sql))
        expected = _definitions(using, copies.values())
        transaction.set_rollback(True, using=using)
    return expected


def _other(using: str, declared_index: Declared, existing: str, expected: str) -> Finding:
    """The declared index is built beside it and takes its name when it is complete, so no rule is ever unenforced."""
    new = replace(declared_index, name=f"{declared_index.name}_new")
    sql = [f'DROP INDEX IF EXISTS "{new.name}"']
    if declared_index.table == PARENT:
        sql.append(new.create(how="", only="ONLY "))
        for (part,) in rows(using, PARTS):
            sql += [
                f'DROP INDEX IF EXISTS "{new.part_name(part)}"',
                new.create(name=new.part_name(part), table=part),
                f'ALTER INDEX "{new.name}" ATTACH PARTITION "{new.part_name(part)}"',
            ]
    else:
        sql.append(new.create())
    drop = (
        f'ALTER TABLE "{declared_index.table}" DROP CONSTRAINT "{declared_index.name}"'
        if declared_index.constraint
        else ""
    )
    sql += [
        drop or f'DROP INDEX "{declared_index.name}"',
        f'ALTER INDEX "{new.name}" RENAME TO "{declared_index.name}"',
    ]
    sql += [declared_index.constraint] if declared_index.constraint else []
    return Finding(
        "other_index",
        Level.ERROR,
        f"{declared_index.name} is not the index that the models declare",
        f"It is {existing}; it should be {expected}. Queries rely on it.",
        FIX,
        {"index": declared_index.name, "table": declared_index.table, "is": existing, "should_be": expected},
        using,
        sql=tuple(sql),
    )
