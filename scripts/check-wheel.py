#!/usr/bin/env python3
"""Checks a wheel before it is published: its size, that nothing in it has symbols, and the newest glibc that it needs.

    python scripts/check-wheel.py --glibc 2.28 --megabytes 15 wheels/tightfit-*.whl

Looks at the extension module and at the libraries that it carries in compressed form. Prints what it found; exits with 1 if a limit is exceeded or a
part is missing.
"""

import argparse
import re
import struct
import sys
import zipfile
import zlib
from pathlib import Path

GZIP = b"\x1f\x8b\x08\x00"
ELF = b"\x7fELF"


def carried(library: bytes) -> list[bytes]:
    """The libraries inside a library, found by the first bytes of their compressed form."""
    found = []
    at = library.find(GZIP)
    while at >= 0:
        try:
            content = zlib.decompressobj(wbits=31).decompress(library[at:])
        except zlib.error:
            content = b""
        if content.startswith(ELF):
            found.append(content)
        at = library.find(GZIP, at + 1)
    return found


def has_symbols(library: bytes) -> bool:
    """Whether an ELF file of 64 bits still has its symbol table or debug information."""
    sections, size, count, names = struct.unpack_from("<Q", library, 0x28) + struct.unpack_from("<HHH", library, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", library, sections + index * size) for index in range(count)]
    text = headers[names][4]
    called = [library[text + header[0] : library.index(b"\0", text + header[0])] for header in headers]
    return any(name == b".symtab" or name.startswith(b".debug_") for name in called)


def newest_glibc(library: bytes) -> tuple[int, int]:
    """The newest version of glibc that a file asks for, from its version names."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library)
    return max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def check(wheel: Path, glibc: tuple[int, int] | None, megabytes: float | None) -> list[str]:
    """The faults of a wheel; prints them."""
    wrong = []
    size = wheel.stat().st_size / 1e6
    print(f"{wheel.name}: {size:.1f} MB")
    if megabytes is not None and size > megabytes:
        wrong.append(f"the wheel has {size:.1f} MB, over the limit of {megabytes:g}")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        libraries = {name: files.read(name) for name in names if name.endswith(".so")}
        scripts = [files.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    if not any(re.search(r"^tightfit *= *tightfit\.__main__:main$", text, re.MULTILINE) for text in scripts):
        wrong.append("the wheel has no `tightfit` command")
    inside = [content for library in libraries.values() for content in carried(library)]
    if len(inside) != 2 or not all(b"tightfitSetLimits" in content for content in inside):
        wrong.append(f"the wheel carries {len(inside)} libraries to preload, not 2")
    if sum(b"libcudnn.so.9\0" in content and b"cudnnGetVersion" in content for content in inside) == 0:
        wrong.append("none of the libraries to preload has cuDNN's name")
    parts = [*libraries.items(), *((f"carried library {number}", content) for number, content in enumerate(inside, 1))]
    for name, content in parts:
        newest = newest_glibc(content)
        print(f"{name}: {len(content) / 1e6:.1f} MB, glibc {newest[0]}.{newest[1]}")
        if has_symbols(content):
            wrong.append(f"{name} is not stripped")
        if glibc is not None and newest > glibc:
            wrong.append(f"{name} needs glibc {newest[0]}.{newest[1]}, over the limit of {glibc[0]}.{glibc[1]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", metavar="WHEEL", nargs="+", type=Path)
    parser.add_argument("--glibc", metavar="VERSION", help="the newest glibc that may be needed, such as 2.28")
    parser.add_argument("--megabytes", metavar="N", type=float, help="the most that a wheel may have")
    options = parser.parse_args()
    major, _, minor = (options.glibc or "0.0").partition(".")
    glibc = (int(major), int(minor)) if options.glibc else None
    missing = [wheel for wheel in options.wheels if not wheel.is_file()]
    if missing:
        parser.error(f"{missing[0]} is not a file")
    wrong = [f"{wheel}: {fault}" for wheel in options.wheels for fault in check(wheel, glibc, options.megabytes)]
    for fault in wrong:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
