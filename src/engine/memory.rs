//! The memory of a model and an engine, computed before anything is loaded, and whether it fits.
//!
//! An estimate does what an open does, up to the point of allocation: the same outline, weight arrangement, drafts and
//! layouts, whose sizes the backends add up with the functions that size the real buffers. So sizes are computed in one
//! place, and a plan holds for every open with the same arguments.
//!
//! Not in the sum: pages of the file that stay in use, which the system may drop (counted separately); the vocabulary;
//! the driver's own memory, that of kernels, and staging while weights are uploaded.

use super::options::{EngineOptions, context_for};
use super::plans::{Look, Plans, can_leave, draft_assistant, head_rows, largest_read, reading_bodies};
use super::windows::WindowSizes;
use crate::backend::memory::{Bytes, Component, Memory};
use crate::backend::{self, Backend, CacheSpec, KvTypes, LayerCache, MAX_TEXT_ROWS, Table, WeightBytes};
use crate::gguf::File;
use crate::model::{Model, Outline, Placement};
use crate::{Error, Result};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::Arc;

/// The memory needed on one device.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    /// The device's name.
    pub device: String,
    /// The layers that are placed there.
    pub layers: Range<usize>,
    /// Bytes that will be allocated.
    pub bytes: Bytes,
    /// Bytes of the file that rows are read from while decoding: pages that the system keeps cached as long as it has
    /// room.
    pub file_backed: u64,
    /// Its memory now: used, total, available.
    pub memory: Memory,
}

/// The memory that an open needs on every device.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Tokens of context.
    pub context: usize,
    /// Layers on GPUs; the model's number of layers plus one means the output head too.
    pub gpu_layers: usize,
    /// The devices; the first is the CPU.
    pub needs: Vec<Need>,
    /// What of it is the draft model's; 0 without one.
    pub of_draft: DraftBytes,
}

/// The part of a draft model; of a block of the model's own file that drafts, without its weights, which are the
/// model's.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DraftBytes {
    /// Bytes that will be allocated.
    pub allocated: u64,
    /// See [`Need::file_backed`].
    pub file_backed: u64,
}

/// An estimate, whether it fits, and what would fit.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// What was asked for.
    pub estimate: Estimate,
    /// Layers of the model.
    pub n_layer: usize,
    /// How many tensors follow each of the placement's rules, and their bytes in the file.
    pub placed: Vec<(usize, u64)>,
    /// Whether it fits; `None` where that depends on a device whose free memory is unknown.
    pub fits: Option<bool>,
    /// The largest context in tokens that fits with these layers on the GPU; `None` where none does, or free memory is
    /// unknown.
    pub largest_context: Option<usize>,
    /// Where it does not fit and layers were requested on a GPU: the most layers on the GPU with which it fits.
    pub largest_gpu_layers: Option<usize>,
}

/// State cells beside those that runs need: earlier states of slots, from which a prompt can go on. As many as fit into
/// a quarter of the KV cache, or into `KEPT_BYTES` if that is more, where the host chooses no number.
const KEPT_STATES: RangeInclusive<usize> = 4..=32;
const KEPT_BYTES: usize = 64 << 20;

/// Copies of windows: as many as fit into this part of the KV cache, at least the first number and at most the last,
/// where the host chooses no number.
const COPIES: RangeInclusive<usize> = 2..=16;
const COPIES_PART: usize = 32;

/// The KV cache and the states of all layers, and the sizes of the windows of sliding ones.
pub(super) fn cache_of(model: &Outline, options: &EngineOptions) -> Result<(CacheSpec, WindowSizes)> {
    let context = context_for(options.context, model.hparams().n_ctx_train);
    let (sequences, parallel) = (options.sequences()?, options.parallel()?);
    let mut cache = CacheSpec {
        types: KvTypes { k: options.kv_type.tensor_type(), v: options.kv_type_v().tensor_type() },
        cells: [backend::cells_for(context * parallel, sequences), 0],
        sequences,
        context,
        layers: model.caches(),
        states: model.states().iter().map(|&n| Some(n)).collect(),
        state_cells: 0,
    };
    let windows = windows_of(model, options, &mut cache)?;
    if model.answers() {
        cache.cells[Table::Window as usize] = cache.cells[Table::All as usize];
    }
    if !cache.states.is_empty() {
        let bytes = cache.states.iter().flatten().fold(0usize, |sum, n| sum.saturating_add(n.saturating_mul(4)));
        let kept = (cache_bytes(&cache, |_| true) / 4).max(KEPT_BYTES) / bytes.max(1);
        // A slot has its state, and a run writes another.
        cache.state_cells = 2 * cache.sequences + options.snapshots(kept, KEPT_STATES)?;
    }
    Ok((cache, windows))
}

/// Bytes of the keys and values of some layers.
fn cache_bytes(cache: &CacheSpec, some: impl Fn(&LayerCache) -> bool) -> usize {
    let bytes = |layer: &LayerCache| layer.row_bytes(cache.types).saturating_mul(cache.cells[layer.table as usize]);
    cache.layers.iter().flatten().filter(|layer| some(layer)).fold(0, |sum, layer| sum.saturating_add(bytes(layer)))
}

/// Gives sliding layers the cells of windows where that takes fewer than those of all tokens.
fn windows_of(model: &Outline, options: &EngineOptions, cache: &mut CacheSpec) -> Result<WindowSizes> {
    let reaches = model.reaches();
    let reach = reaches.iter().flatten().copied().max().unwrap_or(0);
    let (all, batch) = (cache.cells[Table::All as usize], batch_of(model, options)?);
    if reach == 0 || reach >= all || model.encodes() {
        return Ok(WindowSizes::default());
    }
    let mut with = cache.clone();
    let sliding = with.layers.iter_mut().zip(&reaches).filter(|(_, reach)| reach.is_some());
    sliding.filter_map(|(layer, _)| layer.as_mut()).for_each(|layer| layer.table = Table::Window);
    let sizes = |copies| WindowSizes::new(reach, cache.sequences, batch, copies);
    with.cells[Table::Window as usize] = sizes(0).cells();
    let row: usize = with
        .layers
        .iter()
        .flatten()
        .filter(|layer| layer.table == Table::Window)
        .map(|layer| layer.row_bytes(with.types))
        .sum();
    let copies = cache_bytes(&with, |_| true) / COPIES_PART / (row * reach).max(1);
    let sizes = sizes(options.snapshots(copies, COPIES)?);
    with.cells[Table::Window as usize] = sizes.cells();
    if sizes.cells() >= all {
        return Ok(WindowSizes::default());
    }
    *cache = with;
    Ok(sizes)
}

/// The most rows of a pass: an encoder takes all of a text at once.
pub(super) fn batch_of(model: &Outline, options: &EngineOptions) -> Result<usize> {
    let context = context_for(options.context, model.hparams().n_ctx_train);
    let batch = options.batch()?;
    Ok(if model.encodes() { batch.max(context).min(MAX_TEXT_ROWS) } else { batch })
}

/// The part of the cache that is on a device.
pub(super) fn share_of(cache: &CacheSpec, model: &Outline, device: usize) -> CacheSpec {
    let mut own = cache.clone();
    for (il, layer) in own.layers.iter_mut().enumerate() {
        *layer = layer.filter(|_| model.places().caches[il] == device);
    }
    if !own.layers.iter().flatten().any(|layer| layer.table == Table::Window) {
        own.cells[Table::Window as usize] = 0;
    }
    for (state, numbers) in own.states.iter_mut().enumerate() {
        *numbers = numbers.filter(|_| model.places().states[state] == device);
    }
    own
}

/// A need that is greater than the available memory.
struct Excess<'a> {
    devices: Vec<&'a str>,
    bytes: Bytes,
    available: u64,
}

impl<'a> Excess<'a> {
    /// The excess where these devices, which share the first one's memory, together need more than is available there.
    fn of(needs: &[&'a Need]) -> Option<Excess<'a>> {
        let bytes = needs.iter().fold(Bytes::default(), |sum, need| sum + need.bytes);
        let available = needs.first()?.memory.available.filter(|&available| bytes.total() > available)?;
        Some(Excess { devices: needs.iter().map(|need| &*need.device).collect(), bytes, available })
    }

    /// The error: which device, what is needed and available, and what would fit.
    fn refusal(&self, what: &str, context: usize, hint: &str) -> Error {
        let parts = self.bytes.iter().filter(|(_, bytes)| *bytes > 0);
        let parts: Vec<_> = parts.map(|(part, bytes)| format!("{} {bytes}", part.name())).collect();
        let (device, needed, available) = (self.devices.join(" and "), self.bytes.total(), self.available);
        Error::OutOfMemory(format!(
            "{what} with a context of {context} needs {needed} bytes on {device} ({}), {available} are available: \
             {hint}",
            parts.join(", ")
        ))
    }
}

impl Estimate {
    /// The memory of an engine with these options; that of the weights too, unless they are `loaded`. Of a draft model
    /// that reads another model's rows the weights alone: `assistant` is the one that is attached to the engine.
    fn of(
        model: &Outline,
        assistant: Option<&Header>,
        backends: &[Arc<dyn Backend>],
        options: &EngineOptions,
        memory: &[Memory],
        loaded: bool,
        look: Look<'_>,
    ) -> Result<Estimate> {
        let ((cache, _), threads, batch) = (cache_of(model, options)?, options.threads()?, batch_of(model, options)?);
        let mut sizings = Vec::with_capacity(backends.len());
        for (i, (backend, wanted)) in backends.iter().zip(model.wanted()).enumerate() {
            sizings.push(backend.sizing(&share_of(&cache, model, i), wanted, threads)?);
        }
        let streams = options.streams()?;
        let mut reading = match can_leave(model, streams, backends.len()) {
            true => Some(backends[0].sizing(&share_of(&cache, model, 0), &model.wanted()[0], threads)?),
            false => None,
        };
        let backends: Vec<&dyn Backend> = backends.iter().map(|backend| &**backend).collect();
        let head_rows = head_rows(streams);
        // The bodies come first.
        let mut bodies = 0..reading_bodies(batch);
        if model.assists().is_none() {
            let plans = Plans::make(model, &backends, cache, (batch, head_rows), |draft| {
                look()?;
                let is_read = bodies.next().is_some();
                for (device, work) in draft.works() {
                    sizings[device].program(&work)?;
                    reading.iter_mut().filter(|_| is_read).try_for_each(|reading| reading.program(&work))?;
                }
                for (device, sizing) in sizings.iter_mut().enumerate() {
                    sizing.reads(draft.largest_copy(device));
                }
                Ok(())
            })?;
            sizings[model.places().logits].reads(largest_read(model, head_rows));
            if let Some(assistant) = assistant {
                let kept = (plans.kept(), plans.cache());
                draft_assistant((model, &assistant.outline), backends[0], kept, |draft, _| {
                    draft.works().try_for_each(|(_, work)| sizings[0].program(&work))
                })
                .map_err(|error| error.in_draft(assistant.file.path()))?;
            }
        }
        let mut needs = Vec::with_capacity(backends.len());
        for (i, (backend, memory)) in backends.iter().zip(memory).enumerate() {
            let weights = match loaded {
                true => WeightBytes::default(),
                false => backend.weight_bytes(model.specs(), &model.wanted()[i])?,
            };
            let of_engine = if model.assists().is_none() { sizings[i].bytes() } else { Bytes::default() };
            let (mut bytes, device) = (weights.allocated + of_engine, backend.device().name);
            // What is read beside other passes goes to the same cache.
            if let Some(reading) = reading.as_ref().filter(|_| i == 0) {
                let more = reading.bytes();
                let more = more.iter().filter(|&(component, _)| component != Component::Cache);
                more.for_each(|(component, more)| bytes.add(component, more));
            }
            needs.push(Need {
                device,
                layers: model.layers_of(i),
                bytes,
                file_backed: weights.file_backed,
                memory: *memory,
            });
        }
        let context = context_for(options.context, model.hparams().n_ctx_train);
        Ok(Estimate { context, gpu_layers: model.gpu_layers(), needs, of_draft: DraftBytes::default() })
    }

    /// Adds a draft model, whose devices are the first ones of these.
    fn add_draft(&mut self, draft: &Estimate) {
        for (own, more) in self.needs.iter_mut().zip(&draft.needs) {
            own.bytes = own.bytes + more.bytes;
            own.file_backed += more.file_backed;
            self.of_draft.allocated += more.bytes.total();
            self.of_draft.file_backed += more.file_backed;
        }
    }

    /// The first need that is known to exceed the available memory.
    fn excess(&self) -> Option<Excess<'_>> {
        // Devices without memory of their own use the host's, which is the first device's.
        let of_host: Vec<&Need> = self.needs.iter().filter(|need| need.memory.of_host).collect();
        self.needs.iter().find_map(|need| Excess::of(&[need])).or_else(|| Excess::of(&of_host))
    }

    /// Whether it fits; `None` where the free memory of a device that is used is unknown.
    fn fits(&self) -> Option<bool> {
        let known = self.needs.iter().all(|need| need.memory.available.is_some() || need.bytes.total() == 0);
        match self.excess() {
            Some(_) => Some(false),
            None => known.then_some(true),
        }
    }
}

/// The contexts that an engine can have, ascending.
fn contexts(train_context: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..32).map(|bit| context_for(1 << bit, train_context)).collect();
    all.dedup();
    all
}

/// Whether an estimate fits. A buffer too large for its device is an error of the estimate, and does not fit either.
fn admits(estimate: Result<Estimate>) -> Result<bool> {
    match estimate {
        Ok(estimate) => Ok(estimate.excess().is_none()),
        Err(Error::OutOfMemory(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// As [`admits`], without the CPU's part.
fn admits_on_gpu(estimate: Result<Estimate>) -> Result<bool> {
    admits(estimate.map(|mut all| {
        all.needs.remove(0);
        all
    }))
}

/// The largest context that fits.
fn largest_context(
    train_context: usize,
    options: &EngineOptions,
    mut estimate: impl FnMut(&EngineOptions) -> Result<Estimate>,
) -> Result<Option<usize>> {
    let contexts = contexts(train_context);
    // A larger context needs more of everything.
    let (mut fits, mut exceeds) = (0, contexts.len());
    while fits < exceeds {
        let middle = (fits + exceeds) / 2;
        let options = EngineOptions { context: contexts[middle] as u32, ..options.clone() };
        match admits(estimate(&options))? {
            true => fits = middle + 1,
            false => exceeds = middle,
        }
    }
    Ok(fits.checked_sub(1).map(|i| contexts[i]))
}

fn memory_of(backends: &[Arc<dyn Backend>]) -> Result<Vec<Memory>> {
    backends.iter().map(|backend| backend.memory()).collect()
}

/// The memory that opening the model at `path` with these options, and with the draft model at `draft`, would take,
/// from their headers alone.
///
/// # Errors
/// Those of reading a file's header and of a model ([`Error::Io`], [`Error::Gguf`], [`Error::Model`],
/// [`Error::Unsupported`], each in [`Error::InFile`]); [`Error::Unsupported`] and [`Error::Device`] where no requested
/// device can be used; [`Error::InvalidArgument`] for options out of range.
pub fn plan_memory(path: &Path, draft: Option<&Path>, options: &EngineOptions) -> Result<MemoryPlan> {
    options.sequences()?;
    let model = Header::read(path, &options.placement_beside(path, draft))?;
    check_answers(&model.outline)?;
    let other = draft.filter(|_| model.outline.nextn().is_none());
    let draft = other.map(|path| Header::read(path, &options.of_draft(0)?.placement())).transpose()?;
    let Header { file, backends, outline } = &model;
    let asked = Asked { file, outline, backends, draft: draft.as_ref(), options };
    let memory = memory_of(backends)?;
    let look: Look<'_> = &mut || Ok(());
    let estimate = asked.estimate(&memory, look)?;
    let fits = estimate.fits();
    let (largest_context, largest_gpu_layers) = match fits {
        None => (None, None),
        Some(true) => (asked.largest_context(&memory, look)?, None),
        Some(false) => asked.what_fits(&memory, look)?,
    };
    let (n_layer, placed) = (outline.hparams().n_layer, outline.placed());
    Ok(MemoryPlan { estimate, n_layer, placed, fits, largest_context, largest_gpu_layers })
}

/// An error for a draft model that reads another model's rows, and answers nothing by itself.
pub(super) fn check_answers(model: &Outline) -> Result<()> {
    match model.assists() {
        None => Ok(()),
        Some(_) => {
            let name = &model.hparams().architecture;
            Err(Error::Unsupported(format!(
                "`{name}` is a draft model of another model, and answers nothing by itself"
            )))
        }
    }
}

/// What a file's header says of a model, and the devices of its open.
struct Header {
    file: File,
    backends: Vec<Arc<dyn Backend>>,
    outline: Outline,
}

impl Header {
    fn read(path: &Path, placement: &Placement) -> Result<Header> {
        let file = File::open(path)?;
        let backends = placement.backends()?;
        let outline = Outline::read(&file, &backends, placement).map_err(|error| error.in_file(path))?;
        Ok(Header { file, backends, outline })
    }
}

/// A model that is not loaded yet, the draft model that is opened with it, and the options of the open.
struct Asked<'a> {
    file: &'a File,
    outline: &'a Outline,
    backends: &'a [Arc<dyn Backend>],
    draft: Option<&'a Header>,
    options: &'a EngineOptions,
}

impl Asked<'_> {
    /// The estimate where the outline is this one and the options are these.
    fn estimate_of(
        &self,
        outline: &Outline,
        options: &EngineOptions,
        memory: &[Memory],
        look: Look<'_>,
    ) -> Result<Estimate> {
        let assistant = self.draft.filter(|draft| draft.outline.assists().is_some());
        let mut estimate = Estimate::of(outline, assistant, self.backends, options, memory, false, look)?;
        if let Some(Header { outline, backends, .. }) = self.draft {
            let drafting = options.of_draft(estimate.context)?;
            estimate.add_draft(&Estimate::of(outline, None, backends, &drafting, &memory[..1], false, look)?);
        }
        if let Some(block) = outline.nextn() {
            let drafting = options.of_draft(estimate.context)?;
            estimate.add_draft(&Estimate::of(block, None, self.backends, &drafting, memory, true, look)?);
        }
        if assistant.is_some() || outline.nextn().is_some() {
            // The hidden rows of a pass, which it reads.
            let rows = (batch_of(outline, options)? * outline.hparams().n_embd * size_of::<f32>()) as u64;
            estimate.needs.iter_mut().take(1).for_each(|need| need.bytes.add(Component::Other, rows));
            estimate.of_draft.allocated += rows;
        }
        Ok(estimate)
    }

    fn estimate(&self, memory: &[Memory], look: Look<'_>) -> Result<Estimate> {
        self.estimate_of(self.outline, self.options, memory, look).or_else(|error| match error {
            Error::OutOfMemory(problem) => {
                let (context, layers) = self.what_fits(memory, look)?;
                Err(Error::OutOfMemory(format!("{problem}: {}", hint(context, layers))))
            }
            error => Err(error),
        })
    }

    fn largest_context(&self, memory: &[Memory], look: Look<'_>) -> Result<Option<usize>> {
        let train_context = self.outline.hparams().n_ctx_train;
        largest_context(train_context, self.options, |options| self.estimate_of(self.outline, options, memory, look))
    }

    /// The most layers on the GPU with which the options fit, less than requested.
    fn largest_gpu_layers(&self, memory: &[Memory], look: Look<'_>) -> Result<Option<usize>> {
        let asked_for = Placement { nextn: self.outline.nextn().is_some(), ..self.options.placement() };
        let placed = |layers: usize| Placement { gpu_layers: layers as i32, ..asked_for.clone() };
        let mut estimate = |layers: usize| match Outline::read(self.file, self.backends, &placed(layers)) {
            Ok(outline) => self.estimate_of(&outline, self.options, memory, look),
            Err(error) => Err(error),
        };
        // One more layer needs more of the GPU's memory, and no more of the host's.
        let (mut fits, mut exceeds) = (0, self.outline.gpu_layers());
        while fits < exceeds {
            let middle = (fits + exceeds) / 2;
            match admits_on_gpu(estimate(middle))? {
                true => fits = middle + 1,
                false => exceeds = middle,
            }
        }
        let Some(most) = fits.checked_sub(1) else { return Ok(None) };
        Ok(admits(estimate(most))?.then_some(most))
    }

    /// The largest context, and the most layers on the GPU, that fit where the request does not.
    fn what_fits(&self, memory: &[Memory], look: Look<'_>) -> Result<(Option<usize>, Option<usize>)> {
        Ok((self.largest_context(memory, look)?, self.largest_gpu_layers(memory, look)?))
    }
}

/// Refuse to load what does not fit.
pub(super) fn admit(
    file: &File,
    outline: &Outline,
    backends: &[Arc<dyn Backend>],
    options: &EngineOptions,
    look: Look<'_>,
) -> Result<()> {
    let asked = Asked { file, outline, backends, draft: None, options };
    let memory = memory_of(backends)?;
    let estimate = asked.estimate(&memory, look)?;
    let Some(excess) = estimate.excess() else { return Ok(()) };
    let (context, gpu_layers) = asked.what_fits(&memory, look)?;
    Err(excess.refusal(&file.path().display().to_string(), estimate.context, &hint(context, gpu_layers)))
}

/// Refuse an engine that does not fit in addition to its model, whose weights are loaded.
pub(super) fn admit_engine(model: &Model, options: &EngineOptions, look: Look<'_>) -> Result<()> {
    let backends: Vec<_> = model.devices().iter().map(|device| device.backend.clone()).collect();
    let (memory, outline) = (memory_of(&backends)?, model.outline());
    let mut estimate = |options: &EngineOptions| Estimate::of(outline, None, &backends, options, &memory, true, look);
    let asked = estimate(options)?;
    let Some(excess) = asked.excess() else { return Ok(()) };
    let context = largest_context(outline.hparams().n_ctx_train, options, estimate)?;
    let what = format!("Another engine over {}", model.file().path().display());
    Err(excess.refusal(&what, asked.context, &hint(context, None)))
}

/// What would fit, in words.
fn hint(context: Option<usize>, gpu_layers: Option<usize>) -> String {
    match (context, gpu_layers) {
        (Some(context), Some(layers)) => format!("a context of {context} fits, or {layers} layers on the GPU"),
        (Some(context), None) => format!("a context of {context} fits"),
        (None, Some(layers)) => format!("with {layers} layers on the GPU it fits"),
        (None, None) => "no context fits".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two devices, as (needed, available, of the host).
    fn estimate(devices: [(u64, Option<u64>, bool); 2]) -> Estimate {
        let needs = devices.into_iter().zip(["CPU", "GPU"]).map(|((needed, available, of_host), name)| {
            let mut bytes = Bytes::default();
            bytes.add(Component::Cache, needed / 2);
            bytes.add(Component::Other, needed - needed / 2);
            let memory = Memory { available, of_host, ..Memory::default() };
            Need { device: name.into(), layers: 0..0, bytes, file_backed: 1 << 40, memory }
        });
        Estimate { context: 64, gpu_layers: 1, needs: needs.collect(), of_draft: DraftBytes::default() }
    }

    #[test]
    fn every_device_by_itself_and_those_of_the_host_together() {
        for (devices, fits, wrong) in [
            ([(10, Some(10), true), (20, Some(20), false)], Some(true), None),
            (
                [(11, Some(10), true), (20, Some(20), false)],
                Some(false),
                Some("needs 11 bytes on CPU (kv_cache 5, other 6)"),
            ),
            ([(10, Some(10), true), (21, Some(20), false)], Some(false), Some("needs 21 bytes on GPU (")),
            ([(10, Some(30), true), (20, Some(30), true)], Some(true), None),
            (
                [(11, Some(30), true), (20, Some(30), true)],
                Some(false),
                Some("needs 31 bytes on CPU and GPU (kv_cache 15"),
            ),
            ([(10, Some(10), true), (20, None, false)], None, None),
            ([(11, Some(10), true), (20, None, false)], Some(false), Some("10 are available: a hint")),
            ([(10, None, true), (20, Some(20), false)], None, None),
            ([(0, None, true), (20, Some(20), false)], Some(true), None),
        ] {
            let estimate = estimate(devices);
            assert_eq!(estimate.fits(), fits, "{devices:?}");
            let told = estimate.excess().map(|excess| excess.refusal("It", 64, "a hint").to_string());
            match wrong {
                None => assert_eq!(told, None, "{devices:?}"),
                Some(part) => assert!(told.as_ref().is_some_and(|told| told.contains(part)), "{devices:?}: {told:?}"),
            }
        }
    }

    #[test]
    fn contexts_are_those_that_can_be_had() {
        assert_eq!(contexts(40), [1, 2, 4, 8, 16, 32, 40]);
        assert_eq!(contexts(4), [1, 2, 4]);
        assert_eq!(contexts(1 << 20).last(), Some(&(1 << 20)));
    }
}
