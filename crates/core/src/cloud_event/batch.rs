//! Batches: the events of a request as parts of its body, so that each is read and refused on its own.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::envelope::{members, not_json, part_of, text};
use super::invalid::InvalidCloudEvent;

const BATCH: &str = "the batch";

/// The events of a batch in the JSON format, none of them read yet. A batch may be empty.
///
/// # Errors
/// When it is not a JSON array, or has more than `most` events.
pub fn split_batch(body: &Bytes, most: usize) -> Result<Vec<Bytes>, InvalidCloudEvent> {
    let text = text(BATCH, body)?;
    if text.trim_ascii_start().starts_with('[') {
        return split(BATCH, body, text, most);
    }
    Err(match serde_json::from_str::<&RawValue>(text) {
        Ok(_) => InvalidCloudEvent::new(BATCH, "must be a JSON array of events"),
        Err(error) => not_json(BATCH, &error),
    })
}

/// The events of a batch in the source's own JSON, `{"events": […]}`, none of them read yet.
///
/// # Errors
/// When it is something else, or has more than `most` events.
pub fn split_events(body: &Bytes, most: usize) -> Result<Vec<Bytes>, InvalidCloudEvent> {
    let mut events = None;
    for (name, value) in members(BATCH, text(BATCH, body)?)? {
        if name != "events" {
            return Err(InvalidCloudEvent::of(&name, "is not a known field: the only one is \"events\""));
        }
        events = Some(value);
    }
    match events {
        Some(events) if events.get().starts_with('[') => split("events", body, events.get(), most),
        Some(_) => Err(InvalidCloudEvent::new("events", "must be an array of events")),
        None => Err(InvalidCloudEvent::new("events", "is missing: it is the array of events")),
    }
}

fn split(field: &'static str, body: &Bytes, text: &str, most: usize) -> Result<Vec<Bytes>, InvalidCloudEvent> {
    let mut json = serde_json::Deserializer::from_str(text);
    let items = Items { most }.deserialize(&mut json).and_then(|items| {
        // What follows too many items is not read.
        if items.len() <= most {
            json.end()?;
        }
        Ok(items)
    });
    let items = items.map_err(|error| not_json(field, &error))?;
    if items.len() > most {
        return Err(InvalidCloudEvent::new(field, format!("has more than {most} events: send several batches")));
    }
    Ok(items.into_iter().map(|item| part_of(body, item.get())).collect())
}

/// Reads at most one item more than `most`, and then none.
struct Items {
    most: usize,
}

impl<'de> DeserializeSeed<'de> for Items {
    type Value = Vec<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
            if items.len() > self.most {
                while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
            }
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many items a body has, no more of them take memory than show that it has too many.
    #[test]
    fn items_beyond_the_most_are_not_kept() {
        let kept = |text: &str| {
            let mut json = serde_json::Deserializer::from_str(text);
            Items { most: 3 }.deserialize(&mut json).map(|items| items.len())
        };
        for (count, expected) in [(1, 1), (3, 3), (4, 4), (5, 4), (1_000, 4)] {
            assert_eq!(kept(&format!("[{}]", vec!["1"; count].join(","))).unwrap(), expected, "{count}");
        }
        assert!(kept("[1,2,3,4,5,").is_err(), "the others are still read");
    }
}
