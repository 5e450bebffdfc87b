//! Sampling parameters, the chain, one file per sampler.
