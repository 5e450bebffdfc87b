#!/usr/bin/env python3
"""Checks an Android library as a file: its machine, the alignment of its segments, and what it exports.

    tools/android_elf.py LIBRARY TRIPLE [--shippable]

Every library exports the C interface as the header has it; libelizainference_jni.so what Java calls as well.
--shippable also wants the system's libraries to be named, which one that was linked against stubs does not.
"""
import os
import re
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = 16384
MACHINES = {"aarch64": 183, "x86_64": 62}
PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_SYMTAB, DT_FLAGS_1 = 1, 5, 6, 0x6FFFFFFB
DF_1_NODELETE = 8
SHT_DYNSYM = 11


def fail(message):
    sys.exit(f"{sys.argv[1]}: {message}")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def declared():
    """The functions of the header: a declaration begins its line."""
    header = read("include/eliza_inference.h")
    return set(re.findall(r"^[A-Za-z].*?\b(eliza_inference_\w+|llama_sampler_init_token_trie)\(", header, re.M))


def natives():
    """The native methods of the Java package."""
    source = read("android/src/main/java/ai/eliza/inference/Native.java")
    return {f"Java_ai_eliza_inference_Native_{name}" for name in re.findall(r"static native \S+ (\w+)\(", source)}


def main():
    data = open(sys.argv[1], "rb").read()
    if data[:6] != b"\x7fELF\x02\x01":
        fail("not a 64-bit little-endian ELF file")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != 3 or machine != MACHINES[sys.argv[2].split("-")[0]]:
        fail(f"type {kind} for machine {machine}")
    header_at, sections_at = struct.unpack_from("<QQ", data, 32)
    header_size, headers, section_size, sections = struct.unpack_from("<HHHH", data, 54)
    dynamic = {}
    segments = []
    for index in range(headers):
        kind, _, offset, address, _, size, _, align = struct.unpack_from("<IIQQQQQQ", data, header_at + index * header_size)
        if kind == PT_LOAD:
            segments.append((offset, address, size))
            if align < PAGE or (address - offset) % PAGE:
                fail(f"a segment at {address:#x} is aligned to {align:#x}, pages may be {PAGE:#x}")
        if kind == PT_DYNAMIC:
            for tag, value in struct.iter_unpack("<qQ", data[offset:offset + size]):
                dynamic.setdefault(tag, []).append(value)
    if not segments:
        fail("no segment is loaded")

    def at(address):
        return next(address - begin + offset for offset, begin, size in segments if begin <= address < begin + size)

    strings = at(dynamic[DT_STRTAB][0])

    def text(offset):
        return data[strings + offset:data.index(b"\0", strings + offset)].decode()

    exported = set()
    for index in range(sections):
        header = struct.unpack_from("<IIQQQQIIQQ", data, sections_at + index * section_size)
        if header[1] == SHT_DYNSYM:
            for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[header[4]:header[4] + header[5]]):
                if section:
                    exported.add(text(name))
    wanted = declared()
    if "jni" in os.path.basename(sys.argv[1]):
        wanted |= natives()
    if exported != wanted:
        fail(f"exported in vain: {sorted(exported - wanted)}, missing: {sorted(wanted - exported)}")
    if not dynamic.get(DT_FLAGS_1, [0])[0] & DF_1_NODELETE:
        fail("may be unloaded under its threads")
    needed = sorted(text(offset) for offset in dynamic.get(DT_NEEDED, []))
    if "--shippable" in sys.argv and "libc.so" not in needed:
        fail(f"needs {needed}, not libc.so")
    print(f"{len(segments)} segments aligned to {PAGE // 1024} KiB, {len(exported)} names exported, needs {needed}")


if __name__ == "__main__":
    main()
