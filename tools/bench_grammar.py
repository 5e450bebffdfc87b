#!/usr/bin/env python3
"""Masks of JSON schemas: this library beside llguidance and llama.cpp's grammars, in one table.

    bench_grammar.py         vocabularies of ELIZA_SHARED or ../shared, else the demo model's

Runs `cargo bench --bench grammar`, then walks the same tokens of the same texts with llguidance, which is installed into
target/llguidance, and asks llama.cpp (`ELIZA_PEER`, as `tools/peer.py` prints it) for masks at some places of them, with the
grammar that this library makes where it reads the schema as llama.cpp does. What a machine cannot have is left out of the table.
"""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from peer import installed

ROOT = Path(__file__).resolve().parent.parent
# Places of a text at which llama.cpp is asked: parts of its tokens.
PLACES = (0.1, 0.5, 0.9)


def figures(times):
    times = sorted(times)
    at = lambda part: times[int((len(times) - 1) * part)]
    return {"count": len(times), "median": at(0.5), "p99": at(0.99), "longest": at(1.0)}


class Tokenizer:
    """What llguidance asks of a tokenizer; 0xff begins the text of a token that is none."""

    bos_token_id = None

    def __init__(self, pieces, eog):
        texts = [bytes.fromhex(piece) for piece in pieces]
        ends = set(eog)
        self.eos_token_id = eog[0]
        self.special_token_ids = [i for i, text in enumerate(texts) if not text or i in ends]
        special = set(self.special_token_ids)
        self.tokens = [b"\xff[%d]" % i if i in special else text for i, text in enumerate(texts)]

    def __call__(self, text):
        """Tokens of a text by longest match; it asks for few."""
        if not hasattr(self, "index"):
            self.index = {piece: token for token, piece in reversed(list(enumerate(self.tokens)))}
            self.longest = max(map(len, self.tokens))
        data, at, found = text if isinstance(text, bytes) else text.encode(), 0, []
        while at < len(data):
            for length in range(min(self.longest, len(data) - at), 0, -1):
                token = self.index.get(data[at:at + length])
                if token is not None:
                    break
            else:
                raise ValueError(f"no token for byte {at} of {text!r}")
            found.append(token)
            at += length
        return found


def required_first(schema):
    """The schema with the properties of each object in the order of the texts: required ones first."""
    if isinstance(schema, list):
        return [required_first(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: required_first(part) for key, part in schema.items()}
    needed, properties = schema.get("required"), schema.get("properties")
    if isinstance(needed, list) and isinstance(properties, dict):
        schema["properties"] = dict(sorted(properties.items(), key=lambda item: item[0] not in needed))
    return schema


def llguidance(data):
    """Figures of llguidance; None where it cannot be had."""
    if not installed("llguidance", "llguidance==1.9.1", "numpy"):
        return None
    import llguidance as ll
    import numpy

    start = time.perf_counter()
    made = Tokenizer(data["pieces"], data["eog"])
    tokenizer = ll.LLTokenizer(ll.TokenizerWrapper(made), n_vocab=len(made.tokens))
    setup = (time.perf_counter() - start) * 1e6
    mask = numpy.zeros((len(made.tokens) + 31) // 32, dtype=numpy.int32)
    first, masks, refused = [], [], []
    for case in data["schemas"]:
        start = time.perf_counter()
        schema = {**required_first(json.loads(case["schema"])), "x-guidance": {"coerce_one_of": True}}
        grammar = ll.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matcher = ll.LLMatcher(tokenizer, grammar, log_level=0)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            refused.append(matcher.get_error().splitlines()[0])
            continue
        first.append((time.perf_counter() - start) * 1e6)
        for one in case["timed"]:
            matcher.reset()
            for token in one["tokens"]:
                start = time.perf_counter()
                matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                masks.append((time.perf_counter() - start) * 1e6)
                if not matcher.consume_token(token):
                    refused.append(f"token {token} of {one['text'][:60]!r}")
                    break
    for problem in sorted(set(refused))[:5]:
        print(f"  llguidance refuses: {problem}")
    return {"the vocabulary's trie, once": figures([setup]), "to the first mask": figures(first),
            "a mask in the texts after them": figures(masks), "refused": len(refused)}


def llama(data, peer):
    """Figures of llama.cpp's grammar."""
    asked = []
    for case in data["schemas"]:
        one = case["timed"][0]
        for part in PLACES:
            texts = [bytes.fromhex(data["pieces"][token]) for token in one["tokens"]]
            text = b"".join(texts[: int(len(texts) * part)])
            asked.append(f"{case['gbnf'].encode().hex()}\t{text.hex()}")
    with tempfile.NamedTemporaryFile("w", suffix=".lines") as lines:
        lines.write("\n".join(asked) + "\n")
        lines.flush()
        command = [peer, "grammar_check", "--model", data["model"], "--lines", lines.name, "--feed", "tokens", "--masks", "--times"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    times = [answer["apply_us"] for answer in answers if "apply_us" in answer]
    return {"a mask in the texts after them": figures(times), "refused": len(answers) - len(times)}


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        environment = dict(os.environ, ELIZA_BENCH_OUT=str(path))
        subprocess.run(["cargo", "bench", "--locked", "--bench", "grammar"], cwd=ROOT, env=environment, check=True)
        everything = json.loads(path.read_text())
    peer = os.environ.get("ELIZA_PEER")
    print("\nmicroseconds, median / p99 / longest")
    for name, data in everything.items():
        rows = {"this library": data["ours"], "llguidance": llguidance(data),
                "llama.cpp": llama(data, peer) if peer else None}
        print(f"{name}, {len(data['pieces'])} tokens, {len(data['schemas'])} schemas")
        whats = list(data["ours"])
        for who, row in rows.items():
            for what in whats:
                if row and what in row:
                    one = row[what]
                    print(f"  {who:<14}{what:<34}{one['count']:>8}{one['median']:>12.2f}{one['p99']:>12.2f}{one['longest']:>12.2f}")
            if row and row.get("refused"):
                print(f"  {who:<14}{'refused':<34}{row['refused']:>8}")


main()
