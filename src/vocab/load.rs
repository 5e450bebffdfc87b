//! Reading a vocabulary from a model file.

use super::bpe::Bpe;
use super::charsmap::Charsmap;
use super::merge::Scratch;
use super::pace::Pace;
use super::parts::Parts;
use super::plamo2::Plamo2;
use super::pre::{self, Known, Pre, Writing};
use super::rwkv::Rwkv;
use super::special::{self, SpecialTokens};
use super::spelling::Spelling;
use super::spm::Spm;
use super::texts::{BLOCK, Texts};
use super::ugm::Ugm;
use super::wpm::{Normalizer, Wpm};
use super::{Model, Vocab, VocabKind};
use crate::gguf::{File, shown};
use crate::{Error, Result, Token, reserve};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const MERGE_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

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
            "bert" => wpm(file),
            "t5" => ugm(file),
            "rwkv" => rwkv(file),
            "plamo2" => plamo2(file, ids(Some(1), Some(2), Some(0))),
            "hybriddna" | "whitespace" => {
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
        around: [None; 2],
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
        roles: defaults,
        add_bos: true,
        add_space_prefix: true,
        ..Nature::of(VocabKind::Spm, Spelling::Escaped)
    };
    let n_tokens = texts.len();
    let make = |texts: &Texts, _: &[u8], roles: &mut SpecialTokens| {
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
    let spelling = if pre.writing == Writing::Escaped { Spelling::Escaped } else { Spelling::Bytes };
    let nature = Nature {
        roles: defaults,
        add_bos: pre.add_bos,
        always_bos: pre.gemma4,
        clean_spaces: pre.clean_spaces,
        ..Nature::of(VocabKind::Bpe, spelling)
    };
    let make = |texts: &Texts, _: &[u8], roles: &mut SpecialTokens| {
        let mut newline = Vec::new();
        model.tokenize(texts, b"\n", &mut Default::default(), &Pace::new(&|| false), &mut newline)?;
        roles.nl = newline.first().copied().or(roles.pad);
        Ok(Model::Bpe(Box::new(model)))
    };
    finish(file, texts, n_tokens, nature, make)
}

fn wpm(file: &File) -> Result<Vocab> {
    let texts = read_texts(file)?;
    // The scores of such vocabularies have no meaning.
    read_scores(file, texts.len())?;
    let lowercase = file.get(LOWERCASE)?.unwrap_or(true);
    let normalizer = Normalizer { lowercase, strip_accents: file.get(STRIP_ACCENTS)?.unwrap_or(lowercase) };
    let roles = SpecialTokens {
        bos: Some(101),
        unk: Some(100),
        sep: Some(102),
        pad: Some(0),
        mask: Some(103),
        ..SpecialTokens::default()
    };
    let nature = Nature { roles, add_bos: true, clean_spaces: true, ..Nature::of(VocabKind::Wpm, Spelling::Escaped) };
    let make = |texts: &Texts, _: &[u8], roles: &mut SpecialTokens| {
        roles.nl = roles.pad;
        Ok(Model::Wpm(Box::new(Wpm::new(texts, normalizer, needed("unknown", roles.unk, UNKNOWN)?)?)))
    };
    let n_tokens = texts.len();
    finish(file, texts, n_tokens, nature, make)
}

fn ugm(file: &File) -> Result<Vocab> {
    let texts = read_texts(file)?;
    let scores = read_scores(file, texts.len())?;
    if let Some(i) = scores.iter().position(|score| score.is_infinite()) {
        return Err(broken(SCORES, format_args!("entry {i} is infinite")));
    }
    let charsmap = match file.integers(CHARSMAP)? {
        Some(numbers) if !numbers.is_empty() => {
            let mut bytes = reserve::list(numbers.len(), "bytes of the map of characters")?;
            // Files have them as signed or as unsigned bytes.
            bytes.extend(numbers.into_iter().map(|byte| byte as u8));
            Charsmap::new(&bytes)?
        }
        _ => Charsmap::default(),
    };
    let merge_spaces = file.get(MERGE_SPACES)?.unwrap_or(false);
    let roles = SpecialTokens { eos: Some(1), unk: Some(2), pad: Some(0), ..SpecialTokens::default() };
    let nature = Nature { roles, add_eos: true, ..Nature::of(VocabKind::Ugm, Spelling::Escaped) };
    let prefix = file.get(SPACE_PREFIX)?.unwrap_or(false);
    let make = |texts: &Texts, attributes: &[u8], roles: &mut SpecialTokens| {
        let unk = needed("unknown", roles.unk, UNKNOWN)?;
        let ugm = Ugm::new(texts, attributes, scores, unk, charsmap, merge_spaces)?;
        let mut newline = Vec::new();
        ugm.tokenize(b"\n", true, prefix, &mut Scratch::default(), &Pace::new(&|| false), &mut newline)?;
        roles.nl = newline.first().copied().or(roles.pad);
        Ok(Model::Ugm(Box::new(ugm)))
    };
    let n_tokens = texts.len();
    finish(file, texts, n_tokens, nature, make)
}

fn rwkv(file: &File) -> Result<Vocab> {
    let texts = read_texts(file)?;
    let make = |texts: &Texts, _: &[u8], roles: &mut SpecialTokens| {
        let rwkv = Rwkv::new(texts, roles.unk)?;
        let mut newline = Vec::new();
        rwkv.tokenize(b"\n", &mut Scratch::default(), &Pace::new(&|| false), &mut newline)?;
        roles.nl = newline.first().copied();
        Ok(Model::Rwkv(Box::new(rwkv)))
    };
    let n_tokens = texts.len();
    finish(file, texts, n_tokens, Nature::of(VocabKind::Rwkv, Spelling::Backslashes), make)
}

fn plamo2(file: &File, defaults: SpecialTokens) -> Result<Vocab> {
    let texts = read_texts(file)?;
    let scores = read_scores(file, texts.len())?;
    let roles = SpecialTokens { pad: Some(3), ..defaults };
    let make = |texts: &Texts, attributes: &[u8], roles: &mut SpecialTokens| {
        let plamo2 = Plamo2::new(texts, attributes, &scores)?;
        let mut newline = Vec::new();
        plamo2.tokenize(b"\n", &Pace::new(&|| false), &mut newline)?;
        roles.nl = newline.first().copied();
        Ok(Model::Plamo2(Box::new(plamo2)))
    };
    let n_tokens = texts.len();
    finish(file, texts, n_tokens, Nature { roles, ..Nature::of(VocabKind::Plamo2, Spelling::Plain) }, make)
}

/// The token with a role that a vocabulary cannot do without; `why` says what for.
fn needed(role: &str, token: Option<Token>, why: &str) -> Result<Token> {
    token.ok_or_else(|| broken(&format!("tokenizer.ggml.{role}_token_id"), why))
}

/// Why the token for what is unknown is needed.
const UNKNOWN: &str = "it is missing, but texts may have what the vocabulary has no token for";
const ADDED: &str = "it is missing, but the vocabulary adds this token to every text";

/// The kind of a vocabulary, and its defaults where the file has no key.
struct Nature {
    kind: VocabKind,
    spelling: Spelling,
    roles: SpecialTokens,
    add_bos: bool,
    add_eos: bool,
    /// Set where the begin-of-text token is added whatever the file has.
    always_bos: bool,
    add_space_prefix: bool,
    clean_spaces: bool,
}

impl Nature {
    /// That of vocabularies that add nothing to a text.
    fn of(kind: VocabKind, spelling: Spelling) -> Self {
        Nature {
            kind,
            spelling,
            roles: SpecialTokens::default(),
            add_bos: false,
            add_eos: false,
            always_bos: false,
            add_space_prefix: false,
            clean_spaces: false,
        }
    }

    /// The tokens that are put before and after a text, by what the file says.
    fn around(&self, roles: &SpecialTokens, add_bos: bool, add_eos: bool) -> Result<[Option<Token>; 2]> {
        let (before, after) = match self.kind {
            VocabKind::Wpm => (true, true),
            VocabKind::Rwkv | VocabKind::Plamo2 | VocabKind::None => (false, false),
            VocabKind::Spm | VocabKind::Bpe | VocabKind::Ugm => (add_bos, add_eos),
        };
        let last = if self.kind == VocabKind::Wpm { ("seperator", roles.sep) } else { ("eos", roles.eos) };
        let added = |wanted: bool, (role, token)| wanted.then(|| needed(role, token, ADDED)).transpose();
        Ok([added(before, ("bos", roles.bos))?, added(after, last)?])
    }
}

/// Read what all kinds have: attributes, special tokens, nature. `model` is made when the roles are known.
fn finish(
    file: &File,
    texts: Texts,
    n_tokens: usize,
    nature: Nature,
    model: impl FnOnce(&Texts, &[u8], &mut SpecialTokens) -> Result<Model>,
) -> Result<Vocab> {
    let mut attributes = read_attributes(file, n_tokens)?;
    let mut roles = nature.roles;
    special::read_roles(file, n_tokens, &mut roles)?;
    let flag =
        |name: &str, default: bool| Ok::<_, Error>(file.get(&format!("tokenizer.ggml.{name}"))?.unwrap_or(default));
    let add_bos = flag("add_bos_token", nature.add_bos)? || nature.always_bos;
    let add_eos = flag("add_eos_token", nature.add_eos)?;
    let around = nature.around(&roles, add_bos, add_eos)?;
    let model = model(&texts, &attributes, &mut roles)?;
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
        add_space_prefix: file.get(SPACE_PREFIX)?.unwrap_or(nature.add_space_prefix),
        add_bos,
        add_eos,
        around,
        clean_spaces: nature.clean_spaces,
        parts,
        max_piece: 0,
    };
    vocab.max_piece = vocab.find_max_piece();
    Ok(vocab)
}
