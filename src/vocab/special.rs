//! Special tokens: attributes, the ids with a role, and which tokens end a generation.
//!
//! Files often name too few of these, so some are recognised by their text; the lists below are the texts that
//! converters and models use.

use super::texts::Texts;
use crate::gguf::{File, FromValue};
use crate::{Error, Result, Token};

/// Token attributes, as bits.
pub(super) const UNKNOWN: u8 = 1;
pub(super) const UNUSED: u8 = 2;
pub(super) const NORMAL: u8 = 4;
pub(super) const CONTROL: u8 = 8;
pub(super) const USER_DEFINED: u8 = 16;
pub(super) const BYTE: u8 = 32;
/// White space before (after) the token in a text belongs to it.
pub(super) const LSTRIP: u8 = 64;
pub(super) const RSTRIP: u8 = 128;
/// Attributes of the tokens that are found in a text before it is tokenized.
pub(super) const PARTED: u8 = CONTROL | USER_DEFINED | UNKNOWN;

/// The attributes by name.
pub(super) const NAMES: [(u8, &str); 8] = [
    (UNKNOWN, "unknown"),
    (UNUSED, "unused"),
    (NORMAL, "normal"),
    (CONTROL, "control"),
    (USER_DEFINED, "user_defined"),
    (BYTE, "byte"),
    (LSTRIP, "lstrip"),
    (RSTRIP, "rstrip"),
];

/// The attribute for a value of `tokenizer.ggml.token_type`.
pub(super) fn attribute(token_type: i64) -> u8 {
    match token_type {
        1 => NORMAL,
        2 => UNKNOWN,
        3 => CONTROL,
        4 => USER_DEFINED,
        5 => UNUSED,
        6 => BYTE,
        _ => 0,
    }
}

/// The tokens with a role; `None` where no token has the role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs)]
pub struct SpecialTokens {
    /// Begin of text.
    pub bos: Option<Token>,
    /// End of text.
    pub eos: Option<Token>,
    /// End of turn.
    pub eot: Option<Token>,
    /// End of message.
    pub eom: Option<Token>,
    /// The token for text that the vocabulary cannot spell.
    pub unk: Option<Token>,
    /// Separator.
    pub sep: Option<Token>,
    /// Padding.
    pub pad: Option<Token>,
    /// Mask.
    pub mask: Option<Token>,
    /// Line feed.
    pub nl: Option<Token>,
    pub fim_pre: Option<Token>,
    pub fim_suf: Option<Token>,
    pub fim_mid: Option<Token>,
    pub fim_pad: Option<Token>,
    pub fim_rep: Option<Token>,
    pub fim_sep: Option<Token>,
}

const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const EOM: &[&str] = &["<|eom_id|>"];
const FIM_PRE: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUF: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MID: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEP: &[&str] = &["<|file_sep|>"];

/// Texts that always end a generation.
const END: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
/// Markers of a message's structure that are part of the text a host wants to see.
const SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Roles, end tokens and attributes, as determined while loading.
pub(super) struct Specials {
    pub(super) roles: SpecialTokens,
    /// Ascending.
    pub(super) end: Vec<Token>,
}

/// Read the ids with a role from the file. `roles` holds the defaults of the vocabulary's kind.
pub(super) fn read_roles(file: &File, n_tokens: usize, roles: &mut SpecialTokens) -> Result<()> {
    let SpecialTokens {
        bos,
        eos,
        eot,
        eom,
        unk,
        sep,
        pad,
        mask,
        nl: _,
        fim_pre,
        fim_suf,
        fim_mid,
        fim_pad,
        fim_rep,
        fim_sep,
    } = roles;
    let keys: [(&str, &mut Option<Token>); 14] = [
        ("bos", bos),
        ("eos", eos),
        ("eot", eot),
        ("eom", eom),
        ("unknown", unk),
        ("seperator", sep),
        ("padding", pad),
        ("mask", mask),
        ("fim_pre", fim_pre),
        ("fim_suf", fim_suf),
        ("fim_mid", fim_mid),
        ("fim_pad", fim_pad),
        ("fim_rep", fim_rep),
        ("fim_sep", fim_sep),
    ];
    for (name, role) in keys {
        // The names of three keys changed; where a file has both, the older one is used.
        let older = match name {
            "fim_pre" => Some("prefix"),
            "fim_suf" => Some("suffix"),
            "fim_mid" => Some("middle"),
            _ => None,
        };
        if role.is_some_and(|id| id as usize >= n_tokens) {
            *role = None;
        }
        for name in [Some(name), older].into_iter().flatten() {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let Some(value) = file.value(&key) else { continue };
            match u64::from_value(value) {
                Some(id) if id < n_tokens as u64 => *role = Some(id as Token),
                None if i32::from_value(value).is_none() => {
                    let found = value.value_type();
                    return Err(Error::Vocab(format!("Key `{key}`: a token id was expected, found {found:?}")));
                }
                _ => log::warn!("key `{key}` = {value:?} is no token of {n_tokens}; the default {role:?} is kept"),
            }
        }
    }
    Ok(())
}

/// Infer roles from token texts where the file names none, set the attributes that follow from texts, and collect the
/// tokens that end a generation.
pub(super) fn infer_from_texts(mut roles: SpecialTokens, texts: &Texts, attributes: &mut [u8]) -> Specials {
    let n_tokens = attributes.len();
    let find = |text: &str| find_token(texts, n_tokens, text);
    let by_text: [(&mut Option<Token>, &[&str]); 8] = [
        (&mut roles.eot, EOT),
        (&mut roles.eom, EOM),
        (&mut roles.fim_pre, FIM_PRE),
        (&mut roles.fim_suf, FIM_SUF),
        (&mut roles.fim_mid, FIM_MID),
        (&mut roles.fim_pad, FIM_PAD),
        (&mut roles.fim_rep, FIM_REP),
        (&mut roles.fim_sep, FIM_SEP),
    ];
    for (role, candidates) in by_text {
        if role.is_some() {
            continue;
        }
        if let Some(id) = candidates.iter().find_map(|text| find(text)) {
            *role = Some(id as Token);
            mark(attributes, id, CONTROL);
        }
    }
    for (id, attribute) in attributes.iter_mut().enumerate() {
        if *attribute & CONTROL != 0 && texts.get(id as u32).windows(6).any(|w| w == b"unused") {
            *attribute |= UNUSED;
        }
    }

    let mut end: Vec<Token> = [roles.fim_pad, roles.fim_rep, roles.fim_sep].into_iter().flatten().collect();
    for id in END.iter().filter_map(|text| find(text)) {
        end.push(id as Token);
        mark(attributes, id, CONTROL);
    }
    for id in SHOWN.iter().filter_map(|text| find(text)) {
        set(attributes, id, USER_DEFINED);
    }
    end.extend([roles.eos, roles.eot, roles.eom].into_iter().flatten());
    end.sort_unstable();
    end.dedup();

    // Some families use a usual end token for something else.
    let ends = |end: &[Token], text: &str| find(text).is_some_and(|id| end.contains(&(id as Token)));
    let calls = ends(&end, "<|call|>") || ends(&end, "<|calls|>");
    if calls && (ends(&end, "<|return|>") || ends(&end, "<|flush|>")) {
        withdraw(&mut end, attributes, find("<|end|>"), USER_DEFINED);
    }
    if ends(&end, "<|tool_response>") || ends(&end, "<|plamo:eos|>") {
        withdraw(&mut end, attributes, find("</s>"), NORMAL);
    }
    Specials { roles, end }
}

/// The token with this text; texts that only merges name are none.
fn find_token(texts: &Texts, n_tokens: usize, text: &str) -> Option<u32> {
    texts.find(text.as_bytes()).filter(|&id| (id as usize) < n_tokens)
}

fn mark(attributes: &mut [u8], id: u32, bit: u8) {
    if let Some(attribute) = attributes.get_mut(id as usize) {
        *attribute |= bit;
    }
}

fn set(attributes: &mut [u8], id: u32, attribute: u8) {
    if let Some(old) = attributes.get_mut(id as usize) {
        *old = attribute;
    }
}

/// Remove a token from the list of end tokens; if it was there, set another attribute for it.
fn withdraw(end: &mut Vec<Token>, attributes: &mut [u8], id: Option<u32>, attribute: u8) {
    let Some(id) = id else { return };
    if let Ok(at) = end.binary_search(&(id as Token)) {
        end.remove(at);
        set(attributes, id, attribute);
    }
}

/// Set the attributes of tokens of some model families to which the white space around them belongs; files do not have
/// these.
pub(super) fn add_strip_attributes(file: &File, texts: &Texts, attributes: &mut [u8]) -> Result<()> {
    let read = |key: &str| Ok::<_, Error>(file.get::<String>(key)?.unwrap_or_default());
    let pre = read("tokenizer.ggml.pre")?;
    let name = read("general.name")?.to_ascii_lowercase();
    let architecture = read("general.architecture")?;
    let any = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let n_tokens = attributes.len();
    let find = |text: &str| find_token(texts, n_tokens, text);
    let masks_eat_spaces = any(&pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
        || any(&architecture, &["nomic-bert-moe", "jina-bert-v3"]);
    if masks_eat_spaces {
        find("<mask>").into_iter().for_each(|id| mark(attributes, id, LSTRIP));
    } else if any(&name, &["phi-3", "phi3"]) {
        attributes.iter_mut().filter(|a| **a & PARTED != 0).for_each(|a| *a |= RSTRIP);
        find("</s>").into_iter().for_each(|id| mark(attributes, id, RSTRIP));
        for id in ["<unk>", "<s>", "<|endoftext|>"].into_iter().filter_map(find) {
            attributes[id as usize] &= !RSTRIP;
        }
    } else if name.contains("modern-bert") {
        find("[MASK]").into_iter().for_each(|id| mark(attributes, id, LSTRIP));
    }
    Ok(())
}
