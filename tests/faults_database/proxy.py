"""A TCP proxy before PostgreSQL that delays, swallows, cuts and, if asked, pools.

It runs an event loop in a thread. Everything that changes it goes through that loop, so that a change holds as soon as
the method returns.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal

Direction = Literal["requests", "replies"]
BOTH: frozenset[Direction] = frozenset({"requests", "replies"})
CHUNK = 65_536
LINGER_NOT = struct.pack("ii", 1, 0)  # closing such a socket resets the connection


class Cut:
    """Break one connection around the COMMIT of a transaction that said ``text``.

    ``after``: the server has committed and its answer is lost; else the COMMIT never arrives. ``silently``: the
    connection is not reset, but hears and says nothing more.
    """

    def __init__(self, text: str, *, after: bool, times: int = 1, silently: bool = False) -> None:
        self.text, self.after, self.left, self.silently = text.encode(), after, times, silently
        self.done = threading.Event()


class Link:
    """A client, its connection to the server, and what is known of their conversation."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy, self.reader, self.writer = proxy, reader, writer
        self.server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.swallowed: frozenset[Direction] = proxy.swallowed
        self.startup = b""
        self.said = b""  # in the transaction that is open
        self.begun = False  # whether there is one
        self.cutting = False
        self._replies: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            self.startup = await self._packet()
            await self._connect()
            while True:
                kind, message = await self._message(self.reader)
                if self.server is None:
                    await self._connect(silently=True)
                if "requests" in self.swallowed:
                    continue
                if kind == b"X" and self.proxy.pooling:
                    return
                if kind == b"Q" and self._is_cut(message) and not self.cutting:
                    if self.swallowed:
                        continue
                    return
                assert self.server is not None
                await self._forward(self.server[1], message)
        except (OSError, asyncio.IncompleteReadError, EOFError):
            pass
        finally:
            if not self.swallowed:  # the other side of a half-open connection hears nothing
                self.reset()

    def _is_cut(self, message: bytes) -> bool:
        """Whether this is the COMMIT to be cut at; ``cutting`` says that it still goes through.

        A message outside a transaction is one, whatever it says.
        """
        text = message[5:-1].strip()
        if not self.begun and not text.upper().startswith(b"BEGIN"):
            self.said = text
        if not self.begun or text.upper() in (b"COMMIT", b"END"):
            said, self.said = self.said, b""
            self.begun = text.upper().startswith(b"BEGIN")
            cut = self.proxy.cut
            if cut is not None and cut.left and cut.text in said:
                cut.left -= 1
                self.cutting = cut.after
                if not cut.after:
                    self.swallowed = BOTH if cut.silently else self.swallowed
                    cut.done.set()
                return True
        elif text.upper() == b"ROLLBACK":
            self.said, self.begun = b"", False
        else:
            self.said += text
        return False

    async def _packet(self) -> bytes:
        """The first packet has no type."""
        size = await self.reader.readexactly(4)
        return size + await self.reader.readexactly(int.from_bytes(size) - 4)

    async def _message(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        head = await reader.readexactly(5)
        return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)

    async def _connect(self, *, silently: bool = False) -> None:
        self.server = await asyncio.open_connection("127.0.0.1", self.proxy.target)
        reader, writer = self.server
        if "requests" not in self.swallowed:
            writer.write(self.startup)
        if silently:  # the client was told all this when it came
            while (await self._message(reader))[0] != b"Z":
                pass
        self._replies = asyncio.ensure_future(self._answer(reader))
        self.proxy.sessions += 1

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                kind, message = await self._message(reader)
                is_idle = kind == b"Z" and message[5:6] == b"I"
                if self.cutting:
                    if kind == b"Z":
                        assert self.proxy.cut is not None
                        self.proxy.cut.done.set()
                        self.reset()
                        return
                    continue
                if "replies" not in self.swallowed:
                    await self._forward(self.writer, message)
                    self.proxy.passed += len(message)
                    if self.proxy.limit is not None and self.proxy.passed > self.proxy.limit:
                        self.proxy.limit = None
                        self.reset()
                        return
                if is_idle and self.proxy.pooling:
                    self._leave_server()
                    return
        except (OSError, asyncio.IncompleteReadError, EOFError):
            if not self.swallowed:
                self.reset()

    async def _forward(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        if self.proxy.delay:
            await asyncio.sleep(self.proxy.delay)
        writer.write(message)
        await writer.drain()

    def _leave_server(self) -> None:
        if self.server is not None:
            self.server[1].close()
            self.server = None

    def reset(self) -> None:
        """End both connections without a word of farewell."""
        for writer in (self.writer, self.server[1] if self.server else None):
            if writer is None:
                continue
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
            writer.transport.abort()
        self.proxy.links.discard(self)


class Proxy:
    """``port`` is where clients connect. Use it in a ``with``."""

    def __init__(self, target: int, *, pooling: bool = False) -> None:
        self.target, self.pooling = target, pooling
        self.delay = 0.0  # seconds for each message, either way
        self.swallowed: frozenset[Direction] = frozenset()  # of connections to come
        self.cut: Cut | None = None
        self.limit: int | None = None  # bytes of replies, after which one connection is cut
        self.passed = self.sessions = 0
        self.links: set[Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._welcome, "127.0.0.1", 0, limit=CHUNK * 16))
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *args: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def swallow(self, what: frozenset[Direction] = BOTH, *, newcomers: bool = True) -> None:
        """Drop these bytes silently from now on; without ``newcomers`` only on connections that exist."""

        def change() -> None:
            self.swallowed = what if newcomers else frozenset()
            for link in self.links:
                link.swallowed = what

        self._call(change)

    def heal(self) -> None:
        """Bytes pass again; connections that lost some are reset, as a router does with what it does not know."""

        def change() -> None:
            self.swallowed = frozenset()
            for link in [link for link in self.links if link.swallowed]:
                link.reset()

        self._call(change)

    def reset_all(self) -> None:
        def change() -> None:
            for link in list(self.links):
                link.reset()

        self._call(change)

    def cut_at_commit(self, text: str, *, after: bool, times: int = 1, silently: bool = False) -> Cut:
        cut = Cut(text, after=after, times=times, silently=silently)
        self._call(lambda: setattr(self, "cut", cut))
        return cut

    def cut_after(self, size: int) -> None:
        """Reset one connection when that many more bytes of replies have passed."""
        self._call(lambda: setattr(self, "limit", self.passed + size))

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, reader, writer)
        self.links.add(link)
        with suppress(asyncio.CancelledError):  # or the stream would complain of the end
            await link.run()

    async def _close(self) -> None:
        self._server.close()
        while self.links:
            for link in list(self.links):
                link.reset()
            await asyncio.sleep(0.02)  # for those that were just let in, and for sockets to close
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _call(self, work: Callable[[], object]) -> None:
        async def called() -> None:
            work()

        self._do(called())
