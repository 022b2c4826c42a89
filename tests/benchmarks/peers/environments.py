"""A virtual environment per peer, made on first use and kept outside the repository.

``JOBQUEUE_BENCH_CACHE`` names another folder for them than ``django-jobqueue/peers`` in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.lab import note
from tests.benchmarks.peers.peer import Peer

NEWEST = 15  # Python 3.15


class CannotInstall(Exception):
    """A peer that cannot be compared here."""


def python_of(peer: Peer) -> str:
    """The Python of a peer's environment, which is made if it is not there; ``CannotInstall`` says why not."""
    if not peer.requirements:
        return sys.executable
    recipe = json.dumps([peer.requirements, peer.python, sys.version_info[:2]])
    folder = cache() / f"{peer.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        note(f"peers: installing {peer.name}")
        _make(folder, _interpreter(peer.python), peer.requirements)
        (folder / "complete").touch()
    return str(python)


def cache() -> Path:
    if given := os.environ.get("JOBQUEUE_BENCH_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "django-jobqueue" / "peers"


def version_of(peer: Peer, python: str) -> str:
    """What is compared: the version, and the Python it runs on."""
    code = (
        "import sys; from importlib.metadata import version;"
        f"print(version({peer.name!r}), 'on Python', '.'.join(map(str, sys.version_info[:3])))"
    )
    return _run([python, "-c", code]).strip()


def _interpreter(least: tuple[int, int]) -> str:
    """Ours if it is new enough, so that all run on the same; else the oldest that is."""
    if sys.version_info[:2] >= least:
        return sys.executable
    roots = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")]
    for minor in range(least[1], NEWEST + 1):
        name = f"python3.{minor}"
        found = [shutil.which(name), *(str(one) for root in roots for one in root.glob(f"versions/*/bin/{name}"))]
        for one in filter(None, found):
            if _works(one):
                return one
    if shutil.which("uv"):
        return f"{least[0]}.{least[1]}"  # uv may fetch it
    raise CannotInstall(f"it needs Python {least[0]}.{least[1]}, and there is none here")


def _works(python: str) -> bool:
    return subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0


def _make(folder: Path, python: str, requirements: tuple[str, ...]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    inside = str(folder / "bin" / "python")
    if uv := shutil.which("uv"):
        _run([uv, "venv", "--quiet", f"--python={python}", str(folder)])
        _run([uv, "pip", "install", "--quiet", f"--python={inside}", *requirements])
    else:
        _run([python, "-m", "venv", str(folder)])
        _run([inside, "-m", "pip", "install", "--quiet", *requirements])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise CannotInstall(f"{' '.join(command[:4])} … failed: {' '.join(last)}")
    return done.stdout
