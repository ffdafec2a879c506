"""The engine's process: `python -m eagle3_data.engines.child CHANNEL_FD`.

Its stdout and stderr are the engine log. It talks with the supervisor through the channel (pickled words of
`eagle3_data.engines.base`), and dies with the supervisor (`eagle3_data.system.child`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection, wait

from eagle3_data.engines.base import Done, Engine, Fatal, ModelSettings, Ready, Rejected, Work, load_engine
from eagle3_data.errors import EngineError, SampleError
from eagle3_data.records.failures import describe_exception, describe_situation
from eagle3_data.system.child import watch_lifeline

GATHER_S = 0.02
"""How long an idle engine waits for further requests after one: its first step should not compute that one
alone."""
OWN_WORDS_S = 5.0
"""Time for the engine to notice by itself that a process of its died: it may know why."""


def serve(engine: Engine, channel: Connection) -> None:
    """Feed requests to the engine as they come, and send back what it finishes, until the supervisor sends
    None."""
    in_flight = 0
    draining = False
    while in_flight or not draining:
        idle = not in_flight
        while not draining and channel.poll(None if not in_flight else GATHER_S if idle else 0):
            request: Work | None = channel.recv()
            if request is None:
                draining = True
                break
            try:
                engine.submit(request)
                in_flight += 1
            except SampleError as error:
                channel.send(Rejected(request.key, describe_exception(error)))
        if in_flight:
            results = engine.step()
            for result in results:
                channel.send(result)
            in_flight -= sum(isinstance(result, Done) for result in results)


def watch_own_children(channel: Connection) -> None:
    """Notify the supervisor when a process of the engine dies: after a kill -9 of vLLM's engine core, `step`
    waits forever."""
    children = {process.sentinel: process for process in multiprocessing.active_children()}

    def wait_for_death() -> None:
        died = children[wait(list(children))[0]]  # type: ignore[index]
        time.sleep(OWN_WORDS_S)
        with contextlib.suppress(OSError):  # closed: the supervisor has ended it
            channel.send(
                Fatal(
                    describe_situation(
                        EngineError, f"the engine's process {died.name} ended with exit code {died.exitcode}"
                    )
                )
            )
            os._exit(1)

    if children:
        threading.Thread(target=wait_for_death, daemon=True).start()


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    watch_lifeline()
    channel = Connection(int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    settings: ModelSettings = channel.recv()
    started = time.monotonic()
    try:
        make_engine = load_engine(settings.engine)
        import_s = time.monotonic() - started
        engine = make_engine(settings)
        load_s = time.monotonic() - started
        channel.send(Ready(engine.versions, load_s, import_s, step_tokens=engine.step_tokens))
        watch_own_children(channel)
        serve(engine, channel)
        channel.close()  # processes that end from here on were asked to
        engine.close()
    except BaseException as error:  # noqa: BLE001  the supervisor must learn of it, whatever it is
        traceback.print_exc()
        with contextlib.suppress(OSError):
            channel.send(Fatal(describe_exception(error)))
        sys.exit(1)


if __name__ == "__main__":
    main()
