"""Drop-in classes for `nvidia.dali.ops.readers`, with a choice of storage backend."""

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from nvidia.dali.pipeline import do_not_convert

from .. import readers as functions  # a name that `ops` does not hold
from ..contract.errors import BackendUnavailable
from ..contract.families import present
from ..readers.arguments import refuse_unknown

__all__ = [
    "COCO",
    "Caffe",
    "Caffe2",
    "Columns",
    "File",
    "Litdata",
    "Lmdb",
    "MXNet",
    "Manifest",
    "Mds",
    "NemoAsr",
    "Npz",
    "Numpy",
    "Parquet",
    "Records",
    "Sequence",
    "TFRecord",
    "Webdataset",
]


class ReaderOperator:
    """A reader made anywhere; each call within the definition of a graph adds a reader there.

    As in DALI, an argument is given to the constructor or to a call, `device` only to the
    constructor, and None means not given. The constructor opens nothing, and refuses unknown
    arguments.
    """

    reader: ClassVar[Any]  # the function, which describes arguments, outputs and errors
    defaults: ClassVar[Mapping[str, Any]] = {}  # of `dali_storage.patch`

    @do_not_convert  # type: ignore[untyped-decorator]
    def __init__(self, **given: Any) -> None:
        refuse_unknown(type(self).__name__, given, inspect.signature(self.reader).parameters)
        self._given = _not_none(given)

    @do_not_convert  # type: ignore[untyped-decorator]
    def __call__(self, **given: Any) -> Any:
        """Put a reader into the current pipeline, and return the result of the function."""
        for name in _not_none(given):
            if name == "device" or name in self._given:
                raise ValueError(f"{type(self).__name__}: give {name} to the constructor only")
        return self.read(**self._given | _not_none(given))

    @classmethod
    @do_not_convert  # type: ignore[untyped-decorator]
    def read(cls, **given: Any) -> Any:
        """The function, with the defaults of this class."""
        return cls.reader(**{**cls.defaults, **_not_none(given)})


def _not_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _operator(name: str) -> type[ReaderOperator]:
    reader = getattr(functions, _FUNCTIONS[name.lower()])
    doc = f"`readers.{reader.__name__}` as a class, see `ReaderOperator`."
    members = {"__module__": __name__, "__doc__": doc, "__signature__": inspect.signature(reader)}
    if hasattr(reader, "_schema_name"):
        members["schema_name"] = reader._schema_name
    return type(name, (ReaderOperator,), members | {"reader": staticmethod(reader)})


def refusing(name: str, missing: BackendUnavailable) -> type[ReaderOperator]:
    """Make a class in the place of one whose family is missing: every use raises the error."""

    def reader(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable(missing.reason, missing.remedy)

    reader.__name__ = _FUNCTIONS[name.lower()]
    return type(name, (ReaderOperator,), {"reader": staticmethod(reader), "__init__": reader})


if TYPE_CHECKING:
    _Operator: type[ReaderOperator] = ReaderOperator
    COCO = Caffe = Caffe2 = Columns = File = Litdata = Lmdb = MXNet = Manifest = _Operator
    Mds = NemoAsr = Npz = Numpy = Parquet = Records = Sequence = TFRecord = Webdataset = _Operator

_FUNCTIONS = {name.replace("_", ""): name for name in functions.__all__}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> type[ReaderOperator]:  # a class is made when it is first used
        if name in __all__:
            return globals().setdefault(name, _operator(name))  # the first, of two threads
        what = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(what, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return [*{*globals(), *present(sys.modules[__name__], __all__)}]
