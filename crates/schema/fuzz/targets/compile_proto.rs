#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_schema::SchemaType;
use tidegate_schema_fuzz::{compile, seeds, start};

fuzz_target!(
    init: start(|| seeds::compile(SchemaType::Proto)),
    |data: &[u8]| compile(SchemaType::Proto, data)
);
