"""The asyncio transport against servers that misbehave, and cancellation."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import unittest
import warnings
from typing import Any, Awaitable, Callable, List

from onward import AsyncClient, Client, OnwardError, OnwardUnavailable, Task, WaitTimeout

from .fake import Fake

TASK = json.dumps({"data": {"id": "task_1", "status": "pending", "input": "ž" * 10}}, ensure_ascii=False).encode()
Answering = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """A server that reads requests and answers each with the next function."""

    def __init__(self, *answers: Answering) -> None:
        self.answers = list(answers)
        self.requests: List[bytes] = []
        self.connections = 0

    async def __aenter__(self) -> "Scripted":
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
                self.requests.append(head + await reader.readexactly(int(length[0].split(b":")[1]) if length else 0))
                await self.answers.pop(0)(self.requests[-1], writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def bytes_of(*pieces: bytes, then_close: bool = False) -> Answering:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        if then_close:
            writer.close()

    return answer


def plain(content: bytes = TASK, more: bytes = b"") -> Answering:
    return bytes_of(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (more, len(content), content))


async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


class Responses(unittest.IsolatedAsyncioTestCase):
    async def read(self, *answers: Answering, **options: Any) -> Task[Any]:
        async with Scripted(*answers) as self.server, AsyncClient(self.server.url, "pk_1", **options) as client:
            return await client.tasks.get("task_1")

    async def test_every_way_to_frame_a_body(self) -> None:
        head, half = b"HTTP/1.1 200 OK\r\n", len(TASK) // 2
        for name, answer in {
            "length": plain(),
            "100-continue first": bytes_of(b"HTTP/1.1 100 Continue\r\n\r\n", head + b"content-length: %d\r\n\r\n" % len(TASK), TASK),
            "chunked": bytes_of(
                head + b"Transfer-Encoding: chunked\r\n\r\n",
                b"%x;x=y\r\n%s\r\n" % (half, TASK[:half]),
                b"%X\r\n%s\r\n0\r\nTrailer: 1\r\n\r\n" % (len(TASK) - half, TASK[half:]),
            ),
            "until the end": bytes_of(b"HTTP/1.0 200 OK\r\n\r\n", TASK[:half], TASK[half:], then_close=True),
            "in bytes": bytes_of(*(bytes([b]) for b in head + b"Content-Length: %d\r\n\r\n" % len(TASK)), TASK),
        }.items():
            with self.subTest(name=name):
                self.assertEqual((await self.read(answer)).input, "ž" * 10)
        self.assertIn(b"Authorization: Bearer pk_1\r\n", self.server.requests[0])

    async def test_responses_that_cannot_be_understood(self) -> None:
        for name, answer in {
            "not HTTP": bytes_of(b"SSH-2.0-OpenSSH_9.0\r\n\r\n"),
            "a length that is no number": bytes_of(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"),
            "a negative length": bytes_of(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
            "a chunk that is no number": bytes_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            "cut in the head": bytes_of(b"HTTP/1.1 200", then_close=True),
            "cut in the body": bytes_of(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", then_close=True),
            "cut in a chunk": bytes_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", then_close=True),
            "a head without end": bytes_of(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000),
        }.items():
            with self.subTest(name=name), self.assertRaises(OnwardUnavailable) as caught:
                await self.read(answer, retries=0)
            self.assertTrue(caught.exception.sent)
        with self.assertRaises(OnwardError) as refused:
            await self.read(bytes_of(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"))
        self.assertEqual(refused.exception.code, "unknown_answer")

    async def test_a_server_that_does_not_answer(self) -> None:
        begun = time.monotonic()
        with self.assertRaisesRegex(OnwardUnavailable, "no answer within 0.2 s"):
            await self.read(silent, timeout=0.2, retries=0)
        self.assertLess(time.monotonic() - begun, 2)

    async def test_one_connection_serves_many_requests_until_the_server_closes_it(self) -> None:
        async with Scripted(plain(), plain(), plain(more=b"Connection: close\r\n"), plain()) as server:
            async with AsyncClient(server.url) as client:
                for _ in range(3):
                    await client.get("task_1")
                self.assertEqual(server.connections, 1)
                await client.get("task_1")
                self.assertEqual(server.connections, 2)

    async def test_bad_arguments_send_nothing(self) -> None:
        async with Scripted() as server, AsyncClient(server.url) as client:
            sync = Client(server.url)
            for wrong in ("a\r\nX: y", "ž"):
                with self.assertRaisesRegex(ValueError, "printable ASCII"):
                    await client.trigger("w", idempotency_key=wrong)
                with self.assertRaisesRegex(ValueError, "printable ASCII"):
                    sync.trigger("w", idempotency_key=wrong)
            for path in ("tasks", "/a b", "/a\r\nb", "/ž"):
                with self.assertRaisesRegex(ValueError, "is not a path"):
                    await client.request("GET", path)
            with self.assertRaises(TypeError):
                await client.submit("a.v1", b"bytes")
            with self.assertRaisesRegex(TypeError, "no field `priorty`"):
                await client.submit("a.v1", 1, priorty=1)  # type: ignore[call-overload]
            self.assertEqual(server.connections, 0)
            sync.close()


class Cancellation(unittest.IsolatedAsyncioTestCase):
    async def test_a_cancelled_request_does_not_leave_its_response_to_the_next(self) -> None:
        async def late(_: bytes, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.2)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 37\r\n\r\n" + b'{"data": {"id": "wrong", "run_id": 1}}'[:37])

        async with Scripted(late, plain()) as server, AsyncClient(server.url) as client:
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.get("task_1"), 0.05)
            await asyncio.sleep(0.3)
            self.assertEqual((await client.get("task_1")).id, "task_1")
            self.assertEqual(server.connections, 2)

    async def test_cancelling_many_waits_frees_their_connections(self) -> None:
        with Fake() as fake:
            async with AsyncClient(fake.url, connections=5) as client:
                id = fake.add("a.v1")
                waits = [asyncio.ensure_future(client.wait(id)) for _ in range(20)]
                await asyncio.sleep(0.1)
                for each in waits:
                    each.cancel()
                ended = await asyncio.gather(*waits, return_exceptions=True)
                self.assertTrue(all(isinstance(each, asyncio.CancelledError) for each in ended))
                self.assertEqual((await asyncio.wait_for(client.get(id), 5)).id, id)

    async def test_cancelled_while_connecting(self) -> None:
        with Fake() as fake:
            id = fake.add("a.v1")
            for turns in list(range(12)) * 4:
                async with AsyncClient(fake.url) as client:
                    waiting = asyncio.ensure_future(client.wait(id, 5))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    waiting.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await waiting

    async def test_more_requests_than_connections_queue(self) -> None:
        with Fake() as fake:
            async with AsyncClient(fake.url, connections=3) as client:
                tasks = await asyncio.gather(*(client.submit("a.v1", n) for n in range(100)))
                self.assertEqual(len({task.id for task in tasks}), 100)

    async def test_nothing_blocks_the_loop(self) -> None:
        with Fake() as fake:
            async with AsyncClient(fake.url) as client:
                waiting = asyncio.ensure_future(client.wait(fake.add("a.v1"), 0.5))
                ticks, begun = 0, time.monotonic()
                while not waiting.done():
                    await asyncio.sleep(0.01)
                    ticks += 1
                self.assertGreater(ticks, 15, f"in {time.monotonic() - begun:.1f} s")
                with self.assertRaises(WaitTimeout):
                    await waiting


class Streams(unittest.IsolatedAsyncioTestCase):
    async def test_a_dropped_stream_goes_on_after_the_last_event(self) -> None:
        def message(seq: int) -> bytes:
            return b'id: %d\ndata: {"seq":%d,"at":"t","type":"step.log","data":{"text":"\xc5\xbe"}}\n\n' % (seq, seq)

        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        whole = message(1) + b": comment\n\n" + message(2)
        chunks = [b"%x\r\n%s\r\n" % (len(whole[i : i + 7]), whole[i : i + 7]) for i in range(0, len(whole), 7)]
        answers = [
            bytes_of(head + b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"5\r\nid: 3\r\n", then_close=True),
            bytes_of(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}"),
            bytes_of(head + b"\r\n" + message(2) + message(3) + b"data: {\"seq\"", then_close=True),
            bytes_of(head + b"\r\n" + message(4).replace(b"\n", b"\r\n") + b"event: end\ndata: {}\n\n", then_close=True),
        ]
        for kind in ("async", "sync"):
            with self.subTest(kind=kind):
                async with Scripted(*answers) as server:
                    if kind == "async":
                        async with AsyncClient(server.url) as client:
                            events = [event async for event in client.stream("run_1")]
                    else:
                        with Client(server.url) as sync:
                            events = await asyncio.get_running_loop().run_in_executor(None, lambda: list(sync.stream("run_1")))
                    self.assertEqual([event.seq for event in events], [1, 2, 3, 4])
                    self.assertEqual(events[0].data, {"text": "ž"})
                    lasts = [[line for line in r.split(b"\r\n") if line.startswith(b"Last-Event-ID")] for r in server.requests]
                    self.assertEqual(lasts, [[], [b"Last-Event-ID: 2"], [b"Last-Event-ID: 2"], [b"Last-Event-ID: 3"]])

    async def test_a_stream_that_never_works_ends_with_an_error(self) -> None:
        closing = bytes_of(b"", then_close=True)
        async with Scripted(*([closing] * 3)) as server, AsyncClient(server.url, retries=2) as client:
            with self.assertRaises(OnwardUnavailable):
                async for _ in client.stream("run_1"):
                    pass
            self.assertEqual(len(server.requests), 3)


class Loops(unittest.TestCase):
    def test_a_client_may_be_used_in_one_event_loop_after_the_other(self) -> None:
        with Fake() as fake, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # asyncio warns about connections of a loop that ended
            client = AsyncClient(fake.url)
            ids = [asyncio.run(client.submit("a.v1", n)).id for n in range(3)]
            self.assertEqual(len(set(ids)), 3)
            asyncio.run(client.close())
            del client
            gc.collect()
