//! YAML documents as trees that know their lines, and the writing of JSON values as YAML.
//!
//! Owns the bounds that keep a hostile file from hurting: bytes, depth, and nodes after aliases were expanded. Knows no
//! kinds of documents.

mod read;
mod write;

pub(crate) use read::{Content, Node, documents};
pub(crate) use write::document;
