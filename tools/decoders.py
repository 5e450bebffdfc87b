#!/usr/bin/env python3
"""Logits of every decoder architecture against a slow forward pass in numpy: the matrix of architectures.

The oracle R is the forward pass of the shared folder's tools/synth_decoders.py, in double precision, over the file's own
weights. That tool also makes the models: a tiny one of random weights for each shape that an architecture comes in. The peer's
default run on the same file (D) says how far rounding alone may lead.

    F32 weights, F32 cache          max |ours - R| <= 2e-3
    quantised weights, F16 cache    RMS(ours - R) / std(R) <= 1.1 x RMS(D - R) / std(R) + 1e-3, and
                                    argmax(ours) = argmax(R) in rows where R's top-2 gap > 4 x that row's max |D - R|
    the same with experts           the first line with the median over rows of a row's RMS: activations of 8 bits send
                                    single rows to other experts, and what follows in such a row says nothing

The last tokens of every text are evaluated one by one after its prompt. Their rows are judged with the others, and on the CPU they
have the bits that the same tokens get within a prompt.

A quantised type that misses with few texts is judged once more with many, those few among them: what is wrong in single rows stays
wrong. Both lines are in the output.

Models are kept in target/decoders; figures in target/decoders/figures.json, from which --markdown writes the table of
docs/models.md.

    decoders.py [--quick] [--shape NAME ..] [--type TYPE ..] [--gpu-layers N ..] [--device NAME] [--threads N] [--shared DIR]
    decoders.py --make        the models that tests/engine/architectures.rs wants, and no comparison
    decoders.py --markdown    the table of docs/models.md from the figures of earlier runs
"""
import argparse
import contextlib
import json
import os
import sys

from peer import ROOT, TARGET, Models, Ours, Peer, Skip, random_tokens, table

FOLDER = os.path.join(TARGET, "decoders")
FIGURES = os.path.join(FOLDER, "figures.json")
DOCUMENT = os.path.join(ROOT, "docs", "models.md")
BEGIN, END = "<!-- begin: tools/decoders.py --markdown -->\n", "<!-- end -->\n"
LENGTHS = (1, 7, 64, 300)
# Texts of each length that are judged together. The rows of a text are more or less exact together: of 3 texts of 7 tokens ours may be
# off by 1.18 times the peer's, of 48 by 1.01 (exaone4-swa Q5_0). With experts few texts say still less, since a row that goes to other
# experts has other keys, which all rows after it see. So where the bound of quantised weights is missed, so many times the texts decide.
TEXTS = {1: 8, 7: 3, 64: 1, 300: 1}
MORE_TEXTS = {1: 64, 7: 64, 64: 16, 300: 4}
AGAIN, MORE_AGAIN = 16, 4
# Shapes without experts whose random coefficients between streams enlarge every rounding, so that few texts say as little.
ENLARGING = ("gemma3n-tiny",)
# Tokens evaluated one by one after each prompt.
DECODED = 4
# Context of all runs. Factors for long contexts are chosen by it, not by the length of a text.
CONTEXT = 512
TYPES = ("f32", "q8_0", "q4_k")
QUICK = ("qwen2-tiny", "mixtral-tiny", "phi3-long-tiny", "gemma2-tiny", "gemma4-e2b-tiny", "gpt-oss-tiny", "mistral3-tiny",
         "deepseek2-tiny", "command-r-tiny", "bloom-6h-tiny", "gemma3n-tiny")
QUICK_LENGTHS = {"f32": (7, 64), "q4_k": (7,)}
# Shapes whose number of layers chooses what their layers are.
COUNTED = ("baichuan-7b-tiny", "baichuan-13b-tiny", "exaone4-swa-tiny", "gemma3n-tiny")

# Each architecture: the files it was made for, and what of it the shapes do not reach.
MADE_FOR = {
    "apertus": ("Apertus 8B and 70B", ""),
    "arcee": ("AFM 4.5B", "YaRN"),
    "baichuan": ("Baichuan 1 and 2, 7B and 13B", ""),
    "bitnet": ("BitNet b1.58 as llama.cpp has it, with SiLU", ""),
    "bloom": ("BLOOM, BLOOMZ", ""),
    "cohere2": ("Command R7B, Command A, Aya Expanse", ""),
    "command-r": ("Command R and R+, Aya 23", ""),
    "deepseek2": ("DeepSeek V2, V2-Lite, V3, R1 and what has their form (Kimi K2), GLM-4.7-Flash",
                  "the gating of early GLM-4.7-Flash files; files with `attn_kv_b` are refused"),
    "dots1": ("dots.llm1", ""),
    "ernie4_5": ("ERNIE 4.5 0.3B", ""),
    "ernie4_5-moe": ("ERNIE 4.5 21B-A3B", ""),
    "exaone": ("EXAONE 3 and 3.5", ""),
    "exaone4": ("EXAONE 4.0 1.2B and 32B", ""),
    "falcon": ("Falcon 7B and 40B (Falcon 3 is `llama`)", ""),
    "gemma": ("Gemma 2B and 7B", ""),
    "gemma2": ("Gemma 2 2B, 9B, 27B", "the scale of 27B"),
    "gemma3": ("Gemma 3 270M to 27B", "the scale of 27B"),
    "gemma3n": ("Gemma 3n E2B and E4B", ""),
    "gemma4": ("Gemma 4 E2B, E4B, 12B, 26B-A4B, 31B", ""),
    "gemma4-assistant": ("draft models of Gemma 4", "heads that compute fewer logits by clusters, whose tables are left out"),
    "glm4": ("GLM-4-9B-0414, GLM-Z1 9B and 32B", "rotation over halves in files that also take images"),
    "glm4moe": ("GLM-4.5, GLM-4.5-Air, GLM-4.6", "the block that predicts further tokens, which llama.cpp 0.5.0 does not run"),
    "gpt-oss": ("gpt-oss 20B and 120B", ""),
    "gpt2": ("GPT-2", ""),
    "gptneox": ("Pythia, GPT-NeoX-20B, RedPajama, Dolly", ""),
    "granite": ("Granite 3 dense, 4.0 350M, 1B and micro dense", "files without rotation"),
    "granitemoe": ("Granite 3 1B-A400M, 3B-A800M", "files without rotation"),
    "hunyuan-dense": ("Hunyuan 0.5B to 7B, Hunyuan-MT", "`rope.scaling.alpha`"),
    "hunyuan-moe": ("Hunyuan-A13B", ""),
    "internlm2": ("InternLM 2 and 2.5", ""),
    "llama": ("Llama 1 to 3, Mistral up to Small 3, Mixtral, TinyLlama, SmolLM 1 and 2, Yi and many more",
              "factors for long contexts; experts in tensors of their own are refused"),
    "llama4": ("Llama 4 Scout, Maverick", "chunks and growing queries, which begin at 8192 tokens; Maverick"),
    "minicpm": ("MiniCPM 1 and 2", "factors for long contexts"),
    "mistral3": ("Ministral 3 3B to 14B, Devstral Small 2", "experts"),
    "mpt": ("MPT 7B and 30B", "norms of queries and keys, learned positions"),
    "nemotron": ("Nemotron-4 and Minitron", ""),
    "olmo2": ("OLMo 2, OLMo 3", ""),
    "olmoe": ("OLMoE 1B-7B", ""),
    "phi2": ("Phi-1, 1.5 and 2", ""),
    "phi3": ("Phi-3, 3.5, Phi-4, Phi-4-mini", ""),
    "qwen2": ("Qwen 1.5, 2 and 2.5, QwQ, R1-Distill-Qwen", ""),
    "qwen2moe": ("Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B", ""),
    "qwen2vl": ("the text part of Qwen2-VL and Qwen2.5-VL", "positions of images"),
    "qwen3": ("Qwen 3 0.6B to 32B", ""),
    "qwen3moe": ("Qwen3-30B-A3B, Qwen3-Coder, 235B-A22B", ""),
    "qwen3vl": ("the text part of Qwen3-VL", "positions and features of images"),
    "qwen3vlmoe": ("the text part of Qwen3-VL with experts", "positions and features of images"),
    "seed_oss": ("Seed-OSS 36B", ""),
    "smollm3": ("SmolLM 3 3B", ""),
    "stablelm": ("StableLM 3B, 1.6B and 12B, Zephyr 3B", ""),
    "starcoder2": ("StarCoder 2 3B to 15B", "windows, which files do not name"),
}
# Architectures without a shape: what else speaks for them.
INSTEAD = {
    "exaone": "nothing; it is bound as `qwen2`",
    "gemma3": "`tools/parity.py` and the fixtures of `tests/model`",
    "gemma4-assistant": "a slow forward pass (`tests/model/nextn.rs`)",
    "hunyuan-moe": "nothing; it is bound as `hunyuan-dense` with the experts of `mixtral-tiny`",
    "nemotron": "nothing; it is bound as `starcoder2`, with another activation",
    "olmoe": "nothing; its parts are those of `qwen2moe` and `olmo2`",
    "qwen2vl": "nothing; it is bound as `qwen2`",
    "qwen3": "`tools/parity.py` and the fixtures of `tests/model`",
    "qwen3vl": "nothing; it is bound as `qwen3`",
    "qwen3vlmoe": "nothing; it is bound as `qwen3moe`",
}


def with_numpy(shared):
    """Begins again with a Python that has numpy and gguf, unless this one has."""
    try:
        import gguf, numpy  # noqa: F401
    except ImportError:
        python = Models(shared).interpreter()
        if os.path.abspath(sys.executable) == os.path.abspath(python):
            raise
        sys.stdout.flush()
        os.execv(python, [python, os.path.abspath(sys.argv[0]), *sys.argv[1:]])


def maker_of(shared):
    """The module that makes models and has their forward pass, with GELU as it is defined in place of the peer's table."""
    tools = os.path.join(shared, "tools")
    if not os.path.exists(os.path.join(tools, "synth_decoders.py")):
        raise Skip(f"{tools} has no synth_decoders.py")
    sys.path.insert(0, tools)
    import synth_decoders
    synth_decoders.GELU_F16 = False
    return synth_decoders


class Files:
    """The models, made where they are missing."""

    def __init__(self, maker):
        self.maker = maker

    def get(self, shape, kind):
        path = os.path.join(FOLDER, f"{shape}-{kind}.gguf")
        if not os.path.exists(path):
            partial = os.path.join(FOLDER, "partial")
            os.makedirs(partial, exist_ok=True)
            os.replace(self.maker.synth(shape, kind, partial, quiet=True), path)
        return path

    def of_one_layer(self, shape):
        """A model with the first layer alone, in which keys and values depend on no other token."""
        def first(value):
            return value[:1] if isinstance(value, list) else value

        whole, name = self.maker.SHAPES[shape], f"{shape}-1l"
        one = dict(whole, L=1, shared=0, kw=[(key, kind, first(value)) for key, kind, value in whole["kw"]])
        self.maker.SHAPES[name] = dict(one, **{key: first(whole[key]) for key in ("F", "KV", "pat")})
        return self.get(name, "f32")


class Run:
    """Logits of ours on one placement."""

    def __init__(self, gpu_layers, device, threads):
        self.name = {0: "CPU", -1: "GPU"}.get(gpu_layers, f"{gpu_layers} on the GPU")
        self.is_cpu, self.threads = gpu_layers == 0, threads
        self.ours = Ours("--gpu-layers", gpu_layers, *(["--device", device] if device else []))

    def logits(self, model, texts, kv_type, decoded):
        return self.ours.logits(model, texts, kv_type, self.threads, "--decode", decoded, "--ctx", CONTEXT)


class Matrix:
    HEAD = ("model", "on", "tokens", "max |ours-R|", "RMS ours", "RMS peer", "bound", "argmax", "decode", "")

    def __init__(self, maker, runs, peer):
        self.maker, self.runs, self.peer, self.files = maker, runs, peer, Files(maker)
        self.body, self.failed, self.figures = [], 0, {}

    def model(self, shape, kind, lengths):
        plain, many = kind == "f32", takes_more_texts(shape, self.maker.SHAPES[shape])
        counts, more = (MORE_TEXTS, MORE_AGAIN) if many and not plain else (TEXTS, AGAIN)
        missed = self.judge(shape, kind, {length: counts[length] for length in lengths}, "BREACH" if plain else "again")
        if missed and not plain:
            missed = self.judge(shape, kind, {length: more * counts[length] for length in missed}, "BREACH")
        self.failed += len(missed)
        print(f"{shape} {kind}: {self.failed} breaches so far", flush=True)

    def judge(self, shape, kind, counts, miss):
        """Judges so many texts of each length, and returns the lengths with a miss, whose lines end with that word."""
        path, spec = self.files.get(shape, kind), self.maker.SHAPES[shape]
        weights, kv_type = self.maker.load(path), "f32" if kind == "f32" else "f16"
        texts = {length: [random_tokens(length + DECODED, spec["vocab"], 1000 * i + length) for i in range(count)]
                 for length, count in counts.items()}
        every, first = sum(texts.values(), []), [of_length[0] for of_length in texts.values()]
        ours = []
        for run in self.runs:
            rows = divided(run.logits(path, every, kv_type, DECODED), [sum(map(len, of_length)) for of_length in texts.values()])
            whole = divided(run.logits(path, first, kv_type, 0), map(len, first))
            ours.append(zip(rows, whole))
        return [length for (length, of_length), rows in zip(texts.items(), zip(*ours))
                if not self.case(f"{shape} {kind}", path, spec, weights, of_length, rows, miss)]

    def case(self, name, path, spec, weights, texts, ours, miss):
        """Whether all runs hold for texts of one length; `ours` has the rows of each, and those of the first text as a prompt."""
        import numpy as np
        shape, kind = name.split()
        plain, experts = kind == "f32", bool(spec["moe"])
        count, length = len(texts), len(texts[0]) - DECODED

        def pooled(logits):
            return np.concatenate([np.asarray(logits(tokens), np.float64) for tokens in texts])

        oracle = pooled(lambda tokens: self.maker.forward(weights, spec, np.array(tokens)))
        default = None if plain else Distance(pooled(lambda tokens: self.peer.logits(path, tokens)), oracle, experts)
        all_hold = True
        for run, (rows, whole) in zip(self.runs, ours):
            got = Distance(rows, oracle, experts)
            # Its last rows are those of the tokens that were evaluated one by one.
            drift = np.abs(whole - rows[:len(whole)])[length:].max()
            decode, good = ("same bits", True) if drift == 0 else (f"{drift:.1e}", not run.is_cpu)
            argmax = ""
            if plain:
                bound, held = "max <= 2e-3", got.max <= 2e-3
            else:
                limit = 1.1 * default.rms + 1e-3
                bound, held = f"{'median' if experts else 'RMS'} <= {limit:.2e}", got.rms <= limit
                if not experts:
                    decided = default.decided(oracle)
                    right = int((rows.argmax(1) == oracle.argmax(1))[decided].sum())
                    argmax, held = f"{right}/{decided.sum()}", held and right == decided.sum()
            good = good and held
            all_hold = all_hold and good
            peer = "" if plain else f"{default.rms:.2e}"
            self.body.append((name, run.name, f"{count} x {length}+{DECODED}", f"{got.max:.2e}", f"{got.rms:.2e}", peer, bound, argmax,
                              decode, "ok" if good else miss))
            entry = {"max": float(got.max), "ours": float(got.rms), "good": bool(good)}
            if not plain:
                entry["peer"] = float(default.rms)
            self.figures.setdefault(shape, {}).setdefault(kind, {}).setdefault(run.name, {})[str(length)] = entry
        return all_hold


def divided(rows, counts):
    """So many rows each."""
    import numpy as np
    return np.split(np.asarray(rows, np.float64), np.cumsum(list(counts))[:-1])


def takes_more_texts(shape, spec):
    return bool(spec["moe"]) or shape in ENLARGING


class Distance:
    """How far rows are from the oracle's."""

    def __init__(self, got, oracle, median):
        import numpy as np
        if got.shape != oracle.shape:
            raise RuntimeError(f"rows of {got.shape} instead of {oracle.shape}")
        differences = got - oracle
        self.row_max = np.abs(differences).max(1)
        self.max = self.row_max.max()
        squares = (differences ** 2).mean(1)
        self.rms = float(np.median(np.sqrt(squares)) if median else np.sqrt(squares.mean())) / oracle.std()

    def decided(self, oracle):
        """The rows in which the oracle's lead is larger than what rounding does."""
        import numpy as np
        second, first = np.partition(oracle, -2, axis=1)[:, -2:].T
        return first - second > 4 * self.row_max


def make(maker):
    """Every model of F32 weights, those of one layer, and one of quantised weights for each shape."""
    files = Files(maker)
    for shape in maker.TINY:
        files.get(shape, "f32")
        files.get(shape, "q4_k")
        if shape not in COUNTED:
            files.of_one_layer(shape)


def remember(figures, path=FIGURES):
    """Adds figures to those of earlier runs; a length that ran again replaces what it had."""
    known = {}
    with contextlib.suppress(FileNotFoundError):
        with open(path, encoding="utf-8") as file:
            known = json.load(file)
    for shape, kinds in figures.items():
        for kind, places in kinds.items():
            for place, lengths in places.items():
                known.setdefault(shape, {}).setdefault(kind, {}).setdefault(place, {}).update(lengths)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(known, file, indent=1, sort_keys=True)


def worst(figures, shapes, kind):
    """The figure of a type that comes next to its bound, over these shapes, all places and lengths."""
    entries = [entry for shape in shapes for place in figures.get(shape, {}).get(kind, {}).values() for entry in place.values()]
    if not entries:
        return "–"
    breach = "" if all(entry["good"] for entry in entries) else " (**breach**)"
    if kind == "f32":
        return f"{max(entry['max'] for entry in entries):.0e}{breach}"
    entry = max(entries, key=lambda entry: entry["ours"] / (1.1 * entry["peer"] + 1e-3))
    return f"{100 * entry['ours']:.2f} / {100 * entry['peer']:.2f} %{breach}"


def markdown(path, begin, architectures, made_for):
    """The table of docs/models.md that follows the line `begin`, from the figures in `path`; `architectures` has that of every shape."""
    with open(path, encoding="utf-8") as file:
        figures = json.load(file)
    shapes = {}
    for shape, architecture in architectures.items():
        shapes.setdefault(architecture, []).append(shape)
    head = "| architecture | files it was made for | checked with | on | F32 | Q8_0 | Q4_K | not checked |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for name, (files, unreached) in made_for.items():
        own = [shape for shape in shapes.get(name, ()) if shape in figures]
        if own:
            checked = ", ".join(f"`{shape.removesuffix('-tiny')}`" for shape in own)
            places = ", ".join(sorted({place for shape in own for kind in figures[shape].values() for place in kind}))
        else:
            checked, places = INSTEAD.get(name, "nothing"), "–"
        cells = (f"`{name}`", files, checked, places, *(worst(figures, own, kind) for kind in TYPES), unreached or "–")
        lines.append(f"| {' | '.join(cells)} |")
    with open(DOCUMENT, encoding="utf-8") as file:
        before, _, rest = file.read().partition(begin)
    after = rest.partition(END)[2]
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(before + begin + "\n" + "\n".join(lines) + "\n\n" + END + after)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the sample that `make test` runs")
    parser.add_argument("--make", action="store_true", help="only make the models")
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
        if args.make or args.markdown:
            if args.make:
                make(maker)
            else:
                markdown(FIGURES, BEGIN, {shape: maker.SHAPES[shape]["arch"] for shape in maker.TINY}, MADE_FOR)
            return 0
        peer = Peer(shared)
    except Skip as reason:
        print("skipped:", reason)
        return 0
    runs = [Run(layers, args.device, args.threads) for layers in args.gpu_layers or [0]]
    shapes = args.shape or (QUICK if args.quick else maker.TINY)
    kinds = args.type or (QUICK_LENGTHS if args.quick else TYPES)
    matrix = Matrix(maker, runs, peer)
    for shape in shapes:
        for kind in kinds:
            if args.quick and kind != "f32" and takes_more_texts(shape, maker.SHAPES[shape]):
                continue  # there is no time for them
            matrix.model(shape, kind, QUICK_LENGTHS.get(kind, (7,)) if args.quick else LENGTHS)
        remember(matrix.figures)
    table(Matrix.HEAD, matrix.body)
    print(f"\n{len(matrix.body)} cases, {matrix.failed} breaches")
    return 1 if matrix.failed else 0


if __name__ == "__main__":
    sys.exit(main())
