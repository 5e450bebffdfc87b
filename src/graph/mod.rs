//! Tensors, ops, builder, shape rules: a graph is data.
