//! The inputs that fuzzing starts from: what the tests have.

use tidegate_schema::SchemaType;

use crate::{SEPARATOR, cases};

/// Every schema, and the texts among them with a document.
pub fn compile(language: SchemaType) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for schema in cases::schemas(language) {
        let input = schema.input();
        seeds.push(input.write());
        let documents = schema.documents.iter().filter(|_| !input.is_set);
        seeds.extend(documents.take(2).map(|document| [&*input.write(), &[SEPARATOR], document].concat()));
    }
    seeds
}

/// Every document, with the number of its schema.
///
/// # Panics
/// When there are more schemas than two bytes can number.
pub fn validate(language: SchemaType) -> Vec<Vec<u8>> {
    let schemas = cases::schemas(language);
    let compiled = schemas.iter().filter(|schema| schema.compile().is_some());
    let mut seeds = Vec::new();
    for (number, schema) in compiled.enumerate() {
        let number = u16::try_from(number).expect("few schemas").to_le_bytes();
        seeds.extend(schema.documents.iter().map(|document| [&number[..], document].concat()));
    }
    seeds
}

/// Every schema before the next one of its language, and before itself with one of its documents.
pub fn compare() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (language, number) in SchemaType::ALL.into_iter().zip(0..) {
        let schemas = cases::schemas(language);
        let inputs: Vec<Vec<u8>> = schemas.iter().map(|schema| schema.input().write()).collect();
        for pair in inputs.windows(2) {
            seeds.push([&[number], &*pair[0], &[SEPARATOR], &*pair[1]].concat());
        }
        for (schema, input) in schemas.iter().zip(&inputs) {
            for document in schema.documents.iter().take(2) {
                seeds.push([&[number], &**input, &[SEPARATOR], input, &[SEPARATOR], document].concat());
            }
        }
    }
    seeds
}
