/**
 * Token trees: closed sets of names as paths of token ids.
 *
 * The payload is what the library takes. A model makes one from names (`Model.tokenTrie`); the builders here are for hosts
 * that have the tokens already, and for looking at what a payload allows.
 */

/** A name and its tokens. */
export interface TokenSequence {
  name: string;
  tokens: number[];
}

/** One closed set. `path` names it ("action", "parameters.<field>", "contexts[]"); arming takes the path. */
export interface TokenTreeDescriptor {
  path: string;
  leaves: TokenSequence[];
}

/** What constrains a generation. `modelId` is the model's `general.name`; empty fits every model. */
export interface TokenTreePayload {
  modelId: string;
  descriptors: TokenTreeDescriptor[];
}

/** A node of a trie; `tokenId` is the token that leads to it. A terminal node ends a name, and may have children. */
export interface TokenTrieNode {
  tokenId: number;
  children: Map<number, TokenTrieNode>;
  isTerminal: boolean;
  leafName?: string;
}

/** The token id of a root. */
export const TRIE_ROOT_TOKEN_ID = -1;

/** How one token is chosen inside a span; see `ELIZA_TRIE_*` in the header. */
export type TrieMode = "greedy" | "sampled" | "score";

/** The numbers of the modes, as the library takes them. */
export const TRIE_MODES: Readonly<Record<TrieMode, number>> = { greedy: 0, sampled: 1, score: 2 };

/** The trie of some names. One without tokens is left out; of names with the same tokens the smallest is kept. */
export function buildTokenTrie(sequences: readonly TokenSequence[]): TokenTrieNode {
  const root = node(TRIE_ROOT_TOKEN_ID);
  for (const { name, tokens } of sequences) {
    if (tokens.length === 0) continue;
    let at = root;
    for (const token of tokens) {
      let child = at.children.get(token);
      if (child === undefined) at.children.set(token, (child = node(token)));
      at = child;
    }
    if (at.leafName === undefined || name < at.leafName) at.leafName = name;
    at.isTerminal = true;
  }
  return root;
}

function node(tokenId: number): TokenTrieNode {
  return { tokenId, children: new Map(), isTerminal: false };
}

/**
 * The descriptor of those names that have tokens, each once, sorted by name, so that the same set always makes the same
 * payload. `null` where no name has any.
 */
export function buildTokenTreeDescriptor(
  path: string,
  names: readonly string[],
  tokensOf: ReadonlyMap<string, readonly number[]>,
): TokenTreeDescriptor | null {
  const leaves: TokenSequence[] = [];
  for (const name of new Set(names)) {
    const tokens = tokensOf.get(name);
    if (tokens !== undefined && tokens.length > 0) leaves.push({ name, tokens: [...tokens] });
  }
  leaves.sort((a, b) => a.name.localeCompare(b.name));
  return leaves.length === 0 ? null : { path, leaves };
}

/** The node that `tokenId` leads to, or `null` where that token is not allowed. */
export function step(from: TokenTrieNode, tokenId: number): TokenTrieNode | null {
  return from.children.get(tokenId) ?? null;
}

/** Whether the name is complete and no longer one begins with it. */
export function isUniqueContinuation(at: TokenTrieNode): boolean {
  return at.isTerminal && at.children.size === 0;
}

/** Different token paths that end a name. */
export function countTerminals(from: TokenTrieNode): number {
  let count = from.isTerminal ? 1 : 0;
  for (const child of from.children.values()) count += countTerminals(child);
  return count;
}

/** Roughly what a trie of these nodes takes in JavaScript: 80 bytes a node and 16 an edge. */
export function estimateTrieBytes(from: TokenTrieNode): number {
  let bytes = 80;
  for (const child of from.children.values()) bytes += 16 + estimateTrieBytes(child);
  return bytes;
}
