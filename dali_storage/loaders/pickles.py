"""The values of a pickle, without unpickling it: nothing that a file names is imported or called.

A pickle is a program for a machine with a stack. `pickle.load()` runs it, and it may call any
function. `parse()` is another machine. It knows what Python 2's cPickle and Python 3 write
(protocols 2 to 4) for dicts, lists, strings, integers and arrays of bytes, builds only such values,
and refuses everything else. The opcodes are described in Python's Lib/pickletools.py.
"""

from __future__ import annotations

import math
import pickle  # the names of its opcodes, nothing else
import pickletools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_REMEDY = "extract the original archive again, or save the data with pickle.dump(protocol=4)"


class NotPlain(ValueError):  # noqa: N818  (a fact about the file)
    """A pickle that is damaged, or that holds anything but data. None of it was executed."""

    def __init__(self, position: int, what: str) -> None:
        """`position`: of the opcode, bytes from the start of the pickle."""
        super().__init__(f"byte {position}: {what}; {_REMEDY}")


@dataclass(slots=True, eq=False)
class ByteArray:
    """A uint8 array whose elements are left where they are in the pickle.

    Attributes:
        shape: its shape; empty if the pickle does not say it.
        fortran: whether the first index varies fastest in memory, and not the last.
        start: where its bytes start in the pickle. They are as many as the shape has elements.
    """

    shape: tuple[int, ...] = ()
    fortran: bool = False
    start: int = 0


def parse(pickled: memoryview) -> Any:
    """The value of a whole pickle: a dict, list, tuple, str, int, bool, None, bytes or `ByteArray`.

    Strings of Python 2 are str, decoded as Latin-1. Strings of bytes that are longer than 255 are
    the slice of the pickle that they are in. What makes arrays is an object without meaning.

    Raises:
        NotPlain: the pickle is truncated or damaged, or has anything else in it.
    """
    machine = _Machine(pickled)
    try:
        return machine.run()
    except NotPlain:
        raise
    except (LookupError, TypeError, ValueError, struct.error) as error:
        raise machine.refusal(f"the file is truncated or damaged ({error})") from None


_RECONSTRUCT, _NDARRAY, _DTYPE, _UINT8 = object(), object(), object(), object()
_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # since NumPy 2
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DTYPE,
}
_GLOBAL = re.compile(rb"([ -~]{1,99})\n([ -~]{1,99})\n")
# At most as many as pickles append at once: the memory of a match grows with its length.
_SMALL_INTEGERS = re.compile(rb"(?:K.){1,1000}", re.DOTALL)
_PROTOCOLS = range(2, 5)
_MOST_VALUES, _MOST_MARKS = 100_000, 100  # on the stack: files of plain data are far below
_MOST_DIMENSIONS = 32  # of NumPy 1
_NAMES = {opcode.code: opcode.name for opcode in pickletools.opcodes}
_EMPTY_BYTE_ARRAY = (_NDARRAY, (0,), "b"), (_NDARRAY, (0,), b"b")  # of Python 2 and 3
_UINT8_STATE = (3, "|", None, None, None, -1, -1, 0)  # of numpy.dtype.__setstate__()


class _Machine:
    """Executes one pickle; most of its methods are steps of opcodes, see `_BY_OPCODE`."""

    def __init__(self, pickled: memoryview) -> None:
        self.memo: dict[int, Any] = {}
        self._pickled = pickled
        self._start = 0  # of the opcode
        self._next = 0  # what follows the bytes that were executed
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stack below each MARK

    def run(self) -> Any:
        if self.number(_U2) not in [protocol << 8 | 0x80 for protocol in _PROTOCOLS]:
            raise self.refusal("this is not a pickle of protocol 2, 3 or 4")
        while True:
            self._start = self._next
            self._next += 1
            code = self._pickled[self._start]
            if code == _STOP:
                return self.end()
            execute = _OPCODES.get(code)
            if execute is None:
                name = _NAMES.get(chr(code), "unknown")
                raise self.refusal(f"opcode {code:#04x} ({name}) does not belong to plain data")
            execute(self)
            if len(self._stack) > _MOST_VALUES or len(self._below) > _MOST_MARKS:
                raise self.refusal("more values are nested than in plain data")

    def refusal(self, why: str) -> NotPlain:
        return NotPlain(self._start, why)

    def end(self) -> Any:
        left = len(self._pickled) - self._next
        if left or self._below or len(self._stack) != 1:
            raise self.refusal(f"the pickle ends here, and {left} bytes or some values are left")
        return self._stack[0]

    # What stands behind an opcode

    def number(self, form: struct.Struct) -> int:
        (value,) = form.unpack_from(self._pickled, self._next)
        self._next += form.size
        return int(value)

    def skip(self, nbytes: int) -> slice:
        start, self._next = self._next, self._next + nbytes
        missing = self._next - len(self._pickled)
        if nbytes < 0:
            raise self.refusal(f"the file is damaged: {nbytes} bytes of text")
        if missing > 0:
            raise self.refusal(f"the file is truncated or damaged: {missing} bytes are missing")
        return slice(start, self._next)

    def string(self, length: struct.Struct, encoding: str) -> None:
        self._stack.append(str(self._pickled[self.skip(self.number(length))], encoding))

    def short_bytes(self) -> None:
        self._stack.append(bytes(self._pickled[self.skip(self.number(_U1))]))

    def long_string(self, length: struct.Struct) -> None:
        self._stack.append(self.skip(self.number(length)))

    def small_integers(self) -> None:
        found = _SMALL_INTEGERS.match(self._pickled, self._start)
        end = found.end() if found else len(self._pickled) + 1
        integers = self._pickled[self.skip(end - self._next)]
        self._stack += integers[::2]

    def frame(self) -> None:
        self._next = self.skip(self.number(_U8)).start

    # Values

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def put(self, index: int) -> None:
        if index > len(self.memo) + 1:  # cPickle counts from 1, pickle from 0
            raise self.refusal(f"no pickle numbers a value {index} here")
        self.memo[index] = self._stack[-1]

    def mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def marked(self) -> list[Any]:
        """The values since the last MARK; they are taken off the stack."""
        values, self._stack = self._stack, self._below.pop()
        return values

    def pop(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("more values are used than there are")
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def append(self, values: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise TypeError("values are appended to what is no list")
        self._stack[-1] += values

    def set(self, pairs: list[Any]) -> None:
        if type(self._stack[-1]) is not dict:
            raise TypeError("items are set of what is no dict")
        # The hash of nested tuples may take forever.
        if not all(type(key) is str for key in pairs[::2]):
            raise self.refusal("a dict with keys that are no text")
        self._stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    # Arrays

    def named_global(self) -> None:
        found = _GLOBAL.match(self._pickled, self._next)
        if found is None:
            raise ValueError("there is no name")
        self._next = found.end()
        self.push_global(*(str(part, "ascii") for part in found.groups()))

    def stack_global(self) -> None:
        module, name = self.pop(2)
        if type(module) is not str or type(name) is not str:
            raise TypeError("the name of a module is no text")
        self.push_global(module, name)

    def push_global(self, module: str, name: str) -> None:
        if (module, name) not in _GLOBALS:
            raise self.refusal(f"it imports {module:.99}.{name:.99}, which data does not need")
        self._stack.append(_GLOBALS[module, name])

    def reduce(self) -> None:
        called, arguments = self.pop(2)
        if called is _RECONSTRUCT and arguments in _EMPTY_BYTE_ARRAY:
            self._stack.append(ByteArray())
        elif called is _DTYPE and arguments == ("u1", False, True):
            self._stack.append(_UINT8)
        else:
            raise self.refusal("an object that is no array of bytes")

    def build(self) -> None:
        (state,) = self.pop(1)
        target = self._stack[-1]
        if target is _UINT8 and state == _UINT8_STATE:
            return
        if type(target) is not ByteArray:
            raise self.refusal("an object that is no array of bytes")
        version, shape, dtype, fortran, content = state
        if (version, dtype) != (1, _UINT8) or type(fortran) is not bool:
            raise self.refusal("an array of something else than bytes")
        if type(content) is not slice or type(shape) is not tuple or len(shape) > _MOST_DIMENSIONS:
            raise self.refusal("an array without a shape or bytes")
        nbytes = content.stop - content.start
        if set(map(type, shape)) != {int} or min(shape) < 1 or math.prod(shape) != nbytes:
            raise self.refusal(f"an array of shape {shape} with {nbytes} bytes")
        target.shape, target.fortran, target.start = shape, fortran, content.start


_U1, _U2, _U4, _U8 = map(struct.Struct, ("<B", "<H", "<I", "<Q"))
_I4 = struct.Struct("<i")
_STOP = pickle.STOP[0]
_BY_OPCODE: dict[bytes, Callable[[_Machine], None]] = {
    pickle.NONE: lambda m: m.push(None),
    pickle.NEWTRUE: lambda m: m.push(True),
    pickle.NEWFALSE: lambda m: m.push(False),
    pickle.BININT1: _Machine.small_integers,
    pickle.BININT2: lambda m: m.push(m.number(_U2)),
    pickle.BININT: lambda m: m.push(m.number(_I4)),
    pickle.SHORT_BINSTRING: lambda m: m.string(_U1, "latin-1"),
    pickle.BINSTRING: lambda m: m.long_string(_I4),
    pickle.SHORT_BINBYTES: _Machine.short_bytes,
    pickle.BINBYTES: lambda m: m.long_string(_U4),
    pickle.SHORT_BINUNICODE: lambda m: m.string(_U1, "utf-8"),
    pickle.BINUNICODE: lambda m: m.string(_U4, "utf-8"),
    pickle.EMPTY_TUPLE: lambda m: m.push(()),
    pickle.TUPLE1: lambda m: m.push(tuple(m.pop(1))),
    pickle.TUPLE2: lambda m: m.push(tuple(m.pop(2))),
    pickle.TUPLE3: lambda m: m.push(tuple(m.pop(3))),
    pickle.TUPLE: lambda m: m.push(tuple(m.marked())),
    pickle.EMPTY_LIST: lambda m: m.push([]),
    pickle.APPEND: lambda m: m.append(m.pop(1)),
    pickle.APPENDS: lambda m: m.append(m.marked()),
    pickle.EMPTY_DICT: lambda m: m.push({}),
    pickle.SETITEM: lambda m: m.set(m.pop(2)),
    pickle.SETITEMS: lambda m: m.set(m.marked()),
    pickle.MARK: _Machine.mark,
    pickle.BINPUT: lambda m: m.put(m.number(_U1)),
    pickle.LONG_BINPUT: lambda m: m.put(m.number(_U4)),
    pickle.MEMOIZE: lambda m: m.put(len(m.memo)),
    pickle.BINGET: lambda m: m.push(m.memo[m.number(_U1)]),
    pickle.LONG_BINGET: lambda m: m.push(m.memo[m.number(_U4)]),
    pickle.FRAME: _Machine.frame,
    pickle.GLOBAL: _Machine.named_global,
    pickle.STACK_GLOBAL: _Machine.stack_global,
    pickle.REDUCE: _Machine.reduce,
    pickle.BUILD: _Machine.build,
}
_OPCODES = {opcode[0]: execute for opcode, execute in _BY_OPCODE.items()}
