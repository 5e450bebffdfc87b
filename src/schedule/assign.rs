//! Which device computes which node.
//!
//! A node is computed on the device where its part of the model was placed. A node that this device cannot compute is
//! computed on the CPU, which has kernels for everything. A node without weights is computed on the device of its
//! input, so that no rows are copied for it.

use crate::backend::memory::Component;
use crate::backend::{Backend, Wanted};
use crate::graph::{Graph, Node, Op, WeightSpec, WeightUse};
use std::ops::Range;

/// The device of every node of a graph. The first backend is the CPU; `place` returns the preferred device of a node.
pub fn assign(
    graph: &Graph,
    backends: &[&dyn Backend],
    place: &dyn Fn(&Node) -> usize,
    specs: &[WeightSpec],
) -> Vec<usize> {
    let mut devices: Vec<usize> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let wanted = match (&node.op, node.src.first()) {
            (Op::SelectRows | Op::SoftCap { .. }, Some(source)) => devices[source.0 as usize],
            _ => place(node),
        };
        devices.push(match backends[wanted].supports(node, specs) {
            Ok(()) => wanted,
            Err(why) => {
                log::info!("{:?} of {:?} runs on the CPU: {why}", node.op, node.part);
                0
            }
        });
    }
    devices
}

/// What each device needs of the weights for the nodes of `graph` that are assigned to it.
pub fn wanted(graph: &Graph, devices: &[usize], n_devices: usize, n_weights: usize) -> Vec<Wanted> {
    // The component of a weight is that of the first node that uses it.
    let none =
        Wanted { uses: vec![None; n_weights], components: vec![Component::Other; n_weights], together: Vec::new() };
    let mut all = vec![none; n_devices];
    for (node, &device) in graph.nodes.iter().zip(devices) {
        let rope = match &node.op {
            Op::Attention(spec) => graph.ropes[spec.rope].factors,
            _ => None,
        };
        for (weight, usage) in node.weights().into_iter().chain(rope.map(|id| (id, WeightUse::Vector))) {
            let (wanted, weight) = (&mut all[device], weight.0 as usize);
            if wanted.uses[weight].is_none() {
                wanted.components[weight] = Component::of(node.part);
            }
            wanted.uses[weight] = Some(wanted.uses[weight].map_or(usage, |have| have.and(usage)));
        }
        if let Op::MatMul { weights, biases } = &node.op
            && weights.len() > 1
            && biases.iter().all(Option::is_none)
        {
            all[device].together.push(weights.clone());
        }
    }
    all
}

/// Runs of nodes on one device.
pub(super) fn splits(devices: &[usize]) -> Vec<Range<usize>> {
    let mut start = 0;
    let cuts = devices.chunk_by(|a, b| a == b).map(|run| {
        let range = start..start + run.len();
        start = range.end;
        range
    });
    cuts.collect()
}
