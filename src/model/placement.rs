//! Where a model's layers are to be, how they are divided between several GPUs, and rules that place single tensors:
//! `PATTERN=DEVICE`, as in "experts stay on the CPU and all else is on the GPU".

use crate::backend::{self, Backend};
use crate::gguf::shown;
use crate::graph::WeightSpec;
use crate::{Error, Result};
use regex_lite::Regex;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The placement of a model's layers on devices. Two placements of one file are two models.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Placement {
    /// Repeating layers on GPUs, counted from the end; 0 = CPU only, -1 = all.
    pub gpu_layers: i32,
    /// Device by name, or several, separated by semicolons; `None` = the best.
    pub device: Option<String>,
    /// How what is on GPUs is divided between several.
    pub tensor_split: TensorSplit,
    /// Tensors that are placed whatever their layer; the first rule that matches counts.
    pub tensor_devices: Vec<TensorDevice>,
    /// Whether the block that predicts further tokens is there too, where the file has one.
    pub nextn: bool,
}

impl Placement {
    /// On the CPU, or so many layers on the best GPU.
    pub fn layers(gpu_layers: i32) -> Placement {
        Placement { gpu_layers, ..Placement::default() }
    }

    /// The backends that it names.
    ///
    /// # Errors
    /// Those of [`backend::choose`], and [`Error::InvalidArgument`] for a split of nothing.
    pub fn backends(&self) -> Result<Vec<Arc<dyn Backend>>> {
        // A rule for the GPU asks for one as a layer does.
        let any = self.gpu_layers == 0 && self.tensor_devices.iter().any(|rule| rule.gpu);
        let gpu_layers = if any { 1 } else { self.gpu_layers };
        let shares = self.tensor_split.0.len();
        if gpu_layers == 0 && shares > 0 {
            let problem =
                format!("Split `{}` for tensors: with 0 GPU layers there is nothing to split", self.tensor_split);
            return Err(Error::InvalidArgument(problem));
        }
        backend::choose(gpu_layers, self.device.as_deref(), shares)
    }
}

/// The most GPUs that a model can be divided between.
const MOST_GPUS: usize = 16;

/// How the weights that are on GPUs are divided between several: the share of each GPU, relative to the others. Empty:
/// by their free memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TensorSplit(
    /// In thousandths.
    Vec<u32>,
);

impl FromStr for TensorSplit {
    type Err = Error;

    /// Numbers, separated by commas, of which up to three decimals count: `3,1` or `0.75,0.25`. An empty text is the
    /// default.
    fn from_str(text: &str) -> Result<TensorSplit> {
        const MOST: f64 = 1e6;
        let wrong = |why: &str| Error::InvalidArgument(format!("Split `{}` for tensors: {why}", shown(text)));
        if text.is_empty() {
            return Ok(TensorSplit::default());
        }
        if text.split(',').count() > MOST_GPUS {
            return Err(wrong(&format!("at most {MOST_GPUS} GPUs are possible")));
        }
        let share = |part: &str| {
            let share = part.trim().parse::<f64>().ok().filter(|share| (0.0..=MOST).contains(share));
            let share = share.map(|share| (share * 1e3).round() as u32);
            share.ok_or_else(|| wrong(&format!("`{}` is no share, a number from 0 to {MOST}", shown(part))))
        };
        let shares = text.split(',').map(share).collect::<Result<Vec<u32>>>()?;
        match shares.iter().any(|&share| share > 0) {
            true => Ok(TensorSplit(shares)),
            false => Err(wrong("no share is greater than 0")),
        }
    }
}

impl fmt::Display for TensorSplit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares: Vec<String> = self.0.iter().map(|&share| (f64::from(share) / 1e3).to_string()).collect();
        out.write_str(&shares.join(","))
    }
}

impl TensorSplit {
    /// The GPU, counted from 0, of each of the pieces in a row whose bytes these are. The GPUs' shares are those of the
    /// split, or else in the proportion of their `free` memory, or equal where that is unknown. A piece goes where its
    /// middle is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a split with other than a share for each of `free`.
    pub(super) fn divide(&self, free: &[Option<u64>], pieces: &[u64]) -> Result<Vec<usize>> {
        if !self.0.is_empty() && self.0.len() != free.len() {
            return Err(Error::InvalidArgument(format!("Split `{self}` for tensors: there are {} GPUs", free.len())));
        }
        let shares: Vec<f64> = match free.iter().copied().collect::<Option<Vec<u64>>>() {
            _ if !self.0.is_empty() => self.0.iter().map(|&share| f64::from(share)).collect(),
            Some(free) if free.iter().any(|&bytes| bytes > 0) => free.iter().map(|&bytes| bytes as f64).collect(),
            _ => vec![1.0; free.len()],
        };
        let (all, total) = (shares.iter().sum::<f64>(), pieces.iter().map(|&bytes| bytes as f64).sum::<f64>());
        let (mut gpu, mut end, mut before) = (0, shares[0], 0.0);
        let place = |&bytes: &u64| {
            let middle = (before + bytes as f64 / 2.0) * all;
            before += bytes as f64;
            while middle >= end * total && gpu + 1 < shares.len() {
                gpu += 1;
                end += shares[gpu];
            }
            gpu
        };
        Ok(pieces.iter().map(place).collect())
    }
}

/// The devices that a rule may name.
const NAMES: [&str; 2] = ["cpu", "gpu"];

/// Tensors whose names match a pattern are computed with on this device, whatever layer they belong to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorDevice {
    /// A regular expression that has to match some part of the name.
    pub pattern: String,
    /// On the GPU of its layer, or the first where that is on the CPU; else on the CPU.
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
    fn splits_are_read_and_written_and_refused() {
        for (text, written) in [("3,1", "3,1"), (" 0.75, 0.2504 ", "0.75,0.25"), ("0,24,12", "0,24,12"), ("", "")] {
            assert_eq!(text.parse::<TensorSplit>().unwrap().to_string(), written);
        }
        let many = ["1"; MOST_GPUS + 1].join(",");
        for (text, part) in [
            ("3;1", "`3;1`"),
            ("1,-1", "`-1`"),
            ("nan", "`nan`"),
            ("1,", "``"),
            ("0,0", "greater"),
            (&many, "at most 16"),
        ] {
            let error = text.parse::<TensorSplit>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let nothing = Placement { tensor_split: "1,1".parse().unwrap(), ..Placement::layers(0) }.backends();
        assert!(nothing.err().unwrap().to_string().contains("0 GPU layers"));
    }

    #[test]
    fn pieces_go_where_their_middle_is() {
        let split = |text: &str, free: &[Option<u64>], pieces: &[u64]| {
            text.parse::<TensorSplit>().unwrap().divide(free, pieces).unwrap()
        };
        let three = "1,1,1".parse::<TensorSplit>().unwrap().divide(&[None; 2], &[5; 3]).unwrap_err().to_string();
        assert!(three.contains("`1,1,1`") && three.contains("2 GPUs"), "{three}");
        let unknown = [None, Some(7)];
        assert_eq!(split("3,1", &unknown, &[5; 8]), [0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(split("0,1", &unknown, &[5; 3]), [1, 1, 1]);
        assert_eq!(split("1,0", &unknown, &[5; 3]), [0, 0, 0]);
        assert_eq!(split("1,0,1", &[None; 3], &[5; 4]), [0, 0, 2, 2]);
        assert_eq!(split("", &unknown, &[5; 4]), [0, 0, 1, 1]);
        assert_eq!(split("", &[Some(10), Some(30)], &[5; 4]), [0, 1, 1, 1]);
        assert_eq!(split("", &[Some(0), Some(0)], &[5; 2]), [0, 1]);
        // A large last piece, as a head with many rows is.
        assert_eq!(split("", &unknown, &[1, 1, 1, 1, 6]), [0, 0, 0, 0, 1]);
        assert_eq!(split("", &[None], &[5; 3]), [0, 0, 0]);
        assert_eq!(split("1,1", &unknown, &[]), [0; 0]);
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
