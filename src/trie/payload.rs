//! The payload's JSON, read strictly.
//!
//! Every refusal names the place (`descriptors[2].leaves[5].tokens[0]`) and the position in the text. Unknown keys are
//! ignored; a missing or duplicate known key and a wrong type anywhere are refused. The limits bound what a payload can
//! make the process reserve, and are checked while reading, before the memory is taken.

use std::fmt::{self, Write as _};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::{Error, Result, Token};

/// The longest payload taken, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;
/// The most descriptors in one payload.
pub const MAX_DESCRIPTORS: usize = 4096;
/// The most leaves in one payload, all descriptors together.
pub const MAX_LEAVES: usize = 1 << 20;
/// The most token ids in one payload, all leaves together.
pub const MAX_TOKENS: usize = 1 << 22;
/// The most nodes of a compiled trie, all descriptors together.
pub const MAX_NODES: usize = 1 << 20;

/// The longest problem text; a wrong value is quoted in it and may be long.
const MAX_PROBLEM_BYTES: usize = 300;

/// A payload as it was sent, leaves without tokens already dropped.
pub(super) struct Payload {
    pub(super) model_id: String,
    pub(super) descriptors: Vec<RawDescriptor>,
    /// The tokens of all leaves, one after the other.
    pub(super) tokens: Vec<Token>,
}

/// One descriptor as it was sent.
#[derive(Default)]
pub(super) struct RawDescriptor {
    pub(super) path: String,
    pub(super) leaves: Vec<RawLeaf>,
}

/// One leaf as it was sent.
#[derive(Default)]
pub(super) struct RawLeaf {
    pub(super) name: String,
    /// Its tokens in [`Payload::tokens`].
    pub(super) tokens: std::ops::Range<usize>,
    /// Its index in the payload's `leaves`, before empty ones were dropped.
    pub(super) index: u32,
}

/// Reads a payload.
///
/// # Errors
/// [`Error::Trie`] with the place of the first problem.
pub(super) fn read(json: &[u8]) -> Result<Payload> {
    if json.len() > MAX_PAYLOAD_BYTES {
        return Err(Error::Trie {
            place: "payload".into(),
            problem: format!("{} bytes, more than the limit of {MAX_PAYLOAD_BYTES}", json.len()),
        });
    }
    let mut reader = Reader::default();
    let mut root = Root::default();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    ObjectSeed { reader: &mut reader, object: &mut root }
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end())
        .map_err(|error| reader.error(&error))?;
    Ok(Payload { model_id: root.model_id, descriptors: root.descriptors, tokens: reader.tokens })
}

/// One step from the payload's root to a value.
enum Segment {
    Key(&'static str),
    Index(usize),
}

/// The reader's place in the payload, and the tokens of all leaves. On an error the place is that of the error.
#[derive(Default)]
struct Reader {
    place: Vec<Segment>,
    tokens: Vec<Token>,
    leaves: usize,
}

impl Reader {
    fn error(&self, error: &serde_json::Error) -> Error {
        let mut place = String::new();
        for segment in &self.place {
            // Writing to a string cannot fail.
            let _ = match segment {
                Segment::Key(key) if place.is_empty() => write!(place, "{key}"),
                Segment::Key(key) => write!(place, ".{key}"),
                Segment::Index(index) => write!(place, "[{index}]"),
            };
        }
        if place.is_empty() {
            place.push_str("payload");
        }
        let mut problem = match error.classify() {
            serde_json::error::Category::Data => error.to_string(),
            _ => format!("malformed JSON: {error}"),
        };
        if problem.len() > MAX_PROBLEM_BYTES {
            // The end has line and column; the quoted value in the middle may be long.
            let mut head = MAX_PROBLEM_BYTES / 2;
            while !problem.is_char_boundary(head) {
                head -= 1;
            }
            let mut tail = problem.len() - MAX_PROBLEM_BYTES / 2;
            while !problem.is_char_boundary(tail) {
                tail += 1;
            }
            problem.replace_range(head..tail, " … ");
        }
        Error::Trie { place, problem }
    }
}

/// An object with known keys.
trait Object {
    const WHAT: &'static str;
    /// The known keys; the first [`Self::REQUIRED`] of them must be there.
    const KEYS: &'static [&'static str];
    const REQUIRED: usize;
    /// Reads the value of `KEYS[key]`; the reader's place already names the key.
    fn value<'de, A: MapAccess<'de>>(
        &mut self,
        reader: &mut Reader,
        key: usize,
        map: &mut A,
    ) -> std::result::Result<(), A::Error>;
}

/// A list whose elements are read one by one.
trait List {
    const WHAT: &'static str;
    /// Reads element `index`, or returns false at the end; the reader's place already names the index.
    fn element<'de, A: SeqAccess<'de>>(
        &mut self,
        reader: &mut Reader,
        index: usize,
        seq: &mut A,
    ) -> std::result::Result<bool, A::Error>;
}

#[derive(Default)]
struct Root {
    model_id: String,
    descriptors: Vec<RawDescriptor>,
}

impl Object for Root {
    const WHAT: &'static str = "an object with `descriptors`";
    const KEYS: &'static [&'static str] = &["descriptors", "modelId"];
    const REQUIRED: usize = 1;

    fn value<'de, A: MapAccess<'de>>(
        &mut self,
        reader: &mut Reader,
        key: usize,
        map: &mut A,
    ) -> std::result::Result<(), A::Error> {
        match key {
            0 => map.next_value_seed(ListSeed { reader, list: &mut Descriptors(&mut self.descriptors) }),
            _ => map.next_value::<String>().map(|text| self.model_id = text),
        }
    }
}

struct Descriptors<'a>(&'a mut Vec<RawDescriptor>);

impl List for Descriptors<'_> {
    const WHAT: &'static str = "a list of descriptors";

    fn element<'de, A: SeqAccess<'de>>(
        &mut self,
        reader: &mut Reader,
        index: usize,
        seq: &mut A,
    ) -> std::result::Result<bool, A::Error> {
        let mut descriptor = RawDescriptor::default();
        if seq.next_element_seed(ObjectSeed { reader, object: &mut descriptor })?.is_none() {
            return Ok(false);
        }
        if index >= MAX_DESCRIPTORS {
            return Err(A::Error::custom(format!("more than {MAX_DESCRIPTORS} descriptors")));
        }
        self.0.push(descriptor);
        Ok(true)
    }
}

impl Object for RawDescriptor {
    const WHAT: &'static str = "a descriptor";
    const KEYS: &'static [&'static str] = &["path", "leaves"];
    const REQUIRED: usize = 2;

    fn value<'de, A: MapAccess<'de>>(
        &mut self,
        reader: &mut Reader,
        key: usize,
        map: &mut A,
    ) -> std::result::Result<(), A::Error> {
        match key {
            0 => map.next_value::<String>().map(|text| self.path = text),
            _ => map.next_value_seed(ListSeed { reader, list: &mut Leaves(&mut self.leaves) }),
        }
    }
}

struct Leaves<'a>(&'a mut Vec<RawLeaf>);

impl List for Leaves<'_> {
    const WHAT: &'static str = "a list of leaves";

    fn element<'de, A: SeqAccess<'de>>(
        &mut self,
        reader: &mut Reader,
        index: usize,
        seq: &mut A,
    ) -> std::result::Result<bool, A::Error> {
        let mut leaf = RawLeaf::default();
        if seq.next_element_seed(ObjectSeed { reader, object: &mut leaf })?.is_none() {
            return Ok(false);
        }
        reader.leaves += 1;
        if reader.leaves > MAX_LEAVES {
            return Err(A::Error::custom(format!("more than {MAX_LEAVES} leaves in all")));
        }
        if !leaf.tokens.is_empty() {
            leaf.index = index as u32; // below MAX_LEAVES
            self.0.push(leaf);
        }
        Ok(true)
    }
}

impl Object for RawLeaf {
    const WHAT: &'static str = "a leaf";
    const KEYS: &'static [&'static str] = &["name", "tokens"];
    const REQUIRED: usize = 2;

    fn value<'de, A: MapAccess<'de>>(
        &mut self,
        reader: &mut Reader,
        key: usize,
        map: &mut A,
    ) -> std::result::Result<(), A::Error> {
        match key {
            0 => map.next_value::<String>().map(|text| self.name = text),
            _ => {
                let start = reader.tokens.len();
                map.next_value_seed(ListSeed { reader: &mut *reader, list: &mut Tokens })?;
                self.tokens = start..reader.tokens.len();
                Ok(())
            }
        }
    }
}

struct Tokens;

impl List for Tokens {
    const WHAT: &'static str = "a list of token ids";

    fn element<'de, A: SeqAccess<'de>>(
        &mut self,
        reader: &mut Reader,
        _index: usize,
        seq: &mut A,
    ) -> std::result::Result<bool, A::Error> {
        let Some(TokenId(token)) = seq.next_element()? else { return Ok(false) };
        if reader.tokens.len() >= MAX_TOKENS {
            return Err(A::Error::custom(format!("more than {MAX_TOKENS} tokens in all")));
        }
        reader.tokens.push(token);
        Ok(true)
    }
}

/// A token id: an integer from 0 to 2^31 - 1.
struct TokenId(Token);

impl<'de> serde::Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct IdVisitor;
        impl Visitor<'_> for IdVisitor {
            type Value = TokenId;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a token id (an integer from 0 to 2147483647)")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> std::result::Result<TokenId, E> {
                match Token::try_from(value) {
                    Ok(token) => Ok(TokenId(token)),
                    Err(_) => Err(E::invalid_value(serde::de::Unexpected::Unsigned(value), &self)),
                }
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> std::result::Result<TokenId, E> {
                Err(E::invalid_value(serde::de::Unexpected::Signed(value), &self))
            }
        }
        deserializer.deserialize_u64(IdVisitor)
    }
}

struct ObjectSeed<'a, T> {
    reader: &'a mut Reader,
    object: &'a mut T,
}

impl<'de, T: Object> DeserializeSeed<'de> for ObjectSeed<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Object> Visitor<'de> for ObjectSeed<'_, T> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let mut seen = [false; 2];
        while let Some(key) = map.next_key_seed(KeySeed(T::KEYS))? {
            let (Some(index), Some(name)) = (key, key.and_then(|index| T::KEYS.get(index))) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            self.reader.place.push(Segment::Key(name));
            if std::mem::replace(&mut seen[index], true) {
                return Err(A::Error::custom("duplicate key"));
            }
            self.object.value(self.reader, index, &mut map)?;
            self.reader.place.pop();
        }
        match T::KEYS.iter().zip(seen).take(T::REQUIRED).find(|(_, seen)| !seen) {
            Some((name, _)) => Err(A::Error::custom(format!("`{name}` is missing"))),
            None => Ok(()),
        }
    }
}

struct ListSeed<'a, T> {
    reader: &'a mut Reader,
    list: &'a mut T,
}

impl<'de, T: List> DeserializeSeed<'de> for ListSeed<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: List> Visitor<'de> for ListSeed<'_, T> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(T::WHAT)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        for index in 0.. {
            self.reader.place.push(Segment::Index(index));
            let more = self.list.element(self.reader, index, &mut seq)?;
            self.reader.place.pop();
            if !more {
                break;
            }
        }
        Ok(())
    }
}

/// Reads a key as its index among the known ones.
struct KeySeed(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = Option<usize>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Self::Value, E> {
        Ok(self.0.iter().position(|key| *key == text))
    }
}
