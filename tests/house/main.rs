//! Rules of the project itself: its words, its documents, its C header, the library where cargo leaves it.
#![allow(clippy::unwrap_used)]

mod documents;
mod header;
mod link;
mod words;
