"""The HTTP client of the tests.

A client of its own for each question would load the certificates of the world each time: forty
times what asking costs, taken from the services whose answer is waited for. No connection is kept,
since whoever was asked may have been killed and started again by the next time.
"""

import httpx

http = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
# A client that waits for the end of an execution asks for nothing else.
ENDS = ["playbook.completed", "playbook.failed", "execution.cancelled"]
