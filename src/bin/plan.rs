//! `plan`: what opening a model would take of each device's memory, from the file's header alone.

use crate::args::ModelArgs;
use crate::output::{Outcome, print_json, printable, size};
use elizainference::engine::{EngineOptions, plan_json, plan_memory};
use std::io::{self, Write};

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
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let options = EngineOptions { slots: args.slots, ..args.model.engine(args.ctx)? };
    if args.json {
        return print_json(&plan_json(&args.model.model, &options)?);
    }
    let plan = plan_memory(&args.model.model, &options)?;
    let mut out = io::stdout().lock();
    writeln!(out, "Model        {}", args.model.model.display())?;
    writeln!(out, "Context      {} tokens, KV cache in {}", plan.estimate.context, args.model.kv_type())?;
    writeln!(out, "On the GPU   {}", layers(plan.estimate.gpu_layers, plan.n_layer))?;
    for need in &plan.estimate.needs {
        writeln!(out, "\n{}", printable(&need.device))?;
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
    Ok(out.flush()?)
}

/// A number of layers on the GPU in words.
fn layers(n: usize, of: usize) -> String {
    let head = if n > of { " and the output head" } else { "" };
    format!("{} of {of} layers{head}", n.min(of))
}
