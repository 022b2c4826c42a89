"""What the lake promises is what its page says."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.version import Version

from tests.test_docs import ROOT, rows


def test_every_column_is_on_the_page_with_its_type():
    from pyspark.sql.types import ArrayType, StructField

    from django_jobqueue.pipeline.lake import JOB_SCHEMA, SCHEMA_VERSION

    def told(field: StructField) -> str:
        if isinstance(field.dataType, ArrayType):
            return f"array of {field.dataType.elementType.simpleString()}"
        return field.dataType.simpleString().replace("bigint", "long")

    listed = {
        name: cells[0].split(",")[0]
        for names, cells in rows("reference/lake.md", "Columns").items()
        for name in re.findall(r"\w+", names)
    }

    assert listed == {field.name: told(field) for field in JOB_SCHEMA.fields}
    assert SCHEMA_VERSION == 1


def test_the_data_source_knows_every_column_the_audit_and_the_lake_need():
    from django_jobqueue.models import Job
    from django_jobqueue.pipeline.datasource import COLUMNS

    stored = {field.name for field in Job._meta.get_fields() if hasattr(field, "column")}
    # Columns that only describe the current run or place of a job, and mean nothing in another database.
    passing = {
        "position", "hold", "incarnation", "expire_at", "lease_until", "heartbeat_at", "throttle_slot", "progress",
        "progress_text", "delete_at", "grouped", "claim_number", "moved_xid",
    }  # fmt: skip

    assert set(COLUMNS) - {"day"} == stored - passing


def test_the_extra_asks_for_a_pyarrow_that_pyspark_accepts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {one.name: one for one in map(Requirement, project["optional-dependencies"]["spark"])}
    theirs = [Requirement(one) for one in requires("pyspark") or () if one.startswith("pyarrow")]

    lowest = {Version(one.version) for one in ours["pyarrow"].specifier}
    assert theirs
    assert all(version in one.specifier for one in theirs for version in lowest)
