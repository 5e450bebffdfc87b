//! Hyperparameters, weights, and one file per architecture that emits graph nodes.
