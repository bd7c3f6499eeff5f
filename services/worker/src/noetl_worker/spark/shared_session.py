"""The worker's side of a call of `main`: the session is lent to the process that runs it.

Where the driver is at hand, the process gets a gateway of its own into the driver's Java process,
which ends with the call, as all that it holds there does. At a Spark Connect server it opens the
same session as another client.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import structs
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from noetl_worker.spark import code_call
from noetl_worker.spark.code_call import CodeAnswer, CodeCall, CodeFailed, CodeRunner
from noetl_worker.spark.session_options import LOOPBACK

GROUP = "spark.jobGroup.id"
_SECRET_BYTES = 32


@contextmanager
def run_main(
    session: SparkSession,
    call: CodeCall,
    frames: Mapping[str, DataFrame],
    runner: CodeRunner,
) -> Iterator[tuple[Any, dict[str, DataFrame]]]:
    """Run `main` over frames; yield the plain value and the tables that it returned.

    The tables are to be read in the block. Raises `CodeFailed`.
    """
    lend = _lend_at_server if "connect" in type(session).__module__ else _lend_in_process
    with lend(session, call, frames, runner) as (answer, tables):
        yield answer.value, tables


@contextmanager
def _lend_in_process(
    session: SparkSession,
    call: CodeCall,
    frames: Mapping[str, DataFrame],
    runner: CodeRunner,
) -> Iterator[tuple[CodeAnswer, dict[str, DataFrame]]]:
    classes: Any = session._jvm  # noqa: SLF001 - what Python's side lacks
    shared = classes.java.util.concurrent.ConcurrentHashMap()
    shared.put(code_call.SESSION, session._jsparkSession)  # noqa: SLF001 - as above
    for name, frame in frames.items():
        shared.put(code_call.name_input(name), frame._jdf)  # noqa: SLF001 - as above
    secret = secrets.token_hex(_SECRET_BYTES)
    builder = classes.py4j.ClientServer.ClientServerBuilder(shared)
    host = classes.java.net.InetAddress.getByName(LOOPBACK)
    server = builder.javaPort(0).javaAddress(host).authToken(secret).build()
    server.startServer()
    try:
        answer = _send_call(
            runner,
            call,
            port=server.getJavaServer().getListeningPort(),
            secret=secret,
            mark=session.sparkContext.getLocalProperty(GROUP) or "",
        )
        yield (
            answer,
            {
                name: DataFrame(shared.get(code_call.name_result(name)), session)
                for name in answer.tables
            },
        )
    finally:
        # Threads of the code may have begun jobs of which nobody waits for the end.
        with suppress(Py4JError, OSError):
            session.interruptAll()
        with suppress(Py4JError, OSError):
            server.shutdown()


@contextmanager
def _lend_at_server(
    session: SparkSession,
    call: CodeCall,
    frames: Mapping[str, DataFrame],
    runner: CodeRunner,
) -> Iterator[tuple[CodeAnswer, dict[str, DataFrame]]]:
    connect_session: Any = session
    client = connect_session.client
    place, _, options_text = runner.master.partition("/;")
    options = [part for part in options_text.split(";") if part]
    options.append(f"session_id={connect_session.session_id}")
    if client._user_id:  # noqa: SLF001 - a session is found by its user, too
        options.append(f"user_id={client._user_id}")  # noqa: SLF001 - as above
    for name, frame in frames.items():
        frame.createOrReplaceTempView(code_call.name_view(code_call.name_input(name)))
    answer = _send_call(
        runner,
        call,
        address=f"{place.rstrip('/')}/;{';'.join(options)}",
        mark=next(iter(session.getTags()), ""),
    )
    yield (
        answer,
        {
            name: session.table(f"`{code_call.name_view(code_call.name_result(name))}`")
            for name in answer.tables
        },
    )


def _send_call(runner: CodeRunner, call: CodeCall, **fields: Any) -> CodeAnswer:
    answer = runner.send_call(structs.replace(call, packages=runner.packages, **fields))
    if answer.raised is not None or answer.error is not None:
        raise CodeFailed(answer)
    return answer
