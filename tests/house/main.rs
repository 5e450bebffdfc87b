//! Rules of the project itself: which room imports which, its words, its documents, its C header, the library where
//! cargo leaves it.
#![allow(clippy::unwrap_used)]

mod documents;
mod floors;
mod header;
mod link;
mod words;
