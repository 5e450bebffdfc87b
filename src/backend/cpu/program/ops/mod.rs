//! The operations of a graph, a row each. The file of an operation has all of it: its lowering, its step, the memory
//! that the step needs and what it does on every thread. There is an implementation of every operation, of any shape.

mod attention;
mod experts;
mod heads;
mod matmul;
mod rows;
mod states;
mod streams;

use super::lower::Lowering;
use crate::Result;
use crate::backend::Work;
use crate::graph::{NodeId, Op};

/// Lowers the nodes of `work`. The weights' types and shapes are enough.
pub fn lower<'a>(work: &'a Work<'a>) -> Result<Lowering<'a>> {
    let mut lowering = Lowering::new(work);
    let nodes = lowering.nodes();
    let any = |test: fn(&Op) -> bool| nodes.iter().any(|node| test(&node.op));
    if any(|op| matches!(op, Op::Attention(_) | Op::ShiftKeys(_))) && !any(|op| matches!(op, Op::Embed { .. })) {
        lowering.push(attention::RopeTables);
    }
    for id in (work.nodes.0..work.nodes.1).map(NodeId) {
        operation(id, &mut lowering)?;
    }
    Ok(lowering)
}

/// Appends a node's steps.
fn operation(id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
    match &to.node(id).op {
        Op::Hidden => Ok(()),
        Op::Embed { table, scale, index } => rows::embed(to, id, *table, *scale, *index),
        Op::SelectRows => rows::select(to, id),
        Op::Norm { norm, groups } => rows::norm(to, id, *norm, *groups),
        Op::MatMul(parts) => matmul::matmul(to, id, parts),
        Op::GatedMatMul { gate, up, act } => matmul::gated(to, id, *gate, *up, *act),
        Op::Map(function) => rows::map(to, id, *function),
        Op::Add { scale } => rows::add(to, id, *scale),
        Op::Gate { act, first } => rows::gate(to, id, *act, *first),
        Op::Mix { parts, sums, coefficients } => streams::mix(to, id, (*parts, *sums), coefficients),
        Op::Equalize => streams::equalize(to, id),
        Op::Sparsify { deviations } => rows::sparsify(to, id, *deviations),
        Op::Attention(spec) => attention::attention(to, id, spec),
        Op::HeadMatMul { weight, heads, keep } => heads::head_matmul(to, id, *weight, *heads, *keep),
        Op::Route(spec) => experts::route(to, id, spec),
        Op::ExpertGate { gate, up, act, weighted } => experts::gate(to, id, (*gate, *up), *act, *weighted),
        Op::ExpertDown { down, weighted } => experts::down(to, id, *down, *weighted),
        Op::Columns { parts, first } => rows::columns(to, id, *parts, *first),
        Op::Conv(spec) => states::conv(to, id, spec),
        Op::Recur(spec) => states::recur(to, id, spec),
        Op::WriteKeys(spec) => attention::write_keys(to, id, spec),
        Op::ShiftKeys(spec) => attention::shift_keys(to, spec),
        Op::CopyCells(spec) => attention::copy_cells(to, spec),
    }
}
