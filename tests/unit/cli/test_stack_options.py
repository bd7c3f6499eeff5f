from noetl_cli.stack.home_folder.options import StackOptions, list_unapplied


def test_what_a_running_stack_does_not_have_is_named() -> None:
    running = StackOptions(workers=2, settings={"NOETL_WORKER_LEASE_S": "5"})
    assert list_unapplied(StackOptions(), running) == []
    assert list_unapplied(running, running) == []
    stack_options = StackOptions(
        workers=4,
        has_s3=False,
        settings={"NOETL_WORKER_LEASE_S": "5", "NOETL_WORKER_SECRET_FOLDER": "/secrets"},
    )
    assert list_unapplied(stack_options, running) == [
        "workers",
        "has_s3",
        "NOETL_WORKER_SECRET_FOLDER",
    ]
