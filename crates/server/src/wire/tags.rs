//! Tags, in bodies and queries.

use serde::{Deserialize, Serialize};
use tidegate_core::attempt::{MAX_TAGS, check_tag};
use utoipa::ToSchema;

use crate::error::{ApiError, Result};

/// Tags as one comma-separated string, or as a list of strings.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(example = "email,priority-high")]
pub(crate) enum Tags {
    /// Tags separated by commas.
    Text(String),
    /// A list of tags.
    List(Vec<String>),
}

impl Tags {
    /// The tags without repeats, in the order given. 400 when there is none, or too many.
    pub(crate) fn read(&self) -> Result<Vec<String>> {
        let tags = match self {
            Self::Text(text) => read_tags(text.split(','))?,
            Self::List(list) => read_tags(list.iter().map(String::as_str))?,
        };
        if tags.is_empty() {
            return Err(ApiError::invalid("tags is required: name at least one, separated by commas"));
        }
        Ok(tags)
    }
}

/// Parses tags, without repeats; blank ones are skipped.
pub(crate) fn read_tags<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let mut tags: Vec<String> = Vec::new();
    for tag in parts.map(str::trim).filter(|tag| !tag.is_empty()) {
        if tags.iter().any(|known| known == tag) {
            continue;
        }
        if tags.len() == MAX_TAGS {
            return Err(ApiError::invalid(format!("too many tags: use at most {MAX_TAGS}")));
        }
        check_tag(tag).map_err(|error| ApiError::invalid(error.to_string()))?;
        tags.push(tag.into());
    }
    Ok(tags)
}

/// Parses the `tags` parameter of a query. One that names no tag is refused: taken as no filter, it would show and hand
/// out everything.
pub(crate) fn asked_tags(text: Option<&str>) -> Result<Option<Vec<String>>> {
    let Some(text) = text else { return Ok(None) };
    let tags = read_tags(text.split(','))?;
    if tags.is_empty() {
        return Err(ApiError::invalid("tags names no tag: name at least one, or leave the parameter out"));
    }
    Ok(Some(tags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_trimmed_and_counted() {
        let tags = Tags::Text(" email, priority-high ,,email".into()).read().unwrap();
        assert_eq!(tags, ["email", "priority-high"]);
        assert!(Tags::Text(" , ".into()).read().is_err());
        assert!(Tags::List(vec![]).read().is_err());
        assert!(Tags::List((0..100_000).map(|n| n.to_string()).collect()).read().is_err());
        assert!(Tags::Text("a\0b".into()).read().is_err());
    }
}
