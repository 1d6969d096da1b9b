//! Nothing is read but what is handed in: hostile schemas and documents of all three languages are judged in a process
//! that the kernel kills when it opens a file or a socket, or starts a program.
//!
//! The tests run this program again, with [`ROLE`] set: the thread that plays the role installs the filter before it
//! starts. That the filter kills is tested as well.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use tidegate_schema::{Definition, Document, Format, SchemaType};

/// Which role the process plays.
const ROLE: &str = "TIDEGATE_NO_IO_ROLE";

/// Runs a test of this program in a process of its own.
fn play(test: &str, role: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // A backtrace reads files.
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role).env("RUST_BACKTRACE", "0");
    command.output().unwrap()
}

/// Has the kernel kill this process when this thread opens a file or a socket, or starts a program.
fn forbid_io() {
    let mut calls = vec![
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_sendto,
        libc::SYS_execve,
        libc::SYS_execveat,
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([libc::SYS_open, libc::SYS_creat]);
    let rules: BTreeMap<i64, _> = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let (others, these) = (SeccompAction::Allow, SeccompAction::KillProcess);
    let filter = SeccompFilter::new(rules, others, these, std::env::consts::ARCH.try_into().unwrap()).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// A schema, and why it is refused.
type Refused = (SchemaType, String, &'static str);

/// Schemas that reach for something outside.
fn refused() -> Vec<Refused> {
    let mut cases = Vec::new();
    for uri in
        ["http://127.0.0.1:9/a", "https://localhost/a.json", "file:///etc/passwd", "//127.0.0.1/a", "/etc/passwd"]
    {
        for (draft, keyword) in [
            ("http://json-schema.org/draft-07/schema#", "$ref"),
            ("https://json-schema.org/draft/2019-09/schema", "$ref"),
            ("https://json-schema.org/draft/2020-12/schema", "$ref"),
            ("https://json-schema.org/draft/2020-12/schema", "$dynamicRef"),
        ] {
            let schema = format!("{{\"$schema\":\"{draft}\",\"items\":{{\"{keyword}\":\"{uri}\"}}}}");
            cases.push((SchemaType::JsonSchema, schema, "is not in this document"));
            let based = format!("{{\"$schema\":\"{draft}\",\"$id\":\"{uri}\",\"allOf\":[{{\"{keyword}\":\"b#/c\"}}]}}");
            cases.push((SchemaType::JsonSchema, based, "is not in this document"));
        }
        cases.push((SchemaType::JsonSchema, format!("{{\"$schema\":\"{uri}\"}}"), "are supported"));
        for how in ["", "public ", "weak "] {
            let text = format!("syntax = \"proto2\"; import {how}\"{uri}\"; message A {{}}");
            cases.push((SchemaType::Proto, text, "can be imported"));
        }
        // A descriptor set whose only file, `a`, imports another one.
        let mut file = vec![0x0a, 1, b'a', 0x1a, u8::try_from(uri.len()).unwrap()];
        file.extend(uri.bytes());
        let set = [&[0x0a, u8::try_from(file.len()).unwrap()], &*file].concat();
        cases.push((SchemaType::Proto, BASE64_STANDARD.encode(set), "can be imported"));
        let schema =
            |body: &str| format!("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">{body}</xs:schema>");
        for (element, expected) in [
            ("import namespace=\"urn:a\"", "import is not supported"),
            ("include", "include is not supported"),
            ("redefine", "redefine is not supported"),
        ] {
            let body = format!("<xs:{element} schemaLocation=\"{uri}\"/>");
            cases.push((SchemaType::Xsd, schema(&body), expected));
        }
        for document_type in [
            format!("<!DOCTYPE a SYSTEM \"{uri}\">"),
            format!("<!DOCTYPE a [<!ENTITY b SYSTEM \"{uri}\">]>"),
            format!("<!DOCTYPE a [<!ENTITY % b SYSTEM \"{uri}\"> %b;]>"),
        ] {
            let text = format!("{document_type}{}", schema("<xs:element name=\"a\"/>"));
            cases.push((SchemaType::Xsd, text, "DOCTYPE is not accepted"));
        }
        let include = format!("<xi:include xmlns:xi=\"http://www.w3.org/2001/XInclude\" href=\"{uri}\"/>");
        cases.push((SchemaType::Xsd, schema(&include), "include"));
    }
    cases
}

/// A schema that compiles, and documents that reach for something outside, each with what its violations say; none are
/// expected for the empty text.
type Judged = (SchemaType, &'static str, Format, Vec<(String, &'static str)>);

fn judged() -> Vec<Judged> {
    let json = "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"$id\":\"http://127.0.0.1:9/a\",\
                \"$ref\":\"#/$defs/b\",\"$defs\":{\"b\":{\"properties\":{\"uri\":{\"format\":\"uri\"},\
                \"host\":{\"format\":\"idn-hostname\"},\"mail\":{\"format\":\"email\"}}}}}";
    let proto = "syntax = \"proto3\"; import \"google/protobuf/any.proto\"; import \"google/protobuf/struct.proto\"; \
                 message A { google.protobuf.Any any = 1; google.protobuf.Struct object = 2; }";
    let xsd = "<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\"><xs:element name=\"a\"><xs:complexType>\
               <xs:sequence><xs:any minOccurs=\"0\" processContents=\"lax\" namespace=\"##any\"/></xs:sequence>\
               </xs:complexType></xs:element></xs:schema>";
    let (mut objects, mut messages, mut documents) = (Vec::new(), Vec::new(), Vec::new());
    for uri in ["http://127.0.0.1:9/a", "file:///etc/passwd"] {
        objects.push((format!("{{\"$ref\":\"{uri}\",\"$schema\":\"{uri}\",\"uri\":\"{uri}\"}}"), ""));
        objects.push((format!("{{\"host\":\"{uri}\",\"mail\":\"{uri}\"}}"), "is no valid"));
        messages.push((format!("{{\"any\":{{\"@type\":\"{uri}\"}}}}"), "expected the URL of a type of this schema"));
        messages.push((format!("{{\"object\":{{\"$ref\":\"{uri}\"}}}}"), ""));
        let xsi = "xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\"";
        documents.push((format!("<a {xsi} xsi:noNamespaceSchemaLocation=\"{uri}\"/>"), ""));
        documents.push((format!("<a {xsi} xsi:schemaLocation=\"urn:a {uri}\"><b xmlns=\"urn:a\"/></a>"), ""));
        documents.push((format!("<?xml-stylesheet href=\"{uri}\"?><a/>"), ""));
        let include =
            format!("<xi:include xmlns:xi=\"http://www.w3.org/2001/XInclude\" href=\"{uri}\" parse=\"text\"/>");
        documents.push((format!("<a>{include}</a>"), ""));
        documents.push((format!("<!DOCTYPE a SYSTEM \"{uri}\"><a/>"), "DOCTYPE is not accepted"));
        documents.push((format!("<!DOCTYPE a [<!ENTITY b SYSTEM \"{uri}\">]><a>&b;</a>"), "DOCTYPE is not accepted"));
        let parameter = format!("<!DOCTYPE a [<!ENTITY % b SYSTEM \"{uri}\"> %b;]><a/>");
        documents.push((parameter, "DOCTYPE is not accepted"));
    }
    vec![
        (SchemaType::JsonSchema, json, Format::Json, objects),
        (SchemaType::Proto, proto, Format::Json, messages),
        (SchemaType::Xsd, xsd, Format::Xml, documents),
    ]
}

/// What the role does, once it cannot open anything.
fn judge_all() {
    let (refused, judged) = (refused(), judged());
    // The engine of patterns asks once, when it is used first, how many processors there are: that reads /proc.
    let pattern = Definition { content: "{\"pattern\":\"a+b\"}".into(), ..Definition::default() };
    let pattern = SchemaType::JsonSchema.language().compile(&pattern).unwrap();
    pattern.validate(Document { bytes: b"\"aab\"", format: Format::Json });
    forbid_io();
    let mut count = 0;
    for (language, content, expected) in &refused {
        let definition = Definition { content: content.clone(), message: None, strict: true };
        let error = language.language().compile(&definition).err();
        let error = error.unwrap_or_else(|| panic!("accepted: {content}")).to_string();
        assert!(error.contains(expected), "{content}: {error}");
        let compared = language.language().compare(&definition, &definition);
        assert!(compared.is_err(), "compared: {content}");
        count += 1;
    }
    for (language, content, format, documents) in &judged {
        let definition = Definition { content: (*content).into(), message: None, strict: true };
        let validator = language.language().compile(&definition).unwrap_or_else(|error| panic!("{content}: {error}"));
        for (text, expected) in documents {
            let report = validator.validate(Document { bytes: text.as_bytes(), format: *format });
            let found = report.violations().first().map_or("", |one| one.message.as_str());
            assert!(found.contains(expected) && report.is_valid() == expected.is_empty(), "{text}: {found:?}");
            count += 1;
        }
    }
    println!("{count} cases were judged");
}

#[test]
fn nothing_is_opened() {
    if std::env::var_os(ROLE).is_some() {
        return judge_all();
    }
    let output = play("nothing_is_opened", "judge");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    let expected = refused().len() + judged().iter().map(|(.., documents)| documents.len()).sum::<usize>();
    assert!(said.contains(&format!("{expected} cases were judged")) && expected > 100, "{said}");
}

/// The filter does what the test above relies on.
#[test]
fn the_filter_kills() {
    if let Some(role) = std::env::var_os(ROLE) {
        forbid_io();
        match role.to_str().unwrap() {
            "file" => drop(std::fs::read("/dev/null")),
            "socket" => drop(std::net::TcpStream::connect("127.0.0.1:9")),
            _ => {}
        }
        println!("still alive");
        return;
    }
    for role in ["file", "socket"] {
        let output = play("the_filter_kills", role);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains("still alive"), "{role}: {said}");
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{role}: {}", output.status);
    }
    let output = play("the_filter_kills", "nothing");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("still alive"));
}
