//! What of a file this library does not know: for people who want to know why it does not load.

use super::weights::is_of_tower;
use super::{Outline, Placement, architectures};
use crate::backend;
use crate::gguf::{File, TensorInfo, shown};
use crate::quant::dequantize;
use crate::vocab::Vocab;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Architecture, tokenizer, types of weights, keys and tensors of a file that this library does not know, or cannot use
/// as they are; a phrase for each. Empty for a file that loads. The vocabulary is read for it, no weights are.
pub fn unknown(file: &File) -> Vec<String> {
    let mut unknown = Vec::new();
    let architecture = file.get::<String>("general.architecture").ok().flatten();
    let is_known = architecture.as_ref().is_some_and(|name| architectures().any(|known| known == name));
    match &architecture {
        None => unknown.push("architecture (no key `general.architecture`)".into()),
        Some(name) if !is_known => unknown.push(format!("architecture `{}`", shown(name))),
        Some(_) => {}
    }
    if let Err(error) = Vocab::from_gguf(file) {
        unknown.push(format!("tokenizer ({})", bare(error)));
    }
    let mut types: BTreeMap<String, usize> = BTreeMap::new();
    let undecodable = |info: &&TensorInfo| {
        let decodes = |ty| dequantize(ty, &[], &mut []).is_ok();
        !is_of_tower(&info.name) && !info.tensor_type().is_ok_and(decodes)
    };
    for info in file.tensors().iter().filter(undecodable) {
        let name = info.tensor_type().map_or_else(|_| format!("{}", info.type_id), |ty| ty.to_string());
        *types.entry(name).or_default() += 1;
    }
    unknown.extend(types.iter().map(|(name, tensors)| format!("type {name} ({tensors} tensors)")));
    // The rest is found by reading it, as far as the first thing that is wrong.
    if is_known && types.is_empty() {
        unknown.extend(outline(file).err().map(bare));
    }
    unknown
}

fn outline(file: &File) -> Result<Outline> {
    Outline::read(file, &backend::choose(0, Some("cpu"), 0)?, &Placement::default())
}

/// The text of an error without its kind.
fn bare(error: Error) -> String {
    match error {
        Error::Model(problem) | Error::Vocab(problem) | Error::Unsupported(problem) => problem,
        other => other.to_string(),
    }
}
