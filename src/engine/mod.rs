//! A loaded model ready to decode: KV cache, slots, batches, cached plans.
