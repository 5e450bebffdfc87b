//! The sampling parameters that `generate` and `chat` take.

use elizainference::Token;
use elizainference::sampling::{Chain, ChainStep};
use elizainference::session::Params;

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
    #[arg(long, value_name = "X")]
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
    /// Tokens that --top-p and --min-p keep at least
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

impl Parameters {
    /// What is given over what is in force.
    pub fn over(&self, params: Params, seed: Option<u64>) -> Params {
        Params {
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
}
