//! Namespaces as numbers, and the declarations that are in scope while a text is read.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::xsd::bounds::{BINDINGS, NAMESPACE_BYTES};

/// A namespace as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::xsd) struct Ns(pub(in crate::xsd) u32);

/// No namespace.
pub(in crate::xsd) const ABSENT: Ns = Ns(0);
/// The namespace of `xml:lang` and its like.
pub(in crate::xsd) const XML: Ns = Ns(1);
/// The namespace of XML Schema.
pub(in crate::xsd) const XS: Ns = Ns(2);
/// The namespace of `xsi:type` and its like.
pub(in crate::xsd) const XSI: Ns = Ns(3);
/// The namespace of `vc:minVersion` and its like.
pub(in crate::xsd) const VERSIONING: Ns = Ns(4);
/// A namespace that the schema does not name.
pub(in crate::xsd) const UNKNOWN: Ns = Ns(u32::MAX);

pub(in crate::xsd) const XML_URI: &str = "http://www.w3.org/XML/1998/namespace";
pub(in crate::xsd) const XS_URI: &str = "http://www.w3.org/2001/XMLSchema";
pub(in crate::xsd) const XSI_URI: &str = "http://www.w3.org/2001/XMLSchema-instance";
pub(in crate::xsd) const VERSIONING_URI: &str = "http://www.w3.org/2007/XMLSchema-versioning";
pub(in crate::xsd) const XMLNS_URI: &str = "http://www.w3.org/2000/xmlns/";

/// The namespaces that are known, by number.
#[derive(Debug)]
pub(in crate::xsd) struct Namespaces {
    uris: Vec<Box<str>>,
    numbers: HashMap<Box<str>, Ns>,
}

impl Default for Namespaces {
    fn default() -> Self {
        let mut known = Self { uris: Vec::new(), numbers: HashMap::new() };
        for uri in ["", XML_URI, XS_URI, XSI_URI, VERSIONING_URI] {
            known.intern(uri);
        }
        known
    }
}

impl Namespaces {
    /// The number of a namespace, which becomes known by this. The empty text is no namespace.
    pub(in crate::xsd) fn intern(&mut self, uri: &str) -> Ns {
        if let Some(known) = self.numbers.get(uri) {
            return *known;
        }
        let number = Ns(u32::try_from(self.uris.len()).unwrap_or(u32::MAX - 1));
        self.uris.push(uri.into());
        self.numbers.insert(uri.into(), number);
        number
    }

    /// The number of a namespace, or [`UNKNOWN`].
    pub(in crate::xsd) fn find(&self, uri: &str) -> Ns {
        self.numbers.get(uri).copied().unwrap_or(UNKNOWN)
    }

    /// The URI of a namespace; empty for none.
    pub(in crate::xsd) fn uri(&self, ns: Ns) -> &str {
        self.uris.get(ns.0 as usize).map_or("", AsRef::as_ref)
    }
}

#[derive(Debug)]
struct Binding<'d> {
    prefix: &'d str,
    /// The length and first bytes of the prefix: most comparisons end here.
    key: u64,
    uri: Cow<'d, str>,
    ns: Ns,
    /// What bindings of one URI have in common, also where the schema does not name it.
    same: usize,
}

fn key(prefix: &str) -> u64 {
    let mut bytes = [0; 8];
    for (slot, byte) in bytes.iter_mut().zip(prefix.bytes().take(7)) {
        *slot = byte;
    }
    bytes[7] = u8::try_from(prefix.len()).unwrap_or(u8::MAX);
    u64::from_le_bytes(bytes)
}

/// The declarations in scope, outermost first.
#[derive(Debug, Default)]
pub(in crate::xsd) struct Scope<'d> {
    bindings: Vec<Binding<'d>>,
}

impl<'d> Scope<'d> {
    pub(super) fn len(&self) -> usize {
        self.bindings.len()
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.bindings.truncate(len);
    }

    /// Adds a declaration to those of a tag, which start at `start`.
    pub(super) fn bind(
        &mut self,
        prefix: &'d str,
        uri: Cow<'d, str>,
        known: &Namespaces,
        start: usize,
    ) -> Result<(), String> {
        if self.bindings.len() >= BINDINGS {
            return Err(format!("more than {BINDINGS} namespace declarations are in scope"));
        }
        check_binding(prefix, &uri)?;
        if uri.len() > NAMESPACE_BYTES {
            return Err(format!("the name of a namespace is longer than {NAMESPACE_BYTES} bytes"));
        }
        let (ns, key) = (known.find(&uri), key(prefix));
        // A declaration is an attribute, and no attribute occurs twice in a tag.
        if self.bindings.iter().skip(start).any(|other| other.key == key && other.prefix == prefix) {
            return Err(if prefix.is_empty() {
                "the default namespace is declared twice in this tag".into()
            } else {
                format!("the prefix {prefix:?} is declared twice in this tag")
            });
        }
        let same = self.bindings.iter().position(|other| other.ns == ns && other.uri == uri);
        let same = same.unwrap_or(self.bindings.len());
        self.bindings.push(Binding { prefix, key, uri, ns, same });
        Ok(())
    }

    /// The declarations from a place on: prefix and URI.
    pub(super) fn since(&self, start: usize) -> impl Iterator<Item = (&'d str, &str)> {
        self.bindings.iter().skip(start).map(|binding| (binding.prefix, binding.uri.as_ref()))
    }

    fn binding(&self, prefix: &str) -> Option<&Binding<'d>> {
        let wanted = key(prefix);
        self.bindings.iter().rev().find(|binding| binding.key == wanted && binding.prefix == prefix)
    }

    /// A number that prefixes have in common which are declared for one namespace.
    pub(super) fn same(&self, prefix: &str) -> Option<usize> {
        self.binding(prefix).map(|binding| binding.same)
    }

    /// The namespace of a prefix (the empty one for the default namespace), by number and by URI; `None` for a prefix that
    /// is not declared.
    pub(in crate::xsd) fn resolve(&self, prefix: &str) -> Option<(Ns, &str)> {
        if let Some(binding) = self.binding(prefix) {
            return Some((binding.ns, &binding.uri));
        }
        match prefix {
            "" => Some((ABSENT, "")),
            "xml" => Some((XML, XML_URI)),
            _ => None,
        }
    }
}

/// Checks a declaration against the reserved prefixes and namespaces.
fn check_binding(prefix: &str, uri: &str) -> Result<(), String> {
    match (prefix, uri) {
        ("xml", XML_URI) => Ok(()),
        ("xml" | "xmlns", _) => Err(format!("the prefix {prefix:?} cannot be declared")),
        (_, XML_URI | XMLNS_URI) => Err(format!("no prefix but its own can be declared for {uri:?}")),
        ("", _) => Ok(()),
        (_, "") => Err(format!("the prefix {prefix:?} is declared for no namespace")),
        _ => Ok(()),
    }
}
