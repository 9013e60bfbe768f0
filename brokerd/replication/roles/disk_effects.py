"""Carries out the effects that change the log or the epoch files, each of them durably, but for an append.

`driver` is the one caller.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.log import LogPosition, ReplicatedLog
from brokerd.replication.roles import effects
from remoting.errors import DamagedRecord, ProtocolError, StorageError

log = logging.getLogger(__name__)

DiskEffect = (
    effects.AppendReplicated
    | effects.PersistEpochs
    | effects.PersistMasterEpoch
    | effects.ResetLog
    | effects.SettleLog
    | effects.TruncateLog
)


class LogRefusedError(Exception):
    """The log is well but did not take a master's bytes or cut."""

    def __init__(self, reason: str, why: effects.Refusal) -> None:
        super().__init__(reason)
        self.why = why


class DiskEffects:
    """A broker's log and epoch files."""

    def __init__(self, log: ReplicatedLog, epoch_file: EpochFile) -> None:
        self._log = log
        self._epoch_file = epoch_file

    def position(self) -> LogPosition:
        """What there is."""
        own = self._log
        return LogPosition(own.min_offset, own.end_offset, own.flushed_offset, own.segment_size_bytes)

    def entries(self) -> Sequence[EpochEntry]:
        """The epoch list as it is on disk. Raises StorageError."""
        return self._epoch_file.load()[0].entries

    def carry_out(self, effect: DiskEffect) -> None:
        """Raises LogRefusedError, or StorageError: what should follow must not happen."""
        try:
            self._carry_out(effect)
        except DamagedRecord as error:
            reason = f"{error}: the master's copy is damaged, or was on the way here; this replica's own log is well"
            raise LogRefusedError(reason, effects.Refusal.DAMAGED) from error
        except ProtocolError as error:
            raise LogRefusedError(str(error), effects.Refusal.MISFIT) from error
        except StorageError as error:
            if isinstance(effect, effects.AppendReplicated) and error.is_out_of_space:
                raise LogRefusedError(str(error), effects.Refusal.FULL) from error
            raise

    def _carry_out(self, effect: DiskEffect) -> None:
        match effect:
            case effects.AppendReplicated(offset, buffers):
                self._log.append_replicated(offset, buffers)
                assert self._log.end_offset == offset + sum(map(len, buffers))
            case effects.PersistMasterEpoch(epoch):
                self._epoch_file.save_master_epoch(epoch)
            case effects.PersistEpochs(entries):
                self._epoch_file.save_entries(entries)
            case effects.TruncateLog(offset):
                log.info("cutting the log from %d to %d, where the master's differs", self._log.end_offset, offset)
                self._log.truncate(offset)
                assert self._log.end_offset == offset
            case effects.ResetLog(offset):
                if self._log.end_offset > self._log.min_offset:
                    log.info("dropping the whole log, to copy the master's")
                self._log.reset(offset)
                assert self._log.min_offset == self._log.end_offset == offset
            case effects.SettleLog():
                self._log.settle()
