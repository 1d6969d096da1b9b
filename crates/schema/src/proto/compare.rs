//! What a new version of a schema does to documents that the last one accepted, as a conservative list of changes.
//!
//! The messages that can occur in an event are compared by their names, their fields by number and by name:
//!
//! | change | verdict |
//! |---|---|
//! | a field, message, enum value or reservation is added | compatible |
//! | a required field is added, or a field becomes required | breaking |
//! | a field is removed and its number reserved | compatible; breaking where the new version is strict |
//! | a field is removed and its number not reserved, or was required | breaking |
//! | a field has another number, name or name in JSON | breaking |
//! | a name in JSON means another field | breaking |
//! | a field has another type or label | breaking |
//! | types that share an encoding (`int32`, `uint32`, `int64`, `uint64`, `bool` and enums; and so on) | cannot tell |
//! | `bytes` become a `string` | breaking |
//! | a message or enum type is replaced by one of another name | cannot tell |
//! | a field moves into a oneof whose other members are new | compatible |
//! | a field moves into a oneof with another older field | breaking |
//! | a field moves out of a oneof | cannot tell |
//! | an enum value is removed, or has another name or number | breaking |
//! | an enum becomes closed | breaking |
//! | the syntax of a message changes | cannot tell |
//! | the schema becomes strict | breaking |
//! | events are another message | breaking |

use std::collections::{BTreeMap, HashMap, HashSet};

use prost_reflect::{Cardinality, EnumDescriptor, Kind as DescriptorKind, MessageDescriptor, Syntax};

use super::build::kind_of;
use super::table::{Kind, Special};
use crate::compare::{Comparison, Verdict};

/// The most changes that are told one by one.
const MAX_CHANGES: usize = 1_000;
/// The values of enums that are compared: each pair of enums that fields have takes all of both.
const MAX_VALUES: usize = 20_000;

/// Compares what two root messages, each strict or not, accept.
pub(super) fn compare(old: (&MessageDescriptor, bool), new: (&MessageDescriptor, bool)) -> Comparison {
    let ((old_root, old_strict), (new_root, new_strict)) = (old, new);
    let mut comparer = Comparer {
        comparison: Comparison::default(),
        strict: new_strict,
        queue: Vec::new(),
        seen: HashSet::new(),
        enums: HashSet::new(),
        left: MAX_VALUES,
        dropped: None,
    };
    if new_strict && !old_strict {
        comparer.add(Verdict::Breaking, "", "the schema becomes strict: documents with unknown fields are refused");
    }
    if old_strict && !new_strict {
        comparer.add(Verdict::Compatible, "", "the schema is no longer strict");
    }
    if old_root.full_name() != new_root.full_name() {
        let (old, new) = (old_root.full_name(), new_root.full_name());
        comparer.add(Verdict::Breaking, old, format!("events were {old} and are {new}"));
        return comparer.comparison;
    }
    comparer.pair(old_root, new_root);
    while let Some((old, new)) = comparer.queue.pop() {
        comparer.messages(&old, &new);
    }
    comparer.finish()
}

/// A field or an extension.
struct Field {
    name: String,
    json_name: String,
    number: u32,
    kind: DescriptorKind,
    plain: Kind,
    cardinality: Cardinality,
    oneof: Option<String>,
}

/// The fields and extensions of a message, by number.
fn fields(message: &MessageDescriptor) -> BTreeMap<u32, Field> {
    let fields = message.fields().map(|field| Field {
        name: field.name().into(),
        json_name: field.json_name().into(),
        number: field.number(),
        kind: field.kind(),
        plain: kind_of(&field.kind(), field.is_group()),
        cardinality: field.cardinality(),
        oneof: field.containing_oneof().filter(|oneof| !oneof.is_synthetic()).map(|oneof| oneof.name().into()),
    });
    let extensions = message.extensions().map(|field| Field {
        name: format!("[{}]", field.full_name()),
        json_name: field.json_name().into(),
        number: field.number(),
        kind: field.kind(),
        plain: kind_of(&field.kind(), field.is_group()),
        cardinality: field.cardinality(),
        oneof: None,
    });
    fields.chain(extensions).map(|field| (field.number, field)).collect()
}

/// The fields by all names that documents in JSON may use, as `table` has them.
fn json_names(fields: &BTreeMap<u32, Field>) -> HashMap<&str, &Field> {
    let mut names = HashMap::new();
    for field in fields.values() {
        names.entry(field.name.as_str()).or_insert(field);
        names.insert(field.json_name.as_str(), field);
    }
    names
}

struct Comparer {
    comparison: Comparison,
    /// Whether the new version is strict.
    strict: bool,
    /// Messages of one name that are compared next.
    queue: Vec<(MessageDescriptor, MessageDescriptor)>,
    seen: HashSet<String>,
    enums: HashSet<String>,
    /// How many more values of enums may be compared.
    left: usize,
    /// The worst of the changes that are not told one by one, and how many there are.
    dropped: Option<(Verdict, usize)>,
}

impl Comparer {
    fn add(&mut self, verdict: Verdict, path: impl Into<String>, message: impl Into<String>) {
        if self.comparison.changes().len() < MAX_CHANGES {
            self.comparison.add(verdict, path, message);
        } else {
            let (worst, count) = self.dropped.unwrap_or((verdict, 0));
            self.dropped = Some((worst.max(verdict), count + 1));
        }
    }

    fn finish(mut self) -> Comparison {
        if let Some((verdict, count)) = self.dropped {
            self.comparison.add(verdict, "", format!("{count} more changes"));
        }
        self.comparison
    }

    fn pair(&mut self, old: &MessageDescriptor, new: &MessageDescriptor) {
        if self.seen.insert(old.full_name().to_owned()) {
            self.queue.push((old.clone(), new.clone()));
        }
    }

    fn messages(&mut self, old: &MessageDescriptor, new: &MessageDescriptor) {
        // Their fields are ours in both versions.
        if Special::of(old.full_name()).is_some() {
            return self.any(old, new);
        }
        let path = old.full_name().to_owned();
        let (was, is) = (old.parent_file().syntax(), new.parent_file().syntax());
        if was != is && !old.is_map_entry() {
            let message = format!("the syntax changes from {was:?} to {is:?}, which changes presence and enums");
            self.add(Verdict::CannotTell, path.as_str(), message);
        }
        let (old_fields, new_fields) = (fields(old), fields(new));
        let old_names = old_fields.values().map(|field| (field.name.as_str(), field)).collect::<HashMap<_, _>>();
        let new_names = new_fields.values().map(|field| (field.name.as_str(), field)).collect::<HashMap<_, _>>();
        for field in old_fields.values() {
            match (new_fields.get(&field.number), new_names.get(field.name.as_str())) {
                (Some(same), _) if same.name == field.name => self.field(&path, field, same),
                (_, Some(moved)) => {
                    let message = format!("the number changes from {} to {}", field.number, moved.number);
                    self.add(Verdict::Breaking, format!("{path}.{}", field.name), message);
                }
                (Some(same), None) => self.renamed(&path, field, same),
                (None, None) => self.removed(&path, field, new),
            }
        }
        for field in new_fields.values() {
            if !old_fields.contains_key(&field.number) && !old_names.contains_key(field.name.as_str()) {
                let path = format!("{path}.{}", field.name);
                if field.cardinality == Cardinality::Required {
                    self.add(Verdict::Breaking, path, "a required field is added: older documents do not have it");
                } else {
                    self.add(Verdict::Compatible, path, "a field is added");
                }
            }
        }
        self.json_names(&path, &old_fields, &new_fields);
        self.oneofs(&path, &old_fields, &new_fields);
    }

    /// Finds names that stand for one field in older documents in JSON, and for another one now.
    fn json_names(&mut self, path: &str, old: &BTreeMap<u32, Field>, new: &BTreeMap<u32, Field>) {
        let meant = json_names(new);
        let mut names = json_names(old).into_iter().collect::<Vec<_>>();
        names.sort_unstable_by_key(|(name, field)| (field.number, *name));
        for (name, was) in names {
            let Some(is) = meant.get(name).filter(|is| is.number != was.number) else { continue };
            // The same name with another number is told already.
            if is.name != was.name {
                let message = format!("the name {name} means the field {} in JSON now", is.name);
                self.add(Verdict::Breaking, format!("{path}.{}", was.name), message);
            }
        }
    }

    fn renamed(&mut self, path: &str, old: &Field, new: &Field) {
        let path = format!("{path}.{}", old.name);
        let message = if old.plain == new.plain && old.cardinality == new.cardinality {
            format!("the field is renamed to {}: documents in JSON use the old name", new.name)
        } else {
            format!("the number {} is used again, for {}", old.number, new.name)
        };
        self.add(Verdict::Breaking, path, message);
    }

    fn removed(&mut self, path: &str, field: &Field, new: &MessageDescriptor) {
        let path = format!("{path}.{}", field.name);
        let is_reserved = new.reserved_ranges().any(|range| range.contains(&field.number));
        let (verdict, message) = if field.cardinality == Cardinality::Required {
            (Verdict::Breaking, "a required field is removed: older readers refuse documents without it".to_owned())
        } else if self.strict {
            (Verdict::Breaking, "the field is removed, and a strict schema refuses documents that have it".to_owned())
        } else if is_reserved {
            (Verdict::Compatible, "the field is removed and its number reserved".to_owned())
        } else {
            let number = field.number;
            (Verdict::Breaking, format!("the field is removed and its number not reserved: add \"reserved {number};\""))
        };
        self.add(verdict, path, message);
    }

    /// Compares a field of the same number and name.
    fn field(&mut self, path: &str, old: &Field, new: &Field) {
        let path = format!("{path}.{}", old.name);
        if old.json_name != new.json_name {
            let message = format!("the name in JSON changes from {} to {}", old.json_name, new.json_name);
            self.add(Verdict::Breaking, path.as_str(), message);
        }
        if old.cardinality != new.cardinality {
            let label = |cardinality| match cardinality {
                Cardinality::Optional => "singular",
                Cardinality::Required => "required",
                Cardinality::Repeated => "repeated",
            };
            let message = format!("the label changes from {} to {}", label(old.cardinality), label(new.cardinality));
            self.add(Verdict::Breaking, path.as_str(), message);
        }
        match (&old.kind, &new.kind) {
            (DescriptorKind::Message(was), DescriptorKind::Message(is)) => self.message_types(&path, old, new, was, is),
            (DescriptorKind::Enum(was), DescriptorKind::Enum(is)) => self.enum_types(&path, was, is),
            _ if old.plain == new.plain => {}
            _ => {
                let (was, is) = (old.plain.as_str(), new.plain.as_str());
                let change = format!("the type changes from {was} to {is}");
                match common_encoding(old.plain, new.plain) {
                    Some(doubt) => self.add(Verdict::CannotTell, path, format!("{change}: {doubt}")),
                    None => self.add(Verdict::Breaking, path, change),
                }
            }
        }
    }

    fn message_types(&mut self, path: &str, old: &Field, new: &Field, was: &MessageDescriptor, is: &MessageDescriptor) {
        if was.is_map_entry() != is.is_map_entry() || old.plain != new.plain {
            self.add(Verdict::Breaking, path, "the type changes between map, message and group");
        } else if was.full_name() == is.full_name() {
            self.pair(was, is);
        } else if is.parent_pool().get_message_by_name(was.full_name()).is_none() {
            self.add(Verdict::Breaking, was.full_name(), "the message is removed");
            self.add(Verdict::CannotTell, path, format!("the type changes to {}", is.full_name()));
        } else {
            let message = format!("the type changes from {} to {}", was.full_name(), is.full_name());
            self.add(Verdict::CannotTell, path, format!("{message}, and messages of two names are not compared"));
        }
    }

    fn enum_types(&mut self, path: &str, was: &EnumDescriptor, is: &EnumDescriptor) {
        if was.full_name() != is.full_name() {
            let message = format!("the type changes from {} to {}", was.full_name(), is.full_name());
            self.add(Verdict::CannotTell, path, message);
        }
        if !self.enums.insert(format!("{} {}", was.full_name(), is.full_name())) {
            return;
        }
        let path = was.full_name();
        let Some(left) = self.left.checked_sub(was.values().len() + is.values().len()) else {
            return self.add(
                Verdict::CannotTell,
                path,
                "the enums are exchanged in too many ways to compare all of them",
            );
        };
        self.left = left;
        if was.parent_file().syntax() != Syntax::Proto2 && is.parent_file().syntax() == Syntax::Proto2 {
            self.add(Verdict::Breaking, path, "the enum becomes closed: unknown values are unknown fields");
        }
        let new_names = is.values().map(|value| (value.name().to_owned(), value.number())).collect::<HashMap<_, _>>();
        let old_names = was.values().map(|value| value.name().to_owned()).collect::<HashSet<_>>();
        for value in was.values() {
            let path = format!("{path}.{}", value.name());
            match new_names.get(value.name()) {
                Some(&number) if number == value.number() => {}
                Some(number) => {
                    let message = format!("the number of the value changes from {} to {number}", value.number());
                    self.add(Verdict::Breaking, path, message);
                }
                None => self.add(Verdict::Breaking, path, "the value is removed or renamed"),
            }
        }
        for value in is.values().filter(|value| !old_names.contains(value.name())) {
            self.add(Verdict::Compatible, format!("{path}.{}", value.name()), "a value is added");
        }
    }

    fn oneofs(&mut self, path: &str, old: &BTreeMap<u32, Field>, new: &BTreeMap<u32, Field>) {
        // How many older fields the new oneofs have, by the oneofs that these were in.
        let mut members = HashMap::<&str, HashMap<Option<&str>, usize>>::new();
        for field in new.values() {
            if let (Some(oneof), Some(was)) = (&field.oneof, old.get(&field.number)) {
                *members.entry(oneof).or_default().entry(was.oneof.as_deref()).or_default() += 1;
            }
        }
        for was in old.values() {
            let Some(is) = new.get(&was.number).filter(|is| is.oneof != was.oneof) else { continue };
            let path = format!("{path}.{}", was.name);
            let Some(oneof) = &is.oneof else {
                self.add(Verdict::CannotTell, path, "the field moves out of its oneof");
                continue;
            };
            let older = members.get(oneof.as_str());
            // A oneof may have another name and the same members.
            let is_alone = older.is_none_or(|older| match &was.oneof {
                None => older.values().sum::<usize>() == 1,
                Some(_) => older.len() == 1,
            });
            if !is_alone {
                let message = format!("the field moves into the oneof {oneof}: documents had it together with others");
                self.add(Verdict::Breaking, path, message);
            } else if was.oneof.is_some() {
                self.add(Verdict::CannotTell, path, format!("the field moves into the oneof {oneof}"));
            } else {
                let message = format!("the field moves into the oneof {oneof}, whose other members are new");
                self.add(Verdict::Compatible, path, message);
            }
        }
    }

    /// An Any holds, in JSON, any message of the schema.
    fn any(&mut self, old: &MessageDescriptor, new: &MessageDescriptor) {
        if Special::of(old.full_name()) != Some(Special::Any) {
            return;
        }
        for message in old.parent_pool().all_messages().filter(|message| !message.is_map_entry()) {
            match new.parent_pool().get_message_by_name(message.full_name()) {
                Some(same) => self.pair(&message, &same),
                None => self.add(Verdict::Breaking, message.full_name(), "the message is removed"),
            }
        }
    }
}

/// Whether values of one type can be read as values of another, and what is lost.
fn common_encoding(old: Kind, new: Kind) -> Option<&'static str> {
    const GROUPS: [&[Kind]; 4] = [
        &[Kind::Int32, Kind::Uint32, Kind::Int64, Kind::Uint64, Kind::Bool, Kind::Enum],
        &[Kind::Sint32, Kind::Sint64],
        &[Kind::Fixed32, Kind::Sfixed32],
        &[Kind::Fixed64, Kind::Sfixed64],
    ];
    if (old, new) == (Kind::String, Kind::Bytes) {
        return Some("the encoding is the same, but JSON holds bytes in base64");
    }
    let doubt = "the encoding is the same, but values may be cut, and JSON may hold others";
    GROUPS.iter().any(|group| group.contains(&old) && group.contains(&new)).then_some(doubt)
}
