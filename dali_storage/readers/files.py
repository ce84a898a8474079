"""`readers.file`: files as samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from ..contract._types import PathLike
from ..contract.format import Format
from ..reading.opening import Find
from ..samples import discovery, finding
from ..samples.locations import file_names, local_path
from ..samples.patterns import Patterns
from .arguments import (
    DaliArguments,
    DataNode,
    Nodes,
    Prepared,
    makes_reader,
    pick,
    prepare,
    refuse_unknown,
    spec_of,
)
from .plugs import Common


class FileArguments(discovery.Filters, DaliArguments, total=False):
    """The arguments of `file`."""

    exclude: PathLike | None
    file_list: PathLike | None
    file_root: PathLike | None
    files: PathLike | Sequence[PathLike] | None
    labels: int | Sequence[int] | None


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """The same as a value, with the defaults."""

    case_sensitive_filter: bool | None = False
    dir_filters: Patterns | None = None
    file_filters: Patterns | None = discovery.DEFAULT_FILE_FILTERS
    file_list: PathLike | None = None
    file_root: PathLike | None = None
    files: PathLike | Sequence[PathLike] | None = None
    labels: int | Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class _Chosen(_Samples):
    exclude: PathLike | None = None


@makes_reader(_Chosen, samples=_Chosen.__annotations__ | _Samples.__annotations__)
def file(**given: Unpack[FileArguments]) -> Prepared[tuple[DataNode, ...]]:
    """`fn.readers.file` with a choice of storage backend.

    The arguments are the same, and so are the samples, labels, order, shards and epochs, bit for
    bit. New are `backend`, `backend_options`, `return_index`, `pinned`, `resume`, `device="gpu"`,
    `weights`, `epoch_size`, `order`, `on_error`, `check`, `max_replaced`, `bad_samples`,
    `source_info`, `stall_after`, `receipt` and `exclude`. For every argument but `stall_after`,
    None means its default. As in DALI, `int()` converts integers and labels: text is parsed, and
    `seed=1.5` is 1. Text for a flag is refused, because DALI reads "False" as True.

    The samples are the files in the class directories of `file_root`, or the files named by `files`
    or `file_list`. Without any of the three, the backend must know its samples, as backends with an
    extent map do.

    `file_root` and the names in `files` and `file_list` are local paths or URLs of objects:
    `s3://bucket/key`, `gs://bucket/key`, `az://container/blob`, and, as names only, `http://` and
    `https://`. As in DALI, labels of a URL as `file_root` may differ from labels of the same
    directories on disk: samples are sorted by their whole keys, in which `a-b/x` is before `a/x`; a
    class gets its label when its first sample appears; and an object directly in the root is a
    sample of a class of its own (not for gs).

    Args:
        device: the memory for the samples' bytes. "cpu" or None: host memory. "gpu": GPU memory,
            with a backend that reads into it (xnvme-block and xnvme-bam with `{"mem": "gpu"}`).
            Right for raw tensors, records, .npy files, and LZ4 blocks for `fn.decoders.inflate`.
            Not for images, audio and video: DALI's decoders need host memory; use `pinned`.
        name: the reader's name in `pipe.reader_meta(name)`, `pipe.epoch_size(name)` and the
            `reader_name` of DALI's iterators. By default DALI's: "__File_0" and so on.
        bytes_per_sample_hint: ignored; buffers have the size of the batches.
        buffer_bytes: the most bytes of batches that are read ahead, or kept for reuse. Where
            `prefetch_queue_depth` or `lanes` ask for more, fewer batches are read ahead: as many as
            fit, by the largest so far, but one is read while another is delivered. Batches that
            DALI or you still hold do not count. None: 1 GiB, or an eighth of the free memory if
            that is less.
        case_sensitive_filter: match the case of letters in filters.
        dir_filters: glob patterns of the class directories to read; one string is one pattern. By
            default all. Labels count only matching directories.
        exclude: a file with the names of samples to leave out, written by `bad_samples` or by
            `python -m dali_storage check`. A state of more or fewer samples is refused later.
        dont_use_mmap: ignored; whole files are never mapped. As in DALI with True, an empty file
            is a sample of shape (0,), and truncating a file during a read does no harm.
        file_filters: glob patterns of the files to read; one string is one pattern. By default the
            extensions that DALI decodes: `*.jpg`, `*.png`, `*.wav` and 12 more.
        file_list: a local text file with a line for each sample: its name, white space, its label
            (an integer). Names are relative to `file_root`, by default to the directory of the
            file.
        file_root: a directory. Every directory inside is a class; sorted by name (as bytes),
            classes have the labels 0, 1, 2 and so on. Deeper directories are not read. Or a URL,
            see above. Or an index of either, made by `python -m dali_storage index`, for the same
            samples and labels; filters that differ from the index are refused. With `files` or
            `file_list`, the directory or URL for relative names.
        files: names of files; they may repeat, and keep their order.
        initial_fill: size of the window of `random_shuffle`, in samples, at least 1. The window
            holds only indices, so unlike in DALI a large window costs no memory.
        labels: the labels of `files`, int32. By default 0, 1, 2 and so on.
        lazy_init: find the samples and open the backend when the pipeline first needs them, instead
            of here.
        num_shards: number of parts of the data set; from 1 to the number of samples.
        pad_last_batch: at the end of an epoch, repeat its last sample until the batch is full and
            all shards have had equally many batches. Otherwise the next epoch begins within the
            batch.
        prefetch_queue_depth: number of batches to read ahead of the pipeline, 1 to 65536; raised to
            the number of the backend's lanes. Small batches are read, and counted here, as several
            at once. (The pipeline's argument of this name is the number of batches that the
            pipeline is ahead of the user; both add up.)
        preserve: keep the reader in the pipeline even if none of its outputs is used.
        random_shuffle: draw the samples at random from a window of `initial_fill` samples, which
            moves over the list. The list itself is shuffled once, always in the same way.
        read_ahead: ignored; the reader always reads ahead.
        seed: the seed of `random_shuffle`. By default the pipeline's next seed, as for
            `fn.readers.file`, so that the order is the same, and random operators draw the same
            numbers. In a pipeline without a seed, the default is random; with enable_checkpointing,
            0, so that a restored pipeline has the same order.
        shard_id: the shard to begin with, from 0 to `num_shards` - 1.
        shuffle_after_epoch: shuffle the whole list before every epoch, in the same way on all
            shards. Implies `stick_to_shard`; neither `stick_to_shard` nor `random_shuffle` may be
            given as well.
        shuffle_after_epoch_seed: the seed of `shuffle_after_epoch`; 524287 by default.
        skip_cached_images: must be False; the cache of DALI's image decoder is not accessible.
        source_info: name the samples in DALI's property `source_info`, which costs 0.5 us per
            sample. None: in outputs on the way to `fn.get_property(key="source_info")`, if DALI
            permits it. True: in all outputs, also for `pipe.run()[0][0].source_info()`, and for the
            errors of image decoders before DALI 2.2; or raise. False: never.
        stall_after: seconds. A thread of the reader that is in one stage, such as reading, for
            longer is a warning of the logger `dali_storage`, with the reader's lines of
            `dali_storage.report()`; again after 2, 4 and 8 times as long. None: no warnings.
        stick_to_shard: read the same shard in every epoch, instead of the next one.
        tensor_init_bytes: ignored, as bytes_per_sample_hint.
        backend: the name of the storage backend, or its class, a `dali_storage.Reader`.
            `python -m dali_storage` lists the names, and shows the ones that work on this machine.
            By default object-store for URLs, and python-file for paths.
        backend_options: keyword arguments for the backend, for example `{"direct": True}`.
        return_index: also return the index of every sample in `catalog()`.
        pinned: use page-locked buffers in host memory, which a GPU reads without a copy by the
            processor. From other memory DALI first copies every sample for the GPU. None: if the
            pipeline has a GPU; a `NotPageLocked` warning is given if CuPy is not installed or CUDA
            does not work. True: always, or raise; the pipeline must name its GPU (`device_id`).
            False: never, unless the backend itself uses such memory. A page-locked buffer is kept
            until the pipeline returns the outputs made from it, so the number of buffers grows by
            the number of batches that the pipeline prefetches.
        on_error: "raise": an unreadable sample is an error. "replace": deliver another sample in
            its place, always the same one, with its own label and index. A sample is bad if its
            file is missing, may not be read, keeps changing its size, or has an error on the disk;
            if an object is missing or was replaced; or if a record is not of its format. Faults of
            the machine stay errors: too many open files, credentials, the network, a changed extent
            map or container. The pipeline remembers bad samples until it is dropped, and reports
            the first one by a `SampleReplaced` warning. Not for two readers with matching samples.
        check: check the first and last bytes of JPEG, PNG and WAV, and the headers between, at a
            cost of 1 to 4 us per sample. A truncated sample is bad (without `on_error`, a
            `RecordError`). So are empty files, and zeros or HTML with the name of an image or of
            sound. Other formats are left to the decoder. Not in GPU memory.
        max_replaced: number of bad samples to accept; by default 10, or 0.1 % of all samples if
            more. Beyond this number, the error of the first bad sample is raised.
        bad_samples: a file to which a line of JSON is appended for each bad sample: index, path and
            reason. Processes may share the file. `exclude` reads such files.
        weights: frequencies of the samples. "balanced": all labels equally often. "sqrt": labels by
            the square root of their numbers of samples. A mapping: a number of at least 0 for each
            label. A sequence or array: a number for each sample, which then has its share of the
            epoch, rounded up or down (not drawn independently; 8 bytes of memory per sample).
            Samples come in the order of `readers.mix`, which is shuffled, shared by all ranks, and
            resumes on any number of ranks; random_shuffle and other arguments of DALI's order are
            refused.
        epoch_size: number of samples in an epoch. None: the number of samples. "largest": until
            each label with a weight has had one pass over its samples; "smallest": until one has.
            Without `weights`, samples come in shuffled passes, each sample once per pass.
        order: the indices of the samples of an epoch, of all ranks, each of which gets runs of
            indices: an array or sequence, the same in each epoch; a function from the number of the
            epoch to such indices; or a torch sampler that can repeat an epoch, such as a sampler
            with `set_epoch`.
        receipt: prove that an epoch has each sample once, see docs/receipts.md: "samples" hashes
            names and sizes, "bytes" also bytes; "content" hashes outputs alone, so that files and
            containers of the same samples have one receipt. Needs pad_last_batch=True, and xxhash.
        resume: the result of `readers.state()`: resume in mid-epoch, on any number of ranks. Each
            remaining sample is delivered once, by one of the ranks; then whole epochs follow. With
            the same shards and batch size, the remaining batches are bit-identical. Data set, order
            and seed must be the same, and pad_last_batch True. An iterator of DALI must have the
            reader's name (reader_name), and its first epoch is shorter. Excludes `checkpoint` of
            the pipeline, with which each rank resumes by itself.

    Returns:
        `(data, labels)` or `(data, labels, index)`. Labels and index are on the CPU, also with
        device="gpu"; `labels.gpu()` copies them.

        * data: the files' bytes; uint8, 1-D, of the file's size. Host memory, shared with DALI
          without a copy, except for files of up to 4 KiB with one size. The memory is reused when
          the last output that refers to it is gone. With device="gpu", GPU memory, which DALI
          copies once, within the GPU.
        * labels: int32, shape (1,).
        * index: int64, shape (1,).

        As with DALI's reader, several pipelines may use these nodes, and each reads for itself.
        The reader is closed when its pipeline is dropped.

    Raises:
        ValueError, TypeError: an argument is wrong; the message has its name and value.
        OSError: a directory or file list cannot be read, or a URL cannot be listed. (With
            lazy_init, this and the next are raised by the first use of the pipeline.)
        BackendUnavailable: the backend does not work on this machine; the message says why.
        RuntimeError: the pipeline has debug=True.

    The running pipeline raises:

        * OSError: a sample cannot be read, or is a replaced object (`ObjectReplacedError`);
          `filename` is its path or URL. `pipe.run()` raises the error when scheduling the sample's
          batch, as many batches early as the pipeline prefetches; an iterator of DALI, after
          delivering the earlier batches. The next call tries again, and no batch is lost. But DALI
          drops a batch of every other source in the pipeline, such as fn.external_source: with such
          a source, every further call raises RuntimeError.
        * BackendUnavailable, MemoryError: the buffers cannot be page-locked, with pinned=True or
          after the first; or a GPU has not enough memory; or source_info=True does not work here.
        * ValueError: the restored checkpoint, or `resume`, is of another data set, order or seed;
          or the checkpoint is of another shard, number of shards or batch size.
        * RuntimeError: the pipeline runs in a fork of the process that opened the reader, is
          serialized, or has two readers with one name.

    `fn.get_property(data, key="source_info")` is the name of a sample, relative to `file_root`, as
    in DALI. With device="gpu" it is empty. With `return_index`,
    `readers.catalog(pipe, name).path(index)` is the path of a sample.
    """
    return _prepared(None, given)


def read_files(find: Find | None, /, **given: Any) -> Nodes:
    """`file` with its arguments; `find` finds the samples, unless it is None."""
    refuse_unknown("file", given, spec_of(file).defaults)
    from ..dali import add_reader

    return add_reader(**_prepared(find, given).in_graph())


def _prepared(find: Find | None, given: Mapping[str, Any]) -> Prepared[Nodes]:
    samples, exclude = pick(_Samples, given), pick(_Chosen, given).exclude
    files = None if samples.files is None else file_names("files", samples.files)
    names = finding.locations(samples.file_root, files, samples.file_list)
    found = find or partial(finding.find, **{**vars(samples), "files": files})
    if exclude is not None:
        found = _leaving_out(exclude, found)
    return prepare(pick(Common, given), found, Format(), names=names)


def _leaving_out(exclude: PathLike, find: Find) -> Find:
    """Return what finds the samples that are not in a list of bad ones."""
    from ..bad_samples.exclusion import without

    local_path("exclude", exclude)
    return lambda *known: without(find(*known), exclude)
