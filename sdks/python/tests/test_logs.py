"""Records of the `logging` module in the log of the right task."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Dict, List

import onward
from onward.testing import running

from .test_worker import Case, log_lines

log = logging.getLogger("shop.billing")


class Records(Case):
    def setUp(self) -> None:
        super().setUp()
        log.setLevel(logging.DEBUG)
        self.handler = onward.LogHandler()
        logging.getLogger().addHandler(self.handler)
        self.addCleanup(logging.getLogger().removeHandler, self.handler)

    def lines(self, id: str) -> List[Dict[str, Any]]:
        return log_lines(self.client, id)

    def test_each_task_gets_its_own_records(self) -> None:
        both = threading.Barrier(4)

        def say(value: Any, n: int) -> None:
            log.info("task %s says %d", value, n)

        @self.worker.task("plain.v1")
        def plain(value: Any) -> None:
            both.wait(10)
            for n in range(50):
                say(value, n)

        @self.worker.task("async.v1")
        async def coroutine(value: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(None, both.wait, 10)
            for n in range(50):
                await asyncio.sleep(0)
                await asyncio.create_task(self._in_task(value, n)) if n % 2 else say(value, n)

        with self.running():
            ids = {n: self.fake.add("plain.v1" if n % 2 else "async.v1", n) for n in range(4)}
            for id in ids.values():
                self.fake.ended(id)
        for n, id in ids.items():
            self.assertEqual(self.lines(id), [{"level": "info", "message": f"task {n} says {i}"} for i in range(50)])

    async def _in_task(self, value: Any, n: int) -> None:
        log.info("task %s says %d", value, n)

    def test_levels_exceptions_and_what_is_left_out(self) -> None:
        @self.worker.task("a.v1")
        def work(value: Any) -> None:
            for level in (5, logging.DEBUG, logging.INFO, 25, logging.WARNING, logging.ERROR, logging.CRITICAL):
                log.log(level, "%s ž", "x" * 5_000 if level == logging.INFO else level)
            logging.getLogger("onward.worker").critical("of the SDK")
            try:
                1 / 0
            except ZeroDivisionError:
                log.exception("divided")
            elsewhere = threading.Thread(target=lambda: log.error("of another thread"))
            elsewhere.start()
            elsewhere.join()
            log.error("%d", "not a number")

        raising, logging.raiseExceptions = logging.raiseExceptions, False
        self.addCleanup(setattr, logging, "raiseExceptions", raising)
        log.setLevel(1)
        log.error("of no task")
        with self.running():
            id = self.fake.add("a.v1")
            self.assertEqual(self.fake.ended(id)["status"], "succeeded")
        lines = self.lines(id)
        self.assertEqual([line["level"] for line in lines], ["debug", "debug", "info", "info", "warning", "error", "error", "error"])
        self.assertLessEqual(len(lines[2]["message"].encode()), 4_096)
        self.assertTrue(lines[-1]["message"].startswith("divided\nTraceback"))

    def test_two_workers_in_one_process_with_the_option(self) -> None:
        logging.getLogger().removeHandler(self.handler)
        workers = [onward.Worker(slots=2), onward.Worker(slots=2)]
        for n, worker in enumerate(workers):
            worker.task(f"w{n}.v1")(lambda value: log.warning("hello %s", value))
        before = list(logging.getLogger().handlers)
        with running(workers[0], self.client, log_records=True), running(workers[1], self.client, log_records=True):
            ids = [self.fake.add(f"w{n % 2}.v1", n) for n in range(10)]
            for id in ids:
                self.fake.ended(id)
        self.assertEqual([self.lines(id) for id in ids], [[{"level": "warning", "message": f"hello {n}"}] for n in range(10)])
        self.assertEqual(logging.getLogger().handlers, before)

    def test_a_record_after_the_end_goes_nowhere(self) -> None:
        late: List[Any] = []

        @self.worker.task("a.v1")
        async def work(value: Any) -> None:
            async def later() -> None:
                await asyncio.sleep(0.3)
                log.error("too late")

            late.append(asyncio.create_task(later()))

        with self.running():
            id = self.fake.add("a.v1")
            self.fake.ended(id)
            self.fake.until(lambda: late[0].done())
        self.assertEqual(self.lines(id), [])
