//! One server: what it is, and what is asked of it.

use super::address::Address;
use super::answer::Answer;
use super::client::Client;
use super::dialect::{self, Bias, Dialect, Knob, Spelling};
use super::{Facts, RemoteOptions, trie_grammar};
use crate::backend::ChainStep;
use crate::gguf::shown;
use crate::trie::{Node, Trie};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Texts that vocabularies of different models rarely tokenize alike.
const SAMPLES: [&str; 2] = [
    "Hello, world! 1234567 12.5% don't `fn main() {}`\n\n\ttabs  and   spaces",
    "Größe naïve — Ελλάδα Москва 日本語 한국어 😀 https://example.com/a_b?c=1",
];

/// What an answer goes on from.
#[derive(Debug, Clone, Copy)]
pub enum Prompt<'a> {
    /// Tokens of the server's vocabulary; the answer is told in such, too.
    Tokens(&'a [Token]),
    /// A text, which the server tokenizes; the answer is told as text.
    Text(&'a str),
}

/// What an answer is held to.
#[derive(Debug, Clone, Copy)]
pub enum Hold<'a> {
    /// Nothing.
    Nothing,
    /// The paths of a trie from this node on.
    Trie(&'a Trie, Node),
    /// A grammar in GBNF whose first rule is the root, with tokens as [`Server::spelling`] writes them.
    Grammar(&'a str),
    /// One of these texts, in any tokens.
    Texts(&'a [String]),
}

/// What is asked for.
#[derive(Debug)]
pub struct Request<'a> {
    /// The prompt.
    pub prompt: Prompt<'a>,
    /// The most tokens of the answer, at least 1.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub chain: &'a [ChainStep],
    /// In the place of the chain the likeliest token is taken.
    pub greedy: bool,
    /// The seed, which the server's generator takes in its own way.
    pub seed: u64,
    /// What the answer is held to.
    pub hold: Hold<'a>,
    /// Tokens that must not come.
    pub without: &'a [Token],
    /// Whether the answer must not end before its limit.
    pub ignore_eos: bool,
}

/// A server and its model.
#[derive(Debug)]
pub struct Server {
    client: Arc<Client>,
    facts: Facts,
}

impl Server {
    /// Connects to the server at an address, and asks it for its models.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an address or a key that cannot be used; [`Error::Io`] for certificates that
    /// cannot be read; [`Error::Remote`] where no server answers, it refuses, or has no such model.
    pub fn connect(path: &Path, options: RemoteOptions) -> Result<Server> {
        let client = Client::new(Address::parse(path)?, options)?;
        let (address, dialect) = (client.address(), client.address().dialect);
        let models = client.get("/v1/models")?;
        let models: Vec<&Value> = models.pointer("/data").and_then(Value::as_array).into_iter().flatten().collect();
        let name = |model: &Value| model.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let chosen = match &address.model {
            Some(wanted) => models.iter().find(|model| name(model) == *wanted),
            None => models.first(),
        };
        let Some(&model) = chosen else {
            let known: Vec<String> = models.iter().map(|model| shown(&name(model))).collect();
            let wanted = address.model.as_deref().map_or(String::new(), |model| format!(" \"{}\"", shown(model)));
            return Err(client
                .errors()
                .problem(format!("the server has no model{wanted}; it has: {}", known.join(", "))));
        };
        let mut known = vec![("/v1/models", model.clone())];
        let mut find = |places: &[(&'static str, &str)]| {
            places.iter().find_map(|&(path, place)| {
                if !known.iter().any(|(seen, _)| *seen == path) {
                    // Some servers, and what stands before them, hide these.
                    let answer = client.get(path).inspect_err(|error| log::debug!("{error}"));
                    known.push((path, answer.unwrap_or_default()));
                }
                let (_, answer) = known.iter().find(|(seen, _)| *seen == path)?;
                answer.pointer(place).filter(|value| !value.is_null()).cloned()
            })
        };
        let number = |value: Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        let facts = Facts {
            model: name(model),
            address: address.shown.clone(),
            version: find(dialect.version).and_then(|value| value.as_str().map(shown)),
            context: find(dialect.context).and_then(number),
            n_vocab: find(dialect.n_vocab).and_then(number),
        };
        Ok(Server { client: Arc::new(client), facts })
    }

    /// What the server says of itself.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How many requests were sent, repeated ones included.
    pub fn requests(&self) -> u64 {
        self.client.requests()
    }

    /// From now on this flag ends requests; returns the one before.
    pub fn watch(&self, flag: &Arc<AtomicBool>) -> Arc<AtomicBool> {
        self.client.watch(flag)
    }

    /// An error of this server.
    pub fn problem(&self, problem: impl AsRef<str>) -> Error {
        self.client.errors().problem(problem)
    }

    /// How its grammars write a token; `None` where it holds answers to no tries and grammars.
    pub fn spelling(&self) -> Option<Spelling> {
        self.dialect().grammar.map(|(_, spell)| spell)
    }

    /// Whether answers to prompts of tokens are told in tokens, not as text alone.
    pub fn tells_tokens(&self) -> bool {
        self.dialect().event.tokens.is_some()
    }

    /// Whether this kind of server has a sampler.
    pub fn has(&self, knob: Knob) -> bool {
        self.dialect().samplers.iter().any(|(one, ..)| *one == knob)
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn dialect(&self) -> &'static Dialect {
        self.client.address().dialect
    }

    /// Compares the server's vocabulary with that of the file `name`: its size, and how it tokenizes texts.
    ///
    /// # Errors
    /// [`Error::Remote`] where they are not the same; [`Error::Cancelled`].
    pub fn check_vocab(&self, vocab: &Vocab, name: &Path) -> Result<()> {
        let other = |problem: String| {
            self.problem(format!("the vocabulary of {} is not that of the server: {problem}", name.display()))
        };
        let ours = vocab.n_tokens();
        if let Some(n) = self.facts.n_vocab
            && n < ours
        {
            return Err(other(format!("it has {n} tokens there and {ours} here")));
        }
        for text in SAMPLES {
            let here = vocab.tokenize(text.as_bytes(), false, true)?;
            match self.tokenize(text) {
                Ok(None) => {}
                Ok(Some(there)) if there == here => {}
                Ok(Some(there)) => return Err(other(format!("{text:?} is {there:?} there and {here:?} here"))),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => {
                    log::warn!("Whether the vocabularies are the same was not checked: {error}");
                    break;
                }
            }
        }
        Ok(())
    }

    /// The tokens of a text without special tokens at its ends; `None` where the server does not tokenize.
    fn tokenize(&self, text: &str) -> Result<Option<Vec<Token>>> {
        let Some(place) = &self.dialect().tokenize else { return Ok(None) };
        let mut body = self.body();
        body[place.text] = json!(text);
        body[place.add_special] = json!(false);
        let answer = self.client.post(place.path, &body)?;
        let ids = answer.get("tokens").and_then(Value::as_array);
        let ids = ids.ok_or_else(|| self.problem(format!("{} was answered without tokens", place.path)))?;
        Ok(Some(ids.iter().filter_map(Value::as_i64).filter_map(|id| id.try_into().ok()).collect()))
    }

    /// A request's body with the model.
    pub(super) fn body(&self) -> Value {
        json!({ "model": self.facts.model })
    }

    /// Begins a completion.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming what this kind of server does not have; [`Error::Remote`]; [`Error::Cancelled`].
    pub fn complete(&self, request: &Request<'_>) -> Result<Answer> {
        let dialect = self.dialect();
        let mut body = self.body();
        let (as_text, length) = match request.prompt {
            Prompt::Tokens(tokens) => {
                dialect::set(&mut body, dialect.prompt, json!(tokens));
                (false, tokens.len())
            }
            Prompt::Text(text) => {
                dialect::set(&mut body, dialect.text_prompt, json!(text));
                (true, text.len())
            }
        };
        if request.ignore_eos {
            let field = dialect.ignore_eos.ok_or_else(|| self.missing("way to ignore the end of an answer"))?;
            dialect::set(&mut body, field, json!(true));
        }
        dialect::set(&mut body, dialect.max_tokens, json!(request.max_tokens));
        for field in dialect.always {
            dialect::set(&mut body, field, json!(true));
        }
        let (field, most) = dialect.seed;
        dialect::set(&mut body, field, json!(request.seed % most));
        self.set_chain(&mut body, request)?;
        self.set_hold(&mut body, request.hold)?;
        let unit = if as_text { "bytes" } else { "tokens" };
        log::debug!("{}: {length} {unit} of prompt, up to {} tokens", self.facts.address, request.max_tokens);
        Ok(Answer::new(self.client.clone(), self.client.events(dialect.generate, &body)?, as_text))
    }

    /// Lets the server read a prompt, which it may keep for what follows.
    ///
    /// # Errors
    /// As [`Server::complete`].
    pub fn warm(&self, prompt: Prompt<'_>) -> Result<()> {
        let request = Request {
            prompt,
            max_tokens: 1,
            chain: &[],
            greedy: true,
            seed: 0,
            hold: Hold::Nothing,
            without: &[],
            ignore_eos: false,
        };
        self.complete(&request)?.part().map(drop)
    }

    /// The rows of texts, as the server pools them.
    ///
    /// # Errors
    /// As [`Server::complete`].
    pub fn embed(&self, texts: &[Prompt<'_>], dimensions: usize) -> Result<Vec<Vec<f32>>> {
        let input = |text: &Prompt<'_>| match text {
            Prompt::Tokens(tokens) => json!(tokens),
            Prompt::Text(text) => json!(text),
        };
        let mut body = self.body();
        body["input"] = texts.iter().map(input).collect();
        body["encoding_format"] = json!("float");
        if dimensions > 0 {
            body["dimensions"] = json!(dimensions);
        }
        let answer = self.client.post("/v1/embeddings", &body)?;
        let data = answer.get("data").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut rows = vec![Vec::new(); texts.len()];
        for (place, one) in data.iter().enumerate() {
            let index = one.get("index").and_then(Value::as_u64).map_or(place, |index| index as usize);
            let numbers = one.get("embedding").and_then(Value::as_array);
            if let (Some(row), Some(numbers)) = (rows.get_mut(index), numbers) {
                *row = numbers.iter().filter_map(Value::as_f64).map(|number| number as f32).collect();
            }
        }
        let width = rows.first().map_or(0, Vec::len);
        match rows.iter().all(|row| !row.is_empty() && row.len() == width) {
            true => Ok(rows),
            false => Err(self.problem(format!("{} texts, and not a row of numbers for each", texts.len()))),
        }
    }

    fn missing(&self, what: &str) -> Error {
        Error::Unsupported(format!("{}: this kind of server has no {what}", self.facts.address))
    }

    fn set_chain(&self, body: &mut Value, request: &Request<'_>) -> Result<()> {
        let dialect = self.dialect();
        let mut knobs: Vec<(Knob, &str, f64)> = dialect.samplers.to_vec();
        let mut bias: Vec<(Token, f32)> = Vec::new();
        let mut turn = |knob: Knob, value: f64, name: &str| match knobs.iter_mut().find(|(one, ..)| *one == knob) {
            Some((.., place)) => {
                *place = value;
                Ok(())
            }
            None => Err(self.missing(name)),
        };
        let takes_likeliest = |step: &ChainStep| match *step {
            ChainStep::Temperature(t) => t <= 0.0,
            ref step => *step == ChainStep::Greedy,
        };
        let greedy = request.greedy || request.chain.iter().any(takes_likeliest);
        // What removes less likely tokens changes nothing where the likeliest is taken.
        for step in request.chain.iter().filter(|step| !(greedy && step.truncates())) {
            match *step {
                ChainStep::Ban(ref tokens) => bias.extend(tokens.iter().map(|&token| (token, f32::NEG_INFINITY))),
                ChainStep::LogitBias(ref pairs) => bias.extend_from_slice(pairs),
                ChainStep::Penalties { last_n, repeat, frequency, presence } => {
                    if last_n > 0 {
                        // Where the server has no window, its penalties see the whole text.
                        let _ = turn(Knob::RepeatLastN, last_n.into(), "");
                        for (knob, value, off, name) in [
                            (Knob::Repeat, repeat, 1.0, "repeat penalty"),
                            (Knob::Frequency, frequency, 0.0, "frequency penalty"),
                            (Knob::Presence, presence, 0.0, "presence penalty"),
                        ] {
                            if value != off {
                                turn(knob, value.into(), name)?;
                            }
                        }
                    }
                }
                ChainStep::TopK(k) if k <= 0 => {}
                ChainStep::TopK(k) => turn(Knob::TopK, k.into(), "top_k")?,
                ChainStep::TopP { p, .. } if p >= 1.0 => {}
                ChainStep::TopP { p, min_keep: 0 | 1 } => turn(Knob::TopP, p.into(), "top_p")?,
                ChainStep::MinP { p, .. } if p <= 0.0 => {}
                ChainStep::MinP { p, min_keep: 0 | 1 } => turn(Knob::MinP, p.into(), "min_p")?,
                ChainStep::Typical { p, .. } if p >= 1.0 => {}
                ChainStep::Typical { p, min_keep: 0 | 1 } => turn(Knob::TypicalP, p.into(), "typical_p")?,
                ChainStep::TopNSigma(n) if n <= 0.0 => {}
                ChainStep::TopNSigma(n) => turn(Knob::TopNSigma, n.into(), "top_n_sigma")?,
                ChainStep::Temperature(t) => turn(Knob::Temperature, t.max(0.0).into(), "temperature")?,
                ChainStep::Greedy => turn(Knob::Temperature, 0.0, "temperature")?,
                ChainStep::Draw | ChainStep::Trie => {}
                ref other => return Err(self.missing(&format!("`{other}`"))),
            }
        }
        if greedy {
            turn(Knob::Temperature, 0.0, "temperature")?;
        }
        for (knob, field, value) in knobs {
            let whole = matches!(knob, Knob::TopK | Knob::RepeatLastN);
            dialect::set(body, field, if whole { json!(value as i64) } else { json!(value) });
        }
        bias.extend(request.without.iter().map(|&token| (token, f32::NEG_INFINITY)));
        if !bias.is_empty() {
            dialect::set(body, dialect.bias.0, biases(dialect.bias.1, &bias));
        }
        Ok(())
    }

    fn set_hold(&self, body: &mut Value, hold: Hold<'_>) -> Result<()> {
        let grammar = self.dialect().grammar;
        let none = || {
            let problem = "this kind of server holds no answer to a trie or a grammar";
            Error::Unsupported(format!("{}: {problem}", self.facts.address))
        };
        match hold {
            Hold::Nothing => {}
            Hold::Trie(trie, from) => {
                let (field, spell) = grammar.ok_or_else(none)?;
                dialect::set(body, field, json!(trie_grammar::of(trie, from, spell)));
            }
            Hold::Texts(texts) => {
                let (field, _) = grammar.ok_or_else(none)?;
                dialect::set(body, field, json!(trie_grammar::of_texts(texts)));
            }
            Hold::Grammar(gbnf) => {
                let (field, _) = grammar.ok_or_else(none)?;
                dialect::set(body, field, json!(gbnf));
            }
        }
        Ok(())
    }
}

/// Added logits as a dialect writes them. A logit of -100 is as good as none where there is no way to say none.
fn biases(way: Bias, bias: &[(Token, f32)]) -> Value {
    match way {
        Bias::Map => {
            let mut map = Map::new();
            for &(token, value) in bias {
                let before = map.get(&token.to_string()).and_then(Value::as_f64).unwrap_or(0.0);
                map.insert(token.to_string(), json!((before + f64::from(value)).clamp(-100.0, 100.0)));
            }
            Value::Object(map)
        }
        Bias::Pairs => {
            let pair = |&(token, value): &(Token, f32)| match value == f32::NEG_INFINITY {
                true => json!([token, false]),
                false => json!([token, value]),
            };
            bias.iter().map(pair).collect()
        }
    }
}
