"""The shop's past in one command: archive it, analyze it, open the report in a browser.

python -m example_project.report             while the demo runs, or after it
python -m example_project.report --no-open
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import webbrowser
from pathlib import Path

from .demo import manage, say
from .postgres import DEFAULT_FOLDER, PostgresError, persistent


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="example_project.report", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--folder", type=Path, default=DEFAULT_FOLDER, help="where the demo stores; default: %(default)s"
    )
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="where the past goes; default: %(default)s")
    parser.add_argument("--no-open", action="store_true", help="only write the report")
    options = parser.parse_args(argv)
    lake = options.lake.resolve()
    page = lake / "report.html"
    try:
        with persistent(options.folder) as server:
            environment = {**os.environ, **server.env, "DJANGO_SETTINGS_MODULE": "example_project.settings"}
            for arguments in (
                ("migrate", "--verbosity", "0"),
                ("jobs", "archive", "--lake", str(lake), "--older-than", "1m", "--yes"),
                ("jobs", "analyze", "--lake", str(lake), "--report", str(page)),
            ):
                done = subprocess.run(manage(*arguments), env=environment, check=False)
                if done.returncode:
                    return done.returncode
    except PostgresError as error:
        say(f"No report: {error}", file=sys.stderr)
        return 1
    say("The first page of the demo's admin links it, too.")
    if not options.no_open:
        webbrowser.open(page.as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main())
