"""The drop-in reader of DALI's dynamic mode.

`ndd.readers.File` drives an operator: it gives it a workspace for every batch, asks it
for metadata and checkpoints. `File` inherits all of that, and puts a `BatchStream` where DALI's
operator would be. So epochs, samples, shards, states and errors are DALI's own.
"""

import contextlib
import json
from typing import Any, Unpack

import numpy as np
import nvidia.dali.experimental.dynamic as ndd

from ..contract.options import dali_flag, require_integer
from ..dali import add_reader, compat
from ..dali.self_test import require_same_order
from ..order.state import read_checkpoint
from ..readers.arguments import IgnoredArguments, ReadingArguments, complete, takes_arguments
from ..readers.files import SampleArguments, prepare_file
from ..samples import discovery
from .file_operator import FileOperator, FileSource

__all__ = ["File"]


class _Arguments(SampleArguments, ReadingArguments, IgnoredArguments, total=False):
    """The arguments that `File` shares with `readers.file`."""


class File(ndd.readers.File):  # type: ignore[misc]  # DALI has no type for it
    """`ndd.readers.File` with a choice of how the bytes are read.

    The arguments are the same, and so are samples, labels, order, shards and epochs, bit for bit;
    only `backend` and `backend_options` are new, see `dali_storage.readers.file`. As there, bad
    arguments are refused at once, and missing files raise `FileNotFoundError`.

        reader = File(file_root=root, random_shuffle=True, backend="block", backend_options={...})
        for data, labels in reader.next_epoch(batch_size=64, capture=True):
            images = ndd.decoders.image(data, device="gpu")

    All methods are those of `ndd.readers.File`: `next_epoch()`, also with `capture=True`, calls,
    `get_metadata()`, `get_state()` and `set_state()` for `ndd.checkpoint.Checkpoint`. A reader
    works in `ndd.pytorch.nodes.Reader(File, ...)`, too. As with DALI's reader, `next_epoch()` after
    an abandoned epoch or a restored state goes on from that sample, for as many batches as a whole
    epoch has.

    Batches are shared with DALI and not copied; their memory is used again when the last reference
    to them is gone. The reader is closed by `close()`, by `with`, or when it is dropped.
    """

    _checkpointing_enabled: bool  # these are of DALI's reader
    _max_batch_size: int | None
    _op_backend: Any
    _pending_state: bytes | None

    @takes_arguments(file_filters=discovery.DEFAULT_FILE_FILTERS)
    def __init__(
        self,
        max_batch_size: int | None = None,
        name: str | None = None,
        device: Any = "cpu",
        *,
        enable_checkpointing: bool = False,
        **given: Unpack[_Arguments],
    ) -> None:
        """Open nothing yet; the samples are found when the first batch or `get_metadata()` asks.

        Args:
            max_batch_size: the batch size for `next_epoch()`; by default that of its first call.
            name: for error messages.
            device: must be "cpu"; `data.gpu()` copies a batch.
            seed: as in DALI, -1 by default, a seed like any other.
            enable_checkpointing: whether `get_state()` works. As in DALI, it changes the order of
                `shuffle_after_epoch`.

        Raises:
            ValueError, TypeError: an argument is wrong; the message has its name and value.
        """
        if not isinstance(name, (str, type(None))):
            raise TypeError(f"name must be a string, not {name!r}")
        device = getattr(device, "device_type", device) or "cpu"
        if device != "cpu":
            raise ValueError(
                f"device must be 'cpu' in dynamic mode, not {device!r}: data.gpu() copies a batch "
                "to the GPU"
            )
        if max_batch_size is not None:
            max_batch_size = _integer("File", "max_batch_size", max_batch_size)
        arguments = complete(File.__init__, given)
        dali_flag("lazy_init", arguments["lazy_init"])
        opening = prepare_file({**arguments, "device": device})
        order = opening.order
        super().__init__(
            max_batch_size,
            name,
            num_shards=order.num_shards,
            shard_id=order.shard_id,
            stick_to_shard=order.stick_to_shard,
            enable_checkpointing=dali_flag("enable_checkpointing", enable_checkpointing),
        )
        self._opening = opening
        self._source = FileSource(self._name, opening)

    def next_epoch(self, *arguments: Any, **named: Any) -> Any:
        """See `ndd.readers.File`.

        Raises:
            NotImplementedError: `capture=True`, which DALI 2.2 calls `compile=True`, before 2.3.
        """
        if any((*arguments[2:], named.get("capture"), named.get("compile"))):
            what = "dali_storage.dynamic.readers.File with capture=True (compile=True in DALI 2.2)"
            compat.require(what, (2, 3), NotImplementedError)
        return super().next_epoch(*arguments, **named)

    def set_state(self, state: Any) -> None:
        """Go on where `get_state()` was called; before the first batch, as with DALI's reader.

        Raises:
            TypeError, ValueError: it is no state of such a reader, and any earlier one stays. That
                it is of another batch size or number of samples, the first batch finds.
            RuntimeError: the reader has begun to read.
        """
        before = self._checkpointing_enabled, self._pending_state
        try:
            super().set_state(state)
            read_checkpoint("it", json.loads(self._pending_state or b""))
        except ValueError as error:
            self._checkpointing_enabled, self._pending_state = before
            what = f"{self._source}: this is no state of it: {str(state)!r}"
            raise ValueError(f"{what} ({error})") from None

    def close(self) -> None:
        """Wait for calls and running reads; close files and threads. Twice is fine.

        The batches that were asked for until now stay valid.
        """
        if self._last_invocation is not None:
            with contextlib.suppress(Exception):  # the result of the call has it, too
                self._last_invocation.run()
        self._source.close()

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What follows is called by the methods of DALI's reader.

    def _infer_num_outputs(self, *_: Any, **__: Any) -> int:
        return 2

    def _init_backend(self, ctx: Any, inputs: Any, args: Any) -> None:
        with self._lock:
            if self._op_backend is not None:
                return
            require_same_order()
            if self._max_batch_size is None:
                self._max_batch_size = 1
            batch_size = _integer(str(self._source), "batch_size", self._max_batch_size)
            self._source.configure(
                batch_size=batch_size, seed=None, checkpointing=self._checkpointing_enabled
            )
            if self._pending_state is not None:
                self._source.restore(json.loads(self._pending_state))
            self._source.start(
                num_threads=(ctx or ndd.EvalContext.current()).num_threads,
                device_id=None,  # not page-locked: we do not learn when a GPU has read a batch
            )
            self._pending_state = None
            self._op_backend = FileOperator(self._source, batch_size)

    def _wire_pipeline(self, source: Any) -> tuple[Any, ...]:
        """With `capture=True`, go on in the pipeline that DALI makes of the loop's body."""
        return add_reader(self._name, self._opening, stream=self._source, lazy=True)

    def _transfer_into(self, pipe: Any) -> bool:
        self._transferred = True
        return True


def _integer(where: str, argument: str, value: Any) -> int:
    """A batch size; as in DALI, also an integer of numpy."""
    value = value.item() if isinstance(value, np.integer) else value
    require_integer(where, argument, value, range(1, 2**31))
    return value  # type: ignore[no-any-return]
