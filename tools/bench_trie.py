#!/usr/bin/env python3
"""A choice among names: the token trie, the same mask without its short cuts, no constraint, and the peer with a grammar.

    bench_trie.py [--pairs N] [--spans N] [--threads N] [--names FILE ...] [--json FILE] [NAME ...]

NAME is SHAPE:TYPE as the shared folder's make_models.py knows them, FILE a list of names, one a line. In each pair the peer's
program times spans of both its ways of applying a grammar (mask everything first; try, check, mask everything when refused),
then `eliza-inference bench --mode` times ours on the same file, from an evaluated prompt to the last token of a name, both
with greedy choices or the peer's default chain. Printed are medians over the pairs; the ratio is that of the milliseconds of
a span, the peer's better way over ours. As forced tokens need no pass until something follows, a second ratio goes on to the
first token behind the name; the peer's side of it is its span and one token at its free speed. The names that a grammar leads to are asked of the peer's library once for each
prompt, with greedy choices; so is `token_accuracy`. With random weights any name is as good as another: agreement is
then a matter of which of several tokenisations of a name a grammar lets through.
"""
import argparse
import ctypes as c
import json
import os
import statistics
import tempfile

from peer import Models, Ours, Peer, Skip, run, table

MODELS = ("qwen3-0.6b:q4_0", "gemma3-270m:q4_0")
MODES = ("strict-trie-ffi", "strict-mask", "unconstrained")
PROMPTS = [f"Once upon a time {what}, and the next action is " for what in (
    "a knight met a dragon", "it rained on the market", "the door was locked", "a friend asked for help", "the map was lost",
    "a merchant sold three apples", "the sword broke")]


class Token(c.Structure):
    _fields_ = [("id", c.c_int32), ("logit", c.c_float), ("p", c.c_float)]


class Tokens(c.Structure):
    _fields_ = [("data", c.POINTER(Token)), ("size", c.c_size_t), ("selected", c.c_int64), ("sorted", c.c_bool)]


class Batch(c.Structure):
    _fields_ = [("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("rest", c.c_void_p * 5)]


class ModelParams(c.Structure):
    """Version 0.5; only the layers on a GPU are set."""
    _fields_ = [("lists", c.c_void_p * 2), ("n_gpu_layers", c.c_int32), ("rest", c.c_uint8 * 60)]


class ContextParams(c.Structure):
    """Version 0.5; only the sizes and threads are set."""
    _fields_ = [("n_ctx", c.c_uint32), ("sizes", c.c_uint32 * 6), ("n_threads", c.c_int32), ("n_threads_batch", c.c_int32),
                ("rest", c.c_uint8 * 124)]


class Library:
    """The peer's library with a model, driven as a host does."""

    def __init__(self, folder, model, threads):
        name = next(f for f in sorted(os.listdir(folder)) if f.startswith("libllama."))
        self.lib = lib = c.CDLL(os.path.join(folder, name))
        pointers = ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab", "llama_get_memory",
                    "llama_sampler_init_grammar", "llama_sampler_init_greedy", "llama_sampler_chain_init")
        for pointer in pointers:
            getattr(lib, pointer).restype = c.c_void_p
        lib.llama_version.restype = c.c_char_p
        if not lib.llama_version().startswith(b"0.5."):
            raise Skip(f"the peer's library is version {lib.llama_version().decode()}, not 0.5")
        self.quiet = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda *_: None)
        lib.llama_log_set(self.quiet, None)
        lib.ggml_backend_load_all_from_path(folder.encode())
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_context_default_params.restype = ContextParams
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = c.c_void_p(lib.llama_model_load_from_file(model.encode(), params))
        if not self.model:
            raise RuntimeError(f"the peer cannot load {model}")
        context = lib.llama_context_default_params()
        context.n_ctx, context.n_threads, context.n_threads_batch = 512, threads, threads
        self.context = c.c_void_p(lib.llama_init_from_model(self.model, context))
        self.vocab = c.c_void_p(lib.llama_model_get_vocab(self.model))
        lib.llama_batch_get_one.restype = Batch
        lib.llama_sampler_chain_add.argtypes = [c.c_void_p, c.c_void_p]

    def decode(self, tokens):
        array = (c.c_int32 * len(tokens))(*tokens)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("the peer failed to decode")

    def tokenize(self, text):
        array, data = (c.c_int32 * 512)(), text.encode()
        return list(array[:self.lib.llama_tokenize(self.vocab, data, len(data), array, 512, True, False)])

    def piece(self, token):
        buffer = c.create_string_buffer(256)
        return buffer.raw[:self.lib.llama_token_to_piece(self.vocab, token, buffer, 256, 0, False)]

    def name(self, prompt, names, grammar):
        """The name that greedy choices under the grammar make, or None."""
        lib, text = self.lib, b""
        lib.llama_memory_clear(c.c_void_p(lib.llama_get_memory(self.context)), True)
        chain = c.c_void_p(lib.llama_sampler_chain_init(c.c_bool(True)))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root"))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
        self.decode(self.tokenize(prompt))
        for _ in range(40):
            token = lib.llama_sampler_sample(chain, self.context, -1)
            text += self.piece(token)
            if text.decode(errors="replace") in names:
                break
            self.decode([token])
        lib.llama_sampler_free(chain)
        return text.decode() if text.decode(errors="replace") in names else None

    def close(self):
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)


def gbnf(names):
    return "root ::= " + " | ".join(json.dumps(name) for name in names) + "\n"


def compare(args, ours, peer, model, names_file, folder):
    """One row: the medians of every side on one model with one list of names."""
    with open(names_file, encoding="utf-8") as file:
        names = [line.strip() for line in file if line.strip()]
    files = {key: os.path.join(folder, key) for key in ("payload", "prompts", "grammar", "report")}
    with open(files["payload"], "w", encoding="utf-8") as file:
        file.write(run([ours.program, "trie", "--model", model, "--path", "action", "--names", names_file, "--json"]))
    with open(files["prompts"], "w", encoding="utf-8") as file:
        file.write("\n".join(PROMPTS))
    library = Library(peer.env["PEER_LLAMA_DIR"], model, args.threads)
    chosen = [library.name(prompt, set(names), gbnf(names)) for prompt in PROMPTS]
    library.close()
    results = {mode: [] for mode in MODES}
    theirs, ratios = [], []
    for _ in range(args.pairs):
        peer_run = peer.json("grammar", "--model", model, "--actions", names_file, "--spans", args.spans, "--threads", args.threads)
        ways = [peer_run[way] for way in ("grammar_first", "check_then_resample")]
        best = min(ways, key=lambda way: way["ms_per_span"])
        theirs.append({"ms_per_span": best["ms_per_span"], "tokens_per_second": best["tok_s"], "free": peer_run["free"]["tok_s"]})
        with open(files["grammar"], "w", encoding="utf-8") as file:
            json.dump({"tokens_per_second": best["tok_s"], "names": chosen}, file)
        for mode in MODES:
            run([ours.program, "bench", "--mode", mode, "--model", model, "--prompt", files["prompts"], "--token-tree-descriptor",
                 files["payload"], "--output", files["report"], "--grammar", files["grammar"], "--reps", "3", "--threads", str(args.threads),
                 *ours.options])
            with open(files["report"], encoding="utf-8") as file:
                results[mode].append(json.load(file))
        trie = results["strict-trie-ffi"][-1]
        behind = best["ms_per_span"] + 1e3 / peer_run["free"]["tok_s"]
        theirs[-1]["ms_to_token_behind"] = behind
        ratios.append((best["ms_per_span"] / trie["ms_per_span"], behind / trie["ms_to_token_behind"]))
    median = lambda runs, key: statistics.median(run[key] for run in runs)
    trie = results["strict-trie-ffi"]
    return {
        "model": os.path.basename(model), "names": len(names),
        "grammar_ms": median(theirs, "ms_per_span"), "trie_ms": median(trie, "ms_per_span"),
        "mask_ms": median(results["strict-mask"], "ms_per_span"), "ratio": statistics.median(ratio for ratio, _ in ratios),
        "grammar_behind_ms": median(theirs, "ms_to_token_behind"), "trie_behind_ms": median(trie, "ms_to_token_behind"),
        "mask_behind_ms": median(results["strict-mask"], "ms_to_token_behind"), "ratio_behind": statistics.median(ratio for _, ratio in ratios),
        "grammar_tok_s": median(theirs, "tokens_per_second"), "free_tok_s": median(theirs, "free"),
        "trie_tok_s": median(trie, "tokens_per_second"), "unconstrained_tok_s": median(results["unconstrained"], "tokens_per_second"),
        "vs_grammar": median(trie, "tokens_per_second_vs_grammar"), "accuracy": median(trie, "token_accuracy"),
        "passes": trie[0]["forward_passes_total"], "saved": trie[0]["forward_passes_saved"], "spans": trie[0]["spans"],
        "skip": trie[0]["skip_ratio_mean"], "runs": results, "peer": theirs,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--shared", default=os.environ.get("ELIZA_SHARED", "../shared"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--spans", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--names", nargs="*", help="lists of names; by default the shared folder's")
    parser.add_argument("--json", help="a file for all results")
    args = parser.parse_args()
    shared = os.path.abspath(args.shared)
    folder = os.path.join(shared, "tools", "peer")
    if not os.path.isdir(folder):
        raise Skip("the folder with the peer's tools is not there (--shared)")
    lists = args.names or [os.path.join(folder, f"actions_{n}.txt") for n in (30, 200)]
    peer, ours, models, rows = Peer(shared), Ours(), Models(shared), []
    if "PEER_LLAMA_DIR" not in peer.env:
        raise Skip("PEER_LLAMA_DIR does not say where the peer's libraries are")
    for name in args.models:
        model = models.get(*name.split(":"))
        for names in lists:
            with tempfile.TemporaryDirectory() as scratch:
                rows.append(compare(args, ours, peer, model, names, scratch))
            row = rows[-1]
            print(f"{row['model']}, {row['names']} names: {row['ratio']:.1f} x, {row['ratio_behind']:.1f} x to the token behind", flush=True)
    table(["model", "names", "grammar ms", "mask ms", "trie ms", "ratio", "to the token behind: grammar", "mask", "trie", "ratio", "grammar tok/s",
           "trie tok/s", "free tok/s (peer, ours)", "same names", "passes (saved)", "skipped"],
          [[row["model"], row["names"], f"{row['grammar_ms']:.1f}", f"{row['mask_ms']:.1f}", f"{row['trie_ms']:.2f}", f"{row['ratio']:.1f}",
            f"{row['grammar_behind_ms']:.1f}", f"{row['mask_behind_ms']:.1f}", f"{row['trie_behind_ms']:.1f}", f"{row['ratio_behind']:.1f}",
            f"{row['grammar_tok_s']:.1f}", f"{row['trie_tok_s']:.1f}", f"{row['free_tok_s']:.1f}, {row['unconstrained_tok_s']:.1f}",
            f"{100 * row['accuracy']:.0f} %", f"{row['passes']} ({row['saved']}) / {row['spans']}", f"{100 * row['skip']:.2f} %"] for row in rows])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except Skip as reason:
        print("skipped:", reason)
