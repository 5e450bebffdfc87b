#!/usr/bin/env python3
"""Tokens that are guessed before they are sampled: a generation with guesses beside the same one without.

    bench_guessing.py [--pairs N] [--threads N] [--tokens N] [--type TYPE] [--json FILE] [TEXT ...]

TEXT is one of `edit` (a program, and the same with names changed), `json` (a list of like objects), `prose` (a text that repeats nothing),
`draft` (the prose, with a draft model of a tenth of the size that agrees about 70 tokens of 100), `other` (the same with a draft model of
another vocabulary, which by itself has about half of the words right) and `own` (words that follow each other as in the prose, by a model
with a block that predicts further tokens and nearly agrees). The models are made (`make_model --script`; that of
`own` with `--habits`): they say the text, token for token, and take the time of their shape for it. Both ways say the same, which is
checked. The vocabularies are real ones where `ELIZA_SHARED` or ../shared has them; `other` needs them.
"""
import argparse
import json
import os
import random
import re
import statistics
import tempfile
import zlib

from peer import ROOT, Made, Ours, Skip, run, table

MODEL, DRAFT, NEXTN = "scripted-300m", "scripted-25m", "nextn-300m"
VOCABULARY, OTHER = "ggml-vocab-llama-spm.gguf", "ggml-vocab-deepseek-coder.gguf"
RENAMED = {"program": "executable", "folder": "directory", "path": "file_name", "environment": "variables"}
NAMES = ("Anna", "Boris", "Chen", "Dora", "Emil", "Farah", "Goran", "Hana")
WORDS = ("meeting", "garden", "train", "weather", "invoice", "holiday", "printer", "concert", "recipe", "ticket", "letter", "station")


def read(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


def edit():
    code = "\n".join(read("tools", "peer.py").split("\n")[:70])
    names = re.compile(r"\b(" + "|".join(RENAMED) + r")\b")
    return f"Change the names in this file:\n\n{code}\n\n", names.sub(lambda found: RENAMED[found[0]], code)


def objects():
    choose = random.Random(1)
    text = lambda: " ".join(choose.choice(WORDS) for _ in range(choose.randint(3, 8)))
    rows = [{"id": choose.randint(1000, 9999), "from": choose.choice(NAMES), "subject": text(), "unread": choose.random() < 0.5,
             "tags": choose.sample(WORDS, 2), "received": f"2026-0{choose.randint(1, 9)}-{choose.randint(10, 28)}"} for _ in range(40)]
    return "The messages of today as JSON:\n\n", json.dumps(rows, indent=1)


def prose():
    files = [read("docs", name) for name in ("token-trie.md", "session.md", "sampling.md", "models.md")]
    paragraphs = [part for file in files for part in re.split(r"\n\n|\n(?=[*-] )", file) if re.match(r"([*-] )?[A-Z][a-z]", part)]
    plain = [" ".join(re.sub(r"`|\]\([^)]*\)|\[|^[*-] ", "", part).split()) for part in paragraphs]
    return "What this project is, and why:\n\n", "\n".join(plain)


TEXTS = {"edit": edit, "json": objects, "prose": prose, "draft": prose, "other": prose, "own": prose}


def tokens_of(ours, model, text, *more):
    return json.loads(run([ours.program, "tokenize", "--model", model, *more, text]))


def script(ours, known, text, most):
    """The tokens of a prompt, and those of the text after it."""
    prompt, answer = (tokens_of(ours, known, part, "--no-bos") for part in text)
    return prompt, answer[:most]


def made(models, shape, kind, name, vocab, tokens, how="--script"):
    """A model that says these tokens, or with `--habits` what is in these lists of tokens."""
    with tempfile.TemporaryDirectory() as scratch:
        file = os.path.join(scratch, "script.json")
        with open(file, "w", encoding="utf-8") as out:
            json.dump(tokens, out)
        suffix = f"-{name}-{zlib.crc32(json.dumps(tokens).encode()):08x}"
        return models.made(f"{shape}:{kind}", suffix, lambda: [how, file, *vocab])


def disagreeing(tokens, first, share):
    """The tokens, in which this share of those from `first` on is another one."""
    choose = random.Random(2)
    return [choose.choice(tokens) if at >= first and choose.random() < share else token for at, token in enumerate(tokens)]


def compare(args, ours, models, name):
    shared = os.environ.get("ELIZA_SHARED") or os.path.join(ROOT, os.pardir, "shared")
    file, other = (os.path.join(shared, "models", "vocab", name) for name in (VOCABULARY, OTHER))
    vocab = ["--vocab", file] if os.path.exists(file) else []
    known = file if vocab else models.get(f"{MODEL}:{args.type}")
    if name == "other" and not os.path.exists(other):
        raise Skip(f"{other} is not there")
    text = TEXTS[name]()
    prompt, answer = script(ours, known, text, args.tokens)
    tokens = prompt + answer
    own = name == "own"
    if own:
        model = made(models, NEXTN, args.type, name, vocab, [tokens], "--habits")
    else:
        model = made(models, MODEL, args.type, TEXTS[name].__name__, vocab, tokens)
    draft = ["--draft", model] if own else []
    chain = ["--temp", 1, "--seed", 1] if own else ["--chain", "greedy"]
    if name == "draft":
        draft = ["--draft", made(models, DRAFT, args.type, name, vocab, disagreeing(tokens, len(prompt), 0.3))]
    if name == "other":
        whole = tokens_of(ours, other, "".join(text))
        draft = ["--draft", made(models, DRAFT, args.type, name, ["--vocab", other], whole[:4096])]
    ways = {"off": ["--no-guessing"], "on": draft}
    times, counts = {way: [] for way in ways}, {}
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "prompt")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text[0])
        for pair in range(args.pairs + 1):
            said = {}
            for way in sorted(ways, reverse=pair % 2 == 1):
                got = ours.json("generate", "--model", model, "--prompt-file", path, *chain, "--max-tokens", len(answer),
                                "--ctx", 4096, "--threads", args.threads, "--no-bos", "--ignore-eos", *ways[way])
                said[way], counts[way] = got["text"], got["usage"]
                # The first of each way warms up.
                if pair:
                    times[way].append(got["usage"]["decode_us"] / got["usage"]["completion_tokens"])
            if said["on"] != said["off"]:
                raise RuntimeError(f"{name}: the texts differ")
    ratios = [off / on for off, on in zip(times["off"], times["on"])]
    usage = counts["on"]
    return {"text": name, "tokens": usage["completion_tokens"], "prompt": len(prompt), "passes": usage["forward_passes"],
            "drafted": usage["drafted_tokens"], "accepted": usage["accepted_tokens"], "ms": statistics.median(times["on"]) / 1e3,
            "ms_off": statistics.median(times["off"]) / 1e3, "ratio": statistics.median(ratios), "ratios": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help=", ".join(TEXTS))
    parser.add_argument("--folder", help="the models' folder, target/bench unless told")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=600, help="the most tokens that are said")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--type", default="q4_0", help="the type of the weights")
    parser.add_argument("--json", help="a file for all results")
    args = parser.parse_args()
    for name in args.texts:
        if name not in TEXTS:
            parser.error(f"no text `{name}`: {', '.join(TEXTS)}")
    ours, results = Ours(), []
    models = Made(ours, args.folder)
    for name in args.texts or TEXTS:
        try:
            results.append(compare(args, ours, models, name))
            print(f"{name}: {results[-1]['ratio']:.2f} times as fast", flush=True)
        except Skip as why:
            print(f"skipped: {name}: {why}", flush=True)
    table(("text", "tokens", "prompt", "passes", "guessed", "right", "ms a token", "without", "ratio"),
          [(row["text"], str(row["tokens"]), str(row["prompt"]), str(row["passes"]), str(row["drafted"]), str(row["accepted"]),
            f"{row['ms']:.2f}", f"{row['ms_off']:.2f}", f"{row['ratio']:.2f}") for row in results])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
