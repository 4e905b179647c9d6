"""`python -m onward.worker shop.tasks:worker`: runs a worker that a module defines."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from typing import List, Optional

from ..errors import OnwardError
from . import Worker


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit codes: 0 stopped as requested, 1 the server refuses this worker, 2 no such worker."""
    parser = argparse.ArgumentParser(prog="python -m onward.worker", description="Runs a worker until SIGTERM or Ctrl-C.")
    parser.add_argument("worker", metavar="MODULE[:NAME]", help="where it is, for example `shop.tasks:worker`")
    parser.add_argument("--slots", type=int, help="how many tasks to hold at once")
    parser.add_argument("--log", default="info", metavar="LEVEL", help="debug, info, warning or error")
    parser.add_argument("--log-records", action="store_true", help="send what handlers log to the log of their task, too")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=given.log.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    module_name, _, name = given.worker.partition(":")
    sys.path.insert(0, "")
    worker = getattr(importlib.import_module(module_name), name or "worker", None)
    if not isinstance(worker, Worker):
        print(f"`{module_name}` has no worker `{name or 'worker'}`", file=sys.stderr)
        return 2
    if given.slots is not None:
        worker.slots = given.slots
    try:
        worker.run(log_records=given.log_records)
    except OnwardError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
