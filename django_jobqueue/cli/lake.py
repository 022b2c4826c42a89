"""The subcommands that need Spark, which is imported only when one of them runs."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from importlib import import_module
from typing import Any

from django.core.management.color import Style
from django.utils.dateparse import parse_datetime
from django.utils.timezone import get_current_timezone, is_naive

from ..doctor import Finding
from ..exceptions import SparkUnavailable
from .answers import Answer, Code, facts, plural, table
from .operate import NOT_CONFIRMED, Confirm, seconds
from .output import ProgressOutput
from .selection import job_id

SHOWN = 20


def _pipeline(module: str) -> Any:
    """Import a module of the pipeline. It is imported here only, because the package must work without the extra."""
    try:
        return import_module(f"django_jobqueue.pipeline.{module}")
    except ImportError as error:
        raise SparkUnavailable(
            f"This needs the extra 'spark': {error}.", hint="Install it: pip install 'django-jobqueue[spark]'."
        ) from error


def moment(text: str) -> datetime:
    """For argparse: ``2026-11-16`` or ``2026-11-16T08:30``, in the current time zone unless it names one."""
    try:
        parsed = parse_datetime(text if len(text) > 10 else f"{text}T00:00")
    except ValueError:
        parsed = None
    if parsed is None:
        raise ArgumentTypeError(f"expected a date or a time like 2026-11-16T08:30, got {text[:40]!a}")
    return parsed.replace(tzinfo=get_current_timezone()) if is_naive(parsed) else parsed


def _where(parser: ArgumentParser, *, or_live_only: bool = False) -> None:
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--lake", metavar="PATH", help="the folder or URL of the lake (default: JOBQUEUE['LAKE'])")
    if or_live_only:
        place.add_argument("--live-only", action="store_true", help="read only the live table, not the lake")
    parser.add_argument("--master", metavar="URL", help="Spark's master (default local[*,4], or as spark-submit says)")


def _trying(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would happen")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


# ----------------------------------------------------------------------------------------------------------- archive


def archive_arguments(parser: ArgumentParser) -> None:
    _where(parser)
    older = "only jobs that ended at least this long ago: 90, 5m, 2h, 30d (default 7d)"
    parser.add_argument("--older-than", metavar="TIME", type=seconds, default=7 * 86_400.0, help=older)
    parser.add_argument("--queue", metavar="NAME", action="append", help="only jobs of this queue; may be repeated")
    parser.add_argument(
        "--without", metavar="COLUMNS", default="", help="do not write these columns to the lake: data,output,error"
    )
    secrets = "write passwords, tokens and other values of REDACT to the lake, so that these jobs can be restored"
    parser.add_argument("--keep-secrets", action="store_true", help=secrets)
    rest = "seconds to pause for each second of work, to leave the machine to other processes (default 3; 0: no pause)"
    parser.add_argument("--rest", metavar="N", type=float, help=rest)
    _trying(parser)


def archive(options: dict[str, Any], style: Style, using: str, confirm: Confirm, tell: ProgressOutput) -> Answer:
    """Write old finished jobs to the lake, verify them and delete them from PostgreSQL."""
    archiving = _pipeline("archiving")
    queues, older_than = options["queue"] or (), options["older_than"]
    without = archiving.check_without(filter(None, map(str.strip, options["without"].split(","))))
    location = _pipeline("location")
    lake = location.lake_path(options["lake"])
    if options["dry_run"]:
        location.check_folder(lake, to_write=True)
        cutoff, number = archiving.archivable(using, older_than, queues)
        document = {"dry_run": True, "lake": lake, "cutoff": cutoff, "number": number}
        return Answer(
            document, f"Would archive {plural(number, 'job')} that ended before {cutoff:%Y-%m-%d %H:%M:%S %Z}."
        )
    if not confirm(f"Write finished jobs to {lake} and delete them from the database?"):
        return NOT_CONFIRMED
    done = archiving.archive_jobs(
        lake=lake, older_than=older_than, queue=queues, without=without, redact=not options["keep_secrets"],
        master=options["master"], tell=tell,
        rest=archiving.REST if options["rest"] is None else options["rest"], using=using,
    )  # fmt: skip
    tell.end()
    document = {"dry_run": False, "lake": lake, **asdict(done)}
    if done.busy:
        return Answer(document, "Another archive of this database is running; nothing was done.", Code.FOUND)
    return Answer(document, _archived(done, lake, style))


def _archived(done: Any, lake: str, style: Style) -> str:
    pairs = [
        ("archived", plural(done.written, "job")),
        ("deleted", plural(done.deleted, "job")),
        ("in use, left for the next run", plural(done.kept, "job") if done.kept else ""),
        ("run", done.run),
        ("ended before", done.cutoff),
        ("resumed runs", done.resumed_runs),
        ("removed unverified runs", done.removed_runs),
        ("lake", f"{lake}: {_holds(done)}"),
    ]
    return facts(pairs, style)


def _holds(done: Any) -> str:
    return f"{plural(done.lake_runs, 'verified run')} with {plural(done.lake_jobs, 'job')}"


# ----------------------------------------------------------------------------------------------------------- restore


def restore_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", type=job_id, help="the number or the id of an archived job")
    _where(parser)
    parser.add_argument("--queue", metavar="NAME", help="jobs of this queue")
    parser.add_argument("--state", metavar="STATE", action="append", help="jobs in this state; may be repeated")
    parser.add_argument("--key", metavar="KEY", help="jobs with this singleton key")
    parser.add_argument("--handler", metavar="NAME", help="jobs for the handler of this name")
    parser.add_argument("--since", metavar="TIME", type=moment, help="that ended at this time or later")
    parser.add_argument("--until", metavar="TIME", type=moment, help="that ended before this time")
    parser.add_argument("--limit", metavar="N", type=int, help="at most N jobs, the oldest first")
    parser.add_argument("--to", metavar="QUEUE", help="send them to this queue (default: the one they were in)")
    parser.add_argument("--again", action="store_true", help="also jobs that were restored before")
    _trying(parser)


def restore(options: dict[str, Any], style: Style, using: str, confirm: Confirm, tell: ProgressOutput) -> Answer:
    """Send archived jobs again, as new jobs that name their origin."""
    restoring = _pipeline("restoring")
    if not options["dry_run"] and not confirm("Send the selected archived jobs again?"):
        return NOT_CONFIRMED
    done = restoring.restore_jobs(
        ids=options["ids"], queue=options["queue"], state=options["state"] or (), key=options["key"],
        name=options["handler"], finalized_after=options["since"], finalized_before=options["until"],
        limit=options["limit"], to=options["to"], again=options["again"], dry_run=options["dry_run"],
        lake=options["lake"], master=options["master"], tell=tell, using=using,
    )  # fmt: skip
    tell.end()
    document = {
        "dry_run": options["dry_run"],
        "found": done.found,
        "sent": {str(origin): str(new) for origin, new in done.sent.items()},
        "refused": done.refused,
        "lake": done.lake,
        "lake_runs": done.lake_runs,
        "lake_jobs": done.lake_jobs,
    }
    read = f"Read the lake {done.lake}: {_holds(done)}."
    if options["dry_run"]:
        return Answer(document, f"{read}\nWould send {plural(done.found, 'job')} again.")
    lines = [read, f"Sent {plural(len(done.sent), 'job')} again."]
    lines += [f"  {new} from {origin}" for origin, new in list(done.sent.items())[:SHOWN]]
    if done.refused:
        lines.append(
            f"Refused {plural(len(done.refused), 'job')}: restored before, or refused by the policy of the queue."
        )
    return Answer(document, "\n".join(lines), Code.FOUND if done.refused else Code.FINE)


# ------------------------------------------------------------------------------------------------------------- audit


def audit_arguments(parser: ArgumentParser) -> None:
    _where(parser, or_live_only=True)
    parser.add_argument("--queue", metavar="NAME", action="append", help="only jobs of this queue; may be repeated")


def audit(options: dict[str, Any], style: Style, using: str, tell: ProgressOutput) -> Answer:
    """Check in the lake and the live table that each key kept its order, and list the breaches."""
    report = _pipeline("auditing").audit_order(
        lake=options["lake"], live_only=options["live_only"], queue=options["queue"] or (), master=options["master"],
        tell=tell, using=using,
    )  # fmt: skip
    tell.end()
    checked = f"{report.sentence()}\n{plural(report.jobs, 'job')} of {plural(report.keys, 'key')}"
    if not report.number:
        return Answer(asdict(report), f"{checked}: every key kept its order.")
    head = ("breach", "queue", "key", "job", "from", "until", "other job", "began")
    rows = [
        [breach["kind"], breach["queue"], breach["singleton_key"], breach["first_id"], breach["first_from"],
         breach["first_until"], breach["second_id"], breach["second_from"]]
        for breach in report.breaches[:SHOWN]
    ]  # fmt: skip
    text = f"{checked}: {plural(report.number, 'breach', 'breaches')}.\n{table(head, rows, style)}"
    return Answer(asdict(report), text, Code.FOUND)


# --------------------------------------------------------------------------------------------------------- bulk send


def bulk_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="CSV with a header, JSON lines or Parquet; globs too")
    parser.add_argument("--queue", metavar="NAME", required=True, help="the queue to send to")
    parser.add_argument(
        "--format", choices=("csv", "json", "parquet"), help="the format of the files (default: by their names)"
    )
    parser.add_argument("--handler", metavar="NAME", help="the handler of the jobs")
    for option, what in MAPPED.items():
        parser.add_argument(f"--{option}", metavar="COLUMN", help=f"the column that holds {what}")
    parser.add_argument(
        "--id-column", "--id", dest="id", metavar="COLUMN", help="the column that holds the id of the job, a UUID"
    )
    parser.add_argument(
        "--data", metavar="COLUMNS", default="", help="the columns of the data, a,b,c (default: all other columns)"
    )
    parser.add_argument(
        "--delimiter", metavar="CHARACTER", default=",", help="the character between CSV fields (default ,)"
    )
    parser.add_argument(
        "--encoding", metavar="NAME", default="", help="encoding of CSV and JSON files without a BOM (default utf-8)"
    )
    parser.add_argument(
        "--batch",
        metavar="NAME",
        default="",
        help="a name that distinguishes these files from other files of the same names",
    )
    parser.add_argument("--again", action="store_true", help="send every row, also rows that were sent before")
    parser.add_argument("--aside", metavar="FILE", help="the file for bad rows (default: FILE.bad.jsonl)")
    parser.add_argument("--master", metavar="URL", help="Spark's master (default local[*,4], or as spark-submit says)")
    _trying(parser)


MAPPED = {
    "key": "the singleton key",
    "order-by": "the order of the jobs (default: the order of the rows)",
    "group": "the group key",
    "priority": "the priority",
    "tags": "the tags, separated by commas",
    "delay": "a delay in seconds",
    "start-after": "the time before which the job must not start",
}


def bulk_send(options: dict[str, Any], style: Style, using: str, confirm: Confirm, tell: ProgressOutput) -> Answer:
    """Send a job for each row of files; bad rows are set aside."""
    bulk = _pipeline("bulk_sending")
    if not options["dry_run"] and not confirm(f"Send a job to {options['queue']} for each row?"):
        return NOT_CONFIRMED
    mapping = bulk.Mapping(
        key=options["key"], order_by=options["order_by"], id=options["id"], group_key=options["group"],
        priority=options["priority"], tags=options["tags"], delay=options["delay"],
        start_after=options["start_after"], name=options["handler"],
        data=tuple(filter(None, map(str.strip, options["data"].split(",")))),
    )  # fmt: skip
    done = bulk.bulk_send(
        options["files"], queue=options["queue"], mapping=mapping, format=options["format"], aside=options["aside"],
        batch=options["batch"], again=options["again"], encoding=options["encoding"],
        delimiter={"\\t": "\t", "tab": "\t"}.get(options["delimiter"], options["delimiter"]),
        dry_run=options["dry_run"], master=options["master"], tell=tell, using=using,
    )  # fmt: skip
    tell.end()
    document = {"dry_run": options["dry_run"], **asdict(done)}
    return Answer(document, "\n".join(_bulk_sent(done, options)), Code.FOUND if done.bad else Code.FINE)


def _bulk_sent(done: Any, options: dict[str, Any]) -> Iterator[str]:
    yield f"{'Would send' if options['dry_run'] else 'Sent'} {plural(done.new, 'job')}."
    if done.known and options["id"]:
        yield f"{plural(done.known, 'row')} had been sent before: a job with the same id."
    elif done.known:
        yield (
            f"{plural(done.known, 'row')} had been sent before: the same row of a file of the same name. "
            "Use --batch NAME if these are other files, or --again to send every row."
        )
    if done.bad:
        yield f"{plural(done.bad, 'bad row')} set aside in {done.aside}."
    if done.first:
        yield "The first jobs:"
        yield from (f"  {json.dumps(job, ensure_ascii=False, default=str)}" for job in done.first)


# ----------------------------------------------------------------------------------------------------------- analyze


def analyze_arguments(parser: ArgumentParser) -> None:
    _where(parser, or_live_only=True)
    parser.add_argument("--queue", metavar="NAME", action="append", help="only jobs of this queue; may be repeated")
    parser.add_argument(
        "--report", metavar="FILE", default="jobs.html", help="the file of the report (default jobs.html)"
    )
    parser.add_argument("--tables", metavar="FOLDER", help="also write the tables to this folder")
    parser.add_argument("--format", choices=("parquet", "csv"), default="parquet", help="the format of the tables")


def analyze(options: dict[str, Any], style: Style, using: str, tell: ProgressOutput) -> Answer:
    """Statistics of the lake and the live table, as an HTML page and as tables."""
    analysis = _pipeline("analyzing").analyze_jobs(
        lake=options["lake"], live_only=options["live_only"], queue=options["queue"] or (), report=options["report"],
        tables=options["tables"], format=options["format"], master=options["master"], tell=tell, using=using,
    )  # fmt: skip
    tell.end()
    handlers = analysis.tables["handlers"]
    head = ("queue", "handler", "jobs", "completed", "failed", "retries", "wait p95", "run p95")
    rows = [
        [row["queue"], row["name"], row["jobs"], row["completed"], row["failed"], row["retries"],
         _short(row["waited_p95"]), _short(row["ran_p95"])]
        for row in handlers[:SHOWN]
    ]  # fmt: skip
    summary = f"{analysis.sentence()}\n{plural(analysis.jobs, 'job')}; the report is {analysis.report}."
    document = asdict(analysis)
    del document["drawn"]  # the tables have the same numbers, per handler
    return Answer(document, f"{table(head, rows, style)}\n{summary}" if rows else summary)


def _short(seconds_: float | None) -> str:
    return "" if seconds_ is None else f"{seconds_:.3g} s"


# ------------------------------------------------------------------------------------------------------------ doctor


def findings(path: str | bool, master: str | None) -> list[Finding]:
    """What the doctor finds in the lake; ``True`` stands for the lake of the settings."""
    in_lake: list[Finding] = _pipeline("examining").examine_lake(path=None if path is True else path, master=master)
    return in_lake
