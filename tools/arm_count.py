#!/usr/bin/env python3
"""arm_count.py [--types q4_0,..] [--core NAME ..] [--shape SHAPE] [--ours PROGRAM]

Instructions that a token takes on AArch64, of ours over llama.cpp's, counted by qemu on the same model with one thread: whole
programs, the difference of 10 and 2 decoded tokens and of prompts of 128 and 64, so that what is done once drops out.
Instructions are no time; fewer of the same kind are faster as a rule. Counts are the same within a hundredth whatever else the
machine does.

It needs Rust's target aarch64-unknown-linux-gnu, gcc-aarch64-linux-gnu, qemu-user with plugins (not linked statically), and the
network, for llama.cpp's build for arm64.
"""
import argparse
import os
import shutil
import subprocess
import tempfile

from peer import Made, Ours, ROOT, Skip, TARGET, Timed, run

GCC, TRIPLE = "aarch64-linux-gnu-gcc", "aarch64-unknown-linux-gnu"
TYPES = "q4_0,q8_0,q4_k,q6_k"
# With dot products; with products of matrices too, and vectors of 128 bits, as phones have them; with neither.
CORES = ["neoverse-n1", "max,sve-max-vq=1,sme=off", "cortex-a72"]


class Qemu:
    """Counts what programs execute."""

    def __init__(self):
        if missing := [program for program in ("qemu-aarch64", GCC) if not shutil.which(program)]:
            raise Skip(f"{' and '.join(missing)} cannot be found")
        self.plugin = os.path.join(TARGET, "llama", "arm_count.so")
        os.makedirs(os.path.dirname(self.plugin), exist_ok=True)
        run(["cc", "-std=c99", "-O2", "-shared", "-fPIC", "tools/arm_count.c", "-o", self.plugin], cwd=ROOT)

    def count(self, core, command):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "count")
            run(["qemu-aarch64", "-plugin", f"{self.plugin},out={out}", "-cpu", core, "-L", "/usr/aarch64-linux-gnu", *command])
            with open(out) as file:
                return int(file.read())

    def per_token(self, core, command):
        """Of decoding and of a prompt, twice: both programs warm up with the same."""
        return [(self.count(core, command(0, 10)) - self.count(core, command(0, 2))) / 8,
                (self.count(core, command(128, 0)) - self.count(core, command(64, 0))) / 64]


def built():
    environment = {**os.environ, f"CARGO_TARGET_{TRIPLE.upper().replace('-', '_')}_LINKER": GCC}
    subprocess.run(["cargo", "build", "--release", "--locked", "--target", TRIPLE, "--no-default-features", "--features", "cli"],
                   cwd=ROOT, check=True, stdin=subprocess.DEVNULL, env=environment)
    return os.path.join(TARGET, TRIPLE, "release", "eliza-inference")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--core", action="append", help="as qemu's -cpu takes it")
    parser.add_argument("--shape", default="llama-2-layers")
    parser.add_argument("--ours", help="the program for AArch64, if it is built already")
    args = parser.parse_args()
    cores = args.core or CORES
    qemu, made, theirs = Qemu(), Made(Ours()), Timed("linux-arm64", given=None, compiler=GCC)
    ours = args.ours or built()
    print("| type | " + " | ".join(f"{core}: decode | prompt" for core in cores) + " |")
    print("|---" * (1 + 2 * len(cores)) + "|")
    for kind in args.types.split(","):
        model = made.get(f"{args.shape}:{kind}")
        cells = []
        for core in cores:
            counts = qemu.per_token(core, lambda prompt, decode: [ours, "bench", "--model", model, "--threads", "1", "--reps", "1",
                                                                  "--pp", str(prompt), "--tg", str(decode), "--json"])
            beside = qemu.per_token(core, lambda prompt, decode: [theirs.program, theirs.folder, "bench", model, "1", "0",
                                                                  str(prompt), str(decode), "1"])
            cells += [f"{count / other:.2f}" for count, other in zip(counts, beside)]
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Skip as why:
        print(f"skipped: {why}")
