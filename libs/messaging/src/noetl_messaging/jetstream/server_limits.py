"""Says which limit of a NATS server or account is too small for the declared streams."""

from collections import Counter

from nats.js.errors import APIError

from noetl_messaging.streams.topology import Topology

_MIB = 1024 * 1024
# The numbers are the server's (`errors.json` of nats-server).
_ACCOUNT_FULL, _SERVER_FULL, _NO_ROOM = 10002, 10023, 10047
_CONSUMERS, _STREAMS, _ACK_PENDING, _STREAM_BYTES = 10026, 10027, 10121, 10122


def describe_limit(name: str, failure: APIError, topology: Topology) -> str | None:
    """Name the limit that keeps `name` from being made and what it must be; None if none does."""
    match failure.err_code:
        case code if code in (_ACCOUNT_FULL, _SERVER_FULL, _NO_ROOM):
            needed = sum(spec.bytes_max for spec in topology.streams) // _MIB
            problem = f"all streams together set {needed} MiB of a server's store aside"
            way = f"Raise `max_file_store`, or the account's `max_file`, above {needed} MiB."
        case code if code == _STREAMS:
            problem = f"{len(topology.streams)} streams are declared"
            way = f"Raise the account's `max_streams` to {len(topology.streams)} or more."
        case code if code == _CONSUMERS:
            counts = Counter(consumer.stream for consumer in topology.consumers)
            stream, most = counts.most_common(1)[0]
            problem = f"{most} consumers are declared for {stream}"
            way = f"Raise the account's `max_consumers` to {most} or more, or declare fewer pools."
        case code if code == _ACK_PENDING:
            most = max(consumer.ack_pending_max for consumer in topology.consumers)
            problem = f"a consumer may have {most} messages unsettled"
            way = f"Raise the account's `max_ack_pending` to {most} or more."
        case code if code == _STREAM_BYTES:
            most = max(spec.bytes_max for spec in topology.streams) // _MIB
            problem = f"a stream may hold {most} MiB"
            way = f"Raise the account's `disk_max_stream_bytes` to {most} MiB or more."
        case _:
            return None
    return f"NATS has no room for {name}: {problem} ({failure.description}). {way}"
