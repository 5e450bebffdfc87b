//! A model as far as its file's header describes it: sizes, weight table, graphs, placement on devices. No weights are
//! loaded, so memory is planned with an outline.

use super::architectures::ARCHITECTURES;
use super::binder::{Binder, Ends};
use super::decoder::{Decoder, Head};
use super::keys::Keys;
use super::nextn::{self, Reads};
use super::placement::Placed;
use super::{Hparams, Placement, Pooled, TensorSplit, WeightTable};
use crate::backend::{Backend, LayerCache, Table, Wanted};
use crate::gguf::{File, shown};
use crate::graph::{AttentionSpec, Graph, Index, Node, Op, Output, Part, RopeSpec, WeightId, WeightSpec, WeightUse};
use crate::schedule::{self, assign};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Names of the architectures this library runs.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, ..)| *name)
}

/// A model as far as its file's header describes it.
pub struct Outline {
    hparams: Hparams,
    specs: Arc<[WeightSpec]>,
    decoder: Decoder,
    gpu_layers: usize,
    /// The device of each layer, then of the output head.
    parts: Vec<usize>,
    /// Devices beside the CPU.
    gpus: usize,
    wanted: Arc<[Wanted]>,
    places: Places,
    /// Of each weight how much of it a token reads: experts of all experts.
    read: Vec<(usize, usize)>,
    /// The rules for single tensors that weights follow, and whether each rule says the GPU.
    placed: Arc<(Placed, Vec<bool>)>,
    /// Layers whose cache is on the CPU, one entry per layer, also where only some of what uses it has to be there.
    on_cpu: Vec<bool>,
    /// The block that predicts further tokens, where it was asked for and the file has one.
    nextn: Option<Box<Outline>>,
}

/// The devices of what an engine keeps between runs: those where the parts were placed, except where a device has no
/// kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// The device that looks up embeddings; the CPU where it looks up any of them.
    pub embedding: usize,
    /// The device that keeps the hidden rows.
    pub hidden: usize,
    /// The device that computes the logits.
    pub logits: usize,
    /// The device of each layer's KV cache, one per layer. A layer that uses another one's has that one's device; one
    /// without attention the CPU.
    pub caches: Vec<usize>,
    /// The device of each state.
    pub states: Vec<usize>,
}

impl Places {
    /// The places of a graph from tokens to logits, given the device of each node.
    fn of(graph: &Graph, devices: &[usize], n_layer: usize, n_states: usize) -> Places {
        let (caches, states) = (vec![0; n_layer], vec![0; n_states]);
        let mut places = Places { embedding: usize::MAX, caches, states, ..Places::default() };
        for (node, &device) in graph.nodes.iter().zip(devices) {
            if let Some((state, _)) = node.state() {
                places.states[state] = device;
            }
            match (&node.op, node.output) {
                (Op::Embed { index: Index::Token, .. }, _) => places.embedding = places.embedding.min(device),
                (Op::Attention(_), _) => {
                    if let Part::Layer(il) = node.part {
                        places.caches[il] = device;
                    }
                }
                (_, Some(Output::Hidden)) => places.hidden = device,
                (_, Some(Output::Logits)) => places.logits = device,
                _ => {}
            }
        }
        places
    }
}

impl Outline {
    /// Read the header for `backends`, of which the first is the CPU. With a second one the last `gpu_layers` layers
    /// are computed there; one more means the output head too, and the embedding with it; -1 means all. Several beside
    /// the CPU have layers one after the other, divided as the placement says, and the embedding stays on the CPU. What
    /// is computed with a tensor that a rule places is computed on the rule's device: matrices that are multiplied
    /// together go where the first of them that a rule names goes, and the experts of a layer where their gates go.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown architecture or type, [`Error::Model`] naming the key or tensor at fault,
    /// [`Error::InvalidArgument`] for a rule that no tensor follows.
    pub fn read(file: &File, backends: &[Arc<dyn Backend>], placement: &Placement) -> Result<Outline> {
        let name: String = file.require("general.architecture")?;
        let Some(&(_, norm, bind)) = ARCHITECTURES.iter().find(|(known, ..)| *known == name) else {
            let known: Vec<_> = architectures().collect();
            return Err(Error::Unsupported(format!("Architecture `{}` (known: {})", shown(&name), known.join(", "))));
        };
        let hparams = Hparams::read(file, norm)?;
        let binder =
            |h, table, ends| Binder { h, keys: Keys::new(file, &name), table, side: "", norm, states: vec![], ends };
        let mut model = binder(&hparams, WeightTable::new(file), None);
        let decoder = bind(&mut model)?;
        let mut table = model.table;
        let of_nextn = if placement.nextn { nextn_of(&hparams, &decoder)? } else { None };
        let mut next = None;
        if let Some((hparams, ends)) = &of_nextn {
            let mut block = binder(hparams, table, Some(ends.clone()));
            next = Some((hparams.clone(), bind(&mut block)?));
            table = block.table;
        }
        let specs: Arc<[WeightSpec]> = table.finish()?.into();
        let rules = &placement.tensor_devices;
        let placed = (Placed::of(rules, &specs)?, rules.iter().map(|rule| rule.gpu && backends.len() > 1).collect());
        let gpu_layers = usize::try_from(placement.gpu_layers).unwrap_or(usize::MAX);
        let gpu_layers = if backends.len() > 1 { gpu_layers.min(hparams.n_layer + 1) } else { 0 };
        let plain: Vec<_> = backends.iter().map(|b| &**b).collect();
        let mut model = Outline {
            on_cpu: vec![false; hparams.n_layer],
            hparams,
            specs,
            decoder,
            gpu_layers,
            parts: Vec::new(),
            gpus: backends.len() - 1,
            wanted: Arc::new([]),
            places: Places::default(),
            read: Vec::new(),
            placed: Arc::new(placed),
            nextn: None,
        };
        let graph = model.decoder.whole_graph(&model.specs)?;
        model.parts = model.divided(&graph, backends, &placement.tensor_split)?;
        let devices = model.settle(&graph, &plain);
        let n_weights = model.specs.len();
        let Some((hparams, decoder)) = next else {
            model.wanted = schedule::wanted(&[(&graph, &devices)], plain.len(), n_weights).into();
            return Ok(model);
        };
        let mut block = Outline {
            on_cpu: vec![false],
            hparams,
            specs: model.specs.clone(),
            decoder,
            gpu_layers: if model.head() > 0 { 2 } else { 0 },
            // Where the hidden rows are that it reads, and the head.
            parts: vec![model.head(); 2],
            gpus: model.gpus,
            wanted: Arc::new([]),
            places: Places { hidden: model.places.hidden, ..Places::default() },
            read: Vec::new(),
            placed: model.placed.clone(),
            nextn: None,
        };
        let of_block = block.decoder.whole_graph(&block.specs)?;
        let on = block.settle(&of_block, &plain);
        model.wanted = schedule::wanted(&[(&graph, &devices), (&of_block, &on)], plain.len(), n_weights).into();
        block.wanted = model.wanted.clone();
        model.nextn = Some(Box::new(block));
        Ok(model)
    }

    /// Decides where the nodes of the whole graph are computed, and what follows from it. Returns the device of each.
    fn settle(&mut self, graph: &Graph, backends: &[&dyn Backend]) -> Vec<usize> {
        let assigned = |outline: &Outline| assign(graph, backends, &|node| outline.place(node), &outline.specs);
        let mut devices = assigned(self);
        self.on_cpu = caches_on_cpu(graph, &devices, self.hparams.n_layer);
        if self.gpu_layers > 0 && self.on_cpu.contains(&true) {
            devices = assigned(self);
        }
        self.places = Places::of(graph, &devices, self.hparams.n_layer, self.decoder.states.len());
        self.read = weights_read(graph, self.specs.len());
        devices
    }

    /// The block that predicts further tokens, as a model of one layer over the same weights.
    pub fn nextn(&self) -> Option<&Outline> {
        self.nextn.as_deref()
    }

    /// Takes that block out.
    pub(super) fn take_nextn(&mut self) -> Option<Outline> {
        self.nextn.take().map(|block| *block)
    }

    /// The hyperparameters.
    pub fn hparams(&self) -> &Hparams {
        &self.hparams
    }

    /// The weight table, in the order of [`crate::graph::WeightId`].
    pub fn specs(&self) -> &[WeightSpec] {
        &self.specs
    }

    /// What each device needs of the weights.
    pub fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }

    /// Layers on GPUs; the number of layers plus one means everything.
    pub fn gpu_layers(&self) -> usize {
        self.gpu_layers
    }

    /// The layers of a device, whatever the rules for single tensors say.
    pub fn layers_of(&self, device: usize) -> Range<usize> {
        let layers = &self.parts[..self.hparams.n_layer];
        let first = layers.partition_point(|&of| of < device);
        first..first + layers[first..].partition_point(|&of| of == device)
    }

    /// The device of the output head.
    pub fn head(&self) -> usize {
        self.parts[self.hparams.n_layer]
    }

    /// The device of each layer, then of the output head. Of the bytes of what is on GPUs each has the share that
    /// `split` says.
    fn divided(&self, graph: &Graph, backends: &[Arc<dyn Backend>], split: &TensorSplit) -> Result<Vec<usize>> {
        let n_layer = self.hparams.n_layer;
        let mut bytes = vec![0; n_layer + 1];
        for node in &graph.nodes {
            let of = match node.part {
                Part::Embedding => continue,
                Part::Layer(il) => &mut bytes[il],
                Part::Head => &mut bytes[n_layer],
            };
            *of += node.weights().iter().map(|(weight, _)| self.specs[weight.0 as usize].bytes()).sum::<u64>();
        }
        let on_gpus = n_layer.saturating_sub(self.gpu_layers)..n_layer + usize::from(self.gpu_layers > n_layer);
        let mut devices = vec![0; n_layer + 1];
        if !on_gpus.is_empty() {
            let free: Vec<_> = backends[1..].iter().map(|gpu| Ok(gpu.memory()?.available)).collect::<Result<_>>()?;
            let gpus = split.divide(&free, &bytes[on_gpus.clone()])?;
            devices[on_gpus].iter_mut().zip(gpus).for_each(|(device, gpu)| *device = 1 + gpu);
        }
        Ok(devices)
    }

    /// How many tensors follow each of the placement's rules, and their bytes in the file.
    pub fn placed(&self) -> Vec<(usize, u64)> {
        let (placed, gpu) = &*self.placed;
        let mut all = vec![(0, 0); gpu.len()];
        for (i, spec) in self.specs.iter().enumerate() {
            if let Some(rule) = placed.rule(i) {
                // Weights that are parts of one tensor begin at different rows of it.
                all[rule].0 += usize::from(spec.first_row == 0);
                all[rule].1 += spec.bytes();
            }
        }
        all
    }

    /// The devices of what an engine keeps between runs.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The device that a node of this model's graphs should go to.
    pub fn place(&self, node: &Node) -> usize {
        let of_part = match node.part {
            // With everything on one device a token can go from sample to embedding without leaving it.
            Part::Embedding => usize::from(self.gpus == 1 && self.head() > 0),
            Part::Layer(il) => self.parts[il],
            Part::Head => self.head(),
        };
        if let Some(spec) = node.attention() {
            // Where the keys are, which may be those of an earlier layer.
            return if self.on_cpu[spec.layer] { 0 } else { self.parts[spec.layer] };
        }
        let (placed, gpu) = &*self.placed;
        let named = node.weights().into_iter().filter(|(_, usage)| *usage != WeightUse::Vector);
        let rule = named.filter_map(|(weight, _)| placed.rule(weight.0 as usize)).next();
        match (rule, &node.op) {
            (Some(rule), op) if !matches!(op, Op::Embed { .. }) => {
                if gpu[rule] {
                    of_part.max(1)
                } else {
                    0
                }
            }
            // Rows that an earlier run kept.
            (_, Op::Hidden) => self.places.hidden,
            // A table that may be larger than all other weights stays in the file.
            (_, Op::Embed { table, .. }) if self.stays_in_file(*table) => 0,
            _ => of_part,
        }
    }

    fn stays_in_file(&self, table: WeightId) -> bool {
        self.decoder.per_layer.as_ref().is_some_and(|all| all.table == table)
    }

    /// What a model for rows of texts has in place of an output matrix; `None` for one that continues texts.
    pub fn pooled(&self) -> Option<&Pooled> {
        self.decoder.pooled()
    }

    /// Whether rows see those after them, so that all of a text has to be in one pass.
    pub fn encodes(&self) -> bool {
        self.decoder.attentions().flatten().any(|spec| spec.bidirectional)
    }

    /// The shape of each layer's KV cache, one entry per layer; `None` where it uses an earlier layer's or has none.
    pub fn caches(&self) -> Vec<Option<LayerCache>> {
        // An encoder's text is in cells of its own.
        let of_text = |spec: &AttentionSpec| self.answers() && spec.bidirectional;
        let own = |spec: &AttentionSpec| {
            let table = if of_text(spec) { Table::Window } else { Table::All };
            LayerCache { table, ..LayerCache::new(spec.n_head_kv, spec.head_dim_k, spec.head_dim_v) }
        };
        let first = |(il, spec): (usize, Option<&AttentionSpec>)| {
            spec.filter(|spec| (spec.writes || of_text(spec)) && spec.layer == il).map(own)
        };
        self.decoder.attentions().enumerate().map(first).collect()
    }

    /// Whether an encoder reads the prompt, and a decoder answers it.
    pub fn answers(&self) -> bool {
        self.decoder.encoder.is_some()
    }

    /// Of each layer how many tokens the rows see that read its keys, their own included; `None` without a limit.
    pub fn reaches(&self) -> Vec<Option<usize>> {
        let mut reaches = vec![Some(0); self.hparams.n_layer];
        for spec in self.decoder.attentions().flatten() {
            let limits = [spec.window, spec.chunk].into_iter().filter(|&limit| limit > 0);
            let reach = &mut reaches[spec.layer];
            *reach = reach.zip(limits.min()).map(|(most, limit)| most.max(limit as usize));
        }
        reaches
    }

    /// Numbers of each state that layers keep of a sequence besides keys and values.
    pub fn states(&self) -> &[usize] {
        &self.decoder.states
    }

    /// Whether the model has learned an embedding for each position, so that keys cannot be moved to another.
    pub fn learns_positions(&self) -> bool {
        self.decoder.position_embd.is_some()
    }

    /// Bytes of weights, as in the file, that a device reads to decode one token: all that are multiplied or added
    /// there, of experts those that are used. Of a table that is only looked up one row is read, which is not counted.
    pub fn bytes_per_token(&self, device: usize) -> u64 {
        let uses = self.specs.iter().zip(&self.wanted[device].uses).zip(&self.read);
        let read = uses.filter(|((_, usage), _)| usage.is_some_and(|usage| usage != WeightUse::Rows));
        read.map(|((spec, _), &(used, of))| spec.bytes() / of as u64 * used as u64).sum()
    }

    /// Graph from tokens to kept hidden rows.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn body_graph(&self) -> Result<Graph> {
        self.decoder.body_graph(&self.specs)
    }

    /// Graph from a prompt's tokens to the keys and values that a decoder's layers have of it; `None` without an
    /// encoder that reads prompts.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn encode_graph(&self) -> Result<Option<Graph>> {
        self.decoder.encode_graph(&self.specs)
    }

    /// Graph from kept hidden rows to logits, or from kept rows of texts to what the model makes of them.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn head_graph(&self) -> Result<Graph> {
        self.decoder.head_graph(&self.specs, self.hparams.n_embd)
    }

    /// Graph from tokens to the logits of every token, for decode steps, or to what a model for texts makes of every
    /// row. The hidden rows are kept as well.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn decode_graph(&self) -> Result<Graph> {
        self.decoder.decode_graph(&self.specs)
    }

    /// Graph from tokens to the logits of the output rows: a pass of a walk through a trie.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn walk_graph(&self) -> Result<Graph> {
        self.decoder.walk_graph(&self.specs)
    }

    /// Graph from tokens to the embeddings that the first layer reads, as kept hidden rows.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn embedding_graph(&self) -> Result<Graph> {
        self.decoder.embedding_graph(&self.specs)
    }

    /// Of a draft model that reads another model's hidden rows: how many values these have.
    pub fn assists(&self) -> Option<usize> {
        match &self.decoder.reads {
            Some(Reads::Assistant(assistant)) => Some(assistant.width),
            _ => None,
        }
    }

    /// Graph of a draft model for a model: from a token's embedding and the hidden row after the token before, side by
    /// side as one kept row, to logits and a hidden row of the model's width. Each layer attends to what the last of
    /// the model's layers of its kind keeps, those with a window or those without.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the model does not have what a layer reads, [`Error::Model`] where the shapes
    /// do not fit.
    pub fn assistant_graph(&self, model: &Outline) -> Result<Graph> {
        let cannot = |why: String| Error::InvalidArgument(format!("a draft model of another model: {why}"));
        let (reads, has) = (self.assists().unwrap_or_default(), model.hparams.n_embd);
        if reads != has {
            return Err(cannot(format!("it reads hidden rows of {reads} values, the model's have {has}")));
        }
        let mut of = Vec::with_capacity(self.hparams.n_layer);
        for own in self.decoder.attentions().flatten() {
            let is_like = |spec: &&AttentionSpec| spec.writes && (spec.window > 0) == (own.window > 0);
            let Some(there) = model.decoder.attentions().flatten().filter(is_like).last() else {
                return Err(cannot(format!("the model has no layer whose keys its layer {} reads", own.layer)));
            };
            let shape = |spec: &AttentionSpec| (spec.n_head_kv, spec.head_dim_k, spec.head_dim_v);
            if shape(own) != shape(there) {
                let (layer, own, at, has) = (own.layer, shape(own), there.layer, shape(there));
                return Err(cannot(format!(
                    "its layer {layer} reads heads, keys and values of {own:?}, the model's layer {at} has {has:?}"
                )));
            }
            of.push(there.layer);
        }
        self.decoder.assistant_graph(&self.specs, &of)
    }

    /// Graph of the K-shift, see [`Op::ShiftKeys`].
    pub fn shift_graph(&self) -> Graph {
        self.decoder.shift_graph(&self.specs)
    }

    /// Graph that copies cells, see [`Op::CopyCells`].
    pub fn copy_graph(&self) -> Graph {
        self.decoder.copy_graph(&self.specs)
    }
}

/// The hyperparameters of the block that predicts further tokens, and what it has from the model; `None` where the file
/// has no such block.
fn nextn_of(hparams: &Hparams, decoder: &Decoder) -> Result<Option<(Hparams, Ends)>> {
    let Some(block) = hparams.of_nextn().filter(|_| matches!(decoder.head, Head::Logits(_))) else { return Ok(None) };
    if !nextn::KNOWN.contains(&&*hparams.architecture) {
        let (name, known) = (&hparams.architecture, nextn::KNOWN.join(", "));
        let problem = format!("Blocks of `{name}` that predict further tokens (those of {known} can draft)");
        return Err(Error::Unsupported(problem));
    }
    let Decoder { token_embd, output_norm, ref head, .. } = *decoder;
    Ok(Some((block, Ends { token_embd, output_norm, head: head.clone() })))
}

/// Of each weight how much of it a token reads: experts of all experts, nothing of another graph's.
fn weights_read(graph: &Graph, n_weights: usize) -> Vec<(usize, usize)> {
    let mut read = vec![(0, 1); n_weights];
    for weight in graph.ropes.iter().flat_map(RopeSpec::weights) {
        read[weight.0 as usize] = (1, 1);
    }
    for node in &graph.nodes {
        node.weights().into_iter().for_each(|(weight, _)| read[weight.0 as usize] = (1, 1));
        let stacks = match &node.op {
            Op::ExpertGate { gate, up, .. } => [gate].into_iter().chain(up).collect(),
            Op::ExpertDown { down, .. } => vec![down],
            _ => continue,
        };
        let used = node.src.get(1).map_or(0, |&route| graph.node(route).width / 2);
        for stack in stacks {
            read[stack.linear.weight.0 as usize] = (used, stack.experts);
        }
    }
    read
}

/// Of each layer whether a node that uses its cache is on the CPU.
fn caches_on_cpu(graph: &Graph, devices: &[usize], n_layer: usize) -> Vec<bool> {
    let mut on_cpu = vec![false; n_layer];
    let uses = graph.nodes.iter().zip(devices).filter_map(|(node, &device)| Some((node.attention()?, device)));
    uses.for_each(|(spec, device)| on_cpu[spec.layer] |= device == 0);
    on_cpu
}
