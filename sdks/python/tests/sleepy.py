"""A worker for the tests of `python -m onward.worker`."""

import time

import onward

worker = onward.Worker(drain="20s")


@worker.task("sleepy.v1")
def sleepy(value: dict, ctx: onward.Context) -> str:
    ctx.heartbeat(progress="begun")
    time.sleep(value["seconds"])
    return "slept"
