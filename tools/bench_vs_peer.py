#!/usr/bin/env python3
"""Speed, load time and memory beside llama.cpp: the same file, the same machine, alternating runs.

Every pair is one run of ours and one of the peer's, back to back, the order changing from pair to pair. What is judged is the
median of the pairs' ratios, which cancels what the machine does to both; the medians themselves are printed beside it.

    bench_vs_peer.py [--models DIR] [--pairs N] [--threads 1,2] [--prompt 512] [--decode 64] [--isa LEVEL] [--peer-cpu LIBRARY]
                     [NAME ...]

NAME is SHAPE:TYPE, a shape of tools/make_model.rs with random weights and a type of `eliza-inference quantize`, or a GGUF file,
such as a speed shape of the shared folder's synth_decoders.py. The peer comes
from its npm package, and its decoding is timed without choosing a token, ours with. `--isa avx2 --peer-cpu haswell` compares
what both have for a processor without AVX-512. Bounds: decode >= 0.95, prompt >= 0.7,
load <= 1, peak memory <= 1.05 of the peer's. The exit code says whether all were met. Run it on a quiet machine.
"""
import argparse
import os
import statistics
import sys

from peer import Made, Ours, Skip, Timed, table

DEFAULT = ("qwen3-0.6b:q8_0", "qwen3-0.6b:q4_0", "qwen3-0.6b:q4_k", "tinyllama-1.1b:q4_0", "gemma3-270m:q8_0")
# Figure, unit's divisor, bound on ours / theirs, and whether more is better.
FIGURES = (("decode tok/s", 1, 0.95, True), ("prompt tok/s", 1, 0.7, True), ("load ms", 1, 1.0, False),
           ("peak MiB", 1 << 20, 1.05, False))


# Each side's load is timed in a process of its own, right behind that side's own bench: a virtual machine hands out memory
# that nobody had for a while several times slower than memory just freed, and both sides are to find the same.
def measure_ours(ours, model, threads, prompt, decode):
    r = ours.json("bench", "--model", model, "--pp", prompt, "--tg", decode, "--reps", 1, "--threads", threads)
    load = ours.json("bench", "--model", model, "--pp", 1, "--tg", 1, "--reps", 1, "--threads", threads)
    return r["decode_tok_s"], r["prompt_tok_s"], load["load_ms"], r["peak_rss_bytes"]


def measure_peer(peer, model, threads, prompt, decode):
    r = peer.json("bench", model, threads, 0, prompt, decode, 1)
    load = peer.json("load", model, threads)
    return r["decode_tok_s"], r["prompt_tok_s"], load["load_ms"], r["peak_rss_bytes"]


def compare(ours, peer, model, threads, args):
    """Medians of both sides and of the pairs' ratios, figure by figure."""
    mine, theirs = [], []
    sides = ((mine, lambda: measure_ours(ours, model, threads, args.prompt, args.decode)),
             (theirs, lambda: measure_peer(peer, model, threads, args.prompt, args.decode)))
    for _, warm in sides:
        warm()  # the page cache, and the processor's clock
    for pair in range(args.pairs):
        for into, run in sides if pair % 2 == 0 else sides[::-1]:
            into.append(run())
    for i, (name, divisor, bound, more) in enumerate(FIGURES):
        ratios = sorted(a[i] / b[i] for a, b in zip(mine, theirs))
        ratio = statistics.median(ratios)
        good = ratio >= bound if more else ratio <= bound
        medians = [statistics.median(run[i] for run in side) / divisor for side in (mine, theirs)]
        yield name, medians, ratio, ratios, bound, more, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=DEFAULT, metavar="NAME")
    parser.add_argument("--models", help="the models' folder, target/bench unless told")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--isa", help="the level of our kernels (ELIZA_CPU_ISA)")
    parser.add_argument("--peer-cpu", help="the one CPU library that the peer finds: haswell, alderlake and so on")
    args = parser.parse_args()
    if args.isa:
        os.environ["ELIZA_CPU_ISA"] = args.isa
    missed, body = 0, []
    try:
        peer = Timed(cpu=args.peer_cpu)
    except Skip as reason:
        print("skipped:", reason)
        return 0
    ours = Ours()
    models = Made(ours, args.models)
    files = {os.path.basename(name): name if name.endswith(".gguf") else models.get(name) for name in args.names}
    for name, path in files.items():
        for threads in map(int, args.threads.split(",")):
            print(f"{name}, {threads} thread{'s' * (threads > 1)}", flush=True)
            for figure, (a, b), ratio, ratios, bound, more, good in compare(ours, peer, path, threads, args):
                missed += not good
                body.append((name, threads, figure, f"{a:.1f}", f"{b:.1f}", f"{ratio:.3f}", f"{ratios[0]:.2f}..{ratios[-1]:.2f}",
                             f"{'>=' if more else '<='} {bound}", "ok" if good else "MISSED"))
    print()
    table(("model", "threads", "figure", "ours", "peer", "ratio", "of pairs", "bound", ""), body)
    print(f"\n{args.pairs} pairs each; {missed} of {len(body)} figures miss their bound")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
