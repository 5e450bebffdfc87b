//! One stream: worker, prefill, generate, text assembly, usage.
