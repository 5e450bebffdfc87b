//! `quantize`: a model's weights in another type.
//!
//! The result takes its name only when it is complete. Memory stays small: rows are read and converted a few megabytes
//! at a time.

use crate::output::{Outcome, catch_interrupts, fail, interrupted, progress, size};
use clap::ValueEnum;
use elizainference::gguf::{File, TensorInfo, Writer, is_of_part};
use elizainference::quant::{TensorType, dequantize, quantize};
use elizainference::{Error, Result};
use indicatif::ProgressBar;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Weights that one thread converts at a time, rounded to whole rows.
const CHUNK: usize = 1 << 18;

#[derive(clap::Args)]
pub struct Args {
    /// The model to read: any type that can be decoded
    input: PathBuf,
    /// The file to write; an existing one is replaced
    output: PathBuf,
    /// Weight type of the result
    #[arg(short, long = "type", value_name = "TYPE")]
    ty: Target,
    /// Leave the output matrix (or the tied embedding) as it is, instead of the finer type it gets
    #[arg(long)]
    keep_output: bool,
    /// Threads; 0 uses all processors
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Target {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q6_k")]
    Q6K,
    #[value(name = "q5_0")]
    Q5_0,
    #[value(name = "q4_k")]
    Q4K,
    #[value(name = "q4_0")]
    Q4_0,
}

impl Target {
    fn tensor_type(self) -> TensorType {
        match self {
            Target::F32 => TensorType::F32,
            Target::F16 => TensorType::F16,
            Target::Bf16 => TensorType::BF16,
            Target::Q8_0 => TensorType::Q8_0,
            Target::Q6K => TensorType::Q6_K,
            Target::Q5_0 => TensorType::Q5_0,
            Target::Q4K => TensorType::Q4_K,
            Target::Q4_0 => TensorType::Q4_0,
        }
    }

    /// The mixture's number in `general.file_type`.
    fn file_type(self) -> u32 {
        match self {
            Target::F32 => 0,
            Target::F16 => 1,
            Target::Q4_0 => 2,
            Target::Q8_0 => 7,
            Target::Q5_0 => 8,
            Target::Q4K => 14,
            Target::Q6K => 18,
            Target::Bf16 => 32,
        }
    }
}

pub fn run(args: Args) -> Outcome {
    let started = Instant::now();
    let source = File::open(&args.input)?;
    for part in source.parts() {
        if let (Ok(a), Ok(b)) = (part.path().canonicalize(), args.output.canonicalize())
            && a == b
        {
            return fail(format!("{} would be overwritten by its own conversion", part.path().display()));
        }
    }
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    let tied = source.tensor("output.weight").is_none();
    let mut writer = Writer::new(3);
    for (key, _) in source.metadata().filter(|(key, _)| !is_of_part(key)) {
        writer.copy_key(&source, key)?;
    }
    writer.set("general.quantization_version", 2u32).set("general.file_type", args.ty.file_type());
    let mut types = Vec::new();
    for info in source.tensors() {
        let ty = choose(info, args.ty.tensor_type(), tied, args.keep_output)?;
        writer.declare(info.name.clone(), &info.shape[..info.n_dims as usize], ty);
        types.push(ty);
    }

    catch_interrupts(|| {});
    let bar = progress("Converting", source.tensors().iter().map(|t| t.bytes).sum());
    let conversion = Conversion { source: &source, path: &args.output, threads, bar: &bar };
    writer.stream(&args.output, &mut |i, out| {
        let info = &source.tensors()[i];
        conversion.tensor(info, types[i], out)
    })?;
    bar.finish_and_clear();
    let after = std::fs::metadata(&args.output).map_or(0, |m| m.len());
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    types.iter().for_each(|ty| *kinds.entry(ty.name()).or_default() += 1);
    let kinds: Vec<String> = kinds.iter().map(|(name, n)| format!("{n} {name}")).collect();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: {} from {} ({}; tensors: {}) in {:.1} s",
        args.output.display(),
        size(after),
        size(source.size()),
        args.ty.tensor_type(),
        kinds.join(", "),
        started.elapsed().as_secs_f64()
    )?;
    Ok(out.flush()?)
}

/// The type that a tensor gets.
///
/// Matrices get the type asked for, norms, biases, routers and other small tensors stay as they are. The output matrix
/// shapes every choice of a token and stays finer (Q6_K), the embedding too where it doubles as the output. A row
/// that is no whole number of blocks takes a type with smaller blocks.
fn choose(info: &TensorInfo, wanted: TensorType, tied: bool, keep_output: bool) -> Result<TensorType> {
    let source = info.tensor_type()?;
    let is_output = info.name == "output.weight" || tied && info.name == "token_embd.weight";
    let is_matrix = info.n_dims >= 2
        && info.name.ends_with(".weight")
        && ![
            "_norm",
            "ffn_gate_inp",
            "ssm_conv1d",
            "shortconv",
            "position_embd",
            "token_types",
            "time_mix_",
            "attn_rel_b",
        ]
        .iter()
        .any(|part| info.name.contains(part));
    if is_output && keep_output || !is_matrix && wanted != TensorType::F32 {
        return Ok(source);
    }
    let finer = matches!(wanted, TensorType::Q5_0 | TensorType::Q4_K | TensorType::Q4_0);
    let wanted = if is_output && finer { TensorType::Q6_K } else { wanted };
    let smaller = match wanted {
        TensorType::Q6_K => &[TensorType::Q6_K, TensorType::Q8_0, TensorType::F16][..],
        TensorType::Q4_K => &[TensorType::Q4_K, TensorType::Q5_0, TensorType::F16],
        ref other => &[*other, TensorType::F16],
    };
    Ok(smaller.iter().copied().find(|ty| ty.row_bytes(info.shape[0]).is_some()).unwrap_or(source))
}

/// One run of the command, as its parts need it.
struct Conversion<'a> {
    source: &'a File,
    path: &'a Path,
    threads: usize,
    bar: &'a ProgressBar,
}

impl Conversion<'_> {
    /// Write one tensor's data as `ty`.
    fn tensor(&self, info: &TensorInfo, ty: TensorType, out: &mut dyn Write) -> Result<()> {
        let from = info.tensor_type()?;
        let part = |at: u64, most: usize| -> Result<Vec<u8>> {
            let mut part = vec![0; (info.bytes - at).min(most as u64) as usize];
            self.source.read_at(info, at, &mut part)?;
            Ok(part)
        };
        if from == ty {
            const PART: usize = 8 << 20;
            return (0..info.bytes).step_by(PART).try_for_each(|at| {
                let part = part(at, PART)?;
                self.put(&[&part], part.len(), out)
            });
        }
        let row = info.shape[0] as usize;
        let row_bytes = from.row_bytes(info.shape[0]).unwrap_or(0) as usize;
        if info.bytes == 0 || row_bytes == 0 {
            return Ok(());
        }
        let rows_each = (CHUNK / row).max(1);
        // Each round gives every thread the same number of rows; the parts are written in order.
        let round_bytes = row_bytes * rows_each * self.threads;
        for (round, at) in (0..info.bytes).step_by(round_bytes).enumerate() {
            let part = part(at, round_bytes)?;
            let converted: Result<Vec<Vec<u8>>> = std::thread::scope(|scope| {
                let work = |i: usize, bytes| {
                    let first_row = (round * self.threads + i) * rows_each;
                    scope.spawn(move || convert_rows(info, from, ty, row, first_row, bytes))
                };
                let running: Vec<_> = part.chunks(row_bytes * rows_each).enumerate().map(|(i, b)| work(i, b)).collect();
                let died = |_| Err(Error::Internal(format!("Converting tensor `{}` failed", info.name)));
                running.into_iter().map(|t| t.join().unwrap_or_else(died)).collect()
            });
            self.put(&converted?, part.len(), out)?;
        }
        Ok(())
    }

    /// Write finished parts, made from `read` bytes of the source.
    fn put(&self, parts: &[impl AsRef<[u8]>], read: usize, out: &mut dyn Write) -> Result<()> {
        if interrupted() {
            return Err(Error::Cancelled);
        }
        for part in parts {
            out.write_all(part.as_ref()).map_err(|e| Error::io(self.path, &e))?;
        }
        self.bar.inc(read as u64);
        Ok(())
    }
}

fn convert_rows(
    info: &TensorInfo,
    from: TensorType,
    ty: TensorType,
    row: usize,
    first_row: usize,
    bytes: &[u8],
) -> Result<Vec<u8>> {
    let row_bytes = from.row_bytes(row as u64).unwrap_or(1) as usize;
    let mut weights = vec![0.0; row];
    let mut out = Vec::new();
    for (i, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
        let place = |e: Error| match e {
            Error::InvalidArgument(problem) => {
                Error::InvalidArgument(format!("Tensor `{}`, row {}: {problem}", info.name, first_row + i))
            }
            Error::Unsupported(problem) => Error::Unsupported(format!("Tensor `{}`: {problem}", info.name)),
            other => other,
        };
        dequantize(from, bytes, &mut weights).map_err(place)?;
        quantize(ty, &weights, &mut out).map_err(place)?;
    }
    Ok(out)
}
