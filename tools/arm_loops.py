#!/usr/bin/env python3
"""arm_loops.py LIBRARY [--mca LLVM_MCA] [--cores a,b,..] [--show WORDS]

What llvm-mca's models say of the innermost loops of our products of quantised weights on AArch64: of each loop with dot
or matrix products its instructions, and on each core the cycles of a pass, the data in the first cache, and
multiply-accumulates a cycle. A model knows no cache misses and no clock: the figures compare loops, they are no
measurement. Names need the compiler's newer mangling, and LLVM 17 or later has models of these cores of their own:

    cargo rustc --locked --release --lib --crate-type cdylib --target aarch64-unknown-linux-gnu --no-default-features \\
      -- -C symbol-mangling-version=v0
    tools/arm_loops.py target/aarch64-unknown-linux-gnu/release/libelizainference.so --mca llvm-mca-19

--show prints the loops whose names hold all of the words.
"""
import argparse
import re
import subprocess

MACS = {"sdot": 16, "smmla": 32}
CORES = "neoverse-n1,neoverse-n2,neoverse-v1,neoverse-v2,cortex-a510"
PASSES = 200
LEVELS = {"BySdot": "dotprod", "BySmmla": "i8mm"}


def functions(library, objdump):
    """(format, level, [(address, instruction)]) of every function compiled for a level of products."""
    text = subprocess.run([objdump, "-dC", "--no-show-raw-insn", library], capture_output=True, text=True, check=True).stdout
    for part in re.split(r"\n\n", text):
        head, _, body = part.partition("\n")
        level = next((LEVELS[word] for word in LEVELS if word in head), None)
        kind = re.search(r"matmul::.*::format::(\w+)", head)
        if level and kind:
            lines = (line.split("\t", 1) for line in body.splitlines() if "\t" in line)
            code = [(int(at.strip(" :"), 16), re.sub(r"\s+", " ", what.split("//")[0]).strip()) for at, what in lines]
            yield kind[1], level, code


def columns(loop, macs):
    """How many columns a loop multiplies 16 rows with, block by block; `many` where what was unpacked is read from memory, of
    which the sign is that every column has a pointer that advances as it is read."""
    advancing = sum(bool(re.match(r"ld[pr] q.*\], #\d+$", what)) for what in loop)
    return "many" if advancing >= 4 else str(macs // (16 * 32))


def innermost(code):
    """Instructions of the loops that have no other in them, by branches backwards."""
    loops = []
    for at, what in code:
        to = re.match(r"(?:b\.\w+|cbn?z|tbn?z|b) (?:.*, )?([0-9a-f]+) <", what)
        if to and code[0][0] <= int(to[1], 16) <= at:
            loops.append((int(to[1], 16), at))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [[what for at, what in code if first <= at <= last] for first, last in inner]


def cycles(mca, core, loop):
    """Cycles of a pass."""
    source = "\n".join(re.sub(r"[0-9a-f]+ <.*>$", "0", line) for line in loop)
    command = [mca, "-march=aarch64", f"-mcpu={core}", "-mattr=+dotprod,+i8mm,+fullfp16", f"-iterations={PASSES}", "-noalias=true"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if not total:
        raise SystemExit(f"{core}: {done.stderr.strip()[:300]}")
    return int(total[1]) / PASSES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--mca", default="llvm-mca")
    parser.add_argument("--objdump", default="aarch64-linux-gnu-objdump")
    parser.add_argument("--cores", default=CORES)
    parser.add_argument("--show", nargs="*")
    args = parser.parse_args()
    cores = args.cores.split(",")
    print("| loop | instructions | of them products | MACs | instructions/MAC | " + " | ".join(cores) + " |")
    print("|---" * (5 + len(cores)) + "|")
    for kind, level, code in sorted(functions(args.library, args.objdump)):
        for loop in innermost(code):
            products = [MACS[what.split()[0]] for what in loop if what.split()[0] in MACS]
            if len(products) < 8:
                continue
            macs = sum(products)
            name = f"{kind}, {columns(loop, macs)} columns, {level}"
            on = [cycles(args.mca, core, loop) for core in cores]
            cells = " | ".join(f"{taken:.1f} ({macs / taken:.1f})" for taken in on)
            print(f"| {name} | {len(loop)} | {len(products)} | {macs} | {len(loop) / macs:.3f} | {cells} |")
            if args.show is not None and all(word in name for word in args.show):
                print("\n".join(loop))
    print("\nCycles of a pass (MACs a cycle)")


if __name__ == "__main__":
    main()
