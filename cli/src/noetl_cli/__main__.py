"""The command line: every verb, and the one place that turns failures into exit codes."""

import sys

import typer

from noetl_cli import inputs, render
from noetl_cli.commands import (
    approvals,
    approve,
    audit,
    cancel,
    catalog,
    credential,
    dlq,
    doctor,
    down,
    events,
    fork,
    lineage,
    lint,
    logs,
    ls,
    pause,
    payloads,
    plan,
    pools,
    projection,
    register,
    replay,
    rerun,
    resume,
    retention,
    run,
    schedule,
    schema,
    signal,
    status,
    trace,
    trigger,
    up,
    webhook,
)
from noetl_cli.failures import CliError, ExitCode

app = typer.Typer(
    name="noetl",
    help="Run data playbooks that survive the death of any process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# The stack.
app.command("up")(up.up)
app.command("down")(down.down)
app.command("doctor")(doctor.doctor)
app.command("logs")(logs.logs)

# Playbooks and executions.
app.command("run")(run.run)
app.command("status")(status.status)
app.command("ls")(ls.ls)
app.command("events")(events.events)
app.command("trace")(trace.trace)
app.command("lineage")(lineage.lineage)
app.command("cancel")(cancel.cancel)
app.command("pause")(pause.pause)
app.command("resume")(resume.resume)
app.command("rerun")(rerun.rerun)
app.command("fork")(fork.fork)
app.command("signal")(signal.signal)
app.command("approve")(approve.approve)
app.command("approvals")(approvals.approvals)
app.command("lint")(lint.lint)
app.command("plan")(plan.plan)
app.command("pools")(pools.pools)
app.command("register")(register.register)
app.add_typer(catalog.app, name="catalog")
app.add_typer(credential.app, name="credential")
app.add_typer(schedule.app, name="schedule")
app.add_typer(webhook.app, name="webhook")
app.add_typer(trigger.app, name="trigger")
app.add_typer(dlq.app, name="dlq")
app.add_typer(payloads.app, name="payloads")

# The past.
app.add_typer(replay.app, name="replay")
app.add_typer(audit.app, name="audit")
app.add_typer(projection.app, name="projection")
app.add_typer(retention.app, name="retention")
app.command("schema")(schema.schema)


def main() -> None:
    """Run one verb and end with its exit code."""
    try:
        inputs.check_words(sys.argv[1:])
        app()
    except CliError as error:
        render.failure(error, as_json="--json" in sys.argv[1:])
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.CANCELLED)
    except BrokenPipeError:
        # The reader of our pipe has seen enough.
        sys.stderr.close()
        sys.exit(ExitCode.OK)


if __name__ == "__main__":
    main()
