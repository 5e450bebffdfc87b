"""A byte-level BPE vocabulary: learned from counted words, and the tokens of a text under it.

The pieces that merges never cross are GPT-2's, written for ASCII; bytes have the printable stand-ins of that vocabulary too.
"""

import collections
import re

PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def stand_ins():
    """The printable character of every byte: itself where it is one, else the next free one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


BYTES = stand_ins()


def pieces(text):
    """The pieces of a text, in stand-ins."""
    return ["".join(BYTES[b] for b in piece.encode()) for piece in PIECES.findall(text)]


def join(parts, pair):
    """`parts` with each `pair` made one, from the left."""
    out, i = [], 0
    while i < len(parts):
        if tuple(parts[i:i + 2]) == pair:
            out.append(parts[i] + parts[i + 1])
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


def learn(counts, n_merges):
    """The merges that shorten counted pieces most, greedily; ties go to the pair that sorts first."""
    words = [(list(word), n) for word, n in sorted(counts.items())]
    merges = []
    while len(merges) < n_merges:
        found = collections.Counter()
        for parts, n in words:
            for pair in zip(parts, parts[1:]):
                found[pair] += n
        if not found:
            break
        pair = min(found, key=lambda p: (-found[p], p))
        merges.append(pair)
        words = [(join(parts, pair) if pair[0] in parts else parts, n) for parts, n in words]
    return merges


class Tokenizer:
    """Texts to ids: special tokens first, then bytes, then merges."""

    def __init__(self, special, merges):
        self.merges = merges
        self.tokens = [*special, *(BYTES[b] for b in range(256)), *("".join(pair) for pair in merges)]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.known = {}

    def encode(self, text):
        return [i for piece in pieces(text) for i in self.piece(piece)]

    def piece(self, piece):
        if piece not in self.known:
            parts = list(piece)
            while len(parts) > 1:
                pair = min(zip(parts, parts[1:]), key=lambda p: self.rank.get(p, len(self.rank)))
                if pair not in self.rank:
                    break
                parts = join(parts, pair)
            self.known[piece] = [self.ids[part] for part in parts]
        return self.known[piece]
