//! Where a model's layers are to be, and rules that place single tensors: `PATTERN=DEVICE`, as in "experts stay on the
//! CPU and all else is on the GPU".

use crate::backend::{self, Backend};
use crate::graph::WeightSpec;
use crate::{Error, Result};
use regex_lite::Regex;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The placement of a model's layers on devices. Two placements of one file are two models.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Placement {
    /// Repeating layers on the GPU, counted from the end; 0 = CPU only, -1 = all.
    pub gpu_layers: i32,
    /// Device by name; `None` = the best.
    pub device: Option<String>,
    /// Tensors that are placed whatever their layer; the first rule that matches counts.
    pub tensor_devices: Vec<TensorDevice>,
}

impl Placement {
    /// On the CPU, or so many layers on the best GPU.
    pub fn layers(gpu_layers: i32) -> Placement {
        Placement { gpu_layers, ..Placement::default() }
    }

    /// The backends that it names.
    ///
    /// # Errors
    /// Those of [`backend::choose`].
    pub fn backends(&self) -> Result<Vec<Arc<dyn Backend>>> {
        // A rule for the GPU asks for one as a layer does.
        let any = self.gpu_layers == 0 && self.tensor_devices.iter().any(|rule| rule.gpu);
        backend::choose(if any { 1 } else { self.gpu_layers }, self.device.as_deref())
    }
}

/// The devices that a rule may name.
const NAMES: [&str; 2] = ["cpu", "gpu"];

/// Tensors whose names match a pattern are computed with on this device, whatever layer they belong to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorDevice {
    /// A regular expression that has to match some part of the name.
    pub pattern: String,
    /// On the GPU; else on the CPU.
    pub gpu: bool,
}

impl FromStr for TensorDevice {
    type Err = Error;

    /// Of the form `PATTERN=DEVICE`; the last `=` counts.
    fn from_str(text: &str) -> Result<TensorDevice> {
        let wrong = |why: &str| Error::InvalidArgument(format!("Rule `{text}` for tensors: {why}"));
        let (pattern, device) = text.rsplit_once('=').ok_or_else(|| wrong("PATTERN=DEVICE is needed"))?;
        if pattern.is_empty() {
            return Err(wrong("the pattern is empty"));
        }
        Regex::new(pattern).map_err(|error| wrong(&error.to_string()))?;
        match NAMES.iter().position(|name| name.eq_ignore_ascii_case(device)) {
            Some(at) => Ok(TensorDevice { pattern: pattern.into(), gpu: at == 1 }),
            None => Err(wrong(&format!("the device is `{device}`, `cpu` or `gpu` is needed"))),
        }
    }
}

impl fmt::Display for TensorDevice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.pattern, NAMES[usize::from(self.gpu)])
    }
}

impl TensorDevice {
    /// Several rules, separated by semicolons.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the rule that cannot be read.
    pub fn list(text: &str) -> Result<Vec<TensorDevice>> {
        text.split(';').filter(|rule| !rule.is_empty()).map(str::parse).collect()
    }
}

/// What the rules mean for the tensors of a file.
#[derive(Debug, Default)]
pub struct Placed {
    /// Of each weight the rule that it follows, the first that matches.
    rules: Vec<Option<usize>>,
}

impl Placed {
    /// Follow `rules`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a pattern that cannot be read, and for one that no tensor matches.
    pub fn of(rules: &[TensorDevice], specs: &[WeightSpec]) -> Result<Placed> {
        let mut placed = Placed { rules: vec![None; specs.len()] };
        for (i, rule) in rules.iter().enumerate() {
            let wrong = |why: String| Error::InvalidArgument(format!("Rule `{rule}` for tensors: {why}"));
            let pattern = Regex::new(&rule.pattern).map_err(|error| wrong(error.to_string()))?;
            let mut any = false;
            for (spec, follows) in specs.iter().zip(&mut placed.rules) {
                let matches = pattern.is_match(&spec.name);
                any |= matches;
                if matches && follows.is_none() {
                    *follows = Some(i);
                }
            }
            if !any {
                return Err(wrong("the model has no tensor of such a name".into()));
            }
        }
        Ok(placed)
    }

    /// The rule that a weight follows.
    pub fn rule(&self, weight: usize) -> Option<usize> {
        self.rules.get(weight).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::WeightUse;
    use crate::quant::TensorType;

    #[test]
    fn rules_are_read_and_written_and_refused() {
        let rules = TensorDevice::list(r"ffn_.*_exps=CPU;^blk\.[0-3]\.=gpu").unwrap();
        assert_eq!(rules[1], TensorDevice { pattern: r"^blk\.[0-3]\.".into(), gpu: true });
        assert_eq!(rules[0].to_string(), "ffn_.*_exps=cpu");
        assert_eq!("a=b=gpu".parse::<TensorDevice>().unwrap().pattern, "a=b");
        assert!(TensorDevice::list("").unwrap().is_empty());
        for (text, part) in [("exps", "PATTERN=DEVICE"), ("=cpu", "empty"), ("x=tpu", "`tpu`"), ("(=cpu", "`(=cpu`")] {
            let error = text.parse::<TensorDevice>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_counts() {
        let spec = |name: &str| WeightSpec {
            name: name.into(),
            n_in: 1,
            n_out: 1,
            first_row: 0,
            ty: TensorType::F32,
            usage: WeightUse::MatMul,
        };
        let specs = ["blk.0.ffn_up_exps.weight", "blk.0.ffn_up.weight", "output.weight"].map(spec);
        let placed = Placed::of(&TensorDevice::list("exps=cpu;ffn=gpu").unwrap(), &specs).unwrap();
        assert_eq!([0, 1, 2].map(|i| placed.rule(i)), [Some(0), Some(1), None]);
        let error = Placed::of(&TensorDevice::list("ffn=gpu;experts=cpu").unwrap(), &specs).unwrap_err();
        assert!(error.to_string().contains("`experts=cpu`"), "{error}");
    }
}
