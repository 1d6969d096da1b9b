//! Messages that dice decide about, and changes of what they are written as.

use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

/// The descriptors that prost-reflect needs, which the parser of texts makes as well.
pub(crate) fn descriptor(content: &str, message: &str) -> MessageDescriptor {
    let mut pool = DescriptorPool::global();
    let mut file = protox_parse::parse("test.proto", content).unwrap();
    file.source_code_info = None;
    pool.add_file_descriptor_proto(file).unwrap();
    pool.get_message_by_name(message).unwrap()
}

/// A stream of random numbers that proptest shrinks towards zero.
pub(crate) struct Dice<'d>(pub(crate) std::slice::Iter<'d, u32>);

impl Dice<'_> {
    pub(crate) fn roll(&mut self, sides: u32) -> u32 {
        self.0.next().map_or(0, |number| number % sides)
    }
}

/// A message that the dice decide about.
pub(crate) fn make(descriptor: &MessageDescriptor, dice: &mut Dice<'_>, depth: u32) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let wanted = field.is_required() || dice.roll(4) == 1;
        let nested = matches!(field.kind(), Kind::Message(_));
        // One that requires itself has no end: without it, the message is not valid.
        if !wanted || (nested && depth == 0) {
            continue;
        }
        message.set_field(&field, make_field(&field, dice, depth));
    }
    message
}

fn make_field(field: &FieldDescriptor, dice: &mut Dice<'_>, depth: u32) -> Value {
    if field.is_map() {
        let kind = field.kind();
        let entry = kind.as_message().unwrap();
        let count = dice.roll(3);
        let key = |dice: &mut Dice<'_>| match make_value(&entry.map_entry_key_field().kind(), dice, 0) {
            Value::I32(key) => MapKey::I32(key),
            Value::I64(key) => MapKey::I64(key),
            Value::U32(key) => MapKey::U32(key),
            Value::U64(key) => MapKey::U64(key),
            Value::Bool(key) => MapKey::Bool(key),
            Value::String(key) => MapKey::String(key),
            other => panic!("{other:?} is no key"),
        };
        let value = entry.map_entry_value_field().kind();
        let entries = (0..count).map(|_| (key(dice), make_value(&value, dice, depth.saturating_sub(1))));
        return Value::Map(entries.collect());
    }
    if field.is_list() {
        let count = dice.roll(4);
        return Value::List((0..count).map(|_| make_value(&field.kind(), dice, depth.saturating_sub(1))).collect());
    }
    make_value(&field.kind(), dice, depth.saturating_sub(1))
}

fn make_value(kind: &Kind, dice: &mut Dice<'_>, depth: u32) -> Value {
    let number = match dice.roll(4) {
        0 => u64::from(dice.roll(200)),
        1 => u64::MAX - u64::from(dice.roll(3)),
        2 => u64::from(dice.roll(u32::MAX)),
        _ => u64::from(dice.roll(u32::MAX)) << 32,
    };
    match kind {
        Kind::Double => Value::F64(number as f64),
        Kind::Float => Value::F32(number as f32),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(number as i32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number as i64),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(number as u32),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(number),
        Kind::Bool => Value::Bool(number % 2 == 1),
        Kind::String => Value::String(["", "a", "ä€😀", "quo\"te\\\n"][(number % 4) as usize].into()),
        Kind::Bytes => Value::Bytes(number.to_le_bytes()[..(number % 8) as usize].to_vec().into()),
        Kind::Enum(kind) => {
            let values = kind.values().collect::<Vec<_>>();
            Value::EnumNumber(values[number as usize % values.len()].number())
        }
        Kind::Message(descriptor) => Value::Message(make(descriptor, dice, depth)),
    }
}

/// How a document is changed: a byte is set, bits are flipped, bytes are removed, doubled, or put in.
pub(crate) fn mutate(bytes: &mut Vec<u8>, changes: &[(u8, u16, u8)]) {
    for &(what, at, byte) in changes {
        if bytes.is_empty() {
            bytes.push(byte);
            continue;
        }
        let at = usize::from(at) % bytes.len();
        match what % 5 {
            0 => bytes[at] = byte,
            1 => bytes[at] ^= 1 << (byte % 8),
            2 => bytes.truncate(at),
            3 => {
                let piece = bytes[at..].iter().take(usize::from(byte)).copied().collect::<Vec<_>>();
                bytes.extend(piece);
            }
            _ => bytes.insert(at, byte),
        }
    }
}

/// Replaces pieces of JSON by others.
pub(crate) fn mutate_text(bytes: &mut Vec<u8>, changes: &[(u8, u16, u8)]) {
    const PIECES: [&str; 12] = ["1", "-", "null", "true", "\"", "{}", "[]", ",", ":", "1.5", "\"x\":", "e9"];
    for &(what, at, byte) in changes {
        let at = usize::from(at) % (bytes.len() + 1);
        let piece = PIECES[usize::from(what) % PIECES.len()];
        let end = (at + usize::from(byte % 4)).min(bytes.len());
        bytes.splice(at..end, piece.bytes());
    }
}
