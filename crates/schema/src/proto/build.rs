//! Makes tables from descriptors.

use std::collections::HashMap;

use prost_reflect::{
    Cardinality, DescriptorPool, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, Kind as DescriptorKind,
    MessageDescriptor, Syntax,
};

use super::table::{Enum, Field, Kind, Message, NONE, Parts, Special, Table, count};
use crate::error::SchemaError;

/// Makes the tables of all messages that can occur within a root message.
pub(super) fn build(pool: &DescriptorPool, root: &MessageDescriptor, strict: bool) -> Result<Table, SchemaError> {
    let mut builder = Builder::default();
    builder.message_index(root);
    builder.finish_queue()?;
    let holds_any = builder.messages.iter().any(|message| message.special == Some(Special::Any));
    let mut by_name = HashMap::new();
    if holds_any {
        for message in pool.all_messages().filter(|message| !message.is_map_entry()) {
            let index = builder.message_index(&message);
            by_name.insert(message.full_name().into(), index);
        }
        builder.finish_queue()?;
    }
    let mut table = Table { messages: builder.messages, enums: builder.enums, root: 0, strict, by_name };
    table.mark_demands();
    Ok(table)
}

/// Checks all of these messages, and what can occur within them, as [`build`] would.
pub(super) fn check(messages: &[MessageDescriptor]) -> Result<(), SchemaError> {
    let mut builder = Builder::default();
    for message in messages {
        builder.message_index(message);
    }
    builder.finish_queue()
}

#[derive(Default)]
struct Builder {
    /// The first of them have their tables, the others are in the queue.
    messages: Vec<Message>,
    queue: std::collections::VecDeque<MessageDescriptor>,
    message_indexes: HashMap<String, u32>,
    enums: Vec<Enum>,
    enum_indexes: HashMap<String, u32>,
}

impl Builder {
    fn message_index(&mut self, message: &MessageDescriptor) -> u32 {
        let next = count(self.message_indexes.len());
        if let Some(&index) = self.message_indexes.get(message.full_name()) {
            return index;
        }
        self.message_indexes.insert(message.full_name().to_owned(), next);
        self.queue.push_back(message.clone());
        next
    }

    fn enum_index(&mut self, descriptor: &EnumDescriptor) -> u32 {
        if let Some(&index) = self.enum_indexes.get(descriptor.full_name()) {
            return index;
        }
        let index = count(self.enums.len());
        self.enum_indexes.insert(descriptor.full_name().to_owned(), index);
        let mut numbers = descriptor.values().map(|value| value.number()).collect::<Vec<_>>();
        numbers.sort_unstable();
        numbers.dedup();
        self.enums.push(Enum {
            name: descriptor.full_name().into(),
            numbers: numbers.into(),
            by_name: descriptor.values().map(|value| (value.name().into(), value.number())).collect(),
            closed: descriptor.parent_file().syntax() == Syntax::Proto2,
            is_null: descriptor.full_name() == "google.protobuf.NullValue",
        });
        index
    }

    fn finish_queue(&mut self) -> Result<(), SchemaError> {
        while let Some(message) = self.queue.pop_front() {
            let message = self.message(&message)?;
            self.messages.push(message);
        }
        Ok(())
    }

    fn message(&mut self, message: &MessageDescriptor) -> Result<Message, SchemaError> {
        let options = message.descriptor_proto().options.as_ref();
        if options.is_some_and(|options| options.message_set_wire_format()) {
            let name = message.full_name();
            return Err(SchemaError::new(format!("{name} uses message_set_wire_format, which is not supported")));
        }
        let mut fields = Vec::new();
        for field in message.fields() {
            fields.push(self.field(&field)?);
        }
        for extension in message.extensions() {
            fields.push(self.extension(&extension)?);
        }
        Ok(Message::new(Parts {
            name: message.full_name().into(),
            fields,
            oneofs: message.oneofs().map(|oneof| oneof.name().into()).collect(),
            special: Special::of(message.full_name()),
            is_entry: message.is_map_entry(),
        }))
    }

    fn field(&mut self, field: &FieldDescriptor) -> Result<(Field, Box<str>, Box<str>), SchemaError> {
        let oneof = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
        let oneof = oneof.and_then(|oneof| u32::try_from(*oneof.path().last()?).ok()).unwrap_or(NONE);
        let mut made = self.value(&field.kind(), field.is_group(), field.cardinality(), field.full_name())?;
        (made.number, made.oneof) = (field.number(), oneof);
        Ok((made, field.name().into(), field.json_name().into()))
    }

    fn extension(&mut self, field: &ExtensionDescriptor) -> Result<(Field, Box<str>, Box<str>), SchemaError> {
        let mut made = self.value(&field.kind(), field.is_group(), field.cardinality(), field.full_name())?;
        made.number = field.number();
        Ok((made, field.json_name().into(), field.json_name().into()))
    }

    fn value(
        &mut self,
        kind: &DescriptorKind,
        is_group: bool,
        cardinality: Cardinality,
        name: &str,
    ) -> Result<Field, SchemaError> {
        let repeated = cardinality == Cardinality::Repeated;
        let target = match kind {
            DescriptorKind::Message(message) => self.message_index(message),
            DescriptorKind::Enum(descriptor) => self.enum_index(descriptor),
            _ => NONE,
        };
        let map = kind.as_message().is_some_and(MessageDescriptor::is_map_entry);
        if map && (is_group || !repeated) {
            return Err(SchemaError::new(format!("{name} holds the entry of a map and is none itself")));
        }
        Ok(Field {
            number: 0,
            target,
            oneof: NONE,
            required: if cardinality == Cardinality::Required { 0 } else { NONE },
            kind: kind_of(kind, is_group),
            repeated,
            map,
        })
    }
}

/// The type of a field's values.
pub(super) fn kind_of(kind: &DescriptorKind, is_group: bool) -> Kind {
    match kind {
        DescriptorKind::Double => Kind::Double,
        DescriptorKind::Float => Kind::Float,
        DescriptorKind::Int32 => Kind::Int32,
        DescriptorKind::Int64 => Kind::Int64,
        DescriptorKind::Uint32 => Kind::Uint32,
        DescriptorKind::Uint64 => Kind::Uint64,
        DescriptorKind::Sint32 => Kind::Sint32,
        DescriptorKind::Sint64 => Kind::Sint64,
        DescriptorKind::Fixed32 => Kind::Fixed32,
        DescriptorKind::Fixed64 => Kind::Fixed64,
        DescriptorKind::Sfixed32 => Kind::Sfixed32,
        DescriptorKind::Sfixed64 => Kind::Sfixed64,
        DescriptorKind::Bool => Kind::Bool,
        DescriptorKind::String => Kind::String,
        DescriptorKind::Bytes => Kind::Bytes,
        DescriptorKind::Enum(_) => Kind::Enum,
        DescriptorKind::Message(_) if is_group => Kind::Group,
        DescriptorKind::Message(_) => Kind::Message,
    }
}
