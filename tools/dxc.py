#!/usr/bin/env python3
"""Compiles HLSL compute shaders with DXC, Microsoft's compiler of DX12, on Linux.

    dxc.py FOLDER      every *.hlsl of the folder; fails when one is refused

The compiler is a shared library in the source package of `compushady`, which pip brings into target/dxc; where it cannot
be had, that is said and nothing fails. It makes DXIL of the texts, but cannot validate or sign it: that is for Windows.
"""

import ctypes
import platform
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "target" / "dxc"
NAME, VERSION = "compushady", "0.17.5"
HASH = "5052caf9e955d8e7a48e22f536e82b44b72e83af46e824a9e99157c7809de691"
LIBRARY = f"libdxcompiler_{platform.machine()}.so.3.7"

# As wgpu asks, for the oldest shader model that DXC has; the last one turns off the validator, which is not there.
ARGUMENTS = ["-E", "main", "-T", "cs_6_0", "-HV", "2018", "-no-warnings", "-Ges", "-Vd"]

CLASS = "73e22d93-e6ce-47f3-b5bf-f0664f39c1b0"  # DxcCompiler
COMPILER = "228b4687-5a6a-4730-900c-9702b2203f54"  # IDxcCompiler3
RESULT = "58346cda-dde7-4497-9461-6f87af5e0659"  # IDxcResult
UTF8 = 65001


class Text(ctypes.Structure):
    """DxcBuffer"""

    _fields_ = [("bytes", ctypes.c_char_p), ("size", ctypes.c_size_t), ("encoding", ctypes.c_uint32)]


def guid(text: str) -> ctypes.Array:
    return ctypes.create_string_buffer(uuid.UUID(text).bytes_le, 16)


def call(this: ctypes.c_void_p, index: int, result, *args):
    """Calls an entry of an object's virtual table. The first five are IUnknown's: on Linux it has a destructor, of two entries."""
    table = ctypes.cast(this, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))).contents
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p, *map(type, args))(table[index])(this, *args)


def ask(this: ctypes.c_void_p, index: int, result):
    """What an entry writes to its one argument."""
    answer = result()
    code = call(this, index, ctypes.c_int32, ctypes.pointer(answer))
    if code < 0:
        raise RuntimeError(f"DXC's interface {index}: {code & 0xFFFFFFFF:x}")
    return answer


def library() -> Path | None:
    """The compiler's library, or a plain word why there is none."""
    path = FOLDER / LIBRARY
    if path.is_file():
        return path
    if sys.platform != "linux":
        print("skipped: DXC's library is for Linux here")
        return None
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = FOLDER / "requirements.txt"
    wanted.write_text(f"{NAME}=={VERSION} --hash=sha256:{HASH}\n")
    command = ["pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", FOLDER, "-r", wanted]
    got = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    if got.returncode != 0:
        print(f"skipped: no DXC, {NAME} {VERSION} cannot be had: {(got.stderr.strip() or 'no reason').splitlines()[-1]}")
        return None
    package = FOLDER / f"{NAME}-{VERSION}.tar.gz"
    with tarfile.open(package) as files:
        member = f"{NAME}-{VERSION}/{NAME}/backends/{LIBRARY}"
        if member not in files.getnames():
            print(f"skipped: {NAME} {VERSION} has no {LIBRARY}")
            return None
        path.write_bytes(files.extractfile(member).read())
    package.unlink()
    return path


class Compiler:
    def __init__(self, path: Path):
        self.this = ctypes.c_void_p()
        create = ctypes.CDLL(str(path)).DxcCreateInstance
        code = create(guid(CLASS), guid(COMPILER), ctypes.byref(self.this))
        if code != 0:
            raise RuntimeError(f"{path.name} makes no compiler: {code & 0xFFFFFFFF:x}")
        self.arguments = (ctypes.c_wchar_p * len(ARGUMENTS))(*ARGUMENTS)
        self.result = guid(RESULT)

    def refuses(self, text: bytes) -> str | None:
        """What the compiler has against this text."""
        source, result = Text(text, len(text), UTF8), ctypes.c_void_p()
        code = call(
            self.this,
            5,
            ctypes.c_int32,
            ctypes.pointer(source),
            ctypes.pointer(self.arguments),
            ctypes.c_uint32(len(ARGUMENTS)),
            ctypes.c_void_p(),
            ctypes.pointer(self.result),
            ctypes.pointer(result),
        )
        if code < 0:
            return f"code {code & 0xFFFFFFFF:x}"
        status = ask(result, 5, ctypes.c_int32).value
        blob = ask(result, 7 if status < 0 else 6, ctypes.c_void_p)
        size = call(blob, 6, ctypes.c_size_t)
        answer = ctypes.string_at(call(blob, 5, ctypes.c_void_p), size)
        call(blob, 2, ctypes.c_uint32)
        call(result, 2, ctypes.c_uint32)
        if status < 0:
            return answer.decode(errors="replace").rstrip("\0").strip()
        return None if answer.startswith(b"DXBC") else "it made no program"


def main() -> int:
    texts = sorted(Path(sys.argv[1]).glob("*.hlsl"))
    if not texts:
        print(f"no shader texts in {sys.argv[1]}", file=sys.stderr)
        return 1
    path = library()
    if path is None:
        return 0
    compiler, refused = Compiler(path), 0
    for text in texts:
        problem = compiler.refuses(text.read_bytes())
        if problem is not None:
            refused += 1
            print(f"{text.name}: {problem}", file=sys.stderr)
    print(f"{len(texts)} shader texts, {refused} refused by DXC")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
