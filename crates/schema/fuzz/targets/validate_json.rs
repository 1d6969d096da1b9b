#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_schema::SchemaType;
use tidegate_schema_fuzz::{seeds, start, validate};

fuzz_target!(
    init: start(|| seeds::validate(SchemaType::JsonSchema)),
    |data: &[u8]| validate(SchemaType::JsonSchema, data)
);
