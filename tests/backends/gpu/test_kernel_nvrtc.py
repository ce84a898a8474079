"""The kernel compiled for GPUs by NVRTC, which needs no GPU and no driver."""

import ctypes
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from dali_storage.backends.gpu import layout
from tests.kit.tiers import by_tier

ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100)[:: by_tier(6, 1)]


@cache
def nvrtc():
    """The library of the package nvidia-cuda-nvrtc-cu12."""
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else []
    for folder in folders or []:
        for path in Path(folder).glob("cuda_nvrtc/lib/libnvrtc.so.*"):
            library = ctypes.CDLL(str(path))
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            return library
    pytest.fail("no NVRTC: pip install nvidia-cuda-nvrtc-cu12")


def check(code):
    assert code == 0, nvrtc().nvrtcGetErrorString(code).decode()


def text(program, what):
    """The log of a program, or what was made of it."""
    size = ctypes.c_size_t()
    check(getattr(nvrtc(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    found = ctypes.create_string_buffer(size.value)
    check(getattr(nvrtc(), f"nvrtcGet{what}")(program, found))
    return found.raw.decode("latin-1")


def compile_kernel(source, *options):
    """The PTX of a source, and the log of the compiler."""
    program, library = ctypes.c_void_p(), nvrtc()
    arguments = source.encode(), b"submit.cu", 0, None, None
    check(library.nvrtcCreateProgram(ctypes.byref(program), *arguments))
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = library.nvrtcCompileProgram(program, len(options), given)
        log = text(program, "ProgramLog")
        assert code == 0, log
        return text(program, "PTX"), log
    finally:
        check(library.nvrtcDestroyProgram(ctypes.byref(program)))


@cache
def compiled_for(architecture):
    option = f"--gpu-architecture=sm_{architecture}"
    return compile_kernel(layout.source(), option, "--ptxas-options=-v")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernel_fits_into_registers(architecture):
    _, log = compiled_for(architecture)
    (registers,) = re.findall(r"Used (\d+) registers", log)
    assert int(registers) < 64
    sizes = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", log)
    assert sizes == ["0", "0", "0"]
    assert not re.search(r"submit\.cu\(\d+\): warning", log), log


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_barriers_fences_and_doorbells_are_in_order(architecture):
    """Both doorbells: a barrier, a fence, one store. The submission doorbell: a fence before."""
    ptx, _ = compiled_for(architecture)
    assert re.findall(r"\.visible \.entry (\w+)", ptx) == ["submit_reads"]
    found = re.findall(
        r"^\s*(fence\.acq_rel\.sys|bar\.warp\.sync(?=\s+-1;)|st\.mmio\.relaxed\.sys\.global\.u32"
        r"|ld\.acquire\.sys\.global\.u32|st\.volatile\S*)",
        ptx,
        re.M,
    )
    fence, barrier = "fence.acq_rel.sys", "bar.warp.sync"
    load, store = "ld.acquire.sys.global.u32", "st.mmio.relaxed.sys.global.u32"
    assert found == [
        load,  # the stop word
        *(fence, barrier, fence, store),  # submit()
        *(load, barrier, fence, store),  # reap()
        barrier,  # before the state is written
    ]


def test_the_kernel_is_not_compiled_for_an_old_gpu():
    with pytest.raises(AssertionError, match=r"needs a GPU of compute capability 7\.0"):
        compile_kernel(layout.source(), "--gpu-architecture=compute_60")


def test_a_source_that_differs_from_the_layout_is_not_compiled():
    source = layout.source()
    assert "STOPPED = 2," in source
    with pytest.raises(AssertionError, match=r"layout\.py"):
        compile_kernel(source.replace("STOPPED = 2,", "STOPPED = 4,"), "--gpu-architecture=sm_80")
