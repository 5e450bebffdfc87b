#!/usr/bin/env python3
"""Makes models/demo.gguf, demo_actions.txt and demo_held_out.jsonl from nothing: the same bytes in every run on one machine.

    pip install -r tools/demo_model/requirements.txt
    python3 tools/demo_model/train.py

Learns the vocabulary, trains a Llama of 1.3 million weights on the requests and stories of phrases.py, and hands vocabulary and
weights to the example `pack_demo_model`, which writes the GGUF file with the library's own writer. It takes one CPU core for
about 20 minutes: for a model this small more threads cost more than they bring, and with one the order of all sums is fixed.
"""

import argparse
import collections
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

import phrases
from tokenizer import Tokenizer, learn, pieces

ROOT = pathlib.Path(__file__).resolve().parents[2]

SEED = 20
SPECIAL = ["<s>", "</s>"]  # a text begins and ends with them
BOS, EOS = 0, 1
VOCABULARY = 1280
# How often a name counts among the words of VOCABULARY_TEXTS texts: rarely, so that names have several tokens, as they do
# in the vocabularies of large models.
NAME_COUNT = 16
VOCABULARY_TEXTS = 20_000

LAYERS, WIDTH, HEADS, KV_HEADS, FEED_FORWARD = 6, 128, 4, 2, 384
HEAD = WIDTH // HEADS
CONTEXT = 512
ROPE_BASE, EPSILON = 10_000.0, 1e-5

STEPS, BATCH, WARM_UP = 3600, 64, 100
RATE, DECAY = 3e-3, 0.1
# What a token of a request counts against one of an answer or a story: it is there to be understood, not to be guessed.
REQUEST_WEIGHT = 0.2
HELD_OUT = 800


class RmsNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * self.weight


def linear(n_in, n_out, scale=1.0):
    layer = torch.nn.Linear(n_in, n_out, bias=False)
    torch.nn.init.normal_(layer.weight, std=0.02 * scale)
    return layer


def rotate(x, cos, sin):
    """Turns neighbouring pairs of a head, as the Llama architecture of GGUF files does."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        residual = 1 / math.sqrt(2 * LAYERS)
        self.attn_norm, self.ffn_norm = RmsNorm(), RmsNorm()
        self.attn_q, self.attn_output = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH, residual)
        self.attn_k, self.attn_v = (linear(WIDTH, KV_HEADS * HEAD) for _ in range(2))
        self.ffn_gate, self.ffn_up = (linear(WIDTH, FEED_FORWARD) for _ in range(2))
        self.ffn_down = linear(FEED_FORWARD, WIDTH, residual)

    def forward(self, x, cos, sin, mask):
        n, t, _ = x.shape
        y = self.attn_norm(x)
        q = rotate(self.attn_q(y).view(n, t, HEADS, HEAD).transpose(1, 2), cos, sin)
        k = rotate(self.attn_k(y).view(n, t, KV_HEADS, HEAD).transpose(1, 2), cos, sin)
        v = self.attn_v(y).view(n, t, KV_HEADS, HEAD).transpose(1, 2)
        k, v = (z.repeat_interleave(HEADS // KV_HEADS, dim=1) for z in (k, v))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(HEAD) + mask).softmax(-1)
        x = x + self.attn_output((weights @ v).transpose(1, 2).reshape(n, t, WIDTH))
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Llama(torch.nn.Module):
    """The output head is the embedding."""

    def __init__(self):
        super().__init__()
        self.token_embd = torch.nn.Embedding(VOCABULARY, WIDTH)
        torch.nn.init.normal_(self.token_embd.weight, std=0.02)
        self.blk = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.output_norm = RmsNorm()
        turns = torch.arange(CONTEXT)[:, None] * ROPE_BASE ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)

    def forward(self, tokens):
        t = tokens.shape[1]
        mask = torch.full((t, t), -math.inf).triu(1)
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, self.cos[:t], self.sin[:t], mask)
        return self.output_norm(x) @ self.token_embd.weight.T


def vocabulary():
    rng = random.Random(SEED)
    counts = collections.Counter()
    for _ in range(VOCABULARY_TEXTS):
        counts.update(pieces(phrases.document(rng)[0]))
    for action in phrases.actions():
        counts.update({piece: NAME_COUNT for piece in pieces(action)})
    return Tokenizer(SPECIAL, learn(counts, VOCABULARY - len(SPECIAL) - 256))


def batches(tokenizer, rng):
    """Endless batches (tokens, weights of the tokens they are followed by), of texts of about the same length."""
    while True:
        texts = []
        for _ in range(16 * BATCH):
            text, answer = phrases.document(rng)
            ids = tokenizer.encode(text)
            end = [*(tokenizer.encode(answer) if answer else []), EOS]
            texts.append(([BOS, *ids, *end], [REQUEST_WEIGHT if answer else 1.0] * len(ids) + [1.0] * len(end)))
        texts.sort(key=lambda text: len(text[0]))
        groups = [texts[i:i + BATCH] for i in range(0, len(texts), BATCH)]
        rng.shuffle(groups)
        for group in groups:
            longest = max(len(ids) for ids, _ in group)
            tokens = torch.tensor([ids + [EOS] * (longest - len(ids)) for ids, _ in group])
            weights = torch.tensor([w + [0.0] * (longest - 1 - len(w)) for _, w in group])
            yield tokens, weights


def train(model, tokenizer, steps):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.99), fused=True)
    source = batches(tokenizer, random.Random(SEED + 1))
    start = time.monotonic()
    for step in range(steps):
        rate = RATE * min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens, weights = next(source)
        losses = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step + 1 == steps:
            print(f"step {step:5}  loss {loss.item():.4f}  {time.monotonic() - start:6.0f} s", flush=True)


@torch.no_grad()
def right(model, tokenizer, requests):
    """The share of requests after which each token of the name and the end are the likeliest."""
    hits = 0
    for text, action in requests:
        ids = [BOS, *tokenizer.encode(phrases.prompt(text))]
        answer = [*tokenizer.encode(action), EOS]
        rows = model(torch.tensor([ids + answer]))[0, len(ids) - 1:-1]
        hits += rows.argmax(-1).tolist() == answer
    return hits / len(requests)


def pack(model, tokenizer, texts, out):
    """Vocabulary, weights and what texts become, for the program that writes the file."""
    tensors = {name: value.float().contiguous() for name, value in model.state_dict().items()}
    description = {
        "layers": LAYERS, "width": WIDTH, "heads": HEADS, "kv_heads": KV_HEADS, "feed_forward": FEED_FORWARD,
        "context": CONTEXT, "rope_base": ROPE_BASE, "epsilon": EPSILON, "bos": BOS, "eos": EOS,
        "tokens": tokenizer.tokens, "special": len(SPECIAL), "merges": [" ".join(pair) for pair in tokenizer.merges],
        "tensors": [{"name": name, "shape": list(value.shape)} for name, value in tensors.items()],
        "texts": [{"text": text, "tokens": tokenizer.encode(text)} for text in texts],
    }
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "weights.f32").write_bytes(b"".join(value.numpy().tobytes() for value in tensors.values()))
        pathlib.Path(folder, "model.json").write_text(json.dumps(description))
        command = ["cargo", "run", "--release", "--locked", "--example", "pack_demo_model", "--", folder, str(out.resolve())]
        subprocess.run(command, cwd=ROOT, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "models", help="folder for the three files")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"{STEPS} make the model; fewer only try the way")
    args = parser.parse_args()

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    tokenizer = vocabulary()
    held_out = phrases.held_out(HELD_OUT, random.Random(SEED + 2))
    model = Llama()
    print(f"{sum(p.numel() for p in model.parameters())} weights, {len(tokenizer.tokens)} tokens", flush=True)
    train(model, tokenizer, args.steps)
    print(f"held-out requests answered exactly: {right(model, tokenizer, held_out):.3f}")

    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "demo_actions.txt").write_text("".join(f"{action}\n" for action in phrases.actions()))
    lines = [json.dumps({"request": text, "action": action}) for text, action in held_out]
    (args.out / "demo_held_out.jsonl").write_text("\n".join(lines) + "\n")
    rng = random.Random(SEED + 3)
    pack(model, tokenizer, [phrases.document(rng)[0] for _ in range(200)], args.out / "demo.gguf")


if __name__ == "__main__":
    sys.exit(main())
