//! The drafts of JSON Schema that are supported, and what their keywords apply schemas to.

use jsonschema::Draft;
use serde_json::Value;

use super::graph::Problem;
use super::source::clip_message;

/// A draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Draft7,
    Draft201909,
    Draft202012,
}

/// The drafts by the values of `$schema`, for people.
pub(super) const SUPPORTED: &str = "\"http://json-schema.org/draft-07/schema#\", \
                                    \"https://json-schema.org/draft/2019-09/schema\" and \
                                    \"https://json-schema.org/draft/2020-12/schema\" are supported";

/// What a keyword holds, and to which values the schemas in it are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A schema for the same value.
    Same,
    /// An array of schemas for the same value.
    SameList,
    /// Schemas by name, for the same value. Those that are arrays are no schemas.
    SameMap,
    /// A schema for items, members or names.
    Inner,
    /// Such a schema, or an array of them.
    InnerOrList,
    /// Schemas by name, for members.
    InnerMap,
    /// Schemas by name that are not applied, only referred to.
    Definitions,
    /// No schemas.
    Other,
}

impl Dialect {
    /// The draft that a schema names; draft 7 if it names none.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let Some(name) = schema.get("$schema") else { return Ok(Self::Draft7) };
        let Some(name) = name.as_str() else { return Err(format!("`$schema` is no string: {SUPPORTED}")) };
        match name.trim_end_matches('#').trim_start_matches("https://").trim_start_matches("http://") {
            "json-schema.org/draft-07/schema" => Ok(Self::Draft7),
            "json-schema.org/draft/2019-09/schema" => Ok(Self::Draft201909),
            "json-schema.org/draft/2020-12/schema" => Ok(Self::Draft202012),
            _ => Err(format!("`$schema` is {}: {SUPPORTED}", super::tree::clip(name, 100))),
        }
    }

    /// The name of the draft in the `jsonschema` crate.
    pub(super) fn draft(self) -> Draft {
        match self {
            Self::Draft7 => Draft::Draft7,
            Self::Draft201909 => Draft::Draft201909,
            Self::Draft202012 => Draft::Draft202012,
        }
    }

    /// What the metaschema finds wrong first.
    pub(super) fn fault(self, schema: &Value) -> Option<Problem> {
        let error = match self {
            Self::Draft7 => jsonschema::draft7::meta::validate(schema),
            Self::Draft201909 => jsonschema::draft201909::meta::validate(schema),
            Self::Draft202012 => jsonschema::draft202012::meta::validate(schema),
        };
        let error = error.err()?;
        let pointer = error.instance_path().as_str();
        let message = if pointer.ends_with("/type") {
            "this is no type: use array, boolean, integer, null, number, object or string, or an array of them".into()
        } else {
            clip_message(&error.to_string())
        };
        Some(Problem::new(pointer, message))
    }

    /// Whether a schema with `$ref` has no other keywords.
    pub(super) fn ref_stands_alone(self) -> bool {
        self == Self::Draft7
    }

    /// What a keyword holds.
    pub(super) fn role(self, keyword: &str) -> Role {
        let modern = self != Self::Draft7;
        match keyword {
            "not" | "if" | "then" | "else" => Role::Same,
            "allOf" | "anyOf" | "oneOf" => Role::SameList,
            "dependentSchemas" if modern => Role::SameMap,
            "dependencies" => Role::SameMap,
            "additionalProperties" | "propertyNames" | "contains" => Role::Inner,
            "unevaluatedItems" | "unevaluatedProperties" if modern => Role::Inner,
            "additionalItems" if self != Self::Draft202012 => Role::Inner,
            "items" => Role::InnerOrList,
            "prefixItems" if self == Self::Draft202012 => Role::InnerOrList,
            "properties" | "patternProperties" => Role::InnerMap,
            "definitions" => Role::Definitions,
            "$defs" if modern => Role::Definitions,
            _ => Role::Other,
        }
    }
}
