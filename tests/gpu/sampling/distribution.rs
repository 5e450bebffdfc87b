//! Counts of drawn tokens against their probabilities, and the integer weights against the host's.

use super::rig::{Rig, STORAGE, devices, gaussian, spec};
use elizainference::backend::gpu::kernel::{Binding, compose};
use elizainference::sampling::{Chain, weigh};

/// Chi-square of the tokens' counts: the statistic of a right sampler exceeds the bound once in 10,000 seeds.
fn chi_square(draws: u32) {
    const L: [f32; 10] = [2.1, 5.3, 1.8, 7.2, 3.4, 4.1, 6.8, 2.9, 5.7, 4.5];
    let n = 5000;
    let flat: Vec<f32> = (0..n).map(|i| gaussian(1, i, 1.0)).collect();
    // Groups of ids with their expected share, and the 0.9999 quantile for one degree of freedom less.
    let groups = |row: &[f32], factor: f64, kept: &dyn Fn(usize) -> bool, count: usize| {
        let mut shares = vec![0.0; count];
        for (token, x) in row.iter().enumerate().filter(|(token, _)| kept(*token)) {
            shares[token * count / row.len()] += (f64::from(*x) * factor).exp();
        }
        let total: f64 = shares.iter().sum();
        shares.iter().map(|share| share / total).collect::<Vec<_>>()
    };
    let best4 = [3usize, 6, 8, 1];
    for (chain, row, shares, quantile) in [
        ("dist", &L[..], groups(&L, 1.0, &|_| true, 10), 33.72),
        ("temp=2", &L[..], groups(&L, 0.5, &|_| true, 10), 33.72),
        ("top_k=4", &L[..], groups(&L, 1.0, &|token| best4.contains(&token), 10), 21.11),
        ("dist", &flat[..], groups(&flat, 1.0, &|_| true, 64), 112.7),
    ] {
        for seed in [1, 2, 20_240_101] {
            for gpu in &devices()[..devices().len().min(1)] {
                let mut rig = Rig::new(gpu, row.len(), 64);
                let chain: Chain = chain.parse().unwrap();
                for sequence in 0..64 {
                    rig.program.set_chain(sequence, &spec(&chain, row.len(), &[], seed, 0)).unwrap();
                    rig.write(sequence, row);
                }
                let mut counts = vec![0.0; shares.len()];
                for start in (0..draws).step_by(64) {
                    let sequences: Vec<usize> = (0..64.min(draws - start) as usize).collect();
                    for &sequence in &sequences {
                        rig.program.restart(sequence, start + sequence as u32, &[]).unwrap();
                    }
                    rig.submit(&sequences);
                    for (result, _) in rig.read().iter().take(sequences.len()) {
                        counts[result.token as usize * shares.len() / row.len()] += 1.0;
                    }
                }
                let statistic = |(count, share): (&f64, &f64)| {
                    let expected = share * f64::from(draws);
                    if expected == 0.0 { *count * 1e9 } else { (count - expected).powi(2) / expected }
                };
                let sum: f64 = counts.iter().zip(&shares).map(statistic).sum();
                assert!(sum < quantile, "{chain} with {seed}: {sum:.1}");
            }
        }
    }
}

#[test]
fn draws_follow_the_probabilities() {
    chi_square(2_000);
}

#[test]
#[ignore = "takes minutes on a software driver"]
fn many_draws_follow_the_probabilities() {
    chi_square(100_000);
}

/// The weights are the host's, bit for bit: what all else stands on.
fn weights(step: u32) {
    let mut given: Vec<f32> = vec![0.0, -0.0, f32::MIN, -1e-40, -28.4, -28.5, -32.0, -31.999_998, -f32::MIN_POSITIVE];
    let ends = ((-0.0f32).to_bits(), (-33.0f32).to_bits());
    given.extend((ends.0..ends.1).step_by(step as usize).map(f32::from_bits));
    let text = "//#include sample/numbers
        @group(0) @binding(0) var<storage, read> given: array<u32>;
        @group(0) @binding(1) var<storage, read_write> out: array<vec2<u32>>;
        @compute @workgroup_size(128)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            zero = given[0];
            if id.x + 1u < arrayLength(&given) { out[id.x] = weight(bitcast<f32>(given[id.x + 1u])); }
        }";
    let text = compose(text, &[], &[]).unwrap();
    for gpu in devices() {
        for part in given.chunks(1 << 20) {
            let words: Vec<u32> = [0].into_iter().chain(part.iter().map(|z| z.to_bits())).collect();
            let input = gpu.buffer("given", words.len() as u64 * 4, STORAGE).unwrap();
            let out = gpu.buffer("weights", part.len() as u64 * 8, STORAGE).unwrap();
            gpu.queue.write_buffer(&input, 0, bytemuck::cast_slice(&words));
            let kernel = gpu.kernel("weights", &text, &[Binding::Read, Binding::Write]).unwrap();
            let size = |count: usize| wgpu::BufferSize::new(count as u64);
            let binding = gpu.bind(
                &kernel,
                &[
                    wgpu::BufferBinding { buffer: &input, offset: 0, size: size(words.len() * 4) },
                    wgpu::BufferBinding { buffer: &out, offset: 0, size: size(part.len() * 8) },
                ],
            );
            let mut encoder = gpu.raw.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&kernel.pipeline);
            pass.set_bind_group(0, &binding, &[]);
            pass.dispatch_workgroups(part.len().div_ceil(128) as u32, 1, 1);
            drop(pass);
            gpu.queue.submit([encoder.finish()]);
            let bytes = gpu.read(&out, 0, part.len() * 8).unwrap();
            for (bytes, &z) in bytes.chunks_exact(8).zip(part) {
                assert_eq!(u64::from_le_bytes(bytes.try_into().unwrap()), weigh::weight(z), "{z:e}");
            }
        }
    }
}

#[test]
fn weights_are_the_hosts() {
    weights(7919);
}

#[test]
#[ignore = "takes minutes on a software driver"]
fn all_weights_are_the_hosts() {
    weights(61);
}
