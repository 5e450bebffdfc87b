//! `plan`: what opening a model would take of each device's memory, and which device would compute what, from the
//! file's header alone.

use crate::args::ModelArgs;
use crate::output::{Failure, Outcome, print_json, printable, size};
use elizainference::engine::{EngineOptions, GraphPlan, plan_graphs, plan_json, plan_memory};
use elizainference::graph::Part;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of context; 0 is the model's own, at most 4096
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    ctx: u32,
    /// Slots that share the context, 1 to 16; 0 is 16
    #[arg(long, default_value_t = 0, value_name = "N")]
    slots: u32,
    /// Streams that share the engine, each with this context and these slots, 1 to 16
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    parallel: u32,
    /// Slots can have sessions of their own, which generate at the same time
    #[arg(long)]
    concurrent_slots: bool,
    /// The GGUF file of a draft model that is opened with it
    #[arg(long, value_name = "FILE")]
    draft: Option<PathBuf>,
    /// Show the graphs too: their nodes, which device computes them, what is copied between devices, and for which
    /// batches
    #[arg(long)]
    graph: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let Args { slots, parallel, concurrent_slots, .. } = args;
    let options = EngineOptions { slots, parallel, concurrent_slots, ..args.model.engine(args.ctx)? };
    if args.json {
        let mut report = plan_json(&args.model.model, args.draft.as_deref(), &options)?;
        if args.graph {
            report["graphs"] = graphs_json(&args.model, &options)?;
        }
        return print_json(&report);
    }
    let plan = plan_memory(&args.model.model, args.draft.as_deref(), &options)?;
    let mut out = io::stdout().lock();
    writeln!(out, "Model        {}", args.model.model.display())?;
    let [k, v] = args.model.kv_types();
    let types = if k == v { k.into() } else { format!("{k} (keys) and {v} (values)") };
    let streams = if args.parallel == 1 { String::new() } else { format!(" for each of {} streams", args.parallel) };
    writeln!(out, "Context      {} tokens{streams}, KV cache in {types}", plan.estimate.context)?;
    let needs = &plan.estimate.needs;
    let gpus = if needs.len() > 2 { "On GPUs" } else { "On the GPU" };
    writeln!(out, "{gpus:<13}{}", layers(plan.estimate.gpu_layers, plan.n_layer))?;
    for (rule, &(tensors, bytes)) in options.tensor_devices.iter().zip(&plan.placed) {
        writeln!(out, "Rule         {rule}: {tensors} tensors, {} in the file", size(bytes))?;
    }
    if let Some(draft) = &args.draft {
        let of_draft = size(plan.estimate.of_draft.allocated);
        writeln!(out, "Draft        {}: {of_draft} of what the CPU takes", draft.display())?;
    }
    for need in needs {
        writeln!(out, "\n{}", printable(&need.device))?;
        if needs.len() > 2 && !need.layers.is_empty() {
            writeln!(out, "  {}", numbers(need.layers.start, need.layers.end - 1))?;
        }
        for (component, bytes) in need.bytes.iter().filter(|(_, bytes)| *bytes > 0) {
            writeln!(out, "  {:<11}{:>12} {bytes:>15} bytes", component.name(), size(bytes))?;
        }
        let total = need.bytes.total();
        let available = need.memory.available.map_or("unknown".into(), |bytes| format!("{} available", size(bytes)));
        writeln!(out, "  {:<11}{:>12} {total:>15} bytes, {available}", "total", size(total))?;
        if need.file_backed > 0 {
            let (text, bytes) = (size(need.file_backed), need.file_backed);
            writeln!(out, "  {:<11}{text:>12} {bytes:>15} bytes, which the system may drop", "file-backed")?;
        }
    }
    let fits = plan.fits.map_or("unknown", |fits| if fits { "yes" } else { "no" });
    writeln!(out, "\nFits         {fits}")?;
    if let Some(context) = plan.largest_context {
        writeln!(out, "Largest      context of {context} tokens")?;
    } else if plan.fits == Some(false) {
        writeln!(out, "Largest      no context fits")?;
    }
    if let Some(n) = plan.largest_gpu_layers {
        writeln!(out, "Largest      {} on the GPU", layers(n, plan.n_layer))?;
    }
    if args.graph {
        let (devices, graphs) = plan_graphs(&args.model.model, &options)?;
        graphs.iter().try_for_each(|graph| show(&mut out, &devices, graph))?;
    }
    Ok(out.flush()?)
}

/// A graph: what it is planned for, and a line for the nodes that a device computes in a row.
fn show(out: &mut impl Write, devices: &[String], graph: &GraphPlan) -> io::Result<()> {
    let rows = graph.buckets.iter().map(|bucket| bucket.rows.max(bucket.out_rows).to_string());
    let (n, many) = (graph.splits.len(), if graph.splits.len() == 1 { "" } else { "s" });
    writeln!(out, "\nGraph {:<7}{} nodes in {n} split{many}", graph.name, graph.nodes.len())?;
    writeln!(out, "  rows       {}", rows.collect::<Vec<_>>().join(" "))?;
    for split in &graph.splits {
        let nodes = format!("{}..{}", split.nodes.start, split.nodes.end);
        let mut line = format!("  {nodes:<11}{:<20} {}", printable(&devices[split.device]), parts(graph, &split.nodes));
        for (from, bytes) in &split.copies {
            line += &format!(", {} copied from {}", size(*bytes as u64), printable(&devices[*from]));
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The parts of the model that nodes belong to, in words.
fn parts(graph: &GraphPlan, nodes: &Range<usize>) -> String {
    let mut words: Vec<String> = Vec::new();
    let parts = graph.nodes[nodes.clone()].iter().map(|node| node.part);
    let layers = parts.clone().filter_map(|part| match part {
        Part::Layer(layer) => Some(layer),
        _ => None,
    });
    let range = layers.clone().min().zip(layers.max());
    for part in parts {
        let word = match (part, range) {
            (Part::Layer(_), Some((first, last))) => numbers(first, last),
            (part, _) => part.to_string(),
        };
        if words.last() != Some(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}

/// Numbers of layers in words.
fn numbers(first: usize, last: usize) -> String {
    if first == last { format!("layer {first}") } else { format!("layers {first} to {last}") }
}

/// The graphs for machines; devices by their place in `devices`.
fn graphs_json(model: &ModelArgs, options: &EngineOptions) -> Result<Value, Failure> {
    let (devices, graphs) = plan_graphs(&model.model, options)?;
    let graph = |graph: &GraphPlan| {
        let nodes: Vec<Value> = (graph.nodes.iter())
            .map(|node| json!({"op": node.op, "part": node.part.to_string(), "width": node.width}))
            .collect();
        let copy = |(from, bytes): &(usize, usize)| json!({"from": from, "bytes": bytes});
        let splits: Vec<Value> = (graph.splits.iter())
            .map(|split| {
                let copies: Vec<Value> = split.copies.iter().map(copy).collect();
                json!({"device": split.device, "first": split.nodes.start, "end": split.nodes.end, "copies": copies})
            })
            .collect();
        let buckets: Vec<Value> = (graph.buckets.iter())
            .map(|bucket| {
                json!({
                    "rows": bucket.rows,
                    "output_rows": bucket.out_rows,
                    "copied_bytes": bucket.copied_bytes,
                    "workspace_bytes": bucket.workspace_bytes,
                })
            })
            .collect();
        json!({"name": graph.name, "nodes": nodes, "splits": splits, "buckets": buckets})
    };
    Ok(json!({"devices": devices, "graphs": graphs.iter().map(graph).collect::<Vec<_>>()}))
}

/// A number of layers on the GPU in words.
fn layers(n: usize, of: usize) -> String {
    let head = if n > of { " and the output head" } else { "" };
    format!("{} of {of} layers{head}", n.min(of))
}
