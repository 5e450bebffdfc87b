//! Mixtures of experts: which experts a row goes to, and their products over rows that are sorted by expert.
//!
//! A row's entry is the row and one of its experts. Entries are sorted by expert, so that each expert's matrices are
//! read once for all its rows, and those of experts that no row goes to not at all. With one row nothing is copied: all
//! its entries read that row. A row's results are added in the order of experts, so they depend on the row alone.

use super::matmul::{Input, finish, gated_floats};
use crate::backend::cpu::kernels::matmul::{Columns, matmul as multiply};
use crate::backend::cpu::kernels::{activations, glu, norm};
use crate::backend::cpu::packed::{ActivationKind, PANEL, PackedMatrix};
use crate::backend::cpu::program::demand::{Area, Demand};
use crate::backend::cpu::program::lower::{Forms, Lowering};
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{Activation, Gating, MAX_EXPERT_GROUPS, NodeId, Op, RouteSpec, Rows, Stack};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// Sums of weights are at least this, the smallest normal number of half precision.
const LEAST_SUM: f32 = 6.103_515_6e-5;

/// Appends the choice of experts.
pub fn route(to: &mut Lowering<'_>, id: NodeId, spec: &RouteSpec) -> Result<()> {
    let src = to.span(to.source(id)?);
    let entries = to.most_rows(id) * spec.used;
    to.push(Choose { spec: *spec, src, route: Route::of(to, id, src.width), entries });
    Ok(())
}

/// Where a route is, which the rows of an area are sorted by.
#[derive(Clone, Copy)]
struct Route {
    span: RowSpan,
    rows: Rows,
    experts: usize,
}

impl Route {
    fn of(to: &Lowering<'_>, id: NodeId, experts: usize) -> Route {
        Route { span: to.span(id), rows: to.node(id).rows, experts }
    }

    /// Experts of a row.
    fn used(&self) -> usize {
        self.span.width / 2
    }

    /// The list of entries by expert.
    ///
    /// # Safety
    /// It is complete, and nobody writes it.
    unsafe fn list<'a>(&self, run: &'a Run<'_>) -> List<'a> {
        let (experts, entries) = (self.experts, run.rows(self.rows) * self.used());
        // SAFETY: `Choose::size` has asked for so many numbers; they are only read, as the caller promises.
        let numbers = unsafe { std::slice::from_raw_parts(run.state.routing(), 2 * (experts + 1) + entries) };
        let (starts, rest) = numbers.split_at(experts + 1);
        let (active, entries) = rest.split_at(experts + 1);
        List { starts, active: &active[1..=active[0] as usize], entries }
    }

    /// The weight of an entry.
    ///
    /// # Safety
    /// The route's rows are complete.
    unsafe fn weight(&self, run: &Run<'_>, entry: u32) -> f32 {
        let (used, entry) = (self.used(), entry as usize);
        // SAFETY: the caller's promise.
        unsafe { run.row(self.span, entry / used)[used + entry % used] }
    }
}

/// Entries by expert.
#[derive(Clone, Copy)]
struct List<'a> {
    /// Where the entries of each expert begin, and one past the last.
    starts: &'a [u32],
    /// The experts that have entries, ascending.
    active: &'a [u32],
    /// A row times the experts of a row, plus which of these it is.
    entries: &'a [u32],
}

impl List<'_> {
    fn of(&self, expert: usize) -> Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}

/// Chooses experts; whoever chooses for the last row sorts the entries.
struct Choose {
    spec: RouteSpec,
    src: RowSpan,
    route: Route,
    /// The most entries.
    entries: usize,
}

impl Choose {
    /// Choose for one row; `p` is room for twice the experts.
    fn choose(&self, bias: Option<&[f32]>, logits: &[f32], p: &mut [f32], out: &mut [f32]) {
        let RouteSpec { used, gating, groups, groups_used, normalize, scale, .. } = self.spec;
        let n = logits.len();
        let (p, score) = p.split_at_mut(n);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for (p, &x) in p.iter_mut().zip(logits) {
            *p = match gating {
                Gating::Softmax => (x - largest).exp(),
                Gating::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                Gating::SoftmaxOfChosen => x,
                Gating::SqrtSoftplus => (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt(),
            };
        }
        if gating == Gating::Softmax {
            let sum: f32 = p.iter().sum();
            p.iter_mut().for_each(|p| *p /= sum);
        }
        for (i, (score, &p)) in score.iter_mut().zip(&*p).enumerate() {
            // Above negative infinity, which marks those that are not to be chosen; NaN comes last, and goes on as a
            // weight.
            *score = (p + bias.map_or(0.0, |bias| bias[i])).max(f32::MIN);
        }
        if groups > 1 {
            leave_groups(score, groups, groups_used);
        }
        let (chosen, weights) = out.split_at_mut(used);
        for (chosen, weight) in chosen.iter_mut().zip(&mut *weights) {
            let best = largest_of(score);
            score[best] = f32::NEG_INFINITY;
            (*chosen, *weight) = (best as f32, p[best]);
        }
        if gating == Gating::SoftmaxOfChosen {
            let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|w| *w = (*w - largest).exp());
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        if normalize {
            let sum = weights.iter().sum::<f32>().max(LEAST_SUM);
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= scale);
    }

    /// Sort the entries of all rows by expert.
    fn sort(&self, run: &Run<'_>) {
        let Route { span, rows, experts } = self.route;
        let (rows, used) = (run.rows(rows), self.spec.used);
        // SAFETY: `size` has asked for so many numbers; all rows have been chosen, and the one thread that is here has
        // the list to itself.
        unsafe {
            let numbers = std::slice::from_raw_parts_mut(run.state.routing(), 2 * (experts + 1) + rows * used);
            let (starts, rest) = numbers.split_at_mut(experts + 1);
            let (active, entries) = rest.split_at_mut(experts + 1);
            starts.fill(0);
            let chosen = |r: usize| run.row(span, r)[..used].iter().map(|&e| (e as usize).min(experts - 1));
            for expert in (0..rows).flat_map(chosen) {
                starts[expert + 1] += 1;
            }
            active[0] = 0;
            for e in 0..experts {
                if starts[e + 1] > 0 {
                    active[0] += 1;
                    active[active[0] as usize] = e as u32;
                }
                starts[e + 1] += starts[e];
            }
            for r in 0..rows {
                for (i, expert) in chosen(r).enumerate() {
                    entries[starts[expert] as usize] = (r * used + i) as u32;
                    starts[expert] += 1;
                }
            }
            // Each start has moved to the next one's place.
            starts.copy_within(0..experts, 1);
            starts[0] = 0;
        }
    }
}

impl Step for Choose {
    fn size(&self, demand: &mut Demand) {
        demand.thread(2 * self.route.experts * 4);
        demand.routing = demand.routing.max(2 * (self.route.experts + 1) + self.entries);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let (rows, experts) = (run.rows(self.route.rows), self.route.experts);
        let bias = self.spec.bias.and_then(|id| run.weights.vector(id).ok());
        // SAFETY: the scratch is this thread's, and `size` asks for two numbers for each expert.
        let room =
            unsafe { std::slice::from_raw_parts_mut(run.state.thread_scratch(ctx.worker.index()).0, 2 * experts) };
        for claimed in run.pieces(ctx, rows, 4) {
            let count = claimed.len();
            for r in claimed {
                // SAFETY: the logits are complete; each row is claimed once.
                unsafe { self.choose(bias, run.row(self.src, r), room, run.row_mut(self.route.span, r)) };
            }
            if run.state.done.fetch_add(count, AcqRel) + count == rows {
                run.state.done.store(0, Relaxed);
                self.sort(run);
            }
        }
    }
}

/// The index of the largest value, the first of equal ones.
fn largest_of(values: &[f32]) -> usize {
    (1..values.len()).fold(0, |best, i| if values[i] > values[best] { i } else { best })
}

/// Take the experts of all groups but the best from the choice: those whose two best experts have the largest sums.
fn leave_groups(score: &mut [f32], groups: usize, groups_used: usize) {
    let size = score.len() / groups;
    let mut sums = [f32::NEG_INFINITY; MAX_EXPERT_GROUPS];
    for (sum, group) in sums.iter_mut().zip(score.chunks_exact(size)) {
        let best = largest_of(group);
        let others = group.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, &x)| x);
        *sum = group[best] + others.fold(f32::NEG_INFINITY, f32::max).max(f32::MIN);
    }
    for (i, group) in score.chunks_exact_mut(size).enumerate() {
        let better = |j: usize| sums[j] > sums[i] || sums[j] == sums[i] && j < i;
        if (0..groups).filter(|&j| better(j)).count() >= groups_used {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Appends the gated products of the experts.
pub fn gate(
    to: &mut Lowering<'_>,
    id: NodeId,
    (gate, up): (Stack, Option<Stack>),
    act: Activation,
    weighted: bool,
) -> Result<()> {
    let forms = to.multiplied([&gate].into_iter().chain(&up).map(|stack| &stack.linear));
    let x = Input::of(to, id, forms)?;
    let route = route_of(to, id, gate.experts)?;
    let used = route.used();
    if to.most_rows(id) > 1 {
        for (area, wanted) in [(Area::Experts, forms.q8), (Area::ExpertsF32, forms.f32)] {
            if wanted {
                to.lend(area, to.most_rows(id) * used, x.src.width);
            }
        }
        to.push(Gather { x, route, forms });
    }
    let (out, forms) = (to.span(id), to.forms(id));
    if forms.q8 {
        to.hold(Area::Gated, id, used, gate.rows);
    }
    to.push(Gate { gate, up, act, weighted, x, route, out, forms });
    Ok(())
}

/// The route that is the second source of a node.
fn route_of(to: &Lowering<'_>, id: NodeId, experts: usize) -> Result<Route> {
    let route = to.node(id).src.get(1).copied().filter(|&route| to.work.computes(route));
    let route = route.ok_or_else(|| Error::Internal(format!("Node {} has no route on this device", id.0)))?;
    Ok(Route::of(to, route, experts))
}

/// Copies the rows that products read so that those of an expert follow each other.
struct Gather {
    x: Input,
    route: Route,
    forms: Forms,
}

impl Step for Gather {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        if run.rows(self.route.rows) < 2 {
            return;
        }
        // SAFETY: the list is complete since an earlier barrier.
        let list = unsafe { self.route.list(run) };
        let (used, width) = (self.route.used(), self.x.src.width);
        for claimed in run.pieces(ctx, list.entries.len(), 16) {
            for (at, &entry) in claimed.clone().zip(&list.entries[claimed]) {
                let r = entry as usize / used;
                // SAFETY: the rows are complete; each place of an area is claimed once.
                unsafe {
                    if self.forms.q8 {
                        let bytes = activations::row_bytes(width);
                        let from = run.state.area(self.x.area).wrapping_add(r * bytes);
                        let to = run.state.area(Area::Experts).wrapping_add(at * bytes);
                        std::ptr::copy_nonoverlapping(from, to, bytes);
                    }
                    if self.forms.f32 {
                        let to = run.state.area(Area::ExpertsF32).cast::<f32>().wrapping_add(at * width);
                        std::ptr::copy_nonoverlapping(run.row(self.x.src, r).as_ptr(), to, width);
                    }
                }
            }
        }
    }
}

struct Gate {
    gate: Stack,
    up: Option<Stack>,
    act: Activation,
    weighted: bool,
    x: Input,
    route: Route,
    out: RowSpan,
    /// How the rows are left, sorted by expert: quantised in [`Area::Gated`], as `f32` where the node's rows are.
    forms: Forms,
}

impl Gate {
    /// The rows of some entries, in the form that these panels multiply.
    fn columns(&self, run: &Run<'_>, w: &PackedMatrix, entries: &Range<usize>) -> Columns {
        let count = entries.len();
        if run.rows(self.route.rows) < 2 {
            // All entries are of one row.
            return Columns { row_bytes: 0, count, ..self.x.columns(run, w) };
        }
        let area = match w.activation_kind() {
            ActivationKind::F32 => Area::ExpertsF32,
            ActivationKind::Q8 => Area::Experts,
        };
        let row_bytes = area.row_bytes(self.x.src.width);
        Columns { data: run.state.area(area).wrapping_add(entries.start * row_bytes), row_bytes, count }
    }

    /// The products of some panels of an expert, counted in its matrix.
    fn panels(&self, run: &Run<'_>, list: List<'_>, expert: usize, panels: Range<usize>, scratch: [&mut [f32]; 3]) {
        let (at, width) = (list.of(expert), self.gate.rows);
        let columns = panels.start * PANEL..(panels.end * PANEL).min(width);
        let (stride, n) = (columns.len(), at.len() * columns.len());
        let [lower, upper, gated] = scratch.map(|part| &mut part[..n]);
        let products = [(&self.gate, &mut *lower)].into_iter().chain(self.up.as_ref().zip(Some(&mut *upper)));
        for (stack, to) in products {
            let Ok(w) = run.weights.matrix(stack.linear.weight) else { return };
            let first = stack.first + expert * stack.stride;
            let panels = first / PANEL + panels.start..first / PANEL + panels.end;
            // SAFETY: the input is complete; the kernel writes a row of `stride` for each entry, from column
            // `panels.start * PANEL` of the shifted pointer on.
            unsafe {
                let to = to.as_mut_ptr().wrapping_sub(panels.start * PANEL);
                multiply(run.isa, w, panels, self.columns(run, w, &at), to, stride, false);
            }
            for (row, &entry) in to.chunks_exact_mut(stride).zip(&list.entries[at.clone()]) {
                if self.weighted {
                    // SAFETY: the route is complete.
                    norm::scale_row(run.isa, row, unsafe { self.route.weight(run, entry) });
                }
                finish(run, &stack.linear, expert, first + columns.start, row);
            }
        }
        glu::gated(run.isa, self.act, lower, self.up.map(|_| &*upper), gated);
        for (row, place) in gated.chunks_exact(stride).zip(at) {
            // SAFETY: these columns of an entry, and the blocks of 32 that they are, belong to this claim alone.
            unsafe {
                if self.forms.f32 {
                    let to = run.state.workspace(self.out.offset).add(place * width + columns.start);
                    std::ptr::copy_nonoverlapping(row.as_ptr(), to, stride);
                }
                if self.forms.q8 {
                    let to = run.state.area(Area::Gated).add(place * activations::row_bytes(width));
                    activations::quantize_blocks(run.isa, row, to, width, columns.start / activations::BLOCK);
                }
            }
        }
    }
}

impl Step for Gate {
    fn size(&self, demand: &mut Demand) {
        demand.thread(3 * gated_floats(demand.max_rows.0) * 4);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        if run.rows(self.route.rows) == 0 {
            return;
        }
        let room = gated_floats(run.max_rows);
        // SAFETY: the list is complete since an earlier barrier; the scratch is this thread's alone.
        let (list, [lower, upper, gated]) = unsafe {
            let first = run.state.thread_scratch(ctx.worker.index()).0;
            let part = |i| std::slice::from_raw_parts_mut(first.add(i * room), room);
            (self.route.list(run), [part(0), part(1), part(2)])
        };
        const UNIT: usize = activations::BLOCK / PANEL;
        let panels = self.gate.rows / PANEL;
        let units = panels.div_ceil(UNIT);
        let total = units * list.active.len();
        for claimed in run.shrinking_pieces(ctx, total, total.max(1)) {
            let mut at = claimed.start;
            while at < claimed.end {
                let expert = list.active[at / units] as usize;
                let most = (room / (list.of(expert).len() * activations::BLOCK)).max(1);
                let end = claimed.end.min((at / units + 1) * units).min(at + most);
                let first = at % units;
                let range = first * UNIT..((first + end - at) * UNIT).min(panels);
                self.panels(run, list, expert, range, [&mut *lower, &mut *upper, &mut *gated]);
                at = end;
            }
        }
    }
}

/// Appends the sum of the experts' results.
pub fn down(to: &mut Lowering<'_>, id: NodeId, down: Stack, weighted: bool) -> Result<()> {
    let gated = to.source(id)?;
    let q8 = to.multiplied([&down.linear]).q8;
    let here = to.work.computes(gated) && matches!(to.node(gated).op, Op::ExpertGate { .. });
    if !here || q8 && !to.holds(Area::Gated, gated) {
        return Err(Error::Internal(format!("Node {} is not where its experts' gates are", id.0)));
    }
    let (src, route) = (to.span(gated), route_of(to, id, down.experts)?);
    to.push(Down { down, weighted, src, route, residual: to.residual(id), out: to.span(id) });
    Ok(())
}

struct Down {
    down: Stack,
    weighted: bool,
    src: RowSpan,
    route: Route,
    residual: Option<RowSpan>,
    out: RowSpan,
}

impl Step for Down {
    fn size(&self, demand: &mut Demand) {
        demand.thread(gated_floats(demand.max_rows.0) * 4);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let (rows, used) = (run.rows(self.route.rows), self.route.used());
        let Ok(w) = run.weights.matrix(self.down.linear.weight) else { return };
        if rows == 0 {
            return;
        }
        let room = gated_floats(run.max_rows);
        // SAFETY: the list is complete since an earlier barrier; the scratch is this thread's alone.
        let (list, scratch) = unsafe {
            let first = run.state.thread_scratch(ctx.worker.index()).0;
            (self.route.list(run), std::slice::from_raw_parts_mut(first, room))
        };
        let (data, row_bytes) = match w.activation_kind() {
            ActivationKind::F32 => (run.state.workspace(self.src.offset).cast::<u8>(), w.n_in() * 4),
            ActivationKind::Q8 => (run.state.area(Area::Gated), activations::row_bytes(w.n_in())),
        };
        // Of each expert a piece is read by itself, so pieces are long: what is asked for ahead of its end is read in
        // vain.
        let panels = self.down.rows / PANEL;
        let most = (room / (rows * PANEL)).max(1);
        for claimed in run.pieces(ctx, panels, most.min((panels / (2 * run.threads())).max(1))) {
            let columns = claimed.start * PANEL..claimed.end * PANEL;
            let stride = columns.len();
            for r in 0..rows {
                // SAFETY: these columns belong to this claim alone; the residual is complete.
                unsafe {
                    match self.residual {
                        None => run.columns_mut(self.out, r, columns.clone()).fill(0.0),
                        Some(residual) if residual == self.out => {}
                        Some(residual) => {
                            let from = &run.row(residual, r)[columns.clone()];
                            run.columns_mut(self.out, r, columns.clone()).copy_from_slice(from);
                        }
                    }
                }
            }
            for expert in list.active.iter().map(|&expert| expert as usize) {
                let (at, first) = (list.of(expert), self.down.first + expert * self.down.stride);
                let panels = first / PANEL + claimed.start..first / PANEL + claimed.end;
                let products = &mut scratch[..at.len() * stride];
                let x = Columns { data: data.wrapping_add(at.start * row_bytes), row_bytes, count: at.len() };
                // SAFETY: the input is complete; the kernel writes a row of `stride` for each entry, from column
                // `panels.start * PANEL` of the shifted pointer on.
                unsafe {
                    let to = products.as_mut_ptr().wrapping_sub(panels.start * PANEL);
                    multiply(run.isa, w, panels, x, to, stride, false);
                }
                for (product, &entry) in products.chunks_exact_mut(stride).zip(&list.entries[at]) {
                    finish(run, &self.down.linear, expert, first + columns.start, product);
                    // SAFETY: the route is complete; these columns belong to this claim alone.
                    unsafe {
                        let weight = if self.weighted { 1.0 } else { self.route.weight(run, entry) };
                        let out = run.columns_mut(self.out, entry as usize / used, columns.clone());
                        norm::add_scaled_row(run.isa, product, weight, out);
                    }
                }
            }
        }
    }
}
