#!/usr/bin/env python3
"""Encoders, embedding models and models with a recurrent state against their equations in numpy: the matrix of what
tools/decoders.py does not have.

The oracle R is that of the shared folder's tools/synth_hybrids.py, in double precision, over the same weights as F32. That tool also
makes the models. The peer's default run on the same file (D) says how far rounding alone may lead.

    F32 weights, F32 cache          max |ours - R| <= 2e-3
    quantised weights, F16 cache    RMS(ours - R) / std(R) <= 1.1 x RMS(D - R) / std(R) + 1e-3; with experts the median over rows
                                    of a row's RMS, as in tools/decoders.py; so too with normalised heads (RWKV)

A shape with a pooling gives rows of texts: with the pooling of its file, and without one. Several texts go to one call, which packs them
into passes; the last one is evaluated alone as well, and must give the same row within 1e-4 of the largest number. Any other shape gives
logits; the last tokens of a text are evaluated one by one, and must give the rows that they have in a prompt, as closely. An
encoder-decoder gives the logits of an answer of 140 tokens, one by one.

A quantised type that misses with few texts is judged once more with many, those few among them, as in tools/decoders.py. Both lines are
in the output.

Models are kept in target/hybrids, figures in target/hybrids/figures.json, from which --markdown writes the table of docs/models.md.

    hybrids.py [--quick] [--shape NAME ..] [--type TYPE ..] [--gpu-layers N ..] [--device NAME] [--threads N] [--shared DIR]
    hybrids.py --markdown    the table of docs/models.md from the figures of earlier runs
"""
import argparse
import functools
import os
import sys
import tempfile

import decoders
from decoders import Distance, divided, with_numpy
from peer import TARGET, Ours, Peer, Skip, prompts, random_tokens, rows, table

FOLDER = os.path.join(TARGET, "hybrids")
FIGURES = os.path.join(FOLDER, "figures.json")
BEGIN = "<!-- begin: tools/hybrids.py --markdown -->\n"
LENGTHS = (1, 7, 64, 65, 300)
# Texts of each length judged together: a single row says more about chance than about rounding. Where the bound of quantised weights is
# missed, so many as the second line has decide.
TEXTS = {1: 16, 7: 8, 64: 6, 65: 6, 300: 4}
MORE_TEXTS = {1: 64, 7: 64, 64: 64, 65: 64, 300: 24}
# Heads whose results are normalised: one that is nearly nothing is mostly rounding, and one row of a thousand may differ as much as all
# others together.
NORMED_HEADS = ("rwkv6", "rwkv7")
# A score is one number for a text: those of all lengths are judged together.
TEXTS_WITH_SCORES = {1: 150, 7: 150, 64: 12, 65: 12, 300: 4}
DECODED = 4
# Farther than the last distance with a bucket of its own.
ANSWERED = 140
CONTEXT = 512
TYPES = ("f32", "q8_0", "q4_k")
# The pooling of a file that scores.
RANK = 4
QUICK = ("bert-tiny", "modern-bert-tiny", "nomic-bert-moe-tiny", "gemma-embedding-tiny", "qwen3-rank-tiny", "t5-tiny", "t5encoder-tiny", "qwen35-tiny", "lfm2-tiny",
         "jamba-tiny", "mamba2-tiny", "rwkv7-tiny")
QUICK_LENGTHS = {"f32": (7, 65), "q4_k": (7,)}

# Each architecture: the files it was made for, and what of it the shapes do not reach.
MADE_FOR = {
    "bert": ("BGE, GTE, E5, MiniLM, mxbai, Snowflake Arctic Embed, BGE-M3 and rerankers of their kind", ""),
    "eurobert": ("EuroBERT 210M to 2.1B", ""),
    "falcon-h1": ("Falcon-H1 0.5B to 34B", ""),
    "gemma-embedding": ("EmbeddingGemma 300M", ""),
    "granitehybrid": ("Granite 4.0 H 350M to 32B-A9B", "files with rotation"),
    "jamba": ("Jamba 1.5, 1.6, Reasoning 3B", ""),
    "jina-bert-v2": ("jina-embeddings-v2", "rerankers, whose classifier is one matrix; `ffn_up` with both halves"),
    "lfm2": ("LFM2 and LFM2.5 350M to 2.6B", "windows; derivatives whose attention looks ahead"),
    "lfm2moe": ("LFM2 8B-A1B, 24B-A2B", ""),
    "mamba": ("Mamba 130M to 2.8B, FalconMamba", "norms without weights, which FalconMamba has"),
    "mamba2": ("Mamba-2, Codestral Mamba", ""),
    "modern-bert": ("ModernBERT, gte-modernbert, Granite Embedding R2, Ettin", "SiLU"),
    "nemotron_h": ("Nemotron-H, Nemotron Nano 2", ""),
    "nemotron_h_moe": ("Nemotron 3 Nano 30B-A3B", "experts behind a narrow row (Super 120B), which are refused"),
    "nomic-bert": ("nomic-embed-text v1 and v1.5", ""),
    "nomic-bert-moe": ("nomic-embed-text v2", ""),
    "plamo2": ("PLaMo 2 1B to 8B", ""),
    "qwen3": ("Qwen3-Embedding and Qwen3-Reranker 0.6B to 8B", ""),
    "qwen35": ("Qwen3.5 and Qwen3.6 0.8B to 27B", "positions of images; more than one block that predicts further tokens"),
    "qwen35moe": ("Qwen3.5 and Qwen3.6 35B-A3B to 397B-A17B", "as qwen35"),
    "qwen3next": ("Qwen3-Next 80B-A3B", "old files with one `ssm_in`, which are refused"),
    "rwkv6": ("RWKV-6 Finch 1.6B to 14B", "`rwkv6qwen2`, an architecture of its own, which is refused"),
    "rwkv7": ("RWKV-7 Goose 0.1B to 14B", "`arwkv7`, an architecture of its own, which is refused"),
    "t5": ("T5, Flan-T5, MADLAD-400", ""),
    "t5encoder": ("T5 encoders of image models, sentence-t5, GTR-T5", ""),
}


def maker_of(shared):
    """The module that makes models and has their equations."""
    tools = os.path.join(shared, "tools")
    if not os.path.exists(os.path.join(tools, "synth_hybrids.py")):
        raise Skip(f"{tools} has no synth_hybrids.py")
    sys.path.insert(0, tools)
    import synth_hybrids
    # The oracle reads its file again for every text.
    synth_hybrids.Model = functools.lru_cache(maxsize=1)(synth_hybrids.Model)
    return synth_hybrids


def by_median(spec):
    """Whether single rows are chance in a quantised model of this shape."""
    return spec.get("n_used", 0) < spec.get("n_exp", 0) or spec["arch"] in NORMED_HEADS


def shapes_of(maker):
    """The shapes, without those for benches."""
    return [name for name in maker.SHAPES if name not in maker.BENCH]


def answers(spec):
    """Whether a shape is an encoder-decoder."""
    return spec.get("n_dec", 0) > 0


class Files:
    """The models, made where they are missing."""

    def __init__(self, maker):
        self.maker = maker

    def get(self, shape, kind, as_f32=False):
        as_f32 = as_f32 and kind != "f32"
        name = f"{shape}-{kind}{'-as-f32' if as_f32 else ''}.gguf"
        path = os.path.join(FOLDER, name)
        if not os.path.exists(path):
            partial = os.path.join(FOLDER, "partial")
            os.makedirs(partial, exist_ok=True)
            self.maker.synth(shape, kind, partial, 1, False, as_f32)
            os.replace(os.path.join(partial, name), path)
        return path


class Placed:
    """Ours on one placement."""

    def __init__(self, gpu_layers, device, threads):
        self.name = {0: "CPU", -1: "GPU"}.get(gpu_layers, f"{gpu_layers} on the GPU")
        self.threads = threads
        self.ours = Ours("--gpu-layers", gpu_layers, *(["--device", device] if device else []))

    def rows(self, path, texts, kv_type, of, decoded=DECODED):
        """The rows of all texts, from one call."""
        if of == "answers":
            return self.ours.answers(path, texts, ANSWERED, kv_type, self.threads, "--ctx", CONTEXT)
        if of == "logits":
            return self.ours.logits(path, texts, kv_type, self.threads, "--decode", decoded, "--ctx", CONTEXT)
        return self.ours.json("embed", "--model", path, *prompts(texts), "--no-normalize", "--kv-type", kv_type, "--threads", self.threads,
                              *pooling(of))["embeddings"]

    def judged(self, path, groups, kv_type, of):
        """For each group of texts its rows, and how far those of one of its texts are from what it has by itself, relative to its largest
        number; `None` for answers, each of which is by itself."""
        import numpy as np
        rows = divided(self.rows(path, sum(groups, []), kv_type, of), [sum(rows_of(of, tokens) for tokens in texts) for texts in groups])
        if of == "answers":
            return [(of_group, None) for of_group in rows]
        if of == "logits":
            first = [texts[0] for texts in groups]
            alone = divided(self.rows(path, first, kv_type, of, decoded=0), map(len, first))
            packed = [of_group[:len(one)] for of_group, one in zip(rows, alone)]
        else:
            alone = [np.asarray(self.rows(path, texts[-1:], kv_type, of), np.float64) for texts in groups]
            packed = [of_group[-len(one):] for of_group, one in zip(rows, alone)]
        # Rows of this text in another batch: rounding to 8 bits may go another way.
        return [(of_group, np.abs(one - other).max() / max(np.abs(one).max(), 1e-30)) for of_group, one, other in zip(rows, alone, packed)]


def rows_of(of, tokens):
    """How many rows a text has."""
    return {"texts": 1, "answers": 1 + ANSWERED}.get(of, len(tokens))


def pooling(of):
    """As an option of both programs; without it what the file says."""
    return ["--pooling", "none"] if of == "none" else []


def peer_embed(peer, path, tokens, of):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows")
        peer.json("embed", "--model", path, "--tokens", ",".join(map(str, tokens)), "--out", out, *pooling(of))
        return rows(out, rows_of(of, tokens))


def peer_answers(peer, path, tokens):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits")
        source, answer = (",".join(map(str, part)) for part in (tokens[:-ANSWERED], tokens[-ANSWERED:]))
        peer.json("encode_decode", "--model", path, "--tokens", source, "--forced", answer, "--out", out)
        return rows(out, 1 + ANSWERED)


class Matrix:
    HEAD = ("model", "on", "of", "tokens", "max |ours-R|", "RMS ours", "RMS peer", "bound", "alone", "")

    def __init__(self, maker, placed, peer):
        self.maker, self.placed, self.peer, self.files = maker, placed, peer, Files(maker)
        self.body, self.failed, self.figures = [], 0, {}

    def model(self, shape, kind, lengths):
        spec, plain = self.maker.SHAPES[shape], kind == "f32"
        for of in ("texts", "none") if "pool" in spec else ("answers",) if answers(spec) else ("logits",):
            if of == "texts" and spec["pool"] == RANK and not plain:
                missed = self.judge(shape, kind, of, [{length: TEXTS_WITH_SCORES[length] for length in lengths}], "BREACH")
            else:
                missed = self.judge(shape, kind, of, [{length: TEXTS[length]} for length in lengths], "BREACH" if plain else "again")
                if missed and not plain:
                    missed = self.judge(shape, kind, of, [{length: MORE_TEXTS[length]} for (length,) in missed], "BREACH")
            self.failed += len(missed)
        print(f"{shape} {kind}: {self.failed} breaches so far", flush=True)

    def judge(self, shape, kind, of, groups, miss):
        """Judges groups of texts, so many of each of its lengths, and returns those with a miss, whose lines end with that word."""
        path, spec = self.files.get(shape, kind), self.maker.SHAPES[shape]
        kv_type = "f32" if kind == "f32" else "f16"
        more = {"answers": ANSWERED, "logits": DECODED}.get(of, 0)
        texts = [[random_tokens(length + more, spec["vocab"], 1000 * i + length) for length, count in counts.items() for i in range(count)]
                 for counts in groups]
        ours = zip(*(placed.judged(path, texts, kv_type, of) for placed in self.placed))
        return [counts for counts, of_group, judged in zip(groups, texts, ours)
                if not self.case(shape, kind, of, " ".join(map(str, counts)), of_group, judged, miss)]

    def case(self, shape, kind, of, lengths, texts, ours, miss):
        """Whether one group holds on all placements; `ours` has what `Placed.judged` returns for it, for each."""
        import numpy as np
        path, exact = self.files.get(shape, kind), self.files.get(shape, kind, as_f32=True)
        plain, median = kind == "f32", by_median(self.maker.SHAPES[shape])

        def together(of_text):
            return np.concatenate([np.atleast_2d(np.asarray(of_text(tokens), np.float64)) for tokens in texts])

        def of_oracle(tokens):
            if of == "answers":
                return self.maker.oracle(exact, tokens[:-ANSWERED], dec=[0, *tokens[-ANSWERED:]])
            return self.maker.oracle(exact, tokens, pooling="none" if of == "none" else None)

        def of_peer(tokens):
            if of == "answers":
                return peer_answers(self.peer, path, tokens)
            return self.peer.logits(path, tokens) if of == "logits" else peer_embed(self.peer, path, tokens, of)

        oracle = together(of_oracle)
        default = None if plain else Distance(together(of_peer), oracle, median)
        all_hold = True
        for placed, (got, drift) in zip(self.placed, ours):
            far = Distance(got, oracle, median)
            if plain:
                bound, good = "max <= 2e-3", far.max <= 2e-3 and (drift or 0) <= 1e-4
            else:
                limit = 1.1 * default.rms + 1e-3
                bound, good = f"{'median' if median else 'RMS'} <= {limit:.2e}", far.rms <= limit
            all_hold = all_hold and good
            self.body.append((f"{shape} {kind}", placed.name, of, f"{len(texts)} x {lengths}", f"{far.max:.2e}", f"{far.rms:.2e}",
                              "" if plain else f"{default.rms:.2e}", bound, "" if drift is None else f"{drift:.0e}",
                              "ok" if good else miss))
            entry = {"max": float(far.max), "ours": float(far.rms), "good": bool(good)}
            if not plain:
                entry["peer"] = float(default.rms)
            self.figures.setdefault(shape, {}).setdefault(kind, {}).setdefault(placed.name, {})[f"{of} {lengths}"] = entry
        return all_hold


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the sample that `make test` runs")
    parser.add_argument("--markdown", action="store_true", help="only write the table of docs/models.md")
    parser.add_argument("--shape", action="append", help="shapes; without it all")
    parser.add_argument("--type", action="append", help=f"types of weights; without it {' '.join(TYPES)}")
    parser.add_argument("--gpu-layers", type=int, action="append", help="layers of ours on the GPU, -1 = all; several are run in turn")
    parser.add_argument("--device", help="ours on this device")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shared", default=os.environ.get("ELIZA_SHARED", "../shared"))
    return parser.parse_args()


def main():
    args = arguments()
    shared = os.path.abspath(args.shared)
    try:
        with_numpy(shared)
        maker = maker_of(shared)
        if args.markdown:
            decoders.markdown(FIGURES, BEGIN, {name: maker.SHAPES[name]["arch"] for name in shapes_of(maker)}, MADE_FOR)
            return 0
        peer = Peer(shared)
    except Skip as reason:
        print("skipped:", reason)
        return 0
    placed = [Placed(layers, args.device, args.threads) for layers in args.gpu_layers or [0]]
    matrix = Matrix(maker, placed, peer)
    for shape in args.shape or (QUICK if args.quick else shapes_of(maker)):
        spec = maker.SHAPES[shape]
        chance = spec.get("pool") == RANK or "n_exp" in spec  # takes more texts than there is time for
        for kind in args.type or (QUICK_LENGTHS if args.quick else TYPES):
            if args.quick and chance and kind != "f32":
                continue
            matrix.model(shape, kind, QUICK_LENGTHS.get(kind, (7,)) if args.quick else LENGTHS)
        decoders.remember(matrix.figures, FIGURES)
    table(Matrix.HEAD, matrix.body)
    print(f"\n{len(matrix.body)} cases, {matrix.failed} breaches")
    return 1 if matrix.failed else 0


if __name__ == "__main__":
    sys.exit(main())
