//! A model as far as its file's header describes it: sizes, weight table, graphs, placement on devices. No weights are
//! loaded, so memory is planned with an outline.

use super::decoder::Decoder;
use super::{ARCHITECTURES, Hparams, WeightTable, architectures};
use crate::backend::{Backend, Wanted};
use crate::gguf::{File, shown};
use crate::graph::{Graph, Node, Op, Output, Part, WeightSpec, WeightUse};
use crate::schedule::{self, assign};
use crate::{Error, Result};
use std::sync::Arc;

/// A model as far as its file's header describes it.
pub struct Outline {
    hparams: Hparams,
    specs: Vec<WeightSpec>,
    decoder: Decoder,
    gpu_layers: usize,
    wanted: Vec<Wanted>,
    places: Places,
}

/// The devices of what an engine keeps between runs: those where the parts were placed, except where a device has no
/// kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// The device that looks up the embedding.
    pub embedding: usize,
    /// The device that keeps the hidden rows.
    pub hidden: usize,
    /// The device that computes the logits.
    pub logits: usize,
    /// The device of each layer's KV cache, one per layer.
    pub caches: Vec<usize>,
}

impl Places {
    /// The places of a graph from tokens to logits, given the device of each node.
    fn of(graph: &Graph, devices: &[usize]) -> Places {
        let mut places = Places::default();
        for (node, &device) in graph.nodes.iter().zip(devices) {
            match (&node.op, node.output) {
                (Op::Embed { .. }, _) => places.embedding = device,
                (Op::Attention(_), _) => places.caches.push(device),
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
    /// are computed there; one more means the output head too, and the embedding with it; -1 means all.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown architecture or type, [`Error::Model`] naming the key or tensor at fault.
    pub fn read(file: &File, backends: &[Arc<dyn Backend>], gpu_layers: i32) -> Result<Outline> {
        let name: String = file.require("general.architecture")?;
        let Some((_, bind)) = ARCHITECTURES.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = architectures().collect();
            return Err(Error::Unsupported(format!("Architecture `{}` (known: {})", shown(&name), known.join(", "))));
        };
        let hparams = Hparams::read(file)?;
        let mut table = WeightTable::new(file);
        let decoder = bind(&hparams, &mut table)?;
        let specs = table.finish()?;
        let gpu_layers = usize::try_from(gpu_layers).unwrap_or(usize::MAX);
        let gpu_layers = if backends.len() > 1 { gpu_layers.min(hparams.n_layer + 1) } else { 0 };
        let (wanted, places) = (Vec::new(), Places::default());
        let mut outline = Outline { hparams, specs, decoder, gpu_layers, wanted, places };
        let graph = outline.decode_graph()?;
        let backends: Vec<_> = backends.iter().map(|b| &**b).collect();
        let devices = assign(&graph, &backends, &|node| outline.place(node), &outline.specs);
        outline.places = Places::of(&graph, &devices);
        outline.wanted = schedule::wanted(&graph, &devices, backends.len(), outline.specs.len());
        Ok(outline)
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

    /// Layers on the second device; the number of layers plus one means everything.
    pub fn gpu_layers(&self) -> usize {
        self.gpu_layers
    }

    /// The devices of what an engine keeps between runs.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The device that a node of this model's graphs should go to.
    pub fn place(&self, node: &Node) -> usize {
        let all = self.gpu_layers > self.hparams.n_layer;
        match (&node.op, node.part) {
            // Rows that an earlier run kept.
            (Op::Hidden, _) => self.places.hidden,
            // With everything on one device a token can go from sample to embedding without leaving it.
            (_, Part::Embedding | Part::Head) => usize::from(all),
            (_, Part::Layer(il)) => usize::from(il + self.gpu_layers >= self.hparams.n_layer),
        }
    }

    /// Bytes of weights, as in the file, that a device reads to decode one token: all that are multiplied or added
    /// there. Of a table that is only looked up one row is read, which is not counted.
    pub fn bytes_per_token(&self, device: usize) -> u64 {
        let read = |usage: &Option<WeightUse>| usage.is_some_and(|usage| usage != WeightUse::Rows);
        let specs = self.specs.iter().zip(&self.wanted[device].uses).filter(|(_, usage)| read(usage));
        let bytes = |spec: &WeightSpec| spec.ty.row_bytes(spec.n_in as u64).unwrap_or(0) * spec.n_out as u64;
        specs.map(|(spec, _)| bytes(spec)).sum()
    }

    /// Graph from tokens to kept hidden rows.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn body_graph(&self) -> Result<Graph> {
        self.decoder.body_graph(&self.specs)
    }

    /// Graph from kept hidden rows to logits.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn head_graph(&self) -> Result<Graph> {
        self.decoder.head_graph(&self.specs, self.hparams.n_embd)
    }

    /// Graph from tokens to the logits of every token, for decode steps. The hidden rows are kept as well.
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

    /// Graph of the K-shift, see [`Op::ShiftKeys`].
    pub fn shift_graph(&self) -> Graph {
        self.decoder.shift_graph(&self.specs)
    }

    /// Graph that copies cells, see [`Op::CopyCells`].
    pub fn copy_graph(&self) -> Graph {
        self.decoder.copy_graph(&self.specs)
    }
}
