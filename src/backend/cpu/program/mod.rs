//! Programs of the CPU: from graph nodes to steps that all threads of a run walk through together.
//!
//! | file | what it is |
//! |---|---|
//! | `ops/` | the operations of a graph, each with its lowering and its step |
//! | `lower.rs` | what lowering knows of a graph |
//! | `run.rs` | what a step knows of a run |
//! | `demand.rs` | what memory a program needs |
//! | `state.rs` | that memory: KV cache, workspace, scratch |
//! | `sizing.rs` | its sizes, before anything is loaded |

mod demand;
mod lower;
mod ops;
mod run;
pub(super) mod sizing;
pub(super) mod state;

use crate::backend::cpu::host::pool::Pool;
use crate::backend::cpu::packed::weights::CpuWeights;
use crate::backend::rope::Rope;
use crate::backend::{Batch, Program, State, Weights, Work};
use crate::graph::{RopeKind, WeightUse};
use crate::simd::Isa;
use crate::{Error, Result};
use demand::Demand;
use lower::Lowering;
use run::{Run, Step, StepContext};
use state::CpuState;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A compiled run of nodes.
pub(super) struct CpuProgram {
    isa: Isa,
    weights: Arc<CpuWeights>,
    steps: Vec<Box<dyn Step>>,
    ropes: Vec<(RopeKind, Rope)>,
    demand: Demand,
}

impl CpuProgram {
    pub fn new(isa: Isa, work: &Work<'_>, weights: &Weights) -> Result<CpuProgram> {
        let weights = Arc::downcast::<CpuWeights>(weights.0.clone())
            .map_err(|_| Error::Internal("Weights of another backend".into()))?;
        let lowering = ops::lower(work)?;
        for (weight, usage) in lowering.nodes().iter().flat_map(|node| node.weights()) {
            match usage {
                WeightUse::Vector => drop(weights.vector(weight)?),
                WeightUse::MatMul => drop(weights.matrix(weight)?),
                WeightUse::Rows | WeightUse::RowsAndMatMul => {}
            }
        }
        let Lowering { steps, demand, .. } = lowering;
        let used = |rope| demand.attentions.iter().any(|spec| spec.rope == Some(rope));
        let ropes = work.graph.ropes.iter().enumerate().map(|(i, spec)| {
            let factors = spec
                .factors_for(work.cache.context)
                .filter(|_| used(i))
                .map_or(Ok(&[][..]), |id| weights.vector(id))?;
            Ok((spec.kind, Rope::new(spec.n_rot, spec.freq_base, factors, spec.scaling)))
        });
        let ropes = ropes.collect::<Result<_>>()?;
        Ok(CpuProgram { isa, weights, steps, ropes, demand })
    }
}

fn cpu_state(state: &mut dyn State) -> Result<&mut CpuState> {
    state.as_any().downcast_mut().ok_or_else(|| Error::Internal("A state of another backend".into()))
}

impl CpuProgram {
    /// Runs the steps from this one on, up to the time that is given; returns the step to go on from.
    fn run_from(
        &self,
        state: &mut dyn State,
        (batch, out_rows): (&Batch<'_>, usize),
        from: usize,
        until: Option<Instant>,
        cancel: &AtomicBool,
    ) -> Result<Option<usize>> {
        let (memory, split) = cpu_state(state)?.begin(&self.demand, batch)?;
        let CpuProgram { isa, weights, ropes, demand, .. } = self;
        let run = Run::new(*isa, weights, (ropes, demand.max_rows.0), (memory, split), (batch, out_rows), cancel);
        let _active = Pool::engine_started();
        Pool::global().run(run.threads(), cancel, &|worker| {
            for (index, step) in self.steps.iter().enumerate().skip(from) {
                step.run(&run, StepContext { worker, index });
                if until.is_some_and(|until| worker.index() == 0 && Instant::now() >= until) {
                    run.leave_after(index);
                }
                worker.barrier();
                if run.ends_after(index) {
                    return;
                }
            }
        })?;
        run.finish(self.steps.len())
    }
}

impl Program for CpuProgram {
    fn reserve(&self, state: &mut dyn State, workspace_bytes: usize) -> Result<()> {
        cpu_state(state)?.reserve(&self.demand, workspace_bytes)
    }

    fn run(&self, state: &mut dyn State, batch: &Batch<'_>, out_rows: usize, cancel: &AtomicBool) -> Result<()> {
        self.run_from(state, (batch, out_rows), 0, None, cancel).map(drop)
    }

    fn run_until(
        &self,
        state: &mut dyn State,
        batch: (&Batch<'_>, usize),
        from: usize,
        until: Instant,
        cancel: &AtomicBool,
    ) -> Result<Option<usize>> {
        self.run_from(state, batch, from, Some(until), cancel)
    }
}
