"""Files of data sets on Hugging Face's hub: URLs at a pinned commit, or paths in its local cache.

A name is `hf://datasets/OWNER/NAME[@REVISION]/PATH`. The revision is a branch, a tag or a commit,
also `refs/convert/parquet` and `refs/pr/N`; without one, `main`. `*`, `?` and `[...]` in the path
match within one folder. The package huggingface_hub makes the requests, and finds the endpoint, the
token and the cache by its variables:
https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from itertools import takewhile
from typing import NamedTuple
from urllib.parse import quote, unquote

import huggingface_hub as hub
from huggingface_hub import errors
from huggingface_hub.hf_api import RepoFile

from ..contract.objects import require_public
from ..contract.remote import PINNED, Known

_NAME = re.compile(
    r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/convert/[^/]+|refs/pr/\d+|[^/]+))?/(.*[^/])"
)
_FORM = "hf://datasets/OWNER/NAME/PATH, or OWNER/NAME@REVISION for another one than main"
_SHARD = re.compile(r"(.*-)\d{5}(-of-(\d{5}).*)")  # as the package datasets names files of a split
_SHOWN = 10  # names in a message
_SECONDS = 30.0  # for the first answer; huggingface_hub would wait for ever

_LOG_IN = "set HF_TOKEN, or run hf auth login"
_FAILURES: Mapping[str | int, tuple[int, str]] = {
    "DisabledRepoError": (errno.EACCES, "the data set is disabled; look at {page}"),
    "GatedRepoError": (
        errno.EACCES,
        f"the data set is gated; accept its conditions on {{page}}, and {_LOG_IN}",
    ),
    "LocalEntryNotFoundError": (
        errno.ENOENT,
        "the local cache does not have this revision; run hf download {repository} --repo-type "
        "dataset, or unset HF_HUB_OFFLINE",
    ),
    "RepositoryNotFoundError": (
        errno.ENOENT,
        f"there is no such data set, or it is private; look at {{page}}, and {_LOG_IN}",
    ),
    "RevisionNotFoundError": (errno.ENOENT, "there is no such revision; look at {page}"),
    401: (errno.EACCES, f"the hub refuses the token; {_LOG_IN}"),
    403: (errno.EACCES, f"the token may not read this; look at {{page}}, and {_LOG_IN}"),
    429: (errno.EIO, f"the hub limits requests; wait five minutes, or {_LOG_IN}"),
}
"""errno and message by the class of an error of huggingface_hub or, for others, by the status."""


class _Name(NamedTuple):
    """A name in its parts; `path` may be a pattern."""

    text: str
    repository: str
    revision: str
    path: str

    def matches(self, path: str) -> bool:
        own, its = self.path.split("/"), path.split("/")
        return len(own) == len(its) and all(map(fnmatchcase, its, own))

    @property
    def folder(self) -> str:
        """The folder that has all files of this name."""
        *folders, _ = self.path.split("/")
        return "/".join(takewhile(lambda it: not re.search(r"[*?[]", it), folders))


def find(names: Sequence[bytes]) -> tuple[list[bytes], dict[bytes, Known]]:
    """Return the files with some names: URLs and what is known of each; or local paths.

    A pattern stands for its files in the order of their code points. Each revision is looked up
    once. The files are read in the local cache if it has all of them.

    Raises:
        ValueError: this is not the name of a file of a data set; or HF_ENDPOINT has a password.
        OSError: there is no such file, or no answer; the message says which page to visit, or what
            to set.
    """
    api, known, local = _Api(), dict[bytes, Known](), list[str]()
    found = list[bytes]()
    for name in map(_parsed, names):
        with _explained(api.page(name.repository), name):
            commit, there = api.commit(name.repository, name.revision)
            deep = name.path.count("/") > name.folder.count("/") + bool(name.folder)
            files = api.files(name.repository, commit, name.folder, deep)
        for path in _chosen(name, files, there):
            url = f"{api.page(name.repository)}/resolve/{commit}/{quote(path)}".encode()
            known[url] = files[path]
            cached = len(local) == len(found) and hub.try_to_load_from_cache(
                name.repository, path, revision=commit, repo_type="dataset"
            )
            found.append(url)
            local += [cached] if isinstance(cached, str) else []
    return ([*map(os.fsencode, local)], {}) if len(local) == len(found) else (found, known)


def _parsed(name: bytes) -> _Name:
    text = os.fsdecode(name)
    if not (match := _NAME.fullmatch(text)):
        raise ValueError(f"{text!r} is no file of a data set; write {_FORM}")
    if "**" in match[3]:
        raise ValueError(f"{text!r} has **; write a * for each folder")
    return _Name(text, match[1], unquote(match[2] or "main"), match[3])


def _chosen(name: _Name, files: Mapping[str, Known], there: Sequence[str]) -> list[str]:
    """Return the files that a name stands for, sorted; `there`: all files of the data set.

    Raises FileNotFoundError if there are none, or not all of a split, which happens in the cache.
    """
    found = sorted(filter(name.matches, files))
    if not found:
        shown = [it for it in sorted(there) if it.endswith(".parquet")] or sorted(there)
        more = f" and {len(shown) - _SHOWN:,} more" if len(shown) > _SHOWN else ""
        has = ", ".join(map(repr, shown[:_SHOWN])) + more
        raise FileNotFoundError(errno.ENOENT, f"there is no such file; there are {has}", name.text)
    splits = {(it[1], it[2], int(it[3])) for it in map(_SHARD.fullmatch, found) if it}
    shards = (f"{start}{n:05}{end}" for start, end, count in splits for n in range(count))
    if missing := [it for it in shards if name.matches(it) and it not in files]:
        more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
        what = f"of the split, {missing[0]!r}{more} is missing"
        remedy = "give those that are there one by one, or get all by hf download"
        raise FileNotFoundError(errno.ENOENT, f"{what}; {remedy}", name.text)
    return found


class _Api:
    """The hub or, with HF_HUB_OFFLINE, what its local cache has. Each answer is kept."""

    def __init__(self) -> None:
        self._api, self._offline = hub.HfApi(), hub.constants.HF_HUB_OFFLINE
        try:
            require_public(self._api.endpoint.encode())
        except ValueError as error:
            raise ValueError(f"HF_ENDPOINT: {error}") from None
        self.commit, self.files = cache(self._commit), cache(self._files)

    def page(self, repository: str) -> str:
        return f"{self._api.endpoint}/datasets/{repository}"

    def _commit(self, repository: str, revision: str) -> tuple[str, Sequence[str]]:
        """Return the commit of a revision, and all files there."""
        if self._offline:
            # No patterns: files may be missing that nobody wants.
            given = {"revision": revision, "local_files_only": True, "allow_patterns": []}
            top = hub.snapshot_download(repository, repo_type="dataset", **given)
            paths = (os.path.join(at, it) for at, _, files in os.walk(top) for it in files)
            there = filter(os.path.exists, paths)  # of a file that was deleted, a link may be left
            return os.path.basename(top), [os.path.relpath(it, top) for it in there]
        about = self._api.dataset_info(repository, revision=revision, timeout=_SECONDS)
        if about.id != repository:
            what = f"the data set was renamed; write hf://datasets/{about.id}"
            raise FileNotFoundError(errno.ENOENT, what)
        return about.sha or "", [it.rfilename for it in about.siblings or ()]

    def _files(self, repository: str, commit: str, folder: str, deep: bool) -> dict[str, Known]:
        """Return what is known of the files in a folder, with `deep` also in those below."""
        if self._offline:
            return dict.fromkeys(self.commit(repository, commit)[1], (0, PINNED))
        given = {"recursive": deep, "revision": commit, "repo_type": "dataset"}
        with suppress(errors.EntryNotFoundError):  # there is no such folder
            tree = self._api.list_repo_tree(repository, folder or None, **given)
            files = [it for it in tree if isinstance(it, RepoFile)]
            # For LFS, the blob is a pointer with the hash of the content.
            return {it.path: (it.size, PINNED + it.blob_id.encode()) for it in files}
        return {}


@contextmanager
def _explained(page: str, name: _Name) -> Iterator[None]:
    """Raise the errors of huggingface_hub as an OSError of a name."""
    try:
        yield
    except Exception as error:
        raise OSError(*_failure(error, page, name.repository), name.text) from None


def _failure(error: Exception, page: str, repository: str) -> tuple[int, str]:
    """Return errno and message. The classes of errors of the network depend on the release."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    for known in (*(it.__name__ for it in type(error).__mro__), status):
        if known in _FAILURES:
            number, what = _FAILURES[known]
            return number, what.format(page=page, repository=repository)
    kind = type(error)
    if kind is FileNotFoundError:  # ours
        return errno.ENOENT, str(error.args[1])
    if status:
        later = "try again later, or look at https://status.huggingface.co"
        return errno.EIO, f"the hub failed ({status}); {later}"
    if isinstance(error, UnicodeError) or kind.__name__ == "LocalProtocolError":
        return errno.EINVAL, f"the token has characters that no token has; {_LOG_IN}"
    if kind.__module__.startswith("http") or isinstance(error, OSError):
        where = "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 reads the local cache"
        return errno.EHOSTUNREACH, f"the hub cannot be reached ({kind.__name__}); {where}"
    what = f"the hub sent an answer that is not its own ({kind.__name__})"
    return errno.EPROTO, f"{what}; check HF_ENDPOINT, and the proxies"
