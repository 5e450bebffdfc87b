//! Which device computes which node.
//!
//! A node is computed on the device where its part of the model was placed. A node that this device cannot compute is
//! computed on the CPU, which has kernels for everything. A node without weights is computed on the device of its
//! input, so that no rows are copied for it, unless they are copied to the node's own device anyway. What can only
//! follow its input is computed there: the second product of experts, and attention over an earlier layer's cache.

use crate::backend::memory::Component;
use crate::backend::{Backend, Wanted};
use crate::graph::{Graph, Linear, Node, NodeId, Op, RopeSpec, WeightSpec, WeightUse};
use std::collections::HashMap;
use std::ops::Range;

/// The device of every node of a graph. The first backend is the CPU; `place` returns the preferred device of a node.
pub fn assign(
    graph: &Graph,
    backends: &[&dyn Backend],
    place: &dyn Fn(&Node) -> usize,
    specs: &[WeightSpec],
) -> Vec<usize> {
    let mut devices: Vec<usize> = Vec::with_capacity(graph.nodes.len());
    let mut caches: HashMap<usize, usize> = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let source = |i: usize| node.src.get(i).map(|source| devices[source.0 as usize]);
        let wanted = match &node.op {
            Op::SelectRows | Op::Map(_) => {
                let own = place(node);
                let before = graph.nodes[..i].iter().zip(&devices).rev();
                let mut of_part = before.take_while(|(other, _)| other.part == node.part);
                let copied = of_part
                    .any(|(other, &device)| device == own && node.src.iter().all(|source| other.src.contains(source)));
                if copied { Some(own) } else { source(0) }
            }
            // A route is of use only where its experts are, the gates of which decide: what it sorts is the device's
            // own.
            Op::Route(_) => {
                let id = Some(&NodeId(i as u32));
                let experts = || graph.nodes[i..].iter().filter(|node| node.src.get(1) == id);
                let device = experts().next().map_or(0, place);
                let all = experts().all(|node| backends[device].supports(node, specs).is_ok());
                Some(if all { device } else { 0 })
            }
            Op::ExpertGate { .. } => source(1),
            Op::ExpertDown { .. } => source(0),
            // Keys and values are where they were written.
            Op::Attention(spec) if !spec.writes => caches.get(&spec.layer).copied(),
            _ => None,
        };
        let wanted = wanted.unwrap_or_else(|| place(node));
        let device = match backends[wanted].supports(node, specs) {
            Ok(()) => wanted,
            Err(why) => {
                log::info!("{:?} of {:?} runs on the CPU: {why}", node.op, node.part);
                0
            }
        };
        if let Some(spec) = node.attention() {
            caches.insert(spec.layer, device);
        }
        devices.push(device);
    }
    devices
}

/// What each device needs of the weights for the nodes of graphs that are assigned to it.
pub fn wanted(graphs: &[(&Graph, &[usize])], n_devices: usize, n_weights: usize) -> Vec<Wanted> {
    // The component of a weight is that of the first node that uses it.
    let none =
        Wanted { uses: vec![None; n_weights], components: vec![Component::Other; n_weights], together: Vec::new() };
    let mut all = vec![none; n_devices];
    let nodes = graphs.iter().flat_map(|(graph, devices)| {
        graph.nodes.iter().zip(devices.iter()).map(move |(node, &device)| (*graph, node, device))
    });
    for (graph, node, device) in nodes {
        let rope = match &node.op {
            Op::Attention(spec) => spec.rope.map(|rope| &graph.ropes[rope]),
            _ => None,
        };
        let factors = rope.into_iter().flat_map(RopeSpec::weights).map(|id| (id, WeightUse::Vector));
        for (weight, usage) in node.weights().into_iter().chain(factors) {
            let (wanted, weight) = (&mut all[device], weight.0 as usize);
            if wanted.uses[weight].is_none() {
                wanted.components[weight] = Component::of(node.part);
            }
            wanted.uses[weight] = Some(wanted.uses[weight].map_or(usage, |have| have.and(usage)));
        }
        if let Op::MatMul(parts) = &node.op
            && parts.len() > 1
            && parts.iter().all(|part| *part == Linear::plain(part.weight))
        {
            all[device].together.push(parts.iter().map(|part| part.weight).collect());
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
