#!/usr/bin/env python3
"""A choice among names: the token trie, the same mask without its short cuts, no constraint, and llama.cpp with a grammar.

    bench_trie.py [--pairs N] [--spans N] [--threads N] [--names FILE ...] [--json FILE] [NAME ...]

NAME is SHAPE:TYPE, a shape of tools/make_model.rs with random weights and a type of `eliza-inference quantize`. FILE is a list of
names, one a line; by default the demo model's 88 actions, and the first 30 of them. In each pair tools/llama_bench.c times choices by
both of llama.cpp's ways of applying a grammar (mask everything first; try, check, mask everything when refused), then
`eliza-inference bench --mode` times ours on the same file behind the same prompts, all of them greedily. Two times are taken of a
choice: from an evaluated prompt to the last token of the name, and on to the first token behind it, for which the tokens of the
name have to be evaluated, those that the trie forces too. Printed are medians over the pairs; a ratio is that of llama.cpp's better
way to ours. With random weights any name is as good as another, so whether both choose the same says nothing.
"""
import argparse
import json
import os
import statistics
import tempfile

from peer import ROOT, Made, Ours, Skip, Timed, run, table

MODELS = ("qwen3-0.6b:q4_0", "gemma3-270m:q4_0")
MODES = ("strict-trie-ffi", "strict-mask", "unconstrained")
ACTIONS = os.path.join(ROOT, "models", "demo_actions.txt")
PROMPTS = [f"Once upon a time {what}, and the next action is " for what in (
    "a knight met a dragon", "it rained on the market", "the door was locked", "a friend asked for help", "the map was lost",
    "a merchant sold three apples", "the sword broke")]
TIMES = ("ms_per_span", "ms_to_token_behind")


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def compare(args, ours, peer, model, names, folder):
    """One row: the medians of every side on one model with one list of names."""
    listed = write(folder, "names", "\n".join(names) + "\n")
    payload = write(folder, "payload", run([ours.program, "trie", "--model", model, "--path", "action", "--names", listed, "--json"]))
    prompts = [write(folder, f"prompt{i}", prompt) for i, prompt in enumerate(PROMPTS)]
    results, theirs, ratios = {mode: [] for mode in MODES}, [], []
    for _ in range(args.pairs):
        got = peer.json("grammar", model, args.threads, args.spans, listed, *prompts)
        theirs.append(min((got["mask_first"], got["check_then_mask"]), key=lambda way: way["ms_per_span"]))
        grammar = write(folder, "grammar", json.dumps({"tokens_per_second": theirs[-1]["tokens_per_second"], "names": got["names"]}))
        for mode in MODES:
            results[mode].append(ours.json("bench", "--mode", mode, "--model", model, "--token-tree-descriptor", payload, "--grammar",
                                           grammar, "--reps", args.spans, "--threads", args.threads,
                                           *(f"--prompt-file={prompt}" for prompt in prompts)))
        ratios.append([theirs[-1][time] / results["strict-trie-ffi"][-1][time] for time in TIMES])
    sides = {"grammar": theirs, "mask": results["strict-mask"], "trie": results["strict-trie-ffi"]}
    return {
        "model": os.path.basename(model), "names": len(names),
        **{side: [statistics.median(one[time] for one in runs) for time in TIMES] for side, runs in sides.items()},
        "ratio": [statistics.median(pair[i] for pair in ratios) for i in range(2)],
        "tokens_per_span": results["strict-trie-ffi"][0]["tokens_per_span"],
        "accuracy": results["strict-trie-ffi"][0]["token_accuracy"], "runs": results, "peer": theirs,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--folder", help="the models' folder, target/bench unless told")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--spans", type=int, default=3, help="choices behind each prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--names", nargs="*", help="lists of names")
    parser.add_argument("--json", help="a file for all results")
    args = parser.parse_args()
    lists = []
    for path in args.names or [ACTIONS]:
        with open(path, encoding="utf-8") as file:
            lists.append([line.strip() for line in file if line.strip()])
    if not args.names:
        lists.insert(0, lists[0][:30])
    peer, ours, rows = Timed(), Ours(), []
    models = Made(ours, args.folder)
    for name in args.models:
        model = models.get(name)
        for names in lists:
            with tempfile.TemporaryDirectory() as scratch:
                rows.append(compare(args, ours, peer, model, names, scratch))
            print(f"{name}, {len(names)} names: {rows[-1]['ratio'][0]:.1f} and {rows[-1]['ratio'][1]:.1f} times as fast", flush=True)
    both = lambda values, form: ", ".join(format(value, form) for value in values)
    table(("model", "names", "tokens", "grammar ms: name, behind", "mask", "trie", "ratio", "same names"),
          [(row["model"], row["names"], f"{row['tokens_per_span']:.1f}", both(row["grammar"], ".2f"), both(row["mask"], ".2f"),
            both(row["trie"], ".2f"), both(row["ratio"], ".1f"), f"{100 * row['accuracy']:.0f} %") for row in rows])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except Skip as reason:
        print("skipped:", reason)
