"""The records of a slot's frames: each is written once, and says which attempt runs the frame."""

import itertools

from msgspec import Struct, structs

from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_contracts.ids import FrameId
from noetl_contracts.payloads import PayloadRef
from noetl_worker.domain import frames, lease_terms
from noetl_worker.domain.frames import FrameRecord, Takeover
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.tenant_payloads import TenantPayloads


class TakenElsewhere(Exception):  # noqa: N818 - it says what was found
    """Another run of this very attempt, or of a later one, has the slot.

    A copy and a later attempt have messages of their own, and report their ends by them. With
    `is_same_message` the broker delivered one message twice, as new, and both runs began by it:
    no other message may come for either.
    """

    def __init__(self, *, is_same_message: bool) -> None:
        super().__init__("another run has the slot")
        self.is_same_message = is_same_message


class RecordedFrame(Struct, frozen=True, kw_only=True):
    """A frame's record as it stands; `dispatches` count the earlier attempts that ran it.

    `offered_bytes` is the size of what this attempt wanted to write.
    """

    record: FrameRecord
    ref: PayloadRef
    dispatches: int = 0
    offered_bytes: int = 0


class FrameRecords:
    """Writes and finds frame records for one attempt of a slot's command."""

    def __init__(
        self, *, command: Command, payloads: TenantPayloads, mask: SecretMask, holder: str
    ) -> None:
        self._command = command
        self._payloads = payloads
        self._mask = mask
        self._holder = holder

    async def find_recorded(self, frame_id: FrameId) -> RecordedFrame | None:
        """Take over the frame that an earlier attempt recorded; raises `TakenElsewhere`."""
        data = await self._payloads.find_named(self._build_name(frame_id))
        return None if data is None else await self._take_recorded(frame_id, data)

    async def put_record(self, frame_id: FrameId, record: FrameRecord) -> RecordedFrame:
        """Write a record, masked; return the one that is there already, if one is.

        Raises `TakenElsewhere` when another run of this attempt wrote it.
        """
        data = self._mask.mask_bytes(codec.encode_canonical(record))
        await pass_failpoint(Failpoint.WORKER_ROWS_CLAIMED)
        standing = await self._payloads.put_named(self._build_name(frame_id), data)
        await pass_failpoint(Failpoint.WORKER_FRAME_RECORDED)
        if standing is None or standing == data:
            return self._build_recorded(frame_id, data, offered_bytes=len(data))
        return await self._take_recorded(frame_id, standing, offered_bytes=len(data))

    async def take_over_frame(self, frame_id: FrameId) -> int:
        """Be the next to run a frame that an earlier attempt ran; return how many ran it before.

        The worker that takes it writes its name behind the last one, which no other can do there:
        all who ran a frame are told in their order, and none after a later attempt. Should this
        one die, its own delivery comes again and leads to a new attempt. Raises `TakenElsewhere`.
        """
        takeover = Takeover(
            command_id=self._command.command_id,
            fence=self._command.attempt,
            holder=self._holder,
            resumes=self._command.resume is not None,
        )
        data = codec.encode_canonical(takeover)
        count = 1
        for place in itertools.count(start=1):
            name = frames.build_takeover_name(self._command.execution_id, frame_id, place=place)
            standing = await self._payloads.put_named(name, data)
            if standing is None or standing == data:
                break
            earlier = codec.decode_as(standing, Takeover)
            self._check_earlier_runner(earlier)
            count += not earlier.resumes
        return count

    async def _take_recorded(
        self, frame_id: FrameId, data: bytes, *, offered_bytes: int = 0
    ) -> RecordedFrame:
        """Run what is recorded, unless another run of this attempt recorded it."""
        recorded_frame = self._build_recorded(frame_id, data, offered_bytes=offered_bytes)
        record = recorded_frame.record
        own_run = (self._command.command_id, self._command.attempt, self._holder)
        if (record.command_id, record.fence, record.holder) == own_run:
            return recorded_frame
        self._check_earlier_runner(record)
        return structs.replace(recorded_frame, dispatches=await self.take_over_frame(frame_id))

    def _check_earlier_runner(self, runner: FrameRecord | Takeover) -> None:
        """Raise `TakenElsewhere` unless it is of an earlier attempt, or of an earlier command."""
        if runner.command_id != self._command.command_id or runner.fence < self._command.attempt:
            return
        is_same = runner.fence == self._command.attempt
        is_same &= lease_terms.is_same_message(runner.holder, self._holder)
        raise TakenElsewhere(is_same_message=is_same)

    def _build_recorded(
        self, frame_id: FrameId, data: bytes, *, offered_bytes: int
    ) -> RecordedFrame:
        record = codec.decode_as(data, FrameRecord)
        ref = self._payloads.build_named_ref(
            self._build_name(frame_id), data, row_count=len(record.rows)
        )
        return RecordedFrame(record=record, ref=ref, offered_bytes=offered_bytes)

    def _build_name(self, frame_id: FrameId) -> str:
        return frames.build_record_name(self._command.execution_id, frame_id)
