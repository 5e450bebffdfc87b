#!/usr/bin/env python3
"""Logits and greedy text against the peer: the parity matrix.

The oracle R is the peer with an F32 cache and no fused attention, on a file whose weights are plain F32: for a quantised
model the twin that holds the same weights dequantised. The peer's own default run on the quantised file (D) says how far
rounding alone may lead.

    F32 weights and F32 cache     max |ours - R| <= 2e-3
    every other case              RMS(ours - R) / std(R) <= 1.1 x RMS(D - R) / std(R) + 1e-3
    every case                    argmax(ours) = argmax(R) in rows where R's top-2 gap > 4 x that row's max |D - R|
    greedy, F32 cache             the same ids as the peer with an F32 cache and no fused attention
    greedy, F16 cache             a first difference only where R's top-2 gap is below 5e-2

The greedy text is that of a model of stories and, behind requests, of the demo model.

gemma3 in F32 is held to the second line: the peer looks GELU up in a half-precision table, which by itself moves a
logit by more than 2e-3.

    parity.py [--quick] [--gpu-layers N] [--shared DIR] [--threads N]
"""
import argparse
import json
import math
import os
import sys

from peer import ROOT, Models, Ours, Peer, Skip, random_tokens, table

LENGTHS = (1, 7, 64, 300)
# Sequences judged together: one row alone says more about chance than about rounding.
SEQUENCES = {1: 16, 7: 4}
TYPES = ("f16", "q8_0", "q4_0", "q4_k", "q6_k")
SHAPES = ("llama-tiny", "qwen3-tiny", "gemma3-tiny")
QUICK = (("llama-tiny", "q8_0"), ("qwen3-tiny", "q4_k"), ("gemma3-tiny", "q4_0"))
PROMPTS = (
    "Once upon a time", "One day, a little girl named Lily", "Tom and his dog went to the park", "The cat was very sad",
    "Ben had a big red ball", "It was a sunny day and", "Mom said to Anna", "There was a tree in the garden",
    "The bird could not fly", "Two friends were playing",
)
GREEDY = 200
DEMO = os.path.join(ROOT, "models", "demo.gguf")


def top2(row):
    """Index of the largest value (the first of equals) and its lead over the second largest."""
    best = max(range(len(row)), key=row.__getitem__)
    second = max((v for i, v in enumerate(row) if i != best), default=-math.inf)
    return best, row[best] - second


class Distance:
    """How far rows are from the oracle's."""

    def __init__(self, got, oracle):
        if len(got) != len(oracle) or any(len(g) != len(o) for g, o in zip(got, oracle)):
            raise RuntimeError("the rows differ in number or length")
        self.row_max, squares = [], 0.0
        for g, o in zip(got, oracle):
            largest = 0.0
            for a, b in zip(g, o):
                d = abs(a - b)
                squares += d * d
                if not d <= largest:  # also when it is no number
                    largest = d
            self.row_max.append(largest)
        values = sum(len(o) for o in oracle)
        mean = sum(math.fsum(o) for o in oracle) / values
        variance = sum(math.fsum((v - mean) ** 2 for v in o) for o in oracle) / values
        self.max = math.nan if any(math.isnan(m) for m in self.row_max) else max(self.row_max)
        self.rms = math.sqrt(squares / values) / math.sqrt(variance)


class Logits:
    """The logits of the matrix."""

    HEAD = ("model", "KV", "tokens", "max |ours-R|", "RMS ours", "RMS peer", "bound", "argmax", "")

    def __init__(self, ours, peer, threads):
        self.ours, self.peer, self.threads = ours, peer, threads
        self.body, self.failed = [], 0

    def case(self, name, model, twin, n_vocab, length, kv_types, absolute):
        sequences = [random_tokens(length, n_vocab, 1000 * i + length) for i in range(SEQUENCES.get(length, 1))]

        def pooled(logits):
            return [row for tokens in sequences for row in logits(tokens)]

        oracle = pooled(lambda tokens: self.peer.logits(twin, tokens, "--kv-f32", "--no-flash"))
        default = Distance(pooled(lambda tokens: self.peer.logits(model, tokens)), oracle)
        tops = [top2(row) for row in oracle]
        for kv in kv_types:
            rows = self.ours.logits(model, sequences, kv, self.threads)
            got = Distance(rows, oracle)
            if absolute and kv == "f32":
                good, bound = got.max <= 2e-3, "max <= 2e-3"
            else:
                limit = 1.1 * default.rms + 1e-3
                good, bound = got.rms <= limit, f"RMS <= {limit:.2e}"
            decided = wrong = 0
            for row, (best, gap), noise in zip(rows, tops, default.row_max):
                if gap > 4 * noise:
                    decided += 1
                    wrong += top2(row)[0] != best
            good = good and wrong == 0
            self.failed += not good
            argmax = f"{decided - wrong}/{decided}"
            self.body.append((name, kv, f"{len(sequences)} x {length}", f"{got.max:.2e}", f"{got.rms:.2e}", f"{default.rms:.2e}", bound, argmax,
                              "ok" if good else "BREACH"))


def vocabulary_size(peer, model):
    """The length of a row of logits."""
    return len(peer.logits(model, [1])[0])


def greedy(ours, peer, model, prompts, threads):
    """Greedy continuations with both caches; returns the table's rows and the number of failures."""
    body, failed, divergences = [], 0, 0
    for text in prompts:
        prompt = peer.json("tokenize", "--model", model, "--text", text)["ids"]
        listed = ",".join(map(str, prompt))
        wanted = peer.json("greedy", "--model", model, "--tokens", listed, "--n", GREEDY, "--kv-f32", "--no-flash")["ids"]
        for kv in ("f32", "f16"):
            result = ours.json("generate", "--model", model, "--prompt-tokens", listed, "-n", GREEDY, "--temp", 0, "--kv-type",
                               kv, "--threads", threads)
            got = result["tokens"]
            same = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
            if got == wanted:
                verdict, good = f"{len(wanted)} tokens equal", True
            else:
                gap = top2(peer.logits(model, prompt + wanted[:same], "--kv-f32", "--no-flash")[-1])[1]
                good = kv == "f16" and gap < 5e-2
                divergences += good
                verdict = f"differs at step {same}, top-2 gap {gap:.2e}"
            failed += not good
            body.append((text.strip().replace("\n", " | "), kv, verdict, result["finish_reason"], "ok" if good else "BREACH"))
    return body, failed, divergences


def demo_prompts():
    """The first 50 requests that the demo model was not trained on, as it is asked them."""
    with open(os.path.join(ROOT, "models", "demo_held_out.jsonl"), encoding="utf-8") as lines:
        requests = [json.loads(line)["request"] for line in lines][:50]
    return [f"User: {request}\nAction:\n" for request in requests]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the sample that `make test` runs")
    parser.add_argument("--shared", default=os.environ.get("ELIZA_SHARED", "../shared"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gpu-layers", type=int, default=0, help="layers of ours on the GPU; -1 = all")
    args = parser.parse_args()
    shared = os.path.abspath(args.shared)
    stories = os.path.join(shared, "models", "stories260k.gguf")
    try:
        if not os.path.exists(stories):
            raise Skip(f"{stories} is not there")
        peer = Peer(shared)
    except Skip as reason:
        print("skipped:", reason)
        return 0
    ours, models = Ours("--gpu-layers", args.gpu_layers), Models(shared)

    logits = Logits(ours, peer, args.threads)
    for length in (7, 64) if args.quick else LENGTHS:
        logits.case("stories260k f32", stories, stories, 512, length, ("f32", "f16"), absolute=True)
    try:
        cases = QUICK if args.quick else [(s, t) for s in SHAPES for t in ("f32", *TYPES)]
        for shape, kind in cases:
            model = models.get(shape, kind)
            twin = model if kind == "f32" else models.get(shape, kind, as_f32=True)
            n_vocab = vocabulary_size(peer, model)
            for length in (7,) if args.quick else LENGTHS:
                logits.case(f"{shape} {kind}", model, twin, n_vocab, length, ("f32", "f16"),
                            absolute=kind == "f32" and shape != "gemma3-tiny")
    except Skip as reason:
        print("skipped: the synthetic models:", reason)
    table(Logits.HEAD, logits.body)

    runs = failed = divergences = 0
    for name, model, prompts in (("stories260k", stories, PROMPTS[:2] if args.quick else PROMPTS), ("demo", DEMO, demo_prompts())):
        print(f"\ngreedy, {name}, up to {GREEDY} tokens a prompt")
        body, breaches, allowed = greedy(ours, peer, model, prompts, args.threads)
        table(("prompt", "KV", "against the peer with an F32 cache", "finish", ""), body)
        runs, failed, divergences = runs + len(body), failed + breaches, divergences + allowed
    print(f"\n{len(logits.body)} logits cases, {logits.failed} breaches; {runs} greedy runs, {failed} breaches, "
          f"{divergences} allowed differences with the F16 cache")
    return 1 if logits.failed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
