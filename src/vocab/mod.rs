//! SPM and byte-level BPE vocabularies; special tokens; tokens to bytes.
