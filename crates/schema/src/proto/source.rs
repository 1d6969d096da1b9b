//! From a definition to descriptors: a `.proto` text or a descriptor set is parsed, bounded, checked and linked. Imports
//! are never followed: the well-known types are compiled in, and a set brings what it needs.

use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::source_code_info::Location;
use prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use prost_reflect::{DescriptorPool, MessageDescriptor};

use super::checks::{self, Refusal};
use super::path::clip;
use super::{prescan, set};
use crate::definition::Definition;
use crate::error::{Position, SchemaError};
use crate::limits::{PROTO_FILES, SCHEMA_BYTES};

/// The longest message of another crate that is shown, in characters.
const MESSAGE: usize = 300;
/// The most messages that are listed when none of them was chosen.
const CANDIDATES: usize = 10;
/// Why a schema of enums alone is refused.
const NO_MESSAGE: &str = "the schema has no message";
/// What a text is called in its descriptors.
const FILE: &str = "schema.proto";
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// What may be imported.
const WELL_KNOWN: [&str; 11] = [
    "google/protobuf/any.proto",
    "google/protobuf/api.proto",
    "google/protobuf/descriptor.proto",
    "google/protobuf/duration.proto",
    "google/protobuf/empty.proto",
    "google/protobuf/field_mask.proto",
    "google/protobuf/source_context.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/type.proto",
    "google/protobuf/wrappers.proto",
];

/// What to do about an import that is refused.
const IMPORTABLE: &str = "only the well-known types (google/protobuf/*.proto) can be imported. Put all messages into one \
                          text, or register a descriptor set that has all files";

/// Links a definition, and finds the message that events are.
pub(super) fn load(definition: &Definition) -> Result<(DescriptorPool, MessageDescriptor), SchemaError> {
    let (pool, files) = linked(definition)?;
    let root = find_root(&pool, &files, definition.message.as_deref())?;
    Ok((pool, root))
}

/// Links a definition, and finds the messages of which one can be chosen. There is at least one.
pub(super) fn messages(definition: &Definition) -> Result<Vec<MessageDescriptor>, SchemaError> {
    let (pool, files) = linked(definition)?;
    let found = candidates(&pool, &files);
    if found.is_empty() { Err(SchemaError::new(NO_MESSAGE)) } else { Ok(found) }
}

fn linked(definition: &Definition) -> Result<(DescriptorPool, Vec<String>), SchemaError> {
    let content = definition.content.as_str();
    if content.len() > SCHEMA_BYTES {
        let message = format!("the schema has {} bytes, more than {SCHEMA_BYTES}", content.len());
        return Err(SchemaError::new(message));
    }
    if is_base64(content) { link_set(content) } else { link_text(content) }
}

/// No `.proto` text that says anything is made of these characters only.
fn is_base64(content: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    content.bytes().any(allowed) && content.bytes().all(|byte| allowed(byte) || byte.is_ascii_whitespace())
}

fn link_text(text: &str) -> Result<(DescriptorPool, Vec<String>), SchemaError> {
    prescan::check(text)?;
    let mut file = protox_parse::parse(FILE, text).map_err(|error| {
        let start = error.span().map_or(text.len(), |span| span.start);
        // The parser calls a name in an import that no file can have an "invalid group name"; those have no quotes.
        let is_import = text.get(start..).is_some_and(|rest| rest.starts_with(['"', '\'']));
        let message = match error.to_string() {
            message if is_import && message == "invalid group name" => format!("the import is refused: {IMPORTABLE}"),
            message => clip(&message, MESSAGE).into_owned(),
        };
        SchemaError::at(message, Position::of(text, start))
    })?;
    // Linking takes time in the number of options times that of the locations. Errors are located afterwards.
    let locations = file.source_code_info.take().map(|info| info.location).unwrap_or_default();
    let locate = |refusal: Refusal| SchemaError {
        position: locate(text, &locations, &refusal.path),
        message: clip(&refusal.message, MESSAGE).into_owned(),
    };
    checks::text(&file).map_err(locate)?;
    check_imports(&file, &HashSet::new()).map_err(locate)?;
    link(vec![file]).map_err(locate)
}

fn link_set(content: &str) -> Result<(DescriptorPool, Vec<String>), SchemaError> {
    let compact = content.split_ascii_whitespace().collect::<String>();
    let prefix = "the content has only base64 characters and is read as a descriptor set, but";
    let bytes = BASE64.decode(compact).map_err(|error| SchemaError::new(format!("{prefix} {error}")))?;
    set::check(&bytes).map_err(|error| SchemaError::new(format!("{prefix} {error}")))?;
    let decoded = FileDescriptorSet::decode(bytes.as_slice());
    let decoded = decoded.map_err(|error| {
        SchemaError::new(clip(&format!("{prefix} it cannot be decoded: {error}"), MESSAGE).into_owned())
    })?;
    let refuse = |refusal: Refusal| SchemaError::new(clip(&refusal.message, MESSAGE).into_owned());
    // Ours are used instead.
    let mut files = decoded.file.into_iter().filter(|file| !is_well_known(file.name())).collect::<Vec<_>>();
    checks::set(&mut files).map_err(refuse)?;
    let names = files.iter().map(|file| file.name().to_owned()).collect::<HashSet<_>>();
    for file in &files {
        check_imports(file, &names).map_err(refuse)?;
    }
    link(flatten(files).map_err(refuse)?).map_err(refuse)
}

fn is_well_known(name: &str) -> bool {
    WELL_KNOWN.contains(&name)
}

fn check_imports(file: &FileDescriptorProto, others: &HashSet<String>) -> Result<(), Refusal> {
    let mut seen = HashSet::new();
    for (index, name) in (0..).zip(&file.dependency) {
        // Field 3 of a file descriptor.
        let refuse = |message: String| Err(Refusal { message, path: vec![3, index] });
        let shown = clip(name, 100);
        if !is_well_known(name) && !others.contains(name) {
            return refuse(format!("the import {shown:?} is refused: {IMPORTABLE}"));
        }
        if !seen.insert(name) {
            return refuse(format!("{shown:?} is imported twice"));
        }
    }
    Ok(())
}

/// Makes each file import directly what it can see through public imports: the linker follows those for longer than is
/// bounded. Refuses circles.
fn flatten(mut files: Vec<FileDescriptorProto>) -> Result<Vec<FileDescriptorProto>, Refusal> {
    if files.len() > PROTO_FILES {
        return Err(Refusal::new(format!("the descriptor set has more than {PROTO_FILES} files")));
    }
    let by_name = files.iter().enumerate().map(|(index, file)| (file.name().to_owned(), index));
    let by_name = by_name.collect::<HashMap<_, _>>();
    let of = |file: &FileDescriptorProto| {
        file.dependency.iter().filter_map(|name| by_name.get(name).copied()).collect::<Vec<usize>>()
    };
    let imports = files.iter().map(of).collect::<Vec<_>>();
    let mut remaining = imports.iter().map(Vec::len).collect::<Vec<_>>();
    let mut done = vec![false; files.len()];
    while let Some(index) = (0..files.len()).find(|&index| !done[index] && remaining[index] == 0) {
        done[index] = true;
        for (holder, imports) in imports.iter().enumerate() {
            remaining[holder] -= imports.iter().filter(|&&import| import == index).count();
        }
    }
    if let Some(index) = done.iter().position(|done| !done) {
        let name = clip(files[index].name(), 100).into_owned();
        return Err(Refusal::new(format!("{name:?} is part of a circle of imports")));
    }
    let visible = (0..files.len()).map(|index| visible_from(&files, &by_name, index)).collect::<Vec<_>>();
    for (file, dependency) in files.iter_mut().zip(visible) {
        file.dependency = dependency;
        file.public_dependency.clear();
        file.weak_dependency.clear();
    }
    Ok(files)
}

fn visible_from(files: &[FileDescriptorProto], by_name: &HashMap<String, usize>, index: usize) -> Vec<String> {
    let mut visible = files[index].dependency.clone();
    let mut seen = visible.iter().cloned().collect::<HashSet<_>>();
    let mut at = 0;
    while let Some(name) = visible.get(at) {
        let file = by_name.get(name).map(|&index| &files[index]);
        let public = file.map(|file| {
            let indexes = file.public_dependency.iter().filter_map(|&index| usize::try_from(index).ok());
            indexes.filter_map(|index| file.dependency.get(index).cloned()).collect::<Vec<_>>()
        });
        visible.extend(public.into_iter().flatten().filter(|name| seen.insert(name.clone())));
        at += 1;
    }
    visible
}

fn link(mut files: Vec<FileDescriptorProto>) -> Result<(DescriptorPool, Vec<String>), Refusal> {
    for file in &mut files {
        file.source_code_info = None;
        file.public_dependency.clear();
        file.weak_dependency.clear();
    }
    let names = files.iter().map(|file| file.name().to_owned()).collect();
    let mut pool = DescriptorPool::global();
    pool.add_file_descriptor_protos(files).map_err(|error| Refusal {
        message: error.to_string(),
        path: error.path().map(<[i32]>::to_vec).unwrap_or_default(),
    })?;
    Ok((pool, names))
}

/// Where the most specific location of a path is.
fn locate(text: &str, locations: &[Location], path: &[i32]) -> Option<Position> {
    let fits = locations.iter().filter(|location| !location.path.is_empty() && path.starts_with(&location.path));
    let location = fits.max_by_key(|location| location.path.len())?;
    let number = |index: usize| location.span.get(index).and_then(|&number| usize::try_from(number).ok());
    let (line, column) = (number(0)?, number(1)?);
    let start = text.split_inclusive('\n').take(line).map(str::len).sum::<usize>();
    Some(Position::of(text, start + column))
}

/// The messages of files, without those within others.
fn candidates(pool: &DescriptorPool, files: &[String]) -> Vec<MessageDescriptor> {
    let own = files.iter().filter_map(|name| pool.get_file_by_name(name));
    own.flat_map(|file| file.messages().collect::<Vec<_>>()).collect()
}

fn find_root(pool: &DescriptorPool, files: &[String], message: Option<&str>) -> Result<MessageDescriptor, SchemaError> {
    let candidates = candidates(pool, files);
    let found = match message {
        Some(name) => pool.get_message_by_name(name),
        None if candidates.len() == 1 => candidates.first().cloned(),
        None => None,
    };
    if let Some(found) = found.filter(|found| !found.is_map_entry()) {
        return Ok(found);
    }
    let mut names = candidates.iter().take(CANDIDATES).map(|one| one.full_name().to_owned()).collect::<Vec<_>>();
    if candidates.len() > CANDIDATES {
        names.push(format!("{} more", candidates.len() - CANDIDATES));
    }
    let names = names.join(", ");
    Err(SchemaError::new(match message {
        _ if candidates.is_empty() => NO_MESSAGE.to_owned(),
        Some(name) => format!("there is no message {:?}; give the full name of one of these: {names}", clip(name, 100)),
        None => format!("the schema has several messages; name the one that events are: {names}"),
    }))
}
