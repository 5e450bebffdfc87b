#!/usr/bin/env python3
"""Speed on a GPU: sampling in the submission against sampling on the host, and both against the peer's Vulkan build.

    bench_gpu.py sampling [--models DIR] [--pairs N] [--decode N] [NAME ...]
    bench_gpu.py peer     [--models DIR] [--pairs N] [--decode N] [--prompt N] [NAME ...]

`sampling` decodes 1 and 4 sequences with the whole model on the GPU, by a greedy and by the default chain, once sampled on the
device and once on the host from copied logits. `peer` adds the peer, whose Vulkan libraries come from its npm package into
target/llama (`PEER_VULKAN_DIR` names others). Runs alternate; what is printed are medians, and the median of the pairs'
ratios. GB/s are the weights that decoding reads; the share is that of what a copy on the device reaches.

NAME is SHAPE:TYPE, a shape of tools/make_model.rs with random weights and a type of `eliza-inference quantize`.
"""
import argparse
import os
import statistics
import sys

from peer import Made, Ours, Skip, Timed, table

SAMPLING = ("vocab-128k:q8_0", "qwen3-0.6b:q4_0")
PEER = ("qwen3-0.6b:q8_0", "qwen3-0.6b:q4_k", "tinyllama-1.1b:q8_0", "tinyllama-1.1b:q4_k", "llama-7b:q4_k")
CHAINS = ("greedy", "top_k=40;top_p=0.95;min_p=0.05;temp=0.8")


def alternate(pairs, sides):
    """The results of every side, run in turn, the order changing from pair to pair; one run each before is not counted."""
    results = [[] for _ in sides]
    for side in sides:
        side()
    for pair in range(pairs):
        order = list(enumerate(sides))
        for i, side in order if pair % 2 == 0 else order[::-1]:
            results[i].append(side())
    return results


def median(results, key):
    return statistics.median(result[key] for result in results)


def ratio(ours, theirs, key):
    return statistics.median(a[key] / b[key] for a, b in zip(ours, theirs))


def sampling(ours, models, args):
    """Where to sample: the table's rows, and how many of them copy more than a thousandth of the logits."""
    body, missed = [], 0
    for name in args.names or SAMPLING:
        path = models.get(name)
        for sequences in (1, 4):
            for chain in CHAINS:
                def bench(*more):
                    return ours.json("bench", "--model", path, "--gpu-layers", -1, "--pp", 0, "--tg", args.decode, "--reps", 1,
                                     "--sequences", sequences, "--chain", chain, *more)

                device, host = alternate(args.pairs, (bench, lambda: bench("--host-sampling")))
                if not device[0]["sampled_on_device"]:
                    raise RuntimeError(f"{name}: {chain} is not sampled on the device")
                read, copied = median(device, "step_bytes_read"), median(host, "step_bytes_read")
                good = read <= 1e-3 * copied
                missed += not good
                body.append((name, sequences, chain, f"{median(device, 'step_ms'):.2f}", f"{median(host, 'step_ms'):.2f}",
                             f"{ratio(device, host, 'step_ms'):.3f}", f"{read:.0f}", f"{copied:.0f}", f"{100 * read / copied:.4f} %",
                             "ok" if good else "MISSED"))
                print(f"{name}, {sequences} sequences, {chain}", flush=True)
    table(("model", "sequences", "chain", "ms device", "ms host", "ratio", "bytes device", "bytes host", "share", ""), body)
    return missed


def against_peer(ours, models, args):
    """Ours, with sampling on the device and on the host, and the peer: the table's rows."""
    peer = Timed("linux-x64-vulkan", os.environ.get("PEER_VULKAN_DIR"))
    body, slower = [], 0
    for name in args.names or PEER:
        path = models.get(name)

        def bench(*more, path=path):
            return ours.json("bench", "--model", path, "--gpu-layers", -1, "--pp", args.prompt, "--tg", args.decode, "--reps", 3,
                             *more)

        def theirs(path=path):
            return peer.json("bench", path, 4, 999, args.prompt, args.decode, 3)

        device, host, other = alternate(args.pairs, (bench, lambda: bench("--host-sampling"), theirs))
        rate = median(device, "decode_tok_s") * device[0]["bytes_per_token"]
        share = 100 * rate / median(device, "memory_read_bytes_s")
        slower += ratio(device, host, "decode_tok_s") < 1
        for figure in ("decode_tok_s", "prompt_tok_s"):
            body.append((name, figure, f"{median(device, figure):.1f}", f"{median(host, figure):.1f}", f"{median(other, figure):.1f}",
                         f"{ratio(device, other, figure):.3f}", f"{ratio(device, host, figure):.3f}",
                         f"{rate / 1e9:.0f} GB/s, {share:.0f} %" if figure == "decode_tok_s" else ""))
        print(name, "on", device[0]["device"], flush=True)
    table(("model", "figure", "ours", "host sampling", "peer", "ours/peer", "device/host", "weights read"), body)
    return slower


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sampling", "peer"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--models", help="the models' folder, target/bench unless told")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    args = parser.parse_intermixed_args()
    ours = Ours()
    try:
        return min((sampling if args.what == "sampling" else against_peer)(ours, Made(ours, args.models), args), 1)
    except Skip as reason:
        print("skipped:", reason)
        return 0


if __name__ == "__main__":
    sys.exit(main())
