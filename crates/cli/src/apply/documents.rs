//! Reads documents from files, folders and standard input, and checks their fields. What is wrong is told with its file and
//! line; all that is wrong is told at once.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::kinds::{Absent, BINDING, EVENT, Field, Holds, Kind, Name, VERSION};
use super::normal;
use crate::exact;
use crate::failure::Failure;
use crate::files;
use crate::yaml::{Content, Node, documents};

/// Where a document begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    file: String,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A document whose fields are checked. What it does not say and what does not stay as it is has its default.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) name: Name,
    pub(crate) fields: Map<String, Value>,
    pub(crate) place: Place,
}

/// All that is wrong with documents, each with its place.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<String>);

impl Faults {
    pub(crate) fn add(&mut self, place: &Place, text: impl fmt::Display) {
        self.0.push(format!("{place}: {text}"));
    }

    /// # Errors
    /// When there are any.
    pub(crate) fn none(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0.join("\ntidegate: ").into()) }
    }
}

/// The documents of files and folders, of which a folder's `.yaml`, `.yml` and `.json` files are read, by name.
///
/// # Errors
/// All that is wrong.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Document>, Failure> {
    let (mut found, mut faults) = (Vec::new(), Faults::default());
    for path in paths {
        for file in files_of(path)? {
            read_file(&file, &mut found, &mut faults)?;
        }
    }
    for (at, document) in found.iter().enumerate() {
        if let Some(first) = found[..at].iter().find(|other: &&Document| other.name == document.name) {
            faults.add(&document.place, format!("{} is there twice: first in {}", document.name, first.place));
        }
    }
    faults.none()?;
    Ok(found)
}

fn files_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path == Path::new("-") || !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?.path();
        let ending = entry.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if entry.is_file() && matches!(ending, "yaml" | "yml" | "json") && holds_documents(&entry)? {
            files.push(entry);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a file of a folder has documents: one that ends with `.json` may be a schema that a document names.
fn holds_documents(file: &Path) -> Result<bool, Failure> {
    if file.extension().is_none_or(|ending| ending != "json") {
        return Ok(true);
    }
    let bytes = files::read(file)?;
    let parsed = exact::from_str(&String::from_utf8_lossy(&bytes));
    Ok(parsed.map_or(true, |value| value.get("kind").is_some() || !value.is_object()))
}

fn read_file(file: &Path, found: &mut Vec<Document>, faults: &mut Faults) -> Result<(), Failure> {
    let shown = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
    let bytes = files::read(file)?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8"))?;
    let place = |line| Place { file: shown.clone(), line };
    let nodes = match documents(&text) {
        Ok(nodes) => nodes,
        Err((line, why)) => {
            faults.add(&place(line), why);
            return Ok(());
        }
    };
    for node in nodes {
        // `export --json` writes one list of all documents.
        let items = match node.content {
            Content::List(items) => items,
            _ => vec![node],
        };
        for node in items {
            let mut reader = Reader { file: &shown, folder: file.parent().unwrap_or(Path::new("")), faults };
            found.extend(reader.document(&node));
        }
    }
    Ok(())
}

struct Reader<'a> {
    file: &'a str,
    folder: &'a Path,
    faults: &'a mut Faults,
}

impl Reader<'_> {
    fn fault(&mut self, line: usize, text: impl fmt::Display) {
        self.faults.add(&Place { file: self.file.to_owned(), line }, text);
    }

    fn document(&mut self, node: &Node) -> Option<Document> {
        let words = || Kind::ALL.map(Kind::word).join(", ");
        let Content::Fields(all) = &node.content else {
            self.fault(node.line, "a document must have fields, of which the first is kind");
            return None;
        };
        let Some((_, _, word)) = all.iter().find(|(name, ..)| name == "kind") else {
            self.fault(node.line, format!("kind is missing: it is one of {}", words()));
            return None;
        };
        let named = match &word.content {
            Content::Scalar { text, .. } => Kind::ALL.into_iter().find(|kind| kind.word() == text).ok_or(text.as_str()),
            _ => Err("that"),
        };
        let kind = match named {
            Ok(kind) => kind,
            Err(text) => {
                let near = nearest(text, Kind::ALL.iter().map(|kind| kind.word()));
                self.fault(word.line, format!("kind: {text:?} is none; did you mean {near}? Known: {}", words()));
                return None;
            }
        };
        let said: Vec<_> = all.iter().filter(|(name, ..)| name != "kind").collect();
        let mut fields = self.fields("", node.line, &said, kind.fields())?;
        let take =
            |name: &str, fields: &Map<String, Value>| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let code = take(kind.key(), &fields)?;
        let client = take("client", &fields);
        self.nested(kind, &mut fields, all)?;
        for field in kind.fields() {
            if !fields.contains_key(field.name)
                && let Some(value) = field.when_absent(&code)
            {
                fields.insert(field.name.to_owned(), value);
            }
        }
        normal::document(kind, &mut fields);
        let place = Place { file: self.file.to_owned(), line: node.line };
        Some(Document { name: Name { kind, client, code }, fields, place })
    }

    /// Checks what fields of fields say, and reads the files that they name.
    fn nested(&mut self, kind: Kind, fields: &mut Map<String, Value>, all: &[(String, usize, Node)]) -> Option<()> {
        let node = |name: &str| all.iter().find(|(own, ..)| own == name).map(|(.., node)| node);
        match kind {
            Kind::EventType => {
                let Some(Content::List(items)) = node("versions").map(|node| &node.content) else { return Some(()) };
                let read = |(at, item): (usize, &Node)| {
                    let mut version = self.item(&format!("versions[{at}]."), item, VERSION)?;
                    self.schema(&mut version, item, ("schema", "schemaFile"), &format!("versions[{at}]."))?;
                    Some(Value::Object(version))
                };
                let versions: Vec<Option<Value>> = items.iter().enumerate().map(read).collect();
                fields.insert("versions".into(), versions.into_iter().collect::<Option<Vec<_>>>()?.into());
            }
            Kind::Subscription => {
                let Some(Content::List(items)) = node("eventTypes").map(|node| &node.content) else { return Some(()) };
                let read = |(at, item): (usize, &Node)| {
                    let binding = self.item(&format!("eventTypes[{at}]."), item, BINDING)?;
                    if binding["eventType"].is_null() == binding["eventTypeCode"].is_null() {
                        let text = "must have eventType (a registered one) or eventTypeCode (any, or a pattern)";
                        self.fault(item.line, format!("eventTypes[{at}] {text}"));
                        return None;
                    }
                    Some(Value::Object(binding))
                };
                let bindings: Vec<Option<Value>> = items.iter().enumerate().map(read).collect();
                fields.insert("eventTypes".into(), bindings.into_iter().collect::<Option<Vec<_>>>()?.into());
            }
            Kind::Schedule => {
                let event = self.item("event.", node("event")?, EVENT)?;
                fields.insert("event".into(), Value::Object(event));
            }
            Kind::Schema => {
                let at = node("content").or(node("contentFile")).or(node("name"))?;
                self.schema(fields, at, ("content", "contentFile"), "")?;
            }
            Kind::Client | Kind::Queue | Kind::Pool => {}
        }
        Some(())
    }

    /// The fields of an item, all of which are there.
    fn item(&mut self, within: &str, node: &Node, known: &'static [Field]) -> Option<Map<String, Value>> {
        let Content::Fields(all) = &node.content else {
            self.fault(node.line, format!("{} must have fields", within.trim_end_matches('.')));
            return None;
        };
        let mut fields = self.fields(within, node.line, &all.iter().collect::<Vec<_>>(), known)?;
        for field in known {
            if !fields.contains_key(field.name)
                && let Some(value) = field.when_absent("")
            {
                fields.insert(field.name.to_owned(), value);
            }
        }
        Some(fields)
    }

    /// The text of a schema: as it is said, or as it is in the file that is named, relative to the document's.
    fn schema(
        &mut self,
        fields: &mut Map<String, Value>,
        node: &Node,
        (inline, by_file): (&str, &str),
        within: &str,
    ) -> Option<()> {
        let file = fields.remove(by_file).filter(|file| !file.is_null());
        let text = match (fields.get(inline).filter(|said| !said.is_null()), file.as_ref().and_then(Value::as_str)) {
            (Some(Value::String(text)), None) => text.clone(),
            (Some(said), None) => exact::to_string_pretty(said).unwrap_or_default(),
            (None, Some(file)) => match std::fs::read_to_string(self.folder.join(file)) {
                Ok(text) => text,
                Err(error) => {
                    let file = self.folder.join(file);
                    self.fault(node.line, format!("{within}{by_file}: {} cannot be read: {error}", file.display()));
                    return None;
                }
            },
            (Some(_), Some(_)) => {
                self.fault(node.line, format!("{within}{inline} and {within}{by_file}: give one of them"));
                return None;
            }
            (None, None) => {
                self.fault(node.line, format!("{within}{inline} or {within}{by_file} is missing"));
                return None;
            }
        };
        fields.insert(inline.to_owned(), text.into());
        Some(())
    }

    /// The values of fields, which must be known and hold what they should. What is null counts as absent.
    fn fields(
        &mut self,
        within: &str,
        line: usize,
        said: &[&(String, usize, Node)],
        known: &'static [Field],
    ) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        let mut is_right = true;
        for (name, line, node) in said {
            let Some(field) = known.iter().find(|field| field.name == name) else {
                let names = || known.iter().map(|field| field.name);
                let (near, all) = (nearest(name, names()), names().collect::<Vec<_>>().join(", "));
                self.fault(*line, format!("{within}{name} is not known; did you mean {near}? Known: {all}"));
                is_right = false;
                continue;
            };
            if node.is_null() {
                continue;
            }
            match holds(field.holds, node) {
                Ok(value) => drop(fields.insert((*name).clone(), value)),
                Err((line, why)) => {
                    self.fault(line, format!("{within}{name} {why}"));
                    is_right = false;
                }
            }
        }
        for field in known.iter().filter(|field| field.absent == Absent::Refused) {
            if is_right && !fields.contains_key(field.name) {
                self.fault(line, format!("{within}{} is missing", field.name));
                is_right = false;
            }
        }
        is_right.then_some(fields)
    }
}

/// The value of a node, which must be what the field holds.
fn holds(holds: Holds, node: &Node) -> Result<Value, (usize, String)> {
    let wrong = |must: &str| Err((node.line, format!("must be {must}")));
    match (holds, &node.content) {
        (Holds::Anything, _) => node.value().map_err(|(line, why)| (line, format!("is not valid: {why}"))),
        (Holds::List, Content::List(_)) | (Holds::Fields, Content::Fields(_)) => {
            node.value().map_err(|(line, why)| (line, format!("is not valid: {why}")))
        }
        // As it stands there: `version: 1.10` is not 1.1.
        (Holds::Text, Content::Scalar { text, .. }) => Ok(text.clone().into()),
        (Holds::Word(words), Content::Scalar { text, .. }) if words.contains(&text.as_str()) => Ok(text.clone().into()),
        (Holds::Word(words), _) => wrong(&format!("one of {}", words.join(", "))),
        (Holds::Number, Content::Scalar { is_plain: true, .. }) => match node.value() {
            Ok(value) if value.is_number() => Ok(value),
            _ => wrong("a number"),
        },
        (Holds::Flag, Content::Scalar { is_plain: true, .. }) => match node.value() {
            Ok(value) if value.is_boolean() => Ok(value),
            _ => wrong("true or false"),
        },
        (Holds::Text, _) => wrong("a text"),
        (Holds::Number, _) => wrong("a number"),
        (Holds::Flag, _) => wrong("true or false"),
        (Holds::List, _) => wrong("a list"),
        (Holds::Fields, _) => wrong("an object"),
    }
}

/// The most similar of the known names.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    let plain = |text: &str| -> Vec<char> {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).take(100).collect()
    };
    let said = plain(name);
    known.min_by_key(|known| distance(&said, &plain(known))).unwrap_or_default()
}

/// The edit distance: letters to insert, remove or replace.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Document>, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        std::fs::write(&file, text).unwrap();
        std::fs::write(dir.path().join("order.json"), "{\"type\": \"object\"}").unwrap();
        read(&[dir.path().to_owned()]).map_err(|error| error.to_string())
    }

    #[test]
    fn fields_have_their_defaults() {
        let text = "kind: Pool\ncode: slow\n---\nkind: EventType\ncode: a:b:c:d\nversions:\n  - version: 1.10\n    \
                    schemaFile: order.json\n";
        let read = read_text(text).unwrap();
        assert_eq!(read.len(), 2, "the schema beside is not a document");
        assert_eq!(read[0].fields["concurrency"], 10);
        assert_eq!((&read[0].fields["name"], read[0].fields.get("status")), (&"slow".into(), None));
        let version = &read[1].fields["versions"][0];
        assert_eq!((&version["version"], &version["mimeType"]), (&"1.10".into(), &"application/json".into()));
        assert_eq!(version["schema"], "{\"type\": \"object\"}");
    }

    #[test]
    fn what_is_wrong_names_the_field_the_line_and_what_was_meant() {
        let cases = [
            ("kind: Pool\ncode: a\nconcurency: 3", "a.yaml:3: concurency is not known; did you mean concurrency?"),
            ("code: a", "a.yaml:1: kind is missing"),
            ("kind: Pools\ncode: a", "a.yaml:1: kind: \"Pools\" is none; did you mean Pool?"),
            ("kind: Pool\ncode: a\n---\nkind: Pool\ncode: a", "a.yaml:4: Pool a is there twice: first in "),
            ("kind: Pool\ncode: a\nconcurrency: many", "a.yaml:3: concurrency must be a number"),
            ("kind: Pool\nname: a", "a.yaml:1: code is missing"),
            ("kind: Queue\nname: a\nstate: paussed", "a.yaml:3: state must be one of active, paused, draining"),
            (
                "kind: EventType\ncode: a:b:c:d\nversions:\n- version: '1.0'\n  shema: {}",
                "a.yaml:5: versions[0].shema is not known; did you mean schema?",
            ),
            (
                "kind: EventType\ncode: a:b:c:d\nversions:\n- version: '1.0'",
                "versions[0].schema or versions[0].schemaFile",
            ),
            (
                "kind: Subscription\ncode: a\ntarget: queue:a\neventTypes: [{specVersion: 1.0}]",
                "a.yaml:4: eventTypes[0] must have eventType",
            ),
            ("kind: Schedule\nname: a\ncron: '@daily'\nevent: {typ: a}", "event.typ is not known; did you mean type?"),
            ("- 1", "a.yaml:1: a document must have fields"),
        ];
        for (text, why) in cases {
            let said = read_text(text).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        let both = read_text("kind: Pool\ncode: a\nx: 1\n---\nkind: Queue\nname: b\ny: 1").unwrap_err();
        assert!(both.contains("x is not known") && both.contains("y is not known"), "all at once: {both}");
    }
}
