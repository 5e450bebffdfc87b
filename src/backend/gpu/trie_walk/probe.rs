//! The known-answer test of the walk's kernel, see `probe/mod.rs`: one run of ten tokens in two passes to a choice,
//! then the end. The expected words are written out here.

use super::{ARG_WORDS, Surroundings, Walker};
use crate::Result;
use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::device::memory::Buffer;
use crate::backend::gpu::kernel::dispatch::{FRAME_CELLS, FRAME_LISTED, FRAME_OUTPUTS, FRAME_ROWS, GroupCount};
use crate::backend::gpu::kernel::{Gpu, Kernel, Trial};
use crate::backend::gpu::probe::compare;
use crate::backend::gpu::sample::{WalkedWords, walked_words};
use crate::backend::{Batch, Table, TableCells, Walk, WalkNode, Walked};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The root's children are 5 and 9; after 5 come 20 to 28, then one of 7, 30 and 31.
fn trie() -> Vec<WalkNode> {
    let mut nodes = vec![[1, 2, u32::MAX, 1], [3, 1, 5, 10], [0, 0, 9, 0]];
    nodes.extend((0..8).map(|i| [4 + i, 1, 20 + i, 9 - i]));
    nodes.push([12, 3, 28, 1]);
    nodes.extend([7, 30, 31].map(|token| [0, 0, token, 0]));
    nodes
}

const FIRST_POSITION: u32 = 40;
const SEQUENCES: u32 = 1;
const SPLITS: u32 = 6;
/// Those of sliding layers.
const WINDOW_SPLITS: u32 = 7;
/// Tokens of the history before.
const COUNT: u32 = 2;
const CELLS: [u32; 10] = [3, 4, 5, 9, 8, 7, 11, 12, 13, 20];
const WINDOW_CELLS: [u32; 10] = [60, 61, 62, 63, 0, 1, 2, 3, 4, 5];

/// A count of every kind.
const COUNTS: [[GroupCount; ARG_WORDS]; 3] = [
    [GroupCount::Fixed(4), GroupCount::Rows(3, 2), GroupCount::Splits(Table::All)],
    [GroupCount::Outputs(5, 2), GroupCount::Splits(Table::Window), GroupCount::Rows(1, 1)],
    [GroupCount::Listed(99), GroupCount::Unlisted(99), GroupCount::Fixed(1)],
];

/// What is compared after a run of the kernel: the frames' heads, rows and outputs, listed tokens, the mask, position
/// and count of the history and its newest tokens, and the workgroups, the sampler's last.
struct Seen {
    head: [u32; 3],
    rows: Vec<[u32; 4]>,
    output: u32,
    listed: [u32; 3],
    history: Vec<u32>,
    args: [[u32; ARG_WORDS]; 4],
}

fn row(i: u32) -> [u32; 4] {
    [if i == 0 { 5 } else { 19 + i }, FIRST_POSITION + i, SEQUENCES, CELLS[i as usize]]
}

/// A row with its cell in sliding layers.
fn in_window([token, position, sequences, _]: [u32; 4]) -> [u32; 4] {
    [token, position, sequences, WINDOW_CELLS[(position - FIRST_POSITION) as usize]]
}

fn expected() -> [Seen; 3] {
    let rows = |of: std::ops::Range<u32>| of.map(row).collect::<Vec<_>>();
    let history = |n: u32| (20..20 + n).collect();
    let none = [0; 3];
    let first = Seen {
        head: [8, 0, 0],
        rows: rows(0..8),
        output: 0,
        listed: [0; 3],
        history: history(7),
        args: [[4, 12, SPLITS], none, none, none],
    };
    let (output, listed) = (1, [7, 30, 31]);
    let args = [[4, 3, SPLITS], [3, WINDOW_SPLITS, 2], [3, 1, 1], [1, 1, 1]];
    let second = Seen { head: [2, 1, 3], rows: rows(8..10), output, listed, history: history(9), args };
    let last = Seen { args: [none; 4], rows: rows(8..10), history: history(9), ..second };
    [first, second, last]
}

/// Adds the known-answer test of the walk's kernel.
pub fn add_trial(gpu: &Gpu) -> Result<()> {
    let kernel = super::kernel(gpu)?;
    gpu.add_trial([&kernel], || Ok(WalkTrial { kernel: kernel.clone() }))
}

struct WalkTrial {
    kernel: Arc<Kernel>,
}

impl Trial for WalkTrial {
    fn kernels(&self) -> Vec<Arc<Kernel>> {
        vec![self.kernel.clone()]
    }

    fn run(&self, gpu: &Arc<Gpu>) -> Result<()> {
        run(gpu, Walker::of(gpu, &COUNTS)?, &expected())
    }
}

fn run(gpu: &Gpu, mut walker: Walker, expected: &[Seen; 3]) -> Result<()> {
    let filled = |words: &[u32]| -> Result<Buffer> {
        let buffer = gpu.buffer("probe", words.len() as u64 * 4, STORAGE)?;
        gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        Ok(buffer)
    };
    let WalkedWords { children, mut state, out, results, position, count, ring } = walked_words();
    (state[position], state[count]) = (FIRST_POSITION + 1, COUNT);
    let mut frame = vec![0; 2 * FRAME_CELLS];
    (frame[3], frame[FRAME_CELLS + 3]) = (SPLITS, WINDOW_SPLITS);
    let (frame, children_at) = (filled(&frame)?, children.len());
    let (children, state, out) = (filled(&children)?, filled(&state)?, filled(&out)?);
    walker.hold(gpu, &trie())?;
    walker.bind(gpu, &Surroundings { frame: &frame, sampler: [&children, &state, &out] })?;
    let positions = CELLS.map(|_| FIRST_POSITION as i32);
    let cells = [&CELLS, &WINDOW_CELLS].map(|rows| TableCells { rows, ..TableCells::default() });
    let batch = Batch { cells, positions: &positions, sequences: &[SEQUENCES], ..Batch::default() };
    walker.begin(gpu, &batch, &Walk { sequence: 0, node: 0, passes: 3 }, children_at, FRAME_CELLS)?;
    let words = |buffer: &wgpu::Buffer, at: usize, count: usize| -> Result<Vec<u32>> {
        Ok(bytemuck::pod_collect_to_vec(&gpu.read(buffer, at as u64 * 4, count * 4)?))
    };
    for (pass, (seen, token)) in expected.iter().zip([5u32, 5, 30]).enumerate() {
        gpu.queue.write_buffer(&out, results as u64 * 4, bytemuck::bytes_of(&token));
        let mut encoder = gpu.raw.create_command_encoder(&Default::default());
        let mut encoding = encoder.begin_compute_pass(&Default::default());
        walker.encode(&mut encoding);
        drop(encoding);
        walker.copy(&mut encoder);
        let index = gpu.queue.submit([encoder.finish()]);
        walker.submitted(gpu, index);
        let mut walked = Walked::default();
        walker.read(gpu, &mut walked, &AtomicBool::new(false))?;
        let rows = seen.rows.len();
        let parts = [
            (words(&frame, 0, 2)?, seen.head[..2].to_vec()),
            (words(&frame, 5, 1)?, vec![seen.head[2]]),
            (words(&frame, FRAME_ROWS, 4 * rows)?, seen.rows.concat()),
            (words(&frame, FRAME_OUTPUTS, 1)?, vec![seen.output]),
            (words(&frame, FRAME_CELLS, 2)?, seen.head[..2].to_vec()),
            (
                words(&frame, FRAME_CELLS + FRAME_ROWS, 4 * rows)?,
                seen.rows.iter().flat_map(|row| in_window(*row)).collect(),
            ),
            (words(&frame, FRAME_CELLS + FRAME_OUTPUTS, 1)?, vec![seen.output]),
            (words(&frame, FRAME_LISTED, 3)?, seen.listed.to_vec()),
            (words(&state, position, 1)?, vec![FIRST_POSITION + 1 + seen.history.len() as u32]),
            (words(&state, count, 1)?, vec![COUNT + seen.history.len() as u32]),
            (words(&state, ring + COUNT as usize, seen.history.len())?, seen.history.clone()),
            (words(&walker.args, 0, 4 * ARG_WORDS)?, seen.args.concat()),
            (vec![walked.passes, walked.rows], if pass == 0 { vec![1, 8] } else { vec![2, 10] }),
            (
                walked.steps.iter().map(|step| step.result.token as u32).collect(),
                if pass < 2 { vec![] } else { vec![30] },
            ),
        ];
        let got = parts.iter().flat_map(|(got, _)| got).map(|&word| f64::from(word));
        let right: Vec<_> = parts.iter().flat_map(|(_, right)| right).map(|&word| (f64::from(word), 0.0)).collect();
        // What is missing is wrong.
        let got = got.chain(std::iter::repeat(f64::NAN));
        compare(gpu, std::slice::from_ref(&walker.kernel), &format!("pass {pass} of a walk"), got, &right)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Error;
    use crate::backend::gpu::testing::harness::devices;

    #[test]
    fn a_wrong_word_names_driver_and_kernel() {
        for gpu in devices() {
            run(gpu, Walker::of(gpu, &COUNTS).unwrap(), &expected()).unwrap();
            for (pass, wrong) in [(0, 0), (1, 1), (2, 2)] {
                let mut expected = expected();
                match wrong {
                    0 => expected[pass].rows[7][3] += 1,
                    1 => expected[pass].listed[2] += 1,
                    _ => expected[pass].args[3][0] += 1,
                }
                let Err(Error::Device(text)) = run(gpu, Walker::of(gpu, &COUNTS).unwrap(), &expected) else {
                    panic!("pass {pass} passed with another word")
                };
                for part in [&gpu.info.name, "`trie_walk`", &format!("pass {pass} ")] {
                    assert!(text.contains(part), "no {part} in: {text}");
                }
            }
        }
    }
}
