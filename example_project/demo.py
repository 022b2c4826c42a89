"""The whole shop, in a browser: PostgreSQL, workers, a web server, and customers who keep ordering.

python -m example_project.demo               until Ctrl-C; what it stored is there again the next time
python -m example_project.demo --port 8001
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .layout import DatabaseInUse, is_current, record, set_aside
from .postgres import DEFAULT_FOLDER, HOST, PostgresError, Server, persistent

PORT = 8000
USER = PASSWORD = "admin"
START_SECONDS = 60
STOP_SECONDS = 20
OLDEST_JAVA = 17

TRY = """
  The shop    {address}
  The admin   {address}admin/    log in as {user} with the password {user}

Three things to try:
  1. Order something in the shop, and start the export: its progress is live.
  2. A key is blocked because an order failed for good. See who waits behind it:
       {manage} jobs blocked
  3. Let it go on, and watch the rest of its orders being shipped, in order:
       {manage} jobs skip --queue orders --reason "refunded"

{export}
{past}
Ctrl-C ends everything; your data is kept in {folder}.
"""


class DemoError(Exception):
    """Why there is no demo, in a sentence."""


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    try:
        check_port(options.port)
        say("Starting PostgreSQL, two workers and a web server; the first time this takes half a minute.")
        with database(options.folder) as environment, processes(options, environment) as running:
            wait_until_it_answers(options.port, running)
            say(introduction(options, environment))
            watch(running)
    except (DemoError, PostgresError) as error:
        say(f"No demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("Stopped. Until next time!")
        return 0
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="example_project.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, default=PORT, help="of the web server; default: %(default)s")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="what is stored; default: %(default)s")
    return parser.parse_args(argv)


def say(text: str, file: object = None) -> None:
    print(text, flush=True, file=file or sys.stdout)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- before it starts


def check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise DemoError(f"port {port} is taken; choose another: make demo ARGS='--port {port + 1}'.") from None


def java_hint() -> str:
    """What can be made of the shop's past, or that Java is missing for it."""
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S607
        version = asked.stderr.partition('"')[2].partition(".")[0].partition('"')[0]
        if asked.returncode == 0 and version.isdecimal() and int(version) >= OLDEST_JAVA:
            return "When some orders are done: make report archives and analyzes the shop's past, and opens a report."
    return f"There is no Java {OLDEST_JAVA} here, so jobs cannot be archived with Spark; all else works."


@contextmanager
def database(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of processes that use the shop's database."""
    try:
        with persistent(folder) as server:
            environment = {**os.environ, **server.env, "DJANGO_SETTINGS_MODULE": "example_project.settings"}
            replace_older_layout(server)
            run_to_end(environment, "migrate", "--verbosity", "0")
            record(server)
            make_user(environment)
            yield environment
    except OSError as error:
        if error.filename is None:
            raise
        raise DemoError(
            f"{error.filename} cannot be written ({error.strerror}); choose another folder: "
            "make demo ARGS='--folder /tmp/shop'."
        ) from error


def replace_older_layout(server: Server) -> None:
    if is_current(server):
        return
    try:
        kept = set_aside(server)
    except DatabaseInUse:
        raise DemoError(
            f"the database in {server.folder} has the tables of other code and is in use; stop what uses it, or "
            "choose another folder: make demo ARGS='--folder /tmp/shop'."
        ) from None
    say(f"The database has the tables of other code: the demo starts with a new one and keeps the old one as {kept}.")


def make_user(environment: dict[str, str]) -> None:
    given = {"DJANGO_SUPERUSER_PASSWORD": PASSWORD, "DJANGO_SUPERUSER_EMAIL": f"{USER}@example.com"}
    run_to_end({**environment, **given}, "createsuperuser", "--noinput", "--username", USER, may_fail=True)


# -------------------------------------------------------------------------------------------------------- processes


def manage(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "example_project.manage", *arguments]


def run_to_end(environment: dict[str, str], *arguments: str, may_fail: bool = False) -> None:
    done = subprocess.run(manage(*arguments), env=environment, capture_output=True, text=True, check=False)
    if done.returncode and not (may_fail and "already taken" in done.stderr):
        raise DemoError(f"manage.py {arguments[0]} failed: {done.stderr.strip().splitlines()[-1]}")


@contextmanager
def processes(options: argparse.Namespace, environment: dict[str, str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The shop at work; whatever happens, nothing of it is left running."""
    commands = {
        "the web server": manage("runserver", "--noreload", f"{HOST}:{options.port}"),
        "the workers": manage("runjobs", "--processes", "2", "--no-reload", "--grace", "5"),
        "the customers": manage("feed"),
    }
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with (options.folder / "demo.log").open("ab") as log:
            for name, command in commands.items():
                running[name] = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
                )
            yield running
    finally:
        stop(list(running.values()))


def stop(running: list[subprocess.Popen[bytes]]) -> None:
    """First as one asks, then as one does not; another Ctrl-C must not leave anything behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for process in running:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))
    for process in running:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    signal.signal(signal.SIGINT, _end)


def wait_until_it_answers(port: int, running: dict[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        check_alive(running)
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://{HOST}:{port}/admin/login/", timeout=5).close()
            return
        time.sleep(0.1)
    raise DemoError(f"the web server did not answer within {START_SECONDS} seconds.")


def watch(running: dict[str, subprocess.Popen[bytes]]) -> None:
    while True:
        check_alive(running)
        time.sleep(0.5)


def check_alive(running: dict[str, subprocess.Popen[bytes]]) -> None:
    for name, process in running.items():
        if process.poll() is not None:
            raise DemoError(f"{name} ended with status {process.returncode}; demo.log in the folder says why.")


def introduction(options: argparse.Namespace, environment: dict[str, str]) -> str:
    variables = " ".join(f"{name}={environment[name]}" for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE"))
    python = os.path.relpath(sys.executable) if sys.executable.startswith(os.getcwd()) else sys.executable
    text = TRY.format(
        address=f"http://{HOST}:{options.port}/",
        user=USER,
        manage=f"{python} -m example_project.manage",
        export=f"For these commands, in another terminal:  export {variables}",
        past=java_hint(),
        folder=options.folder,
    )
    return text.rstrip()


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)  # also where a shell started it with that ignored
    sys.exit(main())
