//! The token trie: what may come next, from token ids.
