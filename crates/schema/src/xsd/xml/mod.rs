//! XML 1.0 with namespaces: well-formedness, positions, and nothing that needs anything outside the text.
//!
//! Not `quick-xml`, because it leaves most of well-formedness to its caller (see the ADR), and not `roxmltree`, because
//! its cost grows with the square of the namespaces and attributes of a document. There are no document types, hence
//! no entities beyond the five of XML itself, and nothing is ever fetched.

mod chars;
mod reader;
mod scope;
mod tree;

pub(super) use chars::{NAME_ONLY, NAME_START, is_name, is_name_char, is_ncname, is_space};
pub(super) use reader::{Attribute, Event, Malformed, Reader, Tag};
pub(super) use scope::{ABSENT, Namespaces, Ns, Scope, VERSIONING, XML, XML_URI, XS, XS_URI, XSI, XSI_URI};
pub(super) use tree::{Node, NodeId, Tree};
