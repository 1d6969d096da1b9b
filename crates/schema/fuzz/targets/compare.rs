#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_schema_fuzz::{compare, seeds, start};

fuzz_target!(
    init: start(seeds::compare),
    |data: &[u8]| compare(data)
);
