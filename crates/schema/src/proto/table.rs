//! What validation needs of a schema, in a few flat tables: messages by index, fields by number and by name, enums.
//! Made once from descriptors, which are then dropped.

use std::collections::HashMap;

use super::reader::Wire;

/// Stands for "none" where an index is expected.
pub(super) const NONE: u32 = u32::MAX;
/// Numbers up to this one are found without a search.
const DENSE: u32 = 255;

/// The type of a single value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Double,
    Float,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Bool,
    String,
    Bytes,
    Enum,
    Message,
    Group,
}

impl Kind {
    /// How a value of this type is framed when it is not packed.
    #[inline]
    pub(super) fn wire(self) -> Wire {
        match self {
            Self::Int32
            | Self::Int64
            | Self::Uint32
            | Self::Uint64
            | Self::Sint32
            | Self::Sint64
            | Self::Bool
            | Self::Enum => Wire::Varint,
            Self::Double | Self::Fixed64 | Self::Sfixed64 => Wire::Fixed64,
            Self::Float | Self::Fixed32 | Self::Sfixed32 => Wire::Fixed32,
            Self::String | Self::Bytes | Self::Message => Wire::Length,
            Self::Group => Wire::StartGroup,
        }
    }

    /// The word of the language.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Double => "double",
            Self::Float => "float",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Sint32 => "sint32",
            Self::Sint64 => "sint64",
            Self::Fixed32 => "fixed32",
            Self::Fixed64 => "fixed64",
            Self::Sfixed32 => "sfixed32",
            Self::Sfixed64 => "sfixed64",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Enum => "enum",
            Self::Message => "message",
            Self::Group => "group",
        }
    }
}

/// A field, or an extension of the message.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) number: u32,
    /// The index of the message or enum that it holds.
    pub(super) target: u32,
    /// The index of its oneof within the message.
    pub(super) oneof: u32,
    /// The index among the required fields of the message.
    pub(super) required: u32,
    pub(super) kind: Kind,
    pub(super) repeated: bool,
    /// A repeated message of this field is an entry of a map.
    pub(super) map: bool,
}

impl Field {
    /// Whether many values may come as one block.
    #[inline]
    pub(super) fn packable(&self) -> bool {
        self.repeated && !matches!(self.kind.wire(), Wire::Length | Wire::StartGroup)
    }
}

/// Messages whose JSON differs from that of other messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    Any,
    Timestamp,
    Duration,
    FieldMask,
    Struct,
    Value,
    ListValue,
    Empty,
    Wrapper(Kind),
}

impl Special {
    /// The special form of a well-known type.
    pub(super) fn of(full_name: &str) -> Option<Self> {
        Some(match full_name.strip_prefix("google.protobuf.")? {
            "Any" => Self::Any,
            "Timestamp" => Self::Timestamp,
            "Duration" => Self::Duration,
            "FieldMask" => Self::FieldMask,
            "Struct" => Self::Struct,
            "Value" => Self::Value,
            "ListValue" => Self::ListValue,
            "Empty" => Self::Empty,
            "DoubleValue" => Self::Wrapper(Kind::Double),
            "FloatValue" => Self::Wrapper(Kind::Float),
            "Int32Value" => Self::Wrapper(Kind::Int32),
            "Int64Value" => Self::Wrapper(Kind::Int64),
            "UInt32Value" => Self::Wrapper(Kind::Uint32),
            "UInt64Value" => Self::Wrapper(Kind::Uint64),
            "BoolValue" => Self::Wrapper(Kind::Bool),
            "StringValue" => Self::Wrapper(Kind::String),
            "BytesValue" => Self::Wrapper(Kind::Bytes),
            _ => return None,
        })
    }
}

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) name: Box<str>,
    /// By number.
    pub(super) fields: Box<[Field]>,
    /// The names of the fields, in the same order.
    pub(super) names: Box<[Box<str>]>,
    /// The indexes of the required fields.
    pub(super) required: Box<[u32]>,
    pub(super) oneofs: Box<[Box<str>]>,
    pub(super) special: Option<Special>,
    pub(super) is_entry: bool,
    /// Whether it or a message within it has required fields.
    pub(super) demands: bool,
    /// The index of the field + 1, or 0, by number.
    dense: Box<[u16]>,
    /// The index of the field by each of its names in JSON.
    by_name: HashMap<Box<str>, u32>,
}

/// The parts of a message that its tables are made from.
pub(super) struct Parts {
    pub(super) name: Box<str>,
    /// Each with its name, and its name in JSON.
    pub(super) fields: Vec<(Field, Box<str>, Box<str>)>,
    pub(super) oneofs: Box<[Box<str>]>,
    pub(super) special: Option<Special>,
    pub(super) is_entry: bool,
}

impl Message {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { name, mut fields, oneofs, special, is_entry } = parts;
        fields.sort_by_key(|(field, ..)| field.number);
        let mut by_name = HashMap::with_capacity(fields.len());
        let mut required = Vec::new();
        for (index, (field, name, json_name)) in (0..).zip(&mut fields) {
            if field.required != NONE {
                field.required = count(required.len());
                required.push(index);
            }
            // A name in JSON comes before a name of the schema.
            by_name.entry(name.clone()).or_insert(index);
            by_name.insert(json_name.clone(), index);
        }
        let highest = fields.last().map_or(0, |(field, ..)| field.number).min(DENSE).min(count(fields.len() * 4 + 16));
        let mut dense = vec![0; highest as usize + 1];
        for (index, (field, ..)) in (1..).zip(&fields) {
            if let Some(slot) = dense.get_mut(field.number as usize) {
                *slot = index;
            }
        }
        let (fields, names) = fields.into_iter().map(|(field, name, _)| (field, name)).unzip::<_, _, Vec<_>, Vec<_>>();
        Self {
            name,
            fields: fields.into(),
            names: names.into(),
            required: required.into(),
            oneofs,
            special,
            is_entry,
            demands: false,
            dense: dense.into(),
            by_name,
        }
    }

    /// The index of the field with a number.
    #[inline]
    pub(super) fn by_number(&self, number: u32) -> Option<u32> {
        match self.dense.get(number as usize) {
            Some(0) => None,
            Some(&slot) => Some(u32::from(slot) - 1),
            None => self.fields.binary_search_by_key(&number, |field| field.number).ok().map(count),
        }
    }

    /// The index of the field that JSON calls by this name.
    pub(super) fn by_name(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    fn size(&self) -> usize {
        let names = self.names.iter().chain(&self.oneofs).map(|name| 16 + name.len()).sum::<usize>();
        let by_name = self.by_name.keys().map(|name| 32 + name.len()).sum::<usize>();
        let fields = size_of_val(&*self.fields) + size_of_val(&*self.dense) + size_of_val(&*self.required);
        size_of::<Self>() + self.name.len() + names + by_name + fields
    }
}

/// An enum.
#[derive(Debug)]
pub(super) struct Enum {
    pub(super) name: Box<str>,
    /// Sorted.
    pub(super) numbers: Box<[i32]>,
    pub(super) by_name: HashMap<Box<str>, i32>,
    /// proto2: an unknown number is an unknown field.
    pub(super) closed: bool,
    /// `google.protobuf.NullValue`, which is null in JSON.
    pub(super) is_null: bool,
}

impl Enum {
    /// Whether a number, as it comes from a varint, has a name.
    pub(super) fn knows(&self, number: u64) -> bool {
        // Varints of enums are cut to 32 bits.
        self.numbers.binary_search(&(number as u32).cast_signed()).is_ok()
    }
}

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) messages: Vec<Message>,
    pub(super) enums: Vec<Enum>,
    /// The index of the message that events are.
    pub(super) root: u32,
    pub(super) strict: bool,
    /// What `google.protobuf.Any` may hold in JSON. Empty if there is no such field.
    pub(super) by_name: HashMap<Box<str>, u32>,
}

impl Table {
    #[inline]
    pub(super) fn message(&self, index: u32) -> &Message {
        &self.messages[index as usize]
    }

    #[inline]
    pub(super) fn enumeration(&self, index: u32) -> &Enum {
        &self.enums[index as usize]
    }

    /// Finds out which messages have required fields within them: backwards along the fields that hold messages.
    pub(super) fn mark_demands(&mut self) {
        let mut holders = vec![Vec::new(); self.messages.len()];
        for (holder, message) in (0..).zip(&self.messages) {
            for field in &message.fields {
                if matches!(field.kind, Kind::Message | Kind::Group) {
                    holders[field.target as usize].push(holder);
                }
            }
        }
        let demanding = (0..).zip(&self.messages).filter(|(_, message)| !message.required.is_empty());
        let mut next = demanding.map(|(index, _)| index).collect::<Vec<u32>>();
        while let Some(index) = next.pop() {
            let message = &mut self.messages[index as usize];
            if !message.demands {
                message.demands = true;
                next.extend(&holders[index as usize]);
            }
        }
    }

    /// About how many bytes of memory it occupies.
    pub(super) fn size(&self) -> usize {
        let messages = self.messages.iter().map(Message::size).sum::<usize>();
        let enums = self.enums.iter().map(|one| {
            let names = one.by_name.keys().map(|name| 32 + name.len()).sum::<usize>();
            size_of::<Enum>() + one.name.len() + size_of_val(&*one.numbers) + names
        });
        let by_name = self.by_name.keys().map(|name| 32 + name.len()).sum::<usize>();
        size_of::<Self>() + messages + enums.sum::<usize>() + by_name
    }
}

/// A number of parts; there are never more than fit.
pub(super) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(NONE)
}
