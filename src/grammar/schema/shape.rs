//! What a schema says, once its keywords are put together: the shapes of values that a grammar is made of.

use super::multiples::Multiple;
use super::numbers::Bounds;
use crate::grammar::json::Json;
use crate::grammar::regex::Pattern;
use std::rc::Rc;

/// A schema of the document, and where it is: a JSON pointer after `#`.
#[derive(Clone)]
pub(super) struct Part<'j> {
    pub(super) node: &'j Json,
    pub(super) at: Rc<str>,
    /// Whether an alternative of its `anyOf`, its `oneOf` was already taken.
    pub(super) any_of: bool,
    pub(super) one_of: bool,
}

impl<'j> Part<'j> {
    pub(super) fn new(node: &'j Json, at: impl Into<Rc<str>>) -> Part<'j> {
        Part { node, at: at.into(), any_of: false, one_of: false }
    }

    pub(super) fn get(&self, keyword: &str) -> Option<&'j Json> {
        self.node.get(keyword)
    }

    /// The schema at a member of a keyword.
    pub(super) fn below(&self, node: &'j Json, path: &str) -> Part<'j> {
        Part::new(node, format!("{}/{path}", self.at))
    }

    /// What makes the part itself: its node's address and what was taken of it.
    pub(super) fn identity(&self) -> (usize, u8) {
        (std::ptr::from_ref(self.node) as usize, u8::from(self.any_of) + 2 * u8::from(self.one_of))
    }
}

/// Schemas that hold together; `None` where nothing can be all of them.
pub(super) type All<'j> = Option<Vec<Part<'j>>>;

/// A set of schemas, or of values.
pub(super) enum Reading<'j> {
    /// One of these.
    Union(Vec<All<'j>>),
    /// One of these shapes.
    Shapes(Vec<Shape<'j>>),
}

/// A kind of value.
pub(super) enum Shape<'j> {
    Any,
    Null,
    Boolean,
    Values(Vec<&'j Json>),
    Integer(Bounds),
    Number(Bounds),
    /// A number that is a multiple, within bounds.
    Multiple(Multiple, Bounds),
    String(Text),
    Object(Object<'j>),
    Array(Array<'j>),
    /// An array of some of these values, each once: so many of them.
    Set(Vec<&'j Json>, u64, u64),
}

/// A string.
pub(super) enum Text {
    Length(u64, Option<u64>),
    Pattern(Pattern),
    /// A pattern about the JSON text of the string.
    Spelled(Pattern),
}

/// A property.
pub(super) struct Property<'j> {
    pub(super) name: &'j str,
    pub(super) value: All<'j>,
    pub(super) required: bool,
}

/// An object: its properties in order, then others.
pub(super) struct Object<'j> {
    pub(super) properties: Vec<Property<'j>>,
    pub(super) others: Option<Others<'j>>,
    /// How many members; the maximum only counts where all members are others.
    pub(super) min: u64,
    pub(super) max: Option<u64>,
}

/// Members whose names are none of the properties'.
pub(super) struct Others<'j> {
    /// What the names are, where they are not just any.
    pub(super) names: Option<Vec<Shape<'j>>>,
    pub(super) value: All<'j>,
}

/// An array: first items, then more of one kind.
pub(super) struct Array<'j> {
    pub(super) first: Vec<All<'j>>,
    pub(super) rest: Option<All<'j>>,
    /// Bounds of all items together.
    pub(super) min: u64,
    pub(super) max: Option<u64>,
}
