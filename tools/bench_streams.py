#!/usr/bin/env python3
"""Several streams on one engine, beside llama.cpp with as many sequences in one batch: tokens per second of all together.

    bench_streams.py [--models DIR] [--pairs N] [--threads N] [--streams 1,2,4,8,16] [--depth N] [--decode N] [NAME ...]

NAME is SHAPE:TYPE, a shape of tools/make_model.rs with random weights and a type of `eliza-inference quantize`, or a GGUF file. Ours are
sessions, each with its worker, sampler and callback; of the peer its batch alone is timed, without choosing a token. Runs of both
alternate, and the ratio is the median of the pairs'. Bound: 1.5 of the peer's at 8. Run it on a quiet machine.
"""
import argparse
import statistics
import sys

from peer import Made, Ours, Skip, Timed, table

DEFAULT = ("qwen3-0.6b:q4_0", "qwen3-0.6b:q8_0", "gemma3-270m:q8_0")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="folder of the models; else target/bench")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", default="1,2,4,8,16")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--decode", type=int, default=48)
    parser.add_argument("names", nargs="*", default=DEFAULT)
    args = parser.parse_args()
    ours, peer = Ours(), Timed()
    made, good, body = Made(ours, args.models), True, []
    for name in args.names or DEFAULT:
        model = name if name.endswith(".gguf") else made.get(name)
        for streams in map(int, args.streams.split(",")):
            mine, theirs, times = [], [], []

            def run_ours():
                report = ours.json("bench", "--model", model, "--streams", streams, "--depth", args.depth, "--tg", args.decode,
                                   "--reps", 1, "--threads", args.threads)
                mine.append(report["aggregate_tokens_per_second"])
                times.append(report["speedup"])

            def run_peer():
                report = peer.json("streams", model, args.threads, streams, args.depth, args.decode, 1)
                theirs.append(report["aggregate_tokens_per_second"])

            for pair in range(args.pairs):
                for side in (run_ours, run_peer) if pair % 2 == 0 else (run_peer, run_ours):
                    side()
            ratio = statistics.median(a / b for a, b in zip(mine, theirs))
            good &= streams != 8 or ratio >= 1.5
            body.append((name, streams, f"{statistics.median(mine):.1f}", f"{statistics.median(times):.2f}",
                         f"{statistics.median(theirs):.1f}", f"{ratio:.2f}"))
    table(("model", "streams", "ours tok/s", "x of one", "llama.cpp tok/s", "ratio"), body)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Skip as reason:
        print("skipped:", reason)
