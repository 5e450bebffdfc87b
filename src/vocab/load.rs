//! Reading a vocabulary from a model file.

use super::bpe::Bpe;
use super::pace::Pace;
use super::parts::Parts;
use super::pre::{self, Known, Pre, Writing};
use super::special::{self, SpecialTokens};
use super::spelling::Spelling;
use super::spm::Spm;
use super::texts::{BLOCK, Texts};
use super::{Model, Vocab, VocabKind};
use crate::gguf::{File, shown};
use crate::{Error, Result, Token, reserve};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// The most bytes of a token's text; the longest tokens of usual vocabularies have some hundred bytes.
const MAX_TOKEN_BYTES: usize = 64 << 10;

fn broken(key: &str, problem: impl std::fmt::Display) -> Error {
    Error::Vocab(format!("Key `{key}`: {problem}"))
}

impl Vocab {
    /// Read the vocabulary of a model file.
    ///
    /// # Errors
    /// [`Error::Vocab`] naming the key at fault, [`Error::Unsupported`] for a kind of vocabulary that is not done.
    pub fn from_gguf(file: &File) -> Result<Vocab> {
        let model: String = file.get(MODEL)?.ok_or_else(|| broken(MODEL, "it is missing"))?;
        let ids = |bos, eos, unk| SpecialTokens { bos, eos, unk, ..SpecialTokens::default() };
        match model.as_str() {
            "none" | "no_vocab" => without_texts(file),
            "llama" => spm(file, ids(Some(1), Some(2), Some(0))),
            "gpt2" => bpe(file, find_pre(file)?, ids(Some(11), Some(11), None)),
            "gemma4" => bpe(file, known_pre("gemma4")?, ids(None, None, None)),
            "bert" | "t5" | "rwkv" | "plamo2" | "hybriddna" | "whitespace" => {
                Err(Error::Unsupported(format!("Vocabularies of the kind `{model}` (key `{MODEL}`)")))
            }
            _ => Err(broken(MODEL, format_args!("unknown kind of vocabulary `{}`", shown(&model)))),
        }
    }
}

/// A model that works on ids alone.
fn without_texts(file: &File) -> Result<Vocab> {
    let architecture: String = file.get("general.architecture")?.unwrap_or_default();
    let n_tokens: u32 = file.get(&format!("{architecture}.vocab_size"))?.unwrap_or(0);
    Ok(Vocab {
        kind: VocabKind::None,
        n_tokens: n_tokens as usize,
        texts: Texts::default(),
        attributes: Vec::new(),
        model: Model::None,
        spelling: Spelling::Escaped,
        special: SpecialTokens::default(),
        eog: Vec::new(),
        suppressed: Vec::new(),
        add_space_prefix: false,
        add_bos: false,
        add_eos: false,
        clean_spaces: false,
        parts: Parts::new(&Texts::default(), &[])?,
        max_piece: 0,
    })
}

fn find_pre(file: &File) -> Result<&'static Pre> {
    match file.get::<String>(PRE)? {
        Some(name) if !name.is_empty() => known_pre(&name),
        _ => {
            log::warn!("key `{PRE}` is missing; texts are cut by the default rules, which few models were made with");
            known_pre("default")
        }
    }
}

fn known_pre(name: &str) -> Result<&'static Pre> {
    match pre::find(name) {
        Known::Done(pre) => Ok(pre),
        Known::NotDone => Err(Error::Unsupported(format!("Pre-tokenizer `{name}` (key `{PRE}`)"))),
        Known::Unknown => Err(broken(PRE, format_args!("unknown pre-tokenizer `{}`", shown(name)))),
    }
}

fn read_texts(file: &File) -> Result<Texts> {
    let tokens = file.byte_strings(TOKENS)?.ok_or_else(|| broken(TOKENS, "it is missing"))?;
    let bytes: usize = tokens.iter().map(|t| t.len()).sum();
    if bytes > u32::MAX as usize / 4 || tokens.len() > Token::MAX as usize {
        return Err(broken(TOKENS, format_args!("{} tokens of {bytes} bytes are too many", tokens.len())));
    }
    if let Some(i) = tokens.iter().position(|text| text.len() > MAX_TOKEN_BYTES) {
        let problem = format!("entry {i} has {} bytes; a token has {MAX_TOKEN_BYTES} at most", tokens[i].len());
        return Err(broken(TOKENS, problem));
    }
    let mut texts = Texts::with_capacity(tokens.len(), bytes)?;
    for (block, tokens) in tokens.chunks(BLOCK).enumerate() {
        let first = block * BLOCK;
        let stand_ins: [_; BLOCK] = std::array::from_fn(|i| match tokens.get(i) {
            Some([]) => format!("[EMPTY_{}]", first + i),
            _ => String::new(),
        });
        let text = |i: usize| match tokens.get(i).copied().unwrap_or_default() {
            [] => stand_ins[i].as_bytes(),
            text => text,
        };
        // Begin all look-ups of a block before the first one is needed.
        let places: [_; BLOCK] = std::array::from_fn(|i| texts.place(text(i)));
        for (i, place) in places.into_iter().enumerate().take(tokens.len()) {
            let id = texts.find_or_insert_at(place, text(i))?;
            if id as usize != first + i {
                let (entry, text) = (first + i, String::from_utf8_lossy(text(i)));
                return Err(broken(TOKENS, format_args!("entry {entry} (`{}`) repeats entry {id}", shown(&text))));
            }
        }
    }
    Ok(texts)
}

fn check_length(key: &str, found: usize, n_tokens: usize) -> Result<()> {
    if found < n_tokens {
        return Err(broken(key, format_args!("{found} entries for {n_tokens} tokens")));
    }
    Ok(())
}

fn read_attributes(file: &File, n_tokens: usize) -> Result<Vec<u8>> {
    let Some(types) = file.integers(TYPES)? else { return reserve::filled(special::NORMAL, n_tokens, "types") };
    check_length(TYPES, types.len(), n_tokens)?;
    let mut attributes = reserve::list(n_tokens, "types")?;
    attributes.extend(types.into_iter().take(n_tokens).map(special::attribute));
    Ok(attributes)
}

fn read_scores(file: &File, n_tokens: usize) -> Result<Vec<f32>> {
    let Some(scores) = file.floats(SCORES)? else { return reserve::filled(0.0, n_tokens, "scores") };
    check_length(SCORES, scores.len(), n_tokens)?;
    if let Some(i) = scores.iter().position(|s| s.is_nan()) {
        return Err(broken(SCORES, format_args!("entry {i} is not a number")));
    }
    Ok(scores)
}

fn spm(file: &File, defaults: SpecialTokens) -> Result<Vocab> {
    let texts = read_texts(file)?;
    let scores = read_scores(file, texts.len())?;
    let nature = Nature {
        kind: VocabKind::Spm,
        spelling: Spelling::Escaped,
        roles: defaults,
        add_bos: true,
        always_bos: false,
        add_space_prefix: true,
        clean_spaces: false,
    };
    let n_tokens = texts.len();
    let make = |texts: &Texts, roles: &mut SpecialTokens| {
        let spm = Spm::new(texts, &scores, roles.unk)?;
        roles.nl = spm.byte(b'\n').filter(|&id| Some(id) != roles.unk).or(roles.pad);
        Ok(Model::Spm(Box::new(spm)))
    };
    finish(file, texts, n_tokens, nature, make)
}

fn bpe(file: &File, pre: &'static Pre, mut defaults: SpecialTokens) -> Result<Vocab> {
    let mut texts = read_texts(file)?;
    let n_tokens = texts.len();
    let merges = match file.byte_strings(MERGES)? {
        Some(merges) => merges,
        None if pre.merges_optional => Vec::new(),
        None => return Err(broken(MERGES, "it is missing")),
    };
    if pre.no_default_bos {
        defaults.bos = None;
    }
    let model = Bpe::new(pre, &mut texts, &merges)?;
    let nature = Nature {
        kind: VocabKind::Bpe,
        spelling: if pre.writing == Writing::Escaped { Spelling::Escaped } else { Spelling::Bytes },
        roles: defaults,
        add_bos: pre.add_bos,
        always_bos: pre.gemma4,
        add_space_prefix: false,
        clean_spaces: pre.clean_spaces,
    };
    let make = |texts: &Texts, roles: &mut SpecialTokens| {
        let mut newline = Vec::new();
        model.tokenize(texts, b"\n", &mut Default::default(), &Pace::new(&|| false), &mut newline)?;
        roles.nl = newline.first().copied().or(roles.pad);
        Ok(Model::Bpe(Box::new(model)))
    };
    finish(file, texts, n_tokens, nature, make)
}

/// The kind of a vocabulary, and its defaults where the file has no key.
struct Nature {
    kind: VocabKind,
    spelling: Spelling,
    roles: SpecialTokens,
    add_bos: bool,
    /// Set where the begin-of-text token is added whatever the file has.
    always_bos: bool,
    add_space_prefix: bool,
    clean_spaces: bool,
}

/// Read what all kinds have: attributes, special tokens, nature. `model` is made when the roles are known.
fn finish(
    file: &File,
    texts: Texts,
    n_tokens: usize,
    nature: Nature,
    model: impl FnOnce(&Texts, &mut SpecialTokens) -> Result<Model>,
) -> Result<Vocab> {
    let mut attributes = read_attributes(file, n_tokens)?;
    let mut roles = nature.roles;
    special::read_roles(file, n_tokens, &mut roles)?;
    let flag =
        |name: &str, default: bool| Ok::<_, Error>(file.get(&format!("tokenizer.ggml.{name}"))?.unwrap_or(default));
    let add_bos = flag("add_bos_token", nature.add_bos)? || nature.always_bos;
    let add_eos = flag("add_eos_token", false)?;
    for (name, wanted, role) in [("bos", add_bos, roles.bos), ("eos", add_eos, roles.eos)] {
        if wanted && role.is_none() {
            let key = format!("tokenizer.ggml.{name}_token_id");
            return Err(broken(&key, "it is missing, but the vocabulary adds this token to every text"));
        }
    }
    let model = model(&texts, &mut roles)?;
    let specials = special::infer_from_texts(roles, &texts, &mut attributes);
    special::add_strip_attributes(file, &texts, &mut attributes)?;
    let listed = file.integers("tokenizer.ggml.suppress_tokens")?.unwrap_or_default();
    let mut suppressed = reserve::list(listed.len(), "suppressed tokens")?;
    suppressed.extend(listed.into_iter().filter(|id| (0..n_tokens as i64).contains(id)).map(|id| id as Token));
    let parts = Parts::new(&texts, &attributes)?;
    let mut vocab = Vocab {
        kind: nature.kind,
        n_tokens,
        texts,
        attributes,
        model,
        spelling: nature.spelling,
        special: specials.roles,
        eog: specials.end,
        suppressed,
        add_space_prefix: flag("add_space_prefix", nature.add_space_prefix)?,
        add_bos,
        add_eos,
        clean_spaces: nature.clean_spaces,
        parts,
        max_piece: 0,
    };
    vocab.max_piece = vocab.find_max_piece();
    Ok(vocab)
}
