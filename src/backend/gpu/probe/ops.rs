//! Known-answer tests of operations on whole rows.

use super::source::gated;
use super::{Probe, Run, TOLERANCE, input};
use crate::Result;
use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::BufferRef;
use crate::backend::gpu::ops::rows::{self, RowSpan};
use crate::backend::gpu::ops::streams::{self, By};
use crate::graph::{NormKind, Rows};

/// Values of a row: more than a workgroup has threads, four for each.
const WIDTH: usize = 1028;
/// Rows of it.
const ROWS: usize = 3;
/// A soft cap that changes the scores and the rows clearly.
pub const CAP: f32 = 2.0;

impl Probe {
    /// Norms of rows like this one, of two parts each where there are several.
    pub fn norm(gpu: &Gpu, like: &rows::Norm, adds: bool) -> Result<Probe> {
        let (eps, size) = (1e-2, ROWS * WIDTH);
        let parts = like.parts.min(2);
        let width = if parts == 1 { WIDTH } else { WIDTH / 2 / 4 * 4 };
        let own = like.own && parts > 1;
        let columns = if own { parts * width } else { width };
        let number =
            |exists: bool, first: usize| exists.then(|| (first..first + columns).map(weight).collect::<Vec<_>>());
        let (factors, biases) = (number(like.weight.is_some(), 0), number(like.bias.is_some(), 1000));
        // Rows, then what is added to them.
        let workspace: Vec<f32> = (0..2 * size).map(input).collect();
        let (x, added) = workspace.split_at(size);
        let mut expected = Vec::with_capacity(size);
        for (i, row) in x.chunks_exact(WIDTH).enumerate() {
            let normed = row[..parts * width].chunks_exact(width).enumerate().flat_map(|(part, x)| {
                let of = |all: &Option<Vec<f32>>| {
                    all.as_ref().map(|all| all[if own { part * width } else { 0 }..][..width].to_vec())
                };
                known_norm(&doubles(x), like.kind, of(&factors).as_deref(), of(&biases).as_deref(), eps)
            });
            let more = &added[i * WIDTH..][..WIDTH];
            expected
                .extend(normed.zip(more).map(|(x, &y)| (x + if adds { f64::from(y) } else { 0.0 }, 4.0 * TOLERANCE)));
            expected.resize((i + 1) * WIDTH, (0.0, f64::INFINITY));
        }
        let place = |i| RowSpan { offset: i * size * 4, width: WIDTH };
        let vector = |numbers: Option<Vec<f32>>| numbers.map(|numbers| bound(gpu, &numbers)).transpose();
        let norm =
            rows::Norm { weight: vector(factors)?, bias: vector(biases)?, eps, width, parts, kind: like.kind, own };
        let step = rows::norm(gpu, place(0), &norm, adds.then_some(place(1)), place(2), Rows::Batch)?;
        Ok(Probe::new(format!("norms of kind {:?}", like.kind), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// The choice of output rows.
    pub fn select(gpu: &Gpu) -> Result<Probe> {
        let workspace: Vec<f32> = (0..ROWS * WIDTH).map(input).collect();
        let expected = workspace.chunks_exact(WIDTH).rev().flatten().map(|&x| (f64::from(x), 0.0)).collect();
        let place = |i| RowSpan { offset: i * ROWS * WIDTH * 4, width: WIDTH };
        let step = rows::select(gpu, place(0), place(1))?;
        Ok(Probe::new("output rows".into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// A function like this one of rows, with or without something to add.
    pub fn map(gpu: &Gpu, like: rows::Map, adds: bool) -> Result<Probe> {
        let size = ROWS * WIDTH;
        let workspace: Vec<f32> = (0..2 * size).map(|i| 5.0 * input(i)).collect();
        let (x, added) = workspace.split_at(size);
        let (map, what) = match like {
            rows::Map::Scale(_) => (rows::Map::Scale(1.5), "factors"),
            rows::Map::SoftCap(_) => (rows::Map::SoftCap(CAP), "soft caps"),
            rows::Map::Clamp(_) => (rows::Map::Clamp(CAP), "limits"),
        };
        let of = |x: f64| match map {
            rows::Map::Scale(factor) => x * f64::from(factor),
            rows::Map::SoftCap(_) => capped(x),
            rows::Map::Clamp(limit) => x.clamp((-limit).into(), limit.into()),
        };
        let sum = |(&x, &y): (&f32, &f32)| {
            let (x, y) = (of(x.into()), if adds { f64::from(y) } else { 0.0 });
            (x + y, f64::from(CAP) * TOLERANCE + (x.abs() + y.abs()) * 2f64.powi(-22))
        };
        let expected = x.iter().zip(added).map(sum).collect();
        let place = |i| RowSpan { offset: i * size * 4, width: WIDTH };
        let step = rows::map(gpu, place(0), map, adds.then_some(place(1)), place(2), Rows::Batch)?;
        Ok(Probe::new(what.into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// Columns of three parts, after those that the result has already.
    pub fn columns(gpu: &Gpu) -> Result<Probe> {
        const PARTS: usize = 3;
        let (part, (from, first), width) = ([37, 25], (11, 2), 19);
        let workspace: Vec<f32> = (0..(ROWS * PARTS * part[0]).next_multiple_of(4)).map(input).collect();
        let mut expected = vec![(0.0, f64::INFINITY); ROWS * PARTS * part[1]];
        for (i, column) in (0..ROWS * PARTS).flat_map(|i| (0..width).map(move |column| (i, column))) {
            expected[i * part[1] + first + column] = (workspace[i * part[0] + from + column].into(), 0.0);
        }
        let place = |at: usize, i: usize, first| rows::PartColumns {
            of: RowSpan { offset: at * 4, width: PARTS * part[i] },
            first,
        };
        let (x, dst) = (place(0, 0, from), place(workspace.len(), 1, first));
        let step = rows::columns(gpu, x, dst, PARTS, width, Rows::Batch)?;
        Ok(Probe::new("columns of parts".into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// Factors of columns.
    pub fn multiply(gpu: &Gpu) -> Result<Probe> {
        let (workspace, factors) = ((0..ROWS * WIDTH).map(input).collect::<Vec<_>>(), (0..WIDTH).map(weight));
        let factors: Vec<f32> = factors.collect();
        let product = |(i, &x): (usize, &f32)| {
            let exact = f64::from(x) * f64::from(factors[i % WIDTH]);
            (exact, exact.abs() * 2f64.powi(-22))
        };
        let expected = workspace.iter().enumerate().map(product).collect();
        let place = |i| RowSpan { offset: i * ROWS * WIDTH * 4, width: WIDTH };
        let step = rows::multiply(gpu, place(0), bound(gpu, &factors)?, place(1), Rows::Batch)?;
        Ok(Probe::new("factors of columns".into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// What stands out of rows.
    pub fn sparsify(gpu: &Gpu) -> Result<Probe> {
        let workspace: Vec<f32> = (0..ROWS * WIDTH).map(input).collect();
        let deviations = 0.5f32;
        let mut expected = Vec::with_capacity(ROWS * WIDTH);
        for row in workspace.chunks_exact(WIDTH).map(doubles) {
            let mean = row.iter().sum::<f64>() / WIDTH as f64;
            let squares = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
            let threshold = mean + f64::from(deviations) * (squares / (WIDTH - 1) as f64).sqrt();
            expected.extend(row.iter().map(|x| ((x - threshold).max(0.0), TOLERANCE)));
        }
        let place = |i| RowSpan { offset: i * ROWS * WIDTH * 4, width: WIDTH };
        let step = rows::sparsify(gpu, place(0), deviations, place(1), Rows::Batch)?;
        Ok(Probe::new("thresholds".into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// A mixture of parts like this one, of parts that are as wide as rows of other probes.
    pub fn mix(gpu: &Gpu, like: &streams::Mix) -> Result<Probe> {
        let (parts, sums) = (like.parts, like.dst.width / (like.x.width / like.parts));
        let n = parts * sums;
        // Coefficients of rows, then rows, then what is added.
        let by_room = ROWS * n.next_multiple_of(4);
        let added_at = by_room + ROWS * parts * WIDTH;
        let workspace: Vec<f32> = (0..added_at + ROWS * sums * WIDTH).map(input).collect();
        let by = match like.by {
            By::Fixed(_) => By::Fixed((0..n).map(|i| if i % 3 == 1 { 0.0 } else { weight(i) }).collect()),
            By::Row(..) => By::Row(RowSpan { offset: 0, width: n }, 0.5),
        };
        let result = |i: usize| {
            let (row, sum, column) = (i / WIDTH / sums, i / WIDTH % sums, i % WIDTH);
            let terms = (0..parts).map(|part| {
                let at = sum * parts + part;
                let c = match &by {
                    By::Fixed(values) => f64::from(values[at]),
                    By::Row(_, plus) => f64::from(workspace[row * n + at]) + f64::from(*plus),
                };
                c * f64::from(workspace[by_room + (row * parts + part) * WIDTH + column])
            });
            let more = like.residual.map_or(0.0, |_| f64::from(workspace[added_at + i]));
            (terms.sum::<f64>() + more, 2.0 * parts as f64 * 2f64.powi(-20))
        };
        let expected = (0..ROWS * sums * WIDTH).map(result).collect();
        let place = |at: usize, width| RowSpan { offset: at * 4, width };
        let job = streams::Mix {
            x: place(by_room, parts * WIDTH),
            parts,
            by: by.clone(),
            residual: like.residual.map(|_| place(added_at, sums * WIDTH)),
            dst: place(workspace.len(), sums * WIDTH),
            rows: Rows::Batch,
        };
        let step = streams::mix(gpu, &job)?;
        Ok(Probe::new(format!("mixtures of {parts} parts"), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// Parts of rows with the length of another.
    pub fn equalize(gpu: &Gpu) -> Result<Probe> {
        const PARTS: usize = 3;
        let y_at = ROWS * PARTS * WIDTH;
        let workspace: Vec<f32> = (0..y_at + ROWS * WIDTH).map(input).collect();
        let squares = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
        let mut expected = Vec::with_capacity(ROWS * (PARTS + 1) * WIDTH);
        for (x, y) in workspace[..y_at].chunks_exact(PARTS * WIDTH).zip(workspace[y_at..].chunks_exact(WIDTH)) {
            let y = doubles(y);
            expected.extend(y.iter().map(|&y| (y, 0.0)));
            for part in x.chunks_exact(WIDTH).map(doubles) {
                let factor = (squares(&y) / squares(&part)).sqrt();
                expected.extend(part.iter().map(|x| (x * factor, TOLERANCE)));
            }
        }
        let place = |at: usize, parts: usize| RowSpan { offset: at * 4, width: parts * WIDTH };
        let dst = place(workspace.len(), PARTS + 1);
        let step = streams::equalize(gpu, place(0, PARTS), place(y_at, 1), dst, Rows::Batch)?;
        Ok(Probe::new("lengths of parts".into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// A gate like this one.
    pub fn gate(gpu: &Gpu, like: &rows::Gate) -> Result<Probe> {
        let one = like.x.width == 1;
        // Rows of x, then of y, which have four columns before and four after, then what is added.
        let (x_width, y_width, first) = (if one { 1 } else { WIDTH }, WIDTH + 8, 4);
        let x_room = (ROWS * x_width).next_multiple_of(4);
        let [y_at, added_at] = [x_room, x_room + ROWS * y_width];
        let workspace: Vec<f32> = (0..added_at + ROWS * WIDTH).map(|i| 5.0 * input(i)).collect();
        let result = |i: usize| {
            let (row, column) = (i / WIDTH, i % WIDTH);
            let x = workspace[row * x_width + if one { 0 } else { column }];
            let y = workspace[y_at + row * y_width + first + column];
            let (value, off) = gated(like.act, (x.into(), 0.0), (y.into(), 0.0));
            let more = like.residual.map_or(0.0, |_| f64::from(workspace[added_at + i]));
            (value + more, off + (value.abs() + more.abs()) * 2f64.powi(-22))
        };
        let expected = (0..ROWS * WIDTH).map(result).collect();
        let place = |at: usize, width| RowSpan { offset: at * 4, width };
        let job = rows::Gate {
            x: place(0, x_width),
            act: like.act,
            y: place(y_at, y_width),
            first,
            residual: like.residual.map(|_| place(added_at, WIDTH)),
            dst: place(workspace.len(), WIDTH),
            rows: Rows::Batch,
        };
        let step = rows::gate(gpu, &job)?;
        Ok(Probe::new(format!("gates of {:?}", like.act), vec![step], Run::new(workspace, ROWS, expected)))
    }
}

/// A norm by its definition.
pub fn known_norm(x: &[f64], kind: NormKind, weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) -> Vec<f64> {
    let (mut x, n) = (x.to_vec(), x.len() as f64);
    if kind == NormKind::Layer {
        let mean = x.iter().sum::<f64>() / n;
        x.iter_mut().for_each(|x| *x -= mean);
    }
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n + f64::from(eps)).sqrt();
    for (i, x) in x.iter_mut().enumerate() {
        *x = *x * scale * weight.map_or(1.0, |weight| weight[i].into()) + bias.map_or(0.0, |bias| bias[i].into());
    }
    x
}

pub fn doubles(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

pub fn capped(x: f64) -> f64 {
    f64::from(CAP) * (x / f64::from(CAP)).tanh()
}

/// Weights of a norm.
pub fn weight(i: usize) -> f32 {
    1.0 + input(i) / 2.0
}

pub fn bound(gpu: &Gpu, weight: &[f32]) -> Result<BufferRef> {
    let bytes = weight.len() as u64 * 4;
    let buffer = gpu.buffer("probe", bytes, STORAGE)?;
    gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(weight));
    Ok(BufferRef::Weight(buffer.clone(), 0, bytes))
}
