"""Compiles crates/cuda/src/kernels/kernels.cu to the files of PTX in its folder, which the driver compiles for its GPU when it
loads one.

    pip install nvidia-cuda-nvrtc-cu12==12.4.127
    python scripts/compile-kernels.py
"""

import ctypes
import glob
import os
import sys

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "crates", "cuda", "src", "kernels")
found = [p for folder in sys.path for p in glob.glob(os.path.join(folder, "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.12"))]
if not found:
    sys.exit("libnvrtc.so.12 is in no nvidia/cuda_nvrtc/lib on Python's path; install it as this file's head says")
nvrtc = ctypes.CDLL(found[0])


def text(size, get, program):
    """The answer of one of NVRTC's pairs of functions: the length with the final zero, and the characters."""
    length = ctypes.c_size_t()
    size(program, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    get(program, buffer)
    return buffer.value.decode()


with open(os.path.join(here, "kernels.cu"), "rb") as file:
    source = file.read()
for name, macro in [("kernels.ptx", b"PLAIN"), ("kernels_norm.ptx", b"NORMALIZATION"), ("kernels_last.ptx", b"CHANNELS_LAST")]:
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None)
    options = [b"--gpu-architecture=compute_70", b"--fmad=false", b"--std=c++17", b"--define-macro=" + macro]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if status != 0:
        sys.exit(text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program))
    with open(os.path.join(here, name), "w") as file:
        file.write(text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program))
