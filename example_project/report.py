"""Archive the finished jobs of the shop, analyze them, and open the report in a browser.

python -m example_project.report             while the demo runs, or later
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
        "--folder", type=Path, default=DEFAULT_FOLDER, help="folder of the demo's data; default: %(default)s"
    )
    parser.add_argument(
        "--lake", type=Path, default=Path("lake"), help="folder for archived jobs; default: %(default)s"
    )
    parser.add_argument("--no-open", action="store_true", help="write the report, but do not open it")
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
        say(f"The report cannot be made: {error}", file=sys.stderr)
        return 1
    say("The overview page of the demo's admin links the report too.")
    if not options.no_open:
        webbrowser.open(page.as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main())
