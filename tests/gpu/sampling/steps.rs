//! Steps in a row: speculative steps, rollback, failed steps, numbers of dispatches, what is refused.

use super::rig::{Case, Rig, STORAGE, assert_same, devices, history, on_host, rows, spec};
use elizainference::Token;
use elizainference::backend::gpu::sample::{Legal, SampleProblem, SampleProgram, SampleRow, SampleSpec};
use elizainference::sampling::{Chain, Sampler};

/// The device's own history, steps submitted before the last was read, tokens from outside, and rollbacks.
#[test]
fn speculative_steps_are_rolled_back() {
    const STEPS: usize = 40;
    let n = 3000;
    let row = rows(n)[2].1.clone();
    let chain: Chain = "penalties=20,1.4,0.6,0.2;dry=0.8,1.5,1,40,none;top_k=60;temp=1.4".parse().unwrap();
    let mut host = Sampler::new(&chain, n, 9).unwrap();
    let (prompt, forced) = (history(n, 30), [5, 6, 5, 2999]);
    prompt.iter().for_each(|&token| host.accept(token));
    let mut expected: Vec<Token> = Vec::new();
    for i in 0..STEPS {
        if i == 20 {
            forced.iter().for_each(|&token| host.accept(token));
        }
        let position = 30 + i + if i < 20 { 0 } else { forced.len() };
        expected.push(host.sample(&mut row.to_vec(), None, &[], position as u32).unwrap());
        host.accept(expected[i]);
    }
    for gpu in devices() {
        let mut rig = Rig::new(gpu, n, 2);
        let log = gpu.buffer("log", STEPS as u64 * 4, STORAGE).unwrap();
        rig.program.set_chain(1, &spec(&chain, n, &[], 9, 0)).unwrap();
        rig.program.restart(1, 30, &prompt).unwrap();
        let step = |rig: &mut Rig, i: usize| {
            rig.write(1, &row);
            rig.submit(&[1]);
            let mut encoder = gpu.raw.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(rig.program.sampled(), 4, &log, i as u64 * 4, 4);
            gpu.queue.submit([encoder.finish()]);
        };
        for i in 0..STEPS {
            if i == 20 {
                rig.program.accept(1, &forced).unwrap();
            }
            step(&mut rig, i);
            if i == 10 {
                rig.program.roll_back(1, 2, expected[8]).unwrap();
                assert_eq!(gpu.read(rig.program.sampled(), 4, 4).unwrap(), expected[8].to_le_bytes());
                gpu.queue.write_buffer(&log, 9 * 4, &[0; 8]);
                step(&mut rig, 9);
                step(&mut rig, 10);
            }
        }
        let tokens: Vec<Token> = bytemuck::pod_collect_to_vec(&gpu.read(&log, 0, STEPS * 4).unwrap());
        assert_eq!(tokens, expected);
        assert_eq!(rig.read()[1].0.position as usize, 30 + STEPS + forced.len() - 1);
        assert!(rig.program.roll_back(1, 1025, 0).is_err());
    }
}

/// A failed step is reported, advances the position with the token before, and is rolled back like any other.
#[test]
fn failures_are_reported_and_rolled_back() {
    let n = 2000;
    let row = rows(n)[2].1.clone();
    let mut broken = row.to_vec();
    broken[1234] = f32::NAN;
    for gpu in devices() {
        let mut rig = Rig::new(gpu, n, 1);
        for chain in ["greedy", "dist", "top_k=40", "top_k=3;top_p=0.4"] {
            let chain: Chain = chain.parse().unwrap();
            let case = Case {
                chain: chain.to_string(),
                row: row.clone(),
                position: 7,
                name: "after a failure".into(),
                ..Case::default()
            };
            rig.program.set_chain(0, &spec(&chain, n, &[], 0, 0)).unwrap();
            rig.program.restart(0, 7, &[3, 55]).unwrap();
            rig.write(0, &broken);
            rig.submit(&[0]);
            let (result, _) = rig.read()[0];
            assert_eq!((result.token, result.problem), (-1, Some(SampleProblem::Nan(1234))));
            assert_eq!(gpu.read(rig.program.sampled(), 0, 4).unwrap(), 55u32.to_le_bytes());
            rig.program.roll_back(0, 1, 55).unwrap();
            rig.write(0, &row);
            rig.submit(&[0]);
            assert_same(&case, &rig.read()[0], &on_host(&case));
        }
    }
}

#[test]
fn dispatches_are_few() {
    for gpu in &devices()[..devices().len().min(1)] {
        let mut rig = Rig::new(gpu, 32_000, 2);
        let row = |sequence| SampleRow { sequence, row: sequence };
        for (chain, count) in [
            ("greedy", 2),
            ("temp=0.7", 3),
            ("top_k=40;top_p=0.95;min_p=0.05;temp=0.8", 7),
            ("penalties=64,1.1,0,0;top_k=40", 8),
        ] {
            rig.program.set_chain(0, &spec(&chain.parse().unwrap(), 32_000, &[], 1, 0)).unwrap();
            assert_eq!(rig.program.dispatches(&[row(0)]), count, "{chain}");
        }
        rig.program.arm(0, Some(Legal::list(&[3, 4], false))).unwrap();
        assert_eq!(rig.program.dispatches(&[row(0)]), 1);
        assert_eq!(rig.program.dispatches(&[row(0), row(1)]), 4);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for gpu in devices() {
        assert!(SampleProgram::new(gpu, 0, 1).is_err());
        assert!(SampleProgram::new(gpu, 10, 0).is_err());
        assert!(SampleProgram::new(gpu, 10, 65).is_err());
        let mut rig = Rig::new(gpu, 100, 2);
        for tokens in [&[][..], &[3, 3], &[4, 2], &[-1, 2], &[5, 100]] {
            assert!(rig.program.arm(0, Some(Legal::list(tokens, true))).is_err(), "{tokens:?}");
        }
        assert!(rig.program.arm(2, None).is_err());
        assert!(rig.program.set_chain(2, &SampleSpec::default()).is_err());
        let logits = rig.logits.clone();
        assert!(rig.program.bind(&logits, 0, 400, 99).is_err());
        assert!(rig.program.bind(&logits, 2, 400, 100).is_err());
        assert!(rig.program.bind(&logits, 4096, 400, 100).is_err());
        let mut encoder = gpu.raw.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let row = |sequence, row| SampleRow { sequence, row };
        assert!(rig.program.encode(&mut pass, &[row(2, 0)]).is_err());
        assert!(rig.program.encode(&mut pass, &[row(0, 2)]).is_err());
        assert!(rig.program.encode(&mut pass, &[row(0, 0), row(0, 1)]).is_err());
        let mut unbound = SampleProgram::new(gpu, 100, 2).unwrap();
        assert!(unbound.encode(&mut pass, &[row(0, 0)]).is_err());
    }
}
