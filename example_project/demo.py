"""Start the shop in your browser: PostgreSQL, workers, a web server, and customers who keep ordering.

python -m example_project.demo               runs until Ctrl-C, and keeps its data for the next time
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
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .layout import DatabaseInUse, is_current, record, set_aside
from .postgres import DEFAULT_FOLDER, HOST, PostgresError, Server, persistent
from .settings import DEMO_PASSWORD, DEMO_USER

PORT = 8000
PACKING_SECONDS = "1.5"  # per order, so that you can watch
START_SECONDS = 60
STOP_SECONDS = 20
OLDEST_JAVA = 17

TRY = """
  The shop    {address}
  The admin   {address}admin/    log in as {user} with the password {password}

Three things to try:
  1. In the shop, one customer's lane is blocked. Skip the order that blocks it, or break another card.
  2. List the blocked keys here:
       {manage} jobs blocked
  3. Skip all failed orders. The orders behind them are shipped, in order:
       {manage} jobs skip --queue orders --reason "refunded"

{export}
{past}
Press Ctrl-C to stop everything. Your data is kept in {folder}.
"""


class DemoError(Exception):
    """The demo cannot run; the message says why in one sentence."""


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    try:
        check_port(options.port)
        say("Starting PostgreSQL, workers and a web server. The first start takes about half a minute.")
        with database(options.folder) as environment, processes(options, environment) as running:
            wait_until_it_answers(options.port, running)
            say(introduction(options, environment))
            if not options.no_open:
                open_browser(options.port)
            watch(running)
    except (DemoError, PostgresError) as error:
        say(f"The demo cannot run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("Stopped. Your data is kept for the next time.")
        return 0
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="example_project.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, default=PORT, help="port of the web server; default: %(default)s")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="folder of the data; default: %(default)s")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
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
            raise DemoError(f"port {port} is in use; choose another: make demo ARGS='--port {port + 1}'.") from None


def java_hint() -> str:
    """How to archive and analyze the shop's jobs, or that Java is missing."""
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S607
        version = asked.stderr.partition('"')[2].partition(".")[0].partition('"')[0]
        if asked.returncode == 0 and version.isdecimal() and int(version) >= OLDEST_JAVA:
            return "When some orders are shipped, archive and analyze their jobs and open a report:  make report"
    return f"Java {OLDEST_JAVA} was not found, so jobs cannot be archived with Spark. Everything else works."


@contextmanager
def database(folder: Path) -> Iterator[dict[str, str]]:
    """The environment variables of processes that use the shop's database."""
    try:
        with persistent(folder) as server:
            environment = {
                "SHOP_PACKING_SECONDS": PACKING_SECONDS,
                **os.environ,
                **server.env,
                "DJANGO_SETTINGS_MODULE": "example_project.settings",
            }
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
            f"the database in {server.folder} was made by another version of the code and is in use; stop the programs "
            "that use it, or choose another folder: make demo ARGS='--folder /tmp/shop'."
        ) from None
    say(
        "The database was made by another version of the code. The demo starts with a new database; the old one is "
        f"kept as {kept}."
    )


def make_user(environment: dict[str, str]) -> None:
    given = {"DJANGO_SUPERUSER_PASSWORD": DEMO_PASSWORD, "DJANGO_SUPERUSER_EMAIL": "admin@example.com"}
    run_to_end({**environment, **given}, "createsuperuser", "--noinput", "--username", DEMO_USER, may_fail=True)


# -------------------------------------------------------------------------------------------------------- processes


def manage(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "example_project.manage", *arguments]


def run_to_end(environment: dict[str, str], *arguments: str, may_fail: bool = False) -> None:
    done = subprocess.run(manage(*arguments), env=environment, capture_output=True, text=True, check=False)
    if done.returncode and not (may_fail and "already taken" in done.stderr):
        raise DemoError(f"manage.py {arguments[0]} failed: {done.stderr.strip().splitlines()[-1]}")


@contextmanager
def processes(options: argparse.Namespace, environment: dict[str, str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run the shop's processes, and stop all of them at the end, whatever happens."""
    commands = {
        "the web server": manage("runserver", "--noreload", f"{HOST}:{options.port}"),
        "the workers": manage("runjobs", "--processes", "2", "--no-reload", "--grace", "5", "--verbosity", "0"),
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
    """Terminate the processes, then kill those that are left. Another Ctrl-C is ignored, so that no process stays."""
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


def open_browser(port: int) -> None:
    """Open the shop in a graphical browser, if there is one. A browser in the terminal would hide what is printed."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(f"http://{HOST}:{port}/")


def watch(running: dict[str, subprocess.Popen[bytes]]) -> None:
    while True:
        check_alive(running)
        time.sleep(0.5)


def check_alive(running: dict[str, subprocess.Popen[bytes]]) -> None:
    for name, process in running.items():
        if process.poll() is not None:
            raise DemoError(f"{name} ended with status {process.returncode}; see demo.log in the folder.")


def introduction(options: argparse.Namespace, environment: dict[str, str]) -> str:
    variables = " ".join(f"{name}={environment[name]}" for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE"))
    python = os.path.relpath(sys.executable) if sys.executable.startswith(os.getcwd()) else sys.executable
    text = TRY.format(
        address=f"http://{HOST}:{options.port}/",
        user=DEMO_USER,
        password=DEMO_PASSWORD,
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
    signal.signal(signal.SIGINT, _end)  # also if the shell that started this process ignores SIGINT
    sys.exit(main())
