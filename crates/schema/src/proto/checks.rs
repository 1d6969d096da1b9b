//! Checks descriptors before they are linked: how many parts they have and how long names are, and what the linker takes
//! for granted.

use std::collections::HashSet;

use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, UninterpretedOption,
};

use super::path::clip;
use super::set::NESTING;
use crate::limits::{PROTO_FILES, PROTO_ITEMS, PROTO_NAME_BYTES};

/// Why a file is refused, and the path of the part that is wrong, as in source locations.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) path: Vec<i32>,
}

impl Refusal {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), path: Vec::new() }
    }
}

/// Checks the only file of a text, which the parser made.
pub(super) fn text(file: &FileDescriptorProto) -> Result<(), Refusal> {
    let mut checker = Checker { items: 0, path: Vec::new(), is_text: true, is_proto3: file.syntax() == "proto3" };
    checker.file(file)
}

/// Checks the files of a descriptor set, which anybody can have made, and drops what is not needed.
pub(super) fn set(files: &mut [FileDescriptorProto]) -> Result<(), Refusal> {
    if files.is_empty() || files.len() > PROTO_FILES {
        return Err(Refusal::new(format!("the descriptor set has no file, or more than {PROTO_FILES}")));
    }
    let mut items = 0;
    let mut names = HashSet::new();
    for file in files.iter() {
        if file.name().is_empty() || file.name().len() > PROTO_NAME_BYTES || !names.insert(file.name()) {
            return Err(Refusal::new("the files of the descriptor set have no names, long names or the same name"));
        }
        if !matches!(file.syntax(), "" | "proto2" | "proto3") {
            let syntax = clip(file.syntax(), 40);
            return Err(Refusal::new(format!("the syntax {syntax:?} is not supported: use proto3 or proto2")));
        }
        let is_proto3 = file.syntax() == "proto3";
        let mut checker = Checker { items, path: Vec::new(), is_text: false, is_proto3 };
        checker.file(file)?;
        items = checker.items;
    }
    for file in files {
        // The linker knows no empty syntax.
        file.syntax = file.syntax.take().filter(|syntax| !syntax.is_empty());
        file.options = None;
        file.service.clear();
        file.extension.iter_mut().for_each(drop_default);
        file.message_type.iter_mut().for_each(drop_defaults);
    }
    Ok(())
}

/// Defaults have no bearing on what is valid, and the linker trusts their escapes.
fn drop_defaults(message: &mut DescriptorProto) {
    message.field.iter_mut().chain(&mut message.extension).for_each(drop_default);
    message.nested_type.iter_mut().for_each(drop_defaults);
}

fn drop_default(field: &mut FieldDescriptorProto) {
    field.default_value = None;
}

struct Checker {
    items: usize,
    /// The path of what is being checked.
    path: Vec<i32>,
    is_text: bool,
    is_proto3: bool,
}

impl Checker {
    fn refuse<T>(&self, message: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal { message: message.into(), path: self.path.clone() })
    }

    fn count(&mut self, more: usize) -> Result<(), Refusal> {
        self.items += more;
        if self.items > PROTO_ITEMS {
            return self.refuse(format!("the schema has more than {PROTO_ITEMS} messages, fields and other parts"));
        }
        Ok(())
    }

    fn within<T>(
        &mut self,
        tag: i32,
        parts: &[T],
        mut check: impl FnMut(&mut Self, &T) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        for (index, part) in (0..).zip(parts) {
            self.path.extend([tag, index]);
            self.count(1)?;
            check(self, part)?;
            self.path.truncate(self.path.len() - 2);
        }
        Ok(())
    }

    fn file(&mut self, file: &FileDescriptorProto) -> Result<(), Refusal> {
        let package = file.package();
        if !package.is_empty() {
            if !package.split('.').all(is_identifier) {
                return self.refuse(format!("{:?} is no package", clip(package, 60)));
            }
            self.path.push(2);
            self.name_length("", package)?;
            self.path.pop();
        }
        self.options(file.options.as_ref().map(|options| &*options.uninterpreted_option), &[])?;
        self.within(4, &file.message_type, |checker, message| checker.message(package, message, 1))?;
        self.within(5, &file.enum_type, |checker, one| checker.enumeration(package, one))?;
        self.within(7, &file.extension, |checker, field| checker.field(package, field))?;
        self.within(6, &file.service, |checker, service| {
            let name = checker.full_name(package, service.name())?;
            checker.options(service.options.as_ref().map(|options| &*options.uninterpreted_option), &[])?;
            checker.within(2, &service.method, |checker, method| checker.full_name(&name, method.name()).map(drop))
        })
    }

    fn message(&mut self, scope: &str, message: &DescriptorProto, depth: usize) -> Result<(), Refusal> {
        if depth > NESTING {
            return self.refuse(format!("messages are nested deeper than {NESTING}"));
        }
        let name = self.full_name(scope, message.name())?;
        if let Some(options) = &message.options {
            self.options(Some(&options.uninterpreted_option), &["map_entry", "message_set_wire_format"])?;
            if options.map_entry() {
                self.entry(message)?;
            }
        }
        let reserved = message.reserved_name.iter().map(String::as_str).collect::<HashSet<_>>();
        self.within(2, &message.field, |checker, field| {
            checker.not_reserved(&reserved, field.name())?;
            checker.field(&name, field)
        })?;
        self.within(6, &message.extension, |checker, field| checker.field(&name, field))?;
        self.within(8, &message.oneof_decl, |checker, oneof| {
            checker.options(oneof.options.as_ref().map(|options| &*options.uninterpreted_option), &[])?;
            checker.full_name(&name, oneof.name()).map(drop)
        })?;
        let ranges = message.reserved_range.iter().map(|range| (range.start(), range.end()));
        let extensions = message.extension_range.iter().map(|range| (range.start(), range.end()));
        self.ranges(ranges.chain(extensions).map(|(start, end)| (start, end.saturating_sub(1))).collect())?;
        self.within(10, &message.reserved_name, |_, _| Ok(()))?;
        self.within(4, &message.enum_type, |checker, one| checker.enumeration(&name, one))?;
        self.within(3, &message.nested_type, |checker, nested| checker.message(&name, nested, depth + 1))
    }

    /// Checks that ranges, with the last number included, do not overlap: a number is looked for in all of them.
    fn ranges(&mut self, mut ranges: Vec<(i32, i32)>) -> Result<(), Refusal> {
        self.count(ranges.len())?;
        ranges.sort_unstable();
        if let Some((start, end)) = ranges.iter().find(|(start, end)| start > end) {
            return self.refuse(format!("the range {start} to {end} is empty"));
        }
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0].1 >= pair[1].0) {
            let ((start, end), (other, other_end)) = (pair[0], pair[1]);
            return self.refuse(format!("the ranges {start} to {end} and {other} to {other_end} overlap"));
        }
        Ok(())
    }

    fn enumeration(&mut self, scope: &str, one: &EnumDescriptorProto) -> Result<(), Refusal> {
        self.full_name(scope, one.name())?;
        self.options(one.options.as_ref().map(|options| &*options.uninterpreted_option), &[])?;
        self.ranges(one.reserved_range.iter().map(|range| (range.start(), range.end())).collect())?;
        self.within(5, &one.reserved_name, |_, _| Ok(()))?;
        let reserved = one.reserved_name.iter().map(String::as_str).collect::<HashSet<_>>();
        // Values are siblings of their enum.
        self.within(2, &one.value, |checker, value| {
            checker.not_reserved(&reserved, value.name())?;
            checker.options(value.options.as_ref().map(|options| &*options.uninterpreted_option), &[])?;
            checker.full_name(scope, value.name()).map(drop)
        })
    }

    fn not_reserved(&self, reserved: &HashSet<&str>, name: &str) -> Result<(), Refusal> {
        if reserved.contains(name) { self.refuse(format!("the name {:?} is reserved", clip(name, 60))) } else { Ok(()) }
    }

    fn field(&mut self, scope: &str, field: &FieldDescriptorProto) -> Result<(), Refusal> {
        self.full_name(scope, field.name())?;
        self.options(field.options.as_ref().map(|options| &*options.uninterpreted_option), &[])?;
        if self.is_proto3 && field.label() == Label::Required {
            return self.refuse(format!("{:?} is required, which proto3 does not have", field.name()));
        }
        if !self.is_text && field.r#type.is_none() && field.type_name().is_empty() {
            return self.refuse(format!("{:?} has no type", field.name()));
        }
        Ok(())
    }

    /// Checks that a message that says it is the entry of a map looks like one.
    fn entry(&self, message: &DescriptorProto) -> Result<(), Refusal> {
        let field = |number| message.field.iter().find(|field| field.number() == number);
        let single = |field: &&FieldDescriptorProto| field.label() == Label::Optional && field.oneof_index.is_none();
        let (key, value) = (field(1).filter(single), field(2).filter(single));
        let key = key.filter(|key| {
            let refused = [Type::Double, Type::Float, Type::Bytes, Type::Enum, Type::Message, Type::Group];
            key.type_name().is_empty() && !refused.contains(&key.r#type())
        });
        let value = value.filter(|value| value.r#type() != Type::Group);
        if message.field.len() != 2 || key.is_none() || value.is_none() || !message.extension_range.is_empty() {
            return self.refuse(format!("{:?} is no entry of a map", message.name()));
        }
        Ok(())
    }

    /// Checks options that the linker resolves. Only a parser leaves any, and it never leaves those in `refused`.
    fn options(&mut self, options: Option<&[UninterpretedOption]>, refused: &[&str]) -> Result<(), Refusal> {
        let options = options.unwrap_or_default();
        if !self.is_text && !options.is_empty() {
            return self.refuse("the descriptor set has options that protoc did not resolve");
        }
        self.count(options.len())?;
        for option in options {
            let first = option.name.first().filter(|part| !part.is_extension);
            if let Some(part) = first.filter(|part| refused.contains(&part.name_part.as_str())) {
                return self.refuse(format!("the option {} is not supported", part.name_part));
            }
        }
        Ok(())
    }

    fn full_name(&self, scope: &str, name: &str) -> Result<String, Refusal> {
        if !is_identifier(name) {
            return self.refuse(format!("{:?} is no name", clip(name, 60)));
        }
        self.name_length(scope, name)?;
        Ok(if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") })
    }

    fn name_length(&self, scope: &str, name: &str) -> Result<(), Refusal> {
        if scope.len() + name.len() + 1 > PROTO_NAME_BYTES {
            return self.refuse(format!("a full name is longer than {PROTO_NAME_BYTES} bytes"));
        }
        Ok(())
    }
}

fn is_identifier(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
