//! The sampling parameters that `generate` and `chat` take.

use elizainference::Token;
use elizainference::sampling::{Chain, ChainStep, Dry, Generator, Mirostat, Sequence};
use elizainference::session::{Params, ReasoningBudget};

/// What the chain is made of where none is given. What is not given is the model's own default, else the library's.
#[derive(clap::Args)]
#[group(id = "parameters")]
pub struct Parameters {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, value_name = "T")]
    temp: Option<f32>,
    /// How far the temperature moves with how evenly the candidates are spread; 0 keeps it
    #[arg(long, value_name = "T")]
    dynatemp_range: Option<f32>,
    /// The power to which that spread is raised
    #[arg(long, value_name = "X", alias = "dynatemp-exp")]
    dynatemp_exponent: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    top_k: Option<i32>,
    /// Keep the likeliest tokens that make up this probability; 1 keeps all
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep tokens at least this likely compared with the likeliest; 0 keeps all
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Keep tokens whose logit is at most so many standard deviations below the greatest; 0 keeps all
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    top_nsigma: Option<f32>,
    /// Keep the tokens of the most typical surprise that make up this probability; 1 keeps all
    #[arg(long, value_name = "P")]
    typical: Option<f32>,
    /// Remove the likeliest tokens but one with this probability; 0 never does
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f32>,
    /// How likely a token is at least that is removed
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f32>,
    /// Tokens that --top-p, --min-p, --typical and --xtc-probability keep at least
    #[arg(long, value_name = "N")]
    min_keep: Option<u32>,
    /// Make recent tokens less likely by this factor; 1 does not
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// Make recent tokens less likely by so much for each time they occur
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Make recent tokens less likely by so much once
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// The window of the three penalties in tokens: 64 unless the file has another default
    #[arg(long, value_name = "N")]
    repeat_last_n: Option<u32>,
    /// Make a token that prolongs a repetition less likely by so much (DRY); 0 does not
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    dry_multiplier: Option<f32>,
    /// By which factor more for each token that the repetition is longer
    #[arg(long, value_name = "X")]
    dry_base: Option<f32>,
    /// How long a repetition is from which on this counts, in tokens
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    dry_allowed_length: Option<i32>,
    /// The window in which repetitions are looked for, in tokens
    #[arg(long, value_name = "N")]
    dry_penalty_last_n: Option<u32>,
    /// A text at which a repetition ends, in place of a line feed, `:`, `"` and `*`; \n and \xHH are known, `none` is
    /// no text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = Dry::breaker)]
    dry_sequence_breaker: Vec<String>,
    /// Mirostat 1 or 2 in place of the samplers but the temperature; 0 is none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=2))]
    mirostat: Option<u32>,
    /// How far mirostat moves with every token
    #[arg(long, value_name = "X")]
    mirostat_lr: Option<f32>,
    /// The surprise of a token that mirostat aims at, in bits
    #[arg(long, value_name = "X")]
    mirostat_ent: Option<f32>,
    /// Draw near this probability; below 0 does not
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    adaptive_target: Option<f32>,
    /// How much of its mean that keeps with every token
    #[arg(long, value_name = "P")]
    adaptive_decay: Option<f32>,
    /// The samplers and their order: names joined by `;`
    #[arg(long, value_name = "NAMES")]
    samplers: Option<Sequence>,
    /// The same, with a letter for each, such as edskypmxt
    #[arg(long, value_name = "LETTERS", value_parser = Sequence::of_letters, conflicts_with = "samplers")]
    sampler_seq: Option<Sequence>,
    /// The generator of the draws: counter, or mt19937 for the tokens of llama.cpp
    #[arg(long, value_name = "NAME", value_parser = generator)]
    rng: Option<Generator>,
    /// Make a token likelier, or with -inf impossible: ID:VALUE, and more after commas; may be given several times
    #[arg(long, value_name = "ID:VALUE", value_parser = logit_bias)]
    logit_bias: Vec<Biases>,
}

/// Numbers added to logits.
type Biases = Vec<(Token, f32)>;

/// As in a chain.
fn logit_bias(text: &str) -> Result<Biases, String> {
    let chain: Chain =
        format!("logit_bias={text}").parse().map_err(|error: elizainference::Error| error.to_string())?;
    match &chain.steps[..] {
        [ChainStep::LogitBias(biases)] => Ok(biases.clone()),
        _ => Err("of the form ID:VALUE,ID:VALUE".into()),
    }
}

/// As in a chain.
fn generator(text: &str) -> Result<Generator, String> {
    match ChainStep::parse(&format!("rng={text}"))? {
        ChainStep::Rng(generator) => Ok(generator),
        _ => Err("counter or mt19937".into()),
    }
}

/// How long the model may think.
#[derive(clap::Args)]
pub struct Thinking {
    /// The most tokens that the model thinks, in each block; then the end is forced
    #[arg(long, value_name = "N")]
    reasoning_budget: Option<u32>,
    /// The text with which thinking begins
    #[arg(long, value_name = "TEXT", default_value = "<think>", requires = "reasoning_budget")]
    reasoning_start: String,
    /// The text with which it ends, with what is to be said before it
    #[arg(long, value_name = "TEXT", default_value = "</think>", requires = "reasoning_budget")]
    reasoning_end: String,
}

impl Thinking {
    /// The budget, where one is given.
    pub fn budget(&self) -> Option<ReasoningBudget> {
        let of =
            |tokens| ReasoningBudget { tokens, start: self.reasoning_start.clone(), end: self.reasoning_end.clone() };
        self.reasoning_budget.map(of)
    }
}

impl Parameters {
    /// What is given over what is in force.
    pub fn over(&self, params: Params, seed: Option<u64>) -> Params {
        let sequence = self.samplers.clone().or(self.sampler_seq.clone());
        Params {
            generator: self.rng.unwrap_or(params.generator),
            sequence: sequence.unwrap_or(params.sequence),
            top_n_sigma: self.top_nsigma.unwrap_or(params.top_n_sigma),
            typical_p: self.typical.unwrap_or(params.typical_p),
            xtc_probability: self.xtc_probability.unwrap_or(params.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(params.xtc_threshold),
            dry: self.dry_over(params.dry),
            mirostat: self.mirostat.and_then(Mirostat::of).unwrap_or(params.mirostat),
            mirostat_tau: self.mirostat_ent.unwrap_or(params.mirostat_tau),
            mirostat_eta: self.mirostat_lr.unwrap_or(params.mirostat_eta),
            adaptive_target: self.adaptive_target.unwrap_or(params.adaptive_target),
            adaptive_decay: self.adaptive_decay.unwrap_or(params.adaptive_decay),
            seed: seed.or(params.seed),
            logit_bias: self.logit_bias.concat(),
            repeat_last_n: self.repeat_last_n.map_or(params.repeat_last_n, |n| i32::try_from(n).unwrap_or(i32::MAX)),
            repeat_penalty: self.repeat_penalty.unwrap_or(params.repeat_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(params.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(params.presence_penalty),
            top_k: self.top_k.unwrap_or(params.top_k),
            top_p: self.top_p.unwrap_or(params.top_p),
            min_p: self.min_p.unwrap_or(params.min_p),
            min_keep: self.min_keep.unwrap_or(params.min_keep),
            temperature: self.temp.unwrap_or(params.temperature),
            dynatemp_range: self.dynatemp_range.unwrap_or(params.dynatemp_range),
            dynatemp_exponent: self.dynatemp_exponent.unwrap_or(params.dynatemp_exponent),
        }
    }

    fn dry_over(&self, dry: Dry) -> Dry {
        let window = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        Dry {
            multiplier: self.dry_multiplier.unwrap_or(dry.multiplier),
            base: self.dry_base.unwrap_or(dry.base),
            allowed_length: self.dry_allowed_length.unwrap_or(dry.allowed_length),
            last_n: self.dry_penalty_last_n.map_or(dry.last_n, window),
            breakers: dry.breakers,
        }
        .with(&self.dry_sequence_breaker)
    }
}
